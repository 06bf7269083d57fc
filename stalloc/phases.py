"""Phases of a job that has two engines on one GPU: `with stalloc.phase("rollout")`.

A trainer and an inference engine take turns. The trainer's pool goes back to the device while the
engine works, and comes back before training goes on:

    open phases                        pool
    none                               reserved
    "train" in some thread             reserved
    "rollout" or "sync" alone          released, but for the memory of tensors in it
    the same, with lends=True          reserved, and serves the phase

In each thread the innermost phase counts. A phase changes no value: a request without a pool is
served by the fallback. Thread-safe; switches follow one another.
"""

from __future__ import annotations

import threading
import warnings
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

import torch

from stalloc import _core, session
from stalloc._expandable import leave_to_engine
from stalloc.engines import Engine, engine_of
from stalloc.errors import OutOfMemory, StallocError, StallocWarning
from stalloc.statistics import empty_cache, memory_stats, stats_of_phase

_NEEDS_POOL = {"train": True, "sync": False, "rollout": False}
_MOST_KEPT = 1 / 4  # of the pool, without a warning


@dataclass(eq=False)
class _Entry:
    """A phase that is open in a thread."""

    name: str
    engine: Engine | None
    lends: bool = False
    thread: threading.Thread = field(default_factory=threading.current_thread)


class _Phases:
    """All open phases of the process."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._open: list[_Entry] = []  # of all threads, in the order in which they were entered
        self._released_for: session.Session | None = None
        self._warned = False

    def enter(self, entry: _Entry) -> None:
        with self._lock:
            stats = stats_of_phase(entry.name)
            stats["entered"] += 1
            self._open.append(entry)
            try:
                self._switch(entry)
                if entry.engine is not None and not self._is_awake(entry):
                    entry.engine.wake()
            except BaseException:
                self._open.remove(entry)
                self._recover(entry)
                raise
            self._watch(entry)

    def leave(self, entry: _Entry, has_failed: bool) -> None:
        with self._lock:
            self._watch(entry)
            if entry in self._open:  # else its thread has ended
                self._open.remove(entry)
            try:
                try:
                    if entry.engine is not None and not self._is_awake(entry):
                        entry.engine.sleep()
                finally:
                    self._switch(entry)
            except (StallocError, RuntimeError) as error:  # of a lost device, too
                if not has_failed:
                    raise
                # The exception that ends the phase says more.
                warnings.warn(f"stalloc: {error}", StallocWarning, stacklevel=4)
            self._watch(entry)

    def _is_awake(self, entry: _Entry) -> bool:
        """True if another open phase has the same engine."""
        assert entry.engine is not None
        return any(
            other.engine is not None and other.engine.is_of(entry.engine)
            for other in self._open
            if other is not entry and other.thread.is_alive()
        )

    def _wants_pool(self) -> bool | None:
        """None if no phase is open. Phases of threads that have ended are forgotten."""
        self._open = [entry for entry in self._open if entry.thread.is_alive()]
        innermost = {entry.thread: entry for entry in self._open}
        if not innermost:
            return None
        return any(_NEEDS_POOL[entry.name] or entry.lends for entry in innermost.values())

    def _switch(self, entry: _Entry) -> None:
        """Releases or acquires the pool, as the open phases want it.

        Raises:
            OutOfMemory: The pool cannot be reserved again. It stays released, and the next
                "train" or the end of the next phase tries again.
        """
        wants = self._wants_pool()
        leave_to_engine(wants is False)
        current = session.current_session()
        if current is None:
            self._released_for = None
            return
        if wants is False:
            if self._released_for is not current:
                self._release(entry, current)
        elif wants or self._released_for is current:
            self._acquire(entry, current)

    def _release(self, entry: _Entry, current: session.Session) -> None:
        stats = stats_of_phase(entry.name)
        pool = memory_stats()["pool"]
        try:
            kept = session.release_pool(partly=True)
        except StallocError as error:
            if "tensors lie in it" not in str(error):
                raise
            kept = pool
        else:
            self._released_for = current
            stats["released"] += 1
            empty_cache()
        if kept == 0:
            return
        stats["kept"] += 1
        stats["most_kept"] = max(stats["most_kept"], kept)
        if kept > pool * _MOST_KEPT and not self._warned:
            self._warned = True
            warnings.warn(
                f"stalloc: phase {entry.name!r} begins while tensors lie in the plan's pool, of "
                f"which {_core.format_bytes(kept)} of {_core.format_bytes(pool)} therefore stay "
                "reserved; free them before the phase (gradients, losses that are kept as "
                "tensors, an exception's traceback)",
                StallocWarning,
                stacklevel=5,
            )

    def _acquire(self, entry: _Entry, current: session.Session) -> None:
        if self._released_for is current:
            empty_cache()  # the other engine's cached memory
        try:
            session.acquire_pool()
        except OutOfMemory as error:
            self._released_for = current
            held = _core.format_bytes(_reserved())
            raise OutOfMemory(
                f"the plan's pool could not come back at phase {entry.name!r}, with {held} "
                f"reserved besides: {error}. The pool stays released, and training goes on without "
                "it. Let the other engine give back its memory first: "
                "stalloc.phase('rollout', engine=...)"
            ) from error
        self._released_for = None

    def _recover(self, entry: _Entry) -> None:
        """The phase could not begin: back to what the phases around it want, if that works."""
        try:
            self._switch(entry)
        except (StallocError, RuntimeError) as error:
            warnings.warn(f"stalloc: {error}", StallocWarning, stacklevel=4)

    def _watch(self, entry: _Entry) -> None:
        stats = stats_of_phase(entry.name)
        stats["most_reserved"] = max(stats["most_reserved"], _reserved())
        stats["most_used"] = max(stats["most_used"], _used())


_phases = _Phases()


class _Phase:
    def __init__(self, name: str, engine: Engine | None, lends: bool) -> None:
        self._name = name
        self._engine = engine
        self._lends = lends
        self._entries: list[_Entry] = []

    def __enter__(self) -> None:
        entry = _Entry(self._name, self._engine, self._lends)
        _phases.enter(entry)
        self._entries.append(entry)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        current = threading.current_thread()
        own = [entry for entry in self._entries if entry.thread is current]
        entry = (own or self._entries)[-1]  # a phase may end in another thread
        self._entries.remove(entry)
        _phases.leave(entry, has_failed=kind is not None)


def phase(name: str, *, engine: Any = None, lends: bool = False) -> _Phase:
    """A phase of a job in which a trainer and another engine take turns, as a context manager.

    Example::

        with stalloc.phase("rollout", engine=llm):
            samples = llm.generate(prompts)
        with stalloc.phase("train"):
            train_step(samples)

    At the beginning of "rollout" and "sync" the plan's pool goes back to the device, and torch's
    cached memory with it. It comes back at the end of the phase, or at the beginning of a "train"
    inside. Weights and optimizer states stay where they are. If tensors lie in the pool at the
    beginning, their memory stays, see `stalloc.release_pool(partly=True)`; a warning says if that
    is much. Without a plan in force, the phase only counts.

    Args:
        name: "rollout": another engine works. "sync": it gets the weights. "train": the trainer
            works.
        engine: What `stalloc.engines.engine_of` knows: vLLM's LLM, SGLang's Engine,
            torch_memory_saver. It wakes after the pool has gone, and sleeps before the pool comes
            back. None: the program does that.
        lends: The phase's memory is torch's in this process, as that of `model.generate` is. The
            plan holds its requests like others of the iteration, so the pool stays and serves it.

    Raises:
        ValueError: There is no such phase, or an engine is given memory that is lent.
        TypeError: The engine is of no known kind.
        OutOfMemory: On entering or leaving: the pool cannot be reserved again. It stays released,
            and the fallback serves all requests; the next switch tries again. A phase that ends
            with an exception warns instead.
    """
    if name not in _NEEDS_POOL:
        raise ValueError(f"the phases are {', '.join(map(repr, _NEEDS_POOL))}, not {name!r}")
    if lends and engine is not None:
        raise ValueError("an engine has memory of its own, so none is lent to it: leave out lends")
    return _Phase(name, None if engine is None else engine_of(engine), lends)


def _reserved() -> int:
    return memory_stats()["reserved"]


def _used() -> int:
    """The device's bytes that are taken: by torch, stalloc, engines and other processes."""
    current = session.current_session()
    device = None if current is None else current._adapter.name
    if device == "cpu" or not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return 0
    try:
        free, total = torch.cuda.mem_get_info(device)
    except RuntimeError:  # the device is lost, which the exception that ends the phase says
        return 0
    return int(total - free)
