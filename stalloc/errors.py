"""Exceptions and warnings. Every message states the request, the state, and the next step."""

from __future__ import annotations


class StallocError(Exception):
    """Any error of stalloc's own."""


class NotSupportedError(StallocError):
    """This version of stalloc does not support the request."""


class TraceError(StallocError, ValueError):
    """A trace that is damaged, of another format, or that no training run can have produced."""


class PlanError(StallocError, ValueError):
    """A plan that is damaged or does not fit the run, or a problem that has no solution."""


class OutOfMemory(StallocError, MemoryError):
    """The device lacks the requested memory, even after the caches were given back."""


class StallocWarning(UserWarning):
    """Something failed, and training goes on without it."""
