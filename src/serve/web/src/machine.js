// The machine view: model, speed, devices with their memory, and requests, once a second while it is shown.
import { getJson } from "./api.js";
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

function table(caption, heads, rows, empty) {
  if (rows.length === 0) return h("div", { class: "card" }, h("h3", null, caption), h("p", { class: "fine" }, empty));
  return h("div", { class: "card" }, h("h3", null, caption), h("div", { class: "table-box", tabindex: "0" },
    h("table", null, h("thead", null, h("tr", null, heads.map((t) => h("th", { scope: "col" }, t)))),
      h("tbody", null, rows.map((row) => h("tr", null, row.map((cell) => h("td", null, cell))))))));
}

const route = (r) => r.replace("/v1/", "");

export class MachineView {
  constructor() {
    this.body = h("div", { class: "page-body" });
    this.element = h("section", { class: "view machine", "aria-label": "Machine" }, this.body);
    this.timer = 0;
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
      this.body.replaceChildren(h("h1", null, "Machine"), h("p", { class: "note bad", role: "alert" },
        error.status === 401 ? "The server wants an API key: enter it in Settings." : `No answer from the server: ${error.message}`));
    }
  }

  draw(s) {
    const scroll = this.element.scrollTop;
    const m = s.model;
    const parts = [h("h1", null, "Machine")];
    if (s.state === "loading")
      parts.push(h("div", { class: "card" }, h("h3", null, "The model is being loaded"), h("progress", { max: "1", value: String(s.progress) }), h("p", { class: "fine" }, s.step)));
    parts.push(h("div", { class: "grid two" }, speed("Writing answers", s.rates.generated, "write"), speed("Reading prompts", s.rates.read, "read")));
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
    this.body.replaceChildren(...parts);
    this.element.scrollTop = scroll;
  }
}
