"""Gives a trained tokenizer merges for tool schemas and the chat template, in exchange for its rarest ones.

    python3 tools/train/extend_tokenizer.py --from models/OLD --out folder --count 100

The books that the merges were learnt from hold no JSON: `"type": "string"` takes nine tokens. The last merges are the
rarest, so those go, and with them every merge of digits ("18", "00"): each digit is then a token of its own. The ids
of the added (special) tokens stay; ids.json lists those that changed their meaning, whose embeddings start anew.
"""

import argparse
import json
from collections import Counter
from pathlib import Path
from random import Random

from tokenizers import Tokenizer

from skills.conversation import MODES, calls_text, rendered
from skills.tools import Tool, known_tool
from tokenizer import ADDED_TOKENS, write_json


def skeleton(template: Path) -> list[str]:
    """What every tool prompt holds, with the names taken out: they shall stay as hard in training as in use."""
    random, texts = Random(0), []
    for number in range(3000):
        spec = known_tool(random, False)[0] if number % 3 == 0 else Tool(random, False).spec
        function = spec["function"]
        parameters = list(function["parameters"]["properties"].values())
        function["name"] = function["description"] = "Q"
        function["parameters"]["properties"] = {"Q" + "R" * i: p for i, p in enumerate(parameters)}
        function["parameters"]["required"] = ["Q" + "R" * i for i in range(len(function["parameters"]["required"]))]
        for schema in parameters:
            if "enum" in schema:
                schema["enum"] = ["Q"] * len(schema["enum"])
        texts.append(f"<tool>{json.dumps(function)}</tool>\n")
        arguments = {"Q" + "R" * i: "Q" for i in range(len(parameters))}
        texts.append(calls_text([{"function": {"name": "Q", "arguments": arguments}}]))
        body = {"messages": [{"role": "user", "content": "Q"}], "tools": [spec] if number % 3 == 0 else []}
        body["chat_template_kwargs"] = {"thinking_mode": MODES[number % 3]}
        texts.append(rendered(template, body, True))
        texts.append("\n<response>Q</response>")
    return texts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--from", dest="source", type=Path, required=True)
    parser.add_argument("--template", type=Path, help="default: the source's chat_template.jinja")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--count", type=int, default=100)
    arguments = parser.parse_args()
    data = json.loads((arguments.source / "tokenizer.json").read_text())
    model = data["model"]
    by_id = {id_: token for token, id_ in model["vocab"].items()}
    merges = [tuple(merge) for merge in model["merges"]]

    digits = {a + b for a, b in merges if any(c.isdigit() for c in a + b)}
    kept = [merge for merge in merges if merge[0] + merge[1] not in digits]
    dropped = [a + b for a, b in kept[len(kept) - (arguments.count - len(digits)) :]] + sorted(digits)
    kept = kept[: len(kept) - (arguments.count - len(digits))]
    free_ids = sorted(model["vocab"][token] for token in dropped)

    def rebuilt(added: list[tuple[str, str]]) -> Tokenizer:
        vocab = {token: id_ for token, id_ in model["vocab"].items() if token not in dropped}
        for id_, (a, b) in zip(free_ids, added):
            vocab[a + b] = id_
        for id_ in free_ids[len(added) :]:
            vocab[f"\x00{id_}"] = id_  # only while counting
        changed = dict(data, model=dict(model, vocab=vocab, merges=[list(m) for m in kept + added]))
        return Tokenizer.from_str(json.dumps(changed))

    tokenizer, special, words = rebuilt([]), set(ADDED_TOKENS), Counter()
    for text in skeleton(arguments.template or arguments.source / "chat_template.jinja"):
        for token in ADDED_TOKENS:
            text = text.replace(token, "\x00")
        for part in text.split("\x00"):
            for word, _ in tokenizer.pre_tokenizer.pre_tokenize_str(part):
                words[word] += "Q" not in word  # the placeholder of names
    pieces = {word: tokenizer.encode(tokenizer.decoder.decode([word])).tokens for word in words}
    added: list[tuple[str, str]] = []
    for _ in range(arguments.count):
        pairs = Counter()
        for word, tokens in pieces.items():
            for pair in zip(tokens, tokens[1:]):
                pairs[pair] += words[word]
        if not pairs or max(pairs.values()) == 0:
            break
        best = max(pairs, key=lambda pair: (pairs[pair], pair))
        if best[0] + best[1] in special or best[0] + best[1] in model["vocab"]:
            if best[0] + best[1] not in dropped:
                raise ValueError(f"{best} makes a token that exists")
        added.append(best)
        for word, tokens in pieces.items():
            joined, i = [], 0
            while i < len(tokens):
                if tuple(tokens[i : i + 2]) == best:
                    joined.append(tokens[i] + tokens[i + 1])
                    i += 2
                else:
                    joined.append(tokens[i])
                    i += 1
            pieces[word] = joined
    # Fewer merges than asked for: the most frequent of those dropped come back.
    back = [merge for merge in merges if merge[0] + merge[1] in dropped and merge[0] + merge[1] not in digits]
    added += back[: len(free_ids) - len(added)]
    result = rebuilt(added)
    arguments.out.mkdir(parents=True, exist_ok=True)
    result.save(str(arguments.out / "tokenizer.json"))
    changed = [id_ for token, id_ in result.get_vocab(with_added_tokens=False).items() if by_id[id_] != token]
    write_json(arguments.out / "ids.json", sorted(changed))
    print(f"{len(changed)} ids changed; new tokens:", [a + b for a, b in added])


if __name__ == "__main__":
    main()
