"""Scenes: what generated pictures and clips show, as numbers that render.py draws and as facts to ask about."""

import math
from dataclasses import dataclass, field

import numpy as np

from sprites import CHARACTERS, SHAPES, Atlas

CELL = 28  # pixels of a token's side; a picture's sides are multiples of it
OBJECTS, FRAMES = 8, 8  # at most in a scene
SCENE_VALUES, OBJECT_VALUES = 16 + FRAMES, 17
COLOURS = {
    "red": [(220, 30, 30), (255, 0, 0), (200, 20, 40), (235, 60, 50)],
    "green": [(0, 150, 60), (0, 128, 0), (0, 255, 0), (50, 205, 50), (30, 180, 90)],
    "blue": [(30, 60, 220), (0, 0, 255), (30, 110, 235), (20, 40, 160), (60, 130, 240)],
    "yellow": [(250, 220, 30), (255, 255, 0), (240, 225, 60)],
    "orange": [(255, 140, 0), (255, 165, 0), (240, 120, 20)],
    "purple": [(128, 0, 128), (150, 50, 200), (110, 30, 150), (160, 32, 240)],
    "black": [(0, 0, 0), (20, 20, 20), (35, 30, 35)],
    "white": [(255, 255, 255), (245, 245, 245), (235, 240, 240)],
}
COLOUR_NAMES = tuple(COLOURS)
MOTIONS = ("left", "right", "up", "down")
STEPS = {"left": (-1, 0), "right": (1, 0), "up": (0, -1), "down": (0, 1)}
# What the tower is taught about a token besides: see tower.py.
CLASSES = len(SHAPES) + len(CHARACTERS) + 1


def plural(shape: str) -> str:
    return shape + ("es" if shape.endswith("s") else "s")


def clamp(value: float) -> float:
    return min(255.0, max(0.0, value))


@dataclass
class Thing:
    """A shape or a character in a scene; x, y in pixels, size half its sprite's side; moves by (dx, dy) in a clip."""

    name: str
    sprite: int
    label: int  # of CLASSES; 0 is nothing
    colour: str
    rgb: tuple
    x: float
    y: float
    size: float
    aspect: float = 1.0
    angle: float = 0.0
    edge: float = 1.0
    dx: float = 0.0
    dy: float = 0.0
    motion: str = ""

    @property
    def phrase(self) -> str:
        return f"{self.colour} {self.name}"

    def values(self) -> list[float]:
        motion = MOTIONS.index(self.motion) + 1 if self.motion else 0
        return [
            self.sprite, self.x, self.y, self.size, self.aspect, math.cos(self.angle), math.sin(self.angle), *self.rgb,
            self.dx, self.dy, self.edge, 1.0, self.label, COLOUR_NAMES.index(self.colour) + 1, motion,
        ]  # fmt: skip


@dataclass
class Scene:
    width: int
    height: int
    things: list[Thing] = field(default_factory=list)
    times: list[float] = field(default_factory=lambda: [0.0])  # seconds of the frames; one for a picture
    base: tuple = (255, 255, 255)
    other: tuple = (255, 255, 255)  # the background runs from base to other along `slope`
    slope: tuple = (0.0, 0.0, 0.0)
    noise: float = 0.0
    stripes: tuple = (0.0, 0.0)  # period in pixels, amplitude
    video: bool = False

    @property
    def cells(self) -> int:
        """Tokens of a frame, or of a pair of frames of a clip."""
        return self.width * self.height // CELL**2

    @property
    def groups(self) -> int:
        return (len(self.times) + 1) // 2

    def values(self) -> tuple[np.ndarray, np.ndarray]:
        """float32 [SCENE_VALUES] and [OBJECTS, OBJECT_VALUES]."""
        end = self.times[-1] or 1.0
        times = [t / end for t in self.times] + [1.0] * (FRAMES - len(self.times))
        scene = [self.height // CELL, self.width // CELL, self.groups, len(self.times), *self.base, *self.other,
                 *self.slope, self.noise, *self.stripes, *times]  # fmt: skip
        things = np.zeros((OBJECTS, OBJECT_VALUES), np.float32)
        things[:, 3:6], things[:, 12] = 1, 1
        for row, thing in zip(things, self.things):
            row[:] = thing.values()
        return np.array(scene, np.float32), things


def draw_colour(random, name: str) -> tuple:
    spread = random.choice((0, 6, 14))
    return tuple(clamp(c + random.uniform(-spread, spread)) for c in random.choice(COLOURS[name]))


def apart(a, b) -> float:
    return math.dist(a, b)


def brightness(rgb: tuple) -> float:
    return 0.3 * rgb[0] + 0.59 * rgb[1] + 0.11 * rgb[2]


def draw_background(random, scene: Scene, colours: list[tuple], least_brightness: float = 0.0) -> None:
    """A ground that every colour stands out from, by so many levels of brightness too."""
    while True:
        what = random.random()
        if what < 0.3:
            base = random.choice([(255, 255, 255), (255, 255, 255), (250, 250, 250), (240, 240, 235)])
        elif what < 0.4:
            base = random.choice([(0, 0, 0), (30, 30, 35), (20, 25, 45)])
        elif what < 0.6:
            base = (random.uniform(60, 230),) * 3
        elif what < 0.8:
            base = tuple(random.uniform(150, 255) for _ in range(3))
        else:
            base = tuple(random.uniform(0, 255) for _ in range(3))
        base = tuple(clamp(c + random.uniform(-8, 8) * (what > 0.4)) for c in base)
        other = tuple(clamp(c + random.uniform(-60, 60)) for c in base) if random.random() < 0.35 else base
        pairs = [(ground, colour) for colour in colours for ground in (base, other)]
        if all(apart(a, b) > 95 and abs(brightness(a) - brightness(b)) > least_brightness for a, b in pairs):
            break
    scene.base, scene.other = base, other
    angle = random.uniform(0, 2 * math.pi)
    reach = max(scene.width, scene.height)
    scene.slope = (math.cos(angle) / reach, math.sin(angle) / reach, random.uniform(0, 0.7))
    if random.random() < 0.4:
        scene.noise = random.uniform(1, 14)
    if random.random() < 0.12:
        scene.stripes = (random.uniform(8, 60), random.uniform(4, 14))


def times_of_clip(random, groups: int) -> list[float]:
    """When the frames are shown that the engine would take: evenly, or at whole steps and at the end."""
    count = 2 * groups - (random.random() < 0.4)
    if random.random() < 0.5:
        step = random.choice((0.2, 0.25, 0.5, 1.0, 1.0, 2.0, random.uniform(0.1, 2.0)))
        return [i * step for i in range(count)]
    step = random.choice((0.5, 1.0, 1.0))
    return [i * step for i in range(count - 1)] + [(count - 2 + random.uniform(0.15, 1.0)) * step]


# Sizes, in cells. A small picture has at most 64 tokens, a large one up to 196; the same for a clip's segment.


def picture_size(random, large: bool) -> tuple[int, int]:
    while True:
        what = random.random()
        if large:
            h, w = random.randint(5, 14), random.randint(5, 14)
            if 64 < h * w <= 196:
                return h, w
        elif what < 0.3:
            return 4, 4
        elif what < 0.9:
            return random.randint(4, 8), random.randint(4, 8)
        else:
            long = random.randint(9, 16)
            return (4, long) if random.random() < 0.7 else (long, 4)


def clip_size(random, large: bool) -> tuple[int, int, int]:
    """groups, h, w."""
    while True:
        groups = random.choice((2, 2, 3, 3, 4))
        h, w = (random.randint(5, 9), random.randint(5, 9)) if large else (random.randint(4, 6), random.randint(4, 6))
        if not large and random.random() < 0.6:
            h, w = 4, 4
        if (64 if large else 0) < groups * h * w <= (196 if large else 64):
            return groups, h, w


def shape_thing(random, atlas: Atlas, name: str, colour: str, size: float) -> Thing:
    turned = random.uniform(-0.26, 0.26) if random.random() < 0.5 else 0.0
    aspect = random.uniform(0.88, 1.14) if random.random() < 0.3 else 1.0
    return Thing(name, atlas.shape(name), 1 + SHAPES.index(name), colour, draw_colour(random, colour), 0, 0, size,
                 aspect, turned, random.choice((0.6, 1.0, 1.0, 1.5, 2.2)))  # fmt: skip


def place(random, scene: Scene, things: list[Thing], margin: float = 0.0) -> bool:
    """Puts things where none touches another (or another's way) and all lie inside."""
    placed = []
    for thing in things:
        reach = thing.size * 0.95
        for _ in range(60):
            low_x, high_x = reach + max(0.0, -thing.dx), scene.width - reach - max(0.0, thing.dx)
            low_y, high_y = reach + max(0.0, -thing.dy), scene.height - reach - max(0.0, thing.dy)
            if low_x > high_x or low_y > high_y:
                return False
            x, y = random.uniform(low_x, high_x), random.uniform(low_y, high_y)
            box = (min(x, x + thing.dx) - reach, min(y, y + thing.dy) - reach,
                   max(x, x + thing.dx) + reach, max(y, y + thing.dy) + reach)  # fmt: skip
            gap = 2.0 + margin
            if all(box[2] + gap < b[0] or b[2] + gap < box[0] or box[3] + gap < b[1] or b[3] + gap < box[1]
                   for b in placed):  # fmt: skip
                thing.x, thing.y = x, y
                placed.append(box)
                break
        else:
            return False
    return True


def thing_size(random, scene: Scene, count: int) -> float:
    room = math.sqrt(scene.width * scene.height / max(1, count))
    top = min(0.40 * room, 0.46 * min(scene.width, scene.height), 95.0)
    return random.uniform(min(10.5, top), top)


def shapes_scene(random, atlas: Atlas, count: int, large: bool = False, distinct: bool = False) -> Scene:
    """Shapes that stand still. distinct: no two of the same shape and colour."""
    while True:
        h, w = picture_size(random, large)
        scene = Scene(w * CELL, h * CELL)
        few = random.random() < 0.4
        shapes = random.sample(SHAPES, random.randint(1, 3)) if few else SHAPES
        colours = random.sample(COLOUR_NAMES, random.randint(2, 4)) if few else COLOUR_NAMES
        if distinct and len(shapes) * len(colours) < count:
            continue
        pairs = set()
        size = thing_size(random, scene, count)
        things = []
        while len(things) < count:
            name, colour = random.choice(shapes), random.choice(colours)
            if distinct and (name, colour) in pairs:
                continue
            pairs.add((name, colour))
            things.append(shape_thing(random, atlas, name, colour, max(10.0, size * random.uniform(0.75, 1.15))))
        if place(random, scene, things):
            scene.things = things
            draw_background(random, scene, [t.rgb for t in things])
            return scene


def text_scene(random, atlas: Atlas, text: str, large: bool = False, held: bool = False) -> Scene:
    """A line of characters of one font and colour."""
    font = random.choice(atlas.fonts(held))
    colour = random.choice(COLOUR_NAMES)
    rgb = draw_colour(random, colour)
    while True:
        h, w = picture_size(random, large)
        if len(text) > 2 and w < h:
            h, w = w, h
        scene = Scene(w * CELL, h * CELL)
        spread = random.uniform(1.0, 1.25) if len(text) > 1 else 1.0
        widths = [atlas.advance(font, c) * spread for c in text]  # in em; an em is 1.6 sizes
        most = min(0.92 * scene.width / (1.6 * sum(widths)), 0.58 * scene.height, 120.0)
        least = 11.0
        if most < least:
            continue
        size = random.uniform(least, most)
        em = 1.6 * size
        total = em * sum(widths)
        x = random.uniform(0, max(0.0, scene.width - total))
        y = random.uniform(0.8 * size, max(0.82 * size, scene.height - 0.85 * size))
        angle, aspect = random.uniform(-0.1, 0.1) if random.random() < 0.25 else 0.0, 1.0
        edge = random.choice((0.7, 1.0, 1.0, 1.6))
        for character, width in zip(text, widths):
            middle = x + em * width / 2
            tilt = (middle - scene.width / 2) * math.tan(angle)
            scene.things.append(
                Thing(character, atlas.glyph(font, character), 1 + len(SHAPES) + CHARACTERS.index(character), colour, rgb,
                      middle, y + tilt, size, aspect, angle, edge)
            )  # fmt: skip
            x += em * width
        draw_background(random, scene, [rgb], 45)
        return scene


def clip_scene(random, atlas: Atlas, count: int, large: bool = False, still: bool = False) -> Scene:
    """Different shapes; the first of them moves unless still."""
    while True:
        groups, h, w = clip_size(random, large)
        scene = Scene(w * CELL, h * CELL, times=times_of_clip(random, groups), video=True)
        pairs = random.sample([(s, c) for s in SHAPES for c in COLOUR_NAMES], count)
        if len({s for s, _ in pairs}) < count or len({c for _, c in pairs}) < count:
            continue
        size = min(thing_size(random, scene, count * 2), 0.24 * min(scene.width, scene.height))
        things = [shape_thing(random, atlas, s, c, max(10.0, size * random.uniform(0.8, 1.1))) for s, c in pairs]
        if not still:
            mover = things[0]
            mover.motion = random.choice(MOTIONS)
            step = STEPS[mover.motion]
            room = (scene.width if step[0] else scene.height) - 2 * mover.size
            way = room * random.uniform(0.35, 0.95)
            mover.dx, mover.dy = step[0] * way, step[1] * way
        if place(random, scene, things):
            scene.things = things
            draw_background(random, scene, [t.rgb for t in things])
            return scene
