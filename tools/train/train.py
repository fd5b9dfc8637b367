"""Trains the small prose checkpoint and writes it in the published layout.

    python3 tools/train/train.py --data prose-data --work work --out checkpoint \
        --train-seconds 360 --seconds 480

Three stages, by share of --train-seconds: dense attention while a KL loss teaches the indexer which
blocks attention looks at; sparse attention through the blocks the indexer chooses; the same on longer
sequences. The state is saved to --work from time to time and when --seconds run out, and --resume goes
on from it: the same batches, learning rate and stage as if training had not stopped.
"""

import argparse
import json
import os
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from data import Corpus, make_batch
from evaluate import Evaluator, full_report
from export import export_checkpoint
from model import BLOCK, HEAD_DIM, Attended, ModelConfig, TinyM3, attend_flex, attend_masked
from tokenizer import save_tokenizer, write_json

START = time.monotonic()
BALANCE_STEP = 0.002  # change of a correction bias per step


@dataclass(frozen=True)
class Stage:
    name: str
    until: float  # share of the training time
    sparse: bool
    stretch: int  # sequences so many times as long, and so many times fewer


STAGES = [
    Stage("dense", 0.68, False, 1),
    Stage("sparse", 0.86, True, 1),
    Stage("sparse, long", 1.0, True, 2),
]


def say(text: str) -> None:
    print(f"[{time.monotonic() - START:6.1f} s] {text}", flush=True)


def learning_rate(step: int, progress: float, peak: float) -> float:
    """Warm-up over 100 steps, flat, then linear from 30 % of the time down to 2 % of the peak."""
    return peak * min(1.0, (step + 1) / 100) * min(1.0, max(0.02, (1 - progress) / 0.7))


def token_loss(hidden, head, targets, weights):
    loss = F.cross_entropy(F.linear(hidden, head).float().flatten(0, 1), targets.flatten(), reduction="none")
    weights = weights.flatten()
    return (loss * weights).sum() / weights.sum()


def index_rows(tokens: int, step: int, device):
    """Rows whose block scores are taught in this step, a quarter of them among the questions at the end."""
    random = np.random.default_rng(step)
    rows = [random.integers(BLOCK, tokens, 48), random.integers(tokens - BLOCK, tokens, 16)]
    return torch.from_numpy(np.concatenate(rows)).to(device)


def check_flex(device, rows: int, tokens: int, config: ModelConfig) -> None:
    """Fails unless attend_flex agrees with attend_masked in output and gradients, at the shape trained."""
    generator = torch.Generator(device).manual_seed(0)

    def draw(heads):
        shape = (rows, tokens, heads, HEAD_DIM)
        values = torch.randn(shape, generator=generator, device=device, dtype=torch.bfloat16)
        return values.transpose(1, 2).requires_grad_()

    q, k, v = draw(config.num_attention_heads), draw(config.num_key_value_heads), draw(config.num_key_value_heads)
    blocks = tokens // BLOCK
    own = torch.arange(tokens, device=device) // BLOCK
    earlier = torch.arange(blocks, device=device)[None] < own[:, None]
    chosen = torch.rand(rows, config.num_key_value_heads, tokens, blocks, generator=generator, device=device) < 0.15
    chosen = (chosen & earlier) | F.one_hot(own, blocks).bool()
    part = Attended(q, k, v, chosen, torch.zeros((), device=device))
    results = []
    for attend in (attend_masked, attend_flex):
        output = attend(part)
        gradients = torch.autograd.grad(output.float().square().mean() * 1e3, (q, k, v))
        results.append([output, *gradients])
    errors = [((a - b).float().norm() / a.float().norm()).item() for a, b in zip(*results)]
    say(f"flex attention against masks, relative error of output and q, k, v gradients: {errors}")
    if not all(error < 0.02 for error in errors):
        raise RuntimeError("flex attention is wrong on this device")


class Trainer:
    def __init__(self, arguments, corpus: Corpus, device):
        self.arguments, self.corpus, self.device = arguments, corpus, device
        torch.manual_seed(arguments.seed)
        self.model = TinyM3(ModelConfig()).to(device)
        decayed = [p for p in self.model.parameters() if p.ndim == 2]
        others = [p for p in self.model.parameters() if p.ndim != 2]
        groups = [{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
        self.optimizer = torch.optim.AdamW(groups, lr=arguments.rate, betas=(0.9, 0.95), fused=True)
        self.step, self.tokens, self.trained = 0, 0, 0.0  # trained: seconds, over all calls
        self.loss_function = token_loss
        self.sparse_attend = attend_masked

    def compile(self) -> None:
        torch._dynamo.config.recompile_limit = 64  # two kinds of layer, three stages, shared code
        self.model.compile_layers()
        self.loss_function = torch.compile(token_loss, dynamic=False)
        check_flex(self.device, self.arguments.rows, self.arguments.length, self.model.config)
        self.sparse_attend = attend_flex

    @property
    def progress(self) -> float:
        return self.trained / self.arguments.train_seconds

    def shape(self, stage: Stage) -> tuple[int, int]:
        return self.arguments.rows // stage.stretch, self.arguments.length * stage.stretch

    def save(self) -> None:
        """Whole or not at all: written beside the old state, then renamed over it."""
        path = self.arguments.work / "state.pt"
        state = {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "counts": (self.step, self.tokens, self.trained),
            "torch_rng": torch.get_rng_state(),
        }
        torch.save(state, path.with_suffix(".new"))
        os.replace(path.with_suffix(".new"), path)

    def resume(self) -> None:
        state = torch.load(self.arguments.work / "state.pt", map_location=self.device, weights_only=True)
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.step, self.tokens, self.trained = state["counts"]
        torch.set_rng_state(state["torch_rng"].cpu())
        say(f"resumed at step {self.step}, {self.trained:.0f} s of training")

    def train_step(self, stage: Stage, ids, weights):
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate(self.step, self.progress, self.arguments.rate)
        ids, weights = (torch.from_numpy(a).to(self.device, non_blocking=True) for a in (ids, weights))
        sparse = stage.sparse and not self.arguments.dense_only
        rows = index_rows(ids.shape[1] - 1, self.step, self.device)
        with torch.autocast(self.device.type, torch.bfloat16):
            output = self.model(ids[:, :-1], rows, self.sparse_attend if sparse else None)
            loss = self.loss_function(output.hidden, self.model.lm_head.weight, ids[:, 1:], weights[:, 1:])
        (loss + output.index_loss).backward()
        norm = nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        if not norm.isfinite():
            raise FloatingPointError(f"gradients are not finite at step {self.step}, loss {loss.item()}")
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.model.balance(output.loads, BALANCE_STEP)
        self.step += 1
        self.tokens += ids.shape[0] * (ids.shape[1] - 1)
        return loss.detach(), output.index_loss.detach(), output.loads

    def run(self) -> bool:
        """Trains until --train-seconds are reached (True) or the call's --seconds run out (False)."""
        deadline = START + self.arguments.seconds - self.arguments.reserve
        saved = shown = begun = time.monotonic()
        before, shown_tokens = self.trained, self.tokens
        for number, stage in enumerate(STAGES):
            if self.progress >= stage.until:
                continue
            self.save()
            rows, length = self.shape(stage)
            say(f"stage {number + 1} ({stage.name}): {rows} x {length} tokens a step")
            with ThreadPoolExecutor(1) as maker:

                def order(step, rows=rows, length=length):
                    share = self.arguments.planted_share
                    return maker.submit(make_batch, self.corpus, self.arguments.seed, step, rows, length, share)

                waiting = [order(self.step + ahead) for ahead in range(4)]
                while self.progress < stage.until:
                    batch = waiting.pop(0).result()
                    waiting.append(order(self.step + 4))
                    loss, index_loss, loads = self.train_step(stage, *batch)
                    now = time.monotonic()
                    self.trained = before + now - begun
                    if now - shown > self.arguments.show_seconds:
                        speed = (self.tokens - shown_tokens) / (now - shown)
                        fair = loads.mean().item()
                        say(
                            f"step {self.step}, {self.tokens / 1e6:.0f} M tokens, {speed / 1e3:.0f} K/s, "
                            f"loss {loss.item():.3f}, index KL {index_loss.item():.3f}, "
                            f"fullest expert {loads.max().item() / fair:.2f} of fair"
                        )
                        shown, shown_tokens = now, self.tokens
                    if now - saved > self.arguments.save_seconds or now > deadline:
                        self.save()
                        saved = now
                    if now > deadline:
                        say(f"out of time at step {self.step}; go on with --resume")
                        return False
                for future in waiting:
                    future.cancel()
        self.save()
        return True


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder written by prepare.py")
    parser.add_argument("--work", type=Path, required=True, help="where the resumable state lives")
    parser.add_argument("--out", type=Path, required=True, help="where the finished checkpoint goes")
    parser.add_argument("--train-seconds", type=float, default=360, help="training time, over all calls")
    parser.add_argument("--seconds", type=float, default=480, help="wall clock of this call")
    parser.add_argument("--reserve", type=float, default=60, help="seconds kept for evaluation and export")
    parser.add_argument("--save-seconds", type=float, default=120)
    parser.add_argument("--show-seconds", type=float, default=15)
    parser.add_argument("--rows", type=int, default=24)
    parser.add_argument("--length", type=int, default=4096)
    parser.add_argument("--rate", type=float, default=3e-3)
    parser.add_argument("--planted-share", type=float, default=0.3)
    parser.add_argument("--trials", type=int, default=64, help="planted-sentence trials per length")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--dense-only", action="store_true", help="never attend through chosen blocks")
    parser.add_argument("--resume", action="store_true")
    arguments = parser.parse_args()
    arguments.work.mkdir(parents=True, exist_ok=True)

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.set_float32_matmul_precision("high")  # fp32 products here have bf16 inputs, which TF32 keeps exactly
    corpus = Corpus(arguments.data)
    trainer = Trainer(arguments, corpus, device)
    parameters = sum(p.numel() for p in trainer.model.parameters())
    say(f"{parameters / 1e6:.2f} M parameters, {len(corpus.train) / 1e6:.1f} M tokens of text")
    if arguments.resume:
        trainer.resume()
    if device.type == "cuda":
        trainer.compile()
    if not trainer.run():
        return

    say(f"trained: {trainer.step} steps, {trainer.tokens / 1e6:.0f} M tokens, {trainer.trained:.0f} s")
    torch.set_float32_matmul_precision("highest")
    trainer.model.round_to_bf16()
    export_checkpoint(trainer.model, arguments.out)
    save_tokenizer(corpus.tokenizer, arguments.out, trainer.model.config.max_position_embeddings)
    say(f"checkpoint in {arguments.out}")
    report = full_report(Evaluator(trainer.model, corpus, device), arguments.trials)
    report["training"] = {
        "steps": trainer.step,
        "tokens": trainer.tokens,
        "seconds": round(trainer.trained, 1),
        "parameters": parameters,
        "device": torch.cuda.get_device_name() if device.type == "cuda" else "CPU",
        "model": asdict(trainer.model.config),
    }
    write_json(arguments.work / "evaluation.json", report)
    say(json.dumps(report))


if __name__ == "__main__":
    main()
