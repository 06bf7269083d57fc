"""Saves the recording when a job scheduler or a launcher ends the run.

By default SIGTERM and SIGHUP end a process. This stays so: the script sees no exception, and the
process ends by the same signal. Before, the recording is saved, well within the 30 seconds after
which schedulers and torchrun send SIGKILL.

A separate thread saves it: the training thread may wait in a collective for a rank that has ended,
and Python runs handlers only after that call returns. The signal writes a byte to the wakeup
descriptor at once, and the thread waits for that byte. If the training thread runs Python code, it
enters the handler and stays there.

- A signal that is ignored, as under nohup, or handled already is left alone, and so is one for
  which the script installs a handler. If that handler calls the previous one, as Lightning's does,
  ours does nothing: the script's own work, such as saving a checkpoint, must not be cut off.
- While the training thread ends the recording, it goes on: half of an end cannot be saved. The
  thread waits for it, and sends the signal once more.
- These signals end a forked child, such as a data loader's worker, as usual.
"""

from __future__ import annotations

import contextlib
import ctypes
import math
import os
import signal
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from typing import NoReturn

SIGNALS = (signal.SIGTERM, signal.SIGHUP)

GRACE = 20.0
"""Seconds that saving may take."""


@contextlib.contextmanager
def saved_when_terminated(
    save: Callable[[signal.Signals], None], is_busy: Callable[[], bool] = lambda: False
) -> Iterator[None]:
    """Calls `save` when one of the signals ends the process inside of the block.

    `save` runs on another thread, while the thread of the block stands still. That thread may hold
    a lock: of a stream such as stderr, or of a module that is being imported. As long as `is_busy`
    is true, which it is only for moments, the thread of the block goes on and `save` waits.
    On other threads than the main one, which alone gets signals, this does nothing.
    """
    global _watch
    signals = [number for number in SIGNALS if signal.getsignal(number) is signal.SIG_DFL]
    if not signals or threading.current_thread() is not threading.main_thread():
        yield
        return
    _watch = _Watch(save, is_busy, signals)
    try:
        yield
    finally:
        watch, _watch = _watch, None
        if watch is not None:  # None in a forked child
            watch.end()


class _PipeEnd:
    """A script may close it, as all descriptors, and another file may get its number."""

    def __init__(self, number: int) -> None:
        self.number = number
        self._pipe = os.fstat(number)

    def is_open(self) -> bool:
        try:
            return os.path.samestat(os.fstat(self.number), self._pipe)
        except OSError:
            return False

    def close(self) -> None:
        if self.is_open():
            os.close(self.number)


class _Watch:
    """The handler, and the thread that saves."""

    def __init__(
        self,
        save: Callable[[signal.Signals], None],
        is_busy: Callable[[], bool],
        signals: list[signal.Signals],
    ) -> None:
        self._save = save
        self._is_busy = is_busy
        self._signals = signals
        self._saving = threading.Lock()  # the saving thread keeps it to the end
        self._saves = False
        self._over = False
        self._handled: set[int] = set()
        self._reader, self._writer = map(_PipeEnd, os.pipe())
        os.set_blocking(self._writer.number, False)
        self._wakeup = signal.set_wakeup_fd(self._writer.number, warn_on_full_buffer=False)
        for number in signals:
            signal.signal(number, self._handle)
        threading.Thread(target=self._wait, name="stalloc-termination", daemon=True).start()

    def end(self) -> None:
        """Leaves the signals as they were; does not return where one has come."""
        if not self._saving.acquire(blocking=False):
            _stand_still()
        self._over = True
        self._leave()
        self._writer.close()  # which ends the thread

    def _leave(self) -> None:
        for number in self._signals:
            if signal.getsignal(number) == self._handle:
                signal.signal(number, signal.SIG_DFL)
        current = signal.set_wakeup_fd(-1)
        # A descriptor that is closed, or replaced by another, may wake nobody.
        with contextlib.suppress(OSError, ValueError):
            signal.set_wakeup_fd(self._wakeup if current == self._writer.number else current)

    def _handle(self, number: int, _: object) -> None:
        if signal.getsignal(number) != self._handle:
            return  # the script's handler has called it
        if self._over:  # all is saved, and the thread leaves it alone
            _end_process(number)
        self._handled.add(number)
        if self._writer.is_open():
            with contextlib.suppress(OSError):  # full
                os.write(self._writer.number, bytes([number]))
        if self._is_busy() and not self._saves:
            return  # a signal follows
        _stand_still(GRACE)
        _end_process(number)

    def _wait(self) -> None:
        while self._reader.is_open() and (numbers := os.read(self._reader.number, 64)):
            for number in numbers:
                if number in self._signals and (
                    number in self._handled or signal.getsignal(number) == self._handle
                ):
                    self._end_by(signal.Signals(number))
        self._reader.close()

    def _end_by(self, number: signal.Signals) -> None:
        if not self._saving.acquire(blocking=False):
            return  # the block is over
        last = threading.Timer(GRACE, _end_process, [number])
        last.daemon = True
        last.start()
        try:
            if self._is_busy():
                while self._is_busy():
                    time.sleep(0.01)
                main = threading.main_thread().ident
                assert main is not None
                signal.pthread_kill(main, number)
            self._saves = True  # which ends the recording, too
            self._save(number)
        except BaseException:  # after which nothing would print it
            os.write(2, traceback.format_exc().encode(errors="backslashreplace"))
        finally:
            _end_process(number)

    def leave_to_parent(self) -> None:
        """In a forked child."""
        self._leave()
        self._reader.close()
        self._writer.close()


_watch: _Watch | None = None
_before = threading.local()  # the mask of the thread that forks


def _stand_still(seconds: float = math.inf) -> None:
    """The process is about to end in any case."""
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0:
        with contextlib.suppress(BaseException):
            time.sleep(min(left, GRACE))


def _end_process(number: int) -> NoReturn:
    # Python lets only the main thread say so, which may be stuck.
    ctypes.CDLL(None).signal(number, None)
    os.kill(os.getpid(), number)
    os._exit(128 + number)  # where everybody blocks it


# Nothing may come while a child has our handler and our end of the pipe.


def _before_fork() -> None:
    _before.mask = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS if _watch is not None else ())


def _after_fork() -> None:
    signal.pthread_sigmask(signal.SIG_SETMASK, _before.mask)


def _after_fork_in_child() -> None:
    global _watch
    watch, _watch = _watch, None
    try:
        if watch is not None:
            watch.leave_to_parent()
    finally:
        _after_fork()


os.register_at_fork(
    before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork_in_child
)
