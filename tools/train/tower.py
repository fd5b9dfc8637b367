"""M3's vision tower and projector in PyTorch (spec 4.4 to 4.7), small, written for training.

Pictures and segments of clips come in groups of slots of one length; what a slot holds beyond its picture is masked.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from skills.scenes import CLASSES, COLOUR_NAMES, MOTIONS

TOWER_HEAD, PATCH_VALUES, AXIS_FREQUENCIES = 80, 1176, 13


@dataclass(frozen=True)
class TowerConfig:
    hidden_size: int = 160
    num_hidden_layers: int = 4
    intermediate_size: int = 320
    projector_hidden_size: int = 96
    text_hidden_size: int = 320
    layer_norm_eps: float = 1e-5
    rope_theta: float = 1e4

    @property
    def heads(self) -> int:
        return self.hidden_size // TOWER_HEAD


def rotary_of(places, theta: float):
    """cos and sin [patches, 1, 39] in fp32; places [patches, 3] are t, row and column."""
    exponent = torch.arange(AXIS_FREQUENCIES, device=places.device).float() * (2 / (2 * AXIS_FREQUENCIES))
    angle = (places.clamp(min=0).float()[..., None] / theta**exponent).flatten(1)
    return angle.cos()[:, None], angle.sin()[:, None]


def rotate(x, cos, sin):
    """x [patches, heads, 80]: pairs 39 apart; the last two values pass."""
    first, second, rest = x.float().split([39, 39, 2], -1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin, rest], -1).to(x.dtype)


class TowerLayer(nn.Module):
    def __init__(self, config: TowerConfig):
        super().__init__()
        width, inner = config.hidden_size, config.intermediate_size
        self.heads = config.heads
        self.layer_norm1 = nn.LayerNorm(width, config.layer_norm_eps)
        self.layer_norm2 = nn.LayerNorm(width, config.layer_norm_eps)
        self.qkv = nn.Linear(width, 3 * width)
        self.out_proj = nn.Linear(width, width)
        self.fc1, self.fc2 = nn.Linear(width, inner), nn.Linear(inner, width)

    def project(self, x, cos, sin):
        q, k, v = self.qkv(self.layer_norm1(x)).view(len(x), 3, self.heads, TOWER_HEAD).unbind(1)
        return rotate(q, cos, sin), rotate(k, cos, sin), v

    def finish(self, x, attended):
        x = x + self.out_proj(attended.flatten(1)).to(x.dtype)
        return x + self.fc2(F.gelu(self.fc1(self.layer_norm2(x)))).to(x.dtype)


class Tower(nn.Module):
    def __init__(self, config: TowerConfig):
        super().__init__()
        self.config = config
        width, projector, text = config.hidden_size, config.projector_hidden_size, config.text_hidden_size
        self.patch_embedding = nn.Linear(PATCH_VALUES, width, bias=False)
        self.pre_layrnorm = nn.LayerNorm(width, config.layer_norm_eps)
        self.layers = nn.ModuleList(TowerLayer(config) for _ in range(config.num_hidden_layers))
        self.projector_1, self.projector_2 = nn.Linear(width, projector), nn.Linear(projector, text)
        self.merge_1, self.merge_2 = nn.Linear(4 * text, projector), nn.Linear(projector, text)
        for name, parameter in self.named_parameters():
            if name.endswith(".bias") or "norm" in name:
                continue
            scale = (2 * config.num_hidden_layers) ** -0.5 if name.endswith(("out_proj.weight", "fc2.weight")) else 1.0
            nn.init.normal_(parameter, std=scale * parameter.shape[1] ** -0.5)
        for name, parameter in self.named_parameters():
            if name.endswith(".bias"):
                nn.init.zeros_(parameter)

    def compile_layers(self) -> None:
        for layer in self.layers:
            layer.project = torch.compile(layer.project, dynamic=False)
            layer.finish = torch.compile(layer.finish, dynamic=False)

    def forward(self, pixels, places, groups, dtype=torch.bfloat16):
        """features [patches / 4, text hidden]; pixels [patches, 1176] fp32, places [patches, 3] with -1 where a slot
        is empty; groups: (slots, patches of a slot) in order."""
        cos, sin = rotary_of(places, self.config.rope_theta)
        there = places[:, 0] >= 0
        with torch.autocast(pixels.device.type, enabled=False):
            x = self.patch_embedding(pixels)
        x = self.pre_layrnorm(x).to(dtype)
        masks, first = [], 0
        for slots, length in groups:
            seen = there[first : first + slots * length].view(slots, 1, 1, length)
            # An empty slot attends to everything: a row without any key would be NaN.
            masks.append(seen | ~seen.any(-1, keepdim=True))
            first += slots * length
        for layer in self.layers:
            q, k, v = layer.project(x, cos, sin)
            parts, first = [], 0
            for (slots, length), mask in zip(groups, masks):
                span = slice(first, first + slots * length)
                one = [part[span].view(slots, length, *part.shape[1:]).transpose(1, 2) for part in (q, k, v)]
                with sdpa_kernel([SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]):
                    attended = F.scaled_dot_product_attention(*one, attn_mask=mask.expand(-1, -1, length, -1))
                parts.append(attended.transpose(1, 2).flatten(0, 1))
                first += slots * length
            x = layer.finish(x, torch.cat(parts))
        y = self.projector_2(F.gelu(self.projector_1(x)))
        return self.merge_2(F.gelu(self.merge_1(y.view(-1, 4 * y.shape[-1]))))

    @torch.no_grad()
    def round_to_bf16(self) -> None:
        for parameter in self.parameters():
            parameter.copy_(parameter.bfloat16())


class Teacher(nn.Module):
    """Reads off each token's feature row what lies in its cell (render.lessons). Only training has it: it makes the
    tower see before the text model can ask."""

    def __init__(self, config: TowerConfig):
        super().__init__()
        self.sizes = (CLASSES, len(COLOUR_NAMES) + 1, len(MOTIONS) + 1, 3)
        self.head = nn.Linear(config.text_hidden_size, sum(self.sizes))

    def forward(self, features, taught, there):
        """Mean cross-entropy, and the share of the filled cells whose class is right. taught [cells, 4]."""
        logits = self.head(F.layer_norm(features.float(), features.shape[-1:])).split(self.sizes, -1)
        count, filled = there.sum().clamp(min=1), there & (taught[:, 0] > 0)
        # Most cells are empty: those with something count five times.
        weight = there.float() + 4 * filled.float()
        loss = sum(
            (F.cross_entropy(part.float(), taught[:, i], reduction="none") * weight).sum() for i, part in enumerate(logits)
        )
        right = ((logits[0].argmax(-1) == taught[:, 0]) & filled).sum() / filled.sum().clamp(min=1)
        moved = filled & (taught[:, 2] > 0)
        right_way = ((logits[2].argmax(-1) == taught[:, 2]) & moved).sum() / moved.sum().clamp(min=1)
        return loss / (count + 4 * filled.sum()), right, right_way
