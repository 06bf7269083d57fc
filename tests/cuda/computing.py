"""A pretended GPU that computes: the CPU's kernels do the work of the GPU's, which do nothing.

    with Computing():
        loss = model(x).mean()  # on "cuda", with the values of the CPU's kernels

The process needs STANDIN_CONTENTS=1, so that device memory keeps what is written to it (standin.h).
Each operator runs on CUDA first: its allocations, addresses and streams are those of a real GPU.
Then the CPU's kernel computes on copies of what the inputs' memory held before, and the results are
written into the outputs' memory. Backward passes compute, too: autograd's threads take the mode
over. Two tensors that share an address by mistake spoil each other, as on a GPU.

    random numbers    follow from the seed and the offset of the CUDA generator, which the operator
                      advances: a generator that is set back gives the same numbers again
    captured graphs   keep their operators, with addresses instead of tensors; a replay runs them
    sums and means    are added up in double: a CPU's sum of 10^9 floats is less exact than a GPU's
    shapes by values  operators such as nonzero() run on the CPU alone; CUDA allocates the results

Left out: kernels that no operator of ATen launches (torch.compile, Triton, NCCL), work of threads
that the mode is not entered in, streams whose work waits (standin.set_manual), operators that the
CPU has no kernel for (fused attention, cuDNN), masks in index_put_(), and sparse or conjugate
tensors. No captured graph may outlive the mode.
"""

from __future__ import annotations

import threading
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import standin
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map

Operator = Any  # torch._ops.OpOverload

# Operators without values: what they make holds what its memory held, or nothing is made.
_VALUELESS = {
    "empty",
    "empty_like",
    "empty_strided",
    "new_empty",
    "new_empty_strided",
    "record_stream",
    "resize_",
    "set_",
}
_FILLS = {"fill_", "full", "full_like", "new_full", "new_ones", "new_zeros", "ones", "ones_like"}
_FILLS |= {"zero_", "zeros", "zeros_like"}
_MASKS = (torch.bool, torch.uint8)
_ALIGNMENT = 64  # bytes; kernels of the CPU may round differently at other alignments
_MIX = 0x9E3779B97F4A7C15  # of a generator's offset into a seed


@dataclass(frozen=True)
class Place:
    """A tensor of a GPU, by its memory."""

    address: int
    dtype: torch.dtype
    size: tuple[int, ...]
    stride: tuple[int, ...]

    @classmethod
    def of(cls, tensor: Tensor) -> Place:
        """The place of a tensor."""
        if tensor.layout != torch.strided or tensor.is_conj() or tensor.is_neg():
            raise NotImplementedError("the pretended GPU computes with plain strided tensors only")
        return cls(tensor.data_ptr(), tensor.dtype, tuple(tensor.size()), tensor.stride())

    @property
    def span(self) -> int:
        """The elements from the first to the last."""
        if 0 in self.size:
            return 0
        return 1 + sum((n - 1) * step for n, step in zip(self.size, self.stride, strict=True))

    @property
    def end(self) -> int:
        """The address after the last element."""
        return self.address + self.span * self.dtype.itemsize

    @property
    def is_dense(self) -> bool:
        """True if the elements fill the span."""
        return self.span == torch.Size(self.size).numel()

    def write(self, values: Tensor) -> None:
        """Writes values into the memory, and nothing into gaps between the elements."""
        if self.span == 0:
            return
        if self.is_dense and values.stride() == self.stride:
            span = values
        else:
            span = torch.empty(self.span, dtype=self.dtype)
            if not self.is_dense:
                standin.read(self.address, span.data_ptr(), self.end - self.address)
            span.as_strided(self.size, self.stride).copy_(values)
        standin.write(self.address, span.data_ptr(), self.end - self.address)


def _read(places: list[Place]) -> dict[Place, Tensor]:
    """Copies of the tensors; those that share memory share it in the copies, too."""
    copies: dict[Place, Tensor] = {}
    waiting = sorted((p for p in set(places) if p.span), key=lambda p: p.address)
    while waiting:
        begin, end, group = waiting[0].address // _ALIGNMENT * _ALIGNMENT, 0, []
        while waiting and (not group or waiting[0].address < end):
            group.append(waiting.pop(0))
            end = max(end, group[-1].end)
        bytes_ = torch.empty(end - begin, dtype=torch.uint8)
        first = group[0].address
        standin.read(first, bytes_.data_ptr() + first - begin, end - first)
        for place in group:
            offset = (place.address - begin) // place.dtype.itemsize
            copies[place] = torch.empty(0, dtype=place.dtype).set_(
                bytes_.untyped_storage(), offset, place.size, place.stride
            )
    for place in places:
        if not place.span:
            copies[place] = torch.empty_strided(place.size, place.stride, dtype=place.dtype)
    return copies


def _is_cuda(value: object) -> bool:
    return isinstance(value, Tensor) and value.is_cuda


def _placed(values: Any) -> Any:
    """The values, with places for tensors of GPUs."""
    return tree_map(lambda v: Place.of(v) if _is_cuda(v) else v, values)


def _places(values: Any) -> list[Place]:
    return [v for v in tree_flatten(values)[0] if isinstance(v, Place)]


def _name(operator: Operator) -> str:
    name: str = operator._schema.name.removeprefix("aten::")
    return name


def _is_view(operator: Operator) -> bool:
    returns = operator._schema.returns
    return bool(returns) and all(r.alias_info and not r.alias_info.is_write for r in returns)


def _depends_on_values(operator: Operator, args: Any) -> bool:
    """True if the shapes of the results follow from values."""
    if _name(operator) == "index":
        return any(index is not None and index.dtype in _MASKS for index in args[1])
    return torch.Tag.dynamic_output_shape in operator.tags


def _written(operator: Operator, args: Any, kwargs: dict[str, Any]) -> list[Any]:
    """The arguments that an operator writes."""
    found = []
    for i, argument in enumerate(operator._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            value = args[i] if i < len(args) else kwargs.get(argument.name)
            found += tree_flatten(value)[0]
    return found


def _on_cpu(value: Any, copies: dict[Place, Tensor]) -> Any:
    if isinstance(value, Place):
        return copies[value]
    if isinstance(value, torch.device):
        return torch.device("cpu")
    return value


def _accumulate(operator: Operator, args: Any, kwargs: dict[str, Any]) -> Tensor:
    """A sum or a mean that is added up in double."""
    values, dtype = args[0], kwargs.get("dtype") or args[0].dtype
    if len(operator._schema.arguments) > 2:  # along dimensions
        total = operator(*args, **(kwargs | {"dtype": torch.float64}))
    else:
        parts = values.reshape(-1).split(1 << 24)  # elements: no copy of a large tensor is made
        total = torch.stack([part.sum(dtype=torch.float64) for part in parts]).sum()
        if _name(operator) == "mean":
            total /= values.numel()
    result: Tensor = total.to(dtype)
    return result


@dataclass
class _Work:
    """The work of one operator, by addresses: at once, or at each replay of a graph."""

    operator: Operator
    args: Any
    kwargs: dict[str, Any]
    written: list[Any]  # those of the arguments that the operator writes, places like them
    device: int
    copies: dict[Place, Tensor] = field(default_factory=dict)
    results: list[Any] = field(default_factory=list)  # places where there are tensors of GPUs
    kept: list[Any] = field(default_factory=list)  # the places of `written` after the operator

    def read(self) -> None:
        """Copies the inputs."""
        self.copies = _read(_places((self.args, self.kwargs)))

    def compute(self, seed: int) -> Any:
        """Runs the CPU's kernel on the copies."""
        args = tree_map(lambda v: _on_cpu(v, self.copies), self.args)
        kwargs = tree_map(lambda v: _on_cpu(v, self.copies), self.kwargs)
        kwargs.pop("pin_memory", None)
        sums = _name(self.operator) in ("sum", "mean") and "out" not in kwargs
        if sums and args[0].is_floating_point():
            return _accumulate(self.operator, args, kwargs)
        if torch.Tag.nondeterministic_seeded not in self.operator.tags:
            return self.operator(*args, **kwargs)
        if kwargs.get("generator") is not None:
            kwargs["generator"] = None
        state = torch.default_generator.get_state()
        torch.default_generator.manual_seed(seed)
        try:
            return self.operator(*args, **kwargs)
        finally:
            torch.default_generator.set_state(state)

    def write(self, outcome: Any) -> None:
        """Writes what the CPU's kernel gave."""
        for before, after in zip(self.written, self.kept, strict=True):
            if isinstance(before, Place):
                after.write(self.copies[before])
        for place, values in zip(self.results, tree_flatten(outcome)[0], strict=True):
            if isinstance(place, Place) and place not in self.kept:
                assert place.dtype == values.dtype, (self.operator, place.dtype, values.dtype)
                place.write(values)
        self.copies = {}

    def run(self, seed: int) -> None:
        """Does all of it, for a replay."""
        if not self.fill():
            self.read()
            self.write(self.compute(seed))

    def fill(self) -> bool:
        """Does the work if it is a fill with a number: no copies of large tensors are needed."""
        name = _name(self.operator)
        places = self.results
        if name not in _FILLS or len(places) != 1 or not isinstance(places[0], Place):
            return False
        if not places[0].is_dense:
            return False
        value: Any = int("ones" in name)
        if "fill" in name or "full" in name:
            arguments = [a.name for a in self.operator._schema.arguments]
            argument = "fill_value" if "fill_value" in arguments else "value"
            at = arguments.index(argument)
            value = self.args[at] if at < len(self.args) else self.kwargs[argument]
        if isinstance(value, (Tensor, Place)):
            return False
        if places[0].span:
            pattern = torch.full((), value, dtype=places[0].dtype)
            size = places[0].end - places[0].address
            standin.fill(places[0].address, pattern.data_ptr(), pattern.itemsize, size)
        return True


class Computing(TorchDispatchMode):
    """The mode in which operators on the pretended GPU have values."""

    def __init__(self) -> None:
        super().__init__()
        self.operators = 0
        """The operators whose values were computed, replays included."""
        self._lock = threading.RLock()
        self._captured: list[_Work] | None = None
        self._patches = ExitStack()

    def __enter__(self) -> Computing:
        graph, mode = torch.cuda.CUDAGraph, self
        begin, end, replay = graph.capture_begin, graph.capture_end, graph.replay

        def capture_begin(self: Any, *args: Any, **kwargs: Any) -> None:
            begin(self, *args, **kwargs)
            self.computing = mode._captured = []

        def capture_end(self: Any) -> None:
            mode._captured = None
            end(self)

        def replay_and_compute(self: Any) -> None:
            seed = mode._seed(torch.cuda.current_device(), None)
            replay(self)
            for i, work in enumerate(self.computing):
                mode.operators += 1
                with mode._lock:
                    work.run(seed + i)

        def print_from_cpu(self: Tensor, **kwargs: Any) -> Any:  # torch leaves all modes to print
            return to_text(self.detach().cpu() if self.is_cuda else self, **kwargs)

        to_text = torch._tensor_str._str
        for owner, name, function in (
            (graph, "capture_begin", capture_begin),
            (graph, "capture_end", capture_end),
            (graph, "replay", replay_and_compute),
            (torch._tensor_str, "_str", print_from_cpu),
        ):
            self._patches.enter_context(mock.patch.object(owner, name, function))
        return super().__enter__()

    def __exit__(self, *exception: Any) -> None:
        super().__exit__(*exception)
        self._patches.close()

    @staticmethod
    def _seed(device: int, generator: torch.Generator | None) -> int:
        if generator is None:
            generator = torch.cuda.default_generators[device]
        return (generator.initial_seed() + generator.get_offset() * _MIX) % (1 << 63)

    def __torch_dispatch__(
        self, func: Operator, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        given = tree_flatten((args, kwargs))[0]
        devices = [v.device for v in given if _is_cuda(v)]
        devices += [v for v in given if isinstance(v, torch.device) and v.type == "cuda"]
        if not devices or _is_view(func) or _name(func) in _VALUELESS:
            return func(*args, **kwargs)
        capturing = self._captured is not None and torch.cuda.is_current_stream_capturing()
        device = devices[0].index
        device = torch.cuda.current_device() if device is None else device
        work = _Work(func, *_placed((args, kwargs)), [], device)
        written = _written(func, args, kwargs)
        work.written = _placed(written)
        seed = 0
        if torch.Tag.nondeterministic_seeded in func.tags and not capturing:
            seed = self._seed(device, kwargs.get("generator"))
        with self._lock:
            if _depends_on_values(func, args):
                assert not capturing, f"{func} cannot be captured"
                return self._by_values(work)
            if not capturing and _name(func) not in _FILLS:
                work.read()
            outcome = func(*args, **kwargs)
            work.results = [_placed(v) for v in tree_flatten(outcome)[0]]
            work.kept = _placed(written)
            if capturing:
                assert self._captured is not None
                self._captured.append(work)
                return outcome
            self.operators += 1
            if work.fill():
                return outcome
            if _name(func) in _FILLS:
                work.read()
            computed = work.compute(seed)
            work.write(computed)
        return self._outcome(outcome, computed)

    def _by_values(self, work: _Work) -> Any:
        """Runs an operator whose results' shapes follow from values."""
        work.read()
        self.operators += 1

        def to_gpu(values: Any) -> Any:
            if not isinstance(values, Tensor):
                return values
            result = torch.empty_strided(
                values.size(), values.stride(), dtype=values.dtype, device=f"cuda:{work.device}"
            )
            Place.of(result).write(values)
            return result

        return tree_map(to_gpu, work.compute(0))

    @staticmethod
    def _outcome(outcome: Any, computed: Any) -> Any:
        """CUDA's tensors, and the CPU's numbers and tensors of the CPU."""

        def choose(ours: Any, values: Any) -> Any:
            if not isinstance(ours, Tensor):
                return values
            if not ours.is_cuda and ours is not values:
                ours.copy_(values)
            return ours

        ours, layout = tree_flatten(outcome)
        values = tree_flatten(computed)[0]
        return layout.unflatten([choose(a, b) for a, b in zip(ours, values, strict=True)])
