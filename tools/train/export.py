"""Writes a trained model as a checkpoint in the published layout (spec 1 and 2.1)."""

from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from model import BLOCK, HEAD_DIM, ROTARY_DIM, TinyM3
from render import DEVIATION, MEAN
from tokenizer import ADDED_TOKENS, write_json
from tower import Tower

SHARD_BYTES = 14_000_000  # leaves room below 16 MB for the header and one more tensor


MERGE = {"image_token_compression_method": "patch_merge", "spatial_merge_size": 2, "temporal_patch_size": 2}


def vision_config(tower: Tower) -> dict:
    config = tower.config
    return {
        "model_type": "clip_vision_model",
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_hidden_layers": config.num_hidden_layers,
        "num_attention_heads": config.heads,
        "num_channels": 3,
        "image_size": 2016,
        "patch_size": 14,
        "hidden_act": "gelu",
        "layer_norm_eps": config.layer_norm_eps,
        "attention_dropout": 0.0,
        "projection_dim": config.text_hidden_size,
        "position_embedding_type": "rope",
        "rope_mode": "3d",
        "rope_theta": config.rope_theta,
        "vision_segment_max_frames": 4,
        "img_token_compression_config": MERGE,
    }


def published_config(model: TinyM3, tower: Tower | None = None) -> dict:
    config = model.config
    kinds = [int(layer.sparse) for layer in model.layers]
    text = {
        "architectures": ["MiniMaxM3SparseForCausalLM"],
        "hidden_size": config.hidden_size,
        "num_hidden_layers": config.num_hidden_layers,
        "num_attention_heads": config.num_attention_heads,
        "num_key_value_heads": config.num_key_value_heads,
        "head_dim": HEAD_DIM,
        "intermediate_size": config.intermediate_size,
        "shared_intermediate_size": config.intermediate_size,
        "dense_intermediate_size": config.dense_intermediate_size,
        "vocab_size": config.vocab_size,
        "max_position_embeddings": config.max_position_embeddings,
        "rms_norm_eps": config.rms_norm_eps,
        "rope_theta": int(config.rope_theta),
        "rotary_dim": ROTARY_DIM,
        "partial_rotary_factor": ROTARY_DIM / HEAD_DIM,
        "hidden_act": "swigluoai",
        "swiglu_alpha": config.swiglu_alpha,
        "swiglu_limit": config.swiglu_limit,
        "use_gemma_norm": True,
        "use_qk_norm": True,
        "qk_norm_type": "per_head",
        "attention_output_gate": False,
        "tie_word_embeddings": False,
        "num_local_experts": config.num_local_experts,
        "num_experts_per_tok": config.num_experts_per_tok,
        "n_shared_experts": 1,
        "scoring_func": "sigmoid",
        "use_routing_bias": True,
        "routed_scaling_factor": config.routed_scaling_factor,
        "moe_layer_freq": kinds,
        "sparse_attention_config": {
            "use_sparse_attention": True,
            "sparse_attention_freq": kinds,
            "sparse_disable_index_value": kinds,
            "sparse_num_index_heads": config.num_key_value_heads,
            "sparse_index_dim": HEAD_DIM,
            "sparse_block_size": BLOCK,
            "sparse_topk_blocks": config.sparse_topk_blocks,
            "sparse_score_type": "max",
            "sparse_init_block": 0,
            "sparse_local_block": 1,
        },
    }
    whole = {
        "architectures": ["MiniMaxM3SparseForConditionalGeneration"],
        "model_type": "minimax_m3_vl",
        "torch_dtype": "bfloat16",
        "text_config": text,
    }
    if tower is None:
        return whole
    first_added = config.vocab_size - len(ADDED_TOKENS)
    return whole | {
        "vision_config": vision_config(tower),
        "image_token_index": first_added + ADDED_TOKENS.index("]<]image[>["),
        "video_token_index": first_added + ADDED_TOKENS.index("]<]video[>["),
        "img_token_compression_config": MERGE,
        "multimodal_projector_bias": True,
        "projector_hidden_act": "gelu",
        "projector_hidden_size": tower.config.projector_hidden_size,
        "vision_feature_layer": -1,
        "vision_feature_select_strategy": "full",
        "process_image_mode": "dynamic_res",
    }


def processor_configs() -> dict[str, dict]:
    """The files that transformers' processors read."""
    common = {"do_convert_rgb": True, "do_rescale": True, "rescale_factor": 1 / 255, "do_normalize": True,
              "do_resize": True, "resample": 3, "image_mean": list(MEAN), "image_std": list(DEVIATION), "patch_size": 14,
              "temporal_patch_size": 2, "merge_size": 2}  # fmt: skip
    image = common | {"image_processor_type": "MiniMaxM3VLImageProcessor", "processor_class": "MiniMaxM3VLProcessor",
                      "min_pixels": 3136, "max_pixels": 451584}  # fmt: skip
    video = common | {"video_processor_type": "MiniMaxM3VLVideoProcessor", "processor_class": "MiniMaxM3VLProcessor",
                      "min_pixels": 3136, "max_pixels": 602112}  # fmt: skip
    return {"preprocessor_config.json": image, "video_preprocessor_config.json": video}


@torch.no_grad()
def tower_views(tower: Tower) -> dict[str, torch.Tensor]:
    """The same of the vision tower and the projector."""
    named, config = {}, tower.config

    def put(name, linear):
        named[name + ".weight"] = linear.weight
        if linear.bias is not None:
            named[name + ".bias"] = linear.bias

    prefix = "vision_tower.vision_model."
    shape = (config.hidden_size, 3, 2, 14, 14)
    named[prefix + "embeddings.patch_embedding.weight"] = tower.patch_embedding.weight.view(shape)
    put(prefix + "pre_layrnorm", tower.pre_layrnorm)
    for number, layer in enumerate(tower.layers):
        at = f"{prefix}encoder.layers.{number}."
        put(at + "layer_norm1", layer.layer_norm1)
        put(at + "layer_norm2", layer.layer_norm2)
        for name, weight, bias in zip("qkv", layer.qkv.weight.chunk(3), layer.qkv.bias.chunk(3)):
            named[f"{at}self_attn.{name}_proj.weight"], named[f"{at}self_attn.{name}_proj.bias"] = weight, bias
        put(at + "self_attn.out_proj", layer.out_proj)
        put(at + "mlp.fc1", layer.fc1)
        put(at + "mlp.fc2", layer.fc2)
    put("multi_modal_projector.linear_1", tower.projector_1)
    put("multi_modal_projector.linear_2", tower.projector_2)
    put("patch_merge_mlp.linear_1", tower.merge_1)
    put("patch_merge_mlp.linear_2", tower.merge_2)
    return named


@torch.no_grad()
def published_views(model: TinyM3, tower: Tower | None = None) -> dict[str, torch.Tensor]:
    """Views of all weights under their published names; writing to a view changes the model."""
    config, named = model.config, {}
    put = named.__setitem__

    put("language_model.model.embed_tokens.weight", model.embed_tokens.weight)
    put("language_model.model.norm.weight", model.norm.weight)
    put("language_model.lm_head.weight", model.lm_head.weight)
    for number, layer in enumerate(model.layers):
        prefix = f"language_model.model.layers.{number}."
        attention = prefix + "self_attn."
        put(prefix + "input_layernorm.weight", layer.input_layernorm.weight)
        put(prefix + "post_attention_layernorm.weight", layer.post_attention_layernorm.weight)
        for name, part in zip("qkv", layer.qkv_proj.weight.split(layer.widths)):
            put(f"{attention}{name}_proj.weight", part)
        put(attention + "o_proj.weight", layer.o_proj.weight)
        put(attention + "q_norm.weight", layer.q_norm.weight)
        put(attention + "k_norm.weight", layer.k_norm.weight)
        if not layer.sparse:
            gate, up = layer.gate_up_proj.weight.chunk(2)
            put(prefix + "mlp.gate_proj.weight", gate)
            put(prefix + "mlp.up_proj.weight", up)
            put(prefix + "mlp.down_proj.weight", layer.down_proj.weight)
            continue
        for name, part in zip("qk", layer.index_proj.weight.split(layer.index_widths)):
            put(f"{attention}index_{name}_proj.weight", part)
        put(attention + "index_q_norm.weight", layer.index_q_norm.weight)
        put(attention + "index_k_norm.weight", layer.index_k_norm.weight)
        moe = prefix + "block_sparse_moe."
        put(moe + "gate.weight", layer.gate.weight)
        put(moe + "e_score_correction_bias", layer.e_score_correction_bias)
        gates, ups = layer.experts_gate_up.weight.chunk(2)
        experts = config.num_local_experts
        parts = zip(gates.chunk(experts), ups.chunk(experts), layer.experts_down.weight.chunk(experts, 1))
        for expert, (gate, up, down) in enumerate(parts):
            put(f"{moe}experts.{expert}.w1.weight", gate)
            put(f"{moe}experts.{expert}.w3.weight", up)
            put(f"{moe}experts.{expert}.w2.weight", down)
        gate, up = layer.shared_gate_up.weight.chunk(2)
        put(moe + "shared_experts.gate_proj.weight", gate)
        put(moe + "shared_experts.up_proj.weight", up)
        put(moe + "shared_experts.down_proj.weight", layer.shared_down.weight)
    return named | (tower_views(tower) if tower is not None else {})


def stored_dtype(name: str) -> torch.dtype:
    in_float = name.endswith((".block_sparse_moe.gate.weight", ".e_score_correction_bias"))
    return torch.float32 if in_float else torch.bfloat16


@torch.no_grad()
def load_checkpoint(model: TinyM3, folder: Path, tower: Tower | None = None) -> None:
    """Fills `model`, and a tower, from a checkpoint that export_checkpoint wrote; low bits, where present, restore fp32.
    Without a tower to fill, that of the checkpoint is left out."""
    views = published_views(model, tower)
    for file in sorted(folder.glob("model-*.safetensors")):
        for name, tensor in load_file(file).items():
            if tower is not None or name.startswith("language_model."):
                views.pop(name).copy_(tensor)
    if views:
        raise ValueError(f"{folder} lacks {sorted(views)[:5]}")
    views = published_views(model, tower)
    for file in sorted(folder.glob("low-*.safetensors")):
        for name, low in load_file(file).items():
            if name not in views:
                continue
            bits = views[name].detach().cpu().contiguous().view(torch.int32)
            views[name].copy_((bits + low.int()).view(torch.float32))


def low_bits(view) -> torch.Tensor:
    """int16: the fp32 bits beyond those of the value rounded to bf16 (exact but for one tie in 65,536)."""
    exact = view.detach().cpu().contiguous()
    return (exact.view(torch.int32) - exact.bfloat16().float().view(torch.int32)).clamp(-32768, 32767).short()


def write_shards(tensors: dict, folder: Path, kind: str) -> dict[str, str]:
    shards, filled = [{}], 0
    for name, tensor in tensors.items():
        if filled and filled + tensor.nbytes > SHARD_BYTES:
            shards.append({})
            filled = 0
        shards[-1][name] = tensor
        filled += tensor.nbytes
    weight_map = {}
    for number, shard in enumerate(shards, 1):
        file = f"{kind}-{number:05d}-of-{len(shards):05d}.safetensors"
        save_file(shard, folder / file, metadata={"format": "pt"})
        weight_map |= dict.fromkeys(shard, file)
    return weight_map


def export_checkpoint(model: TinyM3, folder: Path, with_low_bits: bool = False, tower: Tower | None = None) -> None:
    """Writes config.json, the shards and their index into `folder`; with low bits, training can go on from it."""
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / "config.json", published_config(model, tower))
    if tower is not None:
        for name, value in processor_configs().items():
            write_json(folder / name, value)
    views = published_views(model, tower)
    tensors = {name: view.detach().to("cpu", stored_dtype(name)).contiguous() for name, view in views.items()}
    weight_map = write_shards(tensors, folder, "model")
    total = sum(tensor.nbytes for tensor in tensors.values())
    write_json(
        folder / "model.safetensors.index.json",
        {"metadata": {"total_size": total}, "weight_map": dict(sorted(weight_map.items()))},
    )
    if with_low_bits:
        low = {name: low_bits(view) for name, view in views.items() if stored_dtype(name) == torch.bfloat16}
        write_shards(low, folder, "low")
