"""The info of a trace or a plan, for people to read."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from stalloc import _core
from stalloc.dynamic import DEFAULT_DYNAMIC

_SIZES = ("gpu_limit", "torch_reserved", "torch_max_split_size", "torch_max_non_split_rounding")
_LISTS = ("dynamic", "inputs", "other_models")
_LONGEST = 18  # digits of a size; a longer number is none
_SHOWN = 3  # of a list's entries


def readable(info: Mapping[str, str]) -> tuple[dict[str, str], list[str]]:
    """The info with readable sizes and lists, and the importer's assumptions."""
    facts = dict(info)
    assumptions = [text for text in facts.pop("assumptions", "").split("\n") if text]
    for name in _SIZES:
        size = size_in(facts, name)
        if size is not None:
            facts[name] = f"{_core.format_bytes(size)} ({size:,} B)"
    for name in _LISTS:
        entries = _entries(facts.get(name, ""))
        if entries is not None:
            facts[name] = listed(entries)
            if tuple(entries) == DEFAULT_DYNAMIC:
                facts[name] = f"the default: {len(entries)} names of routed experts"
    return facts, assumptions


def size_in(info: Mapping[str, str], name: str) -> int | None:
    """A number of bytes in the info; None if it is missing, or no number."""
    text = info.get(name, "")
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= _LONGEST else None


def listed(entries: Sequence[str]) -> str:
    """The first entries and the number of the rest."""
    if not entries:
        return "none"
    rest = len(entries) - _SHOWN
    return ", ".join(entries[:_SHOWN]) + (f" and {rest:,} more" if rest > 0 else "")


def _entries(text: str) -> list[str] | None:
    """The strings of a JSON array; None if the text is anything else."""
    try:
        entries = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(entries, list) or not all(isinstance(entry, str) for entry in entries):
        return None
    return entries
