"""m3 seeded weights v1: weights and token ids as a pure function of (seed, tensor name, element index).

The engine's tests hold the same generator in C++, so that a golden case stores no weights. Everything is
exact integer arithmetic up to one float32 multiplication, hence bit-equal on both sides.

    key(name)  = fnv1a64(utf8 name) xor (seed * G mod 2^64)              G = 0x9E3779B97F4A7C15
    z(i)       = splitmix64 finaliser of (key + (i + 1) * G mod 2^64)    i row-major, from 0
    c(i)       = int64(z >> 40) - 8388608                                24 bits, signed
    value(i)   = float32(c) * float32(bound / 8388608.0)                 one float32 multiplication
    bound      = 0.25 for *norm.weight (stored Gemma style, around 0), 0.05 for e_score_correction_bias,
                 0.25 for the weights of the vision tower's layer norms, to which 1 is added in float32,
                 sqrt(3) for embed_tokens.weight, sqrt(3 / K) for every other matrix [N, K] and vector [K]
                 (K of the patch embedding: all dimensions but the first); in double,
                 times the gain whose key is a full-component suffix of the name (at most one may be)
    stored     = bf16 (round to nearest even); router gate, e_score_correction_bias and the
                 patch embedding stay float32
    token(t)   = (z(t) >> 33) mod vocabulary, with the name "tokens"
"""
import math

import numpy as np

GOLDEN = 0x9E3779B97F4A7C15
MASK = (1 << 64) - 1


def fnv1a64(text: str) -> int:
    value = 0xCBF29CE484222325
    for byte in text.encode("utf-8"):
        value = ((value ^ byte) * 0x100000001B3) & MASK
    return value


def random_words(name: str, seed: int, count: int) -> np.ndarray:
    """uint64 [count]: z(0..count-1) of the module's text."""
    key = fnv1a64(name) ^ ((seed * GOLDEN) & MASK)
    with np.errstate(over="ignore"):
        x = np.uint64(key) + np.arange(1, count + 1, dtype=np.uint64) * np.uint64(GOLDEN)
        z = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return z ^ (z >> np.uint64(31))


def has_suffix(name: str, suffix: str) -> bool:
    return name == suffix or name.endswith("." + suffix)


def vision_norm(name: str) -> bool:
    return any(has_suffix(name, f"{norm}.weight") for norm in ("pre_layrnorm", "layer_norm1", "layer_norm2"))


def bound_of(name: str, shape, gains=None) -> float:
    if name.endswith("norm.weight") or vision_norm(name):
        bound = 0.25
    elif has_suffix(name, "e_score_correction_bias"):
        bound = 0.05
    elif has_suffix(name, "embed_tokens.weight"):
        bound = math.sqrt(3.0)
    else:
        bound = math.sqrt(3.0 / np.prod(shape[1:] or shape))
    matching = [g for suffix, g in (gains or {}).items() if has_suffix(name, suffix)]
    if len(matching) > 1:
        raise ValueError(f"{name}: more than one gain suffix matches")
    return bound * matching[0] if matching else bound


def seeded_float32(name: str, shape, seed: int, gains=None) -> np.ndarray:
    count = int(np.prod(shape))
    c = (random_words(name, seed, count) >> np.uint64(40)).astype(np.int64) - 8388608
    scale = np.float32(bound_of(name, shape, gains) / 8388608.0)
    values = (c.astype(np.float32) * scale).reshape(shape)
    return values + np.float32(1) if vision_norm(name) else values


def bf16_bits(values: np.ndarray) -> np.ndarray:
    """uint16: round to nearest even. No NaN arises here."""
    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    return ((bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)).astype(np.uint16)


def round_bf16(values: np.ndarray) -> np.ndarray:
    return (bf16_bits(values).astype(np.uint32) << np.uint32(16)).view(np.float32).reshape(values.shape)


def stays_float32(name: str) -> bool:
    return has_suffix(name, "block_sparse_moe.gate.weight") or has_suffix(name, "e_score_correction_bias") or \
        has_suffix(name, "patch_embedding.weight")


def seeded_tensor(name: str, shape, seed: int, gains=None) -> np.ndarray:
    """float32 array holding exactly the stored values."""
    values = seeded_float32(name, shape, seed, gains)
    return values if stays_float32(name) else round_bf16(values)


def seeded_tokens(seed: int, count: int, vocab: int) -> np.ndarray:
    return ((random_words("tokens", seed, count) >> np.uint64(33)) % np.uint64(vocab)).astype(np.int32)
