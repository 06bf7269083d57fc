"""Flexible attention, whose kernels torch generates: it requests what they do.

    forward     the output, and the logarithm of the sums of each row in 32 bits, which are kept
    backward    a number of 32 bits for each row, and the gradients

Functions that change the scores are not called, and a buffer that they capture gets no gradient.
"""

from __future__ import annotations

import functools
import importlib
import sys
from typing import Any

import torch

from stalloc._estimate.gpu import PretendedGpu
from stalloc._frameworks.patches import Patches


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, query: Any, key: Any, value: Any) -> Any:
        inputs = [query, key, value]
        code = None if torch.compiler.is_compiling() else _compiled_code()
        out, sums = _results(inputs) if code is None else code(inputs)
        ctx.save_for_backward(query, key, value, out, sums)
        ctx.mark_non_differentiable(sums)
        return out, sums

    @staticmethod
    def backward(ctx: Any, gradient: Any, _: Any) -> Any:
        query, key, value, _out, sums = ctx.saved_tensors
        products = torch.empty_like(sums)
        gradients = tuple(torch.empty_like(x) for x in (query, key, value))
        del products
        return gradients


def _results(inputs: Any) -> Any:
    query, _, value = inputs
    shape = (*query.shape[:-1], value.shape[-1])
    out = torch.empty_like(query) if shape == query.shape else query.new_empty(shape)
    return out, query.new_empty(query.shape[:-1], dtype=torch.float32)


@functools.cache
def _compiled_code() -> Any:
    """Calls `_results` as compiled code, which selective checkpointing may keep; or None."""
    from torch._higher_order_ops import wrap

    operator = getattr(wrap, "inductor_compiled_code", None)
    kind = getattr(wrap, "InductorCompiledCallable", None)
    if operator is None or kind is None:
        return None
    operator.py_impl(PretendedGpu)(_run_code)
    return functools.partial(operator, kind(_results))


def _run_code(gpu: PretendedGpu, code: Any, inputs: Any, **_: Any) -> Any:
    with gpu:
        return code(inputs)


def attended_code() -> Any:
    """The code of the function in the place of flexible attention, which is compiled already."""
    return _code


_code: Any = None


def patch(patches: Patches) -> None:
    """Leads flexible attention there."""
    try:
        module: Any = importlib.import_module("torch.nn.attention.flex_attention")
    except ImportError:
        return
    original = module.flex_attention

    def attended(
        query: Any,
        key: Any,
        value: Any,
        *positional: Any,
        return_lse: bool = False,
        return_aux: Any = None,
        **options: Any,
    ) -> Any:
        if query.device.type != "cuda":
            options |= {"return_lse": return_lse} | (
                {"return_aux": return_aux} if return_aux else {}
            )
            return original(query, key, value, *positional, **options)
        out, sums = _Attention.apply(query, key, value)  # type: ignore[no-untyped-call]
        if return_aux is not None:
            most = sums.detach().clone() if getattr(return_aux, "max_scores", False) else None
            return out, module.AuxOutput(lse=sums if return_aux.lse else None, max_scores=most)
        return (out, sums) if return_lse else out

    global _code
    _code = attended.__code__
    _compiled_code()
    for other in list(sys.modules.values()):  # many import it by name
        if vars(other).get("flex_attention") is original:
            patches.replace(other, "flex_attention", attended)
