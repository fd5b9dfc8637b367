"""Muon for the layers' matrices, AdamW for the rest.

Every matrix of a layer is one or more pieces of 128 rows (heads, experts, slices of the dense MLP) that read the
residual, or of 128 columns that write to it. All pieces are orthogonalised in one batch of [pieces, 128, hidden].
"""

import torch

from model import HEAD_DIM

COEFFICIENTS = [(4.0848, -6.8946, 2.9270), (3.9505, -6.3029, 2.6377), (3.7418, -5.5913, 2.3037),
                (2.8769, -3.1427, 1.2046), (2.8366, -3.0525, 1.2012)]  # fmt: skip


def orthogonalised(x):
    """x [pieces, rows, columns], rows <= columns, to about the nearest matrices with orthonormal rows (in bf16 on a GPU)."""
    x = x.bfloat16() if x.is_cuda else x
    x = x / (x.norm(dim=(-2, -1), keepdim=True) * 1.01 + 1e-7)
    for a, b, c in COEFFICIENTS:
        square = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(square, square, square, beta=b, alpha=c), x, beta=a)
    return x


def pieces(parameter, hidden: int):
    """A view [pieces, 128, hidden] of a matrix that reads or writes the residual."""
    if parameter.shape[1] == hidden and parameter.shape[0] % HEAD_DIM == 0:
        return parameter.reshape(-1, HEAD_DIM, hidden)
    return parameter.reshape(hidden, -1, HEAD_DIM).permute(1, 2, 0)


class Optimizer:
    def __init__(self, model, matrix_rate: float, rate: float, weight_decay: float = 0.1):
        self.hidden = model.config.hidden_size
        self.matrices, tables, small = [], [], []
        for name, parameter in model.named_parameters():
            if parameter.ndim == 2 and ".gate." not in name and name.startswith("layers."):
                self.matrices.append(parameter)
            elif parameter.ndim == 2:
                tables.append(parameter)
            else:
                small.append(parameter)
        self.counts = [pieces(p, self.hidden).shape[0] for p in self.matrices]
        device = self.matrices[0].device
        self.momentum = torch.zeros(sum(self.counts), HEAD_DIM, self.hidden, device=device)
        self.matrix_rate, self.weight_decay = matrix_rate, weight_decay
        groups = [
            {"params": tables, "lr": rate, "base": rate, "weight_decay": weight_decay},
            {"params": small, "lr": rate, "base": rate, "weight_decay": 0.0},
        ]
        self.adam = torch.optim.AdamW(groups, betas=(0.9, 0.98), fused=device.type == "cuda")
        self.adam_parameters = tables + small

    @torch.no_grad()
    def step(self, factor: float):
        """One update at `factor` times the rates; returns the norm of all gradients (a tensor, not waited for)."""
        gradients = torch.cat([pieces(p.grad, self.hidden) for p in self.matrices])
        norm = torch.nn.utils.clip_grad_norm_(self.adam_parameters, 1.0)
        self.momentum.lerp_(gradients, 0.05)
        update = orthogonalised(gradients.lerp_(self.momentum, 0.95))
        # Elements of an orthonormal [128, hidden] matrix have a mean square of 1 / hidden: scaled to AdamW's usual 0.2.
        rate = self.matrix_rate * factor
        scale = 0.2 * self.hidden**0.5 * rate
        for parameter, part in zip(self.matrices, update.split(self.counts)):
            parameter.mul_(1 - rate * self.weight_decay)
            pieces(parameter, self.hidden).sub_(part, alpha=scale)
        for group in self.adam.param_groups:
            group["lr"] = group["base"] * factor
        self.adam.step()
        for parameter in self.matrices + self.adam_parameters:
            parameter.grad = None
        return norm + gradients.norm()

    def state(self) -> dict:
        return {"momentum": self.momentum, "adam": self.adam.state_dict()}

    def load(self, state: dict) -> None:
        self.momentum.copy_(state["momentum"])
        self.adam.load_state_dict(state["adam"])
