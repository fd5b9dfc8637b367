"""Writes the mean of two checkpoints: A's weights, and for all that B has too a share of the way to B's.

    python3 tools/train/mix.py models/m3-tiny-chat text-checkpoint 0.3 out
"""

import argparse
import shutil
from pathlib import Path

from safetensors.torch import load_file, save_file


def mix(first: Path, second: Path, share: float, out: Path) -> None:
    out.mkdir(parents=True, exist_ok=True)
    other = {}
    for file in sorted(second.glob("model-*.safetensors")):
        other |= load_file(file)
    for file in first.iterdir():
        if file.suffix != ".safetensors":
            shutil.copy(file, out / file.name)
            continue
        tensors = load_file(file)
        for name, tensor in tensors.items():
            if name in other:
                tensors[name] = tensor.float().lerp(other[name].float(), share).to(tensor.dtype)
        save_file(tensors, out / file.name, metadata={"format": "pt"})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("first", type=Path)
    parser.add_argument("second", type=Path)
    parser.add_argument("share", type=float, help="0: the first, 1: the second")
    parser.add_argument("out", type=Path)
    arguments = parser.parse_args()
    mix(arguments.first, arguments.second, arguments.share, arguments.out)


if __name__ == "__main__":
    main()
