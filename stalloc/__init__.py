"""Plans the address of every tensor of a training iteration ahead of time."""

from __future__ import annotations

__version__ = "0.1.0"
