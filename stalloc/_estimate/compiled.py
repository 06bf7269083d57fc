"""`torch.compile` on the pretended GPU: the requests of the code that Inductor generates.

Dynamo traces the script's functions, AOTAutograd divides forward and backward and chooses the
activations that are kept, and Inductor fuses, reuses buffers and writes the code that calls the
kernels. All of that is torch's own and needs no GPU. The kernels are neither compiled nor called;
the code around them runs and requests its buffers, as on a GPU.

    traced and generated    without the pretended GPU, and nothing is recorded
    run                     on the pretended GPU: `empty_strided_cuda`, products, attention

A part that cannot be compiled runs as it is, which the answer's guesses say. A GPU would decide
some things by trials, which nothing can be tried for here. The extras have the most that they take.

    products with sizes of no multiple of 8 or 4    as they are; a GPU may copy them to padded ones
    kernels with several configurations             the first; a trial clears the cache by a buffer
    max-autotune, CUDA graphs                       left out
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import logging
import math
import sys
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from types import FrameType, ModuleType
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.autograd.variable import Variable
from torch.utils._python_dispatch import TorchDispatchMode

from stalloc._estimate import flexible
from stalloc._estimate.gpu import PretendedGpu, own_gpu
from stalloc._estimate.streams import Context
from stalloc._frameworks.patches import Patches
from stalloc._torch_modules import torch_module
from stalloc._unrecorded import unrecorded

_torch: Any = torch
_DEVICE: Any = torch.ops.prim.device.default
_META = torch.device("meta")

READ = "torch.compile"
"""The name under which guesses about compiled code are listed."""


def patch(patches: Patches, gpu: PretendedGpu) -> None:
    """Leads `torch.compile` there, from the first function on that it traces."""
    from torch._dynamo import convert_frame

    compile_ = convert_frame._compile
    prepared: list[_Compiler] = []

    @functools.wraps(compile_)
    def compiled(*args: Any, **kwargs: Any) -> Any:
        with unrecorded(), _no_backward(), _own_functions():
            if not prepared:
                prepared.append(_Compiler(patches, gpu))
            return prepared[0].trace(compile_, *args, **kwargs)

    patches.replace(convert_frame, "_compile", compiled)


_MOST_SAID = 120
_COMPILED = "the requests of Inductor's code; its kernels do not run"
_UNTUNED = ", and are not tuned"


class _Compiler:
    """Makes torch's compiler work for the pretended GPU, until the patches are undone."""

    def __init__(self, patches: Patches, gpu: PretendedGpu) -> None:
        self.gpu = gpu
        gpu.compiled = 0
        self._forget()
        patches.then(lambda: self._forget(all_code=True))
        _nested_code()
        self._errors(patches)
        self._devices(patches)
        self._code(patches)

    def trace(self, compile_: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Compiles a frame, which runs as it is if that fails."""
        from torch._C._dynamo import eval_frame
        from torch._dynamo.types import ConvertFrameReturn

        if args[0] is flexible.attended_code():
            skip = eval_frame._FrameAction.SKIP
            skipped = eval_frame._FrameExecStrategy(skip, skip)
            return ConvertFrameReturn(frame_exec_strategy=skipped)
        try:
            return compile_(*args, **kwargs)
        except Exception as error:
            self._fails(error)
            raise

    def generate(self, compile_fx: Any, graph: Any, inputs: Any, *args: Any, **options: Any) -> Any:
        """Compiles a graph by Inductor; as it is if that fails."""
        if args or "inner_compile" in options:
            return compile_fx(graph, inputs, *args, **options)  # it calls itself
        if not any(isinstance(x, Tensor) and x.device.type == "cuda" for x in inputs):
            return graph.forward
        wanted = options.get("config_patches") or {}
        tuned = any(wanted.get(name) for name, value in _SETTINGS.items() if value is False)
        try:
            result = compile_fx(graph, inputs, config_patches={**wanted, **_SETTINGS})
        except Exception as error:
            if not self._fails(error):
                raise
            return graph.forward
        self.gpu.values.note(READ, _COMPILED + (_UNTUNED if tuned else ""))
        return result

    def _fails(self, error: Exception) -> bool:
        """Notes an error, but for one by which the compiler begins again, or leaves a frame."""
        from torch._dynamo import exc

        if isinstance(error, exc.SkipFrame | exc.Unsupported | exc.RestartAnalysis):
            return False
        reason = (str(error).strip().splitlines() or [""])[0][:_MOST_SAID]
        self.gpu.values.note(READ, f"a part as it is, for {type(error).__name__}: {reason}")
        return True

    def _errors(self, patches: Patches) -> None:
        from torch._dynamo import config, convert_frame
        from torch._functorch import config as functorch

        left = contextlib.ExitStack()
        patches.then(left.close)
        left.enter_context(config.patch(suppress_errors=True))
        # A GPU's generators would be inputs of the code; their states are on the host either way.
        if hasattr(functorch, "graphsafe_rng_functionalization"):
            left.enter_context(functorch.patch(graphsafe_rng_functionalization=False))
        log = logging.getLogger(convert_frame.__name__)
        left.callback(log.setLevel, log.level)
        log.setLevel(logging.ERROR)
        left.enter_context(warnings.catch_warnings())
        warnings.filterwarnings("ignore", message="Accessing the data pointer of FakeTensor")

    def _devices(self, patches: Patches) -> None:
        """Tensors of the compiler are on the meta device for autograd, like the pretended GPU's."""
        from torch._dynamo import device_interface
        from torch._inductor import scheduler
        from torch._inductor.fx_passes import pad_mm
        from torch._subclasses.functional_tensor import FunctionalTensor, FunctionalTensorMode
        from torch.fx.experimental.proxy_tensor import ProxyTorchDispatchMode

        for mode in (FakeTensorMode, FunctionalTensorMode, ProxyTorchDispatchMode):
            patches.replace(mode, "__torch_dispatch__", _told(mode.__torch_dispatch__))
        dispatch: Any = FunctionalTensor.__torch_dispatch__

        def dispatched(_: Any, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if func is _DEVICE:
                return _device_of(args[0])
            return dispatch(func, types, args, kwargs)

        patches.replace(FunctionalTensor, "__torch_dispatch__", classmethod(dispatched))
        make: Any = FunctionalTensor.__new__

        def made(cls: Any, elem: Any, mode: Any, *args: Any) -> Any:
            tensor = make(cls, elem, mode, *args)
            device = elem.device
            if device.type == "cuda":
                tensor._stalloc_device = device
                torch_module().ask_for_device(tensor._cdata)
            return tensor

        patches.replace(FunctionalTensor, "__new__", staticmethod(made))
        patches.replace(FakeTensorMode, "avoid_device_init", True)
        for module in (scheduler, pad_mm):
            patches.replace(module, "has_triton", lambda *_: True)
        patches.replace(pad_mm, "_should_pad", self._may_pad)
        patches.replace(_torch.utils._triton, "triton_hash_with_backend", lambda *_: "")
        interface: Any = device_interface.CudaInterface
        for name in dir(interface):
            own = vars(interface).get(name)
            now = getattr(torch.cuda, name, None)
            if isinstance(own, staticmethod) and callable(now) and name != "is_available":
                patches.replace(interface, name, staticmethod(now))
        patches.replace(interface, "get_raw_stream", staticmethod(lambda *_: 0))

    def _code(self, patches: Patches) -> None:
        from torch._inductor import async_compile, codecache, compile_fx
        from torch._inductor.fx_passes import joint_graph

        generate = partial(self.generate, compile_fx.compile_fx)
        patches.replace(compile_fx, "compile_fx", generate)
        patches.replace(_torch._C, "_cuda_getCurrentRawStream", lambda *_: 0)
        patches.replace(torch.cuda, "_DeviceGuard", Context)
        for name in ("triton", "cpp", "cpp_pybinding", "multi_kernel", "size_hint_multi_kernel"):
            if hasattr(async_compile.AsyncCompile, name):
                patches.replace(async_compile.AsyncCompile, name, _Kernel)
        cache: Any = codecache.PyCodeCache
        load = cache.load_by_key_path

        def loaded(_: Any, *args: Any, **kwargs: Any) -> ModuleType:
            with _triton():
                module: ModuleType = load(*args, **kwargs)
            for name, function in _FUNCTIONS.items():
                if hasattr(module, name):
                    setattr(module, name, function)
            return module

        patches.replace(cache, "load_by_key_path", classmethod(loaded))
        for name in ("__init__", "_deduce_value"):
            patches.wrap(joint_graph.UniformValueConstantFolder, name, _on_host)

    def _may_pad(self, _: Any, one: Tensor, other: Tensor, *__: Any, **___: Any) -> bool:
        """Pads no product: a GPU tries what is faster. Notes the bytes of the padded tensors."""
        unit = 16 // one.element_size()
        batch, (rows, inner) = one.shape[:-2], map(_length, one.shape[-2:])
        columns = _length(other.shape[-1])
        rows, inner, columns = (-(-length // unit) * unit for length in (rows, inner, columns))
        elements = math.prod(map(_length, batch)) * (
            rows * inner + inner * columns + rows * columns
        )
        self.gpu.compiled = max(self.gpu.compiled or 0, elements * one.element_size())
        return False

    @staticmethod
    def _forget(*, all_code: bool = False) -> None:
        """Torch's compiler keeps functions and properties of the GPU, which are other ones now."""
        import torch._dynamo as dynamo
        from torch._dynamo import device_interface, trace_rules
        from torch._dynamo.variables.torch import TorchInGraphFunctionVariable
        from torch._inductor.runtime.hints import DeviceProperties

        if all_code:
            dynamo.reset()
        trace_rules.clear_lru_cache()
        handlers = getattr(TorchInGraphFunctionVariable, "_get_handlers", None)
        for function in (handlers, DeviceProperties.create):
            clear = getattr(function, "cache_clear", None)
            if clear is not None:
                clear()
        device_interface.caching_worker_device_properties.pop("cuda", None)


@contextlib.contextmanager
def _no_backward() -> Iterator[None]:
    """The compiler traces gradients by the engine, which is no backward pass of the script."""
    engine: Any = Variable._execution_engine
    Variable._execution_engine = getattr(engine, "engine", engine)
    try:
        yield
    finally:
        Variable._execution_engine = engine


@contextlib.contextmanager
def _triton() -> Iterator[None]:
    """The generated code imports Triton, which a torch for the CPU comes without."""
    names = ("triton", "triton.language")
    made = {name: ModuleType(name) for name in names if importlib.util.find_spec(names[0]) is None}
    if made:
        vars(made["triton"])["language"] = made["triton.language"]
    sys.modules.update(made)
    try:
        yield
    finally:
        for name in made:
            del sys.modules[name]


def _nested_code() -> None:
    """Code within code: recomputation draws its numbers again, of which there are none."""
    from torch._prims.rng_prims import run_and_save_rng_state, run_with_rng_state

    def saved(gpu: PretendedGpu, operator: Any, *args: Any, **kwargs: Any) -> Any:
        with gpu:
            return torch.cuda.get_rng_state(), operator(*args, **kwargs)

    def restored(gpu: PretendedGpu, _: Any, operator: Any, *args: Any, **kwargs: Any) -> Any:
        with gpu:
            return operator(*args, **kwargs)

    for operator, answer in {run_and_save_rng_state: saved, run_with_rng_state: restored}.items():
        if PretendedGpu not in operator.python_key_table:
            operator.py_impl(PretendedGpu)(answer)


@contextlib.contextmanager
def _own_functions() -> Iterator[None]:
    """Gives torch its functions back that the compiler knows, in the place of those in Python."""
    now = [(owner, name, vars(owner).get(name)) for owner, name, _ in _KNOWN]
    for owner, name, own in _KNOWN:
        setattr(owner, name, own)
    try:
        yield
    finally:
        for owner, name, value in now:
            if value is None:
                delattr(owner, name)
            else:
                setattr(owner, name, value)


_KNOWN: list[tuple[Any, str, Any]] = [
    *(
        (Tensor, name, getattr(Tensor, name))
        for name in ("to", "cuda", "isfinite", "record_stream")
    ),
    *((torch, name, getattr(torch, name)) for name in ("tensor", "isfinite")),
]


class _OnHost(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Makes tensors on the host: the compiler folds constants where a GPU would compute them."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if "device" in kwargs:
            kwargs = {**kwargs, "device": torch.device("cpu")}
        return func(*args, **kwargs)


def _on_host(call: Any) -> Any:
    def called(*args: Any, **kwargs: Any) -> Any:
        with _OnHost():  # type: ignore[no-untyped-call]
            return call(*args, **kwargs)

    return called


_SETTINGS: dict[str, Any] = {
    "compile_threads": 1,
    "fx_graph_cache": False,
    "max_autotune": False,
    "max_autotune_gemm": False,
    "max_autotune_pointwise": False,
    "triton.cudagraphs": False,
    "cpp_wrapper": False,
}


def _length(length: Any) -> int:
    """A length, or the one with which the code is compiled for any."""
    return length if isinstance(length, int) else int(length.node.hint)


class _Kernel:
    """A kernel that is neither compiled nor run."""

    def __init__(self, *_: Any, **__: Any) -> None:
        self.run = self

    def __call__(self, *_: Any, **__: Any) -> None:
        """Requests nothing."""


def _empty(shape: Any, stride: Any, dtype: Any) -> Tensor:
    return torch.empty_strided(shape, stride, dtype=dtype, device=own_gpu())


def _reinterpreted(tensor: Tensor, shape: Any, stride: Any, offset: int = 0) -> Tensor:
    with torch.no_grad():
        return tensor.as_strided(shape, stride, tensor.storage_offset() + offset)


_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "empty_strided_cuda": _empty,
    "reinterpret_tensor": _reinterpreted,
    "assert_size_stride": lambda *_: None,
    "assert_alignment": lambda *_: None,
    "get_raw_stream": lambda *_: 0,
}
"""Functions that the generated code calls, in the place of those in C++."""


def _told(dispatch: Any) -> Any:
    @functools.wraps(dispatch)
    def dispatched(mode: Any, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is _DEVICE:
            return _device_of(args[0])
        return dispatch(mode, func, types, args, kwargs)

    return dispatched


def _device_of(tensor: Any) -> torch.device:
    if _engine_asks(sys._getframe(2)):
        return _META
    if isinstance(tensor, FakeTensor):
        inside = tensor.fake_mode.in_kernel_invocation
        return _META if inside else tensor.fake_device
    device: torch.device = tensor._stalloc_device
    return device


def _engine_asks(frame: FrameType | None) -> bool:
    """True if C++ code of the autograd engine asks, which no Python code of torch's lies above."""
    while frame is not None and frame.f_code.co_name in _BETWEEN:
        frame = frame.f_back
    return frame is not None and frame.f_code.co_name in ("run_backward", "_engine_run_backward")


_BETWEEN = ("__torch_dispatch__", "__call__", "dispatched", "wrapper", "inner", "_fn")
