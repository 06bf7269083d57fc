"""Result files as JSON with one row a line: small, and a changed row is one changed line."""

from __future__ import annotations

import json
from collections.abc import Mapping


def one_row_a_line(document: Mapping[str, object]) -> str:
    """The document's keys a line each; a list of objects has one object a line."""
    lines = []
    for key, value in document.items():
        text = json.dumps(value)
        if isinstance(value, list) and value:
            text = "[\n  " + ",\n  ".join(json.dumps(row) for row in value) + "\n ]"
        lines.append(f" {json.dumps(key)}: {text}")
    return "{\n" + ",\n".join(lines) + "\n}\n"
