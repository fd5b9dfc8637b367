"""Runs transformers' minimax_m3_vl on a checkpoint folder and records what it did at chosen positions.

Rules that make it a reference: loaded in float32 (the bf16 run loads with dtype=bfloat16 and is never cast
as a whole, which would round RoPE's inv_freq too); eager attention; layer outputs by hooks, since
output_hidden_states[-1] is after the final norm; block choices sorted, since transformers orders them by score.
"""
import json
import math
import os
import tempfile
from pathlib import Path

import numpy as np
import torch
from transformers import AutoConfig, DynamicCache, MiniMaxM3SparseForConditionalGeneration, MiniMaxM3VLForCausalLM
from transformers.utils import logging

logging.set_verbosity_error()
logging.disable_progress_bar()

# Text-only folders get this tower, never used, because transformers' class always builds one.
STAND_IN_VISION = {"model_type": "minimax_m3_vl_vision", "hidden_size": 32, "intermediate_size": 32,
                   "num_hidden_layers": 1, "num_attention_heads": 2, "image_size": 28}


def load(folder, dtype, quantized=False, tower=False):
    """The model of `folder`, every text tensor found in it (checked), and with `tower` every tensor of the tower.
    `quantized`: transformers dequantises."""
    config = json.loads((Path(folder) / "config.json").read_text())
    if quantized:
        config["quantization_config"]["dequantize"] = True
    else:
        config.pop("quantization_config", None)
    text_only_save = config["model_type"] == "minimax_m3_vl_text"
    kind = MiniMaxM3VLForCausalLM if text_only_save else MiniMaxM3SparseForConditionalGeneration
    if not text_only_save and "vision_config" not in config:
        config["vision_config"] = STAND_IN_VISION
        config["projector_hidden_size"] = 32
    with tempfile.TemporaryDirectory() as scratch:
        for file in Path(folder).resolve().iterdir():
            if file.name != "config.json":
                os.symlink(file, Path(scratch) / file.name)
        (Path(scratch) / "config.json").write_text(json.dumps(config))
        parsed = AutoConfig.from_pretrained(scratch)
        model, info = kind.from_pretrained(scratch, config=parsed, dtype=dtype, attn_implementation="eager",
                                           output_loading_info=True)
    not_text = ("vision_tower", "multi_modal_projector", "patch_merge_mlp")
    missing = [k for k in info["missing_keys"] if tower or not any(t in k for t in not_text)]
    assert not missing and not info["unexpected_keys"] and not info["mismatched_keys"], info
    rotary = text_model(model).rotary_emb
    assert rotary.inv_freq.shape == (32,) and rotary.inv_freq.dtype == torch.float32
    assert text_model(model).config.rope_parameters["partial_rotary_factor"] == 0.5
    check_yarn(rotary)
    for name, parameter in model.named_parameters():
        assert parameter.dtype == dtype, name
    return model.eval()


def check_yarn(rotary):
    """transformers' YaRN table against the formula the engine follows."""
    scaling = rotary.config.rope_parameters
    if scaling["rope_type"] == "default":
        assert rotary.attention_scaling == 1.0
        return
    assert scaling["rope_type"] == "yarn"
    theta, factor, original = scaling["rope_theta"], scaling["factor"], scaling["original_max_position_embeddings"]

    def correction(turns):
        return 64 * math.log(original / (2 * math.pi * turns)) / (2 * math.log(theta))

    low, high = max(math.floor(correction(32)), 0), min(math.ceil(correction(1)), 63)
    i = np.arange(32)
    ramp = np.clip((i - low) / (high - low), 0, 1)
    plain = theta ** (-2 * i / 64)
    expected = plain * (1 - ramp) + plain / factor * ramp
    assert np.allclose(rotary.inv_freq.numpy(), expected, rtol=1e-6)
    assert abs(rotary.attention_scaling - (0.1 * math.log(factor) + 1)) < 1e-12


def text_model(model):
    return model.model.language_model if hasattr(model.model, "language_model") else model.model


class Recorder:
    """Hooks that keep the rows of `positions` of every layer, in absolute positions, whatever the chunking."""

    def __init__(self, model, positions):
        self.text = text_model(model)
        self.config = self.text.config
        self.positions = np.asarray(positions)
        self.start = 0
        self.rows = {}
        self.handles = []
        for index, layer in enumerate(self.text.layers):
            if index == 0:
                self.hook(layer.register_forward_pre_hook(self.layer_input, with_kwargs=True))
            self.hook(layer.register_forward_hook(lambda m, a, out, i=index: self.keep(f"hidden.{i + 1}", out[0])))
            if layer.self_attn.indexer is not None:
                self.hook(layer.self_attn.indexer.register_forward_hook(
                    lambda m, a, k, out, i=index: self.blocks(i, m, a, out), with_kwargs=True))
            if hasattr(layer.mlp, "gate"):
                self.hook(layer.mlp.gate.register_forward_hook(
                    lambda m, a, out, i=index: self.experts(i, m, out)))
        self.hook(self.text.norm.register_forward_hook(lambda m, a, out: self.keep("final_norm", out[0])))

    def hook(self, handle):
        self.handles.append(handle)

    def remove(self):
        for handle in self.handles:
            handle.remove()

    def local(self, count):
        inside = (self.positions >= self.start) & (self.positions < self.start + count)
        return torch.from_numpy(self.positions[inside] - self.start)

    def layer_input(self, module, args, kwargs):
        self.keep("hidden.0", (args[0] if args else kwargs["hidden_states"])[0])

    def keep(self, name, values):
        rows = values[self.local(values.shape[0])]
        self.rows.setdefault(name, []).append(rows.float() if rows.is_floating_point() else rows)

    def blocks(self, layer, indexer, args, chosen):
        """chosen [1, heads, tokens, <= top-k] in transformers' order. Margins from scores formed here again."""
        hidden, (cos, sin), cache, _ = args
        local = self.local(hidden.shape[1])
        heads, top = indexer.num_heads, indexer.topk_blocks
        keys = cache.layers[layer].idx_keys[0, 0].float()
        ids = np.full((len(local), heads, top), -1, np.int32)
        margins = np.full((len(local), heads), np.inf, np.float32)
        for row, t in enumerate(local.tolist()):
            position = self.start + t
            query = indexer.q_norm(indexer.q_proj(hidden[0, t]).view(heads, -1)).float()
            c, s = cos[0, t].float(), sin[0, t].float()
            half = c.shape[-1] // 2
            a, b, rest = query[:, :half], query[:, half:2 * half], query[:, 2 * half:]
            query = torch.cat([a * c[:half] - b * s[:half], b * c[:half] + a * s[:half], rest], -1)
            score = query @ keys[:position + 1].T
            visible = position // indexer.block_size + 1
            for head in range(heads):
                best = np.array([score[head, n * 128:(n + 1) * 128].max().item() for n in range(visible)])
                picked = sorted(int(v) for v in chosen[0, head, t] if v >= 0)
                assert len(picked) == min(visible, top) and picked[-1] == visible - 1
                ids[row, head, :len(picked)] = picked
                free = [n for n in picked if n < visible - indexer.local_blocks]
                others = [n for n in range(visible) if n not in picked]
                if free and others:
                    margins[row, head] = (best[free].min() - best[others].max()) / np.abs(best).max()
                    if hidden.dtype == torch.float32:
                        assert margins[row, head] > -1e-5, "transformers chose otherwise than these scores say"
        self.rows.setdefault(f"block_ids.{layer}", []).append(torch.from_numpy(ids))
        self.rows.setdefault(f"block_margin.{layer}", []).append(torch.from_numpy(margins))

    def experts(self, layer, router, out):
        logits, weights, ids = out
        local = self.local(ids.shape[0])
        order = ids[local].argsort(-1)
        self.rows.setdefault(f"expert_ids.{layer}", []).append(ids[local].gather(-1, order).int())
        self.rows.setdefault(f"expert_weights.{layer}", []).append(weights[local].gather(-1, order).float())
        score = torch.sigmoid(logits[local].float()) + router.e_score_correction_bias.float()
        mask = torch.zeros_like(score, dtype=torch.bool).scatter_(-1, ids[local], True)
        lowest = score.masked_fill(~mask, float("inf")).amin(-1)
        highest = score.masked_fill(mask, float("-inf")).amax(-1)
        self.rows.setdefault(f"expert_margin.{layer}", []).append((lowest - highest) / score.abs().amax(-1))

    def result(self):
        return {name: torch.cat(parts).numpy() for name, parts in self.rows.items()}


@torch.no_grad()
def prefill(model, tokens, chunk, recorder=None):
    """(cache, logits of the wanted rows, logits of the last row); recorder None wants no rows."""
    cache = DynamicCache(config=text_model(model).config)
    wanted = []
    for start in range(0, len(tokens), chunk):
        part = torch.from_numpy(np.asarray(tokens[start:start + chunk], dtype=np.int64))[None]
        if recorder:
            recorder.start = start
        logits = model(input_ids=part, cache=cache, use_cache=True).logits[0].float()
        if recorder:
            wanted.append(logits[recorder.local(part.shape[1])])
        last = logits[-1]
    return cache, torch.cat(wanted).numpy() if recorder else None, last


@torch.no_grad()
def greedy(model, cache, last, count):
    """Greedy ids [count] and top1 - top2 margins, one token a call through the cache."""
    ids, margins = [], []
    for step in range(count):
        top = last.topk(2).values
        ids.append(int(last.argmax()))
        margins.append(float(top[0] - top[1]))
        if step + 1 < count:
            last = model(input_ids=torch.tensor([[ids[-1]]]), cache=cache, use_cache=True).logits[0, -1].float()
    return np.array(ids, np.int32), np.array(margins, np.float32)


@torch.no_grad()
def greedy_again(model, tokens, ids, chunk):
    """The same continuation read off one prefill of prompt + ids. chunk 0: one call without any cache."""
    everything = np.concatenate([np.asarray(tokens), ids[:-1]]).astype(np.int64)
    if not chunk:
        logits = model(input_ids=torch.from_numpy(everything)[None], use_cache=False).logits[0].float()
    else:
        cache, rows = DynamicCache(config=text_model(model).config), []
        for start in range(0, len(everything), chunk):
            part = torch.from_numpy(everything[start:start + chunk])[None]
            rows.append(model(input_ids=part, cache=cache, use_cache=True).logits[0].float())
        logits = torch.cat(rows)
    return logits[len(tokens) - 1:].argmax(-1).numpy().astype(np.int32)


def first_choice(model):
    """The first position with more visible blocks than may be chosen."""
    config = text_model(model).config
    return config.index_topk_blocks * config.index_block_size


def dense_logits(model, tokens, positions, chunk):
    """What the sparse layers would give with every block chosen: shows how much the choice matters."""
    indexers = [layer.self_attn.indexer for layer in text_model(model).layers if layer.self_attn.indexer]
    kept = indexers[0].topk_blocks
    for indexer in indexers:
        indexer.topk_blocks = 1 << 30
    recorder = Recorder(model, positions)
    recorder.remove()
    logits = prefill(model, tokens, chunk, recorder)[1]
    for indexer in indexers:
        indexer.topk_blocks = kept
    return logits


def relative(values, reference):
    """norm(a - b) / norm(b) over the last axis."""
    values, reference = values.astype(np.float64), reference.astype(np.float64)
    return (np.linalg.norm(values - reference, axis=-1) / np.linalg.norm(reference, axis=-1)).astype(np.float32)


def run(folder, tokens, positions, chunk, greedy_count=16, bf16=True, no_cache=True, adjust=None):
    """All tensors of expected.safetensors (numpy) and the facts for meta.json."""
    model = load(folder, torch.float32)
    if adjust:
        adjust(model)
    recorder = Recorder(model, positions)
    cache, logits, last = prefill(model, tokens, chunk, recorder)
    recorder.remove()
    out = {"positions": np.asarray(positions, np.int32), **recorder.result(), "logits": logits}
    layers = len(text_model(model).layers)
    assert out["hidden.0"].shape[0] == len(positions) and f"hidden.{layers}" in out
    out["greedy_ids"], out["greedy_margin"] = greedy(model, cache, last, greedy_count)
    del cache
    again = greedy_again(model, tokens, out["greedy_ids"], 0 if no_cache else max(chunk - 200, 64))
    assert np.array_equal(again, out["greedy_ids"]), (again, out["greedy_ids"], out["greedy_margin"])
    facts = {
        "greedy_with_cache_equals": "one call without a cache" if no_cache else "a prefill in other chunks",
    }
    out_dense = dense_logits(model, tokens, positions, chunk)
    late = np.asarray(positions) >= first_choice(model)
    facts["median_logit_change_if_dense"] = round(float(np.median(relative(out_dense, logits)[late])), 4)
    if bf16:
        del model
        model = load(folder, torch.bfloat16)
        if adjust:
            adjust(model)
        recorder = Recorder(model, positions)
        _, half_logits, _ = prefill(model, tokens, chunk, recorder)
        half = recorder.result()
        out["bf16_error.hidden"] = np.stack([relative(half[f"hidden.{i}"], out[f"hidden.{i}"])
                                             for i in range(layers + 1)])
        out["bf16_error.logits"] = relative(half_logits, out["logits"])
        for name in [n for n in out if n.startswith("block_ids.")]:
            common = [[len(set(a[a >= 0]) & set(b[b >= 0])) / (a >= 0).sum() for a, b in zip(x, y)]
                      for x, y in zip(out[name], half[name])]
            out[name.replace("block_ids", "bf16_block_overlap")] = np.array(common).mean(-1).astype(np.float32)
    return out, facts


def summary(out):
    """A few figures a reader wants before trusting a case: nothing explodes, and choice is not degenerate."""
    layers = max(int(n.split(".")[1]) for n in out if n.startswith("hidden."))
    info = {"hidden_rms": [round(float(np.sqrt((out[f"hidden.{i}"] ** 2).mean())), 4) for i in range(layers + 1)],
            "logits_rms": round(float(np.sqrt((out["logits"] ** 2).mean())), 4),
            "smallest_greedy_margin": round(float(out["greedy_margin"].min()), 6)}
    for kind in ("block_margin", "expert_margin"):
        values = {n.split(".")[1]: out[n][np.isfinite(out[n])] for n in out if n.startswith(kind + ".")}
        info[f"smallest_{kind}"] = {k: float(f"{v.min():.3g}") for k, v in values.items() if v.size}
    choices = {n.split(".")[1]: out[n][out["positions"] == out["positions"].max()][0].tolist()
               for n in out if n.startswith("block_ids.")}
    info["last_position_blocks"] = choices
    if "bf16_error.logits" in out:
        info["bf16_median_error"] = {"last_hidden": round(float(np.median(out["bf16_error.hidden"][-1])), 5),
                                     "logits": round(float(np.median(out["bf16_error.logits"])), 5)}
        info["bf16_mean_block_overlap"] = {n.split(".")[1]: round(float(out[n].mean()), 4)
                                           for n in out if n.startswith("bf16_block_overlap.")}
    return info
