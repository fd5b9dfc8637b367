"""Measures what a checkpoint sees through m3 itself, greedily, on held-out pictures and clips; prints the card's table.

    python3 tools/train/measure_sight.py --server http://127.0.0.1:8000 --sprites data/sprites.npz \\
        --words data/general.json --cases 200

Every case is one question about new pictures, which go to an m3 serve as PNG files, clips as MP4 (H.264, 8 frames a
second) or as lossless WebP. Phrasings, printed words and fonts are in no training picture. Needs numpy, Pillow, torch, av.
"""

import argparse
import base64
import io
import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random

import torch
from PIL import Image

from measure import Program, share
from render import Renderer, draw_scene
from skills import pictures, scenes
from skills.pictures import KINDS
from skills.words import use_words
from sprites import Atlas

FILM_FPS = 8
MAKERS = {
    "count": pictures.counting, "colour": pictures.shapes, "shape": pictures.shapes, "describe": pictures.shapes,
    "exists": pictures.shapes, "position": pictures.shapes, "digits": pictures.digits, "words": pictures.words,
    "letters": pictures.words, "compare": pictures.compare, "motion": pictures.clip, "mover": pictures.clip,
}  # fmt: skip
PLACEHOLDER = {False: pictures.IMAGE, True: pictures.VIDEO}


def png(frame) -> str:
    file = io.BytesIO()
    Image.fromarray(frame).save(file, "PNG")
    return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()


def webp(frames, times: list[float]) -> str:
    """Frames shown as long as the times say, the last one for a moment."""
    file = io.BytesIO()
    lasting = [round(1000 * (b - a)) for a, b in zip(times, [*times[1:], times[-1] + 0.04])]
    first, *rest = (Image.fromarray(frame) for frame in frames)
    first.save(file, "WEBP", save_all=True, append_images=rest, duration=lasting, lossless=True)
    return "data:video/webp;base64," + base64.b64encode(file.getvalue()).decode()


def mp4(frames) -> str:
    import av

    file = io.BytesIO()
    with av.open(file, "w", "mp4") as out:
        stream = out.add_stream("libx264", FILM_FPS, options={"crf": "18"})
        stream.height, stream.width = frames[0].shape[:2]
        stream.pix_fmt = "yuv420p"
        for frame in frames:
            out.mux(stream.encode(av.VideoFrame.from_ndarray(frame, "rgb24")))
        out.mux(stream.encode())
    return "data:video/mp4;base64," + base64.b64encode(file.getvalue()).decode()


def at_time(scene: scenes.Scene, share_: float) -> scenes.Scene:
    """The still picture that a clip shows at 0 ... 1 of its way."""
    things = [scenes.Thing(**vars(thing)) for thing in scene.things]
    for thing in things:
        thing.x, thing.y = thing.x + thing.dx * share_, thing.y + thing.dy * share_
        thing.dx = thing.dy = 0.0
    return scenes.Scene(**(vars(scene) | {"things": things, "times": [0.0], "video": False}))


def url_of(renderer: Renderer, scene: scenes.Scene, seed: int, film: bool) -> str:
    if not scene.video:
        return png(draw_scene(renderer, scene, seed)[0])
    if not film:
        return webp(draw_scene(renderer, scene, seed), scene.times)
    count = max(4, round(scene.times[-1] * FILM_FPS) + 1)
    return mp4([draw_scene(renderer, at_time(scene, n / (count - 1)), seed + n)[0] for n in range(count)])


def whole_seconds(random, groups: int) -> list[float]:
    """Times that the engine's sampling of one frame a second keeps."""
    count = 2 * groups - (random.random() < 0.5)
    return [float(i) for i in range(count - 1)] + [count - 2 + random.choice((0.25, 0.5, 0.75, 1.0))]


def draw_case(random: Random, kind: str, atlas: Atlas, large: bool):
    """(scenes, question)"""
    while True:
        look = MAKERS[kind](random, True, atlas, large)
        chosen = [question for question in look.questions if question.kind == kind]
        if chosen:
            for scene in look.scenes:
                if scene.video:
                    scene.times = whole_seconds(random, scene.groups)
            return look.scenes, random.choice(chosen)


def request(urls: list[tuple[str, bool]], text: str, mode: str) -> dict:
    parts = []
    for url, video in urls:
        type_ = "video_url" if video else "image_url"
        parts.append({"type": type_, type_: {"url": url}})
    parts.append({"type": "text", "text": text})
    return {"messages": [{"role": "user", "content": parts}], "chat_template_kwargs": {"thinking_mode": mode}}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--server", required=True)
    parser.add_argument("--model", default="m3-tiny-chat", help="its name there")
    parser.add_argument("--sprites", type=Path, required=True)
    parser.add_argument("--words", type=Path, required=True, help="general.json of pack_books.py")
    parser.add_argument("--cases", type=int, default=200)
    parser.add_argument("--kind", action="append", choices=KINDS)
    parser.add_argument("--large", action="store_true", help="pictures of 65 to 196 tokens instead of 16 to 64")
    parser.add_argument("--film", action="store_true", help="clips as MP4 of 8 frames a second, not as WebP")
    parser.add_argument("--mode", default="adaptive")
    parser.add_argument("--seed", default="measure")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--show", type=int, default=0, help="so many wrong replies are printed for each kind")
    parser.add_argument("--keep", type=Path, help="a folder for the first picture or clip of every kind")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    words = json.loads(arguments.words.read_text())
    use_words(words)
    pictures.use_held_words(words)
    atlas = Atlas(arguments.sprites)
    renderer, program = Renderer(atlas.sprites, "cpu"), Program("", Path(arguments.model), arguments.server)
    print("| question about | right |\n|---|---|", flush=True)
    for kind in arguments.kind or KINDS:
        random = Random(f"{arguments.seed} {kind} {arguments.large}")
        drawn = [draw_case(random, kind, atlas, arguments.large) for _ in range(arguments.cases)]

        def answer(case):
            number, (shown, question) = case
            urls = [(url_of(renderer, scene, 1000 * number + i, arguments.film), scene.video) for i, scene in enumerate(shown)]
            if arguments.keep and number == 0:
                arguments.keep.mkdir(parents=True, exist_ok=True)
                for i, (url, _) in enumerate(urls):
                    head, data = url.split(";base64,")
                    (arguments.keep / f"{kind}-{i}.{head.split('/')[1]}").write_bytes(base64.b64decode(data))
            return program.reply(request(urls, question.text, arguments.mode), 80)

        with ThreadPoolExecutor(arguments.jobs) as pool:
            replies = list(pool.map(answer, enumerate(drawn)))
        right = [(got["content"] or "").strip() == question.answer for (_, question), got in zip(drawn, replies)]
        print(f"| {kind} | {share(right)} |", flush=True)
        wrong = [(case, got) for case, got, ok in zip(drawn, replies, right) if not ok]
        for (shown, question), got in wrong[: arguments.show]:
            print("  asked:", question.text, "\n  wanted:", question.answer, "\n  wrote:", got["content"],
                  [(scene.width, scene.height, scene.times) for scene in shown])  # fmt: skip


if __name__ == "__main__":
    main()
