// The page: one conversation at a time, what is done with it, and the keyboard.
import { Attachments } from "./attachments.js";
import { apiKey, getJson, RequestError, streamChat } from "./api.js";
import { byId, download, el } from "./dom.js";
import { Panel } from "./panel.js";
import { SettingsForm, startTheme } from "./settings.js";
import * as store from "./store.js";
import { MessageView } from "./view.js";

let conversation = store.newConversation();
let views = [];
let running = null; // the AbortController of the reply being written
let serverState = null;

// --- showing

function showConversation(next) {
  running?.abort();
  running = null;
  conversation = next;
  conversation.settings = { ...store.emptySettings(), ...conversation.settings };
  settings.show(conversation.settings);
  showMessages();
  showChats();
  openDrawer("sidebar", false);
  byId("log").scrollTop = byId("log").scrollHeight;
}

function showMessages() {
  views = conversation.messages.map((message, i) => new MessageView(message, i, actions));
  byId("log").replaceChildren(...(views.length > 0 ? views.map((view) => view.node) : [welcome()]));
  updateViews();
  byId("title").textContent = conversation.title || "New chat";
  document.title = conversation.title ? `${conversation.title} – m3` : "m3";
}

function welcome() {
  return el("div", { class: "welcome" }, el("img", { src: "page/icon.svg", alt: "", width: "48", height: "48" }),
    el("p", {}, serverState?.model ? `${serverState.model} is listening.` : "What shall it write?"));
}

function updateViews() {
  views.forEach((view, i) => {
    const last = i === views.length - 1;
    view.update({ last, live: last && running !== null });
  });
  byId("send").hidden = running !== null;
  byId("stop").hidden = running === null;
  byId("export").disabled = conversation.messages.length === 0;
}

function showChats() {
  byId("chats").replaceChildren(...store.listConversations().map((stored) => {
    const current = stored.id === conversation.id;
    return el("div", { class: current ? "chat current" : "chat" },
      el("button", { type: "button", class: "chat-open", "aria-current": current ? "true" : null,
        onclick: () => showConversation(store.loadConversation(stored.id) ?? store.newConversation()) }, stored.title),
      el("button", { type: "button", class: "chat-delete", "aria-label": `Delete ${stored.title}`, title: "Delete",
        onclick: (event) => removeChat(event.currentTarget, stored) }, "×"));
  }));
}

// The first press asks, the second deletes.
function removeChat(button, stored) {
  if (!button.classList.contains("sure")) {
    button.classList.add("sure");
    button.textContent = "Delete?";
    setTimeout(() => {
      button.classList.remove("sure");
      button.textContent = "×";
    }, 3000);
    return;
  }
  store.deleteConversation(stored.id);
  if (stored.id === conversation.id) showConversation(store.newConversation());
  else showChats();
}

function notice(text) {
  byId("notice").hidden = text === "";
  byId("notice").textContent = text;
}

function save() {
  const kept = store.saveConversation(conversation);
  if (kept === "none") notice("The browser's storage is full: this conversation is not kept. Delete older ones.");
  if (kept === "without pictures") notice("The browser's storage is full: this conversation is kept without all of its pictures.");
}

// The log follows what is written as long as its end is in sight.
const atEnd = () => {
  const log = byId("log");
  return log.scrollHeight - log.scrollTop - log.clientHeight < 60;
};

// --- generating

async function generate() {
  const wrong = settings.check();
  if (wrong) {
    openDrawer("settings", true);
    wrong.reportValidity();
    return;
  }
  const own = conversation;
  const body = store.requestBody(own, byId("model").value);
  const message = { role: "assistant", content: "", reasoning: "", calls: [] };
  own.messages.push(message);
  const controller = (running = new AbortController());
  const clock = { start: performance.now(), first: null, answer: null };
  save();
  showMessages();
  showChats();
  byId("log").scrollTop = byId("log").scrollHeight;
  try {
    for await (const chunk of streamChat(body, controller.signal)) {
      takeChunk(message, chunk, clock);
      if (own === conversation) scheduleUpdate();
    }
  } catch (problem) {
    if (problem.name === "AbortError") message.finish = "stopped";
    else message.error = describe(problem);
    message.calls = []; // perhaps cut within their arguments
    if (problem.status === 401) askForKey();
  }
  finishStats(message, clock);
  if (running === controller) running = null;
  if (own === conversation) {
    const follow = atEnd();
    save();
    updateViews();
    if (follow) byId("log").scrollTop = byId("log").scrollHeight;
    showChats();
    if (!narrow()) byId("input").focus();
  } else if (store.loadConversation(own.id) !== null) {
    store.saveConversation(own); // not shown any more, but not lost
  }
}

function takeChunk(message, chunk, clock) {
  const now = performance.now();
  if (chunk.usage) {
    message.stats = { tokens: chunk.usage.completion_tokens, prompt: chunk.usage.prompt_tokens,
      cached: chunk.usage.prompt_tokens_details?.cached_tokens ?? 0 };
  }
  const choice = chunk.choices[0];
  if (!choice) return;
  const { delta } = choice;
  if (choice.finish_reason) message.finish = choice.finish_reason;
  const reasoning = delta.reasoning_content ?? delta.reasoning ?? "";
  const calls = delta.tool_calls ?? [];
  if (reasoning === "" && !delta.content && calls.length === 0) return;
  clock.first ??= now;
  clock.last = now;
  message.reasoning += reasoning;
  if (delta.content || calls.length > 0) {
    if (clock.answer === null && message.reasoning !== "") message.seconds = (now - clock.first) / 1000;
    clock.answer ??= now;
  }
  message.content += delta.content ?? "";
  for (const part of calls) {
    const call = (message.calls[part.index] ??= { id: part.id, name: "", arguments: "" });
    call.name += part.function?.name ?? "";
    call.arguments += part.function?.arguments ?? "";
  }
}

function finishStats(message, clock) {
  if (clock.first === null) return;
  message.stats = { ...message.stats, first: (clock.first - clock.start) / 1000 };
  const seconds = (clock.last - clock.first) / 1000;
  if (message.stats.tokens > 1 && seconds > 0) message.stats.rate = (message.stats.tokens - 1) / seconds;
  if (message.reasoning !== "" && clock.answer === null) message.seconds = seconds;
}

function describe(problem) {
  if (!(problem instanceof RequestError)) return `The page failed: ${problem.message}`;
  return problem.requestId ? `${problem.message} (request ${problem.requestId})` : problem.message;
}

let scheduled = false;
function scheduleUpdate() {
  if (scheduled) return;
  scheduled = true;
  requestAnimationFrame(() => {
    scheduled = false;
    const follow = atEnd();
    views.at(-1)?.update({ live: running !== null, last: true });
    if (follow) byId("log").scrollTop = byId("log").scrollHeight;
  });
}

const actions = {
  edit(index) {
    if (running) return;
    byId("input").value = conversation.messages[index].content;
    attachments.set(conversation.messages[index].attachments ?? []);
    conversation.messages.length = index;
    showMessages();
    growInput();
    byId("input").focus();
  },
  regenerate() {
    if (running) return;
    while (conversation.messages.at(-1)?.role === "assistant") conversation.messages.pop();
    if (conversation.messages.length > 0) generate();
  },
  sendResults(results) {
    if (running) return;
    for (const { call, content } of results) conversation.messages.push({ role: "tool", call, content });
    generate();
  },
};

function send() {
  const text = byId("input").value;
  if (running || (text.trim() === "" && attachments.list.length === 0)) return;
  if (serverState && serverState.chat === false) return;
  // A reply that failed before its first word goes; calls without results get empty ones.
  const before = conversation.messages.at(-1);
  if (before?.error && before.content === "") conversation.messages.pop();
  const last = conversation.messages.at(-1);
  if (last?.role === "assistant" && last.calls.length > 0) {
    for (const call of last.calls) conversation.messages.push({ role: "tool", call: call.id, content: "" });
  }
  const attached = attachments.take();
  conversation.messages.push({ role: "user", content: text, ...(attached.length > 0 && { attachments: attached }) });
  byId("input").value = "";
  growInput();
  generate();
}

// --- the key

function askForKey() {
  const dialog = byId("key-dialog");
  if (dialog.open) return;
  byId("key-input").value = apiKey.get();
  dialog.showModal();
}

byId("key-cancel").addEventListener("click", () => byId("key-dialog").close(""));
byId("key-dialog").addEventListener("close", () => {
  if (byId("key-dialog").returnValue !== "ok") return;
  apiKey.set(byId("key-input").value.trim(), byId("key-remember").checked);
  byId("key-dialog").returnValue = "";
  modelsKnown = false;
  keyAsked = false;
  panel.refresh();
});

// --- the server

let modelsKnown = false;
let keyAsked = false;
async function serverChanged(state, problem) {
  const before = serverState;
  serverState = state;
  if (problem) {
    notice(problem.status === 401 ? "This server asks for an API key." : problem.message);
    if (problem.status === 401 && !keyAsked) askForKey();
    keyAsked ||= problem.status === 401;
    return;
  }
  attachments.setTakes({ image: state.images === true, video: state.videos === true,
    why: state.status === "loading" ? "The model is loading." : state.no_pictures ?? "This model takes no pictures." });
  if (state.status === "loading") return notice("The model is loading…");
  notice(state.status !== "ready" ? `The server is ${state.status}.` : state.chat ? "" : `No chat: ${state.no_chat}`);
  if (before?.model !== state.model && conversation.messages.length === 0) showMessages();
  if (modelsKnown) return;
  modelsKnown = true;
  try {
    const { data } = await getJson("v1/models");
    byId("model").replaceChildren(...data.map((model) => el("option", { value: model.id }, model.id)));
    byId("model").hidden = data.length < 2;
  } catch {
    modelsKnown = false;
  }
}

// --- drawers, menus, keys

const narrow = () => matchMedia("(max-width: 760px)").matches;

function openDrawer(name, open) {
  const drawer = byId(name);
  if (name === "settings") drawer.hidden = !open;
  else drawer.classList.toggle("open", open);
  byId(name === "settings" ? "open-settings" : "menu").setAttribute("aria-expanded", String(open));
  byId("shade").hidden = !((open || !byId("settings").hidden || byId("sidebar").classList.contains("open")) && narrow());
  if (name === "settings" && open) byId("settings-form").elements.system.focus();
}

function closeAll() {
  openExport(false);
  openDrawer("settings", false);
  openDrawer("sidebar", false);
}

function openExport(open) {
  byId("export-menu").hidden = !open;
  byId("export").setAttribute("aria-expanded", String(open));
  if (open) byId("export-markdown").focus();
}

function growInput() {
  const input = byId("input");
  input.style.height = "auto";
  input.style.height = `${Math.min(input.scrollHeight, innerHeight * 0.4)}px`;
}

function fileName(extension) {
  return `${conversation.title.replace(/[^\p{L}\p{N}]+/gu, "-").slice(0, 40).replace(/^-|-$/g, "") || "chat"}.${extension}`;
}

function onKey(event) {
  const typing = /^(INPUT|TEXTAREA|SELECT)$/.test(document.activeElement?.tagName ?? "");
  if (event.key === "Escape" && !byId("key-dialog").open) {
    if (running) running.abort();
    else closeAll();
  } else if (event.key === "/" && !typing && !event.ctrlKey && !event.metaKey && !event.altKey) {
    byId("input").focus();
  } else if (event.altKey && !event.ctrlKey && !event.metaKey && event.code === "KeyN") {
    startNew();
  } else if (event.altKey && !event.ctrlKey && !event.metaKey && event.code === "KeyR") {
    actions.regenerate();
  } else if (event.altKey && !event.ctrlKey && !event.metaKey && event.code === "KeyS") {
    openDrawer("settings", byId("settings").hidden);
  } else {
    return;
  }
  event.preventDefault();
}

function startNew() {
  attachments.set([]);
  showConversation(store.newConversation());
  byId("input").focus();
}

byId("composer").addEventListener("submit", (event) => {
  event.preventDefault();
  send();
});
byId("input").addEventListener("input", growInput);
byId("input").addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  send();
});
byId("stop").addEventListener("click", () => running?.abort());
byId("new-chat").addEventListener("click", startNew);
byId("menu").addEventListener("click", () => openDrawer("sidebar", !byId("sidebar").classList.contains("open")));
byId("open-settings").addEventListener("click", () => openDrawer("settings", byId("settings").hidden));
byId("close-settings").addEventListener("click", () => openDrawer("settings", false));
byId("shade").addEventListener("click", closeAll);
byId("change-key").addEventListener("click", askForKey);
byId("export").addEventListener("click", (event) => {
  event.stopPropagation();
  openExport(byId("export-menu").hidden);
});
byId("export-markdown").addEventListener("click", () =>
  download(fileName("md"), "text/markdown", store.exportMarkdown(conversation)));
byId("export-json").addEventListener("click", () =>
  download(fileName("json"), "application/json", store.exportJson(conversation, byId("model").value)));
document.addEventListener("click", () => openExport(false));
document.addEventListener("keydown", onKey);
addEventListener("storage", (event) => {
  if (store.isConversationEntry(event.key)) showChats();
});
addEventListener("resize", growInput);
addEventListener("pagehide", save);

const settings = new SettingsForm((values) => {
  conversation.settings = values;
  store.saveSettings(values);
  save();
});
const attachments = new Attachments((text) => notice(text));
startTheme();
settings.show(conversation.settings);
showMessages();
showChats();
const panel = new Panel(serverChanged);
