"""The table of a run: states by outcomes."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from conformance.comparison import Difference
from conformance.states import State

HEADINGS = ("state", "ran", "passed", "failed", "skipped", "served", "moved", "differ", "listed")
LEGEND = """\
"Failed" counts crashes and tests that were not done in time. A state does not run what a state
without stalloc skipped or did not finish before. "Served": tests in which a pool of stalloc served
a request. "Moved": tests during which memory moved within a pool. "Differ": tests whose outcome is
not the baseline's; "listed": those of them that exceptions.toml gives a reason for. Compat mode may
pass more than a plain pluggable allocator.
"""


def progress(line: str) -> None:
    """Says what the run does."""
    print(f"test-conformance: {line}", file=sys.stderr, flush=True)


@dataclass(frozen=True)
class Table:
    """The findings of a run."""

    title: str
    states: Sequence[State]
    outcomes: Mapping[str, Mapping[str, Mapping[str, Any]]]
    differences: set[Difference]
    exceptions: Mapping[Difference, str]
    unsteady: set[Difference]  # different at first, and not when run again
    made: str = ""  # how the run was made

    def rows(self) -> list[tuple[str, ...]]:
        """A row for each state."""
        rows = []
        for state in self.states:
            answers = self.outcomes[state.name].values()
            count = Counter(answer["outcome"] for answer in answers)
            ours = {d for d in self.differences if d.state == state.name}
            figures = (
                len(answers),
                count["passed"],
                count["failed"] + count["crashed"] + count["timeout"],
                count["skipped"],
                *(
                    sum(answer.get(figure, 0) > 0 for answer in answers) if state.plan else ""
                    for figure in ("served", "moves")
                ),
                len(ours) if state.baseline else "",
                len(ours & self.exceptions.keys()) if state.baseline else "",
            )
            rows.append((state.name, *map(str, figures)))
        return rows

    def show(self, problems: Sequence[str]) -> None:
        """Prints the table, and each problem with the last line of the test's log."""
        widths = [max(map(len, column)) for column in zip(HEADINGS, *self.rows(), strict=True)]
        print(self.title)
        for row in (HEADINGS, *self.rows()):
            first, *rest = (cell.rjust(width) for cell, width in zip(row, widths, strict=True))
            print(first.strip().ljust(widths[0]), *rest, sep="  ")
        for difference in sorted(self.unsteady):
            print(f"unsteady, the same when run again: {difference}")
        for problem in problems:
            print(f"error: {problem}")
        for difference in sorted(self.differences - self.exceptions.keys()):
            answer = self.outcomes[difference.state][difference.test]
            print(f"  {difference}: {answer['outcome']}: {answer['detail']}")
        print(f"{len(problems)} problems")

    def write(self, path: Path) -> None:
        """Writes the table as Markdown."""
        lines = [
            f"# Conformance: {self.title}\n",
            LEGEND,
            "| " + " | ".join(HEADINGS) + " |",
            "|---" + "|--:" * (len(HEADINGS) - 1) + "|",
            *("| " + " | ".join(row) + " |" for row in self.rows()),
            f"\n{self.made}\n\n## Tests that differ\n",
            *self._different(),
        ]
        path.write_text("\n".join(lines) + "\n")

    def _different(self) -> list[str]:
        """The tests that differ, with their states and reasons, or that there is none."""
        states: dict[tuple[str, str], list[str]] = {}  # by test and reason
        for d in sorted(self.differences):
            reason = " ".join(self.exceptions.get(d, "No reason is listed.").split())
            states.setdefault((d.test, reason), []).append(d.state)
        lines = [
            f"- `{test}` ({'; '.join(where)}). {reason}" for (test, reason), where in states.items()
        ]
        lines += [
            f"- unsteady: `{d.test}` ({d.state}) agreed when run again" for d in self.unsteady
        ]
        return lines or ["None."]
