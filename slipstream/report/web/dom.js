// Elements are made of text only, so that no text of a model can become markup.
function el(tag, props, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(props || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "class") node.className = value;
    else if (name === "style") for (const [k, v] of Object.entries(value)) node.style.setProperty(k, v);
    else if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return node;
}

function svg(tag, props, ...children) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(props || {})) {
    if (name === "fill" || name === "stroke") node.style.setProperty(name, value);
    else if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else node.setAttribute(name, value);
  }
  node.append(...children.flat());
  return node;
}

function card(id, title, say, ...tools) {
  const body = el("div", {});
  const node = el("section", { class: "card", id, "aria-labelledby": `${id}-title` },
    el("div", { class: "top" }, el("h2", { id: `${id}-title` }, title), ...tools),
    say ? el("p", { class: "say" }, say) : null, body);
  return { node, body };
}

const tip = {
  node: null,
  show(text, x, y) {
    this.node = this.node || document.getElementById("tip");
    this.node.textContent = text;
    this.node.hidden = false;
    const box = this.node.getBoundingClientRect();
    const left = Math.min(x + 14, window.innerWidth - box.width - 8);
    const top = y + 18 + box.height > window.innerHeight ? y - box.height - 10 : y + 18;
    this.node.style.left = `${Math.max(8, left)}px`;
    this.node.style.top = `${Math.max(8, top)}px`;
  },
  hide() {
    if (this.node) this.node.hidden = true;
  },
};

function hover(node, text) {
  node.addEventListener("pointermove", (event) => tip.show(text(), event.clientX, event.clientY));
  node.addEventListener("pointerleave", () => tip.hide());
  return node;
}

function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
}
