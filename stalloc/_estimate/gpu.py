"""A GPU that is not there: tensors that claim to be on it, with storages on the meta device.

The tensors are torch's `FakeTensor`: they have the dispatch keys of a GPU, so autograd, autocast,
optimizers and modules take the ways that they take there. Each operator runs as the kernel for the
meta device, for which stalloc records what a GPU's kernel requests (`stalloc._meta_kernels`).

    operator on ...             runs
    tensors of the host         as it is: data, tokenizers and metrics stand
    tensors of the GPU          on the meta device, recorded
    parameters not yet moved    on the meta device, not recorded: a model of any size fits
    large `torch.empty`s        the same: they have no values yet

The autograd engine gets the meta device when it asks where a tensor is, since it would look for
streams of a GPU otherwise.

Parameters of modules on the host have no memory either, and no values. Some operators have answers
of their own (`stalloc._estimate.operators`); those that read a value go to `values`.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from types import FrameType
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor, in_kernel_invocation_manager
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from stalloc import _core
from stalloc._estimate import choices, collectives
from stalloc._estimate.threads import Fakes
from stalloc._estimate.traffic import Traffic
from stalloc._estimate.values import Unanswerable, Values, script_line
from stalloc._unrecorded import unrecorded

_ATEN: Any = torch.ops.aten
_torch: Any = torch  # for the parts that have no types
_HOST = torch.device("cpu")
_META = torch.device("meta")
_PLAIN = (Tensor, torch.nn.Parameter)
NO_GPU = (
    "it put nothing on a GPU: it trains on the CPU, or ended before it began; give it the option "
    "that makes it use one"
)

WORKSPACE_LAYER = "cuBLAS workspace"
"""The layer that requests workspaces in the trace."""

MOST_COPIED = 64 << 20
"""Bytes of a tensor that the script copies to the host and gets as a real one."""

_own_gpu = torch.device("cuda:0")


class PretendedGpu(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """While it is entered, operators on device `cuda` run, and compute nothing.

    Args:
        values: Answers reads.
        watch: Called before each operator on the GPU; may raise to end the run.
        workspace: Bytes that each thread requests for cuBLAS at its first matrix product: the one
            that trains, and autograd's.
    """

    def __init__(
        self, values: Values, watch: Callable[[], None] = lambda: None, workspace: int = 0
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.values = values
        self.fake = Fakes()
        self.watch = watch
        self.traffic = Traffic()
        self.workspace = workspace
        self.workspaces: dict[bool, Any] = {}
        """The workspaces: False for the thread that trains, True for autograd's."""
        self.used = False
        """True once there was an operator on the GPU."""
        self.flops = 0
        """Floating-point operations so far, of those that torch's counter knows."""
        self.compiled: int | None = None
        """Bytes of the largest product that compiled code may pad; None if nothing is compiled."""
        self.convolved = 0
        """Bytes of the largest convolution: its input, its weight and its result."""
        self._foreign: list[AbstractContextManager[None]] = []

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Torch's compiler traces without this mode; what it has compiled runs under it."""
        return True

    def enter_foreign_mode(self) -> None:
        """Torch, or the script, asks for shapes alone: on a GPU it would request nothing."""
        self._foreign.append(unrecorded())
        self._foreign[-1].__enter__()

    def leave_foreign_mode(self) -> None:
        """Requests count again."""
        self._foreign.pop().__exit__(None, None, None)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if self._foreign:
            return func(*args, **kwargs)
        if func is torch.ops.prim.device.default:
            hidden = self.fake.in_kernel_invocation or engine_asks(sys._getframe(1))
            return _META if hidden else getattr(args[0], "fake_device", _own_gpu)
        if any(not issubclass(kind, FakeTensor) and kind not in _PLAIN for kind in types):
            return NotImplemented  # a wrapper, such as DTensor: what it holds comes here again
        return self.dispatch(func, args, kwargs)

    def dispatch(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Runs an operator of the program, or answers it."""
        if func.namespace in _COLLECTIVES:
            self.traffic.note(func, args)
        if func.namespace == "c10d":
            collective = collectives.answer(func, args)
            if collective is not NotImplemented:
                return collective
        leaves = pytree.arg_tree_leaves(*args, **kwargs)
        fakes = [leaf for leaf in leaves if isinstance(leaf, FakeTensor)]
        device = kwargs.get("device")
        to_gpu = device is not None and (
            device.type == "cuda" or (device.type == "meta" and in_backward())
        )
        if not fakes and not to_gpu:
            if func is _ATEN.empty.memory_format and _is_large(args[0], device):
                kwargs = {**kwargs, "device": _HOST}
                return self.run(func, args, kwargs)
            if _is_meta(device) or any(isinstance(x, Tensor) and x.is_meta for x in leaves):
                with unrecorded():  # the script's own use of the meta device needs no GPU
                    return func(*args, **kwargs)
            return func(*args, **kwargs)
        if to_gpu or any(fake.fake_device.type == "cuda" for fake in fakes):
            self.used = True
            self.watch()
        elif not self.used and in_backward():
            raise Unanswerable(f"{script_line()}: {NO_GPU}")
        return self.answered(func, args, kwargs)

    def answered(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The result of an operator on tensors without memory."""
        answer = _ANSWERS.get(func)
        result = NotImplemented if answer is None else answer(self, func, args, kwargs)
        if result is NotImplemented:
            result = self.run(func, args, kwargs)
        choices.follow(func, args, result)
        return result

    def run(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Runs an operator's kernel for the meta device."""
        device = kwargs.get("device")
        if device is None:
            device = self.common_device(func, pytree.arg_tree_leaves(*args, **kwargs))
        elif device.type != "cpu":
            device = _own_gpu
        args, kwargs = self.on_meta(args, kwargs)
        if device.type == "cuda":
            if func in _PRODUCTS and self.workspace:
                self._request_workspace()
            result = self.kernel(func, args, kwargs)
            if func is _ATEN.convolution.default:
                size = sum(tensor.nbytes for tensor in (*args[:2], result))
                self.convolved = max(self.convolved, size)
            if (count := flop_registry.get(func._overloadpacket)) is not None:
                # The counters have no place for the type that some overloads are given.
                counted = (arg for arg in args if not isinstance(arg, torch.dtype))
                self.flops += count(*counted, **kwargs, out_val=result)
        else:
            with unrecorded():
                result = self.kernel(func, args, kwargs)
        return self.placed(result, device)

    def on_meta(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any]:
        """The arguments of an operator's kernel for the meta device."""
        if "device" in kwargs and kwargs["device"] is not None:
            kwargs = {**kwargs, "device": _META}
        for name in ("pin_memory", "generator"):
            if kwargs.get(name):
                kwargs = {**kwargs, name: None}
        leaves = pytree.arg_tree_leaves(*args, **kwargs)
        if any(isinstance(x, Tensor) and not isinstance(x, FakeTensor) for x in leaves):
            args, kwargs = pytree.tree_map_only(Tensor, self.shape_of, (args, kwargs))
        return args, kwargs

    def placed(self, result: Any, device: torch.device) -> Any:
        """The kernel's result as tensors that claim to be on a device."""

        def on_device(tensor: Tensor) -> FakeTensor:
            if isinstance(tensor, FakeTensor):
                return tensor
            return FakeTensor(self.fake, tensor, device)

        if isinstance(result, Tensor):
            return on_device(result)
        return pytree.tree_map_only(Tensor, on_device, result)

    def _request_workspace(self) -> None:
        backward = in_backward()
        if backward in self.workspaces:
            return
        runtime = _core.runtime("meta")
        runtime.enter_layer(runtime.define_layer(WORKSPACE_LAYER, False), False)
        with torch._C._DisableTorchDispatch():
            storage: Any = _torch.UntypedStorage(self.workspace, device="meta")
        runtime.leave_layer()
        self.workspaces[backward] = storage

    def kernel(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        # An operator without a kernel for the meta device may be composed of others.
        with suppress(NotImplementedError), in_kernel_invocation_manager(self.fake):
            return func(*args, **kwargs)
        from torch._subclasses.fake_tensor import (
            DataDependentOutputException,
            DynamicOutputShapeException,
            UnsupportedOperatorException,
        )

        try:
            with self.fake:
                return func(*args, **kwargs)
        except (DataDependentOutputException, DynamicOutputShapeException) as error:
            raise Unanswerable(
                f"{script_line()}: the shape of {func}'s result depends on values, and nothing is "
                "computed; give this part of the script fixed shapes"
            ) from error
        except (UnsupportedOperatorException, NotImplementedError) as error:
            raise Unanswerable(
                f"{script_line()}: torch cannot tell the shape of {func}'s result without "
                "computing it: the operator has no kernel for the meta device"
            ) from error

    def common_device(self, func: Any, leaves: list[Any]) -> torch.device:
        """The GPU if any argument is on it, else the host."""
        tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
        places = {x.device.type for x in tensors if x.dim() > 0}
        if "cuda" in places and "cpu" in places and func not in _MIXED:
            raise Unanswerable(
                f"{script_line()}: {func} gets tensors of the GPU and of the host at once, which "
                "fails on a GPU, too: move them to one device first"
            )
        return _own_gpu if any(x.device.type == "cuda" for x in tensors) else _HOST

    def shape_of(self, tensor: Tensor) -> FakeTensor:
        """A tensor on the host without memory, of the same shape."""
        if isinstance(tensor, FakeTensor):
            return tensor
        with unrecorded(), torch._C._DisableTorchDispatch():
            meta = torch.empty_strided(
                tensor.shape, tensor.stride(), dtype=tensor.dtype, device=_META
            )
        return FakeTensor(self.fake, meta, _HOST)

    def keep(self, parameter: Any, tensor: Tensor) -> Any:
        """A parameter without memory, which takes the place of one on the host."""
        return parameter


def own_gpu() -> torch.device:
    """The GPU that the process has; all names of GPUs are names of it."""
    return _own_gpu


def choose_own_gpu(index: int | None) -> None:
    """Sets the number of the process's GPU, as a launcher gives each process of a node its own.

    None: the process has none, and the CPU in its place.
    """
    global _own_gpu
    _own_gpu = _HOST if index is None else torch.device("cuda", index)


def _is_large(shape: Any, device: torch.device | None) -> bool:
    """True for a new tensor of the host that is better without memory: it has no values yet."""
    if device is not None and device.type != "cpu":
        return False
    return all(type(n) is int for n in shape) and math.prod(shape) >= MOST_COPIED


def _is_meta(device: torch.device | None) -> bool:
    return device is not None and device.type == "meta"


def in_backward() -> bool:
    return torch._C._current_graph_task_id() != -1


def engine_asks(frame: FrameType | None) -> bool:
    """True if the autograd engine itself asks for a tensor's device: no Python code runs inside it.

    It would look for the GPU's streams, for which a torch without a GPU has nothing. Python code
    that runs inside the engine (recomputation under autocast) is told the GPU.
    """
    while frame is not None and frame.f_code.co_filename.endswith(_WRAPPERS):
        frame = frame.f_back
    return frame is not None and frame.f_code.co_name in ("run_backward", "_engine_run_backward")


# Between the engine and the answer to an operator.
_WRAPPERS = (
    "torch/_compile.py",
    "_dynamo/eval_frame.py",
    "utils/_python_dispatch.py",
    "stalloc/_estimate/gpu.py",
    "stalloc/_estimate/cpu.py",
)

_COLLECTIVES = ("c10d", "_c10d_functional", "_c10d_functional_autograd")

Answer = Callable[[PretendedGpu, Any, tuple[Any, ...], dict[str, Any]], Any]
_ANSWERS: dict[Any, Answer] = {}
_PRODUCTS = {
    getattr(getattr(_ATEN, name), overload)
    for name in ("mm", "addmm", "bmm", "baddbmm", "addbmm", "addmv", "mv", "dot")
    for overload in getattr(_ATEN, name).overloads()
}
_MIXED = {
    _ATEN.index.Tensor,
    _ATEN.index_put.default,
    _ATEN.index_put_.default,
    _ATEN._index_put_impl_.default,
    _ATEN.copy_.default,
    _ATEN._foreach_copy_.default,
    _ATEN.lift_fresh.default,
    _ATEN.set_.source_Tensor,
}


def answers(*operators: Any) -> Callable[[Answer], Answer]:
    """Registers a function that answers operators, or leaves them by `NotImplemented`."""

    def register(answer: Answer) -> Answer:
        for operator in operators:
            _ANSWERS[operator] = answer
        return answer

    return register
