"""Runs the ranks of a pipeline side by side, each in a process that is forked from this one.

A rank starts once another one has met it, the smallest first, and while there is a free core. One
that waits for a message leaves its core to the next. If all wait, the smallest rank gets the answer
that its message is not known. So each rank gets the same messages on any machine, in any order of
events.

This process runs no rank itself: torch's autograd does not outlive a fork.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import traceback
import warnings
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, Pipe, wait
from typing import Any, NoReturn

from stalloc._estimate.post import Key
from stalloc.errors import StallocError

Call = tuple[Any, ...]
"""A word, and what it is about: `sent`, `met`, `asked`, `done` or `failed`."""


class Line:
    """The connection of a rank's process to the one that started it."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def tell(self, what: str, which: Any, content: bytes) -> None:
        """Passes on what the rank has sent, or whom it has met."""
        self._connection.send((what, which, content))

    def ask(self, key: Key, number: int) -> bytes:
        """Waits for a message of another rank."""
        self._connection.send(("asked", key, number))
        return bytes(self._connection.recv_bytes())


@dataclass(slots=True)
class _Process:
    number: int
    connection: Connection
    asks: tuple[Key, int] | None = None


@dataclass(slots=True)
class Ranks:
    """The ranks that run.

    Args:
        work: Called in the process of a rank. Its result must be possible to pickle.
        cores: How many ranks run at once.

    Attributes:
        results: By rank, what `work` has returned.
        failures: By rank, the reasons why it has not.
        messages: By route or stage, what was sent.
        met: Pairs of ranks of which the first has met the second.
    """

    work: Callable[[int, Line], Any]
    cores: int
    results: dict[int, Any] = field(default_factory=dict)
    failures: dict[int, str] = field(default_factory=dict)
    messages: defaultdict[Key, list[bytes]] = field(default_factory=lambda: defaultdict(list))
    met: set[tuple[int, int]] = field(default_factory=set)
    _waiting: set[int] = field(default_factory=set)
    _running: dict[int, _Process] = field(default_factory=dict)

    def run(self, rank: int) -> None:
        """Runs a rank, and all that it meets, until each has ended."""
        self._waiting.add(rank)
        try:
            while self._waiting or self._running:
                self._proceed()
                self._listen()
        finally:
            for process in self._running.values():
                os.kill(process.number, signal.SIGKILL)
                os.waitpid(process.number, 0)

    def message(self, key: Key, number: int) -> bytes | None:
        """A message; empty if it is not known, None if it may still come."""
        sent = self.messages[key]
        if number < len(sent):
            return sent[number]
        ended = isinstance(key, tuple) and (key[1] in self.results or key[1] in self.failures)
        return b"" if ended else None

    def _proceed(self) -> None:
        """Lets ranks go on or begin while there are cores."""
        while sum(process.asks is None for process in self._running.values()) < self.cores:
            answers = {
                rank: answer
                for rank, process in sorted(self._running.items())
                if process.asks is not None and (answer := self.message(*process.asks)) is not None
            }
            if answers:
                rank = min(answers)
                self._answer(rank, answers[rank])
            elif self._waiting:
                rank = min(self._waiting)
                self._waiting.remove(rank)
                self._running[rank] = self._start(rank)
            else:
                break
        asking = [rank for rank, process in self._running.items() if process.asks is not None]
        if asking and len(asking) == len(self._running):
            self._answer(min(asking), b"")

    def _answer(self, rank: int, content: bytes) -> None:
        process = self._running[rank]
        process.asks = None
        with contextlib.suppress(OSError):  # it has ended, as its end tells
            process.connection.send_bytes(content)

    def _listen(self) -> None:
        """Takes what processes say until one of them asks, meets a rank or ends."""
        ranks = {process.connection: rank for rank, process in self._running.items()}
        for connection in wait(list(ranks)):
            assert isinstance(connection, Connection)
            rank = ranks[connection]
            try:
                call = connection.recv()
            except (EOFError, OSError):
                self._end(rank)
            else:
                self._take(rank, call)

    def _take(self, rank: int, call: Call) -> None:
        kind, *told = call
        if kind == "sent":
            self.messages[told[0]].append(told[1])
        elif kind == "asked":
            self._running[rank].asks = told[0], told[1]
        elif kind == "met":
            self.met.add((rank, told[0]))
            if not self.is_known(told[0]):
                self._waiting.add(told[0])
        elif kind == "done":
            self.results[rank] = told[0]
        else:
            self.failures[rank] = told[0]

    def is_known(self, rank: int) -> bool:
        """True if a rank has begun, or will."""
        begun = rank in self._running or rank in self._waiting
        return begun or rank in self.results or rank in self.failures

    def _end(self, rank: int) -> None:
        process = self._running.pop(rank)
        process.connection.close()
        status = os.waitstatus_to_exitcode(os.waitpid(process.number, 0)[1])
        if rank not in self.results and rank not in self.failures:
            how = f"signal {-status}" if status < 0 else f"exit code {status}"
            self.failures[rank] = f"its process was ended by {how}"

    def _start(self, rank: int) -> _Process:
        ours, theirs = Pipe()
        sys.stdout.flush()
        sys.stderr.flush()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of threads, which do not matter
            number = os.fork()
        if number == 0:
            ours.close()
            self._serve(rank, theirs)
        theirs.close()
        return _Process(number, ours)

    def _serve(self, rank: int, connection: Connection) -> NoReturn:
        """Runs a rank in its own process, which ends here."""
        leave, status = os._exit, 1
        try:
            try:
                connection.send(("done", self.work(rank, Line(connection))))
            except StallocError as error:
                connection.send(("failed", str(error)))
            status = 0
        except KeyboardInterrupt:
            status = 130
        except BaseException:
            traceback.print_exc()
        finally:
            with contextlib.suppress(OSError, ValueError):
                sys.stdout.flush()
                sys.stderr.flush()
            leave(status)


def usable_cores() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0))
