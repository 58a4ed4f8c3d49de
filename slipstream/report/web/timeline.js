// Which operator got which slot, and what it gained: one row an operator, the fuller the bar the larger the gain.
const BAR = 22, SHOWN_ROWS = 12;
const NARROW = 560, NARROW_LABEL = 16; // on a phone the name stands above the bars

function timelineSection() {
  const more = el("button", { type: "button", class: "quiet" });
  const { node, body } = card("timeline", "Slots by operator",
    "A bar is a slot. The fuller it is, the more it reduced the model's latency; an empty one brought no gain.", more);
  const canvas = el("canvas", { tabindex: "0", role: "img", "aria-label": "Slots by operator; the arrow keys go from slot to slot" });
  const said = el("p", { class: "say", role: "status" });
  body.append(el("div", { class: "strip" }, canvas), said);
  const state = { data: null, colours: null, all: false, at: -1, rows: [], boxes: [] };
  more.addEventListener("click", () => { state.all = !state.all; paint(); });

  function paint() {
    const { data, colours } = state;
    const used = new Set(data.slots.map((slot) => slot[0]));
    const ranked = [...used].sort((a, b) => data.operators[b].spent - data.operators[a].spent);
    state.rows = state.all ? ranked : ranked.slice(0, SHOWN_ROWS);
    more.hidden = ranked.length <= SHOWN_ROWS;
    more.textContent = state.all ? `Show the first ${SHOWN_ROWS}` : `Show all ${count(ranked.length)} operators`;
    more.setAttribute("aria-pressed", String(state.all));
    canvas.hidden = !ranked.length;
    if (!ranked.length) { said.textContent = "No slot has been given yet."; return; }
    const ratio = window.devicePixelRatio || 1;
    const width = Math.max(240, body.clientWidth), rest = state.rows.length < ranked.length;
    state.row = BAR + (width < NARROW ? NARROW_LABEL : 0);
    const height = (state.rows.length + (rest ? 1 : 0)) * state.row + 24;
    canvas.width = width * ratio;
    canvas.height = height * ratio;
    canvas.style.height = `${height}px`;
    const ctx = canvas.getContext("2d");
    ctx.scale(ratio, ratio);
    paintRows(ctx, state, width, rest, ranked.length, colours);
  }

  function find(x, y) {
    return state.boxes.findIndex((b) => b && x >= b[0] - 1 && x <= b[0] + b[2] + 1 && y >= b[1] && y <= b[1] + BAR);
  }
  canvas.addEventListener("pointermove", (event) => {
    const box = canvas.getBoundingClientRect(), n = find(event.clientX - box.left, event.clientY - box.top);
    if (n < 0) tip.hide();
    else tip.show(saySlot(state.data, state.data.slots[n]), event.clientX, event.clientY);
  });
  canvas.addEventListener("pointerleave", () => tip.hide());
  canvas.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
    if (!step || !state.data) return;
    event.preventDefault();
    state.at = Math.min(state.data.slots.length - 1, Math.max(0, state.at + step));
    said.textContent = saySlot(state.data, state.data.slots[state.at]);
    paint();
  });
  new ResizeObserver(() => state.data && Math.abs(canvas.clientWidth * (window.devicePixelRatio || 1) - canvas.width) > 1 && paint()).observe(body);
  const update = (data, colours) => { Object.assign(state, { data, colours }); said.textContent = ""; paint(); };
  return { node, update, redraw: () => state.data && paint(), state };
}

function paintRows(ctx, state, width, rest, total, colours) {
  const { data, rows, row: height } = state, of = colours.resolve();
  const narrow = width < NARROW, left = narrow ? 0 : Math.min(320, width * 0.36), down = narrow ? NARROW_LABEL : 0;
  const end = Math.max(data.session.elapsed, 1e-9), x = (t) => left + ((width - left) * t) / end;
  const place = new Map(rows.map((operator, n) => [operator, n]));
  const most = data.slots.reduce((gain, slot) => Math.max(gain, slot[4] || 0), 1e-12);
  ctx.font = "12px system-ui, sans-serif";
  ctx.textBaseline = "middle";
  ctx.fillStyle = colour("faint");
  for (let n = 0; n < rows.length + (rest ? 1 : 0); n++) if (n % 2 === 0) ctx.fillRect(0, n * height, width, height);
  const other = colour("other");
  state.boxes = data.slots.map((slot, n) => {
    const [operator, from, to, , gain] = slot;
    const row = place.has(operator) ? place.get(operator) : rest ? rows.length : -1;
    if (row < 0) return null;
    const box = [x(from), row * height + down, Math.max(1.5, x(to) - x(from)), BAR];
    const full = Math.sqrt((gain || 0) / most) * (BAR - 6);
    ctx.fillStyle = place.has(operator) ? of(operator) : other;
    ctx.globalAlpha = 0.25;
    ctx.fillRect(box[0], box[1] + 3, box[2], BAR - 6);
    ctx.globalAlpha = 1;
    ctx.fillRect(box[0], box[1] + BAR - 3 - full, box[2], full);
    if (n === state.at) {
      ctx.strokeStyle = colour("ink");
      ctx.lineWidth = 2;
      ctx.strokeRect(box[0], box[1] + 2, box[2], BAR - 4);
    }
    return box;
  });
  ctx.fillStyle = colour("ink");
  const label = (text, row) => ctx.fillText(shortened(ctx, text, narrow ? width : left - 12), 2, row * height + (narrow ? 11 : BAR / 2));
  rows.forEach((operator, n) => label(data.operators[operator].name, n));
  if (rest) label(`${count(total - rows.length)} other operators`, rows.length);
  paintTime(ctx, end, x, left, width, (rows.length + (rest ? 1 : 0)) * height);
}

function shortened(ctx, text, room) {
  let shown = text;
  while (shown.length > 4 && ctx.measureText(shown).width > room) shown = `${shown.slice(0, -2).replace(/…$/, "")}…`;
  return shown;
}

function paintTime(ctx, end, x, left, width, y) {
  const steps = [1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1800, 3600, 7200, 21600, 86400];
  const step = steps.find((s) => ((width - left) * s) / end > 64) || steps[steps.length - 1];
  ctx.fillStyle = colour("soft");
  for (let t = 0; t <= end; t += step) {
    if (x(t) + 28 <= width) ctx.fillText(clock(t), x(t), y + 14);
    ctx.fillRect(x(t), y, 1, 4);
  }
}

function saySlot(data, slot) {
  const [operator, start, end, trials, gain, number] = slot;
  return `slot ${count(number)}, ${clock(start)} to ${clock(end)}\n${data.operators[operator].name}\n${some(trials, "trial")}, gained ${gain > 0 ? latency(gain) : "nothing"}`;
}
