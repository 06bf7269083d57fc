"""The common base of traces and plans: an object of the core with a JSON file."""

from __future__ import annotations

import contextlib
import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from os import PathLike
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

from stalloc.errors import PlanError, TraceError
from stalloc.files import named, write_file

_REMEDIES = {
    r"it was cut off$|the pickle is cut off.*": "copy it completely, or record it again",
    r"unknown key '.*'$": "upgrade stalloc if a newer one wrote it, or write the file anew",
    r"the key '.*' (is missing|appears twice)$": "undo changes by hand, or write the file anew",
}
"""By the end of a message on a damaged file."""


class _Core(Protocol):
    info: dict[str, str]

    def to_json(self) -> bytes: ...


CoreT = TypeVar("CoreT", bound=_Core)
DocumentT = TypeVar("DocumentT", bound="Document[Any]")


@contextlib.contextmanager
def remedied() -> Iterator[None]:
    """Adds the remedy to the core's errors about a damaged file."""
    try:
        yield
    except (TraceError, PlanError) as error:
        for end, remedy in _REMEDIES.items():
            if re.search(end, str(error)):
                raise type(error)(f"{error}: {remedy}") from None
        raise


class Document(ABC, Generic[CoreT]):
    """An object of the core, its file, and facts about its origin."""

    def __init__(self, core: CoreT) -> None:
        self._core = core

    @classmethod
    def load(cls: type[DocumentT], path: str | PathLike[str]) -> DocumentT:
        """Reads a file that `save` wrote.

        Raises:
            TraceError, PlanError: As for `from_json`.
            OSError: It cannot be read.
        """
        return cls.from_json(Path(path).read_bytes(), named(path))

    @classmethod
    @abstractmethod
    def from_json(cls: type[DocumentT], text: bytes, source: str) -> DocumentT:
        """Reads the content of a file that `save` wrote.

        Args:
            text: UTF-8.
            source: Its name in messages.
        """

    def save(self, path: str | PathLike[str], *, overwrite: bool = False) -> None:
        """Writes it as JSON, completely or not at all.

        Raises:
            FileExistsError: The file exists, and `overwrite` is not set.
            OSError: It cannot be written.
        """
        write_file(Path(path), self.to_json(), overwrite=overwrite)

    def to_json(self) -> bytes:
        """The content of its file."""
        return self._core.to_json()

    @property
    def info(self) -> dict[str, str]:
        """Facts about the profiled run: `device`, `torch`, `model` and others."""
        return self._core.info

    @info.setter
    def info(self, value: Mapping[str, str]) -> None:
        self._core.info = dict(value)
