"""Columns of whole numbers, small enough to travel inside a page.

Most columns are multiples of some number (addresses of 512) or climb slowly (ticks), so each is
stored as `base + scale * stored`, or as the sum of such steps, in the narrowest type that holds it;
what is left of the redundancy, deflate removes. 300,000 requests take about 3 MB. The page's
`data.js` is the other half.
"""

from __future__ import annotations

import base64
import zlib
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

_LEVEL = 6  # of deflate: higher ones take longer and save little


@dataclass(frozen=True, slots=True)
class Packed:
    """Columns in one piece of text.

    Attributes:
        manifest: For each column what it takes to read it back: `type`, `offset` in bytes,
            `length`, `base`, `scale`, and whether it is `steps` to be summed up.
        text: Base64 of deflated bytes.
    """

    manifest: dict[str, dict[str, object]]
    text: str


def pack(columns: Mapping[str, npt.ArrayLike]) -> Packed:
    """Packs columns of integers, each of any length."""
    manifest: dict[str, dict[str, object]] = {}
    pieces: list[bytes] = []
    offset = 0
    for name, values in columns.items():
        entry, content = _encoded(np.asarray(values, dtype=np.int64))
        manifest[name] = entry | {"offset": offset}
        # Typed arrays have to begin at a multiple of their width.
        content += bytes(-len(content) % 8)
        pieces.append(content)
        offset += len(content)
    packed = zlib.compress(b"".join(pieces), _LEVEL)
    return Packed(manifest, base64.b64encode(packed).decode("ascii"))


def _encoded(values: npt.NDArray[np.int64]) -> tuple[dict[str, object], bytes]:
    steps = _climbs(values)
    stored = np.diff(values, prepend=0) if steps else values
    base = int(stored.min()) if len(stored) else 0
    # Unsigned: the distance between two signed numbers may need all 64 bits.
    distance = stored.astype(np.uint64) - np.uint64(base % (1 << 64))
    scale = max(int(np.gcd.reduce(distance)) if len(distance) else 1, 1)
    distance //= np.uint64(scale)
    top = int(distance.max(initial=0))
    entry: dict[str, object] = {"length": len(values), "base": base, "scale": scale}
    if steps:
        entry["steps"] = True
    for kind, dtype in (("u8", "<u1"), ("u16", "<u2"), ("u32", "<u4")):
        if top <= np.iinfo(dtype).max:
            return entry | {"type": kind}, distance.astype(dtype).tobytes()
    return entry | {"type": "f64"}, distance.astype("<f8").tobytes()


def _climbs(values: npt.NDArray[np.int64]) -> bool:
    """True if its steps are smaller than its values, and all of them fit."""
    if len(values) < 2 or max(abs(int(values[0])), abs(int(values[-1]))) >= 1 << 62:
        return False
    return bool(np.all(values[1:] >= values[:-1]))
