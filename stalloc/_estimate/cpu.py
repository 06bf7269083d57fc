"""A CPU without memory: tensors of a training run that claim to be on it, and hold no values.

They are `FakeTensor`s as on the pretended GPU (`stalloc._estimate.gpu`), with the dispatch keys of
the CPU. Each operator runs as the kernel for the meta device, which requests what the CPU's kernel
does (`stalloc._cpu_operators` and its neighbours).

    parameters, new floating-point tensors without values      no memory: `torch.empty`, `randn`
    results of operators with any of them                      no memory
    all others: masks, positions, tables, batches of a data set      real, and computed

Both kinds are recorded, in the order of the program. A script may read the values of real tensors.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch._C import DispatchKey
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils import _pytree as pytree

from stalloc._estimate.gpu import PretendedGpu, in_backward
from stalloc._estimate.values import Values

_ATEN: Any = torch.ops.aten
_HOST = torch.device("cpu")


class PretendedCpu(PretendedGpu):  # type: ignore[no-untyped-call]
    """While it is entered, tensors that hold the training's numbers have no memory.

    Args:
        values: Answers reads.
        watch: Called before each operator on tensors without memory; may raise to end the run.
    """

    def __init__(self, values: Values, watch: Callable[[], None] = lambda: None) -> None:
        super().__init__(values, watch)
        self._adds_in_place = False

    def dispatch(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Runs an operator of the program, or answers it."""
        leaves = pytree.arg_tree_leaves(*args, **kwargs)
        if not any(isinstance(leaf, FakeTensor) for leaf in leaves):
            tensors = any(isinstance(leaf, Tensor) for leaf in leaves)
            if tensors or not _holds_no_values(func, args, kwargs):
                return func(*args, **kwargs)
        self.watch()
        if func is _ATEN.copy_.default and not isinstance(args[0], FakeTensor):
            return args[0]
        if self._works_in_place(func, args):
            return self.run(_ATEN.detach.default, args[:1], {})
        result = self.answered(func, args, kwargs)
        if func is _ATEN.new_zeros.default and in_backward():
            result._stalloc_zeros = True
        return result

    def _works_in_place(self, func: Any, args: tuple[Any, ...]) -> bool:
        """True where torch writes to a new tensor of its own, unless it is one of a subclass."""
        if func is _ATEN.add.Tensor and self._adds_in_place:
            return bool(args[0].dim() >= args[1].dim())
        return func in _IN_BACKWARD and getattr(args[0], "_stalloc_zeros", False)

    def composed(self, operator: Any) -> Callable[..., Any]:
        """An operator that is composed of others, and adds a mask or a bias in place."""

        def call(*args: Any, **kwargs: Any) -> Any:
            before, self._adds_in_place = self._adds_in_place, True
            try:
                return operator._op_dk(DispatchKey.CompositeImplicitAutograd, *args, **kwargs)
            finally:
                self._adds_in_place = before

        return call

    def run(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Runs an operator's kernel for the meta device."""
        args, kwargs = self.on_meta(args, kwargs)
        return self.placed(self.kernel(func, args, kwargs), _HOST)

    def keep(self, parameter: Any, tensor: Tensor) -> Any:
        """A parameter without memory, whose request is that of the tensor which it is made of."""
        parameter._stalloc_memory = tensor
        return parameter


def _holds_no_values(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """True for a factory whose result need not be real."""
    device = kwargs.get("device")
    if device is not None and device.type != "cpu":
        return False
    if func not in _WITHOUT_VALUES and not in_backward():
        return False
    dtype = kwargs.get("dtype") or torch.get_default_dtype()
    return bool(dtype.is_floating_point)


COMPOSED = (_ATEN._scaled_dot_product_attention_math.default, _ATEN.linear.default)
"""Operators that add in place, but for tensors of a subclass such as those without memory."""

# Operators of formulas for gradients that begin with `new_zeros`.
_IN_BACKWARD = {
    _ATEN.index_add.default,
    _ATEN.index_put.default,
    _ATEN.scatter.src,
    _ATEN.scatter.value,
    _ATEN.scatter_add.default,
}
_WITHOUT_VALUES = {
    getattr(getattr(_ATEN, name), overload)
    for name in ("empty", "empty_strided", "rand", "randn", "normal")
    for overload in getattr(_ATEN, name).overloads()
}
