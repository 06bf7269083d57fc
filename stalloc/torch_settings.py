"""The settings of torch's allocator, as `PYTORCH_CUDA_ALLOC_CONF` has them.

The grammar is torch's own: `key:value` pairs, separated by commas. A replay models the settings
that decide where memory lies. Some change no figure (pinned memory, threads, locks). Those that
would change figures and have no model are refused: another backend, and a limit of memory.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from stalloc.replaying import (
    DIVISIONS,
    EXPANDABLE_SEGMENTS,
    GARBAGE_COLLECTION,
    MAX_SPLIT_SIZE,
    NON_SPLIT_ROUNDING,
)
from stalloc.trace import Trace

_INTERVALS = 16
_MIB = 1 << 20
_PAIR = re.compile(r"\s*([a-z0-9_]+)\s*:\s*(\[[^\]]*\]|[^,\[\]]*?)\s*(?:,|$)")

_LEAST = 20  # MiB; torch refuses a smaller max_split_size_mb or max_non_split_rounding_mb

WITHOUT_EFFECT = (
    "graph_capture_record_stream_reuse",
    "pinned_num_register_threads",
    "pinned_reserve_segment_size_mb",
    "pinned_use_background_threads",
    "pinned_use_cuda_host_register",
    "release_lock_on_cudamalloc",
    "release_lock_on_hipmalloc",
)
"""Settings that change no figure."""


def parse(text: str) -> dict[str, str]:
    """Reads settings.

    Returns:
        All settings by their name in a trace's `info`; torch's defaults where the text has none.

    Raises:
        ValueError: The text contains a setting that is unknown, malformed or without a model; the
            message names it.
    """
    info = {EXPANDABLE_SEGMENTS: "False"}
    info |= dict.fromkeys((MAX_SPLIT_SIZE, NON_SPLIT_ROUNDING, GARBAGE_COLLECTION, DIVISIONS), "")
    at = 0
    while at < len(text):
        found = _PAIR.match(text, at)
        if found is None:
            raise ValueError(f"{text[at:]!r}: not of the form key:value,key:value")
        at = found.end()
        key, value = found.groups()
        if key == "expandable_segments":
            if value not in ("True", "False"):
                raise ValueError(f"{key}: {value!r} is neither True nor False")
            info[EXPANDABLE_SEGMENTS] = value
        elif key == "max_split_size_mb":
            info[MAX_SPLIT_SIZE] = str(_mib(key, value) * _MIB)
        elif key == "max_non_split_rounding_mb":
            info[NON_SPLIT_ROUNDING] = str(_mib(key, value) * _MIB)
        elif key == "garbage_collection_threshold":
            if not re.fullmatch(r"0?\.[0-9]{1,18}", value) or not float(value):
                raise ValueError(f"{key}: {value!r} is not between 0 and 1")
            info[GARBAGE_COLLECTION] = value
        elif key == "roundup_power2_divisions":
            info[DIVISIONS] = ",".join(map(str, _divisions(key, value)))
        elif key == "backend":
            if value != "native":
                raise ValueError(f"{key}: {value!r} is another allocator, which has no model")
        elif key == "per_process_memory_fraction":
            raise ValueError(f"{key}: give the bytes that it allows as --capacity")
        elif key not in WITHOUT_EFFECT:
            raise ValueError(f"torch's allocator has no setting {key!r}")
    return info


def applied(trace: Trace, settings: Mapping[str, str]) -> Trace:
    """Gives the trace these settings instead of the recorded ones.

    The measured bytes of torch are removed if the settings differ from the recorded ones.
    """
    info = dict(trace.info)
    if any(_normal(info.get(name, "")) != _normal(value) for name, value in settings.items()):
        info.pop("torch_reserved", None)
    trace.info = {**info, **settings}
    return trace


def _normal(value: str) -> str:
    return "" if value in ("False", "None") or not value.strip("0.,") else value


def _mib(key: str, value: str) -> int:
    if not re.fullmatch(r"[0-9]{1,7}", value):
        raise ValueError(f"{key}: {value!r} is no number of MiB")
    if int(value) < _LEAST:
        raise ValueError(f"{key}: {value} is below {_LEAST}, the least that torch takes")
    return int(value)


def _divisions(key: str, value: str) -> list[int]:
    """The divisions of each interval: sizes from 1 MiB to 32 GiB, by powers of two."""
    if not value.startswith("["):
        return [_power(key, value)] * _INTERVALS
    result = [0] * _INTERVALS
    last = None
    for pair in value[1:-1].split(","):
        size, _, count = (part.strip() for part in pair.partition(":"))
        divisions = _power(key, count)
        if size == ">":
            first = 0 if last is None else last + 1
            result[first:] = [divisions] * (_INTERVALS - first)
            continue
        at = min(_power(key, size).bit_length() - 1, _INTERVALS - 1)
        if last is None:
            result[:at] = [divisions] * at
        result[at] = divisions
        last = at
    return result


def _power(key: str, value: str) -> int:
    if not re.fullmatch(r"[0-9]{1,7}", value) or int(value).bit_count() != 1:
        raise ValueError(f"{key}: {value!r} is no power of two")
    return int(value)
