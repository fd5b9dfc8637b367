"""Draws the small pictures and the clip that the tests ask about: tests/data/vision/seen.

    python3 tools/train/seen_samples.py --sprites data/sprites.npz --out tests/data/vision/seen
"""

import argparse
from pathlib import Path

from PIL import Image

from render import Renderer, draw_scene
from skills.scenes import COLOURS, MOTIONS, STEPS, Scene, Thing
from sprites import Atlas


def thing(atlas: Atlas, name: str, colour: str, x: float, y: float, size: float, motion: str = "", way: float = 0) -> Thing:
    dx, dy = (part * way for part in STEPS.get(motion, (0, 0)))
    return Thing(name, atlas.shape(name), 0, colour, COLOURS[colour][0], x, y, size, dx=dx, dy=dy, motion=motion)


def written(atlas: Atlas, font: int, text: str, colour: str, x: float, y: float, size: float) -> list[Thing]:
    things = []
    for character in text:
        width = 1.6 * size * atlas.advance(font, character)
        things.append(Thing(character, atlas.glyph(font, character), 0, colour, COLOURS[colour][0], x + width / 2, y, size))
        x += width
    return things


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sprites", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    atlas = Atlas(arguments.sprites)
    renderer = Renderer(atlas.sprites, "cpu")

    def shapes(*more: Thing) -> list[Thing]:
        return [thing(atlas, "circle", "red", 34, 42, 22), thing(atlas, "square", "blue", 86, 108, 20),
                thing(atlas, "star", "yellow", 136, 40, 22), *more]  # fmt: skip

    white, grey = (255, 255, 255), (90, 95, 100)
    pictures = {
        "shapes.png": Scene(168, 140, shapes(), base=grey, other=grey),
        "four.png": Scene(168, 140, shapes(thing(atlas, "circle", "green", 30, 108, 18)), base=grey, other=grey),
        "number.png": Scene(140, 112, written(atlas, 0, "472", "black", 24, 58, 34), base=white, other=white),
    }
    for name, scene in pictures.items():
        Image.fromarray(draw_scene(renderer, scene, 0)[0]).save(arguments.out / name, optimize=True)
    for motion in MOTIONS[:1]:
        mover = thing(atlas, "circle", "red", 88, 40, 18, motion, 62)
        scene = Scene(112, 112, [mover, thing(atlas, "square", "blue", 56, 84, 16)], [0.0, 1.0, 2.0, 3.0], white, white)
        first, *rest = (Image.fromarray(frame) for frame in draw_scene(renderer, scene, 0))
        first.save(arguments.out / f"{motion}.webp", save_all=True, append_images=rest, duration=1000, lossless=True)


if __name__ == "__main__":
    main()
