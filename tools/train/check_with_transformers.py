"""Holds an exported checkpoint in transformers 5.24 against the model it was trained as; runs on a CPU.

    python3 tools/train/check_with_transformers.py models/m3-tiny-prose --text models/m3-tiny-prose/heldout-sample.txt

Fails if a text weight is missing or unexpected, or if the two differ by more than 1 % in bits per byte.
"""

import argparse
import math
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from tokenizers import Tokenizer
from transformers import AutoConfig, MiniMaxM3SparseForConditionalGeneration

from export import load_checkpoint
from model import ModelConfig, TinyM3, attend_masked


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
    parser.add_argument("--windows", type=int, default=4)
    parser.add_argument("--prompt", default="The old man looked at the sea and said,")
    parser.add_argument("--new-tokens", type=int, default=100)
    arguments = parser.parse_args()
    tokenizer = Tokenizer.from_file(str(arguments.checkpoint / "tokenizer.json"))
    reference = load_reference(arguments.checkpoint)
    model = TinyM3(ModelConfig())
    load_checkpoint(model, arguments.checkpoint)

    @torch.no_grad()
    def with_reference(ids):
        return reference(input_ids=ids).logits.float()

    @torch.no_grad()
    def with_training_model(ids):
        return model.logits(model(ids, sparse_attend=attend_masked, dtype=torch.float32).hidden)

    ids = np.array(tokenizer.encode(arguments.text.read_bytes().decode("utf-8")).ids)
    window = arguments.window
    count = min(arguments.windows, (len(ids) - 1) // window)
    bits = {"transformers": 0.0, "training model": 0.0}
    size, differences = 0, []
    for i in range(count):
        row = ids[i * window : (i + 1) * window + 1]
        size += sum(len(tokenizer.id_to_token(int(token))) for token in row[1:])
        row = torch.from_numpy(row)[None]
        logits = with_reference(row[:, :-1])[0], with_training_model(row[:, :-1])[0]
        for name, values in zip(bits, logits):
            bits[name] += F.cross_entropy(values, row[0, 1:], reduction="sum").item() / math.log(2)
        differences.append((logits[0] - logits[1]).norm(dim=-1) / logits[0].norm(dim=-1))
    differences = torch.cat(differences)
    print(f"{count} windows of {window} tokens, logits differ by {differences.median():.1e} (median), "
          f"{differences.max():.1e} (most), relative, per position")  # fmt: skip
    rates = {name: value / size for name, value in bits.items()}
    for name, rate in rates.items():
        print(f"{name}: {rate:.4f} bits per byte")

    prompt = torch.tensor([tokenizer.encode(arguments.prompt).ids])
    for greedy in (True, False):
        torch.manual_seed(0)
        sampling = {"do_sample": False} if greedy else {"do_sample": True, "top_p": 0.95, "top_k": 40}
        output = reference.generate(input_ids=prompt, max_new_tokens=arguments.new_tokens, **sampling)
        print("greedy:" if greedy else "sampled:", tokenizer.decode(output[0].tolist()))
    if abs(rates["transformers"] / rates["training model"] - 1) > 0.01:
        raise SystemExit("transformers and the training model disagree")


if __name__ == "__main__":
    main()
