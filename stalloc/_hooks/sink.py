"""The receiver of the hooks: the recorder while profiling, the matcher while serving."""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import NamedTuple, Protocol


class PhaseKind(IntEnum):
    """The kind of a phase; the values are those of `csrc/trace/trace.h`."""

    OTHER = 0
    FORWARD = 1
    BACKWARD = 2
    OPTIMIZER = 3
    UNPLANNED = 4


class Phase(NamedTuple):
    """A phase as reported to a sink. The sink counts its occurrences."""

    kind: PhaseKind
    microbatch: int = -1
    chunk: int = 0


OTHER = Phase(PhaseKind.OTHER)
OPTIMIZER = Phase(PhaseKind.OPTIMIZER)


class PhaseSink(Protocol):
    """Receives the position of the training loop, in order.

    The hooks keep this grammar for any program:

    - A phase lasts until the next one is entered. Entering the same one again is a new occurrence.
    - `enter_unplanned` and `leave_unplanned` come in pairs and never nest; between them nothing is
      called but the functions of evaluations and of layers. Leaving resumes the interrupted phase,
      the same occurrence.
    - `end_iteration` is followed at once by `enter_phase`.
    - `set_extents` is followed at once by `enter_phase(FORWARD, ...)`, or comes at most once in a
      forward phase that had none before it.
    - `enter_layer` and `leave_layer` nest, per thread. They come from the thread that runs the
      module, which in a recomputation is one of autograd's; all else comes from one thread.
    """

    def enter_phase(self, kind: int, microbatch: int, chunk: int) -> None:
        """Ends the phase there is and begins another; `microbatch` is -1 where none applies."""

    def set_extents(self, names: Sequence[str], values: Sequence[int]) -> None:
        """Reports the sizes of the dimensions of a microbatch's inputs: its extents.

        They are those of the next forward phase, or of the one that is on if it has none yet.
        """

    def enter_unplanned(self) -> None:
        """Interrupts the phase for work that does not repeat, such as an evaluation."""

    def begin_evaluation(self) -> None:
        """Begins a forward of the model in an unplanned stretch.

        It lasts until the next one, or to the end of the stretch.
        """

    def end_evaluation_forward(self) -> None:
        """The forward that began last has returned: the program may copy the model now."""

    def leave_unplanned(self) -> None:
        """Resumes the interrupted phase."""

    def end_iteration(self) -> None:
        """Ends the iteration, and with it the count of occurrences."""

    def define_layer(self, name: str, dynamic: bool) -> int:
        """Returns the index by which the other functions name this layer.

        `dynamic` is true for a layer that the user's patterns name, and for all inside it.
        """

    def enter_layer(self, layer: int, recompute: bool) -> None:
        """Enters a module; `recompute` marks a forward inside a backward pass."""

    def leave_layer(self) -> None:
        """Leaves the layer that the calling thread entered last."""

    def tag_sequence(self, layer: int, first: int, last: int) -> None:
        """Reports that the layer itself made the autograd nodes [first, last) of this thread.

        Ranges of one thread ascend and never overlap: those of inner layers are cut out of those
        of outer ones.
        """
