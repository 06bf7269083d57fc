"""What stalloc raises. Every message says what was asked, what there is and what to do next."""

from __future__ import annotations


class StallocError(Exception):
    """Any error of stalloc's own."""


class NotSupportedError(StallocError):
    """Something was asked for that this version of stalloc cannot do."""


class TraceError(StallocError, ValueError):
    """A trace that is damaged, of another format, or that no training run can have produced."""


class PlanError(StallocError, ValueError):
    """A plan that is damaged or does not fit the run, or a problem that has no solution."""


class OutOfMemory(StallocError, MemoryError):
    """The device has not the memory that was asked for, after giving back all that was cached."""


class StallocWarning(UserWarning):
    """Something did not go as planned, and training goes on without."""
