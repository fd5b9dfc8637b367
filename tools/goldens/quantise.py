"""Writes the published quantised layouts from float32, from the formats' public definitions (numpy only).

E2M1 magnitudes 0 0.5 1 1.5 2 3 4 6, bit 3 the sign, low nibble = even column. E4M3 is the finite-only kind
(largest 448). E8M0 byte s is 2^(s - 127). All scales are amax-based. `read_quantised.py` reads them back
through other code.
"""
import numpy as np


def e4m3_values():
    """Magnitudes of codes 0..0x7E (0x7F is NaN)."""
    code = np.arange(127)
    exponent, fraction = code >> 3, code & 7
    return np.where(exponent == 0, fraction / 8 * 2.0**-6, (1 + fraction / 8) * 2.0**(exponent - 7.0))


E2M1_VALUES = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6])


def nearest_codes(values, table):
    """Index of the nearest table entry to |value|, ties to the even index, saturating."""
    magnitude = np.abs(values.astype(np.float64))
    middle = (table[1:] + table[:-1]) / 2
    below = np.searchsorted(middle, magnitude, side="left")
    tie = (below < len(middle)) & (magnitude == middle[np.minimum(below, len(middle) - 1)])
    return (below + (tie & (below % 2 == 1))).astype(np.uint8)


def to_e4m3(values):
    return nearest_codes(values, e4m3_values()) | (np.signbit(values).astype(np.uint8) << 7)


def to_e2m1(values):
    return nearest_codes(values, E2M1_VALUES) | (np.signbit(values).astype(np.uint8) << 3)


def pack_nibbles(codes):
    return codes[:, 0::2] | (codes[:, 1::2] << 4)


def group_amax(weight, group):
    rows, columns = weight.shape
    return np.abs(weight.astype(np.float64)).reshape(rows, columns // group, group).max(-1)


def mxfp8(weight, scale_name):
    """suffix -> (dtype, shape, bytes)."""
    exponent = np.ceil(np.log2(group_amax(weight, 32) / 448))
    scale = np.clip(exponent + 127, 0, 254).astype(np.uint8)
    codes = to_e4m3(weight * np.repeat(2.0**(127.0 - scale), 32, axis=1))
    return {"weight": ("F8_E4M3", weight.shape, codes.tobytes()), scale_name: ("U8", scale.shape, scale.tobytes())}


def mxfp4(weight):
    """Shared exponent floor(log2 amax) - 2, values past 6 saturate (the OCP rule)."""
    scale = np.clip(np.floor(np.log2(group_amax(weight, 32))) - 2 + 127, 0, 254).astype(np.uint8)
    packed = pack_nibbles(to_e2m1(weight * np.repeat(2.0**(127.0 - scale), 32, axis=1)))
    return {"weight": ("U8", packed.shape, packed.tobytes()), "weight_scale": ("U8", scale.shape, scale.tobytes())}


def nvfp4(weight, headroom, scale_shape, input_scale=None):
    """weight_scale_2 = headroom * amax / (6 * 448); block scales are e4m3 of amax / 6 in its units."""
    second = np.float32(headroom * np.abs(weight).max() / (6 * 448))
    blocks = to_e4m3(group_amax(weight, 16) / 6 / float(second))
    step = e4m3_values()[blocks] * float(second)
    packed = pack_nibbles(to_e2m1(weight / np.repeat(np.maximum(step, 1e-30), 16, axis=1)))
    out = {"weight": ("U8", packed.shape, packed.tobytes()),
           "weight_scale": ("F8_E4M3", blocks.shape, blocks.tobytes()),
           "weight_scale_2": ("F32", scale_shape, second.tobytes())}
    if input_scale is not None:
        out["input_scale"] = ("F32", scale_shape, np.float32(input_scale).tobytes())
    return out


def fp8_per_channel(weight):
    scale = (np.abs(weight).max(1) / 448).astype(np.float32)
    codes = to_e4m3(weight / scale[:, None].astype(np.float64))
    return {"weight": ("F8_E4M3", weight.shape, codes.tobytes()), "weight_scale": ("F32", scale.shape, scale.tobytes())}


def fp8_per_tensor(weight, scale_shape):
    scale = np.float32(np.abs(weight).max() / 448)
    codes = to_e4m3(weight / float(scale))
    return {"weight": ("F8_E4M3", weight.shape, codes.tobytes()), "weight_scale": ("F32", scale_shape, scale.tobytes())}
