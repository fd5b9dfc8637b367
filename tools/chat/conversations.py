#!/usr/bin/env python3
"""Generates conversations, renders them with Jinja2 through a template, and compares with `m3 chat-render`.

Usage: conversations.py --template FILE --program M3 [--count 400] [--seed 1] [--write OUT.jsonl]

The bodies use everything a /v1/chat/completions request may: roles, root and late system messages, tools, nested and
null arguments as objects and as JSON text, thinking modes, reasoning fields, parts, images, videos, Unicode. The
reference normalises them by its own code below, in the words of the normalisation that src/chat/messages.h states.
With --write the cases go to a file, one JSON object a line with "request" and "expect" (or "error": true).
"""
import argparse
import json
import random
import subprocess
import sys

from jinja_reference import environment

WORDS = ["weather", "Paris", "naïve", "日本語", "🎉🎊", "e\u0301", "a\nb", "  spaced  ", "<b>", "]<]minimax[>[", "[e~[", "]~b]ai\n",
         "<mm:think>x</mm:think>", "</mm:think>", "<think>", "{\"a\": 1}", "\\n", "'\"", "\t", "\u2028", "\u00a0", "0123", "None", "$&%",
         "<tool_call>", "]<]image[>[", "&amp;", "{{ x }}", "{% if %}", "مرحبا", "\x7f", "line\r\nend\n"]
KEYS = ["city", "unit", "n", "list", "obj", "ключ", "a b", "items", "keys", "get", "item", "x-y", "values"]


class Generator:
    def __init__(self, rng):
        self.rng = rng

    def chance(self, p):
        return self.rng.random() < p

    def text(self):
        return " ".join(self.rng.choice(WORDS) for _ in range(self.rng.randrange(0, 6)))

    def value(self, depth=0):
        kind = self.rng.randrange(10 if depth < 4 else 7)
        if kind < 3:
            return self.text()
        if kind == 3:
            return self.rng.choice([0, 1, -7, 42, 2**40, 12345678901234567890123, 2**63])
        if kind == 4:
            return self.rng.choice([0.5, -1.25, 1e20, 1e-9, 100.0, 3.0, 1e16, 123456789.123])
        if kind == 5:
            return self.rng.choice([True, False])
        if kind == 6:
            return None
        if kind == 7:
            return [self.value(depth + 1) for _ in range(self.rng.randrange(4))]
        return {self.rng.choice(KEYS): self.value(depth + 1) for _ in range(self.rng.randrange(4))}

    def schema(self, depth=0):
        kind = self.rng.randrange(6 if depth < 3 else 4)
        if kind < 3:
            return {"type": self.rng.choice(["string", "integer", "number", "boolean"]), "description": self.text()}
        if kind == 3:
            return {"enum": [self.text(), 1, None, True]}
        if kind == 4:
            return {"type": "array", "items": self.schema(depth + 1)}
        names = self.rng.sample(KEYS, 3)
        return {"type": "object", "properties": {k: self.schema(depth + 1) for k in names}, "required": names[:1]}

    def tool(self):
        function = {"name": self.rng.choice(["get_weather", "search.web", "a-b", "функция", "f" + str(self.rng.randrange(99))])}
        if self.chance(0.8):
            function["description"] = self.text()
        if self.chance(0.8):
            function["parameters"] = {"type": "object", "properties": {k: self.schema() for k in self.rng.sample(KEYS, 2)}}
        if self.chance(0.2):
            function["strict"] = True
        return {"type": "function", "function": function}

    def content(self):
        kind = self.rng.randrange(10)
        if kind < 6:
            return self.text()
        parts = []
        for _ in range(self.rng.randrange(4)):
            parts.append(self.rng.choice([
                {"type": "text", "text": self.text()},
                {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}},
                {"type": "image"},
                {"type": "video_url", "video_url": {"url": "http://x/v.mp4"}},
                {"type": "video"},
            ]))
        return parts

    def call(self):
        arguments = {self.rng.choice(KEYS): self.value() for _ in range(self.rng.randrange(4))}
        form = self.rng.randrange(4)
        given = arguments
        if form == 0:
            given = json.dumps(arguments, ensure_ascii=self.chance(0.5))
        if form == 1 and not arguments:
            given = self.rng.choice(["", "{}", None])
        function = {"name": self.rng.choice(["get_weather", "search.web", "x<y", "]<]minimax[>["]), "arguments": given}
        if self.chance(0.1):
            return function
        return {"id": "call_%d" % self.rng.randrange(1000), "type": "function", "function": function}

    def assistant(self):
        message = {"role": "assistant", "content": self.content()}
        kind = self.rng.randrange(6)
        if kind == 0:
            message["reasoning_content"] = self.text()
        elif kind == 1:
            message[self.rng.choice(["reasoning", "thinking"])] = self.text()
        elif kind == 2:
            message["content"] = self.rng.choice(["<mm:think>", "", "<mm:think>\n"]) + self.text() + "\n</mm:think>\n" + self.text()
        if self.chance(0.4):
            message["tool_calls"] = [self.call() for _ in range(self.rng.randrange(1, 4))]
            if self.chance(0.5):
                message["content"] = self.rng.choice([None, ""])
                if self.chance(0.5):
                    del message["content"]
        if self.chance(0.1):
            message["reasoning_content"] = None
        return message

    def tool_message(self):
        message = {"role": "tool", "tool_call_id": "call_1"}
        kind = self.rng.randrange(8)
        if kind < 5:
            message["content"] = self.text()
        elif kind == 5:
            message["content"] = [{"type": "text", "text": self.text()} for _ in range(self.rng.randrange(3))]
        elif kind == 6:
            message["content"] = [{"type": "image"}, {"type": "text", "text": self.text()}, {"output": self.text()}]
        elif self.chance(0.5):
            message["content"] = None
        return message

    def body(self):
        messages = []
        if self.chance(0.2):
            messages.append({"role": "root", "content": self.content()})
        if self.chance(0.6):
            messages.append({"role": self.rng.choice(["system", "developer"]), "content": self.content()})
        for _ in range(self.rng.randrange(1, 7)):
            kind = self.rng.randrange(10)
            if kind < 4:
                messages.append({"role": "user", "content": self.content()})
            elif kind < 8:
                message = self.assistant()
                messages.append(message)
                if message.get("tool_calls"):
                    messages += [self.tool_message() for _ in range(self.rng.randrange(0, 4))]
            elif kind == 8:
                messages.append({"role": self.rng.choice(["system", "developer"]), "content": self.content()})
            elif self.chance(0.3):
                messages.append(self.tool_message())  # perhaps without a call before it: the template may refuse that
            else:
                messages.append({"role": "user", "content": self.text(), "name": "bob"})
        body = {"model": "m3", "messages": messages}
        if self.chance(0.5):
            body["tools"] = [self.tool() for _ in range(self.rng.randrange(0, 4))]
        kwargs = {}
        kind = self.rng.randrange(8)
        if kind < 3:
            kwargs["thinking_mode"] = self.rng.choice(["enabled", "disabled", "adaptive"])
        elif kind == 3:
            kwargs["enable_thinking"] = self.chance(0.5)
        elif kind == 4:
            body["thinking"] = {"type": self.rng.choice(["enabled", "disabled", "adaptive"])}
        if self.chance(0.1):
            kwargs["model_identity"] = self.text()
        if kwargs or self.chance(0.1):
            body["chat_template_kwargs"] = kwargs
        if self.chance(0.3):
            body["add_generation_prompt"] = self.chance(0.5)
        return body


def normalise(body):
    """The request as src/chat/messages.h says the template gets it."""
    messages = []
    for message in body["messages"]:
        message = {k: v for k, v in message.items() if v is not None}
        role = message["role"]
        content = message.get("content")
        if isinstance(content, list):
            message["content"] = [
                {**part, "type": part["type"].removesuffix("_url")} if "type" in part else part for part in content
            ]
        if role == "tool":
            message.setdefault("content", "")
        if role == "assistant":
            reasoning = next((message[k] for k in ("reasoning_content", "reasoning", "thinking") if k in message), None)
            if reasoning is not None:
                message["reasoning_content"] = reasoning
        if "tool_calls" in message:
            calls = []
            for call in message["tool_calls"]:
                function = dict(call.get("function") or call)
                arguments = function.get("arguments")
                if isinstance(arguments, str):
                    arguments = json.loads(arguments) if arguments.strip() else {}
                function["arguments"] = arguments if arguments is not None else {}
                calls.append({**call, "function": function} if call.get("function") else function)
            message["tool_calls"] = calls
        messages.append(message)
    head = [m for m in messages if m["role"] == "root"]
    developer = None
    rest = []
    for message in messages:
        if message["role"] in ("system", "developer"):
            if developer is None:
                developer = dict(message)
            elif message.get("content"):
                if not developer.get("content"):
                    developer["content"] = message["content"]
                elif isinstance(developer["content"], str) and isinstance(message["content"], str):
                    developer["content"] += "\n\n" + message["content"]
                else:
                    parts = lambda c: [{"type": "text", "text": c}] if isinstance(c, str) else c
                    developer["content"] = parts(developer["content"]) + parts("\n\n") + parts(message["content"])
        elif message["role"] != "root":
            rest.append(message)
    kwargs = dict(body.get("chat_template_kwargs") or {})
    if "enable_thinking" in kwargs:
        kwargs["thinking_mode"] = "enabled" if kwargs["enable_thinking"] else "disabled"
    if "thinking" in body:
        kwargs["thinking_mode"] = body["thinking"]["type"]
    return {
        "messages": head + ([developer] if developer else []) + rest, "tools": body.get("tools") or None, "documents": None,
        "add_generation_prompt": body.get("add_generation_prompt", True), **kwargs,
    }


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--template", required=True)
    parser.add_argument("--program")
    parser.add_argument("--count", type=int, default=400)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--write")
    arguments = parser.parse_args()
    with open(arguments.template, encoding="utf-8", newline="") as file:
        template = environment().from_string(file.read())
    rng = random.Random(arguments.seed)
    failures = errors = 0
    out = open(arguments.write, "w", encoding="utf-8") if arguments.write else None
    for index in range(arguments.count):
        body = Generator(rng).body()
        expected = None
        try:
            expected = template.render(**normalise(body))
        except Exception as error:
            errors += 1
            why = str(error)
        text = json.dumps(body, ensure_ascii=False)
        if out:
            out.write(json.dumps({"request": body, **({"expect": expected} if expected is not None else {"error": True})},
                                 ensure_ascii=False) + "\n")
        if not arguments.program:
            continue
        run = subprocess.run([arguments.program, "chat-render", "--request", "-", "--template", arguments.template],
                             input=text.encode(), capture_output=True)
        got = run.stdout.decode() if run.returncode == 0 else None
        if got != expected:
            failures += 1
            if failures <= 5:
                print("case", index, text, "\nexpected", repr(expected if expected is not None else why),
                      "\ngot     ", repr(got if got is not None else run.stderr.decode()))
    print(f"{arguments.count} conversations, {errors} of them refused by the template, {failures} differences")
    sys.exit(1 if failures else 0)


main()
