"""Makes the atlas that pictures are drawn from: signed distances of shapes, and of letters and digits of real fonts.

    python3 tools/train/sprites.py --fonts /usr/share/fonts/truetype --out data/sprites.npz

Needs Pillow and scipy. The fonts used were Debian's fonts-dejavu, fonts-liberation, fonts-freefont-ttf,
fonts-roboto-unhinted, fonts-lato and fonts-inconsolata; those of HELD_FONTS are drawn in no training picture.
"""

import argparse
from pathlib import Path

import numpy as np

SHAPES = ("circle", "square", "triangle", "star", "cross", "ring", "heart")
CHARACTERS = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
SIDE = 48  # texels of a sprite's side; it spans -1 ... 1
REACH = 8.0  # texels at which distances are cut off
FINE = 8  # what is measured on a grid so many times finer
FONTS = (
    "DejaVuSans", "DejaVuSans-Bold", "DejaVuSerif", "DejaVuSerif-Bold", "DejaVuSansMono", "DejaVuSansMono-Bold",
    "DejaVuSansCondensed", "DejaVuSans-Oblique", "LiberationSans-Regular", "LiberationSans-Bold",
    "LiberationSerif-Regular", "LiberationSerif-Bold", "LiberationMono-Regular", "LiberationMono-Bold",
    "LiberationSansNarrow-Bold", "FreeSans", "FreeSansBold", "FreeSerif", "FreeSerifBold", "FreeMono", "FreeMonoBold",
    "Lato-Regular", "Lato-Black", "Roboto-Regular", "Roboto-Bold", "Inconsolata",
)  # fmt: skip
HELD_FONTS = ("Lato-Bold", "Roboto-Medium", "DejaVuSerifCondensed-Bold", "LiberationSansNarrow-Regular")


def regular_polygon(points: int, radius: float, inner: float, turn: float) -> np.ndarray:
    """Corners [n, 2]; with inner < radius a star."""
    angles = np.arange(2 * points) * np.pi / points + turn
    radii = np.where(np.arange(2 * points) % 2 == 0, radius, inner)
    return np.stack([np.sin(angles) * radii, -np.cos(angles) * radii], 1)


def inside_polygon(x, y, corners) -> np.ndarray:
    inside = np.zeros(x.shape, bool)
    for (ax, ay), (bx, by) in zip(corners, np.roll(corners, -1, 0)):
        crosses = (ay > y) != (by > y)
        inside ^= crosses & (x < (bx - ax) * (y - ay) / (by - ay + 1e-12) + ax)
    return inside


def shape_mask(name: str, x, y) -> np.ndarray:
    """Which points of -1 ... 1 (y down) belong to a shape; all have about the same area but for the ring."""
    r = np.hypot(x, y)
    if name == "circle":
        return r < 0.8
    if name == "ring":
        return (r < 0.85) & (r > 0.5)
    if name == "square":
        return np.maximum(abs(x), abs(y)) < 0.72
    if name == "cross":
        return ((abs(x) < 0.27) & (abs(y) < 0.88)) | ((abs(y) < 0.27) & (abs(x) < 0.88))
    if name == "triangle":
        return inside_polygon(x, y, np.array([(0, -0.85), (0.88, 0.7), (-0.88, 0.7)]))
    if name == "star":
        return inside_polygon(x, y + 0.0, regular_polygon(5, 0.95, 0.39, 0.0))
    u, v = x * 1.25, -(y - 0.1) * 1.25
    return (u * u + v * v - 0.7) ** 3 - u * u * v**3 * 1.3 < 0


def distances(mask: np.ndarray) -> np.ndarray:
    """int8 [SIDE, SIDE]: texels to the edge, negative inside, times 127 / REACH."""
    from scipy.ndimage import distance_transform_edt

    fine = distance_transform_edt(~mask) - distance_transform_edt(mask)
    texels = fine.reshape(SIDE, FINE, SIDE, FINE)[:, FINE // 2 - 1 : FINE // 2 + 1, :, FINE // 2 - 1 : FINE // 2 + 1]
    texels = texels.mean((1, 3)) / FINE
    return np.round(np.clip(texels / REACH, -1, 1) * 127).astype(np.int8)


def glyph_mask(font, character: str) -> np.ndarray:
    """The character's middle of the line on the sprite's middle; an em is 0.8 of the sprite's height."""
    from PIL import Image, ImageDraw

    size = SIDE * FINE
    image = Image.new("L", (size, size))
    ImageDraw.Draw(image).text((size / 2, size * 0.72), character, 255, font=font, anchor="ms")
    return np.asarray(image) > 127


class Atlas:
    """sprites int8 [n, SIDE, SIDE]: the shapes, then CHARACTERS of each font. advances [fonts, characters] in em."""

    def __init__(self, path: Path):
        with np.load(path) as file:
            self.sprites, self.advances, self.held = file["sprites"], file["advances"], int(file["held"])

    def shape(self, name: str) -> int:
        return SHAPES.index(name)

    def glyph(self, font: int, character: str) -> int:
        return len(SHAPES) + font * len(CHARACTERS) + CHARACTERS.index(character)

    def fonts(self, held: bool) -> range:
        """The last `held` fonts are those of the held-out sets."""
        cut = len(self.advances) - self.held
        return range(cut, len(self.advances)) if held else range(cut)

    def advance(self, font: int, character: str) -> float:
        return float(self.advances[font, CHARACTERS.index(character)])


EM = 0.8 * SIDE * FINE  # pixels of an em on the fine grid


def main() -> None:
    from PIL import ImageFont

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fonts", type=Path, default=Path("/usr/share/fonts"))
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    at = (np.arange(SIDE * FINE) + 0.5) / (SIDE * FINE) * 2 - 1
    y, x = np.meshgrid(at, at, indexing="ij")
    sprites = [distances(shape_mask(name, x, y)) for name in SHAPES]
    files = {path.stem: path for path in arguments.fonts.rglob("*.[to]tf")}
    advances = []
    for name in FONTS + HELD_FONTS:
        font = ImageFont.truetype(str(files[name]), round(EM))
        sprites += [distances(glyph_mask(font, c)) for c in CHARACTERS]
        advances.append([font.getlength(c) / EM for c in CHARACTERS])
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(
        arguments.out, sprites=np.stack(sprites), advances=np.array(advances, np.float32), held=len(HELD_FONTS)
    )
    print(f"{len(sprites)} sprites, {len(advances)} fonts, {arguments.out.stat().st_size} bytes")


if __name__ == "__main__":
    main()
