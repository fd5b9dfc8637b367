// Conversations and settings in the browser's storage. Each conversation has an entry of its own, so two tabs do not
// overwrite each other's.
//
// A conversation: {id, title, updated, settings, messages}. A message: {role: "user", content, attachments}
// (attachments.js),
// {role: "assistant", content, reasoning, seconds, calls: [{id, name, arguments}], finish, error, stats},
// {role: "tool", call, content}.

const prefix = "m3.chat.";
const settingsName = "m3.settings";

export const emptySettings = () => ({ system: "", thinking: "", stop: "", tools: "" });

export function newConversation() {
  return { id: crypto.getRandomValues(new Uint32Array(3)).join("-"), title: "", updated: Date.now(),
    settings: lastSettings(), messages: [] };
}

function parsed(text) {
  try {
    return JSON.parse(text);
  } catch {
    return null;
  }
}

export function listConversations() {
  const all = [];
  for (let i = 0; i < localStorage.length; ++i) {
    const name = localStorage.key(i);
    if (!name.startsWith(prefix)) continue;
    const conversation = parsed(localStorage.getItem(name));
    if (conversation && Array.isArray(conversation.messages)) all.push(conversation);
  }
  return all.sort((a, b) => b.updated - a.updated);
}

export const loadConversation = (id) => parsed(localStorage.getItem(prefix + id));
export const isConversationEntry = (name) => name === null || name.startsWith(prefix);

// What there was room for: "all"; "without pictures", where the oldest ones had to be left out; "none".
export function saveConversation(conversation) {
  if (conversation.messages.length === 0) return "all";
  if (conversation.title === "") conversation.title = titleOf(conversation);
  conversation.updated = Date.now();
  const count = conversation.messages.flatMap((message) => message.attachments ?? []).length;
  for (let left = 0; left <= count; ++left) {
    if (put(prefix + conversation.id, withoutPictures(conversation, left))) return left === 0 ? "all" : "without pictures";
  }
  return "none";
}

// A copy in which the first `left` attachments have a name alone.
function withoutPictures(conversation, left) {
  if (left === 0) return conversation;
  const strip = (attachment) => (left-- > 0 ? { kind: attachment.kind, name: attachment.name } : attachment);
  return { ...conversation, messages: conversation.messages.map((message) =>
    message.attachments ? { ...message, attachments: message.attachments.map(strip) } : message) };
}

export const deleteConversation = (id) => localStorage.removeItem(prefix + id);

// What a new conversation starts with: the settings used last, but not the system prompt.
const lastSettings = () => ({ ...emptySettings(), ...parsed(localStorage.getItem(settingsName)), system: "" });
export const saveSettings = (settings) => put(settingsName, settings);

function put(name, value) {
  try {
    localStorage.setItem(name, JSON.stringify(value));
    return true;
  } catch {
    return false;
  }
}

function titleOf(conversation) {
  const first = conversation.messages.find((message) => message.role === "user");
  const text = first?.content || (first?.attachments?.[0]?.name ?? "");
  const line = text.trim().replace(/\s+/g, " ");
  return line.length > 60 ? `${[...line].slice(0, 57).join("")}…` : line || "Untitled";
}

// --- the request of a conversation

const numbers = ["temperature", "top_p", "top_k", "min_p", "repetition_penalty", "presence_penalty",
  "frequency_penalty", "max_tokens", "seed"];

// Errors: the tools are not a JSON list.
export function toolsOf(settings) {
  if (settings.tools.trim() === "") return [];
  const tools = JSON.parse(settings.tools);
  if (!Array.isArray(tools)) throw new SyntaxError("expected a list: [ … ]");
  return tools;
}

export function requestBody(conversation, model) {
  const { settings } = conversation;
  const body = { messages: requestMessages(conversation), stream: true, stream_options: { include_usage: true } };
  if (model) body.model = model;
  for (const name of numbers) {
    if (settings[name] !== undefined && settings[name] !== "") body[name] = Number(settings[name]);
  }
  const stops = settings.stop.split("\n").filter((line) => line !== "");
  if (stops.length > 0) body.stop = stops;
  if (settings.thinking !== "") body.thinking = { type: settings.thinking };
  const tools = toolsOf(settings);
  if (tools.length > 0) body.tools = tools;
  return body;
}

function requestMessages({ settings, messages }) {
  const out = settings.system.trim() === "" ? [] : [{ role: "system", content: settings.system }];
  for (const message of messages) {
    if (message.role === "user") out.push({ role: "user", content: contentOf(message) });
    if (message.role === "tool") out.push({ role: "tool", tool_call_id: message.call, content: message.content });
    if (message.role !== "assistant" || (message.error && message.content === "")) continue;
    const assistant = { role: "assistant", content: message.content };
    if (message.reasoning) assistant.reasoning_content = message.reasoning;
    if (message.calls.length > 0) {
      assistant.tool_calls = message.calls.map((call) => ({ id: call.id, type: "function",
        function: { name: call.name, arguments: call.arguments } }));
    }
    out.push(assistant);
  }
  return out;
}

// Pictures stand before the text, as m3 run has them.
function contentOf({ content, attachments = [] }) {
  const shown = attachments.filter((attachment) => attachment.url);
  if (shown.length === 0) return content;
  const parts = shown.map(({ kind, url }) => ({ type: `${kind}_url`, [`${kind}_url`]: { url } }));
  return content === "" ? parts : [...parts, { type: "text", text: content }];
}

// --- export

// As a request that can be sent again, with what the page knows beside it.
export function exportJson(conversation, model) {
  const { title, updated, messages } = conversation;
  return JSON.stringify({ title, updated: new Date(updated).toISOString(), request: requestBody(conversation, model),
    replies: messages.filter((message) => message.role === "assistant").map(({ finish, stats }) => ({ finish, stats })) },
    null, 2);
}

export function exportMarkdown({ title, settings, messages }) {
  const parts = [`# ${title}`];
  if (settings.system.trim() !== "") parts.push("## System", settings.system);
  for (const message of messages) {
    if (message.role === "user") {
      parts.push("## User", ...(message.attachments ?? []).map(({ kind, name }) => `(${kind}: ${name})`), message.content);
    }
    if (message.role === "tool") parts.push("## Tool result", fenced(message.content));
    if (message.role !== "assistant") continue;
    parts.push("## Assistant");
    if (message.reasoning) parts.push(message.reasoning.trim().split("\n").map((line) => `> ${line}`).join("\n"));
    if (message.content) parts.push(message.content);
    for (const call of message.calls) parts.push(`Calls \`${call.name}\`:`, fenced(call.arguments, "json"));
    if (message.error) parts.push(`(${message.error})`);
  }
  return `${parts.join("\n\n")}\n`;
}

function fenced(text, language = "") {
  const longest = Math.max(0, ...(text.match(/`+/g) ?? []).map((run) => run.length));
  const fence = "`".repeat(Math.max(3, longest + 1));
  return `${fence}${language}\n${text}\n${fence}`;
}
