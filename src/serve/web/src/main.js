// The frame: the list of conversations at the side, one view at a time, the keyboard, and what the server's health says.
import { getJson } from "./api.js";
import { ChatView } from "./chat.js";
import { h, hasKeyboard, icon, iconButton } from "./dom.js";
import { MachineView } from "./machine.js";
import { SettingsView, applyTheme } from "./settings.js";
import { reload, removeConversation, saveConversations, store } from "./store.js";

applyTheme();

const list = h("ul", { class: "conversations" });
const banner = h("p", { class: "banner", role: "status", hidden: true });
const chatView = new ChatView({ changed: drawList });
const views = { chat: chatView, machine: new MachineView(), settings: new SettingsView({ conversationsChanged: () => (chatView.open(null), drawList()) }) };
const labels = { chat: ["Chat", "chat"], machine: ["Machine", "chip"], settings: ["Settings", "gear"] };
let current = "chat";

const nav = h("nav", { "aria-label": "Views" }, Object.entries(labels).map(([name, [text, sign]]) =>
  h("button", { type: "button", "data-view": name, onclick: () => show(name) }, icon(sign), text)));
const sidebar = h("aside", { class: "sidebar", id: "sidebar", "aria-label": "Conversations" },
  h("div", { class: "brand" }, h("img", { src: "/icon.svg", alt: "", width: "26", height: "26" }), h("span", null, "Strata")),
  h("button", { type: "button", class: "new", onclick: newChat }, icon("plus"), "New chat"), list, nav);
const shade = h("div", { class: "shade", onclick: () => openMenu(false) });
const menu = iconButton("menu", "Menu", () => openMenu(), { "aria-controls": "sidebar", "aria-expanded": "false" });
const title = h("span", { class: "title" });
const main = h("main", null, h("header", { class: "top" }, menu, title, iconButton("plus", "New chat", newChat)), banner, chatView.element);
document.getElementById("app").replaceChildren(h("a", { class: "skip", href: "#input" }, "Skip to the message"), sidebar, shade, main);

function openMenu(open = !document.body.classList.contains("menu-open")) {
  document.body.classList.toggle("menu-open", open);
  menu.setAttribute("aria-expanded", String(open));
}

function show(name) {
  if (name !== current) {
    views[current].hide?.();
    views[current].element.replaceWith(views[name].element);
    current = name;
    views[name].show?.();
  }
  openMenu(false);
  drawList();
  if (name === "chat" && hasKeyboard()) chatView.input.focus();
}

function newChat() {
  chatView.open(null);
  show("chat");
}

function drawList() {
  for (const b of nav.children) b.setAttribute("aria-current", b.dataset.view === current ? "page" : "false");
  const c = chatView.conversation;
  title.textContent = current === "chat" ? (c && c.title) || "New chat" : labels[current][0];
  document.title = c && c.title && current === "chat" ? `${c.title} – Strata` : "Strata";
  list.replaceChildren(...store.conversations.map((o) => h("li", { class: o === c && current === "chat" ? "active" : "" },
    h("button", { type: "button", class: "open", onclick: () => (chatView.open(o), show("chat")) }, o.title || "Empty chat"),
    iconButton("trash", `Delete "${o.title}"`, () => remove(o)))));
}

function remove(o) {
  if (chatView.running && chatView.running.conversation === o) chatView.stop();
  removeConversation(o.id);
  if (chatView.conversation === o) chatView.open(null);
  drawList();
}

document.addEventListener("keydown", (e) => {
  const typing = /^(TEXTAREA|INPUT|SELECT)$/.test(document.activeElement?.tagName);
  if (e.key === "Escape") {
    if (document.body.classList.contains("menu-open")) openMenu(false);
    else chatView.stop();
  } else if ((e.ctrlKey || e.metaKey) && e.shiftKey && e.key.toLowerCase() === "o") {
    e.preventDefault();
    newChat();
  } else if (e.altKey && ["1", "2", "3"].includes(e.key)) {
    e.preventDefault();
    show(Object.keys(views)[Number(e.key) - 1]);
  } else if (e.key === "/" && !typing && current === "chat") {
    e.preventDefault();
    chatView.input.focus();
  }
});

window.addEventListener("pagehide", () => chatView.leave());
window.addEventListener("storage", () => {
  if (chatView.running) return;
  const id = chatView.conversation?.id;
  reload();
  chatView.open(store.conversations.find((c) => c.id === id) || null);
  drawList();
});

store.onfull = () => {
  // The oldest conversation makes room for the newest.
  if (store.conversations.length > 1) {
    store.conversations.pop();
    saveConversations();
    drawList();
  }
};

async function health() {
  let next = 15000;
  try {
    const s = await getJson("/health");
    banner.hidden = s.status === "ok";
    banner.textContent = {
      loading: `The model is being loaded: ${s.step}, ${Math.round(100 * s.progress)} %`,
      unloading: "The model is being unloaded.",
      unloaded: "The model is unloaded; the next message loads it.",
      failed: `The model does not run: ${s.error?.message}`,
    }[s.status] || "The server is stopping.";
    if (s.status !== "ok") next = 1000;
  } catch {
    banner.hidden = false;
    banner.textContent = "The server does not answer.";
    next = 3000;
  }
  setTimeout(health, next);
}

chatView.open(null);
drawList();
health();
if (hasKeyboard()) chatView.input.focus();
