"""Training units with pictures, made by worker processes ahead of training.

    python3 tools/train/sight_units.py --data folder --work folder --worker 0 --seconds 60

A unit's tokens are short conversations, most of them about pictures, then documents of exactly MEDIUM tokens, half of
them about pictures, then long documents as in units.py. Scenes lie in three groups of slots: small pictures (up to 64
tokens), segments of small clips, and large pictures or clips (up to 196 tokens).
"""

import argparse
import json
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from skills import pictures, tasks, tools
from skills.conversation import CHAT_WEIGHT, DEVELOPERS, THINK_END, MODES, draw_conversation, draw_task, messages_of
from skills.scenes import OBJECT_VALUES, OBJECTS, SCENE_VALUES
from sprites import Atlas
from units import MEDIUM, SHORT_LIMIT, Layout, Maker, write

UNITS_A_FILE = 8
ANSWER_WEIGHT, THOUGHT_WEIGHT = 12, 4
PICTURE_FLAG = 64  # in a weight byte: learnt about pictures
MODE_SHARES = (0.5, 0.15, 0.35)
LONG_SHARES = {4096: 0.5, 8192: 0.3, 16384: 0.2}


@dataclass(frozen=True)
class SightLayout(Layout):
    short: int = 49152
    medium_rows: int = 8
    long: int = 16384
    text: int = 24576  # of the short part, conversations without pictures
    # Shares of these for what suffers first: sums, most of them to be done without thinking, calls of tools, passages.
    sums: float = 0.08
    tools: float = 0.32
    passages: float = 0.2
    # (slots, tokens of a slot, frames drawn)
    groups: tuple = ((256, 64, 1), (72, 64, 2), (20, 196, 2))
    questions: int = 2400  # at most
    kept: float = 0.12  # of the slots, for the documents of MEDIUM tokens

    @property
    def cells(self) -> int:
        return sum(slots * cells for slots, cells, _ in self.groups)


TOY = SightLayout(
    short=2048, medium_rows=1, long=1024, text=512, groups=((10, 64, 1), (4, 64, 2), (2, 196, 2)), questions=400
)
TOY_SHARES = {512: 0.4, 1024: 0.6}


class Slots:
    """The scenes of a unit. take() gives the first feature row of a scene that it stores."""

    def __init__(self, layout: SightLayout):
        self.layout = layout
        self.used = [0] * len(layout.groups)
        self.reserve = [int(n * layout.kept) for n, _, _ in layout.groups]
        self.scenes = [np.zeros((n, SCENE_VALUES), np.float32) for n, _, _ in layout.groups]
        self.things = [np.zeros((n, OBJECTS, OBJECT_VALUES), np.float32) for n, _, _ in layout.groups]
        for things in self.things:
            things[:, :, 3:6] = things[:, :, 12] = 1
        self.first = np.cumsum([0] + [n * cells for n, cells, _ in layout.groups])

    def group_of(self, scene) -> int:
        if scene.cells * scene.groups > 64:
            return 2
        return 1 if scene.video else 0

    def free(self, group: int) -> int:
        return self.layout.groups[group][0] - self.used[group] - self.reserve[group]

    def fits(self, look) -> bool:
        groups = [self.group_of(scene) for scene in look.scenes]
        return all(groups.count(g) <= self.free(g) for g in groups)

    def take(self, scene) -> int:
        group = self.group_of(scene)
        slot = self.used[group]
        self.used[group] += 1
        self.scenes[group][slot], self.things[group][slot] = scene.values()
        return int(self.first[group]) + slot * self.layout.groups[group][1]


class SightMaker(Maker):
    def __init__(self, data: Path, layout: SightLayout, seed, held: bool = False):
        super().__init__(data, layout, seed)
        self.held, self.atlas = held, Atlas(data / "sprites.npz")
        words = json.loads((data / "general.json").read_text())
        pictures.use_held_words(words)
        ids = self.renderer.ids
        self.image, self.video = ids(pictures.IMAGE)[0], ids(pictures.VIDEO)[0]
        self.start, self.end = ids("]<]start of image[>[")[0], ids("]<]end of image[>[")[0]
        self.think_end = ids(THINK_END)[0]

    def tokens_of(self, scene, first: int) -> tuple[list[int], list[int]]:
        """What stands for a scene's placeholder (spec 4.8), and each token's feature row, -1 for none."""
        ids, rows = [], []
        for group in range(scene.groups):
            time_ids = self.renderer.ids(f"]<]{scene.times[2 * group]:.1f} seconds[>[") if scene.video else []
            ids += time_ids + [self.start] + [self.video if scene.video else self.image] * scene.cells + [self.end]
            at = first + group * scene.cells
            rows += [-1] * (len(time_ids) + 1) + list(range(at, at + scene.cells)) + [-1]
        return ids, rows

    def encode_look(self, look, mode: str):
        """ids, weights, a list of (place, scene) and of (begin, end, kind) of the answers."""
        messages = []
        for message in pictures.messages(self.random, look):
            thought = message.pop("thought", None)
            if mode == "enabled" and thought:
                message["reasoning_content"] = thought
            messages.append(message)
        ids, weights, at, asked, scenes = [], [], [], [], list(look.scenes)
        question = 0
        for text, learnt in self.renderer.message_pieces(messages):
            new = self.renderer.fixed[text] if text in self.renderer.fixed else self.renderer.ids(text)
            begin = len(ids)
            for token in new:
                if token in (self.image, self.video):
                    at.append((len(ids), scenes.pop(0)))
                ids.append(token)
                weights.append(0)
            if learnt:
                answer = begin + new.index(self.think_end) + 1
                for i in range(begin, len(ids)):
                    weights[i] = PICTURE_FLAG | (THOUGHT_WEIGHT if i < answer - 1 else ANSWER_WEIGHT)
                weights[answer - 1] = weights[-1] = PICTURE_FLAG | CHAT_WEIGHT
                asked.append((answer, len(ids), pictures.KINDS.index(look.questions[question].kind)))
                question += 1
        return ids, weights, at, asked

    def conversation(self, limit: int, slots: Slots, large: float):
        """ids, weights, feature rows, asked: a conversation about pictures of at most `limit` tokens; None if nothing
        fits any more."""
        random = self.random
        mode = "adaptive" if self.held else random.choices(MODES, MODE_SHARES)[0]
        developer = random.choice(DEVELOPERS) if random.random() < 0.2 and not self.held else None
        ids = list(self.renderer.encode_head(mode, developer, []))
        weights, rows, asked, looks = [0] * len(ids), [-1] * len(ids), [], 0
        while looks < 12:
            if looks and not self.held and random.random() < 0.1:  # something else in between
                part = draw_task(random, self.filler, self.runs)
                if not part.developer:
                    more, more_weights = self.renderer.encode_messages(messages_of(part, mode))
                    if len(ids) + len(more) <= limit:
                        ids, weights, rows = ids + more, weights + more_weights, rows + [-1] * len(more)
            video = random.random() < 0.24 and slots.free(1) > 0
            big = random.random() < large and slots.free(2) > 1
            look = pictures.draw_look(random, self.held, self.atlas, big, video)
            if not slots.fits(look):
                break
            new, new_weights, at, new_asked = self.encode_look(look, mode)
            size = len(new) + sum((scene.cells + 15) * scene.groups for scene in look.scenes)
            if len(ids) + size > limit:
                break
            base, shift, previous = len(ids), 0, 0
            places = []
            for place, scene in at:
                part, part_rows = self.tokens_of(scene, slots.take(scene))
                ids += new[previous:place] + part
                weights += new_weights[previous:place] + [0] * len(part)
                rows += [-1] * (place - previous) + part_rows
                shift += len(part) - 1
                places.append((place, shift))
                previous = place + 1
            ids += new[previous:]
            weights += new_weights[previous:]
            rows += [-1] * (len(new) - previous)
            for begin, end, kind in new_asked:
                moved = base + next((s for p, s in reversed(places) if p < begin), 0)
                asked.append((begin + moved, end + moved, kind))
            looks += 1
            if random.random() < 0.2 and limit <= SHORT_LIMIT:
                break
        return (ids, weights, rows, asked) if looks else None

    def sums(self, limit: int) -> tuple[list[int], list[int]]:
        mode = self.random.choice(("disabled", "disabled", "disabled", "adaptive", "enabled"))
        ids = list(self.renderer.encode_head(mode, None, []))
        weights = [0] * len(ids)
        while True:
            part = self.random.choice((tasks.addition, tasks.subtraction))(self.random, False)
            more, more_weights = self.renderer.encode_messages(messages_of(part, mode))
            if len(ids) + len(more) > limit or (len(ids) > 120 and self.random.random() < 0.1):
                return ids, weights
            ids, weights = ids + more, weights + more_weights

    def one_task(self, limit: int, with_tools: bool) -> tuple[list[int], list[int]] | None:
        """A call of a tool (or none where one is on offer), or a passage; None if it is too long."""
        mode = self.random.choice(MODES)
        if with_tools:
            make = tools.no_tool if self.random.random() < 0.25 else tools.tool_call
            task = make(self.random, False)
        else:
            task = tasks.passage(self.random, False, self.filler)
        head = self.renderer.encode_head(mode, task.developer, task.tools)
        ids, weights = self.renderer.encode_messages(messages_of(task, mode))
        if len(head) + len(ids) > limit:
            return None
        return head + ids, [0] * len(head) + weights

    def unit(self) -> dict[str, np.ndarray]:
        layout, slots = self.layout, Slots(self.layout)
        parts, asked, total = [], [], 0

        def add(ids, weights, rows=None, questions=()):
            nonlocal total
            parts.append((ids, weights, rows or [-1] * len(ids), range(len(ids))))
            asked.extend((begin + total, end + total, kind) for begin, end, kind in questions)
            total += len(ids)

        while layout.short - total > 200:
            room = layout.short - total
            about_pictures = room > layout.text or self.held
            made = self.conversation(min(SHORT_LIMIT, room), slots, 0.03) if about_pictures else None
            drill = self.random.random()
            if made is None and drill < layout.sums:
                made = self.sums(min(SHORT_LIMIT, room))
            elif made is None and drill < layout.sums + layout.tools + layout.passages:
                made = self.one_task(min(SHORT_LIMIT, room), drill < layout.sums + layout.tools)
            if made is None:
                made = draw_conversation(self.random, self.renderer, min(SHORT_LIMIT, room), self.filler, self.runs)
            add(*made)
        if total < layout.short:
            ids, weights = self.planter.prose(self.random, layout.short - total)
            add(ids.tolist(), weights.tolist())
        slots.reserve = [0] * len(layout.groups)
        for number in range(layout.medium_rows):
            made = self.conversation(MEDIUM, slots, 0.3) if number % 2 == 0 else None
            if made is None and self.random.random() < 0.4:
                made = (self.planter.chat if self.random.random() < 0.6 else self.planter.raw)(self.random, MEDIUM)
                made = [part.tolist() for part in made]
            if made is None:
                made = draw_conversation(self.random, self.renderer, MEDIUM, self.filler, self.runs)
            ids, weights, *more = made
            missing = MEDIUM - len(ids)
            rows = (more[0] if more else [-1] * len(ids)) + [-1] * missing
            add(list(ids) + [self.turn_end] * missing, list(weights) + [0] * missing, rows, more[1] if more else ())
        ids, weights, rows, positions = (np.concatenate([np.asarray(x) for x in part]) for part in zip(*parts))
        questions = np.zeros((layout.questions, 3), np.int32)
        asked = asked[: layout.questions]
        questions[: len(asked)] = np.array(asked, np.int32).reshape(-1, 3)
        out = {"ids": ids.astype(np.uint16), "weights": weights.astype(np.uint8), "rows": rows.astype(np.int32),
               "positions": positions.astype(np.uint16), "questions": questions}  # fmt: skip
        for number in range(len(layout.groups)):
            out[f"scenes{number}"], out[f"things{number}"] = slots.scenes[number], slots.things[number]
        return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--worker", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--files", type=int, default=10**9)
    parser.add_argument("--seed", default="")
    parser.add_argument("--held", type=int, default=0, help="first so many units of held-out questions")
    parser.add_argument("--toy", action="store_true")
    arguments = parser.parse_args()
    end = time.monotonic() + arguments.seconds
    layout, shares = (TOY, TOY_SHARES) if arguments.toy else (SightLayout(), LONG_SHARES)
    seed = f"{arguments.seed}-{arguments.worker}"
    if arguments.held:
        maker = SightMaker(arguments.data, layout, "held", True)
        write(arguments.work / "held.npz", **stacked([maker.unit() for _ in range(arguments.held)]))
    maker = SightMaker(arguments.data, layout, seed)
    number = 0
    while time.monotonic() < end and number < arguments.files:
        name = f"{arguments.worker:02d}-{number:04d}.npz"
        write(arguments.work / f"sm-{name}", **stacked([maker.unit() for _ in range(UNITS_A_FILE)]))
        round_ = number + arguments.worker
        length = list(shares)[round_ % len(shares)] if number == 0 else None
        length = length or maker.random.choices(list(shares), list(shares.values()))[0]
        units = [maker.long(length) for _ in range(UNITS_A_FILE)]
        ids, weights = (np.stack(part) for part in zip(*units))
        write(arguments.work / f"l{length}-{name}", ids=ids, weights=weights)
        number += 1
    print(f"worker {arguments.worker}: {number} files of each kind", flush=True)


def stacked(units: list[dict]) -> dict:
    return {name: np.stack([unit[name] for unit in units]) for name in units[0]}


if __name__ == "__main__":
    main()
