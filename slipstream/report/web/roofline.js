// The roofline: how near each operator is to what the machine can compute and stream.
const CROWD = 200; // from so many operators on, only the best programs are drawn

function rooflineSection(openOperator) {
  const { node, body } = card("roofline", "Roofline",
    "Each operator by its arithmetic intensity and speed; the line leads from its default program to its best. The roof is the measured limit of this machine. Winograd's method takes fewer multiplications than are counted here, so its point can lie above the roof.");
  let last = null;
  const update = (data, colours) => { last = [data, colours]; body.replaceChildren(...roofline(data, colours, openOperator)); };
  return { node, update, redraw: () => last && update(...last) };
}

function roofline(data, colours, openOperator) {
  const dots = data.operators.map((operator, n) => ({ n, operator, x: operator.flops / operator.bytes, y: operator.flops / operator.best, from: operator.start ? operator.flops / operator.start : null }))
    .filter((dot) => dot.operator.flops > 0 && dot.operator.bytes > 0 && dot.operator.best);
  const { peak, bandwidth: stream, remote } = data.roofline;
  if (!dots.length) return [el("p", { class: "empty" }, "No operator with arithmetic has been timed yet.")];
  const W = 560, H = 340, pad = { left: 74, right: 12, top: 12, bottom: 44 };
  const xs = dots.map((d) => d.x).concat(peak && stream ? [peak / stream] : []), ys = dots.flatMap((d) => [d.y, d.from].filter(Boolean)).concat(peak || []);
  const xr = decades(xs), yr = decades(ys);
  const x = (v) => pad.left + ((W - pad.left - pad.right) * Math.log10(v / xr[0])) / Math.log10(xr[1] / xr[0]);
  const y = (v) => H - pad.bottom - ((H - pad.top - pad.bottom) * Math.log10(v / yr[0])) / Math.log10(yr[1] / yr[0]);
  const picture = svg("svg", { viewBox: `0 0 ${W} ${H}`, role: "img", "aria-label": `Roofline of ${count(dots.length)} operators` });
  for (let v = xr[0]; v <= xr[1] * 1.01; v *= 10) {
    picture.append(svg("line", { class: "grid", x1: x(v), x2: x(v), y1: pad.top, y2: H - pad.bottom }), svg("text", { class: "axis", x: x(v), y: H - pad.bottom + 16, "text-anchor": "middle" }, plainDigits(v, 1)));
  }
  for (let v = yr[0]; v <= yr[1] * 1.01; v *= 10) {
    picture.append(svg("line", { class: "grid", x1: pad.left, x2: W - pad.right, y1: y(v), y2: y(v) }), svg("text", { class: "axis", x: pad.left - 6, y: y(v) + 4, "text-anchor": "end" }, scaled(v, [["TFLOP/s", 1e12], ["GFLOP/s", 1e9], ["MFLOP/s", 1e6], ["FLOP/s", 1]], 1)));
  }
  picture.append(svg("text", { class: "axis", x: (W + pad.left) / 2, y: H - 6, "text-anchor": "middle" }, "arithmetic intensity, FLOP per byte"));
  if (peak) picture.append(...roof(x, y, xr, yr, peak, stream));
  for (const dot of dots) picture.append(operatorDot(dot, x, y, peak, stream, colours, openOperator, dots.length > CROWD));
  const left = data.operators.length - dots.length;
  const notes = [remote ? "Measured on remote devices, whose limits are not known here." : peak ? `Peak ${rate(peak)}${stream ? `, memory ${bandwidth(stream)}` : "; the memory is measured when tuning ends"}.` : "The machine's limits were not measured.",
    left ? `${count(left)} operators without arithmetic or without a timing are left out.` : ""].filter(Boolean);
  return [el("div", { class: "plot" }, picture), el("p", { class: "say" }, notes.join(" "))];
}

function decades(values) {
  const low = Math.pow(10, Math.floor(Math.log10(Math.min(...values)))), high = Math.pow(10, Math.ceil(Math.log10(Math.max(...values) * 1.05)));
  return [low, Math.max(high, low * 10)];
}

function roof(x, y, xr, yr, peak, stream) {
  const knee = stream ? Math.max(xr[0], Math.min(peak / stream, xr[1])) : xr[0];
  const path = [];
  if (stream) {
    const from = Math.max(xr[0], yr[0] / stream);
    path.push(`M${x(from)},${y(from * stream)}`, `L${x(knee)},${y(Math.min(peak, knee * stream))}`);
  } else path.push(`M${x(xr[0])},${y(peak)}`);
  if (!stream || peak / stream < xr[1]) path.push(`L${x(xr[1])},${y(peak)}`);
  return [svg("path", { class: "roof", d: path.join("") }), svg("text", { class: "axis", x: x(xr[1]) - 4, y: y(peak) - 6, "text-anchor": "end" }, "peak")];
}

function operatorDot(dot, x, y, peak, stream, colours, openOperator, crowded) {
  const limit = peak ? Math.min(peak, stream ? stream * dot.x : peak) : null;
  const shade = colours.css(dot.n);
  const text = () => `${dot.operator.name}\n${rate(dot.y)}${limit ? `, ${percent(dot.y / limit)} of the roof` : ""}\n${plainDigits(dot.x, 3)} FLOP per byte`;
  const group = svg("g", { tabindex: "0", role: "button", "aria-label": text(), onclick: () => openOperator(dot.n),
    onkeydown: (event) => { if (event.key === "Enter" || event.key === " ") { event.preventDefault(); openOperator(dot.n); } } });
  if (dot.from && !crowded) group.append(svg("line", { x1: x(dot.x), x2: x(dot.x), y1: y(dot.from), y2: y(dot.y), stroke: shade, "stroke-width": 1.5, "stroke-opacity": 0.6 }), svg("circle", { cx: x(dot.x), cy: y(dot.from), r: 2.5, fill: "var(--card)", stroke: shade, "stroke-width": 1.2 }));
  group.append(svg("circle", { cx: x(dot.x), cy: y(dot.y), r: crowded ? 3 : 5, fill: shade, stroke: "var(--card)", "stroke-width": 1 }));
  group.style.cursor = "pointer";
  return hover(group, text);
}
