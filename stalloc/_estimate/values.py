"""Values that a script reads from tensors that have none, and the lines that read.

Nothing is computed, so a value is a guess: 1 for a number, False for a condition (`isnan(loss)`).
No gradient is infinite, whatever a framework reads to learn it.
Each guess is listed with the line that asked, so that a wrong one can be seen. A small tensor that
came from the host keeps its values until something writes to it.
"""

from __future__ import annotations

import sys
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import Tensor

from stalloc._estimate import choices, minimizers
from stalloc._script import Guess
from stalloc.errors import StallocError

_OWN = Path(__file__).resolve().parents[1]
_TORCH = Path(torch.__file__).resolve().parent
MOST_KNOWN = 8192
"""Elements of a tensor whose values are kept."""


class Unanswerable(StallocError):
    """The script asks for something that nothing can be said about without computing."""


class Values:
    """Answers the reads of one run, and remembers the guesses."""

    def __init__(self) -> None:
        self._counts: dict[tuple[str, str, str], int] = {}

    @property
    def guesses(self) -> list[Guess]:
        """The guesses, in the order of their first reads."""
        return [Guess(*key, times) for key, times in self._counts.items()]

    def note(self, read: str, value: object) -> None:
        """Lists a guess for the script's line that runs."""
        key = (script_line(), read, str(value))
        self._counts[key] = self._counts.get(key, 0) + 1

    def number(self, tensor: Tensor) -> bool | int | float | complex:
        """The answer to `tensor.item()`."""
        known = known_values(tensor)
        if known is not None:
            return known.item()
        value: bool | int | float
        if tensor.dtype == torch.bool:
            expected = getattr(tensor, "_stalloc_guess", False)
            value = bool(expected) or minimizers.is_curvature(sys._getframe(1))
        elif (scaled := _of_gradient_scaler()) is not None:
            return scaled  # its own way to skip steps: nothing that a script reads
        elif _in_search_for_infinities():
            value = 0.0 if tensor.is_floating_point() else 0
        elif (count := choices.each(tensor)) is not None:
            value = count
        else:
            value = 1.0 if tensor.is_floating_point() else 1
        self.note("a value of a tensor", value)
        return value

    def copy(self, tensor: Tensor, dtype: torch.dtype | None = None) -> Tensor:
        """The tensor on the host: known values, or guesses."""
        known = known_values(tensor)
        dtype = dtype or tensor.dtype
        if known is not None:
            return known.to(dtype)
        guess = 0 if tensor.dtype == torch.bool else 1
        said = "all ones" if guess else "all False"
        if (count := choices.each(tensor)) is not None:
            guess, said = count, f"all {count}"
        self.note("a copy of a tensor on the host", said)
        return torch.full(tensor.shape, guess, dtype=dtype, device="cpu")


def keep_values(tensor: Tensor, values: Tensor, *, written: bool = False) -> None:
    """Notes the values of a tensor on the device that came from the host.

    Args:
        tensor: The tensor on the device.
        values: Its values.
        written: An operator that writes to it is on its way, and counts as one more version.
    """
    if values.numel() > MOST_KNOWN or values.is_floating_point() or tensor.is_inference():
        return
    tensor._stalloc_known = (values.detach().clone(), tensor._version + written)  # type: ignore[attr-defined]


def known_values(tensor: Tensor) -> Tensor | None:
    """The values of a tensor that nothing has written to since they were known."""
    values, version = getattr(tensor, "_stalloc_known", (None, -1))
    return values if version >= 0 and tensor._version == version else None


def _of_gradient_scaler() -> float | None:
    """The answer to `GradScaler`, which must not find infinities, or None if it is not it."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None:
        if frame.f_code.co_filename.endswith("grad_scaler.py"):
            return 65536.0 if frame.f_code.co_name == "get_scale" else 0.0
        frame = frame.f_back
    return None


def _in_search_for_infinities() -> bool:
    """True if a framework reads whether gradients overflow, which would skip the step."""
    frame: FrameType | None = sys._getframe(2)
    for _ in range(_CALLERS):
        frame = None if frame is None else frame.f_back
        if frame is not None and any(part in frame.f_code.co_name for part in _SEARCHES):
            return True
    return False


_SEARCHES = ("overflow", "inf_or_nan", "check_for_nan", "found_inf")
_CALLERS = 8


def script_line() -> str:
    """The line of the script, or of a library it uses, that runs, as in `train.py:57`."""
    frame: FrameType | None = sys._getframe(1)
    library = ""
    while frame is not None:
        line = line_of(frame.f_code.co_filename, frame.f_lineno)
        if line and not _is_library(frame.f_code.co_filename):
            return f"{line} (in {library})" if library else line
        library = library or line
        frame = frame.f_back
    return library or "unknown"


def line_of(file: str, line: int) -> str:
    """A line in a few characters; empty for stalloc's, torch's and Python's own."""
    if file.startswith("<") or file.startswith(f"{_OWN}/") or file.startswith(f"{_TORCH}/"):
        return ""
    path = Path(file)
    if path.is_relative_to(_PYTHON) and "site-packages" not in path.parts:
        return ""
    parts = path.parts
    if "site-packages" in parts:
        first = len(parts) - parts[::-1].index("site-packages")
        return f"{'/'.join(parts[first:])}:{line}"
    return f"{path.name}:{line}"


def _is_library(file: str) -> bool:
    return "site-packages" in file


_PYTHON: Any = Path(sys.modules["os"].__file__ or "/").resolve().parent
