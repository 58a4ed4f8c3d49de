// Families: the prior on top, its followers below, with the decisions they share.
const SHOWN_FAMILIES = 6, SHOWN_MEMBERS = 12;

function familiesSection(openOperator) {
  const more = el("button", { type: "button", class: "quiet" });
  const { node, body } = card("families", "Families",
    "Operators that can share schedule decisions. The prior is tuned first; its decisions are transferred to the others. The thicker a branch, the more decisions the operator's program has in common with the prior's.", more);
  const state = { data: null, colours: null, all: false };
  more.addEventListener("click", () => { state.all = !state.all; fill(); });
  function fill() {
    const { data, colours } = state, shown = state.all ? data.families : data.families.slice(0, SHOWN_FAMILIES);
    more.hidden = data.families.length <= SHOWN_FAMILIES;
    more.textContent = state.all ? `Show the first ${SHOWN_FAMILIES}` : `Show all ${count(data.families.length)} families`;
    if (!shown.length) {
      body.replaceChildren(el("p", { class: "empty" }, "No two operators of this model are similar enough to share decisions, or the session is older than this view."));
      return;
    }
    body.replaceChildren(el("p", { class: "say" }, el("span", { class: "tile all" }, "= as the prior's"), " ",
      el("span", { class: "tile inner" }, "≈ inner factors as the prior's"), " ", el("span", { class: "tile" }, "its own")),
    ...shown.map((family) => familyTable(data, family, colours, openOperator)));
  }
  return { node, update: (data, colours) => { Object.assign(state, { data, colours }); fill(); }, redraw: () => {} };
}

function familyTable(data, family, colours, openOperator) {
  const prior = family.members[0];
  const members = family.members.slice(0, SHOWN_MEMBERS), hidden = family.members.length - members.length;
  const head = el("tr", {}, el("th", { scope: "col" }, `${count(family.members.length)} operators`), el("th", { scope: "col" }, "likeness"),
    ...prior.labels.map((label) => el("th", { scope: "col" }, label)), el("th", { scope: "col" }, "as the prior"), el("th", { scope: "col" }, "gain"));
  return el("div", { class: "family" }, el("div", { class: "wide" }, el("table", {}, el("thead", {}, head),
    el("tbody", {}, members.map((member, n) => memberRow(data, member, prior, n, members.length, colours, openOperator))))),
  hidden > 0 ? el("p", { class: "say" }, `and ${count(hidden)} more`) : null);
}

// The share of decisions that equal the prior's: 0 to 1, null if there are none.
function shareEqual(member) {
  const decided = (member.equal_to_prior || []).filter((how) => how !== "fixed");
  return decided.length ? decided.reduce((sum, how) => sum + ({ all: 1, inner: 0.5 }[how] || 0), 0) / decided.length : null;
}

function sayEqual(member, n) {
  if (n === 0) return "prior";
  if (member.untuned) return "still default";
  if (member.equal_to_prior === null) return "another sketch";
  const share = shareEqual(member);
  return share === null ? "nothing to decide" : percent(share);
}

function tileOf(member, place, isPrior) {
  if (member.values[place] === undefined) return null;
  const how = isPrior ? "all" : (member.equal_to_prior || [])[place] || "";
  return el("span", { class: `tile ${how}` }, isPrior ? "" : { all: "= ", inner: "≈ " }[how] || "", member.values[place]);
}

function memberRow(data, member, prior, n, total, colours, openOperator) {
  const operator = data.operators[member.operator];
  const name = el("button", { type: "button", class: "name", onclick: () => openOperator(member.operator) },
    el("i", { class: "swatch", style: { background: colours.css(member.operator) } }), el("span", { class: "text" }, operator.name));
  const same = n === 0 || member.equal_to_prior !== null || member.untuned;
  const cells = prior.labels.map((_, place) => el("td", {}, same ? tileOf(member, place, n === 0) : null));
  return el("tr", {}, el("td", {}, el("div", { class: "branch" }, branch(n, total, shareEqual(member) || 0), name)), el("td", {}, member.similarity.toFixed(2)), ...cells,
    el("td", {}, sayEqual(member, n)), el("td", {}, times(operator.start, operator.best)));
}

// An operator's decisions beside its prior's; null if it has no family or is the prior.
function besidePrior(data, n) {
  const family = data.families.find((one) => one.members.slice(1).some((member) => member.operator === n));
  if (!family) return null;
  const prior = family.members[0], member = family.members.find((one) => one.operator === n);
  if (!member.equal_to_prior || !member.values.length) return null;
  return el("table", {}, el("thead", {}, el("tr", {}, ["decision", "prior", "here"].map((title) => el("th", { scope: "col" }, title)))),
    el("tbody", {}, member.values.map((_, place) => el("tr", {}, el("td", {}, member.labels[place]), el("td", {}, prior.values[place] || ""), el("td", {}, tileOf(member, place, false))))));
}

function branch(n, total, share) {
  const picture = svg("svg", { width: 26, height: 30, viewBox: "0 0 26 30", "aria-hidden": "true" });
  if (n === 0) {
    if (total > 1) picture.append(svg("line", { x1: 9, y1: 15, x2: 9, y2: 34, stroke: "var(--c0)", "stroke-width": 2 }));
    picture.append(svg("circle", { cx: 9, cy: 15, r: 7, fill: "var(--c0)" }));
    return picture;
  }
  picture.append(svg("line", { x1: 9, y1: -4, x2: 9, y2: n === total - 1 ? 15 : 34, stroke: "var(--c0)", "stroke-width": 2 }),
    svg("line", { x1: 9, y1: 15, x2: 20, y2: 15, stroke: "var(--c0)", "stroke-width": 1 + 5 * share, "stroke-dasharray": share ? "" : "2 2" }),
    svg("circle", { cx: 20, cy: 15, r: 4, fill: share ? "var(--c0)" : "var(--other)" }));
  picture.style.overflow = "visible";
  return picture;
}
