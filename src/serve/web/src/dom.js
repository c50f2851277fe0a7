// Elements without templates: h("button", {class: "x", onclick}, "text", child).
export function h(tag, props, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(props || {})) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (name === "value") node.value = value;
    else node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.flat(Infinity).filter((c) => c !== null && c !== undefined && c !== false));
  return node;
}

const SVG = "http://www.w3.org/2000/svg";
export function svg(tag, props, ...children) {
  const node = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(props || {})) node.setAttribute(name, value);
  node.append(...children);
  return node;
}

// A keyboard is likely at hand, so focus may move to the message without a screen keyboard covering the page.
export const hasKeyboard = () => !matchMedia("(pointer: coarse)").matches;

// Line icons on a 24 grid.
const paths = {
  plus: "M12 5v14M5 12h14",
  send: "M12 19V5M6 11l6-6 6 6",
  stop: "M7 7h10v10H7z",
  copy: "M9 9h10v11H9zM5 15V4h10",
  check: "M5 12.500l4.500 4.500L19 7.500",
  edit: "M4 20l1-4L16 5l3 3L8 19zM14 7l3 3",
  again: "M20 11a8 8 0 1 0-2.300 6.300M20 5v6h-6",
  trash: "M5 7h14M10 7V4h4v3M7 7l1 13h8l1-13M10.500 11v5M13.500 11v5",
  menu: "M4 7h16M4 12h16M4 17h16",
  chat: "M4 5h16v11H10l-5 4v-4H4z",
  chip: "M7 7h10v10H7zM10 3v4M14 3v4M10 17v4M14 17v4M3 10h4M3 14h4M17 10h4M17 14h4",
  gear: "M12 9a3 3 0 1 0 0 6 3 3 0 0 0 0-6zM12 3v3M12 18v3M3 12h3M18 12h3M5.600 5.600l2.100 2.100M16.300 16.300l2.100 2.100M18.400 5.600l-2.100 2.100M7.700 16.300l-2.100 2.100",
  down: "M12 5v14M6 13l6 6 6-6",
};
export function icon(name) {
  return svg("svg", { viewBox: "0 0 24 24", class: "icon", "aria-hidden": "true" }, svg("path", { d: paths[name] }));
}

export function iconButton(name, label, onclick, extra) {
  return h("button", { type: "button", class: "icon-button", "aria-label": label, title: label, onclick, ...extra }, icon(name));
}

export async function copyText(text) {
  if (navigator.clipboard) {
    try {
      await navigator.clipboard.writeText(text);
      return true;
    } catch {
      // Not allowed here; the older way below may be.
    }
  }
  const area = h("textarea", { value: text, class: "offscreen" });
  document.body.append(area);
  area.select();
  const done = document.execCommand("copy");
  area.remove();
  return done;
}

// A copy button that says for a moment that it worked.
export function copyButton(label, text) {
  const button = iconButton("copy", label, async () => {
    const done = await copyText(text());
    button.replaceChildren(icon(done ? "check" : "copy"));
    setTimeout(() => button.replaceChildren(icon("copy")), 1500);
  });
  return button;
}
