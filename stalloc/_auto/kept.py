"""Finds and keeps plans of the running program in the cache, if there is one."""

from __future__ import annotations

import warnings
from contextlib import suppress

import torch

from stalloc._auto.cache import PlanCache
from stalloc._auto.forward import Forward
from stalloc._auto.program import running_program
from stalloc._auto.proposal import Proposal
from stalloc._auto.solving import Keep
from stalloc._plain_tensors import plain_tensors
from stalloc.errors import StallocWarning


class KeptPlans:
    """The plans of earlier runs.

    Args:
        cache: None: no cache.
        device: The device.
    """

    def __init__(self, cache: PlanCache | None, device: torch.device) -> None:
        self._cache = cache
        self._device = device
        self._seeks = True
        self._warned = False

    def find_once(self, forward: Forward) -> Proposal | None:
        """The plan for the program and its inputs, at the first call; None from then on."""
        cache, self._seeks = self._cache if self._seeks else None, False
        if cache is None:
            return None
        program = running_program(forward.module, self._device)
        return cache.find(program, forward.inputs, self.warn)

    def keeper(self, forward: Forward) -> Keep:
        """A function that keeps a plan, to be called on any thread."""
        cache = self._cache
        if cache is None:
            return lambda proposal: ""
        program = running_program(forward.module, self._device)

        def keep(proposal: Proposal) -> str:
            try:
                cache.keep(program, proposal)
            except OSError as error:
                return f"cannot be written: {error.strerror or error}"
            return ""

        return keep

    def warn(self, problem: str) -> None:
        """Warns of a problem with the cache, once."""
        if self._cache is None or self._warned:
            return
        self._warned = True
        warnings.warn(
            f"stalloc: the cache of plans, {self._cache.folder}: {problem}. The run goes on "
            "without it; STALLOC_CACHE=0 turns the cache off",
            StallocWarning,
            stacklevel=2,
        )


def request_workspaces(model: torch.nn.Module, device: torch.device) -> None:
    """Lets cuBLAS request its workspaces, which stay, before a plan's pool is there for requests.

    The thread that trains has one, and autograd's has another. In the plan's first iteration they
    would lie in the pool for good. A model without matrices needs none.
    """
    if device.type != "cuda" or torch.cuda.is_current_stream_capturing():
        return
    if all(parameter.dim() < 2 for parameter in model.parameters()):
        return
    # torch refuses matrix products if they were to be deterministic, and are not.
    no_autocast = torch.autocast(device.type, enabled=False)
    with suppress(RuntimeError), plain_tensors(), torch.enable_grad(), no_autocast:
        # With a bias, cuBLASLt may take its own workspace. It leaves the smallest sizes to cuBLAS.
        x = torch.ones(16, 16, device=device, requires_grad=True)
        y = torch.nn.functional.linear(x, x, x[0])
        torch.autograd.grad((y @ x).sum(), x)
