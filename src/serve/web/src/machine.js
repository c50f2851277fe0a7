// The machine view: the model's state with its buttons, speed, where layers and experts are, devices with their memory, and
// requests, once a second while it is shown.
import { getJson, postJson } from "./api.js";
import { h, svg } from "./dom.js";

const number = (n) => Math.round(n).toLocaleString();

export function bytes(n) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let i = 0;
  while (n >= 1024 && i < units.length - 1) {
    n /= 1024;
    i++;
  }
  return `${n >= 100 || i === 0 ? Math.round(n) : n.toFixed(1)} ${units[i]}`;
}

function count(n) {
  if (n >= 1e9) return `${(n / 1e9).toFixed(1)} B`;
  return n >= 1e6 ? `${(n / 1e6).toFixed(1)} M` : number(n);
}

function span(seconds) {
  if (seconds < 60) return `${seconds.toFixed(1)} s`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min`;
  return `${Math.floor(seconds / 3600)} h ${Math.floor((seconds % 3600) / 60)} min`;
}

// A line over the last minute.
function line(values, className) {
  const width = 600, height = 90, top = Math.max(10, ...values);
  const points = values.map((v, i) => `${((i * width) / (values.length - 1)).toFixed(1)},${(height - (v / top) * (height - 6) - 2).toFixed(1)}`);
  return svg("svg", { viewBox: `0 0 ${width} ${height}`, preserveAspectRatio: "none", class: `spark ${className}`, role: "img",
    "aria-label": `tokens per second over the last minute, at most ${Math.round(top)}` },
    svg("polygon", { points: `0,${height} ${points.join(" ")} ${width},${height}` }), svg("polyline", { points: points.join(" ") }));
}

function speed(label, values, className) {
  const last = values.slice(-3);
  const now = last.reduce((a, b) => a + b, 0) / last.length;
  return h("div", { class: "card speed" }, h("h3", null, label),
    h("p", { class: "big" }, now >= 100 ? number(now) : now.toFixed(1), h("small", null, " tok/s")), line(values, className),
    h("p", { class: "fine" }, `last 60 seconds, most ${number(Math.max(...values))} tok/s`));
}

function facts(pairs) {
  return h("dl", { class: "facts-list" }, pairs.filter(([, v]) => v !== undefined && v !== "").map(([k, v]) => [h("dt", null, k), h("dd", null, v)]));
}

function deviceCard(d) {
  const used = d.memory.reduce((sum, m) => sum + m.bytes, 0);
  const total = Math.max(d.total_bytes || 0, used, 1);
  const bar = svg("svg", { viewBox: "0 0 1000 16", preserveAspectRatio: "none", class: "bar", role: "img",
    "aria-label": `${bytes(used)} of ${bytes(total)} used` }, svg("rect", { width: 1000, height: 16, class: "rest" }));
  let x = 0;
  d.memory.forEach((m, i) => {
    const width = (1000 * m.bytes) / total;
    bar.append(svg("rect", { x, width: Math.max(width, 2), height: 16, class: `part part-${i % 6}` }));
    x += width;
  });
  return h("div", { class: "card" }, h("h3", null, d.name), h("p", { class: "fine" }, d.description), bar,
    h("ul", { class: "legend" }, d.memory.map((m, i) => h("li", null, h("span", { class: `dot part-${i % 6}` }), m.kind, h("b", null, bytes(m.bytes)))),
      h("li", null, h("span", { class: "dot" }), "of", h("b", null, bytes(total)))));
}

const percent = (part, whole) => `${((100 * part) / whole).toFixed(part && part < whole ? 1 : 0)} %`;

// A bar of [label, amount, legend] parts, in the order of the colours, and their legend.
function shares(label, parts, whole) {
  const bar = svg("svg", { viewBox: "0 0 1000 16", preserveAspectRatio: "none", class: "bar", role: "img",
    "aria-label": `${label}: ${parts.map(([name, , text]) => `${name} ${text}`).join(", ")}` }, svg("rect", { width: 1000, height: 16, class: "rest" }));
  let x = 0;
  parts.forEach(([, amount], i) => {
    bar.append(svg("rect", { x, width: (1000 * amount) / Math.max(whole, 1), height: 16, class: `part part-${i % 6}` }));
    x += (1000 * amount) / Math.max(whole, 1);
  });
  return [bar, h("ul", { class: "legend" }, parts.map(([name, , text], i) => h("li", null, h("span", { class: `dot part-${i % 6}` }), name, h("b", null, text))))];
}

// Where the experts were that answers chose. Of those that the CPU computed some came from the file.
const tiers = [["this device", (e) => e.in_slots], ["another device", (e) => e.by_helper], ["memory, over the link", (e) => e.over_link],
  ["memory, by the CPU", (e) => e.by_cpu - e.from_file], ["file", (e) => e.from_file]];

function expertShares(now, before) {
  const e = {};
  for (const name of Object.keys(now)) e[name] = now[name] - (before ? before[name] : 0);
  if (before && e.chosen === 0) return expertShares(now, null);
  const parts = tiers.map(([name, of]) => [name, of(e), percent(of(e), Math.max(e.chosen, 1))]);
  return h("div", { class: "experts" }, h("p", { class: "fine" }, e.chosen ? `Experts chosen by answers, ${before ? "lately" : "since the model was loaded"}: ${number(e.chosen)}` :
    "Experts: none chosen by an answer yet."), e.chosen > 0 && shares("experts chosen", parts, e.chosen));
}

function stageCard(stage, before) {
  const last = stage.first_layer + stage.layers - 1;
  return h("div", { class: "card stage" }, h("h3", null, stage.device, h("small", null, stage.arch ? ` ${stage.arch}` : "")),
    h("p", { class: "fine" }, stage.layers === 1 ? `layer ${last}` : `layers ${stage.first_layer} to ${last}`,
      ` (${stage.layers}), ${bytes(stage.bytes)}`, stage.limit_bytes > 0 && ` of ${bytes(stage.limit_bytes)}`,
      stage.experts_outside && `, of it ${bytes(stage.expert_slots_bytes)} of experts; the others are outside`),
    stage.experts && expertShares(stage.experts, before?.experts));
}

function layersCard(stages) {
  const all = stages.reduce((sum, s) => sum + s.layers, 0);
  return h("div", { class: "card layers" }, h("h3", null, `${all} layers over ${stages.length} ${stages.length === 1 ? "device" : "devices"}`),
    shares("layers", stages.map((s) => [s.device, s.layers, number(s.layers)]), all));
}

function drafts(now, before) {
  const of = (name) => now[name] - (before ? before[name] : 0);
  if (before && of("drafted_tokens") === 0) return drafts(now, null);
  const guessed = of("drafted_tokens"), right = of("accepted_tokens"), passes = of("passes");
  return h("div", { class: "card drafts" }, h("h3", null, "Guessed tokens"),
    h("p", { class: "big" }, guessed ? percent(right, guessed) : "–", h("small", null, " accepted")),
    h("p", { class: "fine" }, guessed ? `${number(right)} of ${number(guessed)} ${before ? "lately" : "since the model was loaded"}, ${((passes + right) / Math.max(passes, 1)).toFixed(2)} tokens a pass.`
      : "None was checked yet.", ` At most ${now.most} in a pass.`));
}

function table(caption, heads, rows, empty) {
  if (rows.length === 0) return h("div", { class: "card" }, h("h3", null, caption), h("p", { class: "fine" }, empty));
  return h("div", { class: "card" }, h("h3", null, caption), h("div", { class: "table-box", tabindex: "0" },
    h("table", null, h("thead", null, h("tr", null, heads.map((t) => h("th", { scope: "col" }, t)))),
      h("tbody", null, rows.map((row) => h("tr", null, row.map((cell) => h("td", null, cell))))))));
}

const route = (r) => r.replace("/v1/", "");

// Samples of the last ten seconds: what changed since the oldest is "lately".
const KEPT = 10;

const stateNames = { loading: "being loaded", ready: "loaded", failed: "not running", unloading: "being unloaded", unloaded: "unloaded", stopping: "stopping" };

export class MachineView {
  constructor() {
    // The buttons stay the same elements, so that they keep the focus while the rest is drawn anew.
    this.state = h("p", { class: "state", role: "status" });
    this.load = h("button", { type: "button", class: "plain", disabled: true, onclick: () => this.ask("/load") }, "Load");
    this.unload = h("button", { type: "button", class: "plain", disabled: true, onclick: () => this.ask("/unload") }, "Unload");
    this.reply = h("p", { class: "note", role: "status", hidden: true });
    this.control = h("div", { class: "card control" }, h("div", { class: "row" }, this.state, this.load, this.unload), this.reply);
    this.live = h("div");
    this.body = h("div", { class: "page-body" }, h("h1", null, "Machine"), this.control, this.live);
    this.element = h("section", { class: "view machine", "aria-label": "Machine" }, this.body);
    this.timer = 0;
    this.asking = "";
    this.samples = [];
  }

  show() {
    this.poll();
    this.timer = setInterval(() => document.hidden || this.poll(), 1000);
  }

  hide() {
    clearInterval(this.timer);
  }

  async poll() {
    try {
      this.draw(await getJson("/v1/status"));
    } catch (error) {
      this.state.textContent = "";
      this.load.disabled = this.unload.disabled = true;
      this.live.replaceChildren(h("p", { class: "note bad", role: "alert" },
        error.status === 401 ? "The server wants an API key: enter it in Settings." : `No answer from the server: ${error.message}`));
    }
  }

  // Loads or unloads, which may take a while, and says what was done.
  async ask(path) {
    this.asking = path;
    this.load.disabled = this.unload.disabled = true;
    this.say("", "");
    try {
      const reply = await postJson(path, {});
      const freed = (reply.freed || []).reduce((sum, d) => sum + d.bytes, 0);
      const kept = reply.conversations?.files;
      if (path === "/load") this.say(`Loaded in ${span(reply.seconds)}.`, "");
      else this.say([`Unloaded in ${span(reply.seconds)}`, freed > 0 && `${bytes(freed)} of devices are free again`,
        kept > 0 && `conversations kept: ${kept}`, reply.answers?.cut > 0 && `answers cut: ${reply.answers.cut}`, reply.problem].filter(Boolean).join("; ") + ".", reply.problem ? "bad" : "");
    } catch (error) {
      this.say(error.message, "bad");
    }
    this.asking = "";
    this.poll();
  }

  say(text, kind) {
    this.reply.textContent = text;
    this.reply.className = `note ${kind}`;
    this.reply.hidden = !text;
  }

  // The machine as it was up to ten seconds ago, with the same engine; null: there is no such sample.
  lately(machine) {
    const same = (a, b) => a.process?.pid === b.process?.pid && a.stages?.length === b.stages?.length &&
      a.drafts?.passes <= b.drafts?.passes && (a.stages || []).every((s, i) => !s.experts || s.experts.chosen <= (b.stages[i].experts?.chosen ?? -1));
    this.samples = machine ? this.samples.filter((s) => same(s, machine)).slice(-KEPT) : [];
    if (machine) this.samples.push(machine);
    return this.samples.length > 1 ? this.samples[0] : null;
  }

  draw(s) {
    const scroll = this.element.scrollTop;
    const m = s.model;
    const before = this.lately(s.machine);
    const why = s.state === "failed" && s.loading?.last_failure;
    this.state.textContent = `The model is ${stateNames[s.state] || s.state}${why ? `: ${why}` : ""}`;
    this.load.disabled = !!this.asking || !["unloaded", "failed"].includes(s.state);
    this.unload.disabled = !!this.asking || s.state !== "ready";
    const parts = [];
    if (s.state === "loading")
      parts.push(h("div", { class: "card" }, h("h3", null, "The model is being loaded"), h("progress", { max: "1", value: String(s.progress) }), h("p", { class: "fine" }, s.step)));
    const guesses = s.machine?.drafts?.most > 0 && drafts(s.machine.drafts, before?.drafts);
    parts.push(h("div", { class: guesses ? "grid three" : "grid two" }, speed("Writing answers", s.rates.generated, "write"), speed("Reading prompts", s.rates.read, "read"), guesses));
    const stages = s.machine?.stages || [];
    if (stages.length) parts.push(h("h2", null, "Where the model is"), layersCard(stages), h("div", { class: "grid two" }, stages.map((stage, i) => stageCard(stage, before?.stages[i]))));
    if (s.machine) parts.push(h("h2", null, "Devices"), h("div", { class: "grid" }, s.machine.devices.map(deviceCard)));
    parts.push(h("h2", null, "Requests"),
      table("Now", ["#", "API", "state", "prompt", "answer", "speed", "time"], s.requests.map((r) => [r.id, route(r.route),
        r.stage, `${number(r.prompt_done)} / ${number(r.prompt_tokens)}`, number(r.generated_tokens), r.tokens_per_second ? `${r.tokens_per_second.toFixed(1)} tok/s` : "",
        span(r.seconds)]), "Nothing is computed."),
      table("Before", ["#", "API", "end", "prompt", "reused", "answer", "speed", "time"], s.past.slice(0, 12).map((r) => [r.id, route(r.route),
        r.status >= 400 ? `${r.finish} ${r.status}` : r.finish, number(r.prompt_tokens), number(r.reused_tokens), number(r.generated_tokens),
        r.generate_seconds > 0 ? `${(r.generated_tokens / r.generate_seconds).toFixed(1)} tok/s` : "", span(r.seconds)]), "No request yet."),
      h("h2", null, "Model and server"));
    if (m)
      parts.push(h("div", { class: "card" }, facts([["model", m.id], ["architecture", m.meta.architecture], ["parameters", count(m.meta.n_params)],
        ["size", bytes(m.meta.size)], ["context", `${number(m.meta.n_ctx)} tokens (trained ${number(m.meta.n_ctx_train)})`],
        ["version", s.version], ["up for", span(s.uptime_seconds)], ["connections", number(s.connections)], ["process memory", bytes(s.resident_bytes)],
        ["tokens written", number(s.totals.generated_tokens)], ["prompt tokens read", number(s.totals.read_tokens)], ["prompt tokens reused", number(s.totals.reused_tokens)]])));
    this.live.replaceChildren(...parts);
    this.element.scrollTop = scroll;
  }
}
