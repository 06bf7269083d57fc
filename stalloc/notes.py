"""What a trace or a plan has noted of its run, for people to read."""

from __future__ import annotations

from collections.abc import Mapping

from stalloc import _core

_SIZES = ("torch_reserved", "torch_max_split_size")
_LONGEST = 18  # digits of a size; more is none


def readable(info: Mapping[str, str]) -> tuple[dict[str, str], list[str]]:
    """The notes with sizes as people read them, and apart from them what was assumed."""
    facts = dict(info)
    assumptions = [text for text in facts.pop("assumptions", "").split("\n") if text]
    for name in _SIZES:
        text = facts.get(name, "")
        if text.isascii() and text.isdecimal() and len(text) <= _LONGEST:
            facts[name] = f"{_core.format_bytes(int(text))} ({int(text):,} B)"
    return facts, assumptions
