"""The base of integrations that are installed into an object.

A process has one such integration at a time, because it has one plan in force at a time.
"""

from __future__ import annotations

import abc
import contextlib
from collections.abc import Iterator
from typing import Any

from stalloc._frameworks.patches import Function, Patches
from stalloc.driver import Driver, Model, Stage


class Integration(abc.ABC):
    """A driver and the patches that report to it.

    Args:
        target: The object that it is installed into.
        driver: The receiver of its reports.
    """

    def __init__(self, target: object, driver: Driver) -> None:
        self.target = target
        self.driver = driver
        self.patches = Patches()
        self.evaluations = 0

    @abc.abstractmethod
    def follow(self) -> None:
        """Patches the target; not called in mode off."""

    def next_iteration(self, model: Model | None) -> None:
        """One ends and another begins."""
        self.driver.end_iteration()
        self.driver.begin_iteration(model)

    @contextlib.contextmanager
    def evaluation(self) -> Iterator[None]:
        """Work that does not repeat."""
        self.evaluations += 1
        try:
            with self.driver.evaluation():
                yield
        finally:
            self.evaluations -= 1

    def unplanned(self, original: Function) -> Function:
        """Wraps a function in `evaluation`."""

        def unplanned(*args: Any, **kwargs: Any) -> Any:
            with self.evaluation():
                return original(*args, **kwargs)

        return unplanned

    def uninstall(self) -> None:
        """Undoes `follow`, and ends the driver's profile or plan."""
        self.patches.undo()
        self.driver.finish()


_installed: Integration | None = None


def installed(kind: type[Integration], target: object) -> Driver | None:
    """The driver that is installed in this target; uninstalls from any other target."""
    if _installed is None:
        return None
    if type(_installed) is kind and _installed.target is target:
        return _installed.driver
    uninstall()
    return None


def install(integration: Integration) -> Driver:
    """Lets it follow its target, unless it is off, and remembers it; returns its driver."""
    global _installed
    _installed = integration
    if integration.driver.stage is not Stage.OFF:
        try:
            integration.follow()
        except BaseException:
            uninstall()
            raise
    return integration.driver


def uninstall() -> None:
    """Uninstalls the integration, if there is one."""
    global _installed
    integration, _installed = _installed, None
    if integration is not None:
        integration.uninstall()
