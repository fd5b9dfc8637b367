"""Held-out measures on the training model: bits per byte, planted sentences, each skill. All by teacher forcing:
greedy decoding writes the expected text exactly when every token of it is the likeliest one after those before it."""

import math
from random import Random

import numpy as np
import torch
import torch.nn.functional as F

from model import BLOCK, Plan, TinyM3
from skills import tasks, tools
from skills.conversation import Conversation, Renderer
from skills.planted import Books, Planter

SKILLS = {
    "add, thinking": (tasks.addition, "enabled"), "add, adaptive": (tasks.addition, "adaptive"),
    "add, not thinking": (tasks.addition, "disabled"),
    "subtract, thinking": (tasks.subtraction, "enabled"), "subtract, not thinking": (tasks.subtraction, "disabled"),
    "sort numbers, adaptive": (tasks.sort_numbers, "adaptive"),
    "sort numbers, not thinking": (tasks.sort_numbers, "disabled"),
    "sort words, adaptive": (tasks.sort_words, "adaptive"),
    "sort words, not thinking": (tasks.sort_words, "disabled"),
    "copy": (tasks.copy_list, "adaptive"), "reverse": (tasks.reverse_list, "adaptive"),
    "passage": (tasks.passage, "adaptive"), "passage, thinking": (tasks.passage, "enabled"),
    "json": (tasks.json_reply, "adaptive"), "talk": (tasks.talk, "adaptive"), "talk, thinking": (tasks.talk, "enabled"),
    "tool call": (tools.tool_call, "adaptive"), "tool call, thinking": (tools.tool_call, "enabled"),
    "tool not needed": (tools.no_tool, "adaptive"),
    "tool result": (lambda random, held: tools.tool_call(random, held, True), "adaptive"),
}  # fmt: skip


class Evaluator:
    """Packs cases into steps of `total` tokens, the shape that is compiled already."""

    def __init__(self, model: TinyM3, renderer: Renderer, held_out: np.ndarray, words: list[str], attend, total: int,
                 dtype=torch.bfloat16):  # fmt: skip
        self.model, self.renderer, self.attend, self.total, self.dtype = model, renderer, attend, total, dtype
        self.device = model.embed_tokens.weight.device
        vocabulary = renderer.tokenizer.get_vocab(with_added_tokens=False)
        # A byte-level token is spelled with one character per byte.
        self.token_bytes = np.zeros(model.config.vocab_size, dtype=np.int64)
        for token, id_ in vocabulary.items():
            self.token_bytes[id_] = len(token)
        self.text_ids = held_out[held_out < len(vocabulary)]
        self.planter = Planter(renderer, Books(self.text_ids, renderer.tokenizer), words)

    def run(self, ids: np.ndarray, positions: np.ndarray, segments, sparse: bool = True):
        """(log-probability of each token's successor, likeliest successor), both [tokens]."""
        # Gradients stay on, so that the graphs compiled for training serve here too.
        ids, positions = (torch.from_numpy(a.astype(np.int64)).to(self.device) for a in (ids, positions))
        autocast = torch.autocast(self.device.type, self.dtype, enabled=self.dtype != torch.float32)
        with autocast:
            plan = Plan(positions, segments, self.model.config)
            hidden = self.model(ids, positions, plan, self.attend, sparse, dtype=self.dtype).hidden.detach()
            with torch.no_grad():
                logits = self.model.logits(hidden)
                likeliest = logits.argmax(-1)
                losses = F.cross_entropy(logits[:-1], ids[1:], reduction="none")
        return -losses.cpu().numpy(), likeliest.cpu().numpy()

    def bits_per_byte(self, window: int, sparse: bool = True, max_steps: int = 10**9) -> float:
        """Over non-overlapping windows: each sees only itself; its first token is not predicted."""
        rows = self.total // window
        count = min(len(self.text_ids) // self.total, max_steps)
        bits, size = 0.0, 0
        for step in range(count):
            ids = self.text_ids[step * self.total : (step + 1) * self.total]
            positions = np.tile(np.arange(window), rows)
            scores, _ = self.run(ids, positions, [(0, rows, window)], sparse)
            inside = positions[1:] > 0
            bits -= scores[inside].sum() / math.log(2)
            size += int(self.token_bytes[ids[1:]][inside].sum())
        return bits / size

    def exact(self, cases: list[tuple[list[int], list[int]]], slot: int, sparse: bool) -> list[bool]:
        """Whether each case's answer is what greedy decoding writes. A case takes `slot` tokens."""
        right, rows = [], self.total // slot
        for first in range(0, len(cases), rows):
            group = cases[first : first + rows]
            ids, wanted = np.zeros((rows, slot), np.int64), []
            for row, (prompt, answer) in enumerate(group):
                ids[row, : len(prompt) + len(answer)] = prompt + answer
                wanted.append((row * slot + len(prompt) - 1, answer))
            positions = np.tile(np.arange(slot), rows)
            _, likeliest = self.run(ids.reshape(-1), positions, [(0, rows, slot)] if sparse else [])
            right += [likeliest[at : at + len(answer)].tolist() == answer for at, answer in wanted]
        return right

    def found(self, length: int, trials: int, chat: bool, planted: int = 1, seed: int = 1) -> float:
        random = Random(f"{seed} {length} {chat}")
        cases = []
        for _ in range(trials):
            prompt, answer, _ = self.planter.trial(random, length - BLOCK, chat, planted)
            cases.append((prompt, answer))
        return float(np.mean(self.exact(cases, length, True)))

    def skill(self, name: str, trials: int, slot: int = 512) -> float:
        make, mode = SKILLS[name]
        random, cases = Random(name), []
        while len(cases) < trials:
            case = self.split(Conversation(mode, [make(random, True)]))
            if len(case[0]) + len(case[1]) <= slot:
                cases.append(case)
        return float(np.mean(self.exact(cases, slot, False)))

    def split(self, conversation: Conversation) -> tuple[list[int], list[int]]:
        """Prompt and last reply, as the engine would prompt it."""
        ids, weights = self.renderer.encode(conversation)
        ids = ids[:-1]  # the line break behind the turn is not the model's
        begin = len(ids) - next(i for i, w in enumerate(weights[-2::-1]) if w == 0)
        begin += {"adaptive": 0, "enabled": 1, "disabled": 1}[conversation.mode]
        return ids[:begin], ids[begin:]


def report(evaluator: Evaluator, say, quick: bool = False) -> dict:
    trials = 64 if quick else 256
    if evaluator.total < 4096:  # a rehearsal
        trials = 4
    result = {}

    def note(name, value):
        result[name] = round(float(value), 4)
        say(f"{name}: {result[name]}")

    for window in (1024, 2048) if quick else (2048, 4096, 8192):
        if evaluator.total % window == 0:
            note(f"bits per byte, windows of {window}", evaluator.bits_per_byte(window, True, 2 if quick else 10**9))
    counts = {1024: 8, 2048: 100, 4096: 200, 8192: 100, 16384: 40, 32768: 40}
    for length, count in counts.items():
        if evaluator.total % length == 0 and (length > 1024) == (evaluator.total > 4096):
            count = min(count, 65536 // length * 4, 64) if quick else count
            note(f"found in {length}, {count} cases", evaluator.found(length, count, False))
            note(f"found in {length}, chat", evaluator.found(length, count, True))
            if not quick:
                note(f"found in {length}, one of eight", evaluator.found(length, count, False, 8))
    for name in SKILLS:
        note(name, evaluator.skill(name, trials))
    return result
