// The table of operators: filter, sort, and open one to see its curve, its program and its code.
const SHOWN_OPERATORS = 40;

const COLUMNS = [
  { id: "name", title: "operator", of: (o) => o.name.toLowerCase() },
  { id: "weight", title: "calls", of: (o) => o.weight, say: (o) => count(o.weight) },
  { id: "start", title: "before", of: (o) => o.start, say: (o) => latency(o.start) },
  { id: "best", title: "now", of: (o) => o.best, say: (o) => latency(o.best) },
  { id: "factor", title: "gain", of: (o) => (o.start && o.best ? o.start / o.best : null), say: (o) => times(o.start, o.best) },
  { id: "share", title: "of the model", of: (o) => (o.best ? o.weight * o.best : null) },
  { id: "trials", title: "trials", of: (o) => o.trials, say: (o) => count(o.trials) },
  { id: "failures", title: "failed", of: (o) => o.failures, say: (o) => (o.failures ? count(o.failures) : "") },
  { id: "spent", title: "time", of: (o) => o.spent, say: (o) => span(o.spent) },
];

function operatorsSection() {
  const filter = el("input", { type: "search", placeholder: "Filter operators", "aria-label": "Filter operators", id: "filter" });
  const { node, body } = card("operators", "Operators", "Seconds per call. Open one to see its curve, the belief's forecasts and its program.", filter);
  const head = el("tr", {}), rows = el("tbody", {});
  const more = el("button", { type: "button", class: "quiet" });
  const shown = el("p", { class: "say", role: "status" });
  body.append(el("div", { class: "wide" }, el("table", {}, el("thead", {}, head), rows)), shown, more);
  const state = { data: null, colours: null, sort: "share", down: true, all: false, open: null };

  for (const column of COLUMNS) {
    const button = el("button", { type: "button", onclick: () => {
      state.down = state.sort === column.id ? !state.down : column.id !== "name";
      state.sort = column.id;
      fill();
    } }, column.title);
    column.head = el("th", { scope: "col" }, button);
    head.append(column.head);
  }
  filter.addEventListener("input", () => fill());
  more.addEventListener("click", () => { state.all = !state.all; fill(); });

  function matching() {
    const words = filter.value.toLowerCase().split(/\s+/).filter(Boolean);
    const column = COLUMNS.find((c) => c.id === state.sort);
    const value = (n) => column.of(state.data.operators[n]);
    const sign = state.down ? -1 : 1;
    return state.data.operators.map((_, n) => n)
      .filter((n) => words.every((word) => matches(state.data.operators[n], word)))
      .sort((a, b) => {
        const [x, y] = [value(a), value(b)];
        if (x === null || y === null) return (x === null) - (y === null);
        return x < y ? -sign : x > y ? sign : a - b;
      });
  }

  function fill() {
    const focused = document.activeElement && document.activeElement.dataset ? document.activeElement.dataset.key : null;
    const found = matching(), visible = state.all ? found : found.slice(0, SHOWN_OPERATORS);
    for (const column of COLUMNS) {
      if (column.id === state.sort) column.head.setAttribute("aria-sort", state.down ? "descending" : "ascending");
      else column.head.removeAttribute("aria-sort");
    }
    rows.replaceChildren(...visible.flatMap((n) => row(n)));
    more.hidden = found.length <= SHOWN_OPERATORS;
    more.textContent = state.all ? `Show the first ${SHOWN_OPERATORS}` : `Show all ${count(found.length)}`;
    shown.textContent = !state.data.operators.length ? "The model has no operators to tune."
      : found.length < state.data.operators.length ? `${count(found.length)} of ${count(state.data.operators.length)} operators` : "";
    if (state.open !== null && visible.includes(state.open)) drawOperator(state.data, state.open);
    if (focused) rows.querySelector(`[data-key="${CSS.escape(focused)}"]`)?.focus();
  }

  function row(n) {
    const operator = state.data.operators[n], open = state.open === n;
    const total = state.data.headline.latency, share = operator.best && total ? (operator.weight * operator.best) / total : null;
    const cells = COLUMNS.map((column) => {
      if (column.id === "name") {
        return el("td", {}, el("button", { type: "button", class: "name", "aria-expanded": String(open), "data-key": operator.key, onclick: () => {
          state.open = open ? null : n;
          fill();
        } }, el("i", { class: "swatch", style: { background: state.colours.css(n) } }), el("span", { class: "text" }, operator.name)));
      }
      if (column.id === "share") {
        return el("td", {}, share === null ? UNKNOWN : percent(share), el("span", { class: "share" }, el("i", { style: { width: `${100 * (share || 0)}%` } })));
      }
      return el("td", {}, column.say(operator));
    });
    const line = el("tr", { class: open ? "open" : "" }, cells);
    return open ? [line, el("tr", { class: "detail" }, el("td", { colspan: COLUMNS.length }, operatorDetail(state.data, n)))] : [line];
  }

  const update = (data, colours) => { Object.assign(state, { data, colours }); fill(); };
  return { node, update, redraw: () => state.data && fill(), open: (n) => { state.open = n; filter.value = ""; fill(); node.scrollIntoView(); } };
}

function matches({ name, key, callers }, word) {
  return key.startsWith(word) || [name, ...callers].some((text) => text.toLowerCase().includes(word));
}

function operatorDetail(data, n) {
  const operator = data.operators[n];
  const plot = el("div", { class: "plot", id: "operator-plot", role: "img", "aria-label": `Trials of ${operator.name}: best ${latency(operator.best)} after ${some(operator.trials, "trial")}` });
  return el("div", { class: "two" },
    operator.callers.length ? el("p", { class: "say full" }, `In ${operator.callers.join(", ")}.`) : null,
    el("div", {}, el("h3", {}, "Its trials"), plot,
      el("p", { class: "say" }, "Line: best so far. Dots: trials; a cross at the bottom edge failed. Boxes: forecast of the best time at the end of a slot (90 % interval), recomputed from the data at its start; the line in a box is the mean.")),
    el("div", {}, el("h3", {}, "Its program"), programOf(data, n)),
    el("div", { class: "full" }, scheduleOf(data, n)));
}

function drawOperator(data, n) {
  const operator = data.operators[n], holder = document.getElementById("operator-plot");
  if (!operator.steps.length) {
    holder.replaceChildren(el("p", { class: "empty" }, operator.trials ? "No trial of it has worked yet." : "Nothing has been measured yet."));
    return;
  }
  const dots = operator.dots, slotTrials = data.environment.settings.slot_trials || 8;
  const best = dots.map((dot) => (stepAt(operator.steps, dot[0]) || [null, null, null])[2]);
  const seen = [...dots.map((dot) => dot[2]), ...operator.bands.map((band) => band[1])].filter((value) => value > 0);
  const range = [Math.min(...seen) * 0.9, Math.max(...seen) * 1.12];
  draw("operator", holder, {
    height: 280,
    scales: { x: { time: false, range: (_, low, high) => [low - 0.5, Math.max(high, 1) + 0.5] }, y: { distr: 3, range } },
    axes: axes({ values: (_, ticks) => ticks.map((value) => (Number.isInteger(value) ? count(value) : "")) }, { values: seconds }),
    series: [{},
      { stroke: colour("dot"), paths: () => null, points: { show: true, size: 5, fill: colour("dot"), stroke: colour("dot"), filter: null } },
      { stroke: colour("ink"), width: 2, paths: stepped(), points: { show: false } }],
    cursor: { y: false, drag: { x: true, y: false } },
    hooks: {
      drawClear: [(plot) => paintBands(plot, operator, slotTrials)],
      draw: [(plot) => paintFailures(plot, dots)],
      setCursor: [tipAtCursor((plot) => sayTrial(operator, dots[plot.cursor.idx], slotTrials))],
    },
  }, [dots.map((dot) => dot[0]), dots.map((dot) => dot[2]), best]);
}

function paintBands(plot, operator, slotTrials) {
  const { ctx } = plot;
  ctx.save();
  ctx.fillStyle = ctx.strokeStyle = colour("band");
  for (const [trial, low, high, mean] of operator.bands) {
    const from = plot.valToPos(trial + 0.5, "x", true), to = plot.valToPos(trial + slotTrials + 0.5, "x", true);
    const top = plot.valToPos(high, "y", true), bottom = plot.valToPos(low, "y", true);
    ctx.globalAlpha = 0.16;
    ctx.fillRect(from, top, to - from, bottom - top);
    ctx.globalAlpha = 0.8;
    ctx.lineWidth = devicePixelRatio;
    ctx.beginPath();
    ctx.moveTo(from, plot.valToPos(mean, "y", true));
    ctx.lineTo(to, plot.valToPos(mean, "y", true));
    ctx.stroke();
  }
  ctx.restore();
}

function paintFailures(plot, dots) {
  const { ctx, bbox } = plot, r = 3 * devicePixelRatio, y = bbox.top + bbox.height - 2 * r;
  ctx.save();
  ctx.strokeStyle = colour("bad");
  ctx.lineWidth = 1.5 * devicePixelRatio;
  for (const dot of dots) {
    if (dot[2] !== null) continue;
    const x = plot.valToPos(dot[0], "x", true);
    ctx.beginPath();
    ctx.moveTo(x - r, y - r); ctx.lineTo(x + r, y + r); ctx.moveTo(x - r, y + r); ctx.lineTo(x + r, y - r);
    ctx.stroke();
  }
  ctx.restore();
}

function sayTrial(operator, dot, slotTrials) {
  if (!dot) return "";
  const best = stepAt(operator.steps, dot[0]), band = operator.bands.find((b) => dot[0] > b[0] && dot[0] <= b[0] + slotTrials);
  return [`trial ${count(dot[0])} at ${clock(dot[1])}: ${dot[2] === null ? "failed" : latency(dot[2])}`,
    best ? `best so far ${latency(best[2])}` : "", band ? `forecast ${latency(band[1])} to ${latency(band[2])}` : ""].filter(Boolean).join("\n");
}
