"""Packs book tokens for a machine that can fetch nothing: xz of uint16, as many books as fit.

    python3 tools/train/pack_books.py --books books.txt.xz --tokenizer folder --out folder --megabytes 8.3

Writes books.xz (training books in random order until the size is reached), heldout.xz (the held-out books) and
words.json and general.json (words for planted sentences; words that training draws for anything).
"""

import argparse
import json
import lzma
from pathlib import Path
from random import Random

import numpy as np
from tokenizers import Tokenizer

from prepare import HELD_OUT_TITLES, common_words, encode_book, read_books

FILTERS = [{"id": lzma.FILTER_LZMA2, "preset": 9, "lc": 0, "lp": 1, "pb": 1, "dict_size": 1 << 26, "nice_len": 273}]


GENERAL_WORDS = 16000


def unpack(path: Path) -> np.ndarray:
    return np.frombuffer(lzma.decompress(path.read_bytes()), np.uint16)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--books", type=Path, required=True)
    parser.add_argument("--tokenizer", type=Path, required=True, help="folder with tokenizer.json")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--megabytes", type=float, default=1e9)
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    tokenizer = Tokenizer.from_file(str(arguments.tokenizer / "tokenizer.json"))
    books = read_books(arguments.books)
    held_out = np.concatenate([encode_book(tokenizer, books.pop(title)) for title in HELD_OUT_TITLES])
    (arguments.out / "heldout.xz").write_bytes(lzma.compress(held_out.tobytes(), filters=FILTERS))
    for name, count in (("words", 4000), ("general", GENERAL_WORDS)):
        (arguments.out / f"{name}.json").write_text(json.dumps(common_words(books.values(), count)))
    titles = sorted(books)
    Random(0).shuffle(titles)
    packer, packed, tokens = lzma.LZMACompressor(filters=FILTERS), b"", 0
    for title in titles:
        # What the packer still holds back is at most its dictionary's input, here estimated at half a byte a token.
        book = encode_book(tokenizer, books[title])
        packed += packer.compress(book.tobytes())
        tokens += len(book)
        if tokens * 0.92 > arguments.megabytes * 1e6:
            break
    packed += packer.flush()
    (arguments.out / "books.xz").write_bytes(packed)
    print(f"{tokens} tokens in {len(packed)} bytes, held out {len(held_out)}")


if __name__ == "__main__":
    main()
