"""The live curve, the live requests at a tick, and the largest call sites."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import asdict

from stalloc import _core
from stalloc.commands.output import print_table
from stalloc.errors import StallocError
from stalloc.liveness import Holder, Liveness

_WIDTH = 80  # columns, including the labels
_ROWS = 8
_FAR = 2  # times the curve's height
_SAMPLES = 512  # of the curve in JSON
_LETTERS = {"forward": "f", "backward": "b", "optimizer": "o", "unplanned": "-"}


def moment(liveness: Liveness, at: str, source: str) -> int:
    """The tick that `--at` names: `peak`, or a number from 0.

    Raises:
        StallocError: There is no such tick.
    """
    if at == "peak":
        return liveness.peak
    if int(at) >= max(liveness.period, 1):
        raise StallocError(
            f"{source}: there is no tick {at}; the iteration has {liveness.period:,}, from 0 "
            "(--at peak takes the one with most live)"
        )
    return int(at)


def summary(liveness: Liveness, tick: int, top: int) -> dict[str, object]:
    """The same for programs."""
    holders = liveness.holders_at(tick)
    return {
        "period": liveness.period,
        "curve": liveness.sampled(min(_SAMPLES, max(liveness.period, 1))),
        "at": {
            "tick": tick,
            "phase": liveness.phase_at(tick),
            "live": liveness.live_at(tick),
            "requests": sum(holder.requests for holder in holders),
            "holders": [asdict(holder) for holder in holders[:top]],
        },
        "sites": [asdict(holder) for holder in liveness.holders()[:top]],
    }


def show(liveness: Liveness, tick: int, top: int) -> None:
    """Prints all three."""
    if not len(liveness.ticks):
        return
    print("\nLive in one iteration")
    for line in draw(liveness):
        print(line)
    live, holders = liveness.live_at(tick), liveness.holders_at(tick)
    what = "most" if tick == liveness.peak else "so much"
    title = (
        f"Live at tick {tick:,} ({liveness.phase_at(tick)}), where {what} is: "
        f"{_core.format_bytes(live)}"
    )
    _print_holders(title, holders, top)
    by = "by call site" if liveness.named else "by phase"
    _print_holders(f"Allocated in one iteration, {by}", liveness.holders(), top)


def draw(liveness: Liveness, limit: int | None = None) -> list[str]:
    """The curve as lines of text, the phases under it.

    Args:
        liveness: The curve.
        limit: Bytes at which a dashed line is drawn; None draws none. If it is far above the curve,
            the heights between them are left out, and three dots are in their place.
    """
    blocks = " ▁▂▃▄▅▆▇█" if _speaks_unicode() else " ....####"
    most = max(liveness.live_at(liveness.peak), 1)
    near = limit is not None and limit <= _FAR * most
    top = max(most, limit) if limit is not None and near else most
    labels = {0: 0, _ROWS - 1: top, (round(most * _ROWS * 8 / top) - 1) // 8: most}
    dashed = -1
    if limit is not None and near:
        dashed = min(_ROWS - 1, limit * _ROWS // top)
        labels[dashed] = limit
    named = [*labels.values(), *((limit,) if limit is not None else ())]
    width = max(len(_core.format_bytes(value)) for value in named)
    columns = min(_WIDTH - width - len(" |"), max(liveness.period, 1))
    eighths = [round(value * _ROWS * 8 / top) for value in liveness.sampled(columns)]
    lines = []
    if limit is not None and not near:
        lines += [f"{_core.format_bytes(limit):>{width}} |{'-' * columns}", f"{'...':>{width}} |"]
    for row in reversed(range(_ROWS)):
        cells = [blocks[min(max(height - 8 * row, 0), 8)] for height in eighths]
        bar = "".join("-" if row == dashed and cell == " " else cell for cell in cells)
        label = _core.format_bytes(labels[row]) if row in labels else ""
        lines.append(f"{label:>{width}} |{bar}".rstrip())
    phases = "".join(
        _LETTERS.get(liveness.phase_at(column * liveness.period // columns).partition(" ")[0], ".")
        for column in range(columns)
    )
    lines.append(f"{'':>{width}}  {phases}")
    lines.append(f"{'':>{width}}  f forward, b backward, o optimizer, . other, - unplanned")
    return lines


def _print_holders(title: str, holders: Sequence[Holder], top: int) -> None:
    named = any(holder.site for holder in holders)
    columns = (*(("site",) if named else ()), "phase", "requests", "bytes", "largest")

    def row(holder: Holder) -> tuple[str, ...]:
        cells = (
            holder.phase,
            f"{holder.requests:,}",
            _core.format_bytes(holder.bytes),
            _core.format_bytes(holder.largest),
        )
        return (holder.site or "?", *cells) if named else cells

    print_table(title, columns, map(row, holders[:top]), text={"phase"})
    rest = holders[top:]
    if rest:
        total = _core.format_bytes(sum(holder.bytes for holder in rest))
        print(f"and {len(rest):,} more with {total} (--top)")


def _speaks_unicode() -> bool:
    return (sys.stdout.encoding or "").lower().replace("-", "") == "utf8"
