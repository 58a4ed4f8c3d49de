// Time by activity, programs by origin, and failures by kind.
const ACTIVITIES = {
  search: ["searching", "c0"], build: ["building, and waiting for builds", "c1"], run: ["running programs", "c2"], schedule: ["choosing operators", "c3"],
  train: ["training the cost model", "c4"], store: ["writing to the store", "c5"], compile: ["compiling the result", "c6"], other: ["preparing, settling and other", "other"],
};

function spentSection() {
  const { node, body } = card("spent", "Where the time went");
  return { node, update: (data) => body.replaceChildren(...spent(data)), redraw: () => {} };
}

function spent(data) {
  const parts = Object.entries(data.split).filter(([, time]) => time > 0), total = parts.reduce((sum, [, time]) => sum + time, 0);
  if (!total) return [el("p", { class: "empty" }, "Nothing has been measured yet.")];
  const stack = el("div", { class: "stack", role: "img", "aria-label": parts.map(([name, time]) => `${ACTIVITIES[name][0]} ${span(time)}`).join(", ") },
    parts.map(([name, time]) => hover(el("i", { style: { width: `${(100 * time) / total}%`, background: `var(--${ACTIVITIES[name][1]})` } }), () => `${ACTIVITIES[name][0]}\n${span(time)}, ${percent(time / total)}`)));
  const list = el("ul", { class: "legend" }, parts.map(([name, time]) => el("li", {},
    el("i", { class: "swatch", style: { background: `var(--${ACTIVITIES[name][1]})` } }), el("span", {}, ACTIVITIES[name][0]), el("span", { class: "count" }, `${span(time)}, ${percent(time / total)}`))));
  return [stack, list, originsOf(data)].filter(Boolean);
}

function originsOf(data) {
  if (!data.origins.length) return null;
  return el("div", {}, el("h3", { style: { "margin-top": "1.1rem" } }, "Programs by origin"), el("div", { class: "wide" }, el("table", {},
    el("thead", {}, el("tr", {}, ["origin", "trials", "improved", "rate"].map((title) => el("th", { scope: "col" }, title)))),
    el("tbody", {}, data.origins.slice(0, 12).map(([origin, trials, improved]) => el("tr", {}, el("td", {}, originOf(origin)),
      el("td", {}, count(trials)), el("td", {}, origin === "default" ? UNKNOWN : count(improved)), el("td", {}, origin === "default" ? UNKNOWN : percent(improved / trials))))))));
}

function failuresSection() {
  const { node, body } = card("failures", "Failures");
  return { node, update: (data) => body.replaceChildren(...failures(data)), redraw: () => {} };
}

function failures(data) {
  if (!data.failures.length) return [el("p", { class: "empty" }, data.headline.trials ? `All ${count(data.headline.trials)} trials could be built, ran and were right.` : "Nothing has been measured yet.")];
  return data.failures.map((kind) => el("div", { class: "failure" },
    el("div", { class: "line" }, el("b", {}, kind.kind), el("span", {}, `${count(kind.count)} of ${count(data.headline.trials)} trials, ${percent(kind.count / data.headline.trials)}`)),
    el("div", { class: "meter" }, el("i", { style: { width: `${(100 * kind.count) / data.headline.trials}%` } })),
    el("div", { class: "say" }, `most on ${kind.operators.slice(0, 3).map(([n, times_]) => `${data.operators[n].name} (${count(times_)})`).join(", ")}`),
    kind.examples.length ? el("details", {}, el("summary", {}, "error messages"), kind.examples.map((example) => el("p", {}, el("code", {}, example.message)))) : null));
}
