"""Holds an exported checkpoint in transformers 5.24 against the model it was trained as; runs on a CPU.

    python3 tools/train/check_with_transformers.py models/m3-tiny-chat --text models/m3-tiny-chat/heldout-sample.txt

Fails if a text weight is missing or unexpected, or if the two differ by more than 1 % in bits per byte.
"""

import argparse
import math
from pathlib import Path

import torch
import torch.nn.functional as F
from tokenizers import Tokenizer
from transformers import AutoConfig, MiniMaxM3SparseForConditionalGeneration

from export import load_checkpoint
from model import ModelConfig, Plan, TinyM3, attend_masked


def load_reference(folder: Path):
    """The checkpoint in fp32. transformers always builds a vision tower: a minimal one, never run."""
    config = AutoConfig.from_pretrained(folder)
    vision = config.vision_config
    vision.num_hidden_layers, vision.hidden_size, vision.intermediate_size = 1, 32, 32
    vision.num_attention_heads, vision.head_dim, config.projector_hidden_size = 2, 16, 32
    model, info = MiniMaxM3SparseForConditionalGeneration.from_pretrained(
        folder, config=config, dtype=torch.float32, output_loading_info=True
    )
    lost = {name for name in info["missing_keys"] if "vision_tower" not in name and "projector" not in name}
    if lost or info["unexpected_keys"] or info["mismatched_keys"]:
        raise SystemExit(f"missing {sorted(lost)}, unexpected {info['unexpected_keys']}")
    return model.eval()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("--text", type=Path, required=True)
    parser.add_argument("--window", type=int, default=2048)
    parser.add_argument("--windows", type=int, default=2)
    arguments = parser.parse_args()
    tokenizer = Tokenizer.from_file(str(arguments.checkpoint / "tokenizer.json"))
    reference = load_reference(arguments.checkpoint)
    model = TinyM3(ModelConfig())
    load_checkpoint(model, arguments.checkpoint)
    window = arguments.window
    ids = torch.tensor(tokenizer.encode(arguments.text.read_bytes().decode("utf-8")).ids)
    sizes = {id_: len(token) for token, id_ in tokenizer.get_vocab().items()}

    @torch.no_grad()
    def with_training_model(part):
        positions = torch.arange(window)
        plan = Plan(positions, [(0, 1, window)], model.config)
        return model.logits(model(part, positions, plan, attend_masked, dtype=torch.float32).hidden)

    bits, size, apart = [0.0, 0.0], 0, []
    for first in range(0, arguments.windows * window, window):
        part, targets = ids[first : first + window], ids[first + 1 : first + window + 1]
        with torch.no_grad():
            both = reference(input_ids=part[None]).logits[0].float(), with_training_model(part)
        for number, logits in enumerate(both):
            bits[number] += F.cross_entropy(logits, targets, reduction="sum").item() / math.log(2)
        apart.append((both[0] - both[1]).abs().amax(-1))
        size += sum(sizes[i] for i in targets.tolist())
    apart = torch.cat(apart)
    theirs, ours = (b / size for b in bits)
    print(f"bits per byte: transformers {theirs:.4f}, training model {ours:.4f}")
    print(f"largest difference of a position's logits: median {apart.median():.1e}, worst {apart.max():.1e}")
    if abs(theirs / ours - 1) > 0.01:
        raise SystemExit("they differ")


if __name__ == "__main__":
    main()
