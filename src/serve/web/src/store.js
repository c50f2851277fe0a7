// Conversations and settings in the browser's local storage. Nothing of it is sent anywhere but to the server of this page.
const LIST = "strata.conversations";
const SETTINGS = "strata.settings";

export const defaults = {
  apiKey: "",
  system: "",
  temperature: "",
  topP: "",
  maxTokens: "",
  thinking: "default",
  theme: "auto",
  enterSends: true,
};

function read(key, otherwise) {
  try {
    return JSON.parse(localStorage.getItem(key)) ?? otherwise;
  } catch {
    return otherwise;
  }
}

export const store = {
  conversations: read(LIST, []).filter((c) => c && c.id && Array.isArray(c.messages)),
  settings: { ...defaults, ...read(SETTINGS, {}) },
  onfull: () => {},
};

export function saveSettings() {
  localStorage.setItem(SETTINGS, JSON.stringify(store.settings));
}

export function saveConversations() {
  try {
    localStorage.setItem(LIST, JSON.stringify(store.conversations));
  } catch {
    store.onfull();
  }
}

export function newConversation() {
  const c = { id: crypto.getRandomValues(new Uint32Array(2)).join("-"), title: "", updated: Date.now(), messages: [] };
  store.conversations.unshift(c);
  return c;
}

export function removeConversation(id) {
  store.conversations = store.conversations.filter((c) => c.id !== id);
  saveConversations();
}

export function touch(c) {
  c.updated = Date.now();
  if (!c.title) {
    const first = c.messages.find((m) => m.role === "user");
    c.title = first ? first.content.trim().split("\n")[0].slice(0, 60) : "";
  }
  store.conversations = [c, ...store.conversations.filter((o) => o !== c)];
  saveConversations();
}

// Another tab changed the list.
export function reload() {
  store.conversations = read(LIST, []);
}
