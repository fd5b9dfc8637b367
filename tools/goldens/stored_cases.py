"""The golden cases that are real small checkpoint files: one per stored format, and plain dtypes mixed."""
import numpy as np

import quantise
from published import layer_kinds, tensor_shapes, text_config, whole_config
from seeded_weights import bf16_bits, has_suffix, random_words, seeded_float32, stays_float32

ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")
INDEX = ("index_q_proj", "index_k_proj")
NOT_QUANTISED = ["lm_head", "model.embed_tokens", "vision_tower", "multi_modal_projector", "patch_merge_mlp"]


def small_text(vocab, hidden=128, heads=4, kv_heads=2, experts=4, expert_width=96, shared_width=64, dense_width=160,
               **more):
    """hidden 128, expert width 96: no two dimensions of an expert agree, and 96 / 32 = 3 scales a row is odd."""
    return text_config(hidden=hidden, layers=2, heads=heads, kv_heads=kv_heads, vocab=vocab, sparse=[0, 1], moe=[0, 1],
                       experts=experts, experts_per_token=2, expert_width=expert_width, shared_width=shared_width,
                       dense_width=dense_width, topk_blocks=2, max_positions=2048, **more)


def uneven_float32(name, shape, seed):
    """Seeded weights times 2^u, u in [-3, 1) per 16 columns: otherwise every block would have the same scale."""
    values = seeded_float32(name, shape, seed)
    if len(shape) == 1:
        return values
    groups = shape[0] * shape[1] // 16
    u = (random_words(name + "#uneven", seed, groups) >> np.uint64(40)).astype(np.float64) / 2**24 * 4 - 3
    return (values * np.repeat(2.0**u, 16).reshape(shape)).astype(np.float32)


def is_linear(name, shape):
    return len(shape) == 2 and not has_suffix(name, "gate.weight") and "embed_tokens" not in name and \
        "lm_head" not in name


def component(name):
    return name.removesuffix(".weight").rsplit(".", 1)[-1]


def plain(name, values):
    if stays_float32(name):
        return {name: ("F32", values.shape, values.tobytes())}
    return {name: ("BF16", values.shape, bf16_bits(values).tobytes())}


def build(text, seed, convert):
    """The stored state; convert(name, values) gives {suffix: tensor} or None for a plain tensor."""
    state = {}
    for name, shape in tensor_shapes(text).items():
        values = uneven_float32(name, shape, seed) if is_linear(name, shape) else seeded_float32(name, shape, seed)
        parts = convert(name, values) if is_linear(name, shape) else None
        if parts is None:
            state |= plain(name, values)
        else:
            state |= {f"{name.removesuffix('.weight')}.{suffix}": tensor for suffix, tensor in parts.items()}
    return state


def gates(text, prefix):
    _, moe = layer_kinds(text)
    return sorted(f"{prefix}layers.{i}.block_sparse_moe.gate" for i, m in enumerate(moe) if m)


def mxfp8():
    text = small_text(vocab=160, heads=2, kv_heads=1, num_mtp_modules=1)
    config = whole_config(text, quantization_config={
        "quant_method": "mxfp8", "activation_scheme": "dynamic", "weight_block_size": [1, 32],
        "ignored_layers": NOT_QUANTISED + gates(text, "model.")})
    state = build(text, 21, lambda name, values: quantise.mxfp8(values, "weight_scale_inv"))
    return dict(config=config, state=state, seed=21, tokens=600, wanted=18)


def mxfp4():
    """Routed and shared experts MXFP4, all else bf16. The exclude list holds a fused name and one of nothing."""
    text = small_text(vocab=128, heads=2, kv_heads=1)
    spec = {"dtype": "fp4", "qscheme": "per_group", "group_size": 32, "ch_axis": -1, "scale_format": "e8m0",
            "scale_calculation_mode": "even", "round_method": "half_even", "is_dynamic": False,
            "observer_cls": "PerBlockMXObserver", "symmetric": None, "mx_element_dtype": None}
    exclude = ["lm_head", "language_model.model.embed_tokens", "language_model.model.layers.1.self_attn.index_v_proj",
               "language_model.model.layers.1.self_attn.index_qkv_proj", *gates(text, "language_model.model.")]
    for name in ATTENTION:
        exclude += [f"language_model.model.layers.{i}.self_attn.{name}" for i in range(2)]
    exclude += [f"language_model.model.layers.1.self_attn.{name}" for name in INDEX]
    exclude += [f"language_model.model.layers.0.mlp.{name}" for name in ("gate_proj", "up_proj", "down_proj")]
    config = whole_config(text, quantization_config=quark(spec, {}, exclude))
    state = build(text, 22, lambda name, values: quantise.mxfp4(values) if "block_sparse_moe" in name else None)
    return dict(config=config, state=state, seed=22, tokens=600, wanted=18)


def quark(spec, layers, exclude):
    return {"quant_method": "quark", "quant_mode": "eager_mode", "version": "0.11",
            "global_quant_config": {"weight": spec, "input_tensors": {**spec, "is_dynamic": True},
                                    "output_tensors": None, "bias": None, "target_device": None},
            "layer_quant_config": layers, "layer_type_quant_config": {}, "exclude": exclude,
            "algo_config": None, "softmax_quant_spec": None, "kv_cache_quant_config": {},
            "export": {"kv_cache_group": [], "min_kv_scale": 0.0, "pack_method": "reorder",
                       "weight_format": "real_quantized", "weight_merge_groups": None}}


def mxfp4_attnfp8():
    """Routed experts MXFP4; q, k, v fp8 per channel; o fp8 per tensor (scale shape [] and [1]); all else bf16."""
    text = small_text(vocab=96)
    expert = {"dtype": "fp4", "qscheme": "per_group", "group_size": 32, "ch_axis": -1, "scale_format": "e8m0",
              "is_dynamic": False, "observer_cls": "PerBlockMXObserver"}
    channel = {"dtype": "fp8_e4m3", "qscheme": "per_channel", "ch_axis": 0, "is_dynamic": False, "symmetric": True,
               "observer_cls": "PerChannelMinMaxObserver"}
    tensor = {"dtype": "fp8_e4m3", "qscheme": "per_tensor", "is_dynamic": False, "symmetric": True,
              "observer_cls": "PerTensorMinMaxObserver"}
    token = {"dtype": "fp8_e4m3", "qscheme": "per_token", "is_dynamic": True}
    layers = {f"*self_attn.{n}": {"weight": channel, "input_tensors": token} for n in ("q_proj", "k_proj", "v_proj")}
    layers["*self_attn.o_proj"] = {"weight": tensor, "input_tensors": token}
    exclude = ["lm_head", "language_model.model.embed_tokens", *gates(text, "language_model.model.")]
    exclude += [f"language_model.model.layers.1.self_attn.{name}" for name in INDEX]
    exclude += [f"language_model.model.layers.1.block_sparse_moe.shared_experts.{n}_proj" for n in ("gate", "up", "down")]
    exclude += [f"language_model.model.layers.0.mlp.{name}" for name in ("gate_proj", "up_proj", "down_proj")]

    def convert(name, values):
        if ".experts." in name:
            return quantise.mxfp4(values)
        if component(name) in ("q_proj", "k_proj", "v_proj"):
            return quantise.fp8_per_channel(values)
        if component(name) == "o_proj":
            return quantise.fp8_per_tensor(values, () if ".layers.0." in name else (1,))
        return None

    config = whole_config(text, quantization_config=quark(expert, layers, exclude))
    return dict(config=config, state=build(text, 23, convert), seed=23, tokens=600, wanted=18)


def nvfp4():
    """Routed experts NVFP4, every other linear MXFP8. w3's weight_scale_2 differs from w1's by about a quarter;
    some experts lack input_scale; scalars are [] in some and [1] in others; three shards; total_size is wrong,
    as it is in the published index."""
    text = small_text(vocab=160, num_mtp_modules=1)
    layers = {}

    def convert(name, values):
        module = name.removesuffix(".weight")
        if ".experts." not in name:
            layers[module] = {"quant_algo": "MXFP8"}
            return quantise.mxfp8(values, "weight_scale")
        layers[module] = {"quant_algo": "NVFP4", "group_size": 16}
        expert = int(name.split(".experts.")[1].split(".")[0])
        headroom = {"w1": 1.0, "w2": 1.0, "w3": 1.25}[component(name)]
        return quantise.nvfp4(values, headroom, (1,) if expert == 3 else (), 0.02 if expert < 2 else None)

    state = build(text, 24, convert)
    exclude = NOT_QUANTISED + gates(text, "language_model.model.")
    config = whole_config(text, quantization_config={
        "quant_method": "modelopt", "quant_algo": "MIXED_PRECISION", "kv_cache_quant_algo": None,
        "exclude_modules": exclude, "quantized_layers": layers})
    return dict(config=config, state=state, seed=24, tokens=600, wanted=18, shards=3, wrong_total=7 * 10**9)


def dtype_mix():
    """No quantisation: tensors stored bf16, fp16 and fp32 side by side."""
    text = small_text(vocab=80, hidden=64, heads=2, kv_heads=1, experts=3, expert_width=32, shared_width=48,
                      dense_width=96)
    kinds = ("BF16", "F16", "F32")
    state = {}
    for index, (name, shape) in enumerate(tensor_shapes(text).items()):
        values = seeded_float32(name, shape, 25)
        kind = "F32" if stays_float32(name) else kinds[index % 3]
        data = {"BF16": bf16_bits, "F16": lambda v: v.astype(np.float16), "F32": lambda v: v}[kind](values)
        state[name] = (kind, shape, data.tobytes())
    return dict(config=whole_config(text), state=state, seed=25, tokens=600, wanted=18)


STORED = {f.__name__: f for f in (mxfp8, mxfp4, nvfp4, mxfp4_attnfp8, dtype_mix)}
