"""Training units: flat runs of tokens, each a whole number of documents, made by worker processes ahead of training.

    python3 tools/train/units.py --data folder --work folder --worker 0 --seconds 60

A step's tokens are three parts side by side: short conversations of up to 512 tokens (there the four chosen blocks are
all blocks, so dense attention is exact), medium ones of exactly MEDIUM tokens, and long documents of one length. The
first two come from files sm-*.npz, the third from files l<length>-*.npz, UNITS_A_FILE of them in each.
"""

import argparse
import json
import os
import random as random_module
import re
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer

from pack_books import unpack
from skills.conversation import Renderer, draw_conversation
from skills.planted import Books, Planter
from skills.words import use_words

SHORT_LIMIT, MEDIUM = 512, 1024
UNITS_A_FILE = 8
LONG_SHARES = {4096: 0.5, 8192: 0.24, 16384: 0.15, 32768: 0.11}


@dataclass(frozen=True)
class Layout:
    short: int = 49152
    medium_rows: int = 16
    long: int = 32768

    @property
    def total(self) -> int:
        return self.short + self.medium_rows * MEDIUM + self.long

    def segments(self, length: int) -> list[tuple[int, int, int]]:
        """(first token, rows, length) of the parts whose blocks are chosen."""
        rows = [(self.short, self.medium_rows, MEDIUM)] if self.medium_rows else []
        return rows + [(self.short + self.medium_rows * MEDIUM, self.long // length, length)]


TOY = Layout(short=512, medium_rows=1, long=1024)
TOY_SHARES = {512: 0.4, 1024: 0.6}


class Maker:
    def __init__(self, data: Path, layout: Layout, seed):
        self.layout = layout
        self.random = random_module.Random(seed)
        self.tokenizer = Tokenizer.from_file(str(data / "tokenizer.json"))
        self.renderer = Renderer(self.tokenizer, data / "chat_template.jinja")
        ids = np.load(data / "books.npy", mmap_mode="r") if (data / "books.npy").exists() else unpack(data / "books.xz")
        self.books = Books(ids, self.tokenizer)
        words = json.loads((data / "general.json").read_text())
        self.planter = Planter(self.renderer, self.books, words)
        use_words(words)
        self.turn_end = self.renderer.ids("[e~[")[0]
        self.runs = [run for run in (self.sentences() for _ in range(3000)) if len(run) > 4]
        self.filler = [s for run in self.runs for s in run if 20 < len(s) < 100]

    def sentences(self) -> list[str]:
        start = self.random.randrange(len(self.books.ids) - 400)
        text = self.tokenizer.decode(self.books.ids[start : start + 300].tolist())
        text = re.sub(r"[*_#]+", "", text.split("\n\n# ")[0])
        found = re.split(r"(?<=[.!?])\s+", re.sub(r"\s+", " ", text))[1:-1]
        return [s for s in found if len(s) < 250][:8]

    def short_and_medium(self):
        """ids, weights, positions of the first two parts."""
        ids, weights, positions = [], [], []
        room = self.layout.short
        while room:
            if room > 200:
                new, w = draw_conversation(self.random, self.renderer, min(SHORT_LIMIT, room), self.filler, self.runs)
            else:
                new, w = self.planter.prose(self.random, room)
            ids.append(np.asarray(new, np.uint16))
            weights.append(np.asarray(w, np.uint8))
            positions.append(np.arange(len(new), dtype=np.uint16))
            room -= len(new)
        for _ in range(self.layout.medium_rows):
            if self.random.random() < 0.3:
                new, w = (self.planter.chat if self.random.random() < 0.6 else self.planter.raw)(self.random, MEDIUM)
            else:
                new, w = draw_conversation(self.random, self.renderer, MEDIUM, self.filler, self.runs)
            missing = MEDIUM - len(new)
            ids.append(np.append(np.asarray(new, np.uint16), np.full(missing, self.turn_end, np.uint16)))
            weights.append(np.append(np.asarray(w, np.uint8), np.zeros(missing, np.uint8)))
            positions.append(np.arange(MEDIUM, dtype=np.uint16))
        return tuple(np.concatenate(part) for part in (ids, weights, positions))

    def long(self, length: int):
        documents = [self.planter.document(self.random, length) for _ in range(self.layout.long // length)]
        ids, weights = (np.concatenate(part) for part in zip(*documents))
        return ids, weights.astype(np.uint8)


def write(path: Path, **arrays) -> None:
    new = path.with_name("." + path.name)
    with open(new, "wb") as file:
        np.savez(file, **arrays)
    os.replace(new, path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--worker", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--files", type=int, default=10**9)
    parser.add_argument("--toy", action="store_true")
    arguments = parser.parse_args()
    end = time.monotonic() + arguments.seconds
    shares = TOY_SHARES if arguments.toy else LONG_SHARES
    maker = Maker(arguments.data, TOY if arguments.toy else Layout(), f"{arguments.worker}-{arguments.seconds}")
    number = 0
    while time.monotonic() < end and number < arguments.files:
        name = f"{arguments.worker:02d}-{number:04d}.npz"
        units = [maker.short_and_medium() for _ in range(UNITS_A_FILE)]
        ids, weights, positions = (np.stack(part) for part in zip(*units))
        write(arguments.work / f"sm-{name}", ids=ids, weights=weights, positions=positions)
        # The first rounds make one file of every length, so that training finds all soon.
        round_ = number + arguments.worker
        length = list(shares)[round_ % len(shares)] if number == 0 else None
        length = length or maker.random.choices(list(shares), list(shares.values()))[0]
        units = [maker.long(length) for _ in range(UNITS_A_FILE)]
        ids, weights = (np.stack(part) for part in zip(*units))
        write(arguments.work / f"l{length}-{name}", ids=ids, weights=weights)
        number += 1
    print(f"worker {arguments.worker}: {number} files of each kind", flush=True)


if __name__ == "__main__":
    main()
