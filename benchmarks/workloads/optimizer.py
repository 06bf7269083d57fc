"""Gradient buffer and mixed-precision Adam as Megatron-LM keeps them.

Gradients of all parameters are views of one 32-bit buffer (DistributedDataParallel). The optimizer
holds a 32-bit copy of the parameters and two Adam states each: of everything, of this data-parallel
rank's share (distributed optimizer, ZeRO-1), or on the host (offload).
"""

from __future__ import annotations

import torch
from configs import Config
from torch import Tensor, nn

_ADAM_STATES = 2
_NORM_CHUNK = 65536  # elements a block of apex's multi_tensor_l2norm reduces


class GradientBuffer:
    """One 32-bit buffer for all gradients; hooks drop what autograd accumulates outside it."""

    def __init__(self, module: nn.Module) -> None:
        self.parameters = [p for p in module.parameters() if p.requires_grad]
        total = sum(p.numel() for p in self.parameters)
        self.data = torch.zeros(total, dtype=torch.float32, device=self.parameters[0].device)
        self.views: list[Tensor] = []
        offset = 0
        for parameter in self.parameters:
            self.views.append(self.data[offset : offset + parameter.numel()].view_as(parameter))
            offset += parameter.numel()
        for parameter, view in zip(self.parameters, self.views, strict=True):
            parameter.register_post_accumulate_grad_hook(_into(view, parameter.dim() > 1))

    def zero(self) -> None:
        """Before an iteration."""
        self.data.zero_()

    def reduce_norms(self) -> None:
        """Sums the norms' gradients over the tensor-parallel ranks, flattened for that."""
        grads = [v for p, v in zip(self.parameters, self.views, strict=True) if p.dim() == 1]
        if not grads:
            return
        flat = torch.cat([grad.reshape(-1) for grad in grads])
        for grad, part in zip(grads, flat.split([g.numel() for g in grads]), strict=True):
            grad.copy_(part.view_as(grad))


def _into(view: Tensor, fused: bool) -> object:
    def accumulate(parameter: Tensor) -> None:
        if not fused:  # a matrix product has added its own already
            view.add_(parameter.grad)
        parameter.grad = None

    return accumulate


class Optimizer:
    """Adam over 32-bit copies. States appear in the first step, as in apex's FusedAdam."""

    def __init__(self, config: Config, gradients: GradientBuffer) -> None:
        self.config = config
        self.gradients = gradients
        share = config.parallelism.data if config.zero else 1
        self.numels = [-(-p.numel() // share) for p in gradients.parameters]
        self.parameters: list[Tensor] = []
        self.states: list[Tensor] = []
        if not config.offload:
            self.parameters = [
                p.detach().view(-1)[:n].clone().float()
                for p, n in zip(gradients.parameters, self.numels, strict=True)
            ]

    def step(self) -> None:
        """Norm, clip, update, and the parameters back to 16 bits."""
        device = self.gradients.data.device
        found_inf = torch.zeros(1, dtype=torch.float32, device=device)
        blocks = sum(-(-n // _NORM_CHUNK) for n in self.numels)
        partial = torch.zeros(blocks, dtype=torch.float32, device=device)
        norm = (partial.sum() ** 2.0 + found_inf) ** 0.5
        self.gradients.data.mul_(1.0 / (norm + 1.0e-6))
        if self.config.offload:
            # Stepped on the host; each parameter comes back in 32 bits and is converted.
            for parameter, numel in zip(self.gradients.parameters, self.numels, strict=True):
                came = torch.empty(numel, dtype=torch.float32, device=device)
                parameter.detach().view(-1)[:numel].copy_(came)
            return
        if not self.states:
            self.states = [
                torch.zeros_like(p) for p in self.parameters for _ in range(_ADAM_STATES)
            ]
        for parameter, main in zip(self.gradients.parameters, self.parameters, strict=True):
            parameter.detach().view(-1)[: main.numel()].copy_(main)
