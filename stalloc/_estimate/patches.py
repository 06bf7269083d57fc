"""Leads torch's entry points for GPUs to the pretended one.

A torch without CUDA refuses the first mention of a GPU in Python, before any operator runs. These
functions answer as a machine with one GPU of the given card would; the operators are the business
of `stalloc._estimate.gpu`. Data loaders read in this process, since there is nothing to overlap
with. `torch.compile` is left out, and `torch.save` writes nothing.
"""

from __future__ import annotations

import contextlib
import copy
import gc
from collections.abc import Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses import fake_tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils import _pytree as pytree

from stalloc._estimate.cards import Card
from stalloc._estimate.gpu import GPU, PretendedGpu
from stalloc._estimate.values import Unanswerable
from stalloc._frameworks.patches import Patches
from stalloc._gpu_operators import COMPOSED, attention
from stalloc._torch_modules import torch_module

_torch: Any = torch

_NO_DEVICES = "stalloc_no_devices"  # as csrc/torch/pretended.cpp names it


@contextlib.contextmanager
def pretended(gpu: PretendedGpu, card: Card) -> Iterator[None]:
    """A process with one GPU, on this thread, until the end of the block.

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
    patches = Patches()
    only_lift = torch._C._only_lift_cpu_tensors()
    multithreaded = torch.autograd.is_multithreading_enabled()
    threads = torch.autograd.grad_mode.set_multithreading_enabled(False)
    library = _torch.library.Library("aten", "IMPL")
    module = torch_module()
    module.pretend_gpu()
    torch._C._set_only_lift_cpu_tensors(True)
    try:
        _functions(patches, card)
        _tensors(patches, gpu)
        _modules(patches, gpu)
        _optimizers(patches)
        _data(patches)
        _programs(patches, gpu)
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
        with gpu:
            yield
    finally:
        patches.undo()
        library._destroy()
        torch._C._set_only_lift_cpu_tensors(only_lift)
        threads.__exit__(None, None, None)
        torch._C._set_multithreading_enabled(multithreaded)
        gc.collect()
        module.pretend_no_gpu()


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


def _functions(patches: Patches, card: Card) -> None:
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
        "device_count": 1,
        "current_device": 0,
        "get_device_name": card.name,
        "get_device_capability": card.capability,
        "get_device_properties": properties,
        "get_arch_list": [f"sm_{card.capability[0]}{card.capability[1]}"],
        "is_bf16_supported": card.capability >= (8, 0),
        "is_tf32_supported": card.capability >= (8, 0),
        "can_device_access_peer": False,
        "is_current_stream_capturing": False,
        "mem_get_info": (card.memory, card.memory),
        "memory_stats": {},
        "memory_summary": "",
        "memory_snapshot": [],
        "initial_seed": 0,
        "utilization": 0,
        "get_allocator_backend": "native",
        "current_stream": _Stream(),
        "default_stream": _Stream(),
    }
    counts = (
        "memory_allocated max_memory_allocated memory_reserved max_memory_reserved memory_cached "
        "max_memory_cached"
    )
    nothing = (
        "init _lazy_init synchronize empty_cache ipc_collect set_device set_stream manual_seed "
        "manual_seed_all seed seed_all reset_peak_memory_stats reset_accumulated_memory_stats "
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
    patches.replace(cuda, "get_rng_state", lambda *_, **__: torch.get_rng_state())
    patches.replace(cuda, "get_rng_state_all", lambda: [torch.get_rng_state()])
    patches.replace(cuda, "device", _Context)
    patches.replace(cuda, "device_of", _Context)
    patches.replace(cuda, "stream", _Context)
    patches.replace(cuda, "StreamContext", _Context)
    patches.replace(cuda, "Stream", _Stream)
    patches.replace(cuda, "Event", _Event)
    for name in ("range_push", "range_pop", "mark"):
        _answer(patches, cuda.nvtx, name, 0)
    patches.replace(torch, "Generator", _Generator)
    accelerator = torch.accelerator
    for name, value in {
        "is_available": True,
        "device_count": 1,
        "current_accelerator": torch.device("cuda"),
        "current_device_index": 0,
        "current_device_idx": 0,
        "set_device_index": None,
        "set_device_idx": None,
        "current_stream": _Stream(),
        "set_stream": None,
        "synchronize": None,
        "empty_cache": None,
        "memory_allocated": 0,
        "max_memory_allocated": 0,
        "memory_reserved": 0,
        "max_memory_reserved": 0,
        "reset_peak_memory_stats": None,
    }.items():
        if hasattr(accelerator, name):
            _answer(patches, accelerator, name, value)


def _answer(patches: Patches, owner: object, name: str, value: object) -> None:
    if hasattr(owner, name):
        patches.replace(owner, name, lambda *_, **__: value)


def _tensors(patches: Patches, gpu: PretendedGpu) -> None:
    to = Tensor.to

    def moved(tensor: Tensor, *args: Any, **kwargs: Any) -> Any:
        args = tuple(map(_indexed, args))
        if "device" in kwargs:
            kwargs["device"] = _indexed(kwargs["device"])
        return to(tensor, *args, **kwargs)

    def on_gpu(tensor: Tensor, device: Any = None, *_: Any, **__: Any) -> Tensor:
        return to(tensor, GPU)

    patches.replace(Tensor, "to", moved)
    patches.replace(Tensor, "cuda", on_gpu)
    patches.replace(Tensor, "pin_memory", lambda tensor, *_: tensor)
    patches.replace(Tensor, "is_pinned", lambda tensor, *_: False)
    patches.replace(Tensor, "record_stream", lambda tensor, stream: None)
    patches.replace(FakeTensor, "__deepcopy__", _copied)
    patches.replace(FakeTensor, "numpy", lambda tensor, **_: gpu.values.copy(tensor).numpy())
    patches.replace(FakeTensor, "tolist", lambda tensor: gpu.values.copy(tensor).tolist())
    patches.replace(FakeTensor, "__format__", _formatted)
    patches.replace(FakeTensor, "__reduce_ex__", lambda tensor, _: (torch.zeros, (0,)))
    isfinite = torch.isfinite

    def finite(tensor: Tensor) -> Any:
        result: Any = isfinite(tensor)
        if isinstance(result, FakeTensor):
            result._stalloc_guess = True  # type: ignore[attr-defined]
        return result

    patches.replace(torch, "isfinite", finite)
    patches.replace(Tensor, "isfinite", finite)


def _modules(patches: Patches, gpu: PretendedGpu) -> None:
    make = nn.Parameter.__new__

    def without_memory(cls: Any, data: Any = None, requires_grad: bool = True) -> Any:
        if type(data) in (Tensor, nn.Parameter) and data.device.type == "cpu":
            data = gpu.shape_of(data.detach())
        return make(cls, data, requires_grad)

    patches.replace(nn.Parameter, "__new__", staticmethod(without_memory))

    def on_one_gpu(wrapper: Any, *args: Any, **kwargs: Any) -> Any:
        args, kwargs = pytree.tree_map_only(Tensor, lambda x: x.to(GPU), (args, kwargs))
        return wrapper.module(*args, **kwargs)

    patches.replace(nn.DataParallel, "forward", on_one_gpu)


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


def _programs(patches: Patches, gpu: PretendedGpu) -> None:
    def compiled(model: Any = None, **_: Any) -> Any:
        gpu.values.note("torch.compile", "the model as it is, not compiled")
        return model if model is not None else lambda function: function

    def saved(*_: Any, **__: Any) -> None:
        gpu.values.note("torch.save", "nothing is written")

    patches.replace(torch, "compile", compiled)
    patches.replace(nn.Module, "compile", lambda module, *_, **__: compiled())
    patches.replace(torch, "save", saved)


def _indexed(device: Any) -> Any:
    """The GPU for any way to name it; everything else as it is."""
    if isinstance(device, str) and device.split(":")[0] == "cuda":
        return GPU
    if isinstance(device, torch.device) and device.type == "cuda":
        return GPU
    if type(device) is int:
        return GPU
    return device


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


class _Context:
    """A context manager that does nothing."""

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def __enter__(self) -> _Context:
        return self

    def __exit__(self, *_: object) -> None:
        pass


class _Stream(_Context):
    """A stream that everything is done on at once."""

    device = GPU
    cuda_stream = 0
    stream_id = 0
    device_index = 0

    def query(self) -> bool:
        return True

    def is_capturing(self) -> bool:
        return False

    def synchronize(self, *_: Any) -> None:
        pass

    wait_event = wait_stream = synchronize

    def record_event(self, event: Any = None) -> Any:
        return event or _Event()


class _Event:
    """An event that has happened."""

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def query(self) -> bool:
        return True

    def record(self, *_: Any) -> None:
        pass

    wait = synchronize = record

    def elapsed_time(self, _: Any) -> float:
        return 1.0


_HostGenerator = torch.Generator


class _Generators(type):
    def __instancecheck__(cls, value: object) -> bool:
        return isinstance(value, _HostGenerator)


class _Generator(metaclass=_Generators):
    """Generators on the GPU are the host's: no number is drawn on the GPU."""

    def __new__(cls, device: Any = None) -> Any:
        return _HostGenerator("cpu")
