"""Reads pickles of plain data without executing anything in them.

A pickle is a program. Its dangerous instructions all need a global (a class or a function), and
here there are none: looking one up is refused.
"""

from __future__ import annotations

import gc
import io
import pickle
from typing import TYPE_CHECKING, Any, NoReturn

from stalloc import _core
from stalloc.document import remedied
from stalloc.errors import TraceError
from stalloc.progress import Progress

if TYPE_CHECKING:
    from typing_extensions import Buffer


class _PlainUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> NoReturn:
        raise TraceError(f"the global {module}.{name}")

    def persistent_load(self, pid: Any) -> NoReturn:
        raise TraceError("a persistent object")


class _Watched(io.BytesIO):
    """Reports the fraction of the file that has been read."""

    def __init__(self, content: bytes, progress: Progress) -> None:
        super().__init__(content)
        self._length = len(content)
        self._progress = progress

    def readinto(self, buffer: Buffer, /) -> int:
        count = super().readinto(buffer)
        self._progress(self.tell() / self._length)
        return count


def load_plain(content: bytes, source: str, progress: Progress | None = None) -> Any:
    """Reads a pickle of dictionaries, lists, tuples, strings and numbers.

    Args:
        content: The pickle.
        source: Its name in messages.
        progress: Told the fraction that is done.

    Raises:
        TraceError: It is damaged, or holds anything else.
    """
    with remedied():
        _core.check_plain_pickle(content, source)
    collects = gc.isenabled()
    # Looking for cycles again and again among millions of objects takes longer than making them.
    gc.disable()
    try:
        raw = io.BytesIO(content) if progress is None else _Watched(content, progress)
        return _PlainUnpickler(io.BufferedReader(raw, 1 << 20)).load()
    except TraceError as error:
        raise TraceError(
            f"{source}: the pickle asks for {error}, and a memory snapshot needs none; "
            "it was not executed"
        ) from None
    except Exception as error:
        # Damage shows in as many ways as there are instructions.
        what = str(error) or type(error).__name__
        raise TraceError(
            f"{source}: the pickle is damaged or cut off: {what}: copy it completely, or record it "
            "again"
        ) from None
    finally:
        if collects:
            gc.enable()


def word(value: Any) -> str:
    """A value that ought to be text, as text."""
    return value if isinstance(value, str) else shown(value)


def shown(value: Any) -> str:
    """A value in a few characters, for a message; a number may have more digits than can be."""
    if value is None:
        return "nothing"
    if isinstance(value, int) and value.bit_length() > 128:
        return f"a number of {value.bit_length():,} bits"
    text = repr(value) if isinstance(value, (str, int, float, bool)) else type(value).__name__
    return text if len(text) <= 40 else text[:37] + "..."
