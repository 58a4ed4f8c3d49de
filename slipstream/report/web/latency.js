// The model's latency over time, on the colours of the operators that had the slots.
function latencySection() {
  const { node, body } = card("latency", "Latency over time",
    "Sum over all operators, each with its best program so far. The colours behind the curve show which operator was tuned.");
  const holder = el("div", { class: "plot", role: "img" });
  const names = el("div", {});
  body.append(holder, names);
  let last = null;
  const update = (data, colours) => {
    last = [data, colours];
    names.replaceChildren(legend(data, colours));
    if (!data.curve.length) {
      holder.replaceChildren(el("p", { class: "empty" }, "The curve begins when the default program of every operator has been timed."));
      return;
    }
    const first = data.curve[0], end = data.curve[data.curve.length - 1];
    holder.setAttribute("aria-label", `Latency falls from ${latency(first[1])} to ${latency(end[1])} in ${span(data.session.elapsed)}.`);
    const points = [...data.curve, [Math.max(end[0], data.session.elapsed), end[1], -1]];
    draw("latency", holder, {
      height: 280,
      scales: { x: { time: false }, y: { range: (_, low, high) => [low > 0.4 * high ? low - 0.1 * (high - low || high) : 0, high + 0.08 * (high - low || high)] } },
      axes: axes({ values: minutes }, { values: seconds }),
      series: [{}, { stroke: colour("ink"), width: 2, paths: stepped(), points: { show: points.length < 60, size: 5, fill: colour("ink") } }],
      cursor: { y: false, drag: { x: true, y: false } },
      hooks: { drawClear: [(plot) => paintSlots(plot, data, colours)], setCursor: [tipAtCursor((_, x) => sayLatency(data, x))] },
    }, [points.map((p) => p[0]), points.map((p) => p[1])]);
  };
  return { node, update, redraw: () => last && update(...last) };
}

function paintSlots(plot, data, colours) {
  const { ctx, bbox } = plot, of = colours.resolve();
  ctx.save();
  ctx.beginPath();
  ctx.rect(bbox.left, bbox.top, bbox.width, bbox.height);
  ctx.clip();
  const strip = Math.round(10 * devicePixelRatio);
  for (const [operator, start, end] of data.slots) {
    const from = plot.valToPos(start, "x", true), to = Math.max(from + 1, plot.valToPos(end, "x", true));
    ctx.fillStyle = of(operator);
    ctx.globalAlpha = 0.13;
    ctx.fillRect(from, bbox.top, to - from, bbox.height - strip);
    ctx.globalAlpha = 1;
    ctx.fillRect(from, bbox.top + bbox.height - strip, to - from, strip);
  }
  ctx.restore();
}

function sayLatency(data, x) {
  const point = stepAt(data.curve, x);
  if (!point) return `${clock(x)}  default programs are being timed`;
  const slot = stepAt(data.slots, x, 1);
  const inSlot = slot && slot[2] >= x ? slot : null;
  const by = inSlot ? `\n${data.operators[inSlot[0]].name}\nslot ${inSlot[5]}: ${some(inSlot[3], "trial")}, gained ${latency(inSlot[4] || 0)}` : "";
  return `${clock(x)}  ${latency(point[1])}  (${times(data.curve[0][1], point[1])})${by}`;
}
