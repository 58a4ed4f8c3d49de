// The list of sessions on a server; two of them can be compared.
function sessionsView(main, sessions) {
  const { node, body } = card("sessions", sessions.length ? "Sessions" : "No session yet", sessions.length ? "Choose two to compare them side by side." : "The page fills as soon as a session begins.");
  const chosen = new Set(sessionsView.chosen || []);
  sessionsView.chosen = chosen;
  const go = el("button", { type: "button", class: "quiet", onclick: () => { location.href = `/compare/${[...chosen].map(encodeURIComponent).join("/")}`; } }, "Compare");
  const refresh = () => { go.disabled = chosen.size !== 2; go.textContent = chosen.size === 2 ? "Compare these two" : "Choose two to compare"; };
  const rows = sessions.map((session) => {
    const box = el("input", { type: "checkbox", "aria-label": `compare ${session.name}`, onchange: () => {
      if (box.checked) chosen.add(session.id); else chosen.delete(session.id);
      refresh();
    } });
    box.checked = chosen.has(session.id);
    return el("tr", {}, el("td", {}, box, " ", el("a", { href: `/session/${encodeURIComponent(session.id)}` }, session.name)), el("td", {}, session.model), el("td", {}, el("span", { class: `badge ${session.state}` }, session.state)),
      el("td", {}, latency(session.start)), el("td", {}, latency(session.latency)), el("td", {}, times(session.start, session.latency)), el("td", {}, count(session.trials)), el("td", {}, span(session.elapsed)), el("td", {}, date(session.created_at)));
  });
  refresh();
  if (sessions.length) body.append(el("div", { class: "wide" }, el("table", {}, el("thead", {}, el("tr", {}, ["session", "model", "state", "before", "now", "gain", "trials", "time", "begun"].map((title) => el("th", { scope: "col" }, title)))), el("tbody", {}, rows))));
  if (sessions.length > 1) body.append(el("p", {}, go));
  main.replaceChildren(node);
}
