// Messages on the page. A MessageView follows its message: update() after every change.
import { thumbnail } from "./attachments.js";
import { copyButton, el } from "./dom.js";
import { renderMarkdown } from "./markdown.js";

// `actions`: edit(index), regenerate(), sendResults([{call, content}]).
export class MessageView {
  constructor(message, index, actions) {
    this.message = message;
    this.index = index;
    this.actions = actions;
    this.node = el("article", { class: `message ${message.role}`, "aria-label": nameOf(message.role) });
    if (message.role === "user") this.buildUser();
    else if (message.role === "tool") this.buildResult();
    else this.buildAssistant();
  }

  buildUser() {
    const shown = this.message.attachments ?? [];
    if (shown.length > 0) this.node.append(el("div", { class: "shown" }, ...shown.map(thumbnail)));
    if (this.message.content !== "") this.node.append(el("div", { class: "bubble" }, this.message.content));
    this.node.append(
      el("footer", {}, copyButton(() => this.message.content),
        el("button", { type: "button", class: "quiet", onclick: () => this.actions.edit(this.index) }, "Edit")));
  }

  buildResult() {
    this.node.append(el("div", { class: "result" }, el("span", { class: "label" }, "Result"),
      el("pre", { tabindex: "0" }, this.message.content)));
  }

  buildAssistant() {
    this.thinkingText = el("div", { class: "thinking-text" });
    this.thinkingLabel = el("span");
    this.thinking = el("details", { class: "thinking", hidden: true },
      el("summary", {}, this.thinkingLabel), this.thinkingText);
    this.content = el("div", { class: "content" });
    this.calls = el("div", { class: "calls" });
    this.waiting = el("div", { class: "waiting", "aria-label": "Waiting for the reply" },
      el("span"), el("span"), el("span"));
    this.error = el("p", { class: "error", role: "alert", hidden: true });
    this.stats = el("span", { class: "stats" });
    this.again = el("button", { type: "button", class: "quiet", title: "Alt+R",
      onclick: () => this.actions.regenerate() }, "Regenerate");
    this.footer = el("footer", {}, copyButton(() => this.message.content), this.again, this.stats);
    this.node.append(this.thinking, this.content, this.calls, this.waiting, this.error, this.footer);
    this.shown = { reasoning: "", content: "" };
    this.callViews = [];
  }

  // `live`: still being written; `last`: the conversation's last message.
  update({ live = false, last = false } = {}) {
    const { message } = this;
    if (message.role !== "assistant") return;
    this.updateThinking(live);
    if (message.content !== this.shown.content) renderMarkdown(this.content, message.content);
    this.shown.content = message.content;
    this.updateCalls(live, last);
    const empty = message.content === "" && message.reasoning === "" && message.calls.length === 0;
    this.waiting.hidden = !(live && empty);
    this.node.classList.toggle("live", live);
    this.node.setAttribute("aria-busy", String(live));
    this.error.hidden = !message.error;
    this.error.textContent = message.error ?? "";
    this.footer.hidden = live;
    this.again.hidden = !last;
    this.again.textContent = message.error ? "Try again" : "Regenerate";
    this.stats.textContent = statsText(message);
  }

  updateThinking(live) {
    const { reasoning, content, calls, seconds } = this.message;
    this.thinking.hidden = reasoning === "";
    const open = live && content === "" && calls.length === 0;
    this.thinking.classList.toggle("open-ended", open);
    const took = seconds === undefined ? "" : ` for ${seconds < 9.95 ? seconds.toFixed(1) : Math.round(seconds)} s`;
    this.thinkingLabel.textContent = open ? "Thinking…" : `Thought${took}`;
    if (reasoning.startsWith(this.shown.reasoning)) {
      this.thinkingText.append(reasoning.slice(this.shown.reasoning.length));
      if (this.thinkingText.childNodes.length > 200) this.thinkingText.normalize();
    } else {
      this.thinkingText.textContent = reasoning;
    }
    this.shown.reasoning = reasoning;
  }

  updateCalls(live, last) {
    const { calls, finish } = this.message;
    for (const view of this.callViews.splice(calls.length)) view.node.remove();
    for (let i = this.callViews.length; i < calls.length; ++i) {
      const view = { args: el("pre", { tabindex: "0" }), result: el("textarea", { rows: "2", class: "code",
        "aria-label": `Result of ${calls[i].name}`, placeholder: "Result, as text or JSON" }) };
      view.node = el("div", { class: "call" }, el("div", { class: "call-head" },
        el("span", { class: "label" }, "Calls"), el("code", {}, calls[i].name)), view.args, view.result);
      this.callViews.push(view);
      this.calls.append(view.node);
    }
    calls.forEach((call, i) => (this.callViews[i].args.textContent = live ? call.arguments : pretty(call.arguments)));
    const open = !live && last && calls.length > 0 && finish === "tool_calls";
    for (const view of this.callViews) view.result.hidden = !open;
    this.sendResults?.remove();
    this.sendResults = null;
    if (!open) return;
    this.sendResults = el("button", { type: "button", class: "primary text", onclick: () =>
      this.actions.sendResults(calls.map((call, i) => ({ call: call.id, content: this.callViews[i].result.value }))) },
      calls.length > 1 ? "Send results" : "Send result");
    this.calls.append(this.sendResults);
  }
}

function nameOf(role) {
  return { user: "You", tool: "Tool result", assistant: "Reply" }[role];
}

function pretty(json) {
  try {
    return JSON.stringify(JSON.parse(json), null, 2);
  } catch {
    return json;
  }
}

function statsText({ stats, finish }) {
  const parts = [];
  if (stats?.tokens) parts.push(`${stats.tokens} token${stats.tokens === 1 ? "" : "s"}`);
  if (stats?.rate) parts.push(`${stats.rate < 99.5 ? stats.rate.toFixed(1) : Math.round(stats.rate)} tok/s`);
  if (stats?.first !== undefined) parts.push(`first after ${stats.first.toFixed(2)} s`);
  if (stats?.cached) parts.push(`${stats.cached} of ${stats.prompt} prompt tokens cached`);
  if (finish === "length") parts.push("cut at the token limit");
  if (finish === "stopped") parts.push("stopped");
  return parts.join(" · ");
}
