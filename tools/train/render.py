"""Draws scenes (skills/scenes.py) with torch, token cell by token cell, into the rows that the tower reads.

The same code draws training pictures on the GPU and the PNG files and clips of the held-out set on a CPU. Values are
whole levels 0 ... 255 before they are normalised, as in a file.
"""

import numpy as np
import torch

from sprites import REACH, SIDE

CELL, PATCH = 28, 14
MEAN, DEVIATION = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)
SEEN = 0.04  # share of a cell that a thing must cover to be taught there


def atlas_table(sprites: np.ndarray, device) -> torch.Tensor:
    """Signed distances in texels, [n * SIDE * SIDE]."""
    return torch.from_numpy(sprites.astype(np.float32) * (REACH / 127)).flatten().to(device)


def coverage(table, thing, x, y, tau):
    """Share of each pixel that a thing covers: x, y in pixels, tau 0 ... 1 within the clip; thing [rows, 17, 1]."""
    dx = x - (thing[:, 1] + thing[:, 10] * tau)
    dy = y - (thing[:, 2] + thing[:, 11] * tau)
    size, aspect, cos, sin = thing[:, 3], thing[:, 4], thing[:, 5], thing[:, 6]
    u = (dx * cos + dy * sin) / (size * aspect)
    v = (dy * cos - dx * sin) / size
    u = ((u * 0.5 + 0.5) * SIDE - 0.5).clamp(0, SIDE - 1.001)
    v = ((v * 0.5 + 0.5) * SIDE - 0.5).clamp(0, SIDE - 1.001)
    left, top = u.floor(), v.floor()
    at = (thing[:, 0] * SIDE * SIDE + top * SIDE + left).long()
    u, v = u - left, v - top
    upper = table[at] * (1 - u) + table[at + 1] * u
    lower = table[at + SIDE] * (1 - u) + table[at + SIDE + 1] * u
    distance = (upper * (1 - v) + lower * v) * (size * (2 / SIDE))
    return (0.5 - distance / thing[:, 12]).clamp(0, 1) * thing[:, 13]


def add_thing(canvas, table, thing, x, y, tau):
    """canvas [rows, 3, pixels] with a thing on it, and the share of each row's pixels that it covers."""
    cover = coverage(table, thing, x, y, tau)
    return canvas + (thing[:, 7:10] - canvas) * cover[:, None], cover.mean(1)


def ground(scene, x, y, noise):
    """The background [rows, 3, pixels]; scene [rows, values, 1], noise of the canvas' shape."""
    mix = (x * scene[:, 10] + y * scene[:, 11] + scene[:, 12]).clamp(0, 1)[:, None]
    base, other = scene[:, 4:7], scene[:, 7:10]
    stripe = torch.where(((x + y) / scene[:, 14].clamp(min=1)).floor() % 2 == 0, scene[:, 15], -scene[:, 15])
    stripe = torch.where(scene[:, 14] > 0, stripe, torch.zeros_like(stripe))
    return base + (other - base) * mix + stripe[:, None] + noise * scene[:, 13:14]


class Renderer:
    """Draws groups of slots: scenes [B, SCENE_VALUES], things [B, N, OBJECT_VALUES], the tokens a slot holds, and the
    frames drawn of each (1, or 2 for clips). What is drawn are rows: one frame of one cell."""

    def __init__(self, sprites: np.ndarray, device, compiled: bool = False):
        self.table = atlas_table(sprites, device)
        self.add_thing = torch.compile(add_thing, dynamic=False) if compiled else add_thing
        self.ground = torch.compile(ground, dynamic=False) if compiled else ground
        inside = torch.arange(CELL * CELL, device=device)
        self.px, self.py = (inside % CELL).float() + 0.5, (inside // CELL).float() + 0.5

    @torch.no_grad()
    def draw(self, groups: list, generator=None) -> list:
        """For each (scenes, things, cells, frames): levels [B, cells, frames, 3, 28 * 28]; where [B, cells, 3] (group,
        row, column; -1 beyond the picture); covers [B, cells, N]."""
        plans = [self.plan(*group) for group in groups]
        scene, things, x, y, tau = (torch.cat(part) for part in zip(*(plan[1:] for plan in plans)))
        x, y = x[:, None] + self.px, y[:, None] + self.py
        noise = torch.randn(len(x), 3, CELL * CELL, device=x.device, generator=generator)
        canvas, covers = self.ground(scene[..., None], x, y, noise), []
        for n in range(things.shape[1]):
            thing = things[:, n, :, None].contiguous()
            canvas, cover = self.add_thing(canvas, self.table, thing, x, y, tau[:, None])
            covers.append(cover)
        levels, covers = canvas.round().clamp(0, 255), torch.stack(covers, -1)
        out, first = [], 0
        for (scenes, _, cells, frames), (where, *_) in zip(groups, plans):
            span = slice(first, first + len(scenes) * cells * frames)
            shape = (len(scenes), cells, frames)
            out.append((levels[span].view(*shape, 3, -1), where, covers[span].view(*shape, -1).mean(2)))
            first = span.stop
        return out

    def plan(self, scenes, things, cells: int, frames: int):
        """where, and for every row its scene, things, the cell's place in pixels and its time."""
        count, device = scenes.shape[0], scenes.device
        index = torch.arange(cells, device=device)[None]
        h, w, groups = (scenes[:, i : i + 1].long() for i in range(3))
        group, rest = index // (h * w).clamp(min=1), index % (h * w).clamp(min=1)
        row, column = rest // w.clamp(min=1), rest % w.clamp(min=1)
        where = torch.stack([group, row, column], -1).masked_fill(~(index < groups * h * w)[..., None], -1)
        number = 2 * group[..., None] + torch.arange(frames, device=device)
        number = torch.minimum(number, scenes[:, 3].long()[:, None, None] - 1).clamp(min=0)
        tau = scenes[:, 16:].gather(1, number.flatten(1)).flatten()
        x, y = ((part * CELL)[..., None].expand(count, cells, frames).flatten().float() for part in (column, row))
        return where, *(part.repeat_interleave(cells * frames, 0) for part in (scenes, things)), x, y, tau


def patch_rows(levels):
    """float32 [B * cells * 4, 1176]: four patches of a cell by rows; channel, frame, y, x. One frame fills both."""
    count, cells, frames = levels.shape[:3]
    shape = (1, 3, 1)
    mean = torch.tensor(MEAN, device=levels.device).view(shape) * 255
    deviation = torch.tensor(DEVIATION, device=levels.device).view(shape) * 255
    values = (levels - mean) / deviation
    values = values.view(count * cells, frames, 3, 2, PATCH, 2, PATCH).permute(0, 3, 5, 2, 1, 4, 6)
    if frames == 1:
        values = values.expand(-1, -1, -1, -1, 2, -1, -1)
    return values.reshape(count * cells * 4, -1)


def patch_places(where):
    """int64 [B, cells * 4, 3]: t, row and column of every patch; of cells beyond the picture -1."""
    inside = torch.arange(4, device=where.device)
    t = where[..., :1].expand(-1, -1, 4)
    row, column = where[..., 1:2] * 2 + inside // 2, where[..., 2:3] * 2 + inside % 2
    places = torch.stack([t, row, column], -1).flatten(1, 2)
    return places.masked_fill((where[..., :1] < 0).expand(-1, -1, 4).flatten(1, 2)[..., None], -1)


@torch.no_grad()
def lessons(scenes, things, where, covers):
    """What each cell is taught (tower.py): int64 [B, cells, 4]: class, colour, motion, things whose middle lies in it."""
    tau = scenes[:, 16:].gather(1, (2 * where[..., 0]).clamp(min=0))  # of the group's first frame
    x = things[:, None, :, 1] + things[:, None, :, 10] * tau[..., None]
    y = things[:, None, :, 2] + things[:, None, :, 11] * tau[..., None]
    column, row = (x / CELL).floor(), (y / CELL).floor()
    middle = (column == where[..., 2:3]) & (row == where[..., 1:2]) & (things[:, None, :, 13] > 0)
    covers = covers + 2.0 * middle  # a thing whose middle lies here comes first
    best = covers.max(-1)
    labels = things[:, :, 14:17].long()
    taught = torch.gather(labels, 1, best.indices[..., None].expand(-1, -1, 3))
    taught = taught.masked_fill((best.values < SEEN)[..., None], 0)
    return torch.cat([taught, middle.sum(-1, keepdim=True).clamp(max=2)], -1)


def to_frames(scene, levels, where) -> list[np.ndarray]:
    """uint8 [height, width, 3] of each frame of one scene: levels and where of its slot alone."""
    frames = []
    for number in range(len(scene.times)):
        image = np.zeros((scene.height, scene.width, 3), np.uint8)
        for cell, (group, row, column) in enumerate(where.tolist()):
            if group == number // 2:
                part = levels[cell, number % 2].view(3, CELL, CELL).permute(1, 2, 0).byte().cpu().numpy()
                image[row * CELL : (row + 1) * CELL, column * CELL : (column + 1) * CELL] = part
        frames.append(image)
    return frames


def draw_scene(renderer: Renderer, scene, seed: int) -> list[np.ndarray]:
    """The frames of one scene; its noise comes from the seed."""
    generator = torch.Generator(renderer.table.device).manual_seed(seed)
    values, things = (torch.from_numpy(part)[None].to(renderer.table.device) for part in scene.values())
    cells = scene.cells * scene.groups
    (levels, where, _), = renderer.draw([(values, things, cells, min(2, len(scene.times)))], generator)
    return to_frames(scene, levels[0], where[0])
