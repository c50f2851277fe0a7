// The settings view. Everything is kept in this browser.
import { h } from "./dom.js";
import { saveConversations, saveSettings, store } from "./store.js";

export function applyTheme() {
  const theme = store.settings.theme;
  if (theme === "auto") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = theme;
}

function field(label, help, control) {
  const id = control.id;
  if (help) control.setAttribute("aria-describedby", `${id}-help`);
  return h("div", { class: "field" }, h("label", { for: id }, label), control, help && h("p", { class: "fine", id: `${id}-help` }, help));
}

export class SettingsView {
  constructor(hooks) {
    this.hooks = hooks; // {conversationsChanged()}
    this.body = h("div", { class: "page-body" });
    this.element = h("section", { class: "view settings", "aria-label": "Settings" }, this.body);
  }

  hide() {}

  bind(control, name) {
    const box = control.type === "checkbox";
    control.id = `set-${name}`;
    if (box) control.checked = store.settings[name];
    else control.value = store.settings[name];
    control.addEventListener("change", () => {
      if (!control.checkValidity()) {
        control.reportValidity();
        return;
      }
      store.settings[name] = box ? control.checked : control.value;
      saveSettings();
      applyTheme();
    });
    return control;
  }

  select(name, choices) {
    return this.bind(h("select", null, choices.map(([value, text]) => h("option", { value }, text))), name);
  }

  show() {
    const number = (name, min, max, step) => this.bind(h("input", { type: "number", min, max, step, inputmode: "decimal", placeholder: "the model's" }), name);
    this.body.replaceChildren(h("h1", null, "Settings"),
      h("div", { class: "card" }, h("h3", null, "Answers"),
        field("System prompt", "Goes before every conversation.", this.bind(h("textarea", { rows: "4" }), "system")),
        h("div", { class: "grid three" }, field("Temperature", "", number("temperature", "0", "5", "any")), field("Top-p", "", number("topP", "0", "1", "any")),
          field("Longest answer, tokens", "", number("maxTokens", "1", "1000000", "1"))),
        field("Thinking", "For models that can think before they answer.", this.select("thinking", [["default", "as the model does"], ["on", "on"], ["off", "off"]]))),
      h("div", { class: "card" }, h("h3", null, "Page"), field("Colours", "", this.select("theme", [["auto", "as the system"], ["light", "light"], ["dark", "dark"]])),
        h("div", { class: "field check" }, this.bind(h("input", { type: "checkbox" }), "enterSends"), h("label", { for: "set-enterSends" }, "Enter sends the message (otherwise Ctrl+Enter)"))),
      h("div", { class: "card" }, h("h3", null, "Server"),
        field("API key", "Only if the server was started with one.", this.bind(h("input", { type: "password", autocomplete: "off", spellcheck: "false" }), "apiKey"))),
      h("div", { class: "card" }, h("h3", null, "Conversations"), h("p", { class: "fine" }, `${store.conversations.length} in this browser.`),
        h("div", { class: "row" }, h("button", { type: "button", class: "plain", onclick: () => this.download() }, "Save to a file"),
          h("button", { type: "button", class: "plain danger", onclick: () => this.clear() }, "Delete all"))),
      h("p", { class: "fine" }, h("a", { href: "/licenses.txt" }, "Licences of the libraries in this page")));
  }

  download() {
    const url = URL.createObjectURL(new Blob([JSON.stringify(store.conversations, null, 1)], { type: "application/json" }));
    h("a", { href: url, download: "strata-conversations.json" }).click();
    setTimeout(() => URL.revokeObjectURL(url), 1000);
  }

  clear() {
    if (!window.confirm("Delete all conversations in this browser?")) return;
    store.conversations = [];
    saveConversations();
    this.hooks.conversationsChanged();
    this.show();
  }
}
