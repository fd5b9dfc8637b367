"""Decoding and resizing beside Pillow and torchvision, one thread each: compare_speed.py build/bench/bench/vision_bench

Every figure is the least processor time of several runs, in milliseconds.
"""

import io
import json
import os
import subprocess
import sys
import tempfile
import time

import numpy as np
import torch
from PIL import Image
from torchvision.transforms import InterpolationMode
from torchvision.transforms.v2 import functional as tvF

from make_cases import long_side, smart_resize


def photo(width, height):
    """Slopes, edges and a little noise: about what a camera's JPEG costs to decode."""
    rng = np.random.default_rng(5)
    coarse = rng.integers(0, 256, (height // 40 + 2, width // 40 + 2, 3), dtype=np.uint8)
    image = np.array(Image.fromarray(coarse).resize((width, height), Image.BICUBIC)).astype(np.int16)
    image += rng.normal(0, 4, image.shape).astype(np.int16)
    return Image.fromarray(np.clip(image, 0, 255).astype(np.uint8))


def best(work, seconds=1.0):
    times = []
    end = time.perf_counter() + seconds
    while len(times) < 3 or time.perf_counter() < end:
        start = time.process_time()
        work()
        times.append(time.process_time() - start)
    return 1000 * min(times)


def ours(program, path):
    out = subprocess.run([program, "--benchmark_format=json", "--benchmark_repetitions=3", "--benchmark_min_time=0.1"], check=True, text=True,
                         capture_output=True, env={**os.environ, "M3_BENCH_IMAGE": path}).stdout
    times = {}
    for run in json.loads(out)["benchmarks"]:
        if run["run_type"] == "iteration":
            times[run["run_name"]] = min(run["cpu_time"], times.get(run["run_name"], 1e9))
    return times


def main(program):
    torch.set_num_threads(1)
    print(f"{'picture':<22}{'step':<28}{'m3':>9}{'Pillow':>9}{'torchvision':>13}")
    for width, height, kind in [(672, 672, "JPEG"), (1920, 1080, "JPEG"), (1920, 1080, "PNG"), (4032, 3024, "JPEG"),
                                (4032, 3024, "WEBP")]:
        data = io.BytesIO()
        photo(width, height).save(data, kind, quality=90)
        with tempfile.NamedTemporaryFile(suffix="." + kind.lower()) as file:
            file.write(data.getvalue())
            file.flush()
            m3 = ours(program, file.name)
        name = f"{width}x{height} {kind}"
        pillow = best(lambda: np.asarray(Image.open(io.BytesIO(data.getvalue())).convert("RGB")))
        print(f"{name:<22}{'decode':<28}{m3['picture_decode']:>9.2f}{pillow:>9.2f}{'':>13}")
        image = Image.open(io.BytesIO(data.getvalue())).convert("RGB")
        # As decoders and processors hold it: rows of RGB, seen as planes.
        planes = torch.from_numpy(np.array(image)).permute(2, 0, 1)
        for area in (0, 1):
            h, w = smart_resize(height, width, 28, 3136, 451584) if area else long_side(height, width)
            if (w, h) == (width, height):
                continue
            pillow = best(lambda: image.resize((w, h), Image.BICUBIC))
            tv = best(lambda: tvF.resize(planes, [h, w], interpolation=InterpolationMode.BICUBIC, antialias=True))
            print(f"{name:<22}{f'resize to {w}x{h}':<28}{m3[f'picture_resize/area:{area}']:>9.2f}{pillow:>9.2f}{tv:>13.2f}")
        for area in (0, 1):
            print(f"{name:<22}{'file to patches, ' + ('area' if area else 'long-side'):<28}"
                  f"{m3[f'picture_whole/area:{area}']:>9.2f}")


if __name__ == "__main__":
    main(sys.argv[1])
