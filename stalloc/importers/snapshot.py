"""Memory snapshots of PyTorch: the files of `torch.cuda.memory._dump_snapshot`.

A snapshot holds what was allocated when it was taken (`segments`, made of blocks) and, where
`_record_memory_history` was on, what happened before (`device_traces`): a ring buffer, whose
beginning may have been overwritten. Layouts since 2.1 differ little, and by keys that are there or
not.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn, cast

from stalloc.errors import TraceError
from stalloc.importers.annotations import Annotation, hint_of, mark
from stalloc.importers.frames import Stacks
from stalloc.importers.history import LARGEST, Block, History
from stalloc.importers.phases import Hint
from stalloc.importers.pickles import shown, word

_ACTIVE = {"active_allocated", "active_pending_free", "active_awaiting_free"}
_GROWS = {"segment_alloc", "segment_map"}
_SHRINKS = {"segment_free", "segment_unmap"}
_IGNORED = {"free_requested", "snapshot", "oom", "user_defined", "unmapping"}
_WORD = (1 << 64) - 1  # the largest address
_LATEST = 1 << 100  # in microseconds: no clock gets there, and no arithmetic fails before
_INTERVALS = 16  # of roundup_power2_divisions
_REPORT_EVERY = 1 << 14  # events

Progress = Callable[[float], object]


class Snapshot:
    """A snapshot, checked as far as possible without reading its events.

    Attributes:
        devices: The number of recorded allocations by device.
    """

    def __init__(self, content: Any, source: str) -> None:
        self._source = source
        if isinstance(content, list) and all(_is_segment(entry) for entry in content):
            content = {"segments": content}  # torch.cuda.memory_snapshot()
        if not isinstance(content, Mapping) or "segments" not in content:
            raise TraceError(
                f"{source}: no memory snapshot: a dictionary with 'segments' and 'device_traces' "
                f"is expected, and this pickle holds {_described(content)}"
            )
        self._segments = self._list(content, "segments")
        self._traces = self._list(content, "device_traces")
        self._annotations = self._list(content, "external_annotations")
        settings = content.get("allocator_settings", {})
        self._settings = settings if isinstance(settings, Mapping) else {}
        self.devices: dict[int, int] = {}
        for device, events in enumerate(self._traces):
            if not isinstance(events, list):
                self._fail(f"device_traces[{device}]", "expected a list of events")
            count = sum(isinstance(e, Mapping) and e.get("action") == "alloc" for e in events)
            if count:
                self.devices[device] = count
        if not self.devices:
            frees = sum(map(len, self._traces))
            if frees:
                raise TraceError(
                    f"{source}: the history lists no allocation, only other events ({frees:,}); "
                    "call torch.cuda.memory._record_memory_history() before the iterations of "
                    "interest, with enough max_entries for them"
                )
            raise TraceError(
                f"{source}: the snapshot holds no history of allocations; call "
                "torch.cuda.memory._record_memory_history() before the iterations of interest, "
                "and _dump_snapshot() after them"
            )

    def history(self, device: int, progress: Progress | None = None) -> tuple[History, list[int]]:
        """The events of a device, and before which of them profiler steps begin or end."""
        events = self._traces[device]
        history = History(f"cuda:{device}")
        stacks = Stacks()
        times: list[float] = []
        reserved = lowest = highest = 0
        pending: dict[int, str] = {}
        unknown: Counter[str] = Counter()
        freed = self._freeing_action(events, history)
        for row, event in enumerate(events):
            if progress is not None and row % _REPORT_EVERY == 0:
                progress(row / len(events))
            place = f"device_traces[{device}][{row}]"
            if not isinstance(event, Mapping):
                self._fail(place, "expected an event")
            action = word(event.get("action"))
            if action in ("alloc", freed):
                address = self._number(event, "addr", place, _WORD)
                size = self._number(event, "size", place, LARGEST)
                stream = self._number(event, "stream", place, _WORD)
                pending.pop(address, None)
                hint, site = Hint.NONE, -1
                if action == "alloc":
                    hint, site = self._stack(stacks, event, place)
                history.add(action == "alloc", address, size, stream, hint, site)
                times.append(self._time(event, place))
            elif action == "free_requested":
                pending[self._number(event, "addr", place, _WORD)] = place
            elif action in _GROWS or action in _SHRINKS:
                size = self._number(event, "size", place, LARGEST)
                reserved += size if action in _GROWS else -size
                lowest, highest = min(lowest, reserved), max(highest, reserved)
            elif not isinstance(event.get("action"), str):
                self._fail(f"{place}.action", f"expected a word, found {action}")
            elif action not in _IGNORED:
                unknown[action] += 1  # of a torch that is newer than this
        history.names = stacks.names
        self._add_segments(history, device, stacks, reserved, lowest, highest)
        if pending:
            history.assumptions.append(
                f"{len(pending):,} requests wait for another stream to be freed: they are live to "
                "the end"
            )
        for action, count in unknown.items():
            history.assumptions.append(
                f"{count:,} events of the kind {shown(action)} are not known here: ignored"
            )
        self._read_stacks(history, stacks)
        marks = mark(self._annotations_of(device), times, history.hints, history.assumptions)
        return history, marks

    def _freeing_action(self, events: Sequence[Any], history: History) -> str:
        """The events that end a lifetime: torch can leave some kinds out."""
        found = {e.get("action") for e in events if isinstance(e, Mapping) and _is_action(e)}
        if "free_completed" in found or "free_requested" not in found:
            return "free_completed"
        history.assumptions.append(
            "the history has requested and no completed frees: a block that waits for another "
            "stream counts as freed at once"
        )
        return "free_requested"

    def _add_segments(
        self,
        history: History,
        device: int,
        stacks: Stacks,
        reserved: int,
        lowest: int,
        highest: int,
    ) -> None:
        """The blocks that are live at the end, and the bytes that torch held."""
        held = pools = 0
        last = dict(zip(history.addresses, history.allocates, strict=True))
        missing = {a for a, allocates in last.items() if allocates}
        for row, segment in enumerate(self._segments):
            place = f"segments[{row}]"
            if not isinstance(segment, Mapping):
                self._fail(place, "expected a segment")
            if segment.get("device", device) != device:
                continue
            held += self._number(segment, "total_size", place, _WORD)
            pools += segment.get("segment_pool_id", (0, 0)) not in ((0, 0), [0, 0])
            stream = self._number(segment, "stream", place, _WORD, default=0)
            address = self._number(segment, "address", place, _WORD)
            for index, block in enumerate(self._list(segment, "blocks", place)):
                at = f"{place}.blocks[{index}]"
                if not isinstance(block, Mapping):
                    self._fail(at, "expected a block")
                size = self._number(block, "size", at, _WORD)
                if word(block.get("state")) in _ACTIVE:
                    where = self._number(block, "address", at, _WORD, default=address)
                    missing.discard(where)
                    _, site = self._stack(stacks, block, at)
                    asked = self._asked(block, at, size)
                    history.live.append(Block(where, asked, stream, site))
                address += size
        if missing and self._segments:
            history.assumptions.append(
                f"{len(missing):,} requests are live in the history and not in the segments: they "
                "count as live to the end"
            )
        if pools:
            history.assumptions.append(
                f"{pools} segments belong to private pools (CUDA graphs): their requests are taken "
                "like all others"
            )
        self._note_reserved(history, held, reserved, lowest, highest)

    def _note_reserved(
        self, history: History, held: int, reserved: int, lowest: int, highest: int
    ) -> None:
        start = held - reserved
        if self._segments:
            if start + lowest < 0:
                history.assumptions.append(
                    "segments and history disagree on the memory of torch: only the segments count"
                )
                highest = reserved
            history.info["torch_reserved"] = str(start + highest)
        for name in ("expandable_segments", "max_split_size", "garbage_collection_threshold"):
            if name in self._settings:
                history.info[f"torch_{name}"] = word(self._settings[name])
        divisions = self._settings.get("roundup_power2_divisions")
        if isinstance(divisions, Mapping) and any(divisions.values()):
            # By the lower end of their interval, in MiB: 1, 2, 4 and so on.
            history.info["torch_roundup_power2_divisions"] = ",".join(
                word(divisions.get(str(1 << power), 0)) for power in range(_INTERVALS)
            )
        conf = self._settings.get("PYTORCH_CUDA_ALLOC_CONF")
        if conf:
            history.info["PYTORCH_CUDA_ALLOC_CONF"] = word(conf)

    def _read_stacks(self, history: History, stacks: Stacks) -> None:
        """The engine's threads have no Python: without frames of C++ their stacks are empty."""
        if not stacks.python:
            history.assumptions.append(
                "the recording has no stacks: forward and backward are told from annotations alone"
            )
        elif not stacks.compiled:
            empty = [
                row
                for row, (hint, site) in enumerate(zip(history.hints, history.sites, strict=True))
                if history.allocates[row] and hint == Hint.NONE and site < 0
            ]
            for row in empty:
                history.hints[row] = Hint.BACKWARD
            if empty:
                history.assumptions.append(
                    f"{len(empty):,} allocations without a stack are taken for those of backward, "
                    "which runs in threads of its own (stacks='all' would tell)"
                )

    def _annotations_of(self, device: int) -> list[Annotation]:
        """Begin and end of each name, matched like brackets."""
        result: list[Annotation] = []
        open_: dict[str, list[float]] = {}
        for row, event in enumerate(self._annotations):
            place = f"external_annotations[{row}]"
            if not isinstance(event, Mapping):
                self._fail(place, "expected an annotation")
            if event.get("device", device) != device:
                continue
            name, time = word(event.get("name", "")), self._time(event, place)
            if event.get("stage") == "START":
                open_.setdefault(name, []).append(time)
            elif open_.get(name):
                result.append(Annotation(name, open_[name].pop(), time))
            else:  # it began before the first event
                result.append(Annotation(name, float("-inf"), time))
        for name, begins in open_.items():
            result.extend(Annotation(name, begin, float("inf")) for begin in begins)
        return result

    def _stack(self, stacks: Stacks, entry: Mapping[str, Any], place: str) -> tuple[Hint, int]:
        try:
            hint, site = stacks.read(entry.get("frames", ()))
        except TraceError as error:
            self._fail(f"{place}.frames", str(error))
        metadata = entry.get("user_metadata")
        if metadata and isinstance(metadata, str):
            told = hint_of(metadata)
            return (told if told != Hint.NONE else hint), stacks.site(metadata)
        return hint, site

    def _asked(self, block: Mapping[str, Any], place: str, size: int) -> int:
        if "requested_size" in block:
            return self._number(block, "requested_size", place, LARGEST)
        past = block.get("history")  # of 2.0 and 2.1
        if isinstance(past, list) and past and isinstance(past[0], Mapping):
            return self._number(past[0], "real_size", place, LARGEST, default=size)
        return size

    def _number(
        self, entry: Mapping[str, Any], key: str, place: str, most: int, default: int | None = None
    ) -> int:
        value = entry.get(key, default)
        if type(value) is not int:
            self._fail(f"{place}.{key}", f"expected a whole number, found {shown(value)}")
        if not 0 <= value <= most:
            self._fail(f"{place}.{key}", f"{shown(value)} is not between 0 and {most}")
        return value

    def _time(self, entry: Mapping[str, Any], place: str) -> float:
        value = entry.get("time_us", 0)
        if type(value) not in (int, float) or not -_LATEST < value < _LATEST:
            self._fail(f"{place}.time_us", f"expected a time, found {shown(value)}")
        return cast("float", value)

    def _list(self, entry: Mapping[str, Any], key: str, place: str = "") -> Sequence[Any]:
        value = entry.get(key, [])
        if not isinstance(value, list):
            self._fail(f"{place}.{key}".lstrip("."), f"expected a list, found {shown(value)}")
        return cast("Sequence[Any]", value)

    def _fail(self, place: str, what: str) -> NoReturn:
        raise TraceError(f"{self._source}: {place}: {what}")


def _is_action(event: Mapping[str, Any]) -> bool:
    return event.get("action") in ("free_completed", "free_requested")


def _is_segment(entry: Any) -> bool:
    return isinstance(entry, Mapping) and "blocks" in entry


def _described(content: Any) -> str:
    if not isinstance(content, (Mapping, Sequence)) or isinstance(content, (str, bytes)):
        return f"a {type(content).__name__}"
    if not isinstance(content, Mapping):
        return f"a {type(content).__name__} of {len(content):,}"
    keys = ", ".join(shown(key) for key in list(content)[:4])
    return f"one with {keys or 'nothing in it'}" + (", ..." if len(content) > 4 else "")
