"""The golden cases with pictures: seeded weights, seeded pixels, features and logits by transformers."""
import json
import tempfile

import numpy as np
import torch
import transformers

import reference
from published import seeded_state, seeded_vision, text_config, whole_config, write_checkpoint
from seeded_weights import random_words, seeded_tokens

IMAGE, VIDEO = 90, 91  # placeholder ids; text ids lie below
SEGMENT = 4  # temporal groups that attend to each other


def vision_config(hidden, layers, inner, text_hidden, patch=14, frames=2, merge=2, theta=10000.0):
    return {"model_type": "clip_vision_model", "hidden_size": hidden, "intermediate_size": inner,
            "num_hidden_layers": layers, "num_attention_heads": hidden // 80, "num_channels": 3, "image_size": 56,
            "patch_size": patch, "hidden_act": "gelu", "layer_norm_eps": 1e-05, "attention_dropout": 0.0,
            "projection_dim": text_hidden, "rope_theta": theta, "position_embedding_type": "rope",
            "rope_mode": "3d", "vision_segment_max_frames": SEGMENT,
            "img_token_compression_config": {"image_token_compression_method": "patch_merge",
                                             "spatial_merge_size": merge, "temporal_patch_size": frames}}


def resaved(config):
    """Sizes and frequencies where transformers writes them, the only place where it reads others than M3's."""
    vision = config["vision_config"]
    vision |= {k: v for k, v in vision["img_token_compression_config"].items() if k != "image_token_compression_method"}
    vision["rope_parameters"] = {"rope_type": "axial", "rope_theta": vision.pop("rope_theta")}
    return config


def config_of(hidden, layers, inner, projector, **sizes):
    text = text_config(hidden=128, layers=3, heads=2, kv_heads=2, vocab=96, sparse=[0, 1, 1], moe=[0, 1, 1],
                       experts=4, experts_per_token=2, expert_width=64, shared_width=64, dense_width=128,
                       topk_blocks=2, max_positions=4096)
    return whole_config(text, vision_config=vision_config(hidden, layers, inner, 128, **sizes), projector_hidden_size=projector,
                        image_token_index=IMAGE, video_token_index=VIDEO)


def vision_images():
    """One patch block, a tall picture, one with far positions, and the same picture twice."""
    return dict(config=config_of(160, 3, 224, 96), seed=61,
                media=[("image", (1, 4, 6)), ("image", (1, 2, 2)), ("image", (1, 20, 14)), ("image", (1, 2, 90))])


def vision_clips():
    """Clips of up to 4 temporal groups, and a longer one that goes to transformers as rows of at most 4."""
    return dict(config=config_of(240, 2, 100, 160), seed=62,
                media=[("video", (3, 4, 6)), ("image", (1, 6, 8)), ("video", (9, 4, 4)), ("video", (4, 2, 8)),
                       ("video", (1, 4, 4))])


def vision_sizes():
    """One head, and none of the published patch, frame and merge sizes or frequencies."""
    config = resaved(config_of(80, 2, 96, 64, patch=6, frames=1, merge=3, theta=300.0))
    return dict(config=config, seed=63,
                media=[("image", (1, 3, 3)), ("video", (6, 3, 9)), ("image", (1, 12, 27))])


VISION = {f.__name__: f for f in (vision_images, vision_clips, vision_sizes)}


def sizes_of(config):
    """(values of a patch, patches that become one token)."""
    vision = config["vision_config"]
    sizes = vision["img_token_compression_config"]
    return 3 * sizes["temporal_patch_size"] * vision["patch_size"] ** 2, sizes["spatial_merge_size"] ** 2


def pixels_of(case, index, grid):
    """float32 [patches, values of a patch] in -2 ... 2."""
    columns = sizes_of(case["config"])[0]
    count = int(np.prod(grid)) * columns
    c = (random_words(f"pixels.{index}", case["seed"], count) >> np.uint64(40)).astype(np.int64) - 8388608
    return (c.astype(np.float32) * np.float32(2.0 / 8388608.0)).reshape(-1, columns)


def rows_of(grid):
    """What transformers is given: rows of at most 4 temporal groups."""
    return [(min(SEGMENT, grid[0] - t), grid[1], grid[2]) for t in range(0, grid[0], SEGMENT)]


def prompt_of(case):
    """Seeded text around the placeholders; a clip's stand in a run for each temporal group."""
    text = iter(seeded_tokens(case["seed"], 100 * (len(case["media"]) + 1), IMAGE).tolist())
    ids = [next(text) for _ in range(70)]
    for kind, (t, h, w) in case["media"]:
        for _ in range(t):
            ids += [next(text)] + [IMAGE if kind == "image" else VIDEO] * (h * w // sizes_of(case["config"])[1]) + [next(text)]
        ids += [next(text) for _ in range(9)]
    return np.array(ids, np.int32)


@torch.no_grad()
def forward(model, case, tokens):
    """(features of all media in order, logits)."""
    def stack(kind):
        chosen = [(i, grid) for i, (k, grid) in enumerate(case["media"]) if k == kind]
        if not chosen:
            return None, None
        pixels = np.concatenate([pixels_of(case, i, grid) for i, grid in chosen])
        return torch.from_numpy(pixels), torch.tensor([row for _, grid in chosen for row in rows_of(grid)])

    images, image_grid = stack("image")
    videos, video_grid = stack("video")
    features = []
    for i, (_, grid) in enumerate(case["media"]):
        pixels = torch.from_numpy(pixels_of(case, i, grid))
        parts = model.model.get_image_features(pixels, torch.tensor(rows_of(grid))).pooler_output
        features.append(torch.cat(list(parts)).float())
    logits = model(input_ids=torch.from_numpy(tokens.astype(np.int64))[None], pixel_values=images,
                   image_grid_thw=image_grid, pixel_values_videos=videos, video_grid_thw=video_grid,
                   use_cache=False).logits[0].float()
    return torch.cat(features).numpy(), logits.numpy()


def vision_case(case, folder):
    config, tokens = case["config"], prompt_of(case)
    with tempfile.TemporaryDirectory() as scratch:
        state = seeded_state(config["text_config"], case["seed"]) | seeded_vision(config, case["seed"])
        write_checkpoint(scratch, config, state)
        features, logits = forward(reference.load(scratch, torch.float32, tower=True), case, tokens)
        half_features, half_logits = forward(reference.load(scratch, torch.bfloat16, tower=True), case, tokens)
    placeholders = np.flatnonzero(tokens >= IMAGE)
    positions = np.unique(np.r_[0, 69, placeholders[::7], placeholders[-1], len(tokens) - 9, len(tokens) - 1])
    out = {
        "grids": np.array([grid for _, grid in case["media"]], np.int32),
        "is_video": np.array([kind == "video" for kind, _ in case["media"]], np.int32),
        "features": features, "bf16_error.features": reference.relative(half_features, features),
        "positions": positions.astype(np.int32), "logits": logits[positions],
        "bf16_error.logits": reference.relative(half_logits, logits)[positions],
    }
    meta = {"name": case["name"], "seed": case["seed"], "weights": "m3 seeded weights v1", "gains": {},
            "pixels": "seeded, name pixels.I, -2 ... 2", "pixel_columns": sizes_of(config)[0],
            "token_count": len(tokens),
            "reference": {"transformers": transformers.__version__, "torch": torch.__version__, "dtype": "float32",
                          "attention": "eager"},
            "observed": {"features_rms": round(float(np.sqrt((features ** 2).mean())), 4),
                         "logits_rms": round(float(np.sqrt((logits ** 2).mean())), 4),
                         "bf16_median_error": {n: round(float(np.median(out["bf16_error." + n])), 5)
                                               for n in ("features", "logits")}}}
    return out, tokens, meta
