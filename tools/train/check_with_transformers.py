"""Holds an exported checkpoint in transformers 5.24 against the model it was trained as; runs on a CPU.

    python3 tools/train/check_with_transformers.py models/m3-tiny-chat --text models/m3-tiny-chat/heldout-sample.txt \\
        --m3 build/release/m3 --image tests/data/vision/seen/shapes.png --video tests/data/vision/seen/moves.webp

Fails if a weight is missing or unexpected, or if the two differ by more than 1 % in bits per byte. With --m3, each picture
and clip (of at most 4 temporal groups) goes through m3 trace in fp32 too: values, features and logits are compared with
transformers'.
"""

import argparse
import math
import subprocess
import tempfile
from pathlib import Path

import torch
import torch.nn.functional as F
from PIL import Image
from safetensors.torch import load_file
from tokenizers import Tokenizer
from transformers import AutoImageProcessor, MiniMaxM3SparseForConditionalGeneration

from export import load_checkpoint
from model import ModelConfig, Plan, TinyM3, attend_masked


def load_reference(folder: Path):
    """The checkpoint in fp32."""
    model, info = MiniMaxM3SparseForConditionalGeneration.from_pretrained(
        folder, dtype=torch.float32, output_loading_info=True
    )
    if info["missing_keys"] or info["unexpected_keys"] or info["mismatched_keys"]:
        raise SystemExit(f"missing {sorted(info['missing_keys'])}, unexpected {info['unexpected_keys']}")
    return model.eval()


@torch.no_grad()
def compare_media(reference, tokenizer, m3: str, checkpoint: Path, file: Path, video: bool) -> float:
    """The largest relative difference of a row of features or logits between transformers and m3 trace."""
    config = reference.config

    def trace(*arguments: str) -> dict:
        with tempfile.TemporaryDirectory() as folder:
            out = f"{folder}/out.safetensors"
            common = ["--backend", "scalar", "--numerics", "fp32", "--out", out]
            subprocess.run([m3, "trace", checkpoint, "--video" if video else "--image", file, *arguments, *common], check=True)
            return load_file(out)

    ours = trace()
    grid = ours["grid"].long()
    if grid[0, 0] > 4:
        raise SystemExit(f"{file}: transformers takes no segments of their own: at most 4 temporal groups")
    if not video:
        image = AutoImageProcessor.from_pretrained(checkpoint)(Image.open(file).convert("RGB"), return_tensors="pt")
        same = torch.equal(image["pixel_values"], ours["pixel_values"]) and torch.equal(image["image_grid_thw"], grid)
        print(f"{file.name}: {'equal' if same else 'DIFFERENT'} values, as transformers' processor makes them")
    features = torch.cat(list(reference.model.get_image_features(ours["pixel_values"], grid).pooler_output)).float()
    groups, cells = int(grid[0, 0]), int(grid[0, 1] * grid[0, 2]) // 4
    token = config.video_token_id if video else config.image_token_id
    start, end = (tokenizer.token_to_id(f"]<]{name} of image[>[") for name in ("start", "end"))
    ids = tokenizer.encode("]~b]user\n").ids
    for _ in range(groups):
        ids += [start] + [token] * cells + [end]
    ids += tokenizer.encode("What do you see?[e~[\n]~b]ai\n</mm:think>").ids
    name = "_videos" if video else ""
    grids = {"video_grid_thw" if video else "image_grid_thw": grid, f"pixel_values{name}": ours["pixel_values"]}
    logits = reference(input_ids=torch.tensor([ids]), use_cache=False, **grids).logits[0].float()
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as list_:
        list_.write(" ".join(map(str, ids)))
        list_.flush()
        theirs = trace("--token-ids", list_.name, "--positions", "all", "--tensors", "logits")["logits"]

    def apart(a, b) -> float:
        return ((a - b).norm(dim=-1) / b.norm(dim=-1)).max().item()

    worst = apart(ours["features"], features), apart(theirs, logits)
    print(f"{file.name}: {len(features)} features {worst[0]:.1e} apart at most, {len(ids)} logits {worst[1]:.1e}")
    return max(worst)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("--text", type=Path, required=True)
    parser.add_argument("--window", type=int, default=2048)
    parser.add_argument("--windows", type=int, default=2)
    parser.add_argument("--m3", help="the program, for --image and --video")
    parser.add_argument("--image", type=Path, action="append", default=[])
    parser.add_argument("--video", type=Path, action="append", default=[])
    arguments = parser.parse_args()
    tokenizer = Tokenizer.from_file(str(arguments.checkpoint / "tokenizer.json"))
    reference = load_reference(arguments.checkpoint)
    media = [(file, False) for file in arguments.image] + [(file, True) for file in arguments.video]
    for file, video in media:
        if compare_media(reference, tokenizer, arguments.m3, arguments.checkpoint, file, video) > 1e-4:
            raise SystemExit("they differ")
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
