"""Stretches on the meta device that request nothing while a profile records."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from stalloc._torch_modules import torch_module

_inside = threading.local()


def is_unrecorded() -> bool:
    """True if this thread is in such a stretch."""
    return getattr(_inside, "kernel", False)


@contextmanager
def unrecorded() -> Iterator[None]:
    """Requests nothing meanwhile on the meta device, on this thread; may be nested."""
    module = torch_module()
    outermost = not getattr(_inside, "kernel", False)
    if outermost:
        _inside.kernel = True
        module.mute_meta(True)
    try:
        yield
    finally:
        if outermost:
            module.mute_meta(False)
            _inside.kernel = False
