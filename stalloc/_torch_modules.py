"""The compiled modules that link torch, loaded on first use.

There is one for each minor version of torch, such as `_torch_2_14`, because the C++ interface
differs between them. Patch releases hardly ever change it: torch's headers show if one has.
"""

from __future__ import annotations

import hashlib
import importlib
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol, cast

import torch

from stalloc import _core
from stalloc.errors import StallocError

_BUILD = (
    "build stalloc for this torch: run `pip install --no-build-isolation .` in stalloc's sources"
)


class TorchModule(Protocol):
    """Modules `_torch_*`: the CPU, the meta device and compat mode."""

    TORCH_VERSION: str
    TORCH_INTERFACE: str

    def install_cpu(self) -> None: ...
    def uninstall_cpu(self) -> None: ...
    def leave_small_cpu(self, size: int, /) -> None: ...
    def install_meta(self) -> None: ...
    def uninstall_meta(self) -> None: ...
    def mute_meta(self, mute: bool, /) -> None: ...
    def record_meta_on_cpu(self, least: int, /) -> None: ...
    def resize_meta(self, storage: int, size: int, /) -> None: ...
    def enter_meta_stream(self, stream: int, /) -> None: ...
    def note_meta_event(self, awaited: bool, event: int, stream: int, /) -> None: ...
    def forget_meta_event(self, event: int, /) -> None: ...
    def synchronize_meta(self, event: int, /) -> None: ...
    def pretend_gpu(self) -> None: ...
    def pretend_no_gpu(self) -> None: ...
    def ask_for_device(self, tensor: int, /) -> None: ...
    def seek_no_gpu(self) -> bool: ...
    def connect_compat(self) -> None: ...


class CudaModule(Protocol):
    """Modules `_torch_cuda_*`: native mode."""

    TORCH_VERSION: str
    TORCH_INTERFACE: str

    def install(self, device: int, hidden: bool = False) -> None: ...
    def uninstall(self) -> bool: ...
    def note_profiler(self, starts: bool) -> None: ...
    def record_exactly(self, exact: bool) -> None: ...
    def note_expandable(self, on: bool) -> None: ...
    def note_virtual_block(self, address: int) -> None: ...
    def when_sharing_is_unknown(self, show: Callable[[], None]) -> None: ...
    def follow_program_order(self, device: int) -> None: ...
    def begin_graph_routes(
        self, device: int, pool: tuple[int, int], kept: tuple[int, int], number: int
    ) -> None: ...
    def end_graph_routes(self) -> bool: ...
    def learn_graph_lives(self, lives: list[bool]) -> None: ...
    def release_graph_pool(self, device: int, pool: tuple[int, int]) -> None: ...
    def start_graph_loans(self, device: int, may_run: bool) -> None: ...
    def stop_graph_loans(self, device: int) -> None: ...
    def end_graph_loans(self, device: int) -> None: ...
    def begin_graph_replay(self, device: int, stream: int, stays: bool) -> None: ...
    def end_graph_replay(self, device: int) -> None: ...
    def pause_graph_loans(self, device: int) -> None: ...
    def resume_graph_loans(self, device: int) -> None: ...
    def empty_cache(self, device: int) -> None: ...
    def note(self, device: int) -> None: ...
    def install_pinned(self, device: int) -> None: ...
    def settle_pinned(self) -> None: ...
    def give_back_pinned(self) -> None: ...


def _load(name: str) -> Any:
    running = torch.__version__.split("+")[0]
    match = re.match(r"(\d+)\.(\d+)", running)
    numbers = match.groups() if match else ("0", "0")
    module_name = f"stalloc.{name}_{'_'.join(numbers)}"
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as e:
        if e.name != module_name:
            raise
        raise _no_adapter(name, running) from e
    except ImportError as e:
        raise StallocError(
            f"stalloc's module for torch does not load with torch {running} ({e}); {_BUILD}"
        ) from e
    if running != module.TORCH_VERSION:
        changed = _changed_headers(module.TORCH_INTERFACE)
        if changed:
            raise StallocError(
                f"stalloc was built against torch {module.TORCH_VERSION}, torch {running} is "
                f"running, and its C++ interface differs ({', '.join(changed)}); {_BUILD}"
            )
    return module


def _no_adapter(name: str, running: str) -> StallocError:
    served = served_versions(name)
    if not served:
        return StallocError(
            f"this stalloc was built without native mode, for lack of CUDA's headers; {_BUILD}"
        )
    return StallocError(
        f"this stalloc serves torch {', '.join(served)}, and torch {running} is running. Use one "
        f"of those, or {_BUILD}. On a GPU, stalloc.install_compat() before the GPU is first used "
        "works with every torch"
    )


def served_versions(name: str = "_torch") -> list[str]:
    """The minor versions of torch that a module is there for, in ascending order."""
    files = Path(_core.__file__).parent.glob(f"{name}_*.so")
    found = [re.match(rf"{name}_(\d+)_(\d+)\.", file.name) for file in files]
    return [f"{a}.{b}" for a, b in sorted((int(m[1]), int(m[2])) for m in found if m)]


def _changed_headers(interface: str) -> list[str]:
    """The headers of the torch that is running which differ from those compiled against."""
    include = Path(torch.__file__).parent / "include"
    changed = []
    for entry in interface.split():
        header, digest = entry.split(":")
        file = include / header
        if not file.is_file() or hashlib.sha256(file.read_bytes()).hexdigest() != digest:
            changed.append(header)
    return changed


def torch_module() -> TorchModule:
    """The compiled module for torch.

    Raises:
        StallocError: It does not fit the torch that is running.
    """
    return cast("TorchModule", _load("_torch"))


def cuda_module() -> CudaModule:
    """The compiled module for native mode.

    Raises:
        StallocError: It does not fit the torch that is running.
    """
    return cast("CudaModule", _load("_torch_cuda"))
