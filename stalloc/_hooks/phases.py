"""Translates events (forwards, backwards, steps, explicit scopes) into the phases of an iteration.

    root called            FORWARD i, until the next phase begins: the loss belongs to it
    engine called          BACKWARD of the newest forward not yet gone back through
    engine returned        OTHER, or OPTIMIZER inside a step (closures)
    step begins, returns   OPTIMIZER, OTHER
    with phase(...)        that phase until its end; then OTHER, or the enclosing phase
    evaluation             unplanned, then the interrupted phase again
    evaluation mode        the same, from model.eval() or its first forward until model.train(),
                           or until a training forward, a backward, a step or an explicit phase
    evaluation between     the same without the mode, or by another model, unless the iteration
      two iterations       before had one, too: a loop that evaluates in each iteration uses the
                           results for training

The automatic phases form no stack: each replaces the one before. Module calls, steps
and scopes nest; they are counted, and the counts are checked against the interpreter's stack
(`frames`) before a decision, so an unseen exception mislabels no later step.

This module does not use torch and holds no tensor. Not thread-safe: the caller lets one thread in.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum, auto

from stalloc._hooks import frames
from stalloc._hooks.iterations import IterationCounter
from stalloc._hooks.sink import OPTIMIZER, OTHER, Phase, PhaseKind, PhaseSink


@dataclass(frozen=True, eq=False)
class Scope:
    """One `with phase(...)`, or with `phase` None one `with unplanned()`; compared by identity.

    Attributes:
        phase: The phase.
        inputs: Those that the model gets besides its arguments.
    """

    phase: Phase | None
    inputs: Mapping[str, object] = field(default_factory=dict)


class _Sign(Enum):
    """The reason why an evaluation that outlasts a call has begun."""

    MODE = auto()  # the root is in evaluation mode
    CALL = auto()  # of the root, without gradients
    OTHER_CALL = auto()  # of another model, not for training


class PhaseTracker:
    """The state between two events of one attached `TrainingHooks`."""

    def __init__(
        self,
        sink: PhaseSink,
        early_ends: int = 0,
        guesses_ends: bool = False,
        waits_for_slower: bool = False,
    ) -> None:
        self._sink = sink
        self._early_ends = early_ends
        self._guesses_ends = guesses_ends
        self._guessed_microbatches = 0  # of the iterations that ended by guess
        self._went_back = False  # a backward pass began in this iteration
        self._phase = OTHER  # the phase when no scope is open
        self._scopes: list[Scope] = []
        self._scope_has_extents = False  # the explicit phase that was entered last
        self._unplanned = 0  # open scopes that are unplanned, and an evaluation
        self._forwards = 0  # depth of the root's calls
        self._evaluating = False  # the outermost of them is an evaluation
        self._has_trained = False  # the root was called for training
        self._evaluation_lasts = False  # until the root's mode changes, or something trains
        self._sign = _Sign.MODE  # it has begun by this
        self._trusted = set(_Sign)  # nothing has trained in an evaluation that began by these
        self._evaluated = False  # the root was called in this iteration, not for training
        self._evaluated_before = False  # the same in the iteration before
        self._microbatch: int | None = None  # the outermost of them is this one's forward
        self._backward = False
        self._steps: list[int] = []  # ids of the optimizers inside their step, outermost first
        self._next_microbatch = 0
        self._forwarded: list[int] = []  # microbatches that backward has yet to come for
        self._last_backward = -1
        self._iterations = IterationCounter(waits_for_slower)
        self._ended = 0  # iterations
        self._iteration_is_over = False
        self._was_over_before_step = False  # before the outermost step that is on
        self._ends_are_explicit = False

    def start(self) -> None:
        """Begins the first iteration."""
        self._sink.enter_phase(*OTHER)

    def stop(self) -> None:
        """Closes all open scopes."""
        if self._unplanned:
            self._sink.leave_unplanned()
        self._sink.enter_phase(*OTHER)

    # Forward

    def expect_forward(self, training: bool) -> bool:
        """Makes ready for a call of the root; returns whether it is a training forward.

        If the iteration is over, it ends here: before anything of the next one.
        """
        self._drop_what_is_gone(module_calls=1)
        if not training or self._forwards:
            return False
        self._end_evaluation()
        if self._unplanned:
            return False
        if not self._scopes:
            self._end_iteration_if_over()
        return True

    def takes_extents(self) -> bool:
        """True if the extents of the expected forward go to the sink.

        The first forward of an explicit phase sets its extents.
        """
        if not self._scopes:
            return True
        if self._in_force().kind is not PhaseKind.FORWARD or self._scope_has_extents:
            return False
        self._scope_has_extents = True
        return True

    def takes_told_extents(self) -> bool:
        """The same without a forward of the root: an explicit forward phase has to be open."""
        return bool(self._scopes) and not self._unplanned and self.takes_extents()

    def further_inputs(self) -> Mapping[str, object]:
        """The inputs of the innermost scope, which the root's arguments do not tell."""
        return self._scopes[-1].inputs if self._scopes else {}

    def begin_forward(self, training: bool, evaluates: bool = False) -> None:
        """The root is called; `expect_forward` came right before.

        `evaluates` says that the root is in evaluation mode: the evaluation outlasts the call.
        """
        self._forwards += 1
        if self._forwards > 1:
            return
        self._has_trained = self._has_trained or training
        if evaluates:
            self._begin_evaluation(_Sign.MODE)
        elif not (training or self._evaluated_before) and self._is_between_iterations():
            self._begin_evaluation(_Sign.CALL)
        self._evaluated = self._evaluated or not training
        if self._unplanned:
            self._sink.begin_evaluation()
            return
        if self._scopes:
            return
        if training:
            self._microbatch = self._next_microbatch
            self._next_microbatch += 1
            self._switch(Phase(PhaseKind.FORWARD, self._microbatch))
        else:
            self._evaluating = True
            self._suspend()
            self._sink.begin_evaluation()

    def end_forward(self, raised: bool) -> None:
        """The root returned, or raised: then its microbatch's number is free again."""
        if self._forwards == 0:  # attached, or taken for gone, in the middle of it
            return
        self._forwards -= 1
        if self._forwards:
            return
        if self._unplanned:
            self._sink.end_evaluation_forward()
        if self._evaluating:
            self._evaluating = False
            self._resume()
        elif self._microbatch is not None:
            if raised:
                self._next_microbatch = self._microbatch
                self._switch(self._idle())
            else:
                self._forwarded.append(self._microbatch)
            self._microbatch = None

    # Evaluation mode

    def begin_evaluation(self) -> None:
        """The root is in evaluation mode from here on.

        Before the first training forward that means nothing: a model may be set up in this mode.
        """
        self._drop_what_is_gone()
        if not self._forwards:
            self._begin_evaluation(_Sign.MODE)

    def end_evaluation(self) -> None:
        """The root is in training mode again."""
        self._drop_what_is_gone()
        if not self._forwards:
            self._end_evaluation()

    def begin_other_forward(self, may_evaluate: bool) -> None:
        """Another model is called between two iterations, not for training.

        `may_evaluate` says that an evaluation may begin with this call.
        """
        self._drop_what_is_gone(module_calls=1)
        if self._forwards:
            return
        if may_evaluate:
            self._begin_evaluation(_Sign.OTHER_CALL)
        if self._unplanned:
            self._sink.begin_evaluation()

    def _begin_evaluation(self, sign: _Sign) -> None:
        inside = self._steps or self._scopes or self._backward
        if inside or self._unplanned or not (self._has_trained and sign in self._trusted):
            return
        self._evaluation_lasts = True
        self._sign = sign
        self._suspend()

    @property
    def iteration(self) -> int:
        """The number of the iteration that is on, or after its last step that of the next one."""
        return self._ended + self._iteration_is_over

    @property
    def is_over(self) -> bool:
        """True from the iteration's last step until the next iteration begins."""
        return self._iteration_is_over

    @property
    def in_step(self) -> bool:
        """True inside of an optimizer's step."""
        return bool(self._steps)

    def _is_between_iterations(self) -> bool:
        return self._iteration_is_over or self._next_microbatch == 0

    def _end_evaluation(self) -> None:
        if self._evaluation_lasts:
            self._evaluation_lasts = False
            self._resume()

    def _end_evaluation_by_training(self) -> None:
        # Adversarial training sets a model so while another's gradients flow through it, or another
        # model learns from what a call has made.
        if self._evaluation_lasts and not self._forwards:
            self._trusted.discard(self._sign)
            self._end_evaluation()

    # Backward

    def begin_backward(self) -> bool:
        """The engine is called; returns whether `end_backward` shall follow.

        Inside the root's forward (a force as the gradient of an energy) it is part of that.
        """
        self._drop_what_is_gone()
        if self._backward:
            return False
        self._backward = True
        self._end_evaluation_by_training()
        if not self._forwards and not self._scopes:
            self._went_back = self._went_back or not self._unplanned
            if self._forwarded:
                self._last_backward = self._forwarded.pop()
            self._switch(Phase(PhaseKind.BACKWARD, self._last_backward))
        return True

    def end_backward(self, rootless: bool = False) -> None:
        """The engine returned or raised; `rootless` says that no forward will tell an end."""
        self._backward = False
        if self._phase.kind is PhaseKind.BACKWARD:
            self._switch(self._idle())
        if rootless and self._guesses_ends:
            self._end_iteration_without_forward()

    # Optimizer

    def begin_step(self, optimizer: object) -> None:
        """An optimizer's step begins; one inside another's is part of it."""
        self._drop_what_is_gone(steps=1)
        self._end_evaluation_by_training()
        if self._unplanned:
            return
        if not self._steps:
            self._was_over_before_step = self._iteration_is_over
        self._steps.append(id(optimizer))
        if len(self._steps) == 1 and not self._forwards:
            self._switch(OPTIMIZER)

    def join_steps(self, optimizers: Iterable[object]) -> None:
        """Takes part in steps that are on, outermost first, whose beginning it has missed.

        Their phase began before this iteration. To be called before `begin_forward`.
        """
        self._steps = [id(optimizer) for optimizer in optimizers]

    def end_step(self, optimizer: object, rootless: bool = False) -> bool:
        """An optimizer's step returned; returns whether it was an iteration's last.

        `rootless` says that no forward will tell the end: it is here.
        """
        if id(optimizer) not in self._steps:
            return False
        del self._steps[self._steps.index(id(optimizer)) :]
        over = self.count_step(optimizer)
        if not self._steps and not self._forwards:
            self._switch(OTHER)
        if rootless and self._iteration_is_over:
            self._end_iteration_without_forward()
        return over

    def count_step(self, optimizer: object) -> bool:
        """Counts a step for the iteration's end, without a phase; returns the same."""
        over = self._iterations.ends_with(optimizer)
        if self._iterations.knows_cycle:
            self._early_ends = 0  # they come in a first cycle
        self._iteration_is_over = self._iteration_is_over or over
        return over

    @property
    def in_first_cycle(self) -> bool:
        """True if the optimizer that stepped last had not stepped before."""
        return self._iterations.in_first_cycle

    @property
    def stepped(self) -> Container[object]:
        """The optimizers that have stepped."""
        return self._iterations.stepped

    @property
    def found_slower(self) -> bool:
        """True if the iterations that ended before the last step were parts of one."""
        return self._iterations.found_slower and not self._ends_are_explicit

    # Scopes

    def open(self, scope: Scope) -> None:
        """Enters an explicit phase, or an unplanned stretch."""
        self._drop_what_is_gone()
        if scope.phase is None:
            self._scopes.append(scope)
            self._suspend()
            return
        if self._sign is _Sign.MODE:
            self._end_evaluation_by_training()
        else:  # as a training forward does
            self._end_evaluation()
        if self._unplanned:
            self._scopes.append(scope)
            return
        if not self._scopes and not self._forwards and not self._steps and not self._backward:
            if scope.phase.kind in (PhaseKind.FORWARD, PhaseKind.BACKWARD):
                self._end_iteration_if_over()
            self._phase = OTHER
        self._scopes.append(scope)
        self._scope_has_extents = False
        self._sink.enter_phase(*scope.phase)

    def close(self, scope: Scope) -> None:
        """Leaves a scope and any opened inside it that is not closed yet."""
        if scope not in self._scopes:
            return
        while True:
            top = self._scopes.pop()
            if top.phase is None:
                self._resume()
            if top is scope:
                break
        if scope.phase is not None and not self._unplanned:
            self._scope_has_extents = False
            self._sink.enter_phase(*self._in_force())

    # Iteration

    def end_iteration(self) -> None:
        """Ends the iteration by the user's call; from now on only such calls do."""
        self._drop_what_is_gone()
        self._ends_are_explicit = True
        self._guesses_ends = False
        self._end_iteration()

    @property
    def guesses_ends(self) -> bool:
        """True until an optimizer's step or a call tells an end, if ends were to be guessed."""
        return self._guesses_ends

    def guess_no_longer(self) -> None:
        """Takes the iterations that ended by guess for parts of the one that is on."""
        self._guesses_ends = False
        self._went_back = True  # at the latest in the iterations that ended by guess
        before, self._guessed_microbatches = self._guessed_microbatches, 0
        self._next_microbatch += before
        self._forwarded = [microbatch + before for microbatch in self._forwarded]
        if self._microbatch is not None:
            self._microbatch += before
        if self._last_backward >= 0:
            self._last_backward += before

    def _end_iteration_if_over(self) -> None:
        guessed = self._guesses_ends and self._went_back
        if self._ends_are_explicit or not (self._iteration_is_over or guessed):
            return
        # In a step, only an iteration that was over before it: the closure begins the next one.
        if self._steps and not self._was_over_before_step:
            return
        self._was_over_before_step = False
        if self._early_ends > 0:
            self._early_ends -= 1
            self._iteration_is_over = False
        else:
            if guessed:
                self._guessed_microbatches += self._next_microbatch
            self._end_iteration()

    def _end_iteration_without_forward(self) -> None:
        if self._went_back and not (self._steps or self._scopes or self._unplanned):
            self._end_iteration_if_over()

    def _end_iteration(self) -> None:
        self._ended += 1
        self._iteration_is_over = False
        self._evaluated, self._evaluated_before = False, self._evaluated
        self._went_back = False
        self._next_microbatch = 0
        self._forwarded.clear()
        self._last_backward = -1
        self._microbatch = None
        self._phase = OTHER
        if self._unplanned:
            self._sink.leave_unplanned()
        self._sink.end_iteration()
        self._scope_has_extents = False
        self._sink.enter_phase(*self._in_force())
        if self._unplanned:
            self._sink.enter_unplanned()

    # Parts

    def _switch(self, phase: Phase) -> None:
        self._phase = phase
        if not self._scopes and not self._unplanned:
            self._sink.enter_phase(*phase)

    def _idle(self) -> Phase:
        return OPTIMIZER if self._steps else OTHER

    def _in_force(self) -> Phase:
        phases = (scope.phase for scope in reversed(self._scopes))
        return next((phase for phase in phases if phase is not None), self._phase)

    def _suspend(self) -> None:
        self._unplanned += 1
        if self._unplanned == 1:
            self._sink.enter_unplanned()

    def _resume(self) -> None:
        self._unplanned -= 1
        if self._unplanned == 0:
            self._sink.leave_unplanned()

    def _drop_what_is_gone(self, module_calls: int = 0, steps: int = 0) -> None:
        # The arguments: how many frames are the caller's own, not those of something open before.
        if self._steps and frames.optimizer_steps() <= steps:
            self._steps.clear()
            if self._phase == OPTIMIZER:
                self._switch(OTHER)
        if self._forwards and frames.module_calls() <= module_calls:
            self._forwards = 1
            self.end_forward(raised=True)
