"""Functions that a script starts in processes of its own, one for each rank.

The function of the pretended rank runs in this process, those of the others do not. `spawn` and
`start_processes` say how many there are. A `Process` is taken for that of a rank if its arguments
have the number of those that were started with the same function before: it begins when the script
joins the first of them. All other processes of the script are started as they are.
"""

from __future__ import annotations

import multiprocessing.process
import multiprocessing.spawn
import sys
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from stalloc._frameworks.patches import Patches

_distributed: Any = dist
_Process = multiprocessing.process.BaseProcess


class _Ended:
    """The processes of a script whose ranks have all ended."""

    processes: tuple[object, ...] = ()

    def join(self, *_: object, **__: object) -> bool:
        """Always True: they have ended."""
        return True

    def pids(self) -> list[int]:
        """No numbers: they have ended."""
        return []


def patch(patches: Patches, rank: int) -> None:
    """Runs the function of the rank in this process."""

    def started(fn: Any, args: Any = (), nprocs: int = 1, *_: Any, **__: Any) -> _Ended:
        fn(rank % max(1, nprocs), *args)
        return _Ended()

    for name in ("spawn", "start_processes"):
        original = getattr(torch.multiprocessing, name)
        for module in (torch.multiprocessing, sys.modules[original.__module__]):
            patches.replace(module, name, started)
    _processes(patches, rank)


def _processes(patches: Patches, rank: int) -> None:
    start, join = _Process.start, _Process.join
    alive, code = _Process.is_alive, vars(_Process)["exitcode"]
    held: dict[Any, list[Any]] = {}
    run: set[Any] = set()

    def started(process: Any) -> None:
        target = _target(process)
        before = held.get(target, [])
        if _is_of_rank(process, len(before)):
            held.setdefault(target, []).append(process)
        else:
            start(process)

    def joined(process: Any, timeout: float | None = None) -> None:
        target = _target(process)
        ranks = held.get(target, [])
        if not is_held(process):
            join(process, timeout)
        elif target not in run:
            run.add(target)
            chosen = ranks[rank % len(ranks)]
            chosen._target(*chosen._args, **chosen._kwargs)

    def is_held(process: Any) -> bool:
        return any(process is other for other in held.get(_target(process), ()))

    patches.replace(_Process, "start", started)
    patches.replace(_Process, "join", joined)
    patches.replace(_Process, "is_alive", lambda p: not is_held(p) and alive(p))
    patches.replace(
        _Process, "exitcode", property(lambda p: 0 if is_held(p) else code.__get__(p, type(p)))
    )


def _target(process: Any) -> Callable[..., Any] | None:
    """The function of a process that has not been started."""
    target: Callable[..., Any] | None = getattr(process, "_target", None)
    return target


def _is_of_rank(process: Any, number: int) -> bool:
    if _target(process) is None or _distributed.is_initialized():
        return False
    return any(
        type(value) is int and value == number
        for value in (*process._args, *process._kwargs.values())
    )
