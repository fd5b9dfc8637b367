"""Reads a checkpoint folder of any layout below into float32 tensors, sharing no code with the writers.

File reading is the safetensors package's, e4m3 is torch's float8_e4m3fn, E2M1 and E8M0 are formed bit by bit.
Formats are told apart by dtypes and shapes:
    weight U8 [N, K/2]   + weight_scale U8   [N, K/32]                    MXFP4
    weight U8 [N, K/2]   + weight_scale e4m3 [N, K/16] + weight_scale_2   NVFP4 (its scale multiplies)
    weight e4m3 [N, K]   + weight_scale(_inv) U8 [N, K/32]                MXFP8
    weight e4m3 [N, K]   + weight_scale F32 [N] or one value              fp8 per channel or per tensor
"""
import json
from pathlib import Path

import torch
from safetensors import safe_open


def two_to(byte_scale):
    """2^(s - 127) as float32 (255 would be NaN: refused)."""
    assert int(byte_scale.max()) < 255
    return torch.ldexp(torch.ones(byte_scale.shape), byte_scale.int() - 127)


def e2m1(packed):
    """uint8 [N, K/2] -> float32 [N, K]: sign, two exponent bits of bias 1, one fraction bit."""
    nibbles = torch.stack([packed & 15, packed >> 4], dim=-1).flatten(-2).int()
    sign = 1.0 - 2.0 * (nibbles >> 3).float()
    exponent, fraction = (nibbles >> 1) & 3, (nibbles & 1).float()
    normal = torch.ldexp(1 + fraction / 2, exponent - 1)
    return sign * torch.where(exponent == 0, fraction / 2, normal)


def spread(scale, columns):
    return scale.repeat_interleave(columns // scale.shape[1], dim=1)


def read(folder):
    folder = Path(folder)
    index = folder / "model.safetensors.index.json"
    files = sorted(set(json.loads(index.read_text())["weight_map"].values())) if index.exists() else ["model.safetensors"]
    stored = {}
    for file in files:
        with safe_open(folder / file, framework="pt") as handle:
            for name in handle.keys():
                assert name not in stored
                stored[name] = handle.get_tensor(name)
    scales = ("weight_scale", "weight_scale_inv", "weight_scale_2", "input_scale")
    result, used, formats = {}, set(), {}
    for name, tensor in stored.items():
        if name.rsplit(".", 1)[-1] in scales:
            continue
        used.add(name)
        base = name.removesuffix(".weight")
        own = {s: stored[f"{base}.{s}"] for s in scales if f"{base}.{s}" in stored}
        used |= {f"{base}.{s}" for s in own}
        scale = own.get("weight_scale", own.get("weight_scale_inv"))
        if tensor.dtype == torch.uint8 and scale.dtype == torch.uint8:
            value = e2m1(tensor)
            assert scale.shape[1] * 32 == value.shape[1]
            value, kind = value * spread(two_to(scale), value.shape[1]), "MXFP4"
        elif tensor.dtype == torch.uint8:
            value = e2m1(tensor)
            assert scale.dtype == torch.float8_e4m3fn and scale.shape[1] * 16 == value.shape[1]
            value = value * spread(scale.float(), value.shape[1]) * own["weight_scale_2"].reshape(())
            kind = "NVFP4"
        elif tensor.dtype == torch.float8_e4m3fn and scale.dtype == torch.uint8:
            assert scale.shape[1] * 32 == tensor.shape[1]
            value, kind = tensor.float() * spread(two_to(scale), tensor.shape[1]), "MXFP8"
        elif tensor.dtype == torch.float8_e4m3fn:
            assert scale.dtype == torch.float32
            channel = scale.numel() > 1
            assert not channel or scale.numel() == tensor.shape[0]
            value = tensor.float() * (scale.reshape(-1, 1) if channel else scale.reshape(()))
            kind = "FP8 per channel" if channel else "FP8 per tensor"
        else:
            assert not own
            value, kind = tensor.float(), str(tensor.dtype).removeprefix("torch.")
        assert torch.isfinite(value).all(), name
        result[name] = value
        formats[kind] = formats.get(kind, 0) + 1
    assert used == set(stored), set(stored) - used
    return result, formats
