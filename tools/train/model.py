"""A small MiniMax-M3 text model in PyTorch, written for training (names and formulas: spec 1 to 3).

Three things differ from an inference engine. Every expert runs on every token and the unused ones get
weight zero, which at this size is faster than routing. The indexer sits outside the language-model
gradient and learns from a KL loss instead. And a step is one flat run of documents of any lengths: each layer is two
compiled halves around an attention call, so that the same halves serve all lengths, dense and sparse.
"""

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
MAX_LENGTH = 65536  # of a document
NEVER = -1e9  # score of a key or block that may not be seen
CHOICE_SCORES = 1 << 30  # scores of queries against keys that are held at once


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
    max_position_embeddings: int = 32768  # the longest documents trained on

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


class Projected(NamedTuple):
    """What the first half of a layer hands to attention; one row per token of the step."""

    q: torch.Tensor  # [tokens, heads, HEAD_DIM]
    k: torch.Tensor  # [tokens, KV heads, HEAD_DIM]
    v: torch.Tensor
    index_q: torch.Tensor | None  # [tokens, index heads, HEAD_DIM]
    index_k: torch.Tensor | None  # [tokens, HEAD_DIM]


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

    # First half: projections.

    def project(self, x, cos, sin) -> Projected:
        """x [tokens, hidden]; cos and sin [tokens, 1, ROTARY_DIM / 2]."""
        tokens, table = x.shape[0], (cos, sin)
        h = self.input_layernorm(x)
        q, k, v = (part.view(tokens, -1, HEAD_DIM) for part in self.qkv_proj(h).split(self.widths, -1))
        q, k = norm_and_rotate(q, self.q_norm, table), norm_and_rotate(k, self.k_norm, table)
        if not self.sparse:
            return Projected(q, k, v, None, None)
        index_q, index_k = (
            part.view(tokens, -1, HEAD_DIM) for part in self.index_proj(h.detach()).split(self.index_widths, -1)
        )
        index_q = norm_and_rotate(index_q, self.index_q_norm, table)
        index_k = norm_and_rotate(index_k, self.index_k_norm, table)[:, 0]
        return Projected(q, k, v, index_q, index_k)

    # Second half: output projection and MLP.

    def finish(self, x, attended, drop):
        """Returns the new residual and, in MoE layers, the share of tokens that chose each expert.

        attended [tokens, heads, HEAD_DIM]; drop [tokens, 1] is each token's dropout rate.
        """
        x = x + dropped(self.o_proj(attended.flatten(1)), drop)
        h = self.post_attention_layernorm(x)
        if not self.sparse:
            gate, up = self.gate_up_proj(h).chunk(2, -1)
            y = self.down_proj(swiglu_oai(gate, up, self.config).to(h.dtype))
            return x + dropped(y, drop), None
        weights, load = self.route(h)
        gate, up = self.experts_gate_up(h).chunk(2, -1)
        y = swiglu_oai(gate, up, self.config).unflatten(-1, (self.config.num_local_experts, -1))
        y = (y * weights[..., None]).flatten(-2).to(h.dtype)
        gate, up = self.shared_gate_up(h).chunk(2, -1)
        shared = swiglu_oai(gate, up, self.config).to(h.dtype)
        return x + dropped(self.experts_down(y) + self.shared_down(shared), drop), load

    def route(self, h):
        """Weights [tokens, experts], zero where not chosen, and the load per expert."""
        with torch.autocast(h.device.type, enabled=False):
            p = torch.sigmoid(F.linear(h.float(), self.gate.weight.float()))
        best = (p + self.e_score_correction_bias).topk(self.config.num_experts_per_tok, -1).indices
        weights = torch.zeros_like(p).scatter(-1, best, p.gather(-1, best))
        load = (weights > 0).float().mean(0)
        return weights / weights.sum(-1, keepdim=True) * self.config.routed_scaling_factor, load


def dropped(y, drop):
    return y * ((torch.rand_like(y, dtype=torch.float32) >= drop) / (1 - drop)).to(y.dtype)


def own_blocks(first: int, end: int, device):
    return torch.arange(first, end, device=device) // BLOCK


def choose_blocks(index_q, index_k, rows: int, length: int, earlier: int):
    """int64 [index heads, rows * length, earlier]: the best-scored blocks before each query's own one.

    A document is `length` tokens; blocks are numbered from its beginning, and -1 stands for none. A block's score is
    its best index_q . index_k, in fp32. Only blocks that end before the query are scored: the own one is always read.
    """
    heads = index_q.shape[1]
    index_q = index_q.view(rows, length, heads, HEAD_DIM)
    index_k = index_k.view(rows, length, HEAD_DIM).transpose(1, 2).float()
    step = max(BLOCK, min(length, CHOICE_SCORES // (rows * heads * length) // BLOCK * BLOCK))
    chosen = []
    for first in range(0, length, step):
        end = min(first + step, length)
        q = index_q[:, first:end].transpose(1, 2).flatten(1, 2).float()
        scores = torch.bmm(q, index_k[:, :, :end]).unflatten(-1, (-1, BLOCK)).amax(-1)
        scores = scores.unflatten(1, (heads, -1))  # [rows, heads, queries, blocks]
        late = torch.arange(scores.shape[-1], device=q.device) >= own_blocks(first, end, q.device)[:, None]
        best = scores.masked_fill_(late, NEVER).topk(min(earlier, scores.shape[-1]), -1)
        ids = best.indices.masked_fill(best.values < NEVER / 2, -1)
        chosen.append(F.pad(ids, (0, earlier - ids.shape[-1]), value=-1))
    return torch.cat(chosen, 2).transpose(0, 1).flatten(1, 2)


def index_loss(part: Projected, first: int, rows: int, length: int, queries, config: ModelConfig):
    """KL(attention mass per block, softmax of the block scores) over the blocks before the own one.

    The mass is that of the KV head's group of query heads under dense attention, detached. queries [rows, n] are the
    places taught, within each document. Each counts by its mass on those blocks: one that looks only at its own
    block teaches nothing about the others.
    """
    heads, group = config.num_key_value_heads, config.group
    span, device = slice(first, first + rows * length), queries.device

    def of_rows(x):
        return x[span].view(rows, length, *x.shape[1:])

    at = torch.arange(rows, device=device)[:, None]
    own_or_later = torch.arange(length // BLOCK, device=device) >= (queries // BLOCK)[..., None]  # [rows, n, blocks]
    with torch.no_grad():
        q = of_rows(part.q)[at, queries].unflatten(2, (heads, group))
        attention = torch.einsum("rnhgd,rshd->rhgns", q, of_rows(part.k)).float() * HEAD_DIM**-0.5
        late = torch.arange(length, device=device) > queries[..., None]
        attention = attention.masked_fill_(late[:, None, None], NEVER).softmax(-1)
        mass = attention.unflatten(-1, (-1, BLOCK)).sum(-1).mean(2).masked_fill(own_or_later[:, None], 0.0)
        total = mass.sum(-1)
        target = mass / total.clamp(min=1e-6)[..., None]
    with torch.autocast(device.type, enabled=False):
        index_q, index_k = of_rows(part.index_q)[at, queries].float(), of_rows(part.index_k).float()
        scores = torch.einsum("rnhd,rsd->rhns", index_q, index_k).unflatten(-1, (-1, BLOCK)).amax(-1)
    scores = (scores * HEAD_DIM**-0.5).masked_fill(own_or_later[:, None], NEVER)
    predicted = scores.log_softmax(-1).clamp(min=-30)
    divergence = (target * (target.clamp(min=1e-9).log() - predicted)).sum(-1)
    return (divergence * total).sum() / total.sum().clamp(min=1)


class Plan:
    """Which keys each query of a step may read.

    A step is a flat run of documents; start [tokens] is each token's document's first token. `chosen` [KV heads,
    tokens] x 3 holds a query's chosen blocks besides its own, numbered within the step; -1 in the first lets it read
    its whole document so far.
    """

    NONE = 1 << 20  # a block number that never occurs

    def __init__(self, positions, segments, config: ModelConfig):
        self.tokens, self.device, self.config, self.segments = len(positions), positions.device, config, segments
        if self.tokens % BLOCK or config.sparse_topk_blocks != 4:
            raise ValueError(f"a step has whole blocks and four are chosen, not {self.tokens} tokens")
        index = torch.arange(self.tokens, device=self.device)
        self.start = (index - positions).int()
        heads, blocks = config.num_key_value_heads, self.tokens // BLOCK
        shape = heads, self.tokens
        self.everything = tuple(torch.full(shape, -1, dtype=torch.int32, device=self.device) for _ in range(3))
        block = torch.arange(blocks, device=self.device)
        first = self.start.view(-1, BLOCK).amin(1) // BLOCK
        self.dense_tiles = ((block <= block[:, None]) & (block >= first[:, None])).expand(heads, -1, -1)
        scored = torch.zeros(blocks, dtype=torch.bool, device=self.device)
        for begin, rows, length in segments:
            scored[begin // BLOCK : (begin + rows * length) // BLOCK] = True
        own = block == block[:, None]
        self.sparse_tiles = torch.where(scored[:, None], own, self.dense_tiles[0])
        self._dense_mask = None

    def choose(self, part: Projected):
        """chosen, and the tiles [KV heads, blocks, blocks] of queries and keys it needs, by the indexer's scores."""
        chosen = tuple(part.clone() for part in self.everything)
        heads, blocks = self.config.num_key_value_heads, self.tokens // BLOCK
        tiles = self.sparse_tiles.to(torch.uint8).expand(heads, -1, -1).contiguous()
        for begin, rows, length in self.segments:
            span = slice(begin, begin + rows * length)
            ids = choose_blocks(part.index_q[span], part.index_k[span], rows, length, len(chosen))
            document = torch.arange(rows, device=self.device).repeat_interleave(length) * (length // BLOCK)
            ids = torch.where(ids < 0, self.NONE, ids + (document + begin // BLOCK)[:, None])
            for number, each in enumerate(chosen):
                each[:, span] = ids[..., number].int()
            query = own_blocks(begin, begin + rows * length, self.device)
            base = torch.arange(heads, device=self.device)[:, None] * blocks + query  # [heads, queries]
            ids = torch.where(ids == self.NONE, query[:, None], ids)
            tiles.view(-1).scatter_(0, (base[..., None] * blocks + ids).flatten(), 1)
        return chosen, tiles.bool()

    def allowed(self, chosen):
        (first, second, third), start, group = chosen, self.start, self.config.group

        def mask(b, h, query, key):
            head, block = h // group, key // BLOCK
            near = (block == query // BLOCK) | (first[head, query] < 0)
            far = (block == first[head, query]) | (block == second[head, query]) | (block == third[head, query])
            return (key <= query) & (key >= start[query]) & (near | far)

        return mask


def attend_masked(part: Projected, plan: Plan, chosen, tiles):
    """Attention through an explicit mask, some queries at a time: slow, but runs anywhere."""
    group, chunk = plan.config.group, 1024 if part.q.is_cuda else 256
    q = part.q.transpose(0, 1)
    k, v = (x.transpose(0, 1).repeat_interleave(group, 0) for x in (part.k, part.v))
    may = plan.allowed(chosen)
    heads = torch.arange(q.shape[0], device=q.device)[:, None, None]
    outputs = []
    for first in range(0, plan.tokens, chunk):
        end = min(first + chunk, plan.tokens)
        low = int(plan.start[first:end].min()) // BLOCK * BLOCK  # kernels want aligned masks
        query = torch.arange(first, end, device=q.device)[:, None]
        mask = may(0, heads, query, torch.arange(low, end, device=q.device))
        # Finite values: some masked kernels give NaN gradients where a whole tile is -inf.
        bias = torch.where(mask, 0.0, NEVER).to(q.dtype)
        with sdpa_kernel([SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]):
            outputs.append(
                F.scaled_dot_product_attention(
                    q[None, :, first:end], k[None, :, low:end], v[None, :, low:end], attn_mask=bias[None]
                )[0]
            )
    return torch.cat(outputs, 1).transpose(0, 1)


_compiled_flex = torch.compile(flex_attention, dynamic=False)


def attend_flex(part: Projected, plan: Plan, chosen, tiles):
    """FlexAttention, which skips 128 x 128 tiles that no query of 128 reads."""

    def block_mask():
        wide = tiles.repeat_interleave(plan.config.group, 0)[None]
        count = wide.sum(-1, dtype=torch.int32)
        order = wide.to(torch.uint8).argsort(dim=-1, descending=True, stable=True).int()
        return BlockMask.from_kv_blocks(count, order, BLOCK_SIZE=BLOCK, mask_mod=plan.allowed(chosen))

    if chosen is plan.everything:
        plan._dense_mask = mask = plan._dense_mask or block_mask()
    else:
        mask = block_mask()
    q, k, v = (x.transpose(0, 1)[None] for x in (part.q, part.k, part.v))
    return _compiled_flex(q, k, v, block_mask=mask, enable_gqa=True)[0].transpose(0, 1)


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
        self._table = None
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

    def forward(
        self, ids, positions, plan: Plan, attend, sparse=True, taught=None, drop=None, dtype=torch.bfloat16, media=None
    ):
        """ids and positions [tokens]: a step of documents side by side.

        sparse False runs every layer dense. taught is (first token, rows, length, queries) of a part whose index loss
        is wanted. drop [tokens, 1] are dropout rates. dtype is the residual's. media: features [rows, hidden] of pictures
        and each token's row of them, -1 for words.
        """
        x = self.embed_tokens(ids).to(dtype)
        if media is not None:
            features, rows = media
            # Words point at rows one after another, not all at the same one, whose gradient would be a queue.
            spread = torch.arange(len(ids), device=ids.device) % len(features)
            seen = features.to(dtype)[torch.where(rows < 0, spread, rows)]
            x = torch.where((rows >= 0)[:, None], seen, x)
        if self._table is None or self._table[0].device != ids.device:
            self._table = rotary_table(self.config, MAX_LENGTH, ids.device)
        cos, sin = (part[positions] for part in self._table)
        drop = torch.zeros(len(ids), 1, device=ids.device) if drop is None else drop
        losses, loads = [], []
        for layer in self.layers:
            part = layer.project(x, cos, sin)
            chosen, tiles = plan.everything, plan.dense_tiles
            if layer.sparse and sparse and plan.segments:
                with torch.no_grad():
                    chosen, tiles = plan.choose(part)
            if layer.sparse and taught is not None:
                losses.append(index_loss(part, *taught, self.config))
            x, load = layer.finish(x, attend(part, plan, chosen, tiles), drop)
            if layer.sparse:
                loads.append(load)
        return Output(self.norm(x), torch.stack(losses).mean() if losses else x.new_zeros(()), torch.stack(loads))

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
