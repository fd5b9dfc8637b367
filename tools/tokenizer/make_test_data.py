"""Writes tests/data/tokenizer: what the `tokenizers` package makes of many texts, for the tests to compare with.

  o200k-tokenizer.json.xz  the public o200k tokenizer (MIT), unchanged but for its compression
  o200k-cases.jsonl.xz     texts with its ids, ids with the text they decode to, broken UTF-8 included
  splits.jsonl.xz          random texts and where each pattern cuts them
  code-points.jsonl.xz     where each pattern cuts around every Unicode code point, run-length coded
  variants.jsonl.xz        small tokenizers with every accepted component and flag, with texts and ids

  python make_test_data.py --o200k tokenizer.json[.xz] ../../tests/data/tokenizer
"""

import argparse
import itertools
import json
import lzma
import random
from pathlib import Path

import sample_texts
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

WORDS = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
    r"\p{N}{1,3}|"
)
O200K = WORDS + r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
O200K_SLASH = WORDS + r" ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
# "@" stands for the code point.
CONTEXTS = {
    O200K_SLASH: ["@", "a@b", "A@B", " @", "@@", "1@", "x'@", "!@\n/", "\n@ x", "@A", "@a"],
    O200K: ["@", "a@b", "!@\n/", "@@"],
    GPT2: ["@", "a@b", " @", "@@1"],
}
M3_ADDED = "]!p~[ ]~b] [e~[ ]!d~[ ]<]image[>[ ]~!b[ <repo_struct> <think> </think> <tool_call> ]<]minimax[>[ <mm:think> </mm:think>"


def write_lines(path: Path, lines) -> None:
    text = "".join(json.dumps(line, ensure_ascii=True, separators=(",", ":")) + "\n" for line in lines)
    path.write_bytes(compress(text.encode()))


def compress(data: bytes) -> bytes:
    filters = [{"id": lzma.FILTER_LZMA2, "preset": 9 | lzma.PRESET_EXTREME, "lc": 4, "pb": 0}]
    return lzma.compress(data, filters=filters)


def o200k_cases(tokenizer: Tokenizer):
    texts = sample_texts.fixed_texts() + sample_texts.random_texts(2500, seed=1)
    texts += ["<|endoftext|>", "a <|endoftext|>\n<|endofprompt|> b<|endoftext|", "x<|endoftext|><|endoftext|>'s"]
    for text in texts:
        yield {"text": text, "ids": tokenizer.encode(text, add_special_tokens=False).ids}
    source = random.Random(2)
    short = [tokenizer.token_to_id(symbol) for symbol in pre_tokenizers.ByteLevel.alphabet()]
    for number in range(400):
        pool = short if number % 2 == 0 else range(199_998)
        ids = [source.choice(pool) for _ in range(source.randint(1, 12))]
        if number % 5 == 0:
            ids.insert(source.randint(0, len(ids)), source.choice([199_999, 200_018]))
        for skip in (False, True):
            yield {"decode": ids, "skip": skip, "text": tokenizer.decode(ids, skip_special_tokens=skip)}


def pieces(pattern: str, text: str) -> list[str]:
    splitter = pre_tokenizers.Split(Regex(pattern), behavior="isolated")
    return [piece for piece, _ in splitter.pre_tokenize_str(text)]


def split_cases():
    for pattern in CONTEXTS:
        for text in sample_texts.fixed_texts()[1:] + sample_texts.random_texts(4000, seed=3):
            yield {"pattern": pattern, "text": text, "lengths": [len(piece.encode()) for piece in pieces(pattern, text)]}


def code_point_cases():
    """One signature for each code point: bit i set where a piece begins at the i-th character."""
    codes = [code for code in range(0x110000) if not 0xD800 <= code < 0xE000]
    for pattern, contexts in CONTEXTS.items():
        splitter = pre_tokenizers.Split(Regex(pattern), behavior="isolated")
        for context in contexts:
            signatures = []
            for code in codes:
                found = splitter.pre_tokenize_str(context.replace("@", chr(code)))
                signatures.append(sum(1 << begin for _, (begin, _) in found))
            runs = [[value, len(list(group))] for value, group in itertools.groupby(signatures)]
            yield {"pattern": pattern, "context": context, "runs": runs}


def train(pre_tokenizer, texts, size: int) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizer
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer.train_from_iterator(
        texts, trainers.BpeTrainer(vocab_size=size, initial_alphabet=alphabet, show_progress=False)
    )
    return tokenizer


def split_then_bytes(*splits):
    return pre_tokenizers.Sequence([*splits, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


def variants():
    """(name, tokenizer file, pieces of text that its cases are mixed from)"""
    texts = list(sample_texts.SENTENCES.values()) + sample_texts.CODE + sample_texts.EMOJI
    plain = split_then_bytes(pre_tokenizers.Split(Regex(O200K), behavior="isolated"))
    added = M3_ADDED.split(" ")
    tokenizer = train(plain, texts, 1200)
    quiet = {"<think>", "</think>", "<tool_call>", "]<]minimax[>[", "<mm:think>", "</mm:think>"}
    tokenizer.add_tokens([AddedToken(token, special=token not in quiet, normalized=False) for token in added])
    yield "m3", tokenizer, added

    tokenizer = train(plain, texts, 600)
    flagged = [
        AddedToken("<l>", lstrip=True, normalized=False), AddedToken("<r>", rstrip=True, normalized=False, special=True),
        AddedToken("<lr>", lstrip=True, rstrip=True, normalized=False), AddedToken("word", single_word=True),
        AddedToken("<n>", normalized=True), AddedToken("<n><r>", normalized=True), AddedToken("aaa", normalized=False),
        AddedToken("aaaab", normalized=False), AddedToken("<lw>", lstrip=True, single_word=True, normalized=True),
        AddedToken("中文", normalized=False), AddedToken(" x ", normalized=False), AddedToken("\n", normalized=True),
    ]  # fmt: skip
    tokenizer.add_tokens(flagged)
    yield "flags", tokenizer, [token.content for token in flagged] + ["a", "aa", " ", "  ", "\u3000", "é", "_", "Ⓐ", "1"]

    for name, prefix, regex in (("gpt2", False, True), ("gpt2-prefix", True, True), ("prefix-only", True, False)):
        tokenizer = train(pre_tokenizers.ByteLevel(add_prefix_space=prefix, use_regex=regex), texts, 500)
        tokenizer.add_tokens([AddedToken("<s>", special=True, normalized=False)])
        yield name, tokenizer, ["<s>", " ", "'s", "don't "]

    splits = [
        pre_tokenizers.Split(Regex(r"\p{N}{1,3}"), behavior="isolated"),
        pre_tokenizers.Split("the", behavior="isolated"),
        pre_tokenizers.Split("q", behavior="removed"),
        pre_tokenizers.Split(Regex(r"[a-zA-Z]+|\s+|[^\sa-zA-Z]+"), behavior="removed", invert=True),
        pre_tokenizers.Split(Regex(r"(?<=[a-z])(?=[A-Z])"), behavior="isolated"),
    ]
    yield "splits", train(split_then_bytes(*splits), texts, 500), ["the", "q", "qq", "aB", "12345"]

    letters = split_then_bytes(pre_tokenizers.Split(Regex(O200K_SLASH), behavior="removed", invert=True))
    tokenizer = train(letters, texts, 500)
    file = json.loads(tokenizer.to_str())
    for token in ("hello", "Ġhello", "zzzz", "zz", "Ċ/"):  # in the vocabulary, out of reach of its merges
        file["model"]["vocab"][token] = len(file["model"]["vocab"])
    unreachable = ["hello", " hello", "zzzz", "zz", "zzz", "\n/", "!\n/"]
    yield "unreachable", Tokenizer.from_str(json.dumps(file)), unreachable
    file["model"]["ignore_merges"] = True
    yield "ignore-merges", Tokenizer.from_str(json.dumps(file)), unreachable


def variant_cases():
    source = random.Random(4)
    for number, (name, tokenizer, parts) in enumerate(variants()):
        file = json.loads(tokenizer.to_str())
        if number % 2 == 0:  # both spellings of merges
            file["model"]["merges"] = [" ".join(pair) for pair in file["model"]["merges"]]
        tokenizer = Tokenizer.from_str(json.dumps(file))
        words = parts * 3 + [" ", "a", "B", "\n", "é", "word", "'s", "the "]
        texts = ["".join(source.choice(words) for _ in range(source.randint(1, 8))) for _ in range(400)]
        texts += sample_texts.random_texts(200, seed=5) + list(sample_texts.SENTENCES.values()) + sample_texts.CODE
        cases = [[text, tokenizer.encode(text, add_special_tokens=False).ids] for text in texts]
        yield {"name": name, "tokenizer": file, "cases": cases}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--o200k", type=Path, required=True, help="the o200k tokenizer.json, plain or .xz")
    parser.add_argument("out", type=Path)
    arguments = parser.parse_args()
    data = arguments.o200k.read_bytes()
    if arguments.o200k.suffix == ".xz":
        data = lzma.decompress(data)
    arguments.out.mkdir(parents=True, exist_ok=True)
    (arguments.out / "o200k-tokenizer.json.xz").write_bytes(compress(data))
    write_lines(arguments.out / "o200k-cases.jsonl.xz", o200k_cases(Tokenizer.from_str(data.decode())))
    write_lines(arguments.out / "splits.jsonl.xz", split_cases())
    write_lines(arguments.out / "variants.jsonl.xz", variant_cases())
    write_lines(arguments.out / "code-points.jsonl.xz", code_point_cases())
    for path in sorted(arguments.out.iterdir()):
        print(path.stat().st_size, path.name)


if __name__ == "__main__":
    main()
