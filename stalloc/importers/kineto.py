"""Kineto traces: `torch.profiler`'s export for Chrome, with `profile_memory=True`.

Memory events are instants called `[memory]`, with the address, the bytes (negative for a free) and
the device. Around them, on the same thread, lie the operators, modules and annotations that tell
what they are for. Sizes are those of torch's allocator, rounded already; streams are not told.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any, NoReturn

from stalloc.errors import TraceError
from stalloc.importers.annotations import Annotation, mark
from stalloc.importers.frames import Stacks
from stalloc.importers.history import LARGEST, History
from stalloc.importers.phases import Hint
from stalloc.importers.pickles import shown, word

_DEVICES = {0: "cpu", 1: "cuda"}
_ENGINE = "autograd::engine::evaluate_function"
_BACKWARD = re.compile(r"\w+Backward\d*$")
_MODULE = "nn.Module: "
_SCOPES = {"cpu_op", "user_annotation", "python_function", "Operator"}


class KinetoTrace:
    """A trace of the profiler, with its memory events by device.

    Attributes:
        devices: The number of recorded allocations by device.
    """

    def __init__(self, events: Iterable[Any], source: str) -> None:
        self._source = source
        self._memory: dict[tuple[int, int], list[tuple[float, int, Mapping[str, Any], str]]]
        self._memory = defaultdict(list)
        self._scopes: dict[str, list[tuple[float, float, str, str]]] = defaultdict(list)
        for row, event in enumerate(events):
            if isinstance(event, Mapping):
                self._add(row, event)
        self.devices = {
            device: allocations
            for device, instants in self._memory.items()
            if (allocations := sum(self._bytes(i[2], i[1]) > 0 for i in instants))
        }
        if not self.devices:
            raise TraceError(
                f"{source}: the trace holds no [memory] events; record it with "
                "torch.profiler.profile(profile_memory=True)"
            )

    def _add(self, row: int, event: Mapping[str, Any]) -> None:
        if event.get("name") == "[memory]":
            details = event.get("args")
            if not isinstance(details, Mapping):
                self._fail(row, "a [memory] event without 'args'")
            device = (
                self._number(details, "Device Type", row, 1 << 31),
                self._number(details, "Device Id", row, 1 << 31, least=-1),
            )
            self._memory[device].append(
                (self._time(event, "ts", row), row, details, word(event.get("tid")))
            )
        elif event.get("ph") == "X" and word(event.get("cat")) in _SCOPES:
            begin = self._time(event, "ts", row)
            duration = self._time(event, "dur", row) if "dur" in event else 0.0
            name = word(event.get("name", ""))
            self._scopes[word(event.get("tid"))].append(
                (begin, begin + duration, name, word(event["cat"]))
            )

    def name(self, device: tuple[int, int]) -> str:
        """A device as torch names it."""
        kind = _DEVICES.get(device[0], f"device{device[0]}")
        return kind if device[1] < 0 or kind == "cpu" else f"{kind}:{device[1]}"

    def history(self, device: tuple[int, int]) -> tuple[History, list[int]]:
        """The events of a device, and before which of them profiler steps begin or end."""
        history = History(self.name(device))
        stacks = Stacks()
        instants = sorted(self._memory[device], key=lambda i: i[:2])
        times = [instant[0] for instant in instants]
        places = self._places(instants)
        most = 0
        for (_, row, details, _), (hint, site) in zip(instants, places, strict=True):
            size = self._bytes(details, row)
            address = self._number(details, "Addr", row, (1 << 64) - 1)
            history.add(
                size >= 0,
                address,
                abs(size),
                0,
                hint if size > 0 else Hint.NONE,
                stacks.site(site) if site and size > 0 else -1,
            )
            reserved = details.get("Total Reserved", 0)
            most = max(most, reserved if type(reserved) is int else 0)
        history.names = stacks.names
        if most > 0:
            history.info["torch_reserved"] = str(most)
        history.assumptions.append(
            "a Kineto trace has no streams, and sizes rounded by torch: all requests count as "
            "requests of one stream, with the rounded sizes"
        )
        marks = mark(self._annotations(), times, history.hints, history.assumptions)
        return history, marks

    def _places(self, instants: list[Any]) -> list[tuple[Hint, str]]:
        """Hint and innermost module, or else operator, that each instant lies in."""
        result = [(Hint.NONE, "")] * len(instants)
        by_thread: dict[str, list[int]] = defaultdict(list)
        for index, instant in enumerate(instants):
            by_thread[instant[3]].append(index)
        for thread, indices in by_thread.items():
            scopes = sorted(self._scopes.get(thread, ()), key=lambda s: (s[0], -s[1]))
            open_: list[tuple[float, float, str, str]] = []
            next_ = 0
            for index in indices:
                time = instants[index][0]
                while next_ < len(scopes) and scopes[next_][0] <= time:
                    open_.append(scopes[next_])
                    next_ += 1
                # Scopes of a thread nest: an ended scope is never needed again.
                open_ = [scope for scope in open_ if scope[1] >= time]
                if open_:
                    result[index] = _place_in(open_)
        return result

    def _annotations(self) -> list[Annotation]:
        return [
            Annotation(name, begin, end)
            for scopes in self._scopes.values()
            for begin, end, name, category in scopes
            if category == "user_annotation"
        ]

    def _bytes(self, details: Mapping[str, Any], row: int) -> int:
        return self._number(details, "Bytes", row, LARGEST, least=-LARGEST)

    def _number(
        self, details: Mapping[str, Any], key: str, row: int, most: int, least: int = 0
    ) -> int:
        value = details.get(key)
        if type(value) is not int or not least <= value <= most:
            self._fail(row, f"'{key}' is no number between {least} and {most}: {shown(value)}")
        return value

    def _time(self, event: Mapping[str, Any], key: str, row: int) -> float:
        try:
            value = float(event[key])
        except (KeyError, TypeError, ValueError, OverflowError):
            value = math.nan
        if not math.isfinite(value):
            self._fail(row, f"'{key}' is no time: {shown(event.get(key))}")
        return value

    def _fail(self, row: int, what: str) -> NoReturn:
        raise TraceError(f"{self._source}: traceEvents[{row}]: {what}")


def _place_in(scopes: list[tuple[float, float, str, str]]) -> tuple[Hint, str]:
    hint = Hint.PLAIN
    module = operator = ""
    for _, _, name, category in scopes:  # outermost first
        if name.startswith(_ENGINE) or _BACKWARD.search(name):
            hint = Hint.BACKWARD
        if name.startswith(_MODULE):
            module = name.removeprefix(_MODULE)
        elif category in ("cpu_op", "Operator"):
            operator = name.removeprefix(_ENGINE).removeprefix(": ")
    return hint, module or operator
