"""A store of a process that pretends to be one of many, without the others.

It holds what this rank sets. The others are taken to do as this one does: a counter has been raised
by each of them, and a key that is waited for is there. Its value is not known.
"""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from typing import Any

import torch.distributed as dist

from stalloc._estimate.values import Unanswerable, script_line

_TIMEOUT = datetime.timedelta(minutes=5)

_Base: Any = getattr(dist, "Store", object)


class Store(_Base):  # type: ignore[misc]
    """The store of one rank among `size`."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self._size = size
        self._kept: dict[str, bytes] = {}

    def set(self, key: str, value: str | bytes) -> None:
        """Keeps a value."""
        self._kept[key] = value.encode() if isinstance(value, str) else bytes(value)

    def get(self, key: str) -> bytes:
        """The value that this rank has set.

        Raises:
            Unanswerable: It has not; another rank would.
        """
        if key not in self._kept:
            raise Unanswerable(
                f"{script_line()}: the script reads {key!r} from a store, which another rank would "
                "set; choose the rank that sets it with --rank"
            )
        return self._kept[key]

    def compare_set(self, key: str, expected_value: str, desired_value: str) -> bytes:
        """Keeps a value if the one before is the expected one; none counts as an empty one."""
        expected = expected_value.encode()
        if self._kept.get(key, b"") == expected:
            self.set(key, desired_value)
        return self._kept.get(key, expected)

    def append(self, key: str, value: str) -> None:
        """Keeps a value behind what there is."""
        self.set(key, self._kept.get(key, b"") + value.encode())

    def add(self, key: str, amount: int) -> int:
        """Raises a counter, as each rank does."""
        number = int(self._kept.get(key, b"0")) + amount * self._size
        self.set(key, str(number))
        return number

    def wait(self, keys: Sequence[str], timeout: datetime.timedelta | None = None) -> None:
        """Nothing: the others have set what they set."""

    def check(self, keys: Sequence[str]) -> bool:
        """Always True: the others have set what they set."""
        return True

    def delete_key(self, key: str) -> bool:
        """Forgets a value; True if there was one."""
        return self._kept.pop(key, None) is not None

    def num_keys(self) -> int:
        """The number of values."""
        return len(self._kept)

    def multi_get(self, keys: Sequence[str]) -> list[bytes]:
        """The values of several keys."""
        return [self.get(key) for key in keys]

    def multi_set(self, keys: Sequence[str], values: Sequence[str | bytes]) -> None:
        """Keeps several values."""
        for key, value in zip(keys, values, strict=True):
            self.set(key, value)

    def set_timeout(self, timeout: datetime.timedelta) -> None:
        """Nothing: it never waits."""

    @property
    def timeout(self) -> datetime.timedelta:
        """The timeout that it never needs."""
        return _TIMEOUT

    def clone(self) -> Any:
        """The store itself."""
        return self
