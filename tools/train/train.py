"""Trains the small checkpoint that ships: prose, planted sentences, small skills and M3's chat format.

    python3 tools/train/train.py --data folder --units folder --out folder --start models/m3-tiny-chat --seconds 400
    python3 tools/train/train.py … --resume folder        # goes on from what an earlier run left in its --out

Everything follows the clock: --seconds bounds the call, compilation included, and the stages are shares of the
training time. What comes out can always be gone on from: bf16 shards, the low bits that make them fp32 again, and
rest.tar.gz (config, tokenizer, template, state, log).
"""

import argparse
import json
import os
import queue
import sys
import tarfile
import threading
import time
from dataclasses import asdict
from pathlib import Path
from random import Random

import numpy as np
import torch
import torch.nn.functional as F
from tokenizers import Tokenizer

from evaluate import Evaluator, report
from export import export_checkpoint, load_checkpoint
from model import BLOCK, HEAD_DIM, ModelConfig, Plan, Projected, TinyM3, attend_flex, attend_masked
from optimizer import Optimizer
from pack_books import unpack
from skills.conversation import Renderer
from skills.planted import DROPOUT_FLAG, VALUE_WEIGHT
from tokenizer import save_tokenizer, write_json
from units import LONG_SHARES, TOY, TOY_SHARES, Layout

START = float(os.environ.get("TRAIN_STARTED", time.time()))  # seconds since 1970, so that a script's start counts
BALANCE_STEP = 0.002  # change of a correction bias per step
DENSE_UNTIL = 0.35  # share of the training time with dense attention and documents of up to 8192 tokens
TAUGHT = 512  # queries per step whose block scores are taught
LOG: list[str] = []


def say(text: str) -> None:
    LOG.append(f"[{time.time() - START:6.1f} s] {text}")
    print(LOG[-1], flush=True)


def rate_factor(step: int, progress: float) -> float:
    """Warm-up over 150 steps, flat, then linear from 40 % of the time down to 2 % of the peak."""
    return min(1.0, (step + 1) / 150) * min(1.0, max(0.02, (1 - progress) / 0.6))


def token_loss(hidden, head, targets, weights):
    loss = F.cross_entropy(F.linear(hidden, head).float(), targets, reduction="none")
    return (loss * weights).sum() / weights.sum()


class Units:
    """Files of units by kind, read again and again while workers add to them."""

    def __init__(self, folder: Path):
        self.folder, self.files, self.open, self.places, self.rounds = folder, {}, {}, {}, {}
        self.looked = 0.0

    def look(self) -> None:
        if time.time() - self.looked < 2:
            return
        self.looked, found = time.time(), {}
        for path in sorted(self.folder.glob("[sl]*-*.npz")):
            found.setdefault(path.name.split("-")[0], []).append(path)
        self.files = found

    def take(self, kind: str) -> dict[str, np.ndarray] | None:
        self.look()
        if kind not in self.files:
            return None
        if kind not in self.open:
            place = self.places.get(kind, 0)
            if place >= len(self.files[kind]):
                place, self.rounds[kind] = 0, self.rounds.get(kind, 0) + 1
            with np.load(self.files[kind][place]) as file:
                self.open[kind] = [dict(zip(file.files, unit)) for unit in zip(*(file[name] for name in file.files))]
            self.places[kind] = place + 1
        unit = self.open[kind].pop()
        if not self.open[kind]:
            del self.open[kind]
        return unit


def taught_queries(weights: np.ndarray, rows: int, length: int, count: int, random) -> np.ndarray:
    """[rows, count] places within each document, half of them where the next token is an asked value."""
    places = random.integers(BLOCK, length, (rows, count))
    for row, asked in enumerate(weights.reshape(rows, length)):
        values = np.flatnonzero(asked[1:] >= VALUE_WEIGHT)
        values = values[values >= BLOCK]
        if len(values):
            places[row, : count // 2] = random.choice(values, count // 2)
    return places


class Feeder:
    """Puts steps together in a thread of its own."""

    def __init__(self, units: Units, layout: Layout, shares: dict, seed: int, progress):
        self.units, self.layout, self.shares, self.progress = units, layout, shares, progress
        self.random, self.numpy = Random(seed), np.random.default_rng(seed)
        self.ready, self.stopped = queue.Queue(6), False
        self.thread = threading.Thread(target=self.work, daemon=True)
        self.thread.start()

    def work(self) -> None:
        try:
            while not self.stopped:
                step = self.make()
                while not self.stopped:
                    try:
                        self.ready.put(step, timeout=1)
                        break
                    except queue.Full:
                        pass
        except Exception as error:  # the training loop reports it
            self.ready.put(error)

    def wait_for(self, kinds: list[str]) -> tuple[str, dict]:
        asked = time.time()
        while time.time() - asked < 120:
            for kind in kinds:
                unit = self.units.take(kind)
                if unit is not None:
                    return kind, unit
            time.sleep(0.5)
        raise RuntimeError(f"no {kinds} in {self.units.folder}: have units.py's workers failed?")

    def make(self) -> dict:
        lengths, dense = list(self.shares), self.progress() < DENSE_UNTIL
        if dense:
            lengths = lengths[:2]
        length = self.random.choices(lengths, [self.shares[n] for n in lengths])[0]
        kind, long = self.wait_for([f"l{n}" for n in [length] + lengths])
        length = int(kind[1:])
        _, short = self.wait_for(["sm"])
        ids = np.concatenate([short["ids"], long["ids"]]).astype(np.int32)
        codes = np.concatenate([short["weights"], long["weights"]])
        rows = self.layout.long // length
        positions = np.concatenate([short["positions"].astype(np.int32), np.tile(np.arange(length, dtype=np.int32), rows)])
        codes, dropout = codes & (DROPOUT_FLAG - 1), codes & DROPOUT_FLAG > 0
        segments = self.layout.segments(length)
        begin, rows, size = segments[-1] if self.random.random() < 0.7 else segments[0]
        queries = taught_queries(codes[begin : begin + rows * size], rows, size, TAUGHT // rows, self.numpy)
        # The loss at a token is that of its successor; a document's last token has none.
        weights = np.append(codes[1:], 0).astype(np.float32)
        weights[:-1][positions[1:] == 0] = 0
        return {
            "ids": torch.from_numpy(ids), "positions": torch.from_numpy(positions), "weights": torch.from_numpy(weights),
            "dropout": torch.from_numpy(dropout), "queries": torch.from_numpy(queries), "segments": segments,
            "taught": (begin, rows, size), "sparse": not dense, "length": length,
        }  # fmt: skip


class Trainer:
    def __init__(self, arguments, config: ModelConfig, layout: Layout, device):
        self.arguments, self.layout, self.device = arguments, layout, device
        torch.manual_seed(arguments.seed)
        self.model = TinyM3(config).to(device)
        self.step, self.tokens, self.trained = 0, 0, 0.0
        self.first_progress, self.begun, self.deadline = 0.0, None, START + arguments.seconds - arguments.reserve
        self.loss_function, self.attend = token_loss, attend_masked
        self.slower = 1.0
        self.dtype = torch.bfloat16 if device.type == "cuda" else torch.float32  # most CPUs are slow in bf16
        self.good = None

    # Starting points.

    def begin_from(self, folder: Path, changed: list[int]) -> None:
        load_checkpoint(self.model, folder)
        with torch.no_grad():  # tokens with a new meaning start as the mean of all, a little apart
            for table in (self.model.embed_tokens.weight, self.model.lm_head.weight):
                table[changed] = table.mean(0) + 0.02 * torch.randn(len(changed), table.shape[1], device=table.device)
        say(f"weights from {folder.name}, {len(changed)} token ids begin anew")

    def resume(self, folder: Path) -> None:
        load_checkpoint(self.model, folder)
        if not (folder / "state.json").exists():
            with tarfile.open(folder / "rest.tar.gz") as file:
                state = json.load(file.extractfile("state.json"))
        else:
            state = json.loads((folder / "state.json").read_text())
        self.step, self.tokens, self.trained = state["step"], state["tokens"], state["seconds"]
        self.first_progress = state["progress"]
        if self.arguments.from_progress is not None:
            self.first_progress = self.arguments.from_progress
        self.begun_step = self.step
        say(f"resumed at step {self.step}, progress {self.first_progress:.2f}")

    def make_optimizer(self) -> None:
        self.optimizer = Optimizer(self.model, self.arguments.matrix_rate, self.arguments.rate)
        self.warm_from = self.step
        path = self.arguments.resume and self.arguments.resume / "optimizer.pt"
        if path and path.exists():
            self.optimizer.load(torch.load(path, map_location=self.device, weights_only=True))
            self.warm_from = -1000

    def compile(self) -> None:
        torch._dynamo.config.recompile_limit = 64
        self.model.compile_layers()
        self.loss_function = torch.compile(token_loss, dynamic=False)

    def check_flex(self, step: dict) -> None:
        """Flex attention against explicit masks, output and gradients, on the shape trained. Raises if they differ."""
        config, tokens = self.model.config, self.layout.total
        generator = torch.Generator(self.device).manual_seed(0)

        def draw(heads):
            shape = (tokens, heads, HEAD_DIM)
            return torch.randn(shape, generator=generator, device=self.device, dtype=torch.bfloat16).requires_grad_()

        heads = config.num_key_value_heads
        q, k, v = draw(config.num_attention_heads), draw(heads), draw(heads)
        seen = torch.zeros(tokens, 1, 1, device=self.device)
        for first in (0, self.layout.short, tokens - self.layout.long, tokens - 8 * BLOCK):
            seen[first : first + 8 * BLOCK] = 1

        def results(attend, chosen, tiles):
            output = attend(part, plan, chosen, tiles)
            gradients = torch.autograd.grad(((output.float() * seen) ** 2).mean() * 1e4, (q, k, v))
            return [output.detach(), *gradients]

        with torch.autocast(self.device.type, torch.bfloat16):  # as in training: the same graphs serve there
            with torch.no_grad():
                part = Projected(q, k, v, q[:, :heads] + k, k[:, 0])
                plan = Plan(step["positions"].to(self.device).long(), step["segments"], config)
                chosen = plan.choose(part)
            cases = [(plan.everything, plan.dense_tiles), chosen]
            flex = [results(attend_flex, *case) for case in cases]
            try:
                masked = [results(attend_masked, *case) for case in cases]
            except Exception as error:  # the slow way's own trouble says nothing about flex
                say(f"flex attention is not checked: {error!r}")
                return
        for a, b in zip(masked, flex):
            errors = [((x - y).float().norm() / x.float().norm()).item() for x, y in zip(a, b)]
            say(f"flex attention against masks, relative error of output and q, k, v gradients: {errors}")
            if not all(error < 0.05 for error in errors):
                raise RuntimeError("flex attention is wrong on this device")

    # Training.

    def progress(self) -> float:
        if self.begun is None:
            return self.first_progress
        share = (time.time() - self.begun) / max(1.0, self.deadline - self.begun)
        return self.first_progress + (self.arguments.to_progress - self.first_progress) * min(1.0, share)

    def train_step(self, step: dict):
        sent = {k: v.to(self.device, non_blocking=True) for k, v in step.items() if isinstance(v, torch.Tensor)}
        ids, positions = sent["ids"].long(), sent["positions"].long()
        drop = (sent["dropout"].float() * self.arguments.dropout)[:, None]
        targets = torch.cat([ids[1:], ids[:1]])
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.dtype == torch.bfloat16):
            plan = Plan(positions, step["segments"], self.model.config)
            output = self.model(
                ids, positions, plan, self.attend, step["sparse"], (*step["taught"], sent["queries"]), drop, self.dtype
            )
            loss = self.loss_function(output.hidden, self.model.lm_head.weight, targets, sent["weights"])
        (loss + output.index_loss).backward()
        norm = self.optimizer.step(rate_factor(self.step - self.warm_from, self.progress()) * self.slower)
        self.model.balance(output.loads, BALANCE_STEP)
        self.step += 1
        self.tokens += self.layout.total
        return loss.detach(), output.index_loss.detach(), norm, output.loads.max()

    def keep(self) -> None:
        state = [self.model.state_dict(), self.optimizer.state()]
        self.good = [json_like_clone(part) for part in state]

    def go_back(self) -> None:
        say(f"not finite at step {self.step}: back to the last good weights, at 0.7 of the rate")
        self.model.load_state_dict(self.good[0])
        self.optimizer.load(json_like_clone(self.good[1]))
        self.slower *= 0.7

    def run(self, feeder: Feeder) -> None:
        shown, shown_tokens, window = time.time(), self.tokens, []
        stage, saved = None, time.time()
        self.keep()
        kept = self.step
        while True:
            step = feeder.ready.get()
            if isinstance(step, Exception):
                raise step
            if step["sparse"] != stage:
                stage = step["sparse"]
                say(f"{'sparse' if stage else 'dense'} attention from step {self.step}, progress {self.progress():.2f}")
            window.append(self.train_step(step))
            if self.begun is None:  # compilation is behind us
                torch.cuda.synchronize() if self.device.type == "cuda" else None
                self.begun = shown = time.time()
                say(f"first step done; training until {self.deadline - START:.0f} s")
                stay_on_cores(self.arguments.cores)
            now = time.time()
            if len(window) < 20 and now < self.deadline and now - shown < self.arguments.show_seconds:
                continue
            values = torch.stack([torch.stack([v.float() for v in one]) for one in window]).cpu()
            window = []
            if not values.isfinite().all():
                self.go_back()
            elif self.step - kept >= 100:
                self.keep()
                kept = self.step
            now = time.time()
            if now - shown > self.arguments.show_seconds:
                loss, index_loss, norm, load = values.mean(0).tolist()
                fair = self.model.config.num_experts_per_tok / self.model.config.num_local_experts
                say(
                    f"step {self.step}, {self.tokens / 1e6:.0f} M tokens, "
                    f"{(self.tokens - shown_tokens) / (now - shown) / 1e3:.0f} K/s, loss {loss:.3f}, "
                    f"index KL {index_loss:.3f}, norm {norm:.2f}, fullest expert {load / fair:.2f}, "
                    f"rounds {feeder.units.rounds}"
                )
                shown, shown_tokens = now, self.tokens
            if now - saved > self.arguments.save_seconds:
                self.save()
                saved = time.time()
            if now > self.deadline:
                self.trained += now - self.begun
                say(f"trained: {self.step} steps, {self.tokens / 1e6:.0f} M tokens, {self.trained:.0f} s")
                return

    def save(self, progress: float | None = None, **more) -> None:
        """Everything beside the old files, then renamed over them."""
        out = self.arguments.out
        new = self.arguments.units.parent / "saving"
        new.mkdir(parents=True, exist_ok=True)
        export_checkpoint(self.model, new, with_low_bits=True)
        save_tokenizer(self.arguments.tokenizer, new, self.model.config.max_position_embeddings)
        (new / "chat_template.jinja").write_text((self.arguments.data / "chat_template.jinja").read_text())
        state = {"step": self.step, "tokens": self.tokens, "seconds": self.trained,
                 "progress": self.progress() if progress is None else progress}  # fmt: skip
        write_json(new / "state.json", state)
        (new / "training.log").write_text("\n".join(LOG) + "\n")
        for name, value in more.items():
            write_json(new / f"{name}.json", value)
        small = [path for path in sorted(new.iterdir()) if path.suffix != ".safetensors" and path.name != "rest.tar.gz"]
        small = [path for path in small if path.name != "optimizer.pt"]
        with tarfile.open(new / "rest.tar.gz", "w:gz") as file:
            for path in small:
                file.add(path, path.name)
        for path in small:
            path.unlink()
        if self.arguments.keep_optimizer:
            torch.save(self.optimizer.state(), new / "optimizer.pt")
        out.mkdir(parents=True, exist_ok=True)
        for path in new.iterdir():
            target = out / path.name
            try:
                os.replace(path, target)
            except OSError:  # another file system
                beside = target.with_name("new-" + target.name)
                beside.write_bytes(path.read_bytes())
                os.replace(beside, target)
        say(f"saved to {out}")


def stay_on_cores(count: int) -> None:
    """Leaves the other cores alone once nothing is left to compile; 0 changes nothing."""
    if not count or count >= (os.cpu_count() or 1):
        return
    torch.set_num_threads(count)  # more threads than cores wait for each other: saving took 50 s instead of one
    for thread in os.listdir("/proc/self/task"):
        try:
            os.sched_setaffinity(int(thread), range(count))
        except OSError:
            pass


def json_like_clone(value):
    if isinstance(value, torch.Tensor):
        return value.detach().clone()
    if isinstance(value, dict):
        return {key: json_like_clone(v) for key, v in value.items()}
    if isinstance(value, list):
        return [json_like_clone(v) for v in value]
    return value


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="tokenizer, template, books, words")
    parser.add_argument("--units", type=Path, required=True, help="where units.py's workers write")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--start", type=Path, help="a checkpoint to begin from")
    parser.add_argument("--resume", type=Path, help="an earlier --out to go on from")
    parser.add_argument("--from-progress", type=float, help="with --resume: where in the schedule to go on")
    parser.add_argument("--to-progress", type=float, default=1.0, help="where in the schedule this call ends")
    parser.add_argument("--seconds", type=float, default=400, help="of the whole call")
    parser.add_argument("--reserve", type=float, default=12, help="seconds of it kept for saving")
    parser.add_argument("--save-seconds", type=float, default=200)
    parser.add_argument("--show-seconds", type=float, default=10)
    parser.add_argument("--matrix-rate", type=float, default=3e-3, help="Muon's")
    parser.add_argument("--rate", type=float, default=2.5e-3, help="AdamW's")
    parser.add_argument("--dropout", type=float, default=0.1, help="for book text, which is seen many times")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--cores", type=int, default=0, help="stay on so many of them after compilation")
    parser.add_argument("--keep-optimizer", action="store_true")
    parser.add_argument("--no-evaluation", action="store_true")
    parser.add_argument("--toy", action="store_true", help="small widths and lengths, to try everything on a CPU")
    arguments = parser.parse_args()

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.set_float32_matmul_precision("high")  # fp32 products here have bf16 inputs, which TF32 keeps exactly
    tokenizer = arguments.tokenizer = Tokenizer.from_file(str(arguments.data / "tokenizer.json"))
    config, layout, shares = ModelConfig(), Layout(), LONG_SHARES
    if arguments.toy:
        config = ModelConfig(
            hidden_size=64, num_hidden_layers=2, dense_intermediate_size=128, num_local_experts=4, num_attention_heads=4
        )
        layout, shares = TOY, TOY_SHARES
    trainer = Trainer(arguments, config, layout, device)
    if arguments.resume:
        trainer.resume(arguments.resume)
    elif arguments.start:
        changed = arguments.data / "ids.json"  # from extend_tokenizer.py
        trainer.begin_from(arguments.start, json.loads(changed.read_text()) if changed.exists() else [])
    trainer.make_optimizer()
    parameters = sum(p.numel() for p in trainer.model.parameters())
    say(f"{parameters / 1e6:.2f} M parameters on {device}")
    feeder = Feeder(Units(arguments.units), layout, shares, arguments.seed + trainer.step, trainer.progress)
    first = feeder.ready.get()
    if isinstance(first, Exception):
        raise first
    if device.type == "cuda":
        trainer.compile()
        try:
            trainer.check_flex(first)
            trainer.attend = attend_flex
        except Exception as error:
            say(f"flex attention cannot be used ({error}); masked attention is slower")

    renderer = Renderer(tokenizer, arguments.data / "chat_template.jinja")
    words = json.loads((arguments.data / "words.json").read_text())
    evaluator = Evaluator(
        trainer.model, renderer, unpack(arguments.data / "heldout.xz"), words, trainer.attend, layout.total,
        trainer.dtype,
    )

    def evaluate(quick: bool) -> dict:
        try:
            return report(evaluator, say, quick)
        except Exception as error:  # never at the cost of the training
            say(f"evaluation failed: {error!r}")
            return {}

    if arguments.no_evaluation:
        evaluate = lambda quick: {}  # noqa: E731
    trainer.run(feeder)
    feeder.stopped = True
    trainer.save(arguments.to_progress)
    result = evaluate(arguments.to_progress < 1)
    result["training"] = {
        "steps": trainer.step,
        "tokens": trainer.tokens,
        "seconds": round(trainer.trained, 1),
        "parameters": parameters,
        "device": torch.cuda.get_device_name() if device.type == "cuda" else "CPU",
        "model": asdict(config),
    }
    trainer.save(arguments.to_progress, evaluation=result)
    sys.stdout.flush()
    os._exit(0)  # no waiting for the feeder's or the compiler's threads


if __name__ == "__main__":
    main()
