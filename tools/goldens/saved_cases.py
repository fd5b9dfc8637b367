"""The golden cases whose checkpoint files transformers itself writes (save_pretrained)."""
import tempfile

import numpy as np
import torch
from transformers import MiniMaxM3VLForCausalLM

import reference
from published import seeded_state, text_config, vision_shapes, whole_config, write_checkpoint
from seeded_weights import bf16_bits

# Head size 80 as in the real tower; everything else as small as it goes.
VISION = {"model_type": "clip_vision_model", "hidden_size": 80, "intermediate_size": 48, "num_hidden_layers": 1,
          "num_attention_heads": 1, "num_channels": 3, "image_size": 56, "patch_size": 14, "hidden_act": "gelu",
          "layer_norm_eps": 1e-05, "attention_dropout": 0.0, "projection_dim": 64, "rope_theta": 10000.0,
          "position_embedding_type": "rope", "rope_mode": "3d", "vision_segment_max_frames": 4,
          "img_token_compression_config": {"image_token_compression_method": "patch_merge", "spatial_merge_size": 2,
                                           "temporal_patch_size": 2}}


def small_text(vocab, kv_heads):
    return text_config(hidden=64, layers=2, heads=2, kv_heads=kv_heads, vocab=vocab, sparse=[0, 1], moe=[0, 1],
                       experts=3, experts_per_token=2, expert_width=32, shared_width=96, dense_width=112,
                       topk_blocks=2, max_positions=2048)


def vision_state(vision, text_hidden, projector):
    """Random tower and projector under the published names; patch embedding float32 as published."""
    random = np.random.default_rng(1)
    state = {}
    for name, shape in vision_shapes(vision, text_hidden, projector).items():
        values = random.normal(1.0 if "norm" in name and "weight" in name else 0.0, 0.05, shape).astype(np.float32)
        state[name] = ("F32", shape, values.tobytes()) if "patch_embedding" in name else \
            ("BF16", shape, bf16_bits(values).tobytes())
    return state


def loaded(config, seed, more=None):
    with tempfile.TemporaryDirectory() as scratch:
        write_checkpoint(scratch, config, seeded_state(config["text_config"], seed) | (more or {}))
        return reference.load(scratch, torch.bfloat16)


def published_names_vision(folder):
    """The whole model with a vision tower of random weights; no placeholder id in the prompt."""
    config = whole_config(small_text(96, 1), vision_config=VISION, projector_hidden_size=96, image_token_index=90,
                          video_token_index=91)
    loaded(config, 31, vision_state(VISION, 64, 96)).save_pretrained(folder)
    return dict(seed=31, tokens=500, wanted=16, token_vocab=90)


def text_only_save(folder):
    """The text model alone: names without `language_model`, a flat config."""
    whole = loaded(whole_config(small_text(80, 2)), 32)
    text = MiniMaxM3VLForCausalLM._from_config(whole.config.text_config, dtype=torch.bfloat16)
    text.model.load_state_dict(whole.model.language_model.state_dict())
    text.lm_head.load_state_dict(whole.lm_head.state_dict())
    text.save_pretrained(folder)
    return dict(seed=32, tokens=500, wanted=16)


SAVED = {f.__name__: f for f in (published_names_vision, text_only_save)}
