"""Leads torch's entry points for GPUs to the pretended one.

A torch without CUDA refuses the first mention of a GPU in Python, before any operator runs. These
functions answer as a machine with one GPU of the given card would; the operators are the business
of `stalloc._estimate.gpu`. Data loaders read in this process, since there is nothing to overlap
with. Saving is left out (`stalloc._estimate.saving`).
"""

from __future__ import annotations

import contextlib
import copy
import gc
from collections import defaultdict
from collections.abc import Callable, Iterator
from functools import partial
from types import ModuleType, SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses import fake_tensor
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.jit import _builtins
from torch.overrides import TorchFunctionMode
from torch.utils import _python_dispatch
from torch.utils import _pytree as pytree

from stalloc._estimate import compiled, flexible, operators, saving, streams, threads
from stalloc._estimate import world as processes
from stalloc._estimate.cards import Card
from stalloc._estimate.cpu import COMPOSED as cpu_operators
from stalloc._estimate.cpu import PretendedCpu
from stalloc._estimate.gpu import PretendedGpu, choose_own_gpu, own_gpu
from stalloc._estimate.values import Unanswerable, Values
from stalloc._estimate.world import World
from stalloc._frameworks.patches import Patches
from stalloc._gpu_attention import attention
from stalloc._gpu_operators import COMPOSED
from stalloc._torch_modules import torch_module

_torch: Any = torch

_NO_DEVICES = "stalloc_no_devices"  # as csrc/torch/pretended.cpp names it


@contextlib.contextmanager
def pretended(gpu: PretendedGpu, card: Card, world: World | None = None) -> Iterator[None]:
    """A process with one GPU, on this thread, until the end of the block.

    Args:
        gpu: The GPU.
        card: What it claims to be.
        world: The processes that the script finds itself among.

    Raises:
        Unanswerable: torch is a CUDA build that finds no GPU, and computes no gradients without.
    """
    if torch.cuda.is_available():
        _torch.cuda.init()  # torch would not do so later: it takes the pretended GPU's for its own
    elif not _seek_no_gpu():
        raise Unanswerable(
            f"torch {torch.__version__} is a CUDA build and finds no GPU, and its autograd looks "
            "for one; install torch's build for the CPU, or run this on a machine with any GPU"
        )
    operators.register()
    patches = Patches()
    choose_own_gpu(0 if world is None else world.local_rank)
    only_lift = torch._C._only_lift_cpu_tensors()
    multithreaded = torch.autograd.is_multithreading_enabled()
    backward = torch.autograd.grad_mode.set_multithreading_enabled(False)
    library = _torch.library.Library("aten", "IMPL")
    module = torch_module()
    module.pretend_gpu()
    torch._C._set_only_lift_cpu_tensors(True)
    try:
        _functions(patches, card, 1 if world is None else world.local_size)
        _tensors(patches)
        _without_memory(patches, gpu)
        _parameters(patches, gpu)
        _modules(patches)
        _optimizers(patches)
        _data(patches)
        compiled.patch(patches, gpu)
        flexible.patch(patches)
        processes.patch(patches, gpu.values, gpu.traffic, world)
        threads.patch(patches, partial(_on_thread, gpu))
        # Some versions of torch open the GPU for the first of these tensors.
        patches.replace(fake_tensor, "init_gpu_context", lambda _: None)
        # torch without CUDA knows only the attention that holds all scores.
        sdpa = torch.ops.aten.scaled_dot_product_attention.default
        library.impl(sdpa, attention, "AutogradCUDA", allow_override=True)
        for operator in COMPOSED:
            if not _torch._C._dispatch_has_kernel_for_dispatch_key(
                str(operator._schema.name), "CUDA"
            ):
                library.impl(operator, _not_called, "CUDA")
        with saving.left_out(patches, gpu.values), processes.environment(world), _Indices(), gpu:
            yield
    finally:
        processes.end()
        patches.undo()
        streams.enter(streams.default())
        choose_own_gpu(0)
        library._destroy()
        torch._C._set_only_lift_cpu_tensors(only_lift)
        backward.__exit__(None, None, None)
        torch._C._set_multithreading_enabled(multithreaded)
        gc.collect()
        module.pretend_no_gpu()


@contextlib.contextmanager
def pretended_cpu(watch: Callable[[], None]) -> Iterator[Values]:
    """A process without a GPU, whose CPU has no memory, on this thread, until the end of the block.

    Args:
        watch: Called before each operator on tensors without memory; may raise to end the run.

    Yields:
        The values that the program has read.
    """
    cpu = PretendedCpu(Values(), watch)
    operators.register()
    patches = Patches()
    library = _torch.library.Library("aten", "IMPL")
    choose_own_gpu(None)
    try:
        for owner, name in ((torch.cuda, "is_available"), (torch.accelerator, "is_available")):
            _answer(patches, owner, name, False)
        _answer(patches, torch.cuda, "device_count", 0)
        _without_memory(patches, cpu)
        _parameters(patches, cpu)
        _data(patches)
        threads.patch(patches, partial(_on_thread, cpu))
        for operator in cpu_operators:
            library.impl(operator, cpu.composed(operator), "AutogradCPU", allow_override=True)
        with saving.left_out(patches, cpu.values), cpu:
            yield cpu.values
    finally:
        patches.undo()
        choose_own_gpu(0)
        library._destroy()
        gc.collect()


@contextlib.contextmanager
def _on_thread(gpu: PretendedGpu) -> Iterator[None]:
    """The modes of a thread that the script has started."""
    with _Indices():
        # Not as a context: what that notes about the modes is the process's, not the thread's.
        _python_dispatch._push_mode(gpu)
        try:
            yield
        finally:
            _python_dispatch._pop_mode()


def _seek_no_gpu() -> bool:
    """Keeps torch from looking for a real GPU, also once nothing is pretended any more.

    The backend without devices that a CUDA build gets for this needs a module in Python.

    Returns:
        False if autograd looks for a GPU all the same.
    """
    seeks_none = torch_module().seek_no_gpu()
    name = _torch._C._get_privateuse1_backend_name()
    if name == _NO_DEVICES and not hasattr(torch, name):
        backend: Any = ModuleType(name)
        backend.is_available = backend.is_initialized = lambda: False
        backend.device_count = backend.current_device = lambda: 0
        backend._is_in_bad_fork = lambda: False
        backend.manual_seed_all = lambda seed: None
        _torch._register_device_module(name, backend)
    return seeks_none


def _not_called(*_: Any, **__: Any) -> None:
    """The kernel of an operator that the pretended GPU answers before it is reached."""
    raise AssertionError("an operator of the pretended GPU reached the kernel of a real one")


def _functions(patches: Patches, card: Card, devices: int) -> None:
    cuda = torch.cuda
    properties = SimpleNamespace(
        name=card.name,
        major=card.capability[0],
        minor=card.capability[1],
        total_memory=card.memory,
        multi_processor_count=card.processors,
        is_integrated=False,
        is_multi_gpu_board=False,
        warp_size=32,
        max_threads_per_multi_processor=2048,
        gcnArchName="",
    )
    answers: dict[str, object] = {
        "is_available": True,
        "is_initialized": True,
        "device_count": devices,
        "current_device": own_gpu().index,
        "get_device_name": card.name,
        "get_device_capability": card.capability,
        "get_device_properties": properties,
        "get_arch_list": [f"sm_{card.capability[0]}{card.capability[1]}"],
        "is_bf16_supported": card.capability >= (8, 0),
        "is_tf32_supported": card.capability >= (8, 0),
        "can_device_access_peer": False,
        "is_current_stream_capturing": False,
        "mem_get_info": (card.memory, card.memory),
        "memory_stats": defaultdict(int),
        "memory_summary": "",
        "memory_snapshot": [],
        "initial_seed": 0,
        "utilization": 0,
        "get_allocator_backend": "native",
        "graph_pool_handle": (0, 0),
    }
    counts = (
        "memory_allocated max_memory_allocated memory_reserved max_memory_reserved memory_cached "
        "max_memory_cached"
    )
    nothing = (
        "init _lazy_init empty_cache ipc_collect set_device manual_seed manual_seed_all seed "
        "seed_all reset_peak_memory_stats reset_accumulated_memory_stats "
        "reset_max_memory_allocated reset_max_memory_cached set_per_process_memory_fraction "
        "set_sync_debug_mode set_rng_state set_rng_state_all _sleep"
    )
    answers |= dict.fromkeys(counts.split(), 0) | dict.fromkeys(nothing.split())
    for name, value in answers.items():
        _answer(patches, cuda, name, value)
    if card.capability < (8, 0):
        _answer(patches, torch.backends.cuda, "flash_sdp_enabled", False)
    _answer(patches, cuda.memory, "_record_memory_history", None)
    _answer(patches, cuda.memory, "_dump_snapshot", None)
    patches.replace(cuda, "_lazy_call", lambda call, **_: None)
    # A seed and an offset, of 8 bytes each.
    patches.replace(cuda, "get_rng_state", lambda *_, **__: _torch.zeros(16, dtype=torch.uint8))
    patches.replace(cuda, "get_rng_state_all", lambda: [cuda.get_rng_state()])
    patches.replace(cuda.random, "get_rng_state", cuda.get_rng_state)
    patches.replace(cuda.random, "set_rng_state", cuda.set_rng_state)
    for name in ("range_push", "range_pop", "mark"):
        _answer(patches, cuda.nvtx, name, 0)
    patches.replace(torch, "Generator", _Generator)
    accelerator = torch.accelerator
    for name, value in {
        "is_available": True,
        "device_count": devices,
        "current_accelerator": torch.device("cuda"),
        "current_device_index": own_gpu().index,
        "current_device_idx": own_gpu().index,
        "set_device_index": None,
        "set_device_idx": None,
        "empty_cache": None,
        "memory_allocated": 0,
        "max_memory_allocated": 0,
        "memory_reserved": 0,
        "max_memory_reserved": 0,
        "reset_peak_memory_stats": None,
        "memory_stats": defaultdict(int),
    }.items():
        if hasattr(accelerator, name):
            _answer(patches, accelerator, name, value)
    streams.patch(patches, cuda, accelerator)


def _answer(patches: Patches, owner: object, name: str, value: object) -> None:
    if hasattr(owner, name):
        patches.replace(owner, name, lambda *_, **__: value)


def _replace_operator(patches: Patches, owner: object, name: str, value: object) -> None:
    """Replaces a function that TorchScript knows as an operator, and still does afterwards.

    Modules that the script imports later may compile functions that call it, as torch's own
    optimizers for several processes do.
    """
    known: Any = _builtins._get_builtin_table()  # type: ignore[no-untyped-call]
    operator = known.get(id(getattr(owner, name)))
    patches.replace(owner, name, value)
    if operator is not None:
        known[id(value)] = operator
        patches.then(partial(known.pop, id(value), None))


def _tensors(patches: Patches) -> None:
    to = Tensor.to

    def moved(tensor: Tensor, *args: Any, **kwargs: Any) -> Any:
        return to(tensor, *map(_indexed, args), **_with_index(kwargs))

    def on_gpu(tensor: Tensor, device: Any = None, *_: Any, **__: Any) -> Tensor:
        return to(tensor, own_gpu())

    patches.replace(Tensor, "to", moved)
    patches.replace(Tensor, "cuda", on_gpu)
    patches.replace(Tensor, "pin_memory", lambda tensor, *_: tensor)
    patches.replace(Tensor, "is_pinned", lambda tensor, *_: False)
    patches.replace(Tensor, "record_stream", lambda tensor, stream: None)


def _without_memory(patches: Patches, gpu: PretendedGpu) -> None:
    """Answers what Python asks of tensors without memory."""
    patches.replace(FakeTensor, "data", property(_TENSORS_DATA.__get__, partial(_set_data, gpu)))
    patches.replace(_torch.UntypedStorage, "resize_", _resized)
    # One for each storage: programs tell tensors apart by them.
    patches.replace(FakeTensor, "data_ptr", _address)
    storage_address = _torch.UntypedStorage.data_ptr
    patches.replace(
        _torch.UntypedStorage,
        "data_ptr",
        lambda s: _address_of(s) if s.device.type == "meta" else storage_address(s),
    )
    make = torch.tensor

    def made(data: Any, *args: Any, **kwargs: Any) -> Tensor:
        if isinstance(data, list | tuple):
            data = pytree.tree_map_only(FakeTensor, gpu.values.number, data)
        return make(data, *args, **kwargs)

    _replace_operator(patches, torch, "tensor", made)
    patches.replace(FakeTensor, "__new__", staticmethod(_made_by_type(FakeTensor.__new__)))
    patches.replace(FakeTensor, "__deepcopy__", _copied)
    patches.replace(FakeTensor, "numpy", lambda tensor, **_: gpu.values.copy(tensor).numpy())
    patches.replace(FakeTensor, "tolist", lambda tensor: gpu.values.copy(tensor).tolist())
    patches.replace(FakeTensor, "__format__", _formatted)
    patches.replace(FakeTensor, "__reduce_ex__", lambda tensor, _: (torch.zeros, (0,)))
    begin, end = FakeTensorMode.__enter__, FakeTensorMode.__exit__

    def entered(mode: Any) -> Any:
        result = begin(mode)
        if mode is not gpu.fake:
            gpu.enter_foreign_mode()
        return result

    def left(mode: Any, *error: Any) -> None:
        if mode is not gpu.fake:
            gpu.leave_foreign_mode()
        end(mode, *error)

    patches.replace(FakeTensorMode, "__enter__", entered)
    patches.replace(FakeTensorMode, "__exit__", left)
    isfinite = torch.isfinite

    def finite(tensor: Tensor) -> Any:
        result: Any = isfinite(tensor)
        if isinstance(result, FakeTensor):
            result._stalloc_guess = True  # type: ignore[attr-defined]
        return result

    _replace_operator(patches, torch, "isfinite", finite)
    patches.replace(Tensor, "isfinite", finite)


def _parameters(patches: Patches, gpu: PretendedGpu) -> None:
    make = nn.Parameter.__new__

    def without_memory(cls: Any, data: Any = None, requires_grad: bool = True) -> Any:
        if type(data) in (Tensor, nn.Parameter) and data.device.type == "cpu":
            return gpu.keep(make(cls, gpu.shape_of(data.detach()), requires_grad), data)
        return make(cls, data, requires_grad)

    patches.replace(nn.Parameter, "__new__", staticmethod(without_memory))


def _modules(patches: Patches) -> None:
    swap = _torch.utils.swap_tensors

    def swapped(one: Any, other: Any) -> None:
        """A module that moves swaps its parameters, which fails for those that others refer to."""
        try:
            swap(one, other)
        except RuntimeError:
            if not (isinstance(one, FakeTensor) and isinstance(other, FakeTensor)):
                raise
            one.data = other

    patches.replace(torch.utils, "swap_tensors", swapped)

    def on_one_gpu(wrapper: Any, *args: Any, **kwargs: Any) -> Any:
        args, kwargs = pytree.tree_map_only(Tensor, lambda x: x.to(own_gpu()), (args, kwargs))
        return wrapper.module(*args, **kwargs)

    patches.replace(nn.DataParallel, "forward", on_one_gpu)
    move = nn.Module.to

    def moved(module: Any, *args: Any, **kwargs: Any) -> Any:
        return move(module, *map(_indexed, args), **_with_index(kwargs))

    patches.replace(nn.Module, "to", moved)


def _optimizers(patches: Patches) -> None:
    from torch.optim import optimizer
    from torch.utils import _foreach_utils

    for module in (optimizer, _foreach_utils):
        types = [*module._foreach_supported_types, FakeTensor]
        patches.replace(module, "_foreach_supported_types", types)


def _data(patches: Patches) -> None:
    loader = torch.utils.data.DataLoader
    begin = loader.__init__

    def in_this_process(self: Any, *args: Any, **kwargs: Any) -> None:
        for name in ("pin_memory", "persistent_workers"):
            kwargs.pop(name, None)
        for name in ("prefetch_factor", "multiprocessing_context", "timeout", "worker_init_fn"):
            kwargs.pop(name, None)
        kwargs.pop("pin_memory_device", None)
        if len(args) > 5:
            args = (*args[:5], 0, *args[6:7])
        else:
            kwargs["num_workers"] = 0
        begin(self, *args, **kwargs)

    patches.replace(loader, "__init__", in_this_process)


def _indexed(device: Any) -> Any:
    """The GPU for any way to name it; everything else as it is."""
    if isinstance(device, str) and device.split(":")[0] == "cuda":
        return own_gpu()
    if isinstance(device, torch.device) and device.type == "cuda":
        return own_gpu()
    if type(device) is int:
        return own_gpu()
    return device


_TENSORS_DATA: Any = Tensor.data


class _Indices(TorchFunctionMode):
    """Takes a number for a GPU, as in `torch.zeros(4, device=0)` and `torch.device(0)`."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.device:
            args = tuple(own_gpu() if type(arg) is int else arg for arg in args[:1]) + args[1:]
        return func(*args, **_with_index(kwargs or {}))


def _with_index(kwargs: dict[str, Any]) -> dict[str, Any]:
    if "device" not in kwargs:
        return kwargs
    return {**kwargs, "device": _indexed(kwargs["device"])}


def _set_data(gpu: PretendedGpu, tensor: Any, data: Tensor) -> None:
    if not isinstance(data, FakeTensor):  # a copy on the host, such as of offloaded parameters
        data = gpu.shape_of(data)
    _TENSORS_DATA.__set__(tensor, data)
    tensor.fake_device = data.fake_device


_resize_storage = _torch.UntypedStorage.resize_


def _resized(storage: Any, size: int) -> Any:
    """Frees or requests the memory of a storage, as FSDP does with gathered parameters."""
    if storage.device.type != "meta":
        return _resize_storage(storage, size)
    torch_module().resize_meta(storage._cdata, size)
    return storage


def _address(tensor: Any) -> int:
    if tensor.numel() == 0:
        return 0
    offset: int = tensor.storage_offset() * tensor.element_size()
    return _address_of(tensor.untyped_storage()) + offset


def _address_of(storage: Any) -> int:
    return int(storage._cdata) << 12  # far from all others


def _made_by_type(make: Callable[..., Any]) -> Callable[..., Any]:
    """Lets `type(parameter)(data, requires_grad=...)` make a parameter, as `nn.Parameter` does.

    Accelerate and Transformers make parameters without memory so.
    """

    def made(cls: Any, first: Any, *args: Any, **kwargs: Any) -> Any:
        if isinstance(first, Tensor):
            return nn.Parameter(first, kwargs.get("requires_grad", True))
        return make(cls, first, *args, **kwargs)

    return made


def _copied(tensor: Any, memo: dict[int, Any]) -> Any:
    if id(tensor) in memo:
        return memo[id(tensor)]
    with torch.no_grad():
        result = tensor.clone()
    result.requires_grad_(tensor.requires_grad)
    if getattr(tensor, "_is_param", False):
        result._is_param = True
    if tensor.grad is not None:
        result.grad = copy.deepcopy(tensor.grad, memo)
    memo[id(tensor)] = result
    return result


def _formatted(tensor: Any, text: str) -> str:
    return format(tensor.item(), text) if tensor.dim() == 0 else repr(tensor)


_HostGenerator = torch.Generator


class _Generators(type):
    def __instancecheck__(cls, value: object) -> bool:
        return isinstance(value, _HostGenerator)


class _Generator(metaclass=_Generators):
    """Generators on the GPU are the host's: no number is drawn on the GPU."""

    def __new__(cls, device: Any = None) -> Any:
        return _HostGenerator("cpu")
