"""Python imports this at its start: it writes the figures of a process at its end.

The script that is measured stays as it is. These variables tell what to do:

- SCRIPTS_PROBE: the folder of the figures. Without it, this module does nothing.
- SCRIPTS_DIGEST: if set, a digest of all parameters after each step of an optimizer is taken. It
  reads memory in place, and requests none of torch's allocator. The generators of Python and NumPy
  get a seed, since some scripts set only torch's.
- SCRIPTS_PRETENDED: if set, cuDNN is off, and gloo is the default backend of process groups. A
  pretended GPU has neither cuDNN nor NCCL.
- SCRIPTS_UNCHECKED: if set, torchvision takes files of CIFAR-10 whatever their checksum is.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import hashlib
import json
import os
import sys
from pathlib import Path
from typing import Any

_digest = hashlib.blake2b(digest_size=16)
_steps = 0
_kernels: list[Any] = []


def _take(optimizer: Any, *_: object) -> None:
    """Adds the bytes of an optimizer's parameters to the digest."""
    global _steps
    _steps += 1
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            local = getattr(parameter, "_local_tensor", parameter)
            if local.device.type == "cpu" and local.numel() > 0:
                storage = local.untyped_storage()
                view = (ctypes.c_char * storage.nbytes()).from_address(storage.data_ptr())
                _digest.update(view)


def _figures() -> dict[str, Any]:
    torch = sys.modules["torch"]
    figures: dict[str, Any] = {
        "rank": os.environ.get("RANK"),
        "steps": _steps,
        "digest": _digest.hexdigest(),
        "torch": torch.__version__,
    }
    cuda = torch.cuda.is_initialized()
    if cuda:
        device = torch.cuda.current_device()
        figures["load"] = torch.cuda.memory_stats(device)["requested_bytes.all.peak"]
        figures["reserved"] = torch.cuda.max_memory_reserved(device)
        with contextlib.suppress(AttributeError):  # a GPU that is not pretended
            peak = ctypes.CDLL(None).standin_peak
            peak.restype = ctypes.c_uint64
            figures["device"] = peak(device)
    if "stalloc" in sys.modules:
        stalloc = sys.modules["stalloc"]
        figures["status"] = stalloc.status()
        figures["stats"] = stalloc.memory_stats("cuda" if cuda else "cpu")
    return figures


def _write(folder: Path, process: int) -> None:
    if os.getpid() == process and "torch" in sys.modules:
        (folder / f"{process}.json").write_text(json.dumps(_figures()))
        _let_autograd_finish()


def _let_autograd_finish() -> None:
    """Gives autograd's worker a pass that holds nothing of Python's.

    It drops what it holds of the last one. Where Python ends before it has done so, torch aborts,
    with any allocator (pytorch#173568).
    """
    torch = sys.modules["torch"]
    if torch.cuda.is_initialized():
        y = torch.ones((), device="cuda", requires_grad=True) * 1
        engine = torch.autograd.variable.Variable._execution_engine
        engine.run_backward((y,), (torch.ones_like(y),), False, False, (), True, True)


def _communicate_by_gloo() -> None:
    """Makes gloo the default of CUDA tensors, too, and lets it gather and scatter DTensors.

    DTensors ask for coalesced operations, in which gloo reads tensors as if they lay on the host.
    It has the same operations for single tensors of a GPU.
    """
    import torch
    import torch.distributed as dist
    from torch.distributed.distributed_c10d import _resolve_process_group

    def gather(tensor: torch.Tensor, ranks: int, group: str) -> torch.Tensor:
        result = tensor.new_empty(ranks * tensor.shape[0], *tensor.shape[1:])
        dist.all_gather_into_tensor(result, tensor, _resolve_process_group(group))
        return result

    def scatter(tensor: torch.Tensor, operation: str, ranks: int, group: str) -> torch.Tensor:
        result = tensor.new_empty(tensor.shape[0] // ranks, *tensor.shape[1:])
        reduction = getattr(dist.ReduceOp, operation.upper())
        dist.reduce_scatter_tensor(result, tensor, reduction, _resolve_process_group(group))
        return result

    dist.Backend.default_device_backend_map["cuda"] = "gloo"
    _kernels.append(torch.library.Library("_c10d_functional", "IMPL"))
    _kernels[0].impl("all_gather_into_tensor", gather, "CUDA")
    _kernels[0].impl("reduce_scatter_tensor", scatter, "CUDA")


def _begin(folder: Path) -> None:
    if os.environ.get("SCRIPTS_DIGEST"):
        import random

        import numpy as np
        from torch.optim.optimizer import register_optimizer_step_post_hook

        random.seed(0)
        np.random.seed(0)
        register_optimizer_step_post_hook(_take)
    if os.environ.get("SCRIPTS_PRETENDED"):
        import torch

        torch.backends.cudnn.enabled = False
        torch.backends.cuda.enable_cudnn_sdp(False)
        _communicate_by_gloo()
    if os.environ.get("SCRIPTS_UNCHECKED"):
        from torchvision.datasets import cifar

        cifar.check_integrity = lambda path, *_: os.path.isfile(path)
    atexit.register(_write, folder, os.getpid())


if "SCRIPTS_PROBE" in os.environ:
    _begin(Path(os.environ["SCRIPTS_PROBE"]))
