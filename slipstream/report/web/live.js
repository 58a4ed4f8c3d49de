// The live page: fetches what the server reports as changed, no faster than it can draw.
const LEAST_MS = 1000;

function fetchJson(path) {
  return fetch(path, { credentials: "same-origin" }).then((answer) => {
    if (!answer.ok) throw new Error(`the server answered ${answer.status}`);
    return answer.json();
  });
}

function startLive() {
  document.getElementById("brand").setAttribute("href", "/");
  const [, kind, ...ids] = location.pathname.split("/").map(decodeURIComponent);
  const view = kind === "session" ? liveSession(ids[0]) : kind === "compare" ? liveCompare(ids) : liveList();
  const light = document.getElementById("live");
  let waiting = false, again = false, ended = false;
  const say = (on, text) => {
    light.className = `live ${on && !ended ? "on" : "off"}`;
    light.textContent = ended ? "the server has ended; the figures stay" : text;
  };
  const refresh = async () => {
    if (waiting) { again = true; return; }
    waiting = true;
    const began = performance.now();
    try {
      await view();
      say(true, "live");
    } catch (error) {
      say(false, error.message);
    }
    const pause = Math.max(LEAST_MS, 3 * (performance.now() - began));
    setTimeout(() => { waiting = false; if (again && !ended) { again = false; refresh(); } }, pause);
  };
  const seen = {};
  const events = new EventSource("/events");
  events.addEventListener("sessions", (event) => {
    const revisions = JSON.parse(event.data);
    const changed = (kind === "session" || kind === "compare" ? ids : Object.keys(revisions)).some((id) => seen[id] !== revisions[id]);
    const gone = Object.keys(seen).length !== Object.keys(revisions).length;
    Object.assign(seen, revisions);
    if (changed || gone) refresh();
    else if (!waiting) say(true, "live");
  });
  events.addEventListener("end", async () => {
    events.close();
    ended = true;
    await view().catch(() => {}); // the last figures, at once: the server waits for this only a moment
    say(false, "");
  });
  events.addEventListener("error", () => say(false, "no connection; trying again"));
  refresh();
}

function liveSession(id) {
  let update = null;
  return async () => {
    const data = await fetchJson(`/api/session/${encodeURIComponent(id)}`);
    if (update) update(data);
    else update = sessionView(data);
  };
}

function liveCompare(ids) {
  let paint = null;
  redraws.add(() => paint && paint());
  return async () => {
    const [a, b] = await Promise.all(ids.slice(0, 2).map((id) => fetchJson(`/api/session/${encodeURIComponent(id)}`)));
    document.title = `${a.session.name} and ${b.session.name} – Slipstream`;
    document.getElementById("where").textContent = `${a.session.name} and ${b.session.name}`;
    paint = compareView(main, a, b);
    window.slipstream = { a, b, charts };
  };
}

function liveList() {
  return async () => {
    const sessions = await fetchJson("/api/sessions");
    if (sessions.length === 1) return location.replace(`/session/${encodeURIComponent(sessions[0].id)}`);
    document.getElementById("where").textContent = some(sessions.length, "session");
    sessionsView(main, sessions);
    window.slipstream = { sessions };
    return null;
  };
}
