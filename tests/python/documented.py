"""What docs/commands.md says of the JSON that commands print."""

from __future__ import annotations

import re
from pathlib import Path

_PAGE = Path(__file__).resolve().parents[2] / "docs" / "commands.md"


def documented_keys() -> dict[str, set[str]]:
    """The keys of each object that the page's tables name, by its name there, without Markdown.

    What "those of a plan" stands for is in them.
    """
    section = _PAGE.read_text().split("## What `--json` prints")[1].split("\n## ")[0]
    rows = re.findall(r"^\| ([^|]+) \| `(\w+(?:, \w+)*)`(.*?) \|$", section, re.MULTILINE)
    keys = {name.replace("`", ""): set(listed.split(", ")) for name, listed, _ in rows}
    for name, _, rest in rows:
        if "those of a plan" in rest:
            keys[name.replace("`", "")] |= keys["a plan"]
    return keys
