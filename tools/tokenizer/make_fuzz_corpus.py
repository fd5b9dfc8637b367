"""Writes the seeds of tests/fuzz/tokenizer_fuzz.cpp: `0` + a tokenizer.json, or `1` + a text.

  python make_fuzz_corpus.py ../../tests/fuzz/corpus/tokenizer
"""

import copy
import json
import sys
from pathlib import Path

import sample_texts


def byte_symbols() -> list[str]:
    """GPT-2's spelling of the 256 bytes."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in plain]
    return [chr(byte) if byte in plain else chr(0x100 + others.index(byte)) for byte in range(256)]


def small_file() -> dict:
    vocab = {symbol: byte for byte, symbol in enumerate(byte_symbols())}
    vocab |= {"ab": 256, "abc": 257, "Ġa": 258}
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    return {
        "version": "1.0", "truncation": None, "padding": None, "normalizer": None, "post_processor": None,
        "added_tokens": [{"id": 300, "content": "<s>"} | flags, {"id": 301, "content": "x y"} | flags],
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
        "decoder": {"type": "ByteLevel"},
        "model": {"type": "BPE", "vocab": vocab, "merges": ["a b", "ab c", "Ġ a"]},
    }  # fmt: skip


def files():
    base = small_file()
    yield base
    split = {"type": "Split", "pattern": {"Regex": "a+|\\s+(?!\\S)|."}, "behavior": "Isolated", "invert": False}
    literal = {"type": "Split", "pattern": {"String": "b"}, "behavior": "Removed", "invert": True}
    byte_level = {"type": "ByteLevel", "add_prefix_space": True, "use_regex": False}
    for steps in ([split, byte_level], [literal, byte_level], [split, literal, byte_level]):
        changed = copy.deepcopy(base)
        changed["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": steps}
        changed["model"]["merges"] = [["a", "b"], ["ab", "c"]]
        yield changed
    changed = copy.deepcopy(base)
    for token, flag in zip(changed["added_tokens"], ("lstrip", "rstrip")):
        token |= {flag: True, "single_word": True, "normalized": True}
    changed["model"]["ignore_merges"] = True
    yield changed
    for part, value in (("normalizer", {"type": "NFC"}), ("decoder", None), ("model", {"type": "Unigram", "vocab": []})):
        yield base | {part: value}
    changed = copy.deepcopy(base)
    changed["model"]["merges"].append("q q")
    yield changed


def main() -> None:
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    for number, file in enumerate(files()):
        text = json.dumps(file, ensure_ascii=False, separators=(",", ":"))
        (folder / f"file-{number}").write_bytes(b"0" + text.encode())
    (folder / "file-cut").write_bytes(b"0" + text.encode()[: len(text) // 2])
    (folder / "file-deep").write_bytes(b"0" + b"[" * 100)
    texts = [*sample_texts.SENTENCES.values(), *sample_texts.EMOJI, *sample_texts.CODE, sample_texts.SPACES]
    for number, text in enumerate(texts[::3]):
        (folder / f"text-{number}").write_bytes(b"1" + text.encode())
    broken = b"a\xff\xc3b\xe2\x82 \xed\xa0\x80's\xf0\x9f\x98<s><t>\xc0\xaf thethe\x80thethe <s"
    (folder / "text-broken").write_bytes(b"1" + broken)
    (folder / "text-long").write_bytes(b"1" + b"a" * 3000)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main()
