"""The golden cases whose weights are seeded: config, token ids, positions."""
import numpy as np

from published import BLOCK, text_config, whole_config
from seeded_weights import random_words, seeded_tokens

PASSAGE = 16


def tokens_of(case, vocab):
    """Seeded ids; `passages` are starts at which the passage found at the first start is repeated."""
    ids = seeded_tokens(case["seed"], case["tokens"], vocab)
    starts = case.get("passages", [])
    for start in starts[1:]:
        ids[start:start + PASSAGE] = ids[starts[0]:starts[0] + PASSAGE]
    return ids


def positions_of(case):
    """0, 1, both sides of the first block boundaries and of the last, the last token, others seeded."""
    count = case["tokens"]
    last_block = (count - 1) // BLOCK * BLOCK
    fixed = {0, 1, 127, 128, 255, 256, last_block - 1, last_block, count - 1}
    top = case.get("first_choice")
    if top:
        fixed |= {top - 1, top}
    extra = (int(v) % count for v in random_words("positions", case["seed"], 4 * case["wanted"]))
    while len(fixed) < case["wanted"]:
        fixed.add(next(extra))
    return np.array(sorted(fixed), np.int32)


def several_sparse():
    text = text_config(hidden=256, layers=6, heads=8, kv_heads=4, vocab=512, sparse=[0, 1, 1, 1, 1, 1],
                       moe=[0, 1, 1, 1, 1, 1], experts=8, experts_per_token=2, expert_width=64, shared_width=96,
                       dense_width=192, topk_blocks=3)
    return dict(config=whole_config(text), seed=1, tokens=1333, wanted=22, first_choice=3 * BLOCK,
                passages=[70, 500, 900, 1300])


def topk16():
    text = text_config(hidden=128, layers=3, heads=32, kv_heads=4, vocab=256, sparse=[0, 1, 1], moe=[0, 1, 1],
                       experts=4, experts_per_token=2, expert_width=64, shared_width=64, dense_width=128,
                       topk_blocks=16)
    return dict(config=whole_config(text), seed=2, tokens=4250, wanted=24, first_choice=16 * BLOCK,
                passages=[200, 1000, 2500, 3400, 4225], chunk=512, no_cache=False)


def unusual_order():
    """The spelling that transformers writes: flat index_* keys, layer_types, rope_parameters, no freq arrays."""
    text = {
        "attention_dropout": 0.0, "bos_token_id": 1, "dense_intermediate_size": 160, "dtype": "bfloat16",
        "eos_token_id": 2, "head_dim": 128, "hidden_act": "silu", "hidden_size": 128, "index_block_size": 128,
        "index_head_dim": 128, "index_local_blocks": 1, "index_n_heads": 2, "index_topk_blocks": 2,
        "initializer_range": 0.02, "intermediate_size": 96,
        "layer_types": ["minimax_m3_sparse", "full_attention", "minimax_m3_sparse", "full_attention",
                        "minimax_m3_sparse"],
        "max_position_embeddings": 2048,
        "mlp_layer_types": ["sparse", "sparse", "dense", "dense", "sparse"],
        "model_type": "minimax_m3_vl_text", "num_attention_heads": 6, "num_experts_per_tok": 1,
        "num_hidden_layers": 5, "num_key_value_heads": 2, "num_local_experts": 5, "output_router_logits": False,
        "pad_token_id": None, "rms_norm_eps": 1e-06,
        "rope_parameters": {"partial_rotary_factor": 0.5, "rope_theta": 5000000, "rope_type": "default"},
        "rotary_dim": 64, "routed_scaling_factor": 2.0, "router_aux_loss_coef": 0.001, "router_jitter_noise": 0.0,
        "shared_intermediate_size": 64, "swiglu_alpha": 1.702, "swiglu_limit": 7.0, "tie_word_embeddings": False,
        "use_cache": True, "vocab_size": 67,
    }
    config = {"architectures": ["MiniMaxM3SparseForConditionalGeneration"], "dtype": "bfloat16",
              "model_type": "minimax_m3_vl", "text_config": text, "tie_word_embeddings": False,
              "transformers_version": "5.24.0"}
    return dict(config=config, seed=3, tokens=700, wanted=20, first_choice=2 * BLOCK)


def all_sparse():
    text = text_config(hidden=192, layers=4, heads=4, kv_heads=2, vocab=320, sparse=[1, 1, 1, 1], moe=[0, 1, 1, 1],
                       experts=6, experts_per_token=3, expert_width=64, shared_width=64, dense_width=160,
                       topk_blocks=2)
    return dict(config=whole_config(text), seed=14, tokens=900, wanted=20, first_choice=2 * BLOCK,
                passages=[40, 300, 880])


def yarn():
    """Positions run past the original length; factor 4 of 256 has a ramp inside the 32 frequencies."""
    text = text_config(hidden=128, layers=3, heads=4, kv_heads=2, vocab=128, sparse=[0, 1, 1], moe=[0, 1, 1],
                       experts=4, experts_per_token=2, expert_width=64, shared_width=64, dense_width=128,
                       topk_blocks=2, max_positions=256,
                       rope_scaling={"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 256})
    return dict(config=whole_config(text), seed=5, tokens=800, wanted=20, first_choice=2 * BLOCK)


SEEDED = {f.__name__: f for f in (several_sparse, topk16, unusual_order, all_sparse, yarn)}
