"""The JSON keys that docs/commands.md documents."""

from __future__ import annotations

import re
from pathlib import Path

_PAGE = Path(__file__).resolve().parents[2] / "docs" / "commands.md"


def documented_keys() -> dict[str, set[str]]:
    """The keys of each object that the page's tables name, by its name there, without Markdown.

    "those of a plan" is expanded.
    """
    section = _PAGE.read_text().split("## JSON output")[1].split("\n## ")[0]
    rows = re.findall(r"^\| ([^|]+) \| `(\w+(?:, \w+)*)`(.*?) \|$", section, re.MULTILINE)
    keys = {name.replace("`", ""): set(listed.split(", ")) for name, listed, _ in rows}
    for name, _, rest in rows:
        if "those of a plan" in rest:
            keys[name.replace("`", "")] |= keys["a plan"]
    return keys
