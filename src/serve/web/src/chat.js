// The chat view: one conversation, its messages, and the line to write in.
import { chat } from "./api.js";
import { copyButton, h, hasKeyboard, icon, iconButton } from "./dom.js";
import { render } from "./markdown.js";
import { newConversation, saveConversations, store, touch } from "./store.js";

const suggestions = ["What is gimp?", "Describe the package nginx.", "What is vlc?"];

export class ChatView {
  constructor(hooks) {
    this.hooks = hooks; // {changed(), ready()}
    this.conversation = null;
    this.running = null; // {controller, conversation, message}
    this.list = h("div", { class: "messages", role: "log", "aria-label": "Messages" });
    this.status = h("p", { class: "sr-only", role: "status" });
    this.input = h("textarea", { rows: "1", placeholder: "Write a message", "aria-label": "Message", id: "input", enterkeyhint: "send" });
    this.button = h("button", { type: "submit", class: "send", "aria-label": "Send" }, icon("send"));
    this.form = h("form", { class: "composer" }, this.input, this.button);
    this.jump = iconButton("down", "Go to the end", () => this.toEnd(true), { class: "icon-button jump", hidden: true });
    this.scroller = h("div", { class: "scroller" }, this.list);
    this.element = h("section", { class: "view chat", "aria-label": "Chat" }, this.scroller, this.jump,
      h("div", { class: "composer-box" }, this.form,
        h("p", { class: "hint" }, "Enter sends, Shift+Enter makes a new line, Esc stops. Answers may be wrong.")), this.status);
    this.form.addEventListener("submit", (e) => {
      e.preventDefault();
      if (this.running) this.stop();
      else this.send();
    });
    this.input.addEventListener("input", () => this.grow(this.input));
    this.input.addEventListener("keydown", (e) => this.onKey(e));
    this.scroller.addEventListener("scroll", () => this.watchEnd());
    this.follow = true;
  }

  onKey(e) {
    if (e.isComposing) return;
    if (e.key === "Enter" && !e.shiftKey && (store.settings.enterSends || e.ctrlKey || e.metaKey)) {
      e.preventDefault();
      if (!this.running) this.send();
    } else if (e.key === "ArrowUp" && this.input.value === "" && this.conversation) {
      const last = this.conversation.messages.findLastIndex((m) => m.role === "user");
      if (last >= 0 && !this.running) {
        e.preventDefault();
        this.edit(last);
      }
    }
  }

  grow(area) {
    area.style.height = "auto";
    area.style.height = `${Math.min(area.scrollHeight + 2, window.innerHeight * 0.4)}px`;
  }

  open(conversation) {
    this.conversation = conversation;
    this.follow = true;
    this.draw();
    this.toEnd(true);
  }

  watchEnd() {
    const s = this.scroller;
    this.follow = s.scrollHeight - s.scrollTop - s.clientHeight < 60;
    this.jump.hidden = this.follow;
  }

  toEnd(force) {
    if (force || this.follow) this.scroller.scrollTop = this.scroller.scrollHeight;
    this.watchEnd();
  }

  draw() {
    const messages = this.conversation ? this.conversation.messages : [];
    if (messages.length === 0) {
      this.list.replaceChildren(h("div", { class: "welcome" }, h("h1", null, "What shall we talk about?"),
        h("p", null, "The model runs on this machine. Conversations stay in this browser."),
        h("div", { class: "suggestions" }, suggestions.map((text) => h("button", { type: "button", onclick: () => this.send(text) }, text)))));
    } else {
      this.list.replaceChildren(...messages.map((m, i) => this.messageElement(m, i)));
    }
    this.drawButton();
  }

  drawButton() {
    const running = Boolean(this.running);
    this.button.setAttribute("aria-label", running ? "Stop" : "Send");
    this.button.title = running ? "Stop (Esc)" : "Send (Enter)";
    this.button.classList.toggle("stop", running);
    this.button.replaceChildren(icon(running ? "stop" : "send"));
  }

  messageElement(m, index) {
    const body = h("div", { class: "body" });
    const element = h("article", { class: `message ${m.role}`, "aria-label": m.role === "user" ? "You" : "Model" }, body);
    element.message = m;
    if (m.role === "user") {
      body.textContent = m.content;
      element.append(h("div", { class: "actions" }, copyButton("Copy message", () => m.content),
        iconButton("edit", "Edit message", () => this.edit(index))));
    } else {
      this.fill(element, m);
    }
    return element;
  }

  // Draws an answer, whole or in the making.
  fill(element, m) {
    const body = element.querySelector(".body");
    const live = this.running && this.running.message === m;
    element.classList.toggle("live", Boolean(live));
    let thinking = body.querySelector("details");
    if (m.reasoning) {
      if (!thinking) {
        thinking = h("details", { class: "thinking" }, h("summary", null, ""), h("div", { class: "thinking-text" }));
        body.prepend(thinking);
      }
      thinking.querySelector("summary").textContent = live && !m.content ? "Thinking…" : "Thoughts";
      render(thinking.querySelector(".thinking-text"), m.reasoning);
    }
    let text = body.querySelector(":scope > .markdown");
    if (!text) {
      text = h("div", { class: "markdown" });
      body.append(text);
    }
    render(text, m.content);
    let note = body.querySelector(":scope > .note");
    const words = live && !m.content && !m.reasoning ? this.waiting(m) : m.error || "";
    if (words && !note) {
      note = h("p", { class: "note" });
      body.append(note);
    }
    if (note) {
      note.textContent = words;
      note.classList.toggle("bad", Boolean(m.error));
      note.hidden = !words;
    }
    element.querySelector(":scope > .actions")?.remove();
    if (!live) element.append(this.answerActions(m));
  }

  waiting(m) {
    const p = m.progress;
    if (!p || p.total - p.cache < 300) return "…";
    return `Reading the prompt, ${p.processed.toLocaleString()} of ${p.total.toLocaleString()} tokens…`;
  }

  answerActions(m) {
    const facts = [];
    if (m.stats) {
      facts.push(`${m.stats.tokens} tokens`);
      if (m.stats.speed) facts.push(`${m.stats.speed.toFixed(1)} tok/s`);
      if (m.stats.reused) facts.push(`${m.stats.reused} of ${m.stats.prompt} prompt tokens reused`);
    }
    if (m.finish === "length") facts.push("cut off at its length");
    if (m.finish === "stopped") facts.push("stopped");
    return h("div", { class: "actions" }, copyButton("Copy answer", () => m.content),
      iconButton("again", "Answer again", () => this.regenerate(m)), h("span", { class: "facts" }, facts.join(" · ")));
  }

  edit(index) {
    if (this.running) return;
    const m = this.conversation.messages[index];
    const element = this.list.children[index];
    const area = h("textarea", { value: m.content, "aria-label": "Edit message", class: "edit" });
    const done = () => {
      if (!area.value.trim() || this.running) return;
      this.conversation.messages.length = index;
      this.send(area.value);
    };
    const cancel = () => {
      this.draw();
      this.input.focus();
    };
    area.addEventListener("keydown", (e) => {
      if (e.key === "Escape") {
        e.stopPropagation();
        cancel();
      }
      if (e.key === "Enter" && !e.shiftKey && !e.isComposing) {
        e.preventDefault();
        done();
      }
    });
    area.addEventListener("input", () => this.grow(area));
    element.replaceChildren(h("div", { class: "body editing" }, area, h("div", { class: "edit-buttons" },
      h("button", { type: "button", class: "plain", onclick: cancel }, "Cancel"),
      h("button", { type: "button", class: "primary", onclick: done }, "Send"))));
    this.grow(area);
    area.focus();
  }

  regenerate(m) {
    if (this.running) return;
    const at = this.conversation.messages.indexOf(m);
    this.conversation.messages.length = at;
    this.answer();
  }

  send(text) {
    const content = (text ?? this.input.value).trim();
    if (!content || this.running) return;
    if (!this.conversation) this.conversation = newConversation();
    this.conversation.messages.push({ role: "user", content });
    if (text === undefined) {
      this.input.value = "";
      this.grow(this.input);
    }
    touch(this.conversation);
    this.answer();
  }

  // What goes to the server: the system prompt and the messages without their thoughts.
  prompt() {
    const system = store.settings.system.trim();
    return [...(system ? [{ role: "system", content: system }] : []),
      ...this.conversation.messages.filter((m) => m.role === "user" || m.content).map(({ role, content }) => ({ role, content }))];
  }

  async answer() {
    const conversation = this.conversation;
    const prompt = this.prompt();
    const message = { role: "assistant", content: "", reasoning: "" };
    conversation.messages.push(message);
    const run = { controller: new AbortController(), conversation, message };
    this.running = run;
    this.follow = true;
    this.draw();
    this.toEnd(true);
    if (hasKeyboard()) this.input.focus();
    this.hooks.changed();
    this.status.textContent = "The model is answering.";
    let pending = 0;
    const redraw = () => {
      pending = 0;
      const element = this.list.lastElementChild;
      if (this.conversation !== conversation || !element || element.message !== message) return;
      this.fill(element, message);
      this.toEnd(false);
    };
    const soon = () => {
      if (!pending) pending = requestAnimationFrame(redraw);
    };
    try {
      const result = await chat(prompt, run.controller.signal, {
        text: (t) => ((message.content += t), soon()),
        reasoning: (t) => ((message.reasoning += t), soon()),
        progress: (p) => ((message.progress = p), soon()),
      });
      message.finish = result.finish;
      if (result.usage)
        message.stats = { tokens: result.usage.completion_tokens, prompt: result.usage.prompt_tokens,
          reused: result.usage.prompt_tokens_details?.cached_tokens || 0, speed: result.timings?.predicted_per_second || 0 };
    } catch (error) {
      if (error.name === "AbortError") message.finish = "stopped";
      else message.error = error.status === 401 ? "The server wants an API key: enter it in Settings." : error.message;
    }
    cancelAnimationFrame(pending);
    delete message.progress;
    this.running = null;
    this.status.textContent = message.error || (message.finish === "stopped" ? "Stopped." : "The answer is complete.");
    touch(conversation);
    if (this.conversation === conversation) {
      redraw();
      this.drawButton();
    }
    this.hooks.changed();
  }

  stop() {
    if (this.running) this.running.controller.abort();
  }

  // Keeps what has arrived when the page is closed in the middle of an answer.
  leave() {
    if (!this.running) return;
    this.running.message.finish = "stopped";
    delete this.running.message.progress;
    saveConversations();
  }
}
