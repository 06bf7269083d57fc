"""Traces in Chrome's format, event by event: a list of them, or an object with one inside.

They are decoded one at a time, so that a file of gigabytes never is a list of dictionaries, and so
that it can be told how far the work has come.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, NoReturn

from stalloc.errors import TraceError
from stalloc.progress import Progress

_SPACE = re.compile(r"[ \t\n\r]*")
_REPORT_EVERY = 1 << 12  # events


def trace_events(content: bytes, source: str, progress: Progress | None = None) -> Iterator[Any]:
    """The events of a trace, in order.

    Args:
        content: JSON in UTF-8; invalid bytes in a name are replaced.
        source: Its name in messages.
        progress: Told the fraction that is done.

    Raises:
        TraceError: It is no JSON, is cut off, or has no list of events.
    """
    reader = _Reader(content.decode(errors="replace"), source, progress)
    if reader.take("["):
        yield from reader.elements()
        return
    found = False
    for key in reader.members():
        if key == "traceEvents" and reader.take("["):
            found = True
            yield from reader.elements()
        else:
            reader.value()
    if not found:
        raise TraceError(f"{source}: no Kineto trace: there is no list 'traceEvents'")


class _Reader:
    """A place in a text. `members` and `elements` leave it behind the bracket that closes."""

    def __init__(self, text: str, source: str, progress: Progress | None) -> None:
        self._text = text
        self._source = source
        self._progress = progress
        self._decode = json.JSONDecoder().raw_decode
        self._at = 0
        self._skip()

    def take(self, character: str) -> bool:
        """True if it comes next; then skips it."""
        if not self._text.startswith(character, self._at):
            return False
        self._at += 1
        self._skip()
        return True

    def value(self) -> Any:
        """Reads the value that comes next."""
        try:
            value, self._at = self._decode(self._text, self._at)
        except RecursionError:
            self._fail("it is nested too deeply")
        except json.JSONDecodeError as error:
            self._fail(f"{error.msg} at character {error.pos:,}")
        except ValueError as error:  # a number of thousands of digits
            self._fail(str(error))
        self._skip()
        return value

    def members(self) -> Iterator[str]:
        """The keys of an object; the caller reads the value before the next key."""
        self._expect("{")
        if self.take("}"):
            return
        while True:
            key = self.value()
            self._expect(":")
            yield str(key)
            if not self.take(","):
                break
        self._expect("}")

    def elements(self) -> Iterator[Any]:
        """The elements of a list whose opening bracket has been taken."""
        if self.take("]"):
            return
        count = 0
        while True:
            yield self.value()
            count += 1
            if self._progress is not None and count % _REPORT_EVERY == 0:
                self._progress(self._at / len(self._text))
            if not self.take(","):
                break
        self._expect("]")

    def _expect(self, character: str) -> None:
        if not self.take(character):
            self._fail(f"{character!r} is missing at character {self._at:,}")

    def _skip(self) -> None:
        match = _SPACE.match(self._text, self._at)
        assert match is not None
        self._at = match.end()

    def _fail(self, what: str) -> NoReturn:
        if self._text.rstrip()[-1:] not in ("}", "]"):
            what += ": it was cut off: copy it completely"
        raise TraceError(f"{self._source}: no JSON: {what}")
