// A program: where it comes from, its decisions beside the prior's, and its schedule as code.
const ORIGINS = {
  default: "the default program", "diffusion:keep": "transferred from a relative, inner factors kept",
  "diffusion:scale": "transferred from a relative, scaled with the extents", "diffusion:measured": "drawn around its own best",
  "diffusion:distilled": "adapted from, or drawn around, a distilled prior",
  "diffusion:default": "drawn around the default program", "diffusion:random": "drawn at random",
  evolutionary: "found by evolutionary search", chameleon: "found by Chameleon", random: "drawn at random",
};
const originOf = (origin) => ORIGINS[origin] || origin;

function programOf(data, n) {
  const operator = data.operators[n], sketch = data.sketches[operator.sketch];
  const decisions = JSON.parse(operator.decisions || "[]");
  const beside = besidePrior(data, n);
  return el("div", {}, el("dl", { class: "facts" },
    el("dt", {}, "fastest one was"), el("dd", {}, operator.origin ? originOf(operator.origin) : UNKNOWN),
    el("dt", {}, "a call is"), el("dd", {}, `${work(operator.flops)}, ${size(operator.bytes)}`),
    el("dt", {}, "reaches"), el("dd", {}, operator.best && operator.flops ? rate(operator.flops / operator.best) : UNKNOWN),
    el("dt", {}, "slots"), el("dd", {}, `${count(operator.slots)}, which took ${latency(operator.gain || 0)} off the model`)),
  beside || (sketch && decisions.length ? el("div", { class: "chips" }, decisions.map((value, place) =>
    el("span", { class: "tile" }, el("b", {}, labelOf(sketch, place)), sayDecision(sketch, place, value)))) : null));
}

function scheduleOf(data, n) {
  const operator = data.operators[n], sketch = data.sketches[operator.sketch];
  if (!sketch) {
    return el("p", { class: "say" }, operator.sketch ? "Its schedule was left out to keep the page small: slipstream store show prints it." : "No program of it has been measured.");
  }
  const parts = sketch.code ? codeWith(sketch, JSON.parse(operator.decisions || "[]")) : ["# nothing is scheduled: the operator runs as it is"];
  const pre = el("pre", { tabindex: "0", id: "schedule" }, ...parts);
  const copy = el("button", { type: "button", class: "quiet", onclick: () => copyText(pre.textContent, copy) }, "Copy");
  return el("div", {}, el("div", { class: "top" }, el("h3", { style: { flex: "1" } }, "Its schedule"), copy), pre);
}

const labelOf = (sketch, n) => (sketch.decided[n] ? sketch.decided[n][0] : `decision ${n}`);

function sayDecision(sketch, n, value) {
  const [, kind, candidates] = sketch.decided[n] || ["", "tile", []];
  if (kind === "choice" && candidates[value] !== undefined) return String(candidates[value]);
  if (kind === "location") return { "-2": "inlined", "-1": "root" }[value] || `loop ${value}`;
  return Array.isArray(value) ? value.join(" × ") : String(value);
}

function codeWith(sketch, decisions) {
  return sketch.code.split(/(<\d+(?:\.\d+)?>)/).map((part) => {
    const mark = /^<(\d+)(?:\.(\d+))?>$/.exec(part);
    if (!mark) return part;
    const value = decisions[Number(mark[1])];
    const number = Number(mark[1]), isLocation = (sketch.decided[number] || [])[1] === "location";
    const text = mark[2] !== undefined && Array.isArray(value) ? String(value[Number(mark[2])]) : isLocation ? String(value) : sayDecision(sketch, number, value);
    return el("span", { class: "value" }, text);
  });
}

async function copyText(text, button) {
  try {
    await navigator.clipboard.writeText(text);
    button.textContent = "Copied";
  } catch {
    button.textContent = "Select and copy by hand";
  }
  setTimeout(() => { button.textContent = "Copy"; }, 1500);
}
