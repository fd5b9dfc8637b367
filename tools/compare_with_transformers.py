"""Holds `m3` against transformers on a whole checkpoint folder: same prompt, same greedy tokens?

    compare_with_transformers.py CHECKPOINT --m3 build/release/m3 [--tokens 64] [--prompt TEXT ...] [--no-tokenizer]

Both run in float32 (`m3 trace --backend scalar --numerics fp32`); `m3 run` with its default backend is shown
beside them and must agree too wherever the reference's margin between the first two logits exceeds bf16 rounding.
Needs the packages of goldens/requirements.txt. Exit code 1 on any difference that a margin does not explain.
"""
import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
from safetensors.numpy import load_file
from tokenizers import Tokenizer

sys.path.insert(0, str(Path(__file__).resolve().parent / "goldens"))
import read_quantised  # noqa: E402
import reference  # noqa: E402
from published import write_checkpoint  # noqa: E402
from seeded_weights import seeded_tokens  # noqa: E402

PROMPTS = [
    "It was a cold morning, and the old man",
    "\"What do you mean?\" she said. \"I have never",
    "Chapter 1.\n\nThe ship left the harbour at dawn. ",
    "12+30=42\n7+8=15\n100+11=",
]
CLOSE_FLOAT32 = 1e-3  # a first-minus-second logit below this may fall either way in float32
CLOSE_BFLOAT16 = 0.3  # the same for a run with bf16 roundings


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("--m3", required=True, help="the program")
    parser.add_argument("--tokens", type=int, default=64, help="greedy tokens a prompt (default 64)")
    parser.add_argument("--prompt", action="append", help="may be repeated; default: a few built in")
    parser.add_argument("--text", type=Path, help="a text file whose start is a long prompt")
    parser.add_argument("--long", type=int, default=1500, help="tokens of the long prompt (default 1500)")
    parser.add_argument("--no-tokenizer", action="store_true", help="random ids instead of text; m3 run is left out")
    return parser.parse_args()


def load(folder):
    """Quantised layouts go through the independent reader, since transformers knows few of them."""
    config = json.loads((folder / "config.json").read_text())
    if "quantization_config" not in config:
        return reference.load(folder, torch.float32)
    values, formats = read_quantised.read(folder)
    print("dequantised for transformers:", formats)
    with tempfile.TemporaryDirectory() as scratch:
        plain = {n: ("F32", tuple(v.shape), v.contiguous().numpy().tobytes()) for n, v in values.items()}
        write_checkpoint(scratch, {k: v for k, v in config.items() if k != "quantization_config"}, plain)
        return reference.load(scratch, torch.float32)


def call(command):
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))}\nexit code {done.returncode}: {done.stderr.strip()}")
    return done.stdout


def trace(options, ids, scratch):
    (scratch / "ids.txt").write_text(" ".join(map(str, ids)) + "\n")
    call([options.m3, "trace", options.checkpoint, "--token-ids", scratch / "ids.txt", "--out",
          scratch / "out.safetensors", "--tensors", "logits,block_ids,expert_ids", "--backend", "scalar",
          "--numerics", "fp32", "--greedy", str(options.tokens)])
    return load_file(scratch / "out.safetensors")


def run_ids(options, prompt):
    """The ids that `m3 run` writes, with its default backend."""
    reply = json.loads(call([options.m3, "run", options.checkpoint, "--raw", "--prompt", prompt, "--temperature", "0",
                             "--max-tokens", str(options.tokens), "--json"]))
    return reply["ids"]


def first_difference(a, b):
    """Index of the first place where the shorter one disagrees, or None."""
    return next((i for i, (x, y) in enumerate(zip(a, b)) if x != y), None)


def verdict(label, ids, expected, margins, close):
    """True when equal, or apart only from a place where the reference itself was close."""
    at = first_difference(ids, expected)
    if at is None:
        print(f"  {label}: {min(len(ids), len(expected))} tokens equal")
        return len(ids) > 0
    excused = margins[at] < close
    print(f"  {label}: token {at} is {ids[at]}, transformers {expected[at]}, its margin {margins[at]:.2g}"
          f"{' (too close to call)' if excused else '  DIFFERENT'}")
    return excused


def main():
    options = arguments()
    model = load(options.checkpoint)
    config = reference.text_model(model).config
    prompts = []
    if options.no_tokenizer:
        prompts = [(f"random ids, seed {s}", None, seeded_tokens(s, n, config.vocab_size).tolist())
                   for s, n in ((1, 20), (2, 300), (3, options.long))]
    else:
        tokenizer = Tokenizer.from_file(str(options.checkpoint / "tokenizer.json"))
        texts = options.prompt or PROMPTS
        prompts = [(repr(t), t, tokenizer.encode(t).ids) for t in texts]
        if options.text:
            ids = tokenizer.encode(options.text.read_text()[:16 * options.long]).ids[:options.long]
            prompts.append((f"{len(ids)} tokens of {options.text.name}", None, ids))
    good = True
    with tempfile.TemporaryDirectory() as folder:
        for label, text, ids in prompts:
            recorder = reference.Recorder(model, [len(ids) - 1])
            cache, logits, last = reference.prefill(model, ids, 1024, recorder)
            recorder.remove()
            expected, margins = reference.greedy(model, cache, last, options.tokens)
            ours = trace(options, ids, Path(folder))
            error = float(reference.relative(ours["logits"], logits)[0])
            print(f"{label} ({len(ids)} tokens): logits differ by {error:.2g}")
            good &= error < 1e-4
            for name, value in recorder.result().items():
                if name.startswith(("block_ids", "expert_ids")) and not np.array_equal(ours[name], value):
                    print(f"  {name}: {ours[name].tolist()}, transformers {value.tolist()}  DIFFERENT")
                    good = False
            good &= verdict("m3 trace, float32", ours["greedy_ids"].tolist(), expected.tolist(), margins, CLOSE_FLOAT32)
            if text is not None:
                good &= verdict("m3 run", run_ids(options, text), expected.tolist(), margins, CLOSE_BFLOAT16)
    print("agrees" if good else "DIFFERS")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
