"""Conversations of several tasks: as request messages, as the template's text, as token ids with loss weights."""

import functools
import json
from pathlib import Path

import jinja2
import numpy as np
from jinja2.sandbox import ImmutableSandboxedEnvironment

from . import tasks, tools
from .tasks import Task

MODES = ("adaptive", "enabled", "disabled")
NS, TURN, END = "]<]minimax[>[", "]~b]", "[e~["
THINK, THINK_END = "<mm:think>", "</mm:think>"
CHAT_WEIGHT = 2  # an assistant's token counts as two tokens of prose

# Without tools, with tools (name, share). Sums and lists are dear to learn, so they come often.
MIX = [
    (tasks.addition, 9), (tasks.subtraction, 9), (tasks.sort_numbers, 8), (tasks.sort_words, 12), (tasks.copy_list, 10),
    (tasks.reverse_list, 4), (tasks.passage, 18), (tasks.json_reply, 18), (tasks.talk, 12),
]  # fmt: skip
DEVELOPERS = [
    "Answer briefly.", "You are a helpful assistant.", "Be brief.", "You help with small tasks.", "Answer in English.",
    "You are an assistant.", "Be polite and brief.",
]  # fmt: skip


class Conversation:
    def __init__(self, mode: str, parts: list[Task]):
        self.mode, self.kinds = mode, [part.kind for part in parts]
        self.tools = parts[0].tools
        self.developer = parts[0].developer
        self.messages = []
        for part in parts:
            thinks = mode == "enabled" or (mode == "adaptive" and part.thinks)
            for message in part.messages:
                message = dict(message)
                thought = message.pop("thought", None)
                if thinks and thought:
                    message["reasoning_content"] = thought
                self.messages.append(message)

    def request(self) -> dict:
        """The body of a chat request that holds the whole conversation."""
        messages = [{"role": "system", "content": self.developer}] if self.developer else []
        body = {"messages": messages + self.messages, "chat_template_kwargs": {"thinking_mode": self.mode}}
        return body | ({"tools": self.tools} if self.tools else {})


@functools.cache
def compiled(path: str):
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = lambda value: json.dumps(value, ensure_ascii=False)

    def refuse(message):
        raise jinja2.TemplateError(message)

    environment.globals["raise_exception"] = refuse
    return environment.from_string(Path(path).read_text(encoding="utf-8"))


def rendered(template: Path, body: dict, add_generation_prompt: bool) -> str:
    kwargs = body.get("chat_template_kwargs", {})
    tools_ = body.get("tools")
    return compiled(str(template)).render(
        messages=body["messages"], tools=tools_, add_generation_prompt=add_generation_prompt, **kwargs
    )


def tags(value) -> str:
    if isinstance(value, dict):
        return "".join(f"{NS}<{k}>{tags(v)}{NS}</{k}>" for k, v in value.items() if v is not None)
    if isinstance(value, list):
        return "".join(f"{NS}<item>{tags(v)}{NS}</item>" for v in value)
    return json.dumps(value) if isinstance(value, bool) or not isinstance(value, str) else value


def calls_text(calls: list[dict]) -> str:
    text = f"{NS}<tool_call>\n"
    for one in calls:
        function = one["function"]
        text += f'{NS}<invoke name="{function["name"]}">{tags(function["arguments"])}{NS}</invoke>\n'
    return text + f"{NS}</tool_call>"


class Renderer:
    """Writes token ids as the template would, piece by piece, so that every token knows whether it is learnt.

    What the template writes around messages and tools is taken from the template itself; check() holds the
    result against rendering the whole conversation.
    """

    def __init__(self, tokenizer, template: Path):
        self.tokenizer, self.template = tokenizer, template
        self.heads, self.cache, self.default_developer = {}, {}, ""
        self.fixed = {text: self.ids(text) for text in (f"{TURN}ai\n", "\n")}
        mark, tool = "\x01", {"type": "function", "function": {"name": "\x02"}}
        user = [{"role": "user", "content": "\x03"}]
        for mode in MODES:
            kwargs = {"chat_template_kwargs": {"thinking_mode": mode}}
            plain = rendered(template, {"messages": user} | kwargs, False)
            asked = rendered(template, {"messages": [{"role": "system", "content": mark}] + user} | kwargs, False)
            armed = rendered(
                template, {"messages": [{"role": "system", "content": mark}] + user, "tools": [tool]} | kwargs, False
            )
            before, behind = asked.split(mark)
            tool_line = f"<tool>{json.dumps(tool['function'])}</tool>\n"
            if armed.count(tool_line) != 1 or plain.count("\x03") != 1:
                raise ValueError("the template writes tools or messages in an unknown way")
            open_tools, close_tools = armed.split(mark)[1].split(tool_line)
            first = f"{TURN}user\n\x03{END}\n"
            self.default_developer = plain.removeprefix(before).removesuffix(behind)
            self.heads[mode] = (
                plain.removesuffix(first), before, behind.removesuffix(first), open_tools,
                close_tools.removesuffix(first),
            )  # fmt: skip

    def head(self, mode: str, developer: str | None, tools_: list[dict]) -> str:
        plain, before, behind, open_tools, close_tools = self.heads[mode]
        if not developer and not tools_:
            return plain
        if not developer:
            developer = self.default_developer
        if not tools_:
            return before + developer + behind
        lines = "".join(f"<tool>{json.dumps(t['function'], ensure_ascii=False)}</tool>\n" for t in tools_)
        return before + developer + open_tools + lines + close_tools

    def message_pieces(self, messages: list[dict]):
        """(text, learnt) of each message. Every piece begins and ends at a special token or a turn's line break,
        which special tokens surround: pieces are tokenized one by one with the same result as the whole."""
        for number, message in enumerate(messages):
            role = message["role"]
            if role == "user":
                yield f"{TURN}user\n{message['content']}{END}\n", False
            elif role == "tool":
                first = number == 0 or messages[number - 1]["role"] != "tool"
                last = number + 1 == len(messages) or messages[number + 1]["role"] != "tool"
                if not first:
                    raise ValueError("one tool message follows a call here")
                yield f"{TURN}tool\n<response>{message['content']}</response>" + (f"{END}\n" if last else ""), False
            else:
                reasoning = message.get("reasoning_content")
                calls = calls_text(message["tool_calls"]) if "tool_calls" in message else ""
                yield f"{TURN}ai\n", False
                yield (THINK + reasoning if reasoning else "") + THINK_END + message["content"] + calls + END, True
                yield "\n", False

    def text(self, conversation: Conversation) -> str:
        head = self.head(conversation.mode, conversation.developer, conversation.tools)
        return head + "".join(text for text, _ in self.message_pieces(conversation.messages))

    def ids(self, text: str) -> list[int]:
        return self.tokenizer.encode(text, add_special_tokens=False).ids

    def encode_head(self, mode: str, developer: str | None, tools_: list[dict]) -> list[int]:
        if tools_:
            return self.ids(self.head(mode, developer, tools_))
        key = mode, developer
        if key not in self.cache:
            if len(self.cache) > 10_000:
                self.cache.clear()
            self.cache[key] = self.ids(self.head(mode, developer, []))
        return self.cache[key]

    def encode_messages(self, messages: list[dict]) -> tuple[list[int], list[int]]:
        ids, weights = [], []
        for text, learnt in self.message_pieces(messages):
            if not learnt and text in self.fixed:
                new = self.fixed[text]
            else:
                new = self.ids(text)
            ids += new
            weights += [CHAT_WEIGHT if learnt else 0] * len(new)
        return ids, weights

    def encode(self, conversation: Conversation) -> tuple[list[int], list[int]]:
        """Ids and the loss weight of each (0 or CHAT_WEIGHT)."""
        head = self.encode_head(conversation.mode, conversation.developer, conversation.tools)
        ids, weights = self.encode_messages(conversation.messages)
        return head + ids, [0] * len(head) + weights

    def check(self, conversation: Conversation) -> None:
        body = conversation.request()
        whole = rendered(self.template, body, False)
        if self.text(conversation) != whole:
            raise ValueError(f"pieces differ from the template:\n{self.text(conversation)!r}\n{whole!r}")
        if self.encode(conversation)[0] != self.tokenizer.encode(whole, add_special_tokens=False).ids:
            raise ValueError("the ids of the pieces differ from those of the whole text")


def draw_task(random, filler: list[str], runs: list[list[str]]) -> Task:
    if runs and random.random() < 0.05:
        return tasks.continuation(random, False, runs)
    make = random.choices([m for m, _ in MIX], [share for _, share in MIX])[0]
    return make(random, False, filler) if make is tasks.passage else make(random, False)


def messages_of(part: Task, mode: str) -> list[dict]:
    return Conversation(mode, [part]).messages


def draw_conversation(random, renderer: Renderer, limit: int, filler=(), runs=()) -> tuple[list[int], list[int]]:
    """Ids and weights of a training conversation of at most `limit` tokens, often of several turns."""
    while True:
        mode = random.choice(MODES)
        if random.random() < 0.36:
            first = tools.no_tool(random, False) if random.random() < 0.33 else tools.tool_call(random, False)
        else:
            first = draw_task(random, filler, runs)
        developer = first.developer
        if developer is None and random.random() < 0.3:
            developer = random.choice(DEVELOPERS)
        head = renderer.encode_head(mode, developer, first.tools)
        ids, weights = renderer.encode_messages(messages_of(first, mode))
        ids, weights = head + ids, [0] * len(head) + weights
        if len(ids) <= limit:
            break
    if random.random() < 0.35 and limit <= 512:
        return ids, weights
    while True:
        part = draw_task(random, filler, runs)
        if part.developer:
            continue
        more, more_weights = renderer.encode_messages(messages_of(part, mode))
        if len(ids) + len(more) > limit:
            return ids, weights
        ids += more
        weights += more_weights
        if random.random() < 0.2 and limit <= 512:
            return ids, weights


def as_arrays(ids, weights) -> tuple[np.ndarray, np.ndarray]:
    return np.array(ids, np.uint16), np.array(weights, np.uint8)
