// Builds the page from data in the file itself or from the server.
const given = JSON.parse(document.getElementById("data").textContent);
const main = document.getElementById("main");
const redraws = new Set();

function sessionView(data) {
  const sections = {};
  const open = (n) => sections.operators.open(n);
  sections.headline = headlineSection();
  sections.latency = latencySection();
  sections.timeline = timelineSection();
  sections.operators = operatorsSection();
  sections.families = familiesSection(open);
  sections.spent = spentSection();
  sections.roofline = rooflineSection(open);
  sections.failures = failuresSection();
  sections.environment = environmentSection();
  main.replaceChildren(sections.headline.node, sections.latency.node, sections.timeline.node, sections.operators.node, sections.families.node,
    el("div", { class: "pair" }, sections.roofline.node, sections.spent.node), sections.failures.node, sections.environment.node);
  const update = (fresh) => {
    const colours = palette(fresh);
    document.title = `${fresh.session.model}: ${fresh.session.name} – Slipstream`;
    document.getElementById("where").textContent = `${fresh.session.name} · ${fresh.session.model}`;
    for (const section of Object.values(sections)) section.update(fresh, colours);
    window.slipstream = { data: fresh, charts, sections };
  };
  update(data);
  redraws.add(() => Object.values(sections).forEach((section) => section.redraw && section.redraw()));
  return update;
}

const themes = ["auto", "light", "dark"];
function paint(name) {
  if (name === "auto") document.documentElement.removeAttribute("data-theme");
  else document.documentElement.setAttribute("data-theme", name);
  redraws.forEach((redraw) => redraw());
}
function setTheme(name) {
  document.getElementById("theme").textContent = `Theme: ${name}`;
  try { localStorage.setItem("slipstream-theme", name); } catch { /* a page from disk may not remember */ }
  paint(name);
}
function startTheme() {
  let name = "auto";
  try { name = localStorage.getItem("slipstream-theme") || "auto"; } catch { /* see above */ }
  if (!themes.includes(name)) name = "auto";
  setTheme(name);
  // Print in the light theme.
  window.addEventListener("beforeprint", () => paint("light"));
  window.addEventListener("afterprint", () => paint(name));
  document.getElementById("theme").addEventListener("click", () => { name = themes[(themes.indexOf(name) + 1) % themes.length]; setTheme(name); });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => redraws.forEach((redraw) => redraw()));
}

function start() {
  startTheme();
  document.getElementById("foot").textContent = `Slipstream ${given.slipstream}`;
  if (given.live) startLive();
  else sessionView(given.session);
}
