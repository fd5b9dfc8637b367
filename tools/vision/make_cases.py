"""Writes the reference data of tests/vision about sizes and patches: make_cases.py tests/data/vision

What is expected comes from public implementations: sizes of the area rule and patches from the transformers processor
of the model, sizes of the long-side rule from SGLang's, resizing from torchvision. Pictures that are inputs of the
processor are not stored: the tests make the same ones (pattern(), below, has a twin in tests/vision/cases.h).
make_files.py writes the rest.
"""

import ast
import hashlib
import importlib.util
import json
import math
import sys
import typing
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torchvision.transforms import InterpolationMode
from torchvision.transforms.v2 import functional as tvF
from transformers.models.minimax_m3_vl.image_processing_minimax_m3_vl import MiniMaxM3VLImageProcessor, smart_resize
from transformers.models.minimax_m3_vl.video_processing_minimax_m3_vl import MiniMaxM3VLVideoProcessor

def pattern(kind, width, height, seed):
    """A picture that the tests can make again: [height, width, 3] uint8."""
    if kind == "noise":
        i = np.arange(height * width * 3, dtype=np.uint64)
        v = ((i + seed * 40503) * 2654435761) & 0xFFFFFFFF
        v ^= v >> 15
        v = (v * 2246822519) & 0xFFFFFFFF
        return (v >> 24).astype(np.uint8).reshape(height, width, 3)
    y, x = np.mgrid[0:height, 0:width]
    if kind == "edges":
        v = ((x // 3 + y // 5) % 2) * 255
        return np.stack([v, 255 - v, (v + seed) % 256], -1).astype(np.uint8)
    if kind == "slope":
        return np.stack([(x * 7 + seed) % 256, (y * 5) % 256, (x + y) % 256], -1).astype(np.uint8)
    raise ValueError(kind)


def sglang_rule():
    """The function (height, width, factor, cap) -> (height, width) of SGLang's processor of the model.

    It is taken out of its file by name, with the file's constants: what else the file imports needs a GPU's packages.
    """
    package = Path(importlib.util.find_spec("sglang").origin).parent
    text = (package / "srt/multimodal/processors/minimax_m3_vl.py").read_text()
    body = ast.parse(text).body
    constants = [n for n in body if isinstance(n, ast.Assign) and isinstance(n.value, ast.Constant)]
    function = [n for n in body if isinstance(n, ast.FunctionDef) and n.name == "_compute_aligned_size"]
    names = {"math": math, **vars(typing)}
    exec(compile(ast.Module(constants + function, []), "minimax_m3_vl.py", "exec"), names)
    return names["_compute_aligned_size"]


sglang_size = sglang_rule()


def long_side(height, width, cap=2016):
    return sglang_size(height, width, 28, cap)


def size_cases(rng):
    """Lines "area|long MIN MAX|CAP height width -> height width"."""
    sizes = [(1, 1), (1, 200), (200, 1), (14, 14), (28, 28), (42, 42), (70, 98), (20, 30), (100, 1000), (336, 336),
             (672, 672), (720, 1280), (1080, 1920), (2160, 3840), (2016, 2016), (3584, 3584), (2000, 3000), (4000, 500)]
    for _ in range(200):
        short = int(2 ** rng.uniform(0, 12.5))
        ratio = 2 ** rng.uniform(0, 7.6)
        pair = (short, max(short, int(short * ratio)))
        sizes.append(pair if rng.random() < 0.5 else pair[::-1])
    # Halves: where rounding to even shows.
    sizes += [(28 * k + 14, 28 * m + 14) for k in range(4, 12) for m in range(4, 12)]
    lines = []
    for h, w in sizes:
        if max(h, w) / min(h, w) > 200:
            continue
        for low, high in ((3136, 451584), (3136, 602112), (12544, 1003520)):
            got = smart_resize(h, w, 28, low, high)
            # 5.24 takes a side of 14 pixels or less as 0, the servers as 28.
            if min(h, w) > 14 or max(round(h / 28), 1) * max(round(w / 28), 1) * 784 < low:
                lines.append(f"area {low} {high} {h} {w} {got[0]} {got[1]}")
        for cap in (2016, 672, 112, 3584):
            got = long_side(h, w, cap)
            if got[0] * got[1] <= 12845056:
                lines.append(f"long {cap} 0 {h} {w} {got[0]} {got[1]}")
    return lines


def digest(array):
    return hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()


def bicubic(picture, height, width):
    tensor = torch.from_numpy(picture).permute(2, 0, 1).contiguous()
    out = tvF.resize(tensor, [height, width], interpolation=InterpolationMode.BICUBIC, antialias=True)
    return out.permute(1, 2, 0).contiguous().numpy()


def picture_cases():
    processor = MiniMaxM3VLImageProcessor()
    cases = []
    for n, (w, h) in enumerate([(1, 1), (2, 3), (13, 17), (30, 20), (84, 84), (100, 101), (199, 1), (1, 150), (15, 1999),
                                (1500, 20), (336, 336), (337, 335), (641, 479), (333, 777), (1280, 720), (672, 672),
                                (901, 1203), (27, 29), (56, 280), (1920, 1080)]):
        kind = ("noise", "edges", "slope")[n % 3]
        source = pattern(kind, w, h, n)
        area_sizes = smart_resize(h, w, 28, 3136, 451584)
        usable = min(w, h) > 14 or max(round(h / 28), 1) * max(round(w / 28), 1) * 784 < 3136
        for rule in ("area", "long-side"):
            if rule == "area":
                if not usable:
                    continue
                height, width = area_sizes
                out = processor(Image.fromarray(source), return_tensors="pt")
            else:
                height, width = long_side(h, w)
                out = processor(Image.fromarray(bicubic(source, height, width)), do_resize=False, return_tensors="pt")
            values = out["pixel_values"].numpy().astype(np.float32)
            grid = out["image_grid_thw"][0].tolist()
            assert grid == [1, height // 14, width // 14], (grid, height, width)
            places = [int(p) for p in np.linspace(0, values.size - 1, 5)]
            cases.append({"pattern": kind, "seed": n, "width": w, "height": h, "rule": rule, "grid": grid,
                          "resized_sha256": digest(bicubic(source, height, width)), "values_sha256": digest(values),
                          "samples": {str(p): float(values.ravel()[p]) for p in places}})
    return cases


def video_cases():
    processor = MiniMaxM3VLVideoProcessor()
    cases = []
    for n, (frames, w, h) in enumerate([(2, 64, 48), (3, 113, 57), (8, 200, 90), (9, 56, 56), (1, 300, 200), (11, 28, 84),
                                        (4, 1000, 700)]):
        kind = ("noise", "edges", "slope")[n % 3]
        source = np.stack([pattern(kind, w, h, n * 100 + f) for f in range(frames)])
        out = processor(torch.from_numpy(source).permute(0, 3, 1, 2), do_resize=True, return_tensors="pt")
        values = out["pixel_values_videos"].numpy().astype(np.float32)
        cases.append({"pattern": kind, "seed": n * 100, "frames": frames, "width": w, "height": h,
                      "segments": out["video_grid_thw"].tolist(), "values_sha256": digest(values)})
    return cases


def main(out):
    out.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(3)
    with open(out / "sizes.txt", "w") as file:
        file.write("\n".join(size_cases(rng)) + "\n")
    cases = {"pictures": picture_cases(), "videos": video_cases()}
    (out / "processor.json").write_text(json.dumps(cases, indent=1) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
