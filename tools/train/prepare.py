"""Turns the book collection into a tokenizer and token arrays; needs no GPU.

    python3 tools/train/prepare.py --books books.txt.xz --out prose-data

Writes to --out: tokenizer.json, train.npy and heldout.npy (uint16 ids, each book as document-begin,
text, turn-end), words.json (words for the planted sentences), heldout.txt and data.json (counts).
"""

import argparse
import json
import lzma
import re
from collections import Counter
from pathlib import Path

import numpy as np

from tokenizer import DOCUMENT_BEGIN, TURN_END, train_tokenizer, write_json

# Never seen in training, by the tokenizer either. One book each of eight authors, no story of which
# is part of another volume of the collection.
HELD_OUT_TITLES = [
    "Treasure Island",
    "Silver Blaze",
    "The Time Machine",
    "The Wonderful Wizard of Oz",
    "Northanger Abbey",
    "The Secret Garden",
    "The Canterville Ghost",
    "The Call of the Wild",
]
CHUNK = 50_000  # characters encoded at once; cut at a paragraph so that no token is cut


def read_books(path: Path) -> dict[str, str]:
    with lzma.open(path, "rt", encoding="utf-8", newline="") as file:
        books = file.read().split("\f")
    titled = {book.split("\n", 1)[0].removeprefix("# Title:").strip(): book for book in books}
    if len(titled) != len(books):
        raise ValueError("two books have the same title")
    return titled


def paragraphs(book: str):
    """Pieces of about CHUNK characters that end after a blank line."""
    start = 0
    while start < len(book):
        end = book.find("\n\n", start + CHUNK)
        # A run of line breaks is one token piece: the cut must come after all of it.
        end = len(book) if end < 0 else re.compile(r"\s*").match(book, end).end()
        yield book[start:end]
        start = end


def encode_book(tokenizer, book: str) -> np.ndarray:
    pieces = tokenizer.encode_batch(list(paragraphs(book)))
    ids = [tokenizer.token_to_id(DOCUMENT_BEGIN)]
    for piece in pieces:
        ids.extend(piece.ids)
    ids.append(tokenizer.token_to_id(TURN_END))
    return np.array(ids, dtype=np.uint16)


def common_words(books, count: int) -> list[str]:
    """Frequent lower-case words of 4 to 9 letters, shuffled in a fixed order."""
    counter = Counter()
    for book in books:
        counter.update(re.findall(r"(?<=\s)[a-z]{4,9}(?=\s)", book))
    words = [word for word, _ in counter.most_common(count)]
    np.random.default_rng(0).shuffle(words)
    return words


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--books", type=Path, required=True, help="xz file, a form feed between books")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--vocab-size", type=int, default=4096)
    parser.add_argument("--limit-books", type=int, help="use only so many training books (for trials)")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)

    books = read_books(arguments.books)
    held_out = [books.pop(title) for title in HELD_OUT_TITLES]
    training = list(books.values())[: arguments.limit_books]
    tokenizer = train_tokenizer((part for book in training for part in paragraphs(book)), arguments.vocab_size)
    tokenizer.save(str(arguments.out / "tokenizer.json"))

    train_ids = np.concatenate([encode_book(tokenizer, book) for book in training])
    held_ids = np.concatenate([encode_book(tokenizer, book) for book in held_out])
    np.save(arguments.out / "train.npy", train_ids)
    np.save(arguments.out / "heldout.npy", held_ids)
    (arguments.out / "words.json").write_text(json.dumps(common_words(training, 4000)))
    (arguments.out / "heldout.txt").write_text("\f".join(held_out), encoding="utf-8", newline="")
    held_bytes = sum(len(book.encode()) for book in held_out)
    summary = {
        "training_books": len(training),
        "training_bytes": sum(len(book.encode()) for book in training),
        "training_tokens": len(train_ids),
        "held_out_titles": HELD_OUT_TITLES,
        "held_out_bytes": held_bytes,
        "held_out_tokens": len(held_ids),
    }
    write_json(arguments.out / "data.json", summary)
    print(json.dumps(summary, indent=2))


if __name__ == "__main__":
    main()
