"""The base of callbacks: a driver for each run, and classes that are made on demand.

A callback's class derives from a class of its framework, which its module must not import. So the
class is made once, when the module's attribute is first read.
"""

from __future__ import annotations

import contextlib
import functools
import os
import weakref
from importlib import metadata
from typing import Any

from stalloc.driver import Driver, Model
from stalloc.options import Options
from stalloc.ranks import Parallelism

# The callback whose driver is active, and its run: one a process.
_leader: tuple[weakref.ref[object], Callback] | None = None


class Callback:
    """Profiles, plans and serves the run of its trainer.

    Args:
        mode: As for `stalloc.options.Options`.
        folder: As for `stalloc.options.Options`.
        **options: The other fields of `stalloc.options.Options`.

    Raises:
        ValueError: As for `stalloc.options.Options`.
    """

    _package = ""

    def __init__(
        self,
        mode: str | None = None,
        folder: str | os.PathLike[str] | None = None,
        **options: Any,
    ) -> None:
        self._options = Options(mode, folder, **options)
        self._scopes = contextlib.ExitStack()
        self._driver = self._make({})

    @property
    def driver(self) -> Driver:
        """The driver of the current or last run."""
        return self._driver

    def finish(self) -> None:
        """Ends the profile or plan now; the run goes on. The end of a run does the same."""
        global _leader
        if _leader is not None and _leader[1] is self:
            _leader = None
        self._scopes.close()
        self._driver.finish()

    def _start(self, run: object, parallelism: Parallelism, model: Model | None) -> bool:
        """A run begins; False for a second callback of the same run, which does nothing."""
        global _leader
        if _leader is not None:
            at_work, leader = _leader
            if at_work() is run and leader is not self:
                self._driver = Driver(Options("off"))
                return False
            leader.finish()  # an exception ended its run
        _leader = (weakref.ref(run), self)
        self._driver = self._make(parallelism)
        self._driver.begin_iteration(model)
        return True

    def _next_iteration(self, model: Model | None) -> None:
        self._scopes.close()
        self._driver.end_iteration()
        self._driver.begin_iteration(model)

    def _pause(self) -> None:
        """Begins work that does not repeat: evaluation, checkpointing."""
        self._scopes.close()
        self._scopes.enter_context(self._driver.evaluation())

    def _make(self, parallelism: Parallelism) -> Driver:
        return Driver(
            self._options,
            parallelism=parallelism,
            framework=f"{self._package} {version(self._package)}".strip(),
        )


@functools.cache
def derive(events: type, base: type) -> Any:
    """The class that has the methods of the one and is of the kind of the other.

    It is called StallocCallback, and is found under that name in the module of `events`.
    """
    namespace = {"__module__": events.__module__, "__doc__": events.__doc__}
    return type("StallocCallback", (events, base), namespace)


def version(package: str) -> str:
    """The version of a package; empty if it is not installed."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""
