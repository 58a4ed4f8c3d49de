// Several shapes of a model, or several models, that were tuned together: what each takes, and how it compares with other runtimes.
function shapeTable({ session, shapes }) {
  if (!shapes || !shapes.length) return null;
  const others = [...new Set(shapes.flatMap((row) => row.ratios.map((ratio) => ratio.against)))];
  const weighted = shapes.some((row) => row.weight > 1);
  const titles = [session.models.length ? "model" : "shape", ...(weighted ? ["weight"] : []), "operators, untuned", "tuned", "gain", "whole model", ...others.map((name) => `against ${name}`)];
  const ratioOf = (row, name) => row.ratios.find((ratio) => ratio.against === name);
  return el("div", { class: "wide", id: "shapes" }, el("table", {},
    el("thead", {}, el("tr", {}, titles.map((title) => el("th", { scope: "col" }, title)))),
    el("tbody", {}, shapes.map((row) => el("tr", {}, el("td", {}, row.shape), weighted ? el("td", {}, String(row.weight)) : null, el("td", {}, latency(row.start)), el("td", {}, latency(row.latency)),
      el("td", {}, row.latency ? times(row.start, row.latency) : UNKNOWN), el("td", {}, latency(row.end_to_end)),
      ...others.map((name) => el("td", {}, ratioOf(row, name) ? `${ratioOf(row, name).median.toFixed(2)}×` : UNKNOWN)))))));
}
