"""Teaches the small checkpoint to see: a vision tower from scratch, and the text model that reads it.

    python3 tools/train/sight.py --data folder --units folder --out folder --start models/m3-tiny-chat --seconds 480
    python3 tools/train/sight.py … --resume folder        # goes on from what an earlier run left in its --out

First the tower alone learns to tell what lies in each token's cell; then both learn to answer, while texts keep what
the model knew: book text after the model it began as (cross-entropy with its predictions), everything else as before.
Everything follows the clock, as in train.py, whose Trainer this is.
"""

import argparse
import json
import os
import sys
import tarfile
import time
from dataclasses import asdict
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from tokenizers import Tokenizer

import sight_units
import train
from evaluate import Evaluator, report
from export import export_checkpoint, load_checkpoint
from model import ModelConfig, Plan, TinyM3, attend_flex
from optimizer import orthogonalised
from pack_books import unpack
from render import Renderer, lessons, patch_places, patch_rows
from sight_units import PICTURE_FLAG, SightLayout
from skills.conversation import Renderer as ChatRenderer
from skills.pictures import KINDS
from skills.planted import DROPOUT_FLAG
from sprites import Atlas
from tokenizer import save_tokenizer, write_json
from tower import Teacher, Tower, TowerConfig
from train import Feeder, Trainer, Units, say, taught_queries

TEXT_SHARE = 0.25  # of train.py's rates, for the text model at the start
EMBEDDING_SIZE = 0.09  # root mean square of the text model's token embeddings, which features start with


def answer_losses(hidden, head, targets, pictures, texts, soft, teacher_hidden, teacher_head, held):
    """Mean cross-entropy over the tokens of each weight [tokens]: pictures and texts against the next token, soft and
    the share `held` of texts against the prediction of the model that training began with."""
    logits = F.linear(hidden, head).float()
    total = logits.logsumexp(-1)
    right = total - logits.gather(-1, targets[:, None])[:, 0]
    wanted = F.linear(teacher_hidden, teacher_head).float().softmax(-1)
    after = total - (wanted * logits).sum(-1)

    def mean(loss, weights):
        return (loss * weights).sum() / weights.sum().clamp(min=1)

    return mean(right, pictures), mean(right.lerp(after, held), texts), mean(after, soft)


class TowerOptimizer:
    """Muon for the layers' matrices, as square pieces; AdamW for the rest."""

    def __init__(self, tower: Tower, teacher: Teacher, matrix_rate: float, rate: float, weight_decay: float = 0.05):
        self.width = tower.config.hidden_size
        self.matrices = [p for name, p in tower.named_parameters() if p.ndim == 2 and name.startswith("layers.")]
        chosen = {id(p) for p in self.matrices}
        rest = [p for p in [*tower.parameters(), *teacher.parameters()] if id(p) not in chosen]
        self.counts = [len(self.pieces(p)) for p in self.matrices]
        device = rest[0].device
        self.momentum = torch.zeros(sum(self.counts), self.width, self.width, device=device)
        self.matrix_rate, self.rate, self.weight_decay = matrix_rate, rate, weight_decay
        groups = [
            {"params": [p for p in rest if p.ndim > 1], "weight_decay": weight_decay},
            {"params": [p for p in rest if p.ndim == 1], "weight_decay": 0.0},
        ]
        self.adam = torch.optim.AdamW(groups, lr=rate, betas=(0.9, 0.98), fused=device.type == "cuda")
        self.rest = rest

    def pieces(self, parameter):
        if parameter.shape[1] == self.width:
            return parameter.reshape(-1, self.width, self.width)
        return parameter.reshape(self.width, -1, self.width).permute(1, 0, 2)

    @torch.no_grad()
    def step(self, factor: float) -> None:
        gradients = torch.cat([self.pieces(p.grad) for p in self.matrices])
        torch.nn.utils.clip_grad_norm_(self.rest, 1.0)
        self.momentum.lerp_(gradients, 0.05)
        update = orthogonalised(gradients.lerp_(self.momentum, 0.95))
        rate = self.matrix_rate * factor
        for parameter, part in zip(self.matrices, update.split(self.counts)):
            parameter.mul_(1 - rate * self.weight_decay)
            self.pieces(parameter).sub_(part, alpha=0.2 * self.width**0.5 * rate)
        for group in self.adam.param_groups:
            group["lr"] = self.rate * factor
        self.adam.step()
        for parameter in self.matrices + self.rest:
            parameter.grad = None

    def state(self) -> dict:
        return {"momentum": self.momentum, "adam": self.adam.state_dict()}

    def load(self, state: dict) -> None:
        self.momentum.copy_(state["momentum"])
        self.adam.load_state_dict(state["adam"])


class SightFeeder(Feeder):
    def make(self) -> dict:
        lengths = list(self.shares)
        length = self.random.choices(lengths, [self.shares[n] for n in lengths])[0]
        kind, long = self.wait_for([f"l{n}" for n in [length] + lengths])
        _, short = self.wait_for(["sm"])
        return make_step(short, long, int(kind[1:]), self.layout, self.random, self.numpy)


def make_step(short: dict, long: dict, length: int, layout: SightLayout, random, numpy) -> dict:
    ids = np.concatenate([short["ids"], long["ids"]]).astype(np.int32)
    codes = np.concatenate([short["weights"], long["weights"]])
    rows = layout.long // length
    positions = np.concatenate([short["positions"].astype(np.int32), np.tile(np.arange(length, dtype=np.int32), rows)])
    weights = (codes & (PICTURE_FLAG - 1)).astype(np.float32)
    segments = layout.segments(length)
    begin, rows, size = segments[-1] if random.random() < 0.5 else segments[0]
    values = (codes & (PICTURE_FLAG - 1))[begin : begin + rows * size]
    queries = taught_queries(values, rows, size, train.TAUGHT // rows, numpy)

    def of(mask):
        """Weights at the token before the one that is learnt; a document's last token has none."""
        out = np.append((weights * mask)[1:], 0).astype(np.float32)
        out[:-1][positions[1:] == 0] = 0
        return torch.from_numpy(out)

    prose, about = codes & DROPOUT_FLAG > 0, codes & PICTURE_FLAG > 0
    features = np.concatenate([short["rows"], np.full(layout.long, -1, np.int32)])
    step = {
        "ids": torch.from_numpy(ids), "positions": torch.from_numpy(positions), "rows": torch.from_numpy(features),
        "pictures": of(about & ~prose), "texts": of(~about & ~prose), "soft": of(prose),
        "queries": torch.from_numpy(queries), "segments": segments, "taught": (begin, rows, size), "sparse": True,
        "length": length,
    }  # fmt: skip
    for number in range(len(layout.groups)):
        step[f"scenes{number}"] = torch.from_numpy(short[f"scenes{number}"])
        step[f"things{number}"] = torch.from_numpy(short[f"things{number}"])
    return step


class SightTrainer(Trainer):
    def __init__(self, arguments, config: ModelConfig, tower: TowerConfig, layout: SightLayout, device):
        super().__init__(arguments, config, layout, device)
        self.tower, self.teacher = Tower(tower).to(device), Teacher(tower).to(device)
        self.renderer = Renderer(Atlas(arguments.data / "sprites.npz").sprites, device, device.type == "cuda")
        self.first_model, self.losses = None, answer_losses
        self.groups = [(slots, cells * 4) for slots, cells, _ in layout.groups]
        self.seen = []  # of the steps since the last line of the log

    def begin_from(self, folder: Path) -> None:
        load_checkpoint(self.model, folder)
        say(f"text weights from {folder.name}")

    def resume(self, folder: Path) -> None:
        load_checkpoint(self.model, folder, self.tower)
        if (folder / "rest.tar.gz").exists():  # a finished checkpoint has none
            with tarfile.open(folder / "rest.tar.gz") as file:
                state = json.load(file.extractfile("state.json"))
            self.step, self.tokens, self.trained = state["step"], state["tokens"], state["seconds"]
        self.first_progress = self.arguments.from_progress
        say(f"resumed at step {self.step}, progress {self.first_progress:.2f}")

    def make_optimizer(self) -> None:
        super().make_optimizer()
        self.warm_from = self.step
        self.tower_optimizer = TowerOptimizer(
            self.tower, self.teacher, self.arguments.tower_matrix_rate, self.arguments.tower_rate
        )

    def remember(self, folder: Path) -> None:
        """The model that book text is held to, whatever this run resumes from."""
        self.first_model = TinyM3(self.model.config).to(self.device)
        load_checkpoint(self.first_model, folder)

    def compile(self) -> None:
        torch._dynamo.config.recompile_limit = 64
        self.model.compile_layers()
        self.first_model.compile_layers()
        self.tower.compile_layers()
        self.losses = torch.compile(answer_losses, dynamic=False)

    def look(self, sent: dict):
        """features [rows, hidden] of the step's scenes, and what they are taught."""
        pixels, places, taught, there = [], [], [], []
        groups = [(sent[f"scenes{number}"], sent[f"things{number}"], cells, frames)
                  for number, (_, cells, frames) in enumerate(self.layout.groups)]  # fmt: skip
        for (scenes, things, *_), (levels, where, covers) in zip(groups, self.renderer.draw(groups)):
            pixels.append(patch_rows(levels))
            places.append(patch_places(where).flatten(0, 1))
            taught.append(lessons(scenes, things, where, covers).flatten(0, 1))
            there.append((where[..., 0] >= 0).flatten())
        features = self.tower(torch.cat(pixels), torch.cat(places), self.groups, self.dtype)
        return features, torch.cat(taught), torch.cat(there)

    def send(self, step: dict) -> dict:
        return {k: v.to(self.device, non_blocking=True) for k, v in step.items() if isinstance(v, torch.Tensor)}

    def autocast(self):
        return torch.autocast(self.device.type, torch.bfloat16, enabled=self.dtype == torch.bfloat16)

    def learn_to_see(self, feeder: Feeder, seconds: float) -> None:
        """The tower alone, with the teacher, at the full rate; scenes are used more than once."""
        kept, begun, shown, count, window = [], time.time(), time.time(), 0, []
        say("the tower alone")
        while time.time() - begun < seconds:
            if not kept or (len(kept) < 400 and not feeder.ready.empty()):
                step = feeder.ready.get()
                if isinstance(step, Exception):
                    raise step
                kept.append({k: v for k, v in step.items() if k[:6] in ("scenes", "things")})
            sent = self.send(kept[-1] if count % 2 == 0 else kept[count // 2 % len(kept)])
            with self.autocast():
                features, taught, there = self.look(sent)
                loss, *right = self.teacher(features, taught, there)
            loss.backward()
            self.tower_optimizer.step(min(1.0, (count + 1) / 50))
            window.append(torch.stack([loss.detach(), *right]))
            count += 1
            if count == 1:
                say("first step done")
                begun = max(begun, time.time() - 0.5 * seconds)
                shown = time.time()
            if time.time() - shown > self.arguments.show_seconds:
                loss, right, way = torch.stack(window).mean(0).tolist()
                say(f"tower step {count}, {len(kept)} units, loss {loss:.3f}, class right {right:.3f}, motion {way:.3f}")
                shown, window = time.time(), []
        with torch.no_grad():  # features as large as embeddings
            with self.autocast():
                features, _, there = self.look(sent)
            factor = EMBEDDING_SIZE / features[there].float().square().mean().sqrt()
            self.tower.merge_2.weight *= factor
            self.tower.merge_2.bias *= factor
        say(f"the tower alone: {count} steps; features scaled by {factor.item():.3f}")

    def train_step(self, step: dict):
        sent, progress = self.send(step), self.progress()
        ids, positions = sent["ids"].long(), sent["positions"].long()
        targets = torch.cat([ids[1:], ids[:1]])
        with self.autocast():
            plan = Plan(positions, step["segments"], self.model.config)
            features, taught, there = self.look(sent)
            output = self.model(
                ids, positions, plan, self.attend, True, (*step["taught"], sent["queries"]), None, self.dtype,
                (features, sent["rows"].long()),
            )  # fmt: skip
            # With gradients, so that the graphs compiled for training serve here too.
            before = self.first_model(ids, positions, plan, self.attend, True, None, None, self.dtype).hidden.detach()
            pictures, texts, soft = self.losses(
                output.hidden, self.model.lm_head.weight, targets, sent["pictures"], sent["texts"], sent["soft"],
                before, self.first_model.lm_head.weight.detach(), self.arguments.held_texts,
            )  # fmt: skip
            lesson, right, way = self.teacher(features, taught, there)
        share = 0.0 if self.arguments.resume else 0.1 + 0.4 * (1 - progress)  # the teacher itself is not kept
        (pictures + self.arguments.text_weight * (texts + soft) + share * lesson + output.index_loss).backward()
        count = self.step - self.warm_from
        left = max(0.02, 1 - progress) * self.slower
        norm = self.optimizer.step(self.arguments.text_share * left * min(1.0, (count + 1) / 100))
        self.tower_optimizer.step(0.8 * left * min(1.0, (count + 1) / 20))
        self.model.balance(output.loads, train.BALANCE_STEP * 0.25)
        self.step += 1
        self.tokens += self.layout.total
        self.seen.append(torch.stack([x.detach().float() for x in (pictures, texts, soft, lesson, right, way)]))
        if len(self.seen) >= self.arguments.show_steps:
            values = torch.stack(self.seen).mean(0).tolist()
            self.seen = []
            names = ("pictures", "texts", "books", "cells", "class right", "motion right")
            say("  " + ", ".join(f"{name} {value:.3f}" for name, value in zip(names, values)))
        return pictures.detach(), output.index_loss.detach(), norm, output.loads.max()

    def keep(self) -> None:
        parts = [self.model.state_dict(), self.optimizer.state(), self.tower.state_dict(), self.tower_optimizer.state()]
        self.good = [train.json_like_clone(part) for part in parts]

    def go_back(self) -> None:
        super().go_back()
        self.tower.load_state_dict(self.good[2])
        self.tower_optimizer.load(train.json_like_clone(self.good[3]))

    def save(self, progress: float | None = None, **more) -> None:
        out = self.arguments.out
        new = self.arguments.units.parent / "saving"
        new.mkdir(parents=True, exist_ok=True)
        export_checkpoint(self.model, new, not self.arguments.finished, self.tower)
        save_tokenizer(self.arguments.tokenizer, new, self.model.config.max_position_embeddings)
        (new / "chat_template.jinja").write_text((self.arguments.data / "chat_template.jinja").read_text())
        state = {"step": self.step, "tokens": self.tokens, "seconds": self.trained,
                 "progress": self.progress() if progress is None else progress}  # fmt: skip
        write_json(new / "state.json", state)
        (new / "training.log").write_text("\n".join(train.LOG) + "\n")
        for name, value in more.items():
            write_json(new / f"{name}.json", value)
        out.mkdir(parents=True, exist_ok=True)
        with tarfile.open(new / "rest.tar.gz", "w:gz") as file:
            for path in sorted(new.iterdir()):
                if path.suffix not in (".safetensors", ".gz"):
                    file.add(path, path.name)
        for path in new.iterdir():
            if path.suffix in (".safetensors", ".gz"):
                beside = out / ("new-" + path.name)
                beside.write_bytes(path.read_bytes())
                os.replace(beside, out / path.name)
        say(f"saved to {out}")

    def questions_right(self, units: list[dict]) -> dict[str, tuple[int, int]]:
        """By kind, how many questions of the units greedy decoding answers, and how many there are."""
        counts = {kind: [0, 0] for kind in KINDS}
        for unit in units:
            long = {"ids": np.zeros(self.layout.long, np.uint16), "weights": np.zeros(self.layout.long, np.uint8)}
            length = min(self.layout.long, 4096)
            step = make_step(unit, long, length, self.layout, train.Random(0), np.random.default_rng(0))
            sent = self.send(step)
            ids, positions = sent["ids"].long(), sent["positions"].long()
            with self.autocast():
                plan = Plan(positions, step["segments"], self.model.config)
                features = self.look(sent)[0].detach()
                hidden = self.model(
                    ids, positions, plan, self.attend, True, None, None, self.dtype, (features, sent["rows"].long())
                ).hidden.detach()
                with torch.no_grad():
                    best = self.model.logits(hidden).argmax(-1).cpu().numpy()
            wanted = step["ids"].numpy()
            for begin, end, kind in unit["questions"]:
                if end:
                    counts[KINDS[kind]][0] += bool((best[begin - 1 : end - 1] == wanted[begin:end]).all())
                    counts[KINDS[kind]][1] += 1
        return counts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="tokenizer, template, books, words, sprites")
    parser.add_argument("--units", type=Path, required=True, help="where sight_units.py's workers write")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--start", type=Path, required=True, help="the text model: begun from, and what texts are held to")
    parser.add_argument("--resume", type=Path, help="an earlier --out to go on from")
    parser.add_argument("--from-progress", type=float, default=0.7, help="with --resume: where in the schedule to go on")
    parser.add_argument("--to-progress", type=float, default=1.0)
    parser.add_argument("--seconds", type=float, default=480, help="of the whole call")
    parser.add_argument("--reserve", type=float, default=30, help="seconds of it kept for saving and evaluation")
    parser.add_argument("--tower-seconds", type=float, default=50, help="for the tower alone")
    parser.add_argument("--save-seconds", type=float, default=150)
    parser.add_argument("--show-seconds", type=float, default=10)
    parser.add_argument("--show-steps", type=int, default=100)
    parser.add_argument("--matrix-rate", type=float, default=3e-3)
    parser.add_argument("--rate", type=float, default=2.5e-3)
    parser.add_argument("--tower-matrix-rate", type=float, default=4e-3)
    parser.add_argument("--tower-rate", type=float, default=2e-3)
    parser.add_argument("--text-share", type=float, default=TEXT_SHARE, help="of the rates, for the text model")
    parser.add_argument("--text-weight", type=float, default=0.7, help="of the losses on texts beside that on pictures")
    parser.add_argument("--held-texts", type=float, default=0.0, help="share of the other texts held to --start as books are")
    parser.add_argument("--finished", action="store_true", help="leave out the low bits: no call goes on from it")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--cores", type=int, default=0)
    parser.add_argument("--no-text-evaluation", action="store_true")
    parser.add_argument("--toy", action="store_true", help="few tokens a step, to try everything on a CPU")
    arguments = parser.parse_args()

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.set_float32_matmul_precision("high")
    tokenizer = arguments.tokenizer = Tokenizer.from_file(str(arguments.data / "tokenizer.json"))
    layout, shares = SightLayout(), sight_units.LONG_SHARES
    if arguments.toy:
        layout, shares = sight_units.TOY, sight_units.TOY_SHARES
    trainer = SightTrainer(arguments, ModelConfig(), TowerConfig(), layout, device)
    trainer.resume(arguments.resume) if arguments.resume else trainer.begin_from(arguments.start)
    trainer.remember(arguments.start)
    trainer.make_optimizer()
    parameters = [sum(p.numel() for p in part.parameters()) for part in (trainer.model, trainer.tower)]
    say(f"{parameters[0] / 1e6:.2f} M parameters and {parameters[1] / 1e6:.2f} M of the tower on {device}")
    feeder = SightFeeder(Units(arguments.units), layout, shares, arguments.seed + trainer.step, trainer.progress)
    first = feeder.ready.get()
    if isinstance(first, Exception):
        raise first
    if device.type == "cuda":
        trainer.compile()
        trainer.check_flex(first)
        trainer.attend = attend_flex
    if not arguments.resume:
        trainer.learn_to_see(feeder, arguments.tower_seconds)
    trainer.run(feeder)
    feeder.stopped = True
    trainer.save(arguments.to_progress)
    result = {}
    try:
        with np.load(arguments.units / "held.npz") as file:
            held = [dict(zip(file.files, unit)) for unit in zip(*(file[name] for name in file.files))]
        for kind, (right, count) in trainer.questions_right(held).items():
            result[kind] = round(right / max(1, count), 4)
            say(f"{kind}: {result[kind]} of {count}")
        if not arguments.no_text_evaluation:
            words = json.loads((arguments.data / "words.json").read_text())
            chat, books = ChatRenderer(tokenizer, arguments.data / "chat_template.jinja"), unpack(arguments.data / "heldout.xz")
            evaluator = Evaluator(trainer.model, chat, books, words, trainer.attend, layout.total, trainer.dtype)
            result |= report(evaluator, say)
    except Exception as error:  # never at the cost of the training
        say(f"evaluation failed: {error!r}")
    result["training"] = {
        "steps": trainer.step, "tokens": trainer.tokens, "seconds": round(trainer.trained, 1), "parameters": parameters,
        "device": torch.cuda.get_device_name() if device.type == "cuda" else "CPU",
        "tower": asdict(trainer.tower.config),
    }  # fmt: skip
    trainer.save(arguments.to_progress, evaluation=result)
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
