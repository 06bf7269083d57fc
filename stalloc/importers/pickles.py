"""Reads pickles of plain data without executing anything in them.

A pickle is a program. Its dangerous instructions all need a global (a class or a function), and
here there are none: looking one up is refused.
"""

from __future__ import annotations

import io
import pickle
from typing import Any, NoReturn

from stalloc import _core
from stalloc.errors import TraceError


class _PlainUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> NoReturn:
        raise TraceError(f"the global {module}.{name}")

    def persistent_load(self, pid: Any) -> NoReturn:
        raise TraceError("a persistent object")


def load_plain(content: bytes, source: str) -> Any:
    """What a pickle holds: dictionaries, lists, tuples, strings and numbers.

    Args:
        content: The pickle.
        source: What messages call it.

    Raises:
        TraceError: It is damaged, or holds anything else.
    """
    _core.check_plain_pickle(content, source)
    try:
        return _PlainUnpickler(io.BufferedReader(io.BytesIO(content), 1 << 20)).load()
    except TraceError as error:
        raise TraceError(
            f"{source}: the pickle asks for {error}, and a memory snapshot needs none; "
            "it was not executed"
        ) from None
    except Exception as error:
        # Damage shows in as many ways as there are instructions.
        what = str(error) or type(error).__name__
        raise TraceError(f"{source}: the pickle is damaged or cut off: {what}") from None
