// The headline: latency before and after tuning, and against other runtimes.
function headlineSection() {
  const node = el("section", { class: "card", id: "headline", "aria-labelledby": "headline-title" });
  return { node, update: (data) => node.replaceChildren(...headline(data)) };
}

function headline(data) {
  const { session, headline: head } = data;
  return [
    el("div", { class: "top" },
      el("h1", { id: "headline-title" }, session.model),
      el("span", { class: `badge ${session.state}` }, session.state)),
    el("p", { class: "say" }, storyOf(data)),
    el("div", { class: "figures" }, figuresOf(data)),
    shapeTable(data),
    session.state === "running" && session.remaining.used !== null
      ? el("div", { class: "budget", role: "progressbar", "aria-label": "budget used", "aria-valuenow": Math.round(100 * session.remaining.used) },
        el("i", { style: { width: percent(session.remaining.used) } }))
      : null,
  ].filter(Boolean);
}

function storyOf({ session, headline: head, operators, failures }) {
  const failed = failures.reduce((sum, kind) => sum + kind.count, 0);
  const defaults = head.default_trials ? [some(head.default_trials, "default")] : [];
  const parts = [some(operators.length, "operator"), `${some(head.trials, "trial")}${failed ? `, ${count(failed)} of them failed` : ""}`,
    some(head.slots, "slot"), ...defaults, span(session.elapsed)];
  const left = session.state === "running" && session.remaining.seconds !== null ? `, ${span(session.remaining.seconds)} left` : "";
  const ended = session.state !== "running" && session.reason ? `; ended because ${session.reason}` : "";
  const lost = session.state === "killed" ? "; the process that tuned is gone: slipstream resume goes on" : "";
  const fallback = session.fallback ? `; ${session.fallback}` : "";
  const more = session.left && !ended.includes(" more is likely") ? `; ${session.left.text}` : "";
  return `${parts.join(" · ")}${left}${ended}${more}${lost}${fallback}`;
}

function figuresOf(data) {
  const { headline: head } = data;
  const figures = [
    figure("Operators, untuned", latency(head.start), "sum of their default programs"),
    figure("Operators, tuned", latency(head.latency), head.latency ? `${times(head.start, head.latency)} as fast` : "not all timed yet", true),
    figure(data.session.models.length ? "All models" : data.shapes && data.shapes.length ? "All shapes" : "Whole model", latency(head.end_to_end), head.end_to_end ? `${data.session.fallback ? "default programs, " : ""}compiled, verified, run end to end${head.whole_gain ? `; ${head.whole_gain.toFixed(2)}× as fast as untuned` : ""}` : "timed when tuning ends"),
  ];
  return data.shapes && data.shapes.some((row) => row.ratios.length) ? figures : [...figures, ...benchFigures(data)];
}

function benchFigures({ headline: head, session }) {
  const ratios = (head.bench && head.bench.ratios) || [];
  if (!ratios.length) {
    return [figure("Against ONNX Runtime", UNKNOWN, `slipstream bench ${session.models.length ? "DIR/NAME" : "DIR"} --against onnxruntime fills this in`)];
  }
  return ratios.map((ratio) => {
    const theirs = head.bench.timings.find((t) => t.name === ratio.against), ours = head.bench.timings[0];
    return figure(`Against ${ratio.against === "onnxruntime" ? "ONNX Runtime" : ratio.against}`, `${ratio.median.toFixed(2)}×`,
      `${ratio.median >= 1 ? "faster" : "slower"}; 95 % in ${ratio.low.toFixed(2)} to ${ratio.high.toFixed(2)}; ${latency(ours.median)} against ${theirs ? latency(theirs.median) : UNKNOWN}, interleaved`);
  });
}

function figure(label, value, note, lead) {
  return el("div", { class: "figure" }, el("div", { class: "label" }, label),
    el("div", { class: `value${lead && value !== UNKNOWN ? " lead" : ""}` }, value), el("div", { class: "note" }, note));
}
