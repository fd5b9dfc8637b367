"""Held-out bits per byte, and how often a planted sentence is found."""

import math

import numpy as np
import torch
import torch.nn.functional as F

from data import Corpus
from model import TinyM3, attend_masked

TOKENS_AT_ONCE = 32768


class Evaluator:
    def __init__(self, model: TinyM3, corpus: Corpus, device, dtype=torch.bfloat16):
        self.model, self.corpus, self.device, self.dtype = model, corpus, device, dtype
        vocabulary = corpus.tokenizer.get_vocab(with_added_tokens=False)
        # A byte-level token is spelled with one character per byte.
        self.token_bytes = np.zeros(model.config.vocab_size, dtype=np.int64)
        for token, id_ in vocabulary.items():
            self.token_bytes[id_] = len(token)
        self.text_ids = corpus.held_out[corpus.held_out < len(vocabulary)]

    @torch.no_grad()
    def logits(self, ids, sparse: bool):
        """ids [batch, tokens] to fp32 logits, without compiled graphs (shapes vary too much for them)."""
        attend = attend_masked if sparse else None
        autocast = torch.autocast(self.device.type, self.dtype, enabled=self.dtype != torch.float32)
        with torch.compiler.set_stance("force_eager"), autocast:
            return self.model.logits(self.model(ids, sparse_attend=attend, dtype=self.dtype).hidden)

    def bits_per_byte(self, window: int, sparse: bool, max_windows: int | None = None, ids=None) -> float:
        """Over non-overlapping windows: each sees only itself and predicts the token after every input.

        So every token but the text's first is predicted once, and the bytes counted are theirs. A last
        window shorter than the others is left out unless it is the only one.
        """
        ids = self.text_ids if ids is None else ids
        window = min(window, len(ids) - 1)
        count = min((len(ids) - 1) // window, max_windows or len(ids))
        rows = np.stack([ids[i * window : (i + 1) * window + 1] for i in range(count)]).astype(np.int64)
        bits = 0.0
        for part in np.array_split(rows, math.ceil(rows.size / TOKENS_AT_ONCE)):
            if not len(part):
                continue
            part = torch.from_numpy(part).to(self.device)
            logits = self.logits(part[:, :-1], sparse).flatten(0, 1)
            bits += F.cross_entropy(logits, part[:, 1:].flatten(), reduction="sum").item() / math.log(2)
        return bits / int(self.token_bytes[rows[:, 1:]].sum())

    def found(self, length: int, sparse: bool, trials: int, planted: int = 4) -> float:
        """Share of trials in which greedy decoding gives the whole word that was planted.

        A trial is `length` tokens of held-out prose with `planted` sentences at random places and one
        question at the end; names and words never occur in a training question.
        """
        random = np.random.default_rng(length)
        right = 0
        for _ in range(trials):
            start = int(random.integers(len(self.text_ids) - length))
            pairs = self.corpus.planted.pairs(random, planted, evaluation=True)
            prose = self.text_ids[start : start + length]
            ids, marked = self.corpus.planted.plant(prose, length, pairs, 1, random)
            ids = torch.from_numpy(ids.astype(np.int64)).to(self.device)
            answer = torch.from_numpy(np.flatnonzero(marked)).to(self.device)
            logits = self.logits(ids[None, :-1], sparse)[0]
            # Teacher forcing is greedy decoding as long as every token before was right.
            right += bool((logits[answer - 1].argmax(-1) == ids[answer]).all())
        return right / trials


def full_report(evaluator: Evaluator, trials: int) -> dict:
    """The figures of the model card. Long windows use part of the text only."""
    report = {}
    for window, windows in ((2048, None), (4096, None), (8192, None), (16384, 16), (32768, 8)):
        for mode in ("dense", "sparse"):
            name = f"bits_per_byte.{mode}.{window}"
            report[name] = round(evaluator.bits_per_byte(window, mode == "sparse", windows), 4)
            print(name, report[name], flush=True)
    for length in (2048, 4096, 8192, 16384):
        for mode in ("dense", "sparse"):
            name = f"found.{mode}.{length}"
            report[name] = round(evaluator.found(length, mode == "sparse", trials), 4)
            print(name, report[name], flush=True)
    return report
