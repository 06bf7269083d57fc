"""The values that ranks send to each other one to one, kept for the ranks that run later.

Each rank runs alone. A rank that runs after the one that sends gets the objects and the small
tensors of integers that were sent, in their order: the shapes of what a stage of a pipeline gets
next, say. Of all other tensors the values are not known.
"""

from __future__ import annotations

import copy
from collections import deque
from dataclasses import dataclass, field
from typing import Any

Route = tuple[tuple[int, ...], int, int]
"""The ranks of the group, the sender and the receiver."""


@dataclass(slots=True)
class Mail:
    """The messages between the ranks of one program.

    Attributes:
        sent: By route, the messages in their order. None: values that are not known.
    """

    sent: dict[Route, list[Any]] = field(default_factory=dict)
    _left: dict[Route, deque[Any]] = field(default_factory=dict)

    def begin(self, rank: int) -> None:
        """A rank runs from its start: it sends all again, and receives all again."""
        self.sent = {route: sent for route, sent in self.sent.items() if route[1] != rank}
        self._left = {route: deque(sent) for route, sent in self.sent.items() if route[2] == rank}

    def send(self, route: Route, message: Any) -> None:
        """Keeps a message; one that cannot be copied is not known to the receiver."""
        try:
            kept = copy.deepcopy(message)  # not by pickle: torch.save writes nothing in a run
        except Exception:  # copying calls code of any kind
            kept = None
        self.sent.setdefault(route, []).append(kept)

    def receive(self, route: Route, *, waits: bool = True) -> Any:
        """The next message; None where it is not known.

        Args:
            route: The one that it comes on.
            waits: The receiver can use what it may be, so it waits for a rank that still runs.
        """
        left = self._left.get(route)
        return copy.deepcopy(left.popleft()) if left else None

    def meet(self, rank: int) -> None:
        """Another rank of the pipeline is known; nobody waits for that here."""
