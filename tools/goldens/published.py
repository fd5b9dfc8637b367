"""Small configs and tensor lists in the published layout of MiniMax-M3 (text side)."""
import json
import struct
from pathlib import Path

import numpy as np

from seeded_weights import bf16_bits, seeded_float32, stays_float32

HEAD_DIM = 128
BLOCK = 128


def text_config(*, hidden, layers, heads, kv_heads, vocab, sparse, moe, experts, experts_per_token, expert_width,
                shared_width, dense_width, topk_blocks, max_positions=8192, init_blocks=0, local_blocks=1,
                rope_theta=5000000, **more):
    """`sparse` and `moe` are one 0/1 per layer. The key order follows the published file."""
    return {
        "architectures": ["MiniMaxM3SparseForCausalLM"],
        "hidden_size": hidden, "num_hidden_layers": layers,
        "num_attention_heads": heads, "num_key_value_heads": kv_heads, "head_dim": HEAD_DIM,
        "intermediate_size": expert_width, "shared_intermediate_size": shared_width,
        "dense_intermediate_size": dense_width,
        "vocab_size": vocab, "max_position_embeddings": max_positions, "rms_norm_eps": 1e-06,
        "rope_theta": rope_theta, "rotary_dim": 64, "partial_rotary_factor": 0.5,
        "hidden_act": "swigluoai", "swiglu_alpha": 1.702, "swiglu_limit": 7.0,
        "use_gemma_norm": True, "use_qk_norm": True, "qk_norm_type": "per_head",
        "attention_output_gate": False, "tie_word_embeddings": False,
        "num_local_experts": experts, "num_experts_per_tok": experts_per_token, "n_shared_experts": 1,
        "scoring_func": "sigmoid", "use_routing_bias": True, "routed_scaling_factor": 2.0,
        "moe_layer_freq": list(moe),
        "sparse_attention_config": {
            "use_sparse_attention": True, "sparse_attention_freq": list(sparse),
            "sparse_disable_index_value": list(sparse),
            "sparse_num_index_heads": kv_heads, "sparse_index_dim": 128, "sparse_block_size": BLOCK,
            "sparse_topk_blocks": topk_blocks, "sparse_score_type": "max",
            "sparse_init_block": init_blocks, "sparse_local_block": local_blocks,
        },
        **more,
    }


def whole_config(text, **more):
    return {"architectures": ["MiniMaxM3SparseForConditionalGeneration"], "model_type": "minimax_m3_vl",
            "torch_dtype": "bfloat16", "text_config": text, **more}


def layer_kinds(text):
    """(sparse, moe): one bool per layer each, from either spelling."""
    count = text["num_hidden_layers"]
    if "layer_types" in text:
        return ([t == "minimax_m3_sparse" for t in text["layer_types"]],
                [t == "sparse" for t in text["mlp_layer_types"]])
    sparse = [bool(v) for v in text["sparse_attention_config"]["sparse_attention_freq"]]
    moe = [bool(v) for v in text["moe_layer_freq"]]
    assert len(sparse) == count and len(moe) == count
    return sparse, moe


def tensor_shapes(text):
    """Published name -> shape of every text tensor, in file order."""
    hidden, heads, kv = text["hidden_size"], text["num_attention_heads"], text["num_key_value_heads"]
    experts, width = text["num_local_experts"], text["intermediate_size"]
    shared, dense = text["shared_intermediate_size"], text["dense_intermediate_size"]
    sparse, moe = layer_kinds(text)
    shapes = {"language_model.model.embed_tokens.weight": (text["vocab_size"], hidden)}
    for layer in range(text["num_hidden_layers"]):
        own = {
            "input_layernorm.weight": (hidden,),
            "post_attention_layernorm.weight": (hidden,),
            "self_attn.q_proj.weight": (heads * HEAD_DIM, hidden),
            "self_attn.k_proj.weight": (kv * HEAD_DIM, hidden),
            "self_attn.v_proj.weight": (kv * HEAD_DIM, hidden),
            "self_attn.o_proj.weight": (hidden, heads * HEAD_DIM),
            "self_attn.q_norm.weight": (HEAD_DIM,),
            "self_attn.k_norm.weight": (HEAD_DIM,),
        }
        if sparse[layer]:
            own |= {
                "self_attn.index_q_proj.weight": (kv * HEAD_DIM, hidden),
                "self_attn.index_k_proj.weight": (HEAD_DIM, hidden),
                "self_attn.index_q_norm.weight": (HEAD_DIM,),
                "self_attn.index_k_norm.weight": (HEAD_DIM,),
            }
        if moe[layer]:
            own["block_sparse_moe.gate.weight"] = (experts, hidden)
            own["block_sparse_moe.e_score_correction_bias"] = (experts,)
            for e in range(experts):
                own[f"block_sparse_moe.experts.{e}.w1.weight"] = (width, hidden)
                own[f"block_sparse_moe.experts.{e}.w2.weight"] = (hidden, width)
                own[f"block_sparse_moe.experts.{e}.w3.weight"] = (width, hidden)
            own["block_sparse_moe.shared_experts.gate_proj.weight"] = (shared, hidden)
            own["block_sparse_moe.shared_experts.up_proj.weight"] = (shared, hidden)
            own["block_sparse_moe.shared_experts.down_proj.weight"] = (hidden, shared)
        else:
            own["mlp.gate_proj.weight"] = (dense, hidden)
            own["mlp.up_proj.weight"] = (dense, hidden)
            own["mlp.down_proj.weight"] = (hidden, dense)
        shapes |= {f"language_model.model.layers.{layer}.{suffix}": shape for suffix, shape in own.items()}
    shapes["language_model.model.norm.weight"] = (hidden,)
    shapes["language_model.lm_head.weight"] = (text["vocab_size"], hidden)
    return shapes


def vision_shapes(vision, text_hidden, projector):
    """Published name -> shape of every tensor of tower and projector."""
    hidden, wide, tower = vision["hidden_size"], vision["intermediate_size"], "vision_tower.vision_model."
    sizes = vision["img_token_compression_config"]
    patch, merge = vision["patch_size"], sizes["spatial_merge_size"]
    shapes = {tower + "embeddings.patch_embedding.weight": (hidden, 3, sizes["temporal_patch_size"], patch, patch)}

    def linear(name, rows, columns):
        shapes[name + ".weight"], shapes[name + ".bias"] = (rows, columns), (rows,)

    def norm(name):
        shapes[name + ".weight"], shapes[name + ".bias"] = (hidden,), (hidden,)

    norm(tower + "pre_layrnorm")
    for i in range(vision["num_hidden_layers"]):
        layer = f"{tower}encoder.layers.{i}."
        norm(layer + "layer_norm1")
        norm(layer + "layer_norm2")
        for name in ("q_proj", "k_proj", "v_proj", "out_proj"):
            linear(layer + "self_attn." + name, hidden, hidden)
        linear(layer + "mlp.fc1", wide, hidden)
        linear(layer + "mlp.fc2", hidden, wide)
    linear("multi_modal_projector.linear_1", projector, hidden)
    linear("multi_modal_projector.linear_2", text_hidden, projector)
    linear("patch_merge_mlp.linear_1", projector, merge * merge * text_hidden)
    linear("patch_merge_mlp.linear_2", text_hidden, projector)
    return shapes


def seeded_vision(config, seed):
    """The tower's part of a seeded checkpoint, as seeded_state."""
    shapes = vision_shapes(config["vision_config"], config["text_config"]["hidden_size"],
                           config["projector_hidden_size"])
    return {name: seeded_entry(name, shape, seed) for name, shape in shapes.items()}


def seeded_entry(name, shape, seed, gains=None):
    values = seeded_float32(name, shape, seed, gains)
    return ("F32", shape, values.tobytes()) if stays_float32(name) else ("BF16", shape, bf16_bits(values).tobytes())


def seeded_state(text, seed, gains=None):
    """Published name -> (safetensors dtype, shape, bytes): the stored checkpoint of a seeded case."""
    return {name: seeded_entry(name, shape, seed, gains) for name, shape in tensor_shapes(text).items()}


def write_safetensors(path, state, metadata=None):
    """Written by hand, since numpy has no bf16 or fp8 and the raw bytes are the point."""
    header, offset = {}, 0
    if metadata:
        header["__metadata__"] = metadata
    for name, (dtype, shape, data) in state.items():
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [offset, offset + len(data)]}
        offset += len(data)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as out:
        out.write(struct.pack("<Q", len(text)))
        out.write(text)
        for _, _, data in state.values():
            out.write(data)


def write_checkpoint(folder, config, state, shards=1, total_size=None):
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config, indent=1) + "\n")
    metadata = {"format": "pt"}
    if shards == 1:
        write_safetensors(folder / "model.safetensors", state, metadata)
        return
    names, weight_map = list(state), {}
    for shard in range(shards):
        file = f"model-{shard + 1:05d}-of-{shards:05d}.safetensors"
        part = names[len(names) * shard // shards:len(names) * (shard + 1) // shards]
        write_safetensors(folder / file, {n: state[n] for n in part}, metadata)
        weight_map |= {n: file for n in part}
    total = total_size or sum(len(data) for _, _, data in state.values())
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=1) + "\n")


def read_safetensors(path):
    """name -> (dtype, shape, bytes)."""
    data = Path(path).read_bytes()
    size = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8:8 + size])
    header.pop("__metadata__", None)
    return {name: (e["dtype"], tuple(e["shape"]), data[8 + size + e["data_offsets"][0]:8 + size + e["data_offsets"][1]])
            for name, e in header.items()}


def as_float32(dtype, shape, data):
    if dtype == "F32":
        values = np.frombuffer(data, np.float32)
    elif dtype == "F16":
        values = np.frombuffer(data, np.float16).astype(np.float32)
    elif dtype == "BF16":
        values = (np.frombuffer(data, np.uint16).astype(np.uint32) << np.uint32(16)).view(np.float32)
    else:
        raise ValueError(f"not a plain dtype: {dtype}")
    return values.reshape(shape)
