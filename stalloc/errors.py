"""The exceptions that stalloc raises for what a caller can do something about.

Each message says what was asked, what there is and what to do next.
"""

from __future__ import annotations


class StallocError(Exception):
    """What every exception of stalloc is."""


class NotSupportedError(StallocError):
    """Something was asked for that this version of stalloc cannot do."""
