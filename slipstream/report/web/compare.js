// Two sessions side by side: their figures, both curves in one plot, and every operator they share.
function compareView(main, a, b) {
  const sides = [[a, "c0"], [b, "c4"]];
  const holder = el("div", { class: "plot", role: "img", "aria-label": "Latency of both sessions over time" });
  const curve = card("compare-latency", "Latency over time");
  curve.body.append(holder, el("ul", { class: "legend" }, sides.map(([data, shade], n) => el("li", {}, el("i", { class: "swatch", style: { background: `var(--${shade})` } }),
    el("span", {}, `${n ? "B" : "A"}: ${data.session.name}, ${data.session.model}, ${data.environment.settings.scheduler} + ${data.environment.settings.search}`)))));
  const operators = card("compare-operators", "Operators of both", "Best seconds per call. The factor says how much faster B's program is than A's.");
  operators.body.append(compareTable(a, b));
  main.replaceChildren(el("div", { class: "pair" }, sides.map(([data, shade], n) => el("section", { class: "card", style: { "border-top": `4px solid var(--${shade})` } },
    el("a", { href: `/session/${encodeURIComponent(data.session.id)}`, class: "say" }, `${n ? "B" : "A"}: ${data.session.name}`), ...headline(data)))), curve.node, operators.node);
  const paint = () => drawBoth(holder, sides);
  paint();
  return paint;
}

function drawBoth(holder, sides) {
  const tables = sides.map(([data]) => {
    const points = data.curve.length ? [...data.curve, [Math.max(data.session.elapsed, data.curve[data.curve.length - 1][0]), data.curve[data.curve.length - 1][1]]] : [];
    return [points.map((p) => p[0]), points.map((p) => p[1])];
  });
  if (tables.every((table) => !table[0].length)) {
    holder.replaceChildren(el("p", { class: "empty" }, "Neither session has a curve yet."));
    return;
  }
  const joined = uPlot.join(tables, tables.map(() => [1]));
  draw("compare", holder, {
    height: 300,
    scales: { x: { time: false }, y: { range: (_, low, high) => [0.9 * low, high * 1.05] } },
    axes: axes({ values: minutes }, { values: seconds }),
    series: [{}, ...sides.map(([, shade], n) => ({ stroke: colour(shade), width: 2, dash: n ? [7, 4] : undefined, paths: stepped(), spanGaps: true, points: { show: false } }))],
    cursor: { y: false, drag: { x: true, y: false } },
    hooks: { setCursor: [tipAtCursor((_, x) => [clock(x), ...sides.map(([data], n) => `${n ? "B" : "A"}  ${latency((stepAt(data.curve, x) || [0, null])[1])}`)].join("\n"))] },
  }, joined);
}

function compareTable(a, b) {
  const theirs = new Map(b.operators.map((operator) => [operator.key, operator]));
  const shared = a.operators.filter((operator) => theirs.has(operator.key)).map((operator) => [operator, theirs.get(operator.key)])
    .sort(([x], [y]) => y.weight * (y.best || 0) - x.weight * (x.best || 0));
  const missing = a.operators.length + b.operators.length - 2 * shared.length;
  if (!shared.length) return el("p", { class: "empty" }, "The two sessions have no operator in common.");
  return el("div", {}, el("div", { class: "wide" }, el("table", {}, el("thead", {}, el("tr", {}, ["operator", "calls", "A", "trials", "B", "trials", "A / B"].map((title) => el("th", { scope: "col" }, title)))),
    el("tbody", {}, shared.slice(0, 200).map(([mine, other]) => el("tr", {}, el("td", {}, mine.name), el("td", {}, count(mine.weight)), el("td", {}, latency(mine.best)), el("td", {}, count(mine.trials)),
      el("td", {}, latency(other.best)), el("td", {}, count(other.trials)), el("td", {}, times(mine.best, other.best))))))),
  el("p", { class: "say" }, [shared.length > 200 ? `The first 200 of ${count(shared.length)}.` : "", missing ? `${count(missing)} operators are in one of the two only.` : ""].filter(Boolean).join(" ")));
}
