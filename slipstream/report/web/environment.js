// Hardware, versions, verification and the command of the session.
function environmentSection() {
  const { node, body } = card("environment", "Environment and how to reproduce it");
  return { node, update: (data) => body.replaceChildren(...environment(data)), redraw: () => {} };
}

function environment(data) {
  const { hardware, settings, versions, verification, source, inputs } = data.environment;
  const copy = el("button", { type: "button", class: "quiet", onclick: () => copyText(data.command, copy) }, "Copy");
  const rows = [
    ["model", source], ["inputs", inputs.map((spec) => `${spec.name} ${(spec.shape || []).join("×")} ${spec.dtype}`).join(", ")],
    ["machine", [hardware.machine, hardware.architecture, hardware.threads ? `${hardware.threads} threads` : ""].filter(Boolean).join(", ")],
    ["target", [hardware.cpu, (hardware.features || []).join(" ")].filter(Boolean).join(": ")],
    ["tuned by", `scheduler ${settings.scheduler}, search ${settings.search}, cost model ${settings.cost}, seed ${settings.seed}`],
    ["begun", date(data.session.created_at)], ["session", data.session.id],
    ["versions", Object.entries(versions).map(([name, version]) => `${name} ${version}`).join(", ")],
    ["verified", verification ? `against ${verification.reference} on ${verification.seeds} seeds; worst relative error ${Math.max(0, ...verification.outputs.map((o) => o.max_relative)).toPrecision(2)}` : "not compiled yet"],
  ].filter(([, value]) => value);
  return [el("div", { class: "top" }, el("h3", { style: { flex: "1" } }, "The command"), copy), el("pre", { class: "command", tabindex: "0" }, data.command),
    el("dl", { class: "facts" }, rows.flatMap(([name, value]) => [el("dt", {}, name), el("dd", {}, String(value))]))];
}
