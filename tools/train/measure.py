"""Measures a checkpoint's skills through m3 itself, greedily, on the held-out sets; prints the model card's tables.

    python3 tools/train/measure.py --m3 build/release/m3 --model models/m3-tiny-chat --cases 200
    python3 tools/train/measure.py … --only planted --books heldout.xz --lengths 4096:200,8192:100,32768:40

Skills: each case is a chat request with one task. With --server URL an m3 serve that is running answers it; without,
m3 chat-render makes the prompt, m3 run writes the reply, m3 chat-parse reads it. Planted sentences: the prompt goes as ids to
the server, or to m3 trace, which decode greedily; with --drop the case is run again by m3 trace
with the planted sentence's block kept from the indexer. Needs tokenizers, numpy, jinja2 and safetensors.
"""

import argparse
import json
import math
import subprocess
import tempfile
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random

from safetensors.numpy import load_file
from tokenizers import Tokenizer

from pack_books import unpack
from skills import tasks, tools
from skills.conversation import Conversation, Renderer
from skills.planted import Books, Planter

SKILLS = {
    "addition and subtraction, thinking": ([tasks.addition, tasks.subtraction], "enabled"),
    "addition and subtraction, adaptive": ([tasks.addition, tasks.subtraction], "adaptive"),
    "addition and subtraction, not thinking": ([tasks.addition, tasks.subtraction], "disabled"),
    "sorting lists, adaptive": ([tasks.sort_numbers, tasks.sort_words], "adaptive"),
    "sorting lists, not thinking": ([tasks.sort_numbers, tasks.sort_words], "disabled"),
    "copying lists": ([tasks.copy_list], "disabled"),
    "answering from a passage": ([tasks.passage], "adaptive"),
    "JSON on request": ([tasks.json_reply], "adaptive"),
    "tools on offer: call, or plain answer in a third": ([tools.tool_call, tools.tool_call, tools.no_tool], "adaptive"),
    "answering from a tool's result": ([lambda random, held: tools.tool_call(random, held, True)], "adaptive"),
    "plain chat": ([tasks.talk], "adaptive"),
}  # fmt: skip
MODE_MAKERS = [tasks.addition, tasks.sort_words, tasks.passage, tasks.talk, tasks.json_reply, tasks.copy_list]


class Program:
    def __init__(self, m3: str, model: Path, server: str | None):
        self.m3, self.model, self.server = m3, str(model), server

    def call(self, *arguments: str, text: str = "") -> str:
        done = subprocess.run([self.m3, *arguments], input=text, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"m3 {' '.join(arguments)}: {done.stderr.strip()}")
        return done.stdout

    def reply(self, body: dict, limit: int = 200) -> dict:
        """What a chat request is answered: content, reasoning_content, tool_calls, finish_reason."""
        if self.server:
            return self.ask_server(body, limit)
        request = json.dumps(body)
        prompt = self.call("chat-render", "--request", "-", self.model, text=request)
        run = ["run", self.model, "--prompt-file", "-", "--parse-special", "--temperature", "0", "--threads", "1"]
        wrote = json.loads(self.call(*run, "--max-tokens", str(limit), "--json", text=prompt))
        wrote = wrote[0] if isinstance(wrote, list) else wrote
        with tempfile.NamedTemporaryFile("w", suffix=".json") as asked, tempfile.NamedTemporaryFile("w") as reply:
            asked.write(request)
            asked.flush()
            reply.write(wrote["text"])
            reply.flush()
            parsed = json.loads(self.call("chat-parse", "--request", asked.name, "--text", reply.name))
        return parsed | {"finish_reason": wrote["finish_reason"], "text": wrote["text"]}

    def ask_server(self, body: dict, limit: int) -> dict:
        body = body | {"model": Path(self.model).name, "temperature": 0, "max_tokens": limit}
        choice = self.post("/v1/chat/completions", body)["choices"][0]
        message = choice["message"]
        calls = [call["function"] for call in message.get("tool_calls") or []]
        finish = "stop" if choice["finish_reason"] == "tool_calls" else choice["finish_reason"]
        reasoning = message.get("reasoning_content") or message.get("reasoning")
        return {"content": message.get("content"), "reasoning_content": reasoning, "tool_calls": calls,
                "finish_reason": finish, "text": json.dumps(message)}  # fmt: skip

    def post(self, path: str, body: dict) -> dict:
        headers = {"Content-Type": "application/json"}
        asked = urllib.request.Request(f"{self.server}{path}", json.dumps(body).encode(), headers)
        with urllib.request.urlopen(asked) as answer:
            return json.load(answer)

    def greedy(self, ids: list[int], count: int, drop: list[int] = ()) -> list[int]:
        if self.server and not drop:
            body = {"model": Path(self.model).name, "prompt": ids, "temperature": 0, "max_tokens": count,
                    "skip_special_tokens": False, "ignore_eos": True, "return_token_ids": True}  # fmt: skip
            return self.post("/v1/completions", body)["choices"][0]["token_ids"]
        with tempfile.TemporaryDirectory() as folder:
            out = f"{folder}/out.safetensors"
            dropped = ["--drop-blocks", ",".join(map(str, drop))] if drop else []
            arguments = ["trace", self.model, "--token-ids", "-", "--out", out, "--tensors", "logits"]
            self.call(*arguments, "--greedy", str(count), *dropped, text=" ".join(map(str, ids)))
            return load_file(out)["greedy_ids"].tolist()


def judge(expected: dict, mode: str, thinks: bool, got: dict) -> dict[str, bool]:
    """right: the answer itself; mode: thinking where the mode (and, adaptive, the task) asks for it and only there."""
    calls = [(c["name"], json.loads(c["arguments"])) for c in got.get("tool_calls") or []]
    wanted = [(c["function"]["name"], c["function"]["arguments"]) for c in expected.get("tool_calls", [])]
    content = (got.get("content") or "").strip()
    right = calls == wanted and content == expected["content"].strip()
    if not right and calls == wanted and expected["content"][:1] in ("{", "["):
        try:
            right = json.loads(content) == json.loads(expected["content"])
        except ValueError:
            pass
    thought = bool((got.get("reasoning_content") or "").strip())
    should = mode == "enabled" or (mode == "adaptive" and thinks)
    return {"right": right, "mode": thought == should, "stopped": got["finish_reason"] == "stop"}


def share(values: list[bool]) -> str:
    """Per cent with a 95 % Wilson interval."""
    n, p, z = len(values), sum(values) / len(values), 1.96
    middle, half = p + z * z / (2 * n), z * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    low, high = ((middle + sign * half) / (1 + z * z / n) for sign in (-1, 1))
    return f"{100 * p:.1f} % ({100 * low:.0f} … {100 * high:.0f})"


def one_task(random: Random, makers: list, mode: str):
    task = random.choice(makers)(random, True)
    conversation = Conversation(mode, [task])
    body = conversation.request()
    expected = body["messages"].pop()
    return body, expected, task


def measure_skills(program: Program, names: list[str], cases: int, jobs: int, show: int, seed: str) -> None:
    print("| skill | right | thinking mode obeyed | stopped by itself |\n|---|---|---|---|", flush=True)
    for name in names:
        if name == "thinking modes":
            makers, modes = MODE_MAKERS, ["enabled", "disabled", "adaptive"]
        else:
            makers, modes = SKILLS[name][0], [SKILLS[name][1]]
        random = Random(f"{seed} {name}")
        drawn = [(*one_task(random, makers, mode), mode) for mode in modes for _ in range(cases)]
        with ThreadPoolExecutor(jobs) as pool:
            replies = list(pool.map(lambda case: program.reply(case[0]), drawn))
        results = [judge(e, mode, task.thinks, got) for (_, e, task, mode), got in zip(drawn, replies)]
        cells = [share([result[key] for result in results]) for key in ("right", "mode", "stopped")]
        print(f"| {name} | {' | '.join(cells)} |", flush=True)
        for (body, expected, _, _), got, result in zip(drawn, replies, results):
            if not result["right"] and show > 0:
                show -= 1
                print("  asked:", body["messages"][-1]["content"], "\n  wanted:", expected, "\n  wrote:", got["text"])


def measure_planted(program: Program, model: Path, books: Path, lengths: dict[int, int], drop: bool, jobs: int) -> None:
    tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
    words = json.loads((books.parent / "words.json").read_text())
    ids = unpack(books)
    ids = ids[ids < tokenizer.get_vocab_size() - 61]  # book text alone
    planter = Planter(Renderer(tokenizer, model / "chat_template.jinja"), Books(ids, tokenizer), words)
    print("| tokens | form | found | with its blocks dropped |\n|---|---|---|---|", flush=True)
    for length, count in lengths.items():
        for chat in (False, True):
            random = Random(f"measure {length} {chat}")
            # The last trained position is the answer's.
            trials = [planter.trial(random, length - 64, chat) for _ in range(count)]

            def run(trial):
                prompt, answer, place = trial
                found = program.greedy(prompt, len(answer)) == answer
                if not drop:
                    return found, None
                blocks = sorted({place // 128, (place + 12) // 128})
                return found, program.greedy(prompt, len(answer), blocks) == answer

            with ThreadPoolExecutor(jobs) as pool:
                results = list(pool.map(run, trials))
            without = share([r[1] for r in results]) if drop else "–"
            form = "chat" if chat else "plain"
            print(f"| {length} | {form}, {count} cases | {share([r[0] for r in results])} | {without} |", flush=True)


def check_rendering(program: Program, model: Path, cases: int) -> None:
    """The training data's rendering against m3 chat-render --ids."""
    tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
    renderer, random = Renderer(tokenizer, model / "chat_template.jinja"), Random(0)
    makers = [maker for makers, _ in SKILLS.values() for maker in makers]
    for number in range(cases):
        mode = random.choice(["adaptive", "enabled", "disabled"])
        parts = [random.choice(makers)(random, False)]
        parts += [tasks.addition(random, False), tasks.talk(random, False)][: random.randint(0, 2)]
        parts[0].developer = parts[0].developer or random.choice((None, "Be brief."))
        conversation = Conversation(mode, parts)
        renderer.check(conversation)
        body = conversation.request() | {"add_generation_prompt": False}
        wrote = program.call("chat-render", "--request", "-", "--ids", program.model, text=json.dumps(body)).split()
        if [int(i.strip("[],")) for i in wrote] != renderer.encode(conversation)[0]:
            raise SystemExit(f"m3 renders case {number} otherwise: {body}")
    print(f"{cases} conversations: the ids trained on are those of m3 chat-render")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--m3", default="build/release/m3")
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--server", help="for example http://127.0.0.1:8000")
    parser.add_argument("--cases", type=int, default=200)
    parser.add_argument("--only", choices=["skills", "planted", "rendering"])
    parser.add_argument("--skill", action="append", help="only these")
    parser.add_argument("--no-modes", action="store_true", help="without the three times as many cases of the modes")
    parser.add_argument("--books", type=Path, help="heldout.xz of pack_books.py, words.json beside it")
    parser.add_argument("--lengths", default="4096:200,8192:100,32768:40")
    parser.add_argument("--drop", action="store_true", help="also with the planted sentence's blocks dropped")
    parser.add_argument("--seed", default="measure", help="of the skills' cases: another one to choose between checkpoints")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--show", type=int, default=0, help="so many wrong replies are printed")
    arguments = parser.parse_args()
    program = Program(arguments.m3, arguments.model, arguments.server)
    if arguments.only in (None, "rendering"):
        check_rendering(program, arguments.model, arguments.cases)
    if arguments.only in (None, "skills"):
        names = arguments.skill or [*SKILLS] + ["thinking modes"] * (not arguments.no_modes)
        measure_skills(program, names, arguments.cases, arguments.jobs, arguments.show, arguments.seed)
    if arguments.only == "planted" or (arguments.only is None and arguments.books):
        lengths = dict(map(int, pair.split(":")) for pair in arguments.lengths.split(","))
        measure_planted(program, arguments.model, arguments.books, lengths, arguments.drop, arguments.jobs)


if __name__ == "__main__":
    main()
