// The server's APIs as the page uses them.
import { store } from "./store.js";

function headers() {
  const key = store.settings.apiKey;
  return key ? { Authorization: `Bearer ${key}` } : {};
}

export class ApiError extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

async function failure(response) {
  let message = `the server answered ${response.status}`;
  try {
    message = (await response.json()).error.message || message;
  } catch {
    // No JSON: the status has to do.
  }
  return new ApiError(response.status, message);
}

export async function getJson(path) {
  const response = await fetch(path, { headers: headers() });
  if (!response.ok && path !== "/health") throw await failure(response);
  return response.json();
}

// For calls that do something; resolves with the reply.
export async function postJson(path, body) {
  const response = await fetch(path, { method: "POST", headers: { "Content-Type": "application/json", ...headers() }, body: JSON.stringify(body) });
  if (!response.ok) throw await failure(response);
  return response.json();
}

// Yields the data of each event of a stream.
async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    rest += value;
    for (let at; (at = rest.indexOf("\n\n")) >= 0; ) {
      const block = rest.slice(0, at);
      rest = rest.slice(at + 2);
      const data = block.split("\n").filter((l) => l.startsWith("data:")).map((l) => l.slice(5).trimStart());
      if (data.length) yield data.join("\n");
    }
  }
}

// Asks for an answer and calls on.text, on.reasoning, on.progress as it arrives. Resolves with {finish, usage, timings}.
export async function chat(messages, signal, on) {
  const s = store.settings;
  const body = { messages, stream: true, stream_options: { include_usage: true }, return_progress: true };
  if (s.temperature !== "") body.temperature = Number(s.temperature);
  if (s.topP !== "") body.top_p = Number(s.topP);
  if (s.maxTokens !== "") body.max_tokens = Number(s.maxTokens);
  if (s.thinking !== "default") body.chat_template_kwargs = { enable_thinking: s.thinking === "on" };
  const response = await fetch("/v1/chat/completions", {
    method: "POST",
    headers: { "Content-Type": "application/json", ...headers() },
    body: JSON.stringify(body),
    signal,
  });
  if (!response.ok) throw await failure(response);
  const result = { finish: null, usage: null, timings: null };
  for await (const data of events(response)) {
    if (data === "[DONE]") return result;
    const event = JSON.parse(data);
    if (event.error) throw new ApiError(500, event.error.message);
    if (event.prompt_progress) on.progress(event.prompt_progress);
    if (event.usage) result.usage = event.usage;
    if (event.timings) result.timings = event.timings;
    const choice = event.choices && event.choices[0];
    if (!choice) continue;
    if (choice.delta.reasoning_content) on.reasoning(choice.delta.reasoning_content);
    if (choice.delta.content) on.text(choice.delta.content);
    if (choice.finish_reason) result.finish = choice.finish_reason;
  }
  throw new ApiError(0, "the connection ended before the answer did");
}
