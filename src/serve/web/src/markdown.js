// Markdown to safe elements, block by block, so that a growing answer only redraws its last block.
import DOMPurify from "dompurify";
import { Marked } from "marked";
import { copyButton, h } from "./dom.js";

const escape = (text) => text.replace(/[&<>"]/g, (c) => `&#${c.charCodeAt(0)};`);

// HTML that a model writes is shown as what it wrote; only a line break, which tables need, is one.
const marked = new Marked({ gfm: true, breaks: false });
marked.use({ renderer: { html: ({ text }) => (/^<br\s*\/?>$/i.test(text.trim()) ? "<br>" : escape(text)) } });

// What a model may put on the page: text, lists, tables, code and links. Images would have to come from outside.
const purify = {
  ALLOWED_TAGS: ["a", "b", "blockquote", "br", "code", "del", "em", "h1", "h2", "h3", "h4", "h5", "h6", "hr", "i", "li", "ol",
    "p", "pre", "s", "span", "strong", "sub", "sup", "table", "tbody", "td", "th", "thead", "tr", "ul"],
  ALLOWED_ATTR: ["href", "title", "start", "align", "class"],
  ALLOWED_URI_REGEXP: /^(?:https?|mailto):/i,
  RETURN_DOM_FRAGMENT: true,
};

// A model may not borrow the page's own classes; only the language of a code block stays.
DOMPurify.addHook("uponSanitizeAttribute", (node, data) => {
  if (data.attrName === "class" && !(node.nodeName === "CODE" && /^language-[\w+#.-]{1,30}$/.test(data.attrValue)))
    data.keepAttr = false;
});

function decorate(fragment) {
  for (const a of fragment.querySelectorAll("a")) {
    a.setAttribute("target", "_blank");
    a.setAttribute("rel", "noopener noreferrer nofollow");
  }
  for (const table of fragment.querySelectorAll("table")) {
    const box = h("div", { class: "table-box", tabindex: "0" });
    table.replaceWith(box);
    box.append(table);
  }
  for (const pre of fragment.querySelectorAll("pre")) {
    const code = pre.querySelector("code");
    const language = code && [...code.classList].find((c) => c.startsWith("language-"));
    const box = h("div", { class: "code" },
      h("div", { class: "code-head" }, h("span", null, language ? language.slice(9) : "text"),
        copyButton("Copy code", () => pre.textContent.replace(/\n$/, ""))));
    pre.replaceWith(box);
    pre.setAttribute("tabindex", "0");
    box.append(pre);
  }
  return fragment;
}

// Draws text into node. Blocks whose source has not changed keep their elements.
export function render(node, text) {
  const tokens = marked.lexer(text);
  const links = tokens.links;
  const old = node.blocks || [];
  const blocks = [];
  for (const token of tokens) {
    const i = blocks.length;
    if (token.type === "space") continue;
    if (old[i] && old[i].raw === token.raw) {
      blocks.push(old[i]);
      continue;
    }
    const list = Object.assign([token], { links });
    const element = h("div", { class: "block" }, decorate(DOMPurify.sanitize(marked.parser(list), purify)));
    if (old[i]) old[i].element.replaceWith(element);
    else node.append(element);
    blocks.push({ raw: token.raw, element });
  }
  for (const extra of old.slice(blocks.length)) extra.element.remove();
  node.blocks = blocks;
}
