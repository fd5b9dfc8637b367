"""Writes the files of tests/vision and what they show: make_files.py tests/data/vision

Pictures are decoded by Pillow, videos by PyAV. Files and results that are there already stay; to make one again, delete
the file, and to make all again, the two *.safetensors.xz too. ffmpeg must be installed, for one encoder.
"""

import lzma
import sys
from pathlib import Path

import numpy as np
from PIL import Image, ImageOps
from safetensors.numpy import load, save

import sample_files


def decoded(path):
    """What the processor would see of a file: [height, width, 3] uint8."""
    image = Image.open(path)
    image.seek(0)
    if image.mode.startswith("I"):  # Pillow clips 16-bit grey; keep the upper 8 bits instead
        levels = (np.array(image).astype(np.uint32) >> 8).astype(np.uint8)
        return np.repeat(levels[..., None], 3, -1)
    image = ImageOps.exif_transpose(image)
    if image.mode == "RGB" and "transparency" not in image.info:
        return np.array(image)
    rgba = image.convert("RGBA")
    return np.array(Image.alpha_composite(Image.new("RGBA", rgba.size, "white"), rgba).convert("RGB"))


def update(path, folder, write, tensors_of):
    """Adds the tensors of files that `write` made and that were not there."""
    folder.mkdir(parents=True, exist_ok=True)
    before = {file.name for file in folder.iterdir()}
    tensors = load(lzma.decompress(path.read_bytes())) if path.exists() else {}
    stored = {name.split("/")[0] for name in tensors}
    made = write(folder)
    new = [name for name in made if name not in before or name not in stored]
    for name in new:
        tensors.update(tensors_of(name, made))
    if new:
        path.write_bytes(lzma.compress(save(dict(sorted(tensors.items()))), preset=9))


def main(out):
    pictures, videos = out / "pictures", out / "videos"

    def picture(name, _):
        return {name: np.ascontiguousarray(decoded(pictures / name))}

    def video(name, made):
        times, frames = made[name]
        kept = sorted({0, len(times) // 2, len(times) - 1})
        return {name + "/times": np.array(times, dtype=np.float64), name + "/kept": np.array(kept, dtype=np.int32),
                name + "/frames": np.ascontiguousarray(frames[kept])}

    update(out / "pictures.safetensors.xz", pictures, sample_files.write_pictures, picture)
    update(out / "videos.safetensors.xz", videos, sample_files.write_videos, video)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
