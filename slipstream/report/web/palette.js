// The operators that took most of the time have a colour of their own (Okabe and Ito's); the others share a grey.
const COLOURS = 8;

function palette(data) {
  const order = data.operators.map((_, n) => n).sort((a, b) => data.operators[b].spent - data.operators[a].spent);
  const names = new Map(order.slice(0, COLOURS).filter((n) => data.operators[n].slots > 0).map((n, place) => [n, `c${place}`]));
  return {
    ranked: [...names.keys()],
    name: (n) => names.get(n) || "other",
    css: (n) => `var(--${names.get(n) || "other"})`,
    resolve() {
      const known = new Map();
      return (n) => {
        const name = this.name(n);
        if (!known.has(name)) known.set(name, colour(name));
        return known.get(name);
      };
    },
  };
}

function legend(data, colours, trailing) {
  const items = colours.ranked.map((n) => el("li", {},
    el("i", { class: "swatch", style: { background: colours.css(n) } }),
    el("span", {}, data.operators[n].name), trailing ? el("span", { class: "count" }, trailing(n)) : null));
  if (data.operators.length > colours.ranked.length && colours.ranked.length) {
    items.push(el("li", {}, el("i", { class: "swatch", style: { background: "var(--other)" } }), el("span", {}, "other operators")));
  }
  return el("ul", { class: "legend" }, items);
}
