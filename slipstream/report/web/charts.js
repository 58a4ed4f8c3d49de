// Line charts by uPlot. `charts` holds those on the page by name, so that they can be redrawn and looked into.
const charts = {};

function axes(x, y) {
  const ink = { stroke: colour("soft"), grid: { stroke: colour("line"), width: 1 }, ticks: { stroke: colour("line"), width: 1, size: 5 }, font: "11px system-ui, sans-serif" };
  return [
    { ...ink, ...x, size: 34 },
    { ...ink, size: 62, ...y },
  ];
}

function draw(name, holder, options, data) {
  if (charts[name]) {
    charts[name].observer.disconnect();
    charts[name].plot.destroy();
  }
  holder.replaceChildren();
  const width = () => Math.max(200, holder.clientWidth);
  const height = options.height || 260;
  const plot = new uPlot({ legend: { show: false }, padding: [8, 18, 0, 0], ...options, width: width(), height }, data, holder);
  const observer = new ResizeObserver(() => {
    if (Math.abs(plot.width - width()) > 1) plot.setSize({ width: width(), height });
  });
  observer.observe(holder);
  plot.over.addEventListener("pointerleave", () => tip.hide());
  charts[name] = { plot, observer };
  return plot;
}

function tipAtCursor(say) {
  return (plot) => {
    const { left, idx } = plot.cursor;
    if (left === undefined || left < 0 || idx === null || idx === undefined) return tip.hide();
    const text = say(plot, plot.posToVal(left, "x"));
    if (!text) return tip.hide();
    const box = plot.over.getBoundingClientRect();
    tip.show(text, box.left + left, box.top + plot.cursor.top);
  };
}

const seconds = (_, ticks) => ticks.map((value) => (value === null ? "" : latency(value)));
const minutes = (_, ticks) => ticks.map((value) => (value === null ? "" : clock(value)));
const stepped = () => uPlot.paths.stepped({ align: 1 });

// The last of the points (arrays sorted by their entry `key`) that is not beyond x.
function stepAt(points, x, key = 0) {
  let low = 0, high = points.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (points[middle][key] <= x) low = middle + 1;
    else high = middle;
  }
  return low ? points[low - 1] : null;
}
