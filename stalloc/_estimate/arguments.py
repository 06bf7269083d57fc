"""Options in a script's command line that tell the batch or the length of its sequences."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

ROWS = (
    "per_device_train_batch_size",
    "train_batch_size",
    "micro_batch_size",
    "training.local_batch_size",
    "batch_size",
    "batch",
    "bs",
    "b",
)
"""Options that tell the batch, in the order of preference, with `_` for `-`."""

TOKENS = (
    "seq_length",
    "seq_len",
    "sequence_length",
    "max_seq_length",
    "max_seq_len",
    "max_length",
    "block_size",
    "context_length",
    "bptt",
)
"""Options that tell how many tokens a sequence has."""


NAMES = {"rows": ROWS, "tokens": TOKENS}
"""The options of each extent."""


@dataclass(frozen=True, slots=True)
class Option:
    """An option of a script with a number for its value, in one argument or two.

    Attributes:
        name: As it is written, with its dashes.
        value: The number.
        index: The argument that has the value.
    """

    name: str
    value: int
    index: int

    def changed(self, arguments: Sequence[str], value: int) -> list[str]:
        """The script's arguments with another value."""
        result = list(arguments)
        before, equals, _ = result[self.index].rpartition("=")
        result[self.index] = f"{before}{equals}{value}"
        return result


def find(arguments: Sequence[str], names: Sequence[str]) -> Option | None:
    """The option of one of these names, the earlier ones first; None if none is given."""
    for wanted in names:
        for index, text in enumerate(arguments):
            written, equals, value = text.partition("=")
            at = index
            if not equals and written.startswith("-"):
                at += 1
                value = arguments[at] if at < len(arguments) else ""
            name = written.lstrip("-").replace("-", "_")
            if wanted in (name, name.rpartition(".")[2]) and value.isdecimal():
                return Option(written, int(value), at)
    return None


def divided(arguments: Sequence[str], number: int) -> list[str] | None:
    """A script's arguments with the batch divided; None if none tells it, or it is too small."""
    option = find(arguments, ROWS)
    if option is None or option.value % number:
        return None
    return option.changed(arguments, option.value // number)


def steps(value: int) -> list[tuple[int, int, int]]:
    """Values by which size laws are told, in the order in which to try them.

    Their steps are equal. The first ones are not above the one that is given, with which the script
    is known to run. Larger ones serve where a kernel treats small sizes in another way.
    """
    return [(2 * step, 3 * step, 4 * step) for step in (value // 4, value // 2, value) if step]
