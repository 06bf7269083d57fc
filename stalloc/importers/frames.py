"""Finds the phase and the call site of a request in its stack.

Stacks come innermost first, of frames with `name`, `filename` and `line`. Snapshots share them
between events, so that what was found for one is kept.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from stalloc.errors import TraceError
from stalloc.importers.phases import Hint
from stalloc.importers.pickles import word

_ENGINE = ("torch::autograd::Engine::", "torch::autograd::python::PythonEngine::")
_NODE = re.compile(r"torch::autograd::(?:generated::)?(?:python::)?(\w+)::apply\(")
# Files of torch, which call the user's code: by folder, and by name if snapshots have cut paths.
_LIBRARY = ("/torch/", "/site-packages/", "<frozen ", "/lib/python3")
_LIBRARY_FILES = {
    *("module.py", "container.py", "linear.py", "functional.py", "normalization.py", "_tensor.py"),
    *("graph.py", "function.py", "optimizer.py", "_contextlib.py", "checkpoint.py", "sparse.py"),
    *("activation.py", "dropout.py", "conv.py", "batchnorm.py", "loss.py", "_functional.py"),
}
_LONGEST = 200  # characters of a call site's name


class Stacks:
    """Reads the stacks of one snapshot."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.compiled = False
        """True if any stack has C++ frames."""
        self.python = False
        """True if any stack has Python frames."""
        self._sites: dict[str, int] = {}
        self._stacks: dict[int, tuple[Any, Hint, int]] = {}
        self._frames: dict[int, tuple[Any, Hint, str, bool]] = {}

    def site(self, name: str) -> int:
        """The number of a call site."""
        # Half a surrogate pair is no text, and yet a string may hold it.
        name = name[:_LONGEST].encode(errors="replace").decode()
        if name not in self._sites:
            self._sites[name] = len(self.names)
            self.names.append(name)
        return self._sites[name]

    def read(self, frames: Any) -> tuple[Hint, int]:
        """A stack's hint and call site.

        Raises:
            TraceError: It is no frame.
        """
        if not isinstance(frames, Sequence) or isinstance(frames, str):
            raise TraceError(f"expected a list of frames, found {type(frames).__name__}")
        if not frames:
            return Hint.NONE, -1
        known = self._stacks.get(id(frames))
        if known is None:
            # The key is an address: its object must stay alive.
            known = self._stacks[id(frames)] = (frames, *self._read(frames))
        return known[1], known[2]

    def _read(self, frames: Sequence[Any]) -> tuple[Hint, int]:
        hint = Hint.PLAIN
        site = outer = ""
        for frame in frames:
            known = self._frames.get(id(frame))
            if known is None:
                known = self._frames[id(frame)] = (frame, *self._read_frame(frame))
            _, found, name, library = known
            if found == Hint.BACKWARD or (found != Hint.PLAIN and hint == Hint.PLAIN):
                hint = found
            if name and library:
                outer = outer or name
            elif name:
                site = site or name
        site = site or outer
        return hint, self.site(site) if site else -1

    def _read_frame(self, frame: Any) -> tuple[Hint, str, bool]:
        """Hint, name as a call site ("" for none), and whether it is torch's own."""
        if not isinstance(frame, Mapping):
            raise TraceError(f"expected a frame, found {type(frame).__name__}")
        name, filename = word(frame.get("name", "")), word(frame.get("filename", ""))
        if not filename.endswith(".py") and not filename.startswith("<"):
            if "::" in name:
                self.compiled = True
            if name.startswith(_ENGINE):
                return Hint.BACKWARD, "", True
            node = _NODE.match(name)
            return Hint.PLAIN, node[1] if node else "", True
        self.python = True
        base = filename.rpartition("/")[2]
        hint = Hint.PLAIN
        if name in {"backward", "_engine_run_backward"}:
            hint = Hint.BACKWARD
        elif name == "zero_grad":
            hint = Hint.OTHER
        elif "/torch/optim/" in filename or base == "optimizer.py":
            hint = Hint.OPTIMIZER
        library = any(part in filename for part in _LIBRARY) or base in _LIBRARY_FILES
        return hint, f"{base}:{word(frame.get('line', 0))} {name}", library
