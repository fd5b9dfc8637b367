"""A second forward pass, written from the model's description and not from transformers, in float32.

It guards the reference against surprises (`check` compares it with every seeded case) and gives the goldens
for what transformers does not have: forced initial blocks, and block choices reused across layers.

    independent_forward.py check GOLDENS_FOLDER     largest relative differences against the stored cases
    independent_forward.py make GOLDENS_FOLDER      writes init_block, reuse_freq, reuse_pattern
"""
import json
import sys
from pathlib import Path

import numpy as np
import torch
from safetensors.numpy import load_file, save_file

import cases
from published import layer_kinds, tensor_shapes, text_config, whole_config
from seeded_weights import seeded_tensor

HEAD, BLOCK, HALF = 128, 128, 32


def gemma_norm(x, weight):
    return x / torch.sqrt((x * x).mean(-1, keepdim=True) + 1e-6) * (1 + weight)


def swiglu(gate, up, text):
    gate = torch.minimum(gate, torch.tensor(text["swiglu_limit"]))
    up = up.clamp(-text["swiglu_limit"], text["swiglu_limit"])
    return gate * torch.sigmoid(text["swiglu_alpha"] * gate) * (up + text.get("swiglu_beta", 1.0))


class Rotary:
    def __init__(self, text, count):
        rope = text.get("rope_parameters", text)
        theta = float(rope["rope_theta"])
        i = np.arange(HALF)
        frequency = theta ** (-2.0 * i / 64)
        scale = 1.0
        scaling = text.get("rope_scaling")
        if scaling:
            factor, original = scaling["factor"], scaling["original_max_position_embeddings"]
            turn = [64 * np.log(original / (2 * np.pi * r)) / (2 * np.log(theta)) for r in (32, 1)]
            low, high = max(np.floor(turn[0]), 0), min(np.ceil(turn[1]), 63)
            ramp = np.clip((i - low) / (high - low), 0, 1)
            frequency = frequency * (1 - ramp) + frequency / factor * ramp
            scale = 0.1 * np.log(factor) + 1
        angle = np.arange(count, dtype=np.float32)[:, None] * frequency.astype(np.float32)
        self.cos = torch.from_numpy((np.cos(angle) * scale).astype(np.float32))[:, None]
        self.sin = torch.from_numpy((np.sin(angle) * scale).astype(np.float32))[:, None]

    def __call__(self, x):
        """x [T, heads, 128]: the first 64 values of a head rotate in half-split pairs."""
        a, b = x[..., :HALF], x[..., HALF:2 * HALF]
        return torch.cat([a * self.cos - b * self.sin, b * self.cos + a * self.sin, x[..., 2 * HALF:]], -1)


def sparse_settings(text):
    """(top-k, init, local) from either spelling."""
    own = text.get("sparse_attention_config")
    if own:
        return own["sparse_topk_blocks"], own.get("sparse_init_block", 0), own.get("sparse_local_block", 1)
    return text["index_topk_blocks"], 0, text["index_local_blocks"]


def reuses(text, ordinal):
    """Does the sparse layer of this ordinal take the last computed selection?"""
    if not text.get("use_index_cache"):
        return False
    pattern = text.get("index_topk_pattern")
    if pattern is not None:
        return ordinal < len(pattern) and pattern[ordinal] == "S"
    frequency = text.get("index_topk_freq", 1)
    return frequency > 1 and max(ordinal - text.get("index_skip_topk_offset", 0), 0) % frequency != 0


def choose(index_q, index_k, settings):
    """ids [T, heads, top-k] ascending and -1 padded, margins [T, heads]. Ties go to the lower id."""
    top, init, local = settings
    count, heads = index_q.shape[:2]
    ids = torch.full((count, heads, top), -1, dtype=torch.int32)
    margins = torch.full((count, heads), float("inf"))
    blocks = (count + BLOCK - 1) // BLOCK
    later = torch.arange(count)[:, None] < torch.arange(count)
    for head in range(heads):
        score = (index_q[:, head] @ index_k[:, 0].T).masked_fill(later, float("-inf"))
        score = torch.nn.functional.pad(score, (0, blocks * BLOCK - count), value=float("-inf"))
        best = score.view(count, blocks, BLOCK).amax(-1).numpy()
        for t in range(count):
            visible = t // BLOCK + 1
            own = best[t, :visible]
            forced = [b for b in range(visible) if b < init or b >= visible - local]
            free = sorted((b for b in range(visible) if b not in forced), key=lambda b: (-own[b], b))
            room = top - len(forced)
            picked = sorted(forced + free[:room])
            ids[t, head, :len(picked)] = torch.tensor(picked, dtype=torch.int32)
            if 0 < room < len(free):
                margins[t, head] = float((own[free[room - 1]] - own[free[room]]) / np.abs(own).max())
    return ids, margins


def attend(q, k, v, ids):
    """q [T, heads, 128], k and v [T, KV heads, 128], ids None (dense) or [T, KV heads, top-k] -> [T, heads * 128]."""
    count, heads = q.shape[:2]
    group = heads // k.shape[1]
    out = torch.empty_like(q)
    blocks = (count + BLOCK - 1) // BLOCK
    for head in range(heads):
        kv = head // group
        for start in range(0, count, 1024):
            rows = torch.arange(start, min(start + 1024, count))
            score = q[rows, head] @ k[:, kv].T * HEAD**-0.5
            allowed = torch.arange(count) <= rows[:, None]
            if ids is not None:
                chosen = torch.zeros(len(rows), blocks + 1, dtype=torch.bool)
                own = ids[rows, kv].long()
                chosen.scatter_(1, torch.where(own < 0, blocks, own), True)
                allowed &= chosen[:, :blocks].repeat_interleave(BLOCK, 1)[:, :count]
            out[rows, head] = score.masked_fill(~allowed, float("-inf")).softmax(-1) @ v[:, kv]
    return out.flatten(1)


def route(x, gate, bias, per_token):
    """ids ascending, weights (sum 1), margins; ties to the lower id."""
    probability = torch.sigmoid(x @ gate.T)
    score = probability + bias
    order = torch.sort(score, dim=-1, descending=True, stable=True)
    ids = order.indices[:, :per_token].sort(-1).values
    weights = probability.gather(1, ids)
    margin = (order.values[:, per_token - 1] - order.values[:, per_token]) / score.abs().amax(-1)
    return ids, weights / weights.sum(-1, keepdim=True), margin


def forward(text, weights, tokens):
    """Every row of: hidden (list), final_norm, logits, and per layer blocks and experts."""
    sparse, moe = layer_kinds(text)
    w = {name.removeprefix("language_model.model."): value for name, value in weights.items()}
    x = w["embed_tokens.weight"][torch.from_numpy(np.asarray(tokens, dtype=np.int64))]
    rotary, settings, ordinal, selection = Rotary(text, len(tokens)), sparse_settings(text), 0, None
    out = {"hidden.0": x}
    for layer in range(text["num_hidden_layers"]):
        def of(name):
            return w[f"layers.{layer}.{name}.weight"]

        def heads(name, y):
            return (y @ of(f"self_attn.{name}").T).view(len(tokens), -1, HEAD)

        def normed(name, y):
            return rotary(gemma_norm(heads(name + "_proj", y), of(f"self_attn.{name}_norm")))

        h = gemma_norm(x, of("input_layernorm"))
        if sparse[layer]:
            if not reuses(text, ordinal):
                selection = choose(normed("index_q", h), normed("index_k", h), settings)
            ordinal += 1
            out[f"block_ids.{layer}"], out[f"block_margin.{layer}"] = selection
        a = attend(normed("q", h), normed("k", h), heads("v_proj", h), selection[0] if sparse[layer] else None)
        x = x + a @ of("self_attn.o_proj").T
        h = gemma_norm(x, of("post_attention_layernorm"))
        if not moe[layer]:
            x = x + swiglu(h @ of("mlp.gate_proj").T, h @ of("mlp.up_proj").T, text) @ of("mlp.down_proj").T
        else:
            ids, share, margin = route(h, of("block_sparse_moe.gate"),
                                       w[f"layers.{layer}.block_sparse_moe.e_score_correction_bias"],
                                       text["num_experts_per_tok"])
            delta = torch.zeros_like(x)
            for e in range(text["num_local_experts"]):
                own = f"block_sparse_moe.experts.{e}."
                rows, slot = torch.where(ids == e)
                y = swiglu(h[rows] @ of(own + "w1").T, h[rows] @ of(own + "w3").T, text) @ of(own + "w2").T
                delta[rows] += text["routed_scaling_factor"] * share[rows, slot, None] * y
            own = "block_sparse_moe.shared_experts."
            shared = swiglu(h @ of(own + "gate_proj").T, h @ of(own + "up_proj").T, text) @ of(own + "down_proj").T
            x = x + delta + shared
            out[f"expert_ids.{layer}"], out[f"expert_weights.{layer}"] = ids.int(), share
            out[f"expert_margin.{layer}"] = margin
        out[f"hidden.{layer + 1}"] = x
    out["final_norm"] = gemma_norm(x, w["norm.weight"])
    out["logits"] = out["final_norm"] @ weights["language_model.lm_head.weight"].T
    return out


def seeded_weights(text, seed, gains=None):
    return {name: torch.from_numpy(seeded_tensor(name, shape, seed, gains))
            for name, shape in tensor_shapes(text).items()}


def greedy(text, weights, tokens, count):
    ids, margins, tokens = [], [], list(tokens)
    for _ in range(count):
        top = forward(text, weights, tokens)["logits"][-1].topk(2)
        ids.append(int(top.indices[0]))
        margins.append(float(top.values[0] - top.values[1]))
        tokens.append(ids[-1])
    return np.array(ids, np.int32), np.array(margins, np.float32)


def check(folder):
    for meta_file in sorted(folder.glob("*/meta.json")):
        meta = json.loads(meta_file.read_text())
        if meta["weights"] != "m3 seeded weights v1":
            continue
        text = json.loads((meta_file.parent / "config.json").read_text())["text_config"]
        stored = load_file(meta_file.parent / "expected.safetensors")
        ours = forward(text, seeded_weights(text, meta["seed"], meta["gains"]), stored["token_ids"])
        rows = torch.from_numpy(stored["positions"]).long()
        error, different = 0.0, 0
        for name, value in ours.items():
            a, b = value[rows].numpy(), stored[name]
            if name.startswith(("block_ids", "expert_ids")):
                different += int((a != b).any(-1).sum())
            elif "margin" not in name and "weights" not in name:
                error = max(error, float((np.linalg.norm(a - b, axis=-1) / np.linalg.norm(b, axis=-1)).max()))
        print(f"{meta['name']}: largest relative difference {error:.2g}, choices different {different}", flush=True)


def extra_cases():
    shape = dict(hidden=128, heads=4, kv_heads=2, vocab=128, experts=4, experts_per_token=2, expert_width=64,
                 shared_width=64, dense_width=128)
    flags = [0, 1, 1, 1, 1, 1, 1]
    deep = dict(layers=7, sparse=flags, moe=flags, topk_blocks=2)
    yield "init_block", 44, 1000, text_config(layers=3, sparse=[0, 1, 1], moe=[0, 1, 1], topk_blocks=4, init_blocks=1,
                                              local_blocks=2, **shape)
    yield "reuse_freq", 45, 700, text_config(use_index_cache=True, index_topk_freq=2, index_skip_topk_offset=1,
                                             **deep, **shape)
    yield "reuse_pattern", 43, 700, text_config(use_index_cache=True, index_topk_freq=4, index_topk_pattern="FSSFS",
                                                **deep, **shape)


def make(folder):
    for name, seed, count, text in extra_cases():
        case = dict(seed=seed, tokens=count, wanted=20, first_choice=text["sparse_attention_config"]
                    ["sparse_topk_blocks"] * BLOCK)
        tokens, positions = cases.tokens_of(case, text["vocab_size"]), cases.positions_of(case)
        weights = seeded_weights(text, seed)
        rows = torch.from_numpy(positions).long()
        out = {n: v[rows].numpy() for n, v in forward(text, weights, tokens).items()}
        out |= {"positions": positions, "token_ids": tokens}
        out["greedy_ids"], out["greedy_margin"] = greedy(text, weights, tokens, 16)
        meta = {"name": name, "seed": seed, "weights": "m3 seeded weights v1", "gains": {}, "tokens": "seeded",
                "token_count": count, "passages": [], "passage_length": cases.PASSAGE, "positions": positions.tolist(),
                "reference": {"independent_forward": "no transformers golden exists for this", "dtype": "float32",
                              "torch": torch.__version__},
                "observed": {"smallest_greedy_margin": float(out["greedy_margin"].min()),
                             "last_position_blocks": {n.split(".")[1]: out[n][-1].tolist()
                                                      for n in out if n.startswith("block_ids.")}}}
        (folder / name).mkdir(parents=True, exist_ok=True)
        save_file({n: np.ascontiguousarray(v) for n, v in sorted(out.items())}, folder / name / "expected.safetensors")
        (folder / name / "expected.safetensors").chmod(0o644)
        (folder / name / "meta.json").write_text(json.dumps(meta, indent=1) + "\n")
        (folder / name / "config.json").write_text(json.dumps(whole_config(text), indent=1) + "\n")
        print(name, json.dumps(meta["observed"]), flush=True)


if __name__ == "__main__":
    if len(sys.argv) != 3 or sys.argv[1] not in ("check", "make"):
        sys.exit(__doc__)
    torch.set_num_threads(1)
    {"check": check, "make": make}[sys.argv[1]](Path(sys.argv[2]))
