"""The sub-commands of the command line, one a module."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Protocol

from stalloc.commands import cache, diff, fits, import_, inspect, plan, replay, report, run

if TYPE_CHECKING:
    Subparsers = argparse._SubParsersAction[argparse.ArgumentParser]


class Command(Protocol):
    """The interface of each module."""

    def add_parser(self, subparsers: Subparsers) -> argparse.ArgumentParser:
        """Adds the sub-command's parser."""

    def main(self, args: argparse.Namespace) -> int:
        """Runs it. Returns the exit code."""


COMMANDS: tuple[Command, ...] = (
    run,
    fits,
    plan,
    import_,
    inspect,
    replay,
    diff,
    report,
    cache,
)
"""In the order in which `--help` lists them."""
