"""A small MiniMax-M3 text model in PyTorch, written for training (names and formulas: spec 1 to 3).

Three things differ from an inference engine. Every expert runs on every token and the unused ones get
weight zero, which at this size is faster than routing. The indexer sits outside the language-model
gradient and learns from a KL loss instead. And each layer is two compiled halves around an attention
call, so that the same halves serve dense and sparse attention.
"""

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.flex_attention import BlockMask, flex_attention

BLOCK = 128
HEAD_DIM = 128
ROTARY_DIM = 64
NEVER = -1e9  # score of a key or block that may not be seen
FORCED = 1e9  # score of a block that is always chosen
CHOICE_CHUNK = 8192  # queries whose scores against all keys are held at once


@dataclass(frozen=True)
class ModelConfig:
    vocab_size: int = 4096
    hidden_size: int = 320
    num_hidden_layers: int = 5
    num_dense_layers: int = 1  # leading layers with full attention and a dense MLP
    num_attention_heads: int = 8
    num_key_value_heads: int = 4
    dense_intermediate_size: int = 1024
    intermediate_size: int = 128  # one routed expert, and the shared one
    num_local_experts: int = 8
    num_experts_per_tok: int = 2
    routed_scaling_factor: float = 2.0
    sparse_topk_blocks: int = 4
    swiglu_alpha: float = 1.702
    swiglu_limit: float = 7.0
    rope_theta: float = 5e6
    rms_norm_eps: float = 1e-6
    max_position_embeddings: int = 16384  # held-out loss rises beyond

    @property
    def group(self) -> int:
        """Query heads that share a KV head and its chosen blocks."""
        return self.num_attention_heads // self.num_key_value_heads


class GemmaNorm(nn.Module):
    def __init__(self, width: int, eps: float):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(width))
        self.eps = eps

    def in_float(self, x):
        return F.rms_norm(x.float(), (x.shape[-1],), eps=self.eps) * (1 + self.weight)

    def forward(self, x):
        return self.in_float(x).to(x.dtype)


def rotary_table(config: ModelConfig, length: int, device) -> tuple[torch.Tensor, torch.Tensor]:
    """cos and sin, each [length, 1, ROTARY_DIM / 2] in fp32."""
    exponent = torch.arange(0, ROTARY_DIM, 2, device=device).float() / ROTARY_DIM
    angle = torch.arange(length, device=device).float()[:, None] / config.rope_theta**exponent
    return angle.cos()[:, None], angle.sin()[:, None]


def norm_and_rotate(x, norm: GemmaNorm, table):
    """Per-head norm and rotation of x [batch, tokens, heads, HEAD_DIM], rounded once at the end."""
    cos, sin = table
    half = ROTARY_DIM // 2
    first, second, rest = norm.in_float(x).split([half, half, HEAD_DIM - ROTARY_DIM], -1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin, rest], -1).to(x.dtype)


def swiglu_oai(gate, up, config: ModelConfig):
    gate = gate.float().clamp(max=config.swiglu_limit)
    up = up.float().clamp(-config.swiglu_limit, config.swiglu_limit)
    return gate * torch.sigmoid(config.swiglu_alpha * gate) * (up + 1)


class Attended(NamedTuple):
    """What the first half of a layer hands to attention."""

    q: torch.Tensor  # [batch, heads, tokens, HEAD_DIM]
    k: torch.Tensor  # [batch, KV heads, tokens, HEAD_DIM]
    v: torch.Tensor
    chosen: torch.Tensor | None  # bool [batch, KV heads, tokens, blocks]; None means all
    index_loss: torch.Tensor


class Layer(nn.Module):
    def __init__(self, config: ModelConfig, sparse: bool):
        super().__init__()
        self.config, self.sparse = config, sparse
        hidden, eps = config.hidden_size, config.rms_norm_eps
        self.widths = [n * HEAD_DIM for n in (config.num_attention_heads,) + 2 * (config.num_key_value_heads,)]
        self.input_layernorm = GemmaNorm(hidden, eps)
        self.post_attention_layernorm = GemmaNorm(hidden, eps)
        self.qkv_proj = nn.Linear(hidden, sum(self.widths), bias=False)
        self.o_proj = nn.Linear(self.widths[0], hidden, bias=False)
        self.q_norm, self.k_norm = GemmaNorm(HEAD_DIM, eps), GemmaNorm(HEAD_DIM, eps)
        if not sparse:
            self.gate_up_proj = nn.Linear(hidden, 2 * config.dense_intermediate_size, bias=False)
            self.down_proj = nn.Linear(config.dense_intermediate_size, hidden, bias=False)
            return
        self.index_widths = [config.num_key_value_heads * HEAD_DIM, HEAD_DIM]
        self.index_proj = nn.Linear(hidden, sum(self.index_widths), bias=False)
        self.index_q_norm, self.index_k_norm = GemmaNorm(HEAD_DIM, eps), GemmaNorm(HEAD_DIM, eps)
        experts, width = config.num_local_experts, config.intermediate_size
        self.gate = nn.Linear(hidden, experts, bias=False)
        self.register_buffer("e_score_correction_bias", torch.zeros(experts))
        # Rows: all gates (expert by expert), then all ups; columns of the down projection likewise.
        self.experts_gate_up = nn.Linear(hidden, 2 * experts * width, bias=False)
        self.experts_down = nn.Linear(experts * width, hidden, bias=False)
        self.shared_gate_up = nn.Linear(hidden, 2 * width, bias=False)
        self.shared_down = nn.Linear(width, hidden, bias=False)

    # First half: projections, the indexer's loss and its choice.

    def project(self, x, table, loss_rows, choose: bool) -> Attended:
        batch, tokens, _ = x.shape
        h = self.input_layernorm(x)
        q, k, v = (part.view(batch, tokens, -1, HEAD_DIM) for part in self.qkv_proj(h).split(self.widths, -1))
        q, k = norm_and_rotate(q, self.q_norm, table), norm_and_rotate(k, self.k_norm, table)
        index_loss, chosen = x.new_zeros((), dtype=torch.float32), None
        if self.sparse and (loss_rows is not None or choose):
            index_q, index_k = (
                part.view(batch, tokens, -1, HEAD_DIM)
                for part in self.index_proj(h.detach()).split(self.index_widths, -1)
            )
            index_q = norm_and_rotate(index_q, self.index_q_norm, table)
            index_k = norm_and_rotate(index_k, self.index_k_norm, table)[:, :, 0]
            if loss_rows is not None:
                index_loss = self.index_loss(q, k, index_q[:, loss_rows], index_k, loss_rows)
            if choose:
                with torch.no_grad():
                    chunks = torch.arange(tokens, device=x.device).split(CHOICE_CHUNK)
                    chosen = [self.choose_blocks(block_scores(index_q[:, r], index_k, r), r) for r in chunks]
                    chosen = torch.cat(chosen, 2)
        return Attended(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), chosen, index_loss)

    def index_loss(self, q, k, index_q, index_k, rows):
        """KL(attention mass per block, softmax of the block scores) over the blocks before the own one.

        The mass is that of the KV head's group of query heads under dense attention, detached.
        """
        heads, group = self.config.num_key_value_heads, self.config.group
        batch, tokens = q.shape[0], q.shape[1]
        blocks = math.ceil(tokens / BLOCK)
        own_or_later = torch.arange(blocks, device=q.device)[None] >= (rows // BLOCK)[:, None]
        with torch.no_grad():
            grouped = q[:, rows].view(batch, len(rows), heads, group, HEAD_DIM)
            attention = torch.einsum("brhgd,bshd->bhgrs", grouped, k).float() * HEAD_DIM**-0.5
            attention = attention.masked_fill(~visible(tokens, rows), NEVER).softmax(-1)
            mass = split_blocks(attention, 0.0).sum(-1).mean(2).masked_fill(own_or_later, 0.0)
            total = mass.sum(-1, keepdim=True)
            target = mass / total.clamp(min=1e-6)
            # A row that looks only at its own block teaches nothing about the others.
            counted = (total[..., 0] > 1e-3).float()
        scores = block_scores(index_q, index_k, rows) * HEAD_DIM**-0.5
        predicted = scores.masked_fill(own_or_later, NEVER).log_softmax(-1).clamp(min=-30)
        divergence = (target * (target.clamp(min=1e-9).log() - predicted)).sum(-1)
        return (divergence * counted).sum() / counted.sum().clamp(min=1)

    def choose_blocks(self, scores, rows):
        """bool [batch, KV heads, rows, blocks]: the own block and the best of the earlier ones."""
        blocks = scores.shape[-1]
        own = torch.arange(blocks, device=scores.device)[None] == (rows // BLOCK)[:, None]
        scores = scores.masked_fill(own, FORCED)
        best = scores.topk(min(self.config.sparse_topk_blocks, blocks), -1)
        return torch.zeros_like(scores, dtype=torch.bool).scatter(-1, best.indices, best.values > NEVER / 2)

    # Second half: output projection and MLP.

    def finish(self, x, attended):
        """Returns the new residual and, in MoE layers, the share of tokens that chose each expert."""
        batch, tokens, _ = x.shape
        x = x + self.o_proj(attended.transpose(1, 2).reshape(batch, tokens, self.widths[0]))
        h = self.post_attention_layernorm(x)
        if not self.sparse:
            gate, up = self.gate_up_proj(h).chunk(2, -1)
            return x + self.down_proj(swiglu_oai(gate, up, self.config).to(h.dtype)), None
        weights, load = self.route(h)
        gate, up = self.experts_gate_up(h).chunk(2, -1)
        y = swiglu_oai(gate, up, self.config).unflatten(-1, (self.config.num_local_experts, -1))
        y = (y * weights[..., None]).flatten(-2).to(h.dtype)
        gate, up = self.shared_gate_up(h).chunk(2, -1)
        shared = swiglu_oai(gate, up, self.config).to(h.dtype)
        return x + self.experts_down(y) + self.shared_down(shared), load

    def route(self, h):
        """Weights [batch, tokens, experts], zero where not chosen, and the load per expert."""
        with torch.autocast(h.device.type, enabled=False):
            p = torch.sigmoid(F.linear(h.float(), self.gate.weight.float()))
        best = (p + self.e_score_correction_bias).topk(self.config.num_experts_per_tok, -1).indices
        weights = torch.zeros_like(p).scatter(-1, best, p.gather(-1, best))
        load = (weights > 0).float().mean((0, 1))
        return weights / weights.sum(-1, keepdim=True) * self.config.routed_scaling_factor, load


def visible(tokens: int, rows):
    return torch.arange(tokens, device=rows.device)[None] <= rows[:, None]


def split_blocks(x, padding: float):
    """[..., tokens] to [..., blocks, BLOCK]."""
    return F.pad(x, (0, -x.shape[-1] % BLOCK), value=padding).unflatten(-1, (-1, BLOCK))


def block_scores(index_q, index_k, rows):
    """fp32 [batch, index heads, rows, blocks]: the best visible index_q . index_k of each block.

    index_q is [batch, rows, heads, HEAD_DIM], already at the wanted rows; index_k is that of all tokens.
    """
    with torch.autocast(index_q.device.type, enabled=False):
        scores = torch.einsum("brhd,bsd->bhrs", index_q.float(), index_k.float())
    scores = scores.masked_fill(~visible(index_k.shape[1], rows), NEVER)
    return split_blocks(scores, NEVER).amax(-1)


def attend_dense(part: Attended):
    return F.scaled_dot_product_attention(part.q, part.k, part.v, is_causal=True, enable_gqa=True)


def attend_masked(part: Attended, chunk: int = 1024):
    """Sparse attention through an explicit mask, some queries at a time: slow, but runs anywhere."""
    tokens, group = part.q.shape[2], part.q.shape[1] // part.k.shape[1]
    k, v = part.k.repeat_interleave(group, 1), part.v.repeat_interleave(group, 1)
    outputs = []
    for rows in torch.arange(tokens, device=part.q.device).split(chunk):
        mask = part.chosen[:, :, rows].repeat_interleave(BLOCK, -1)[..., :tokens] & visible(tokens, rows)
        # Finite values: some masked kernels give NaN gradients where a whole tile is -inf.
        bias = torch.where(mask, 0.0, NEVER).to(part.q.dtype).repeat_interleave(group, 1)
        with sdpa_kernel([SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]):
            outputs.append(F.scaled_dot_product_attention(part.q[:, :, rows], k, v, attn_mask=bias))
    return torch.cat(outputs, 2)


_compiled_flex = torch.compile(flex_attention, dynamic=False)


def attend_flex(part: Attended):
    """Sparse attention that skips 128 x 128 tiles no query chose. Whole blocks, at most 64 of them."""
    chosen, group = part.chosen, part.q.shape[1] // part.k.shape[1]
    blocks = chosen.shape[-1]
    if part.q.shape[2] != blocks * BLOCK or blocks > 64:
        raise ValueError(f"attend_flex takes up to 64 whole blocks, not {part.q.shape[2]} tokens")
    # One bit per block: the kernel then loads one word per query instead of a byte per query and key.
    bits = (chosen.long() << torch.arange(blocks, device=chosen.device)).sum(-1)

    def mask(b, h, query, key):
        return ((bits[b, h // group, query] >> (key // BLOCK)) & 1 == 1) & (key <= query)

    tiles = chosen.unflatten(2, (-1, BLOCK)).any(3).repeat_interleave(group, 1)
    count = tiles.sum(-1, dtype=torch.int32)
    order = tiles.int().argsort(dim=-1, descending=True, stable=True).int()
    block_mask = BlockMask.from_kv_blocks(count, order, BLOCK_SIZE=BLOCK, mask_mod=mask)
    return _compiled_flex(part.q, part.k, part.v, block_mask=block_mask, enable_gqa=True)


class Output(NamedTuple):
    hidden: torch.Tensor  # after the final norm
    index_loss: torch.Tensor  # mean over the sparse layers
    loads: torch.Tensor  # [MoE layers, experts]


class TinyM3(nn.Module):
    def __init__(self, config: ModelConfig):
        super().__init__()
        self.config = config
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(
            Layer(config, sparse=i >= config.num_dense_layers) for i in range(config.num_hidden_layers)
        )
        self.norm = GemmaNorm(config.hidden_size, config.rms_norm_eps)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self._tables = {}
        # Projections that write to the residual start smaller, so that its variance does not grow with depth.
        into_residual = ("o_proj.weight", "down_proj.weight", "experts_down.weight", "shared_down.weight")
        for name, parameter in self.named_parameters():
            if parameter.ndim == 2:
                scale = (2 * config.num_hidden_layers) ** -0.5 if name.endswith(into_residual) else 1.0
                nn.init.normal_(parameter, std=0.02 * scale)

    def compile_layers(self) -> None:
        """Layers of a kind share their compiled halves, so this costs two layers' compile time."""
        for layer in self.layers:
            layer.project = torch.compile(layer.project, dynamic=False)
            layer.finish = torch.compile(layer.finish, dynamic=False)

    def table(self, tokens: int, device):
        if tokens not in self._tables:
            self._tables[tokens] = rotary_table(self.config, tokens, device)
        return self._tables[tokens]

    def forward(self, ids, loss_rows=None, sparse_attend=None, dtype=torch.bfloat16) -> Output:
        """ids [batch, tokens]. sparse_attend None runs every layer dense. dtype is the residual's."""
        x = self.embed_tokens(ids).to(dtype)
        table = self.table(ids.shape[1], ids.device)
        losses, loads = [], []
        for layer in self.layers:
            part = layer.project(x, table, loss_rows, sparse_attend is not None)
            attended = attend_dense(part) if part.chosen is None else sparse_attend(part)
            x, load = layer.finish(x, attended)
            if layer.sparse:
                losses.append(part.index_loss)
                loads.append(load)
        return Output(self.norm(x), torch.stack(losses).mean(), torch.stack(loads))

    def logits(self, hidden):
        return self.lm_head(hidden).float()

    @torch.no_grad()
    def balance(self, loads, step: float) -> None:
        """Moves the correction biases towards equal load; no loss term is involved."""
        fair = self.config.num_experts_per_tok / self.config.num_local_experts
        for layer, load in zip((layer for layer in self.layers if layer.sparse), loads):
            layer.e_score_correction_bias += step * (fair - load).sign()

    @torch.no_grad()
    def round_to_bf16(self) -> None:
        """Rounds what the checkpoint stores as bf16; router gates and their biases stay fp32."""
        for name, parameter in self.named_parameters():
            if not name.endswith(".gate.weight"):
                parameter.copy_(parameter.bfloat16())
