"""Batches: prose windows, and windows with planted sentences that are asked for at the end."""

import json
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer

SYLLABLE_STARTS, SYLLABLE_ENDS = "bcdfghklmnprstvz", "aeiou"
ANSWER_WEIGHT = 8.0  # an answer token counts as much as this many tokens of prose
EVALUATION_WORDS = 400  # words and names that no training sequence plants
EVALUATION_NAMES = 1000


def make_names(count: int, seed: int) -> list[str]:
    """Invented names of three syllables, all different."""
    random = np.random.default_rng(seed)
    names = {}
    while len(names) < count:
        syllables = (random.choice(list(SYLLABLE_STARTS)) + random.choice(list(SYLLABLE_ENDS)) for _ in range(3))
        names["".join(syllables).capitalize()] = None
    return list(names)


class PlantedSentences:
    """Token pieces of "The secret word of NAME is WORD." and of the question for it.

    Every piece starts at a pre-token boundary, so concatenating pieces equals encoding the whole text.
    """

    def __init__(self, tokenizer: Tokenizer, words: list[str]):
        def encode(text):
            return np.array(tokenizer.encode(text).ids, dtype=np.uint16)

        names = make_names(20_000, seed=1)
        self.names = [encode(f" {name}") for name in names]
        self.words = [encode(f" {word}") for word in words]
        self.fact = encode(" The secret word of"), encode(" is"), encode(".")
        self.question = encode(" Question: What is the secret word of"), encode("? Answer: The secret word of")

    def pairs(self, random, count: int, evaluation: bool) -> list[tuple[np.ndarray, np.ndarray]]:
        """Names with words, names all different within one call."""
        name_range = (0, EVALUATION_NAMES) if evaluation else (EVALUATION_NAMES, len(self.names))
        word_range = (0, EVALUATION_WORDS) if evaluation else (EVALUATION_WORDS, len(self.words))
        names = random.choice(np.arange(*name_range), count, replace=False)
        return [(self.names[name], self.words[random.integers(*word_range)]) for name in names]

    def sentence(self, name, word) -> np.ndarray:
        return np.concatenate([self.fact[0], name, self.fact[1], word, self.fact[2]])

    def ask(self, name) -> np.ndarray:
        return np.concatenate([self.question[0], name, self.question[1], name, self.fact[1]])

    def answer(self, word) -> np.ndarray:
        return np.concatenate([word, self.fact[2]])

    def plant(self, prose, length: int, pairs, asked: int, random):
        """Sequence of `length` ids: prose with every pair planted, the first `asked` of them asked.

        Returns ids and a bool array that marks the answers' tokens.
        """
        tail, marks = [], []
        for name, word in pairs[:asked]:
            question, answer = self.ask(name), self.answer(word)
            tail += [question, answer]
            marks += [np.zeros(len(question), bool), np.ones(len(answer), bool)]
        sentences = [self.sentence(*pair) for pair in pairs]
        random.shuffle(sentences)
        room = length - sum(map(len, tail)) - sum(map(len, sentences))
        cuts = np.sort(random.integers(0, room + 1, len(sentences)))
        pieces, start = [], 0
        for cut, sentence in zip(cuts, sentences):
            pieces += [prose[start:cut], sentence]
            start = cut
        ids = np.concatenate(pieces + [prose[start:room]] + tail)
        marked = np.concatenate([np.zeros(length - sum(map(len, tail)), bool)] + marks)
        return ids, marked


class Corpus:
    """The folder that prepare.py writes."""

    def __init__(self, folder: Path):
        self.tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self.train = np.load(folder / "train.npy")
        self.held_out = np.load(folder / "heldout.npy")
        self.held_out_text = (folder / "heldout.txt").read_bytes()
        self.summary = json.loads((folder / "data.json").read_text())
        self.planted = PlantedSentences(self.tokenizer, json.loads((folder / "words.json").read_text()))


def make_batch(corpus: Corpus, seed: int, step: int, rows: int, length: int, planted_share: float):
    """Batch number `step`, the same however training reached it: ids [rows, length + 1] and weights."""
    random = np.random.default_rng([seed, step])
    ids = np.empty((rows, length + 1), dtype=np.int64)
    weights = np.ones((rows, length + 1), dtype=np.float32)
    starts = random.integers(0, len(corpus.train) - length - 1, rows)
    for row, start in enumerate(starts):
        prose = corpus.train[start : start + length + 1]
        if random.random() < planted_share:
            count = int(random.integers(1, 7))
            pairs = corpus.planted.pairs(random, count, evaluation=False)
            prose, marked = corpus.planted.plant(prose, length + 1, pairs, min(count, 3), random)
            weights[row, marked] = ANSWER_WEIGHT
        ids[row] = prose
    return ids, weights
