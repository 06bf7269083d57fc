"""Records a program on the pretended GPU, and `stalloc.estimate`."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)
from torch.utils import _pytree as pytree

from stalloc import _core, _gpu_reductions, profiling, replaying
from stalloc._estimate import extras, minimizers, nccl
from stalloc._estimate.advice import Advice, Adviser, Recorded
from stalloc._estimate.answer import Estimate, answer
from stalloc._estimate.cards import Card, card_of
from stalloc._estimate.gpu import NO_GPU, PretendedGpu
from stalloc._estimate.largest import Largest, find
from stalloc._estimate.means import Activations
from stalloc._estimate.patches import pretended
from stalloc._estimate.values import Unanswerable, Values
from stalloc._estimate.world import World, run_as, world_of
from stalloc._script import Enough
from stalloc.errors import StallocError
from stalloc.trace import Trace

ITERATIONS = 3
"""A warm-up, in which the optimizer makes its states, and two to compare."""

_MOST_BACKWARDS = 16
"""Backward passes before there is any optimizer that may belong to what comes before training."""

_UNKNOWN = Card("GPU", 80 << 30, (8, 0), 108)


class Recording:
    """A program's requests on the pretended GPU.

    Args:
        card: The GPU; None for one of Ampere without a limit.
        iterations: How many to record.
        world: The processes that the program finds itself among; None for a program of one.
        activations: What the run does with the activations of its blocks.
    """

    def __init__(
        self,
        card: Card | None,
        iterations: int,
        world: World | None = None,
        activations: Activations | None = None,
    ) -> None:
        self.card = card
        self.activations = activations or Activations()
        self._states: dict[int, tuple[int, int]] = {}
        self._like = card or _UNKNOWN
        self.world = world
        self.values = Values()
        self.profile = profiling.profile(device="meta", iterations=iterations)
        self.profile.patience = _MOST_BACKWARDS
        self.gpu = PretendedGpu(
            self.values, self._watch, extras.cublas_workspace(self._like.capability)
        )

    def _watch(self) -> None:
        if profiling.active_profile() is not self.profile:
            raise Enough

    @contextmanager
    def running(self) -> Iterator[None]:
        """Runs the block on the pretended GPU and records it, until it has been long enough."""
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*parameter in checkpoint to a meta.*")
            warnings.filterwarnings("ignore", message=".*a no-op.*")
            with (
                _gpu_reductions.on(self._like.processors, self._like.capability),
                self.profile,
                pretended(self.gpu, self._like, self.world),
            ):
                steps = register_optimizer_step_pre_hook(minimizers.keep_going)
                stepped = register_optimizer_step_post_hook(self._note_states)
                try:
                    with self.activations.applied():
                        yield
                except Enough:
                    pass
                finally:
                    steps.remove()
                    stepped.remove()
                    self.gpu.workspaces.clear()

    def _note_states(self, optimizer: Any, *_: object) -> None:
        minimizers.fill_history(optimizer, self.values.note)
        held = [getattr(t, "_local_tensor", t) for t in pytree.tree_leaves(dict(optimizer.state))]
        sizes = [(t.dtype, t.nbytes) for t in held if isinstance(t, Tensor) and t.is_cuda]
        whole = sum(size for dtype, size in sizes if dtype == torch.float32)
        self._states[id(optimizer)] = whole, sum(size for _, size in sizes)

    def recorded(self) -> Recorded:
        """The run for comparing it with others that save memory."""
        kept = list(self._states.values())
        return Recorded(
            self.answer(plan=False),
            self.gpu.flops / max(1, self.complete_iterations),
            self.activations,
            (sum(whole for whole, _ in kept), sum(total for _, total in kept)),
        )

    def end_iteration(self, number: int) -> None:
        """Ends an iteration, the `number`th, unless the program has called `stalloc.step()`."""
        if _core.runtime("meta").recorded_iterations < number:
            self.profile.step()

    @property
    def complete_iterations(self) -> int:
        """Iterations that ended while it recorded."""
        return max(0, len(self.trace.iterations) - 1)

    @property
    def peers(self) -> set[int]:
        """The ranks that it exchanged tensors of the GPU with, one to one."""
        return self.gpu.traffic.peers

    @property
    def trace(self) -> Trace:
        """The recorded requests."""
        return self.profile.trace

    def _nccl(self) -> extras.Extra | None:
        if self.world is None:
            return None
        rank, local, card = self.world.rank, self.world.local_size, self._like
        made = self.gpu.traffic.communicators
        return nccl.extra(made, rank, local, card.capability, card.processors)

    def answer(self, *, plan: bool = True) -> Estimate:
        """Makes the answer, with stalloc's row if `plan`, which takes some seconds.

        Raises:
            StallocError: The program requested nothing on the GPU.
        """
        if len(self.trace.requests) == 0:
            raise Unanswerable(NO_GPU)
        needed = [
            extras.context(self._like.capability),
            self._nccl(),
            extras.cudnn(self.gpu.convolved),
        ]
        tried = [] if self.gpu.compiled is None else extras.compiled(self.gpu.compiled)
        return answer(
            self.trace,
            card=self.card,
            extras=(*(extra for extra in needed if extra is not None), *tried),
            guesses=tuple(self.values.guesses),
            plan=plan,
        )


def estimate(
    function: Callable[[], Any],
    *,
    gpu: str | Card | None = None,
    iterations: int = ITERATIONS,
    world: int | None = None,
    rank: int = 0,
    plan: bool = True,
) -> Estimate:
    """Estimates what a training run needs of a GPU, on a machine without one.

    Nothing is computed: tensors on device `cuda` have shapes and lifetimes, and no memory.
    Parameters of modules have none on the CPU either, so that models of any size can be built.

    Example::

        def build():
            model = Net().cuda()
            optimizer = torch.optim.AdamW(model.parameters())

            def step():
                loss = model(torch.randn(64, 3, 224, 224, device="cuda")).mean()
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()

            return step

        print(stalloc.estimate(build, gpu="H100").fits)

    Args:
        function: Builds the model, as for a GPU, and returns a function that makes one iteration.
            Or makes one iteration itself and returns nothing, and is called for each.
        gpu: A card's name, such as `H100` or `RTX 3060`, or a size, such as `80GiB`; None compares
            with none.
        iterations: How many to record, at least 2.
        world: Processes that the function finds itself among: `torch.distributed` has a group of
            so many, which communicates with nobody, and the environment is that of `torchrun`.
            Weights are sharded as the function does it. None for a function of one process.
        rank: The rank of the process, below `world`.
        plan: Solve a plan, for stalloc's row of the answer. It takes some seconds.

    Raises:
        TypeError: `function` cannot be called.
        StallocError: The card is unknown, a profile is being recorded or a plan is in force, or the
            program asks for something that depends on values, and the message has its line.
    """
    card = card_of(gpu) if isinstance(gpu, str) else gpu
    return _recorded(function, card, iterations, world_of(world, rank), plan)


def largest(
    function: Callable[[int], Any],
    values: Sequence[int],
    *,
    gpu: str | Card,
    iterations: int = ITERATIONS,
    world: int | None = None,
    rank: int = 0,
    expandable_segments: bool = False,
) -> Largest:
    """Finds the largest batch, or length, with which a training run fits a GPU.

    Example::

        found = stalloc.largest(build, (8, 16, 24), gpu="H100")
        print(found.value, found.estimate.reserved)

    Args:
        function: As for `estimate`; called with the value.
        values: Values to record first, at least two, better three: the laws of the sizes are proven
            by three. The smallest must fit.
        gpu: A card's name, or a size.
        iterations: How many to record, at least 2.
        world: As for `estimate`.
        rank: As for `estimate`.
        expandable_segments: Torch's allocator uses them.

    Raises:
        TypeError: `function` cannot be called.
        ValueError: There are fewer than two values, or they are not positive.
        StallocError: As for `estimate`; or the values change more than sizes.
    """
    ascending = tuple(sorted(set(values)))
    if len(ascending) < 2 or ascending[0] < 1:
        raise ValueError(f"values={values!r}: at least two different positive ones are needed")
    card = card_of(gpu) if isinstance(gpu, str) else gpu
    processes = world_of(world, rank)

    def run(value: int) -> Estimate:
        return _recorded(lambda: function(value), card, iterations, processes, plan=False)

    allocator = replaying.TORCH_EXPANDABLE if expandable_segments else replaying.TORCH
    return find(run, ascending, allocator)


def advise(
    function: Callable[[], Any],
    *,
    gpu: str | Card,
    iterations: int = ITERATIONS,
    world: int | None = None,
    rank: int = 0,
    expandable_segments: bool = False,
) -> list[Advice]:
    """Finds means with which a training run fits a GPU, cheapest first.

    The run is recorded again with its blocks recomputed, all or some, and with their activations on
    the host. Its optimizer states are taken for smaller ones, for states on the host, or for a part
    of them, as several GPUs share them, or share weights and gradients, too. A combination is in
    the list if no part of it suffices at the same cost.

    Example::

        for advice in stalloc.advise(build, gpu="RTX 4090"):
            print(advice.means, advice.reserved, f"{advice.recomputed:.0%}", advice.how)

    Args:
        function: As for `estimate`; called for each recording.
        gpu: A card's name, or a size.
        iterations: How many to record, at least 2.
        world: As for `estimate`.
        rank: As for `estimate`.
        expandable_segments: Torch's allocator uses them.

    Returns:
        The advice; the first one has no means if the run fits as it is. Empty if nothing suffices.

    Raises:
        TypeError: `function` cannot be called.
        StallocError: As for `estimate`.
    """
    card = card_of(gpu) if isinstance(gpu, str) else gpu
    processes = world_of(world, rank)

    def run(activations: Activations, number: int) -> Recorded | None:
        if number > 1:
            return None  # nothing tells the batch
        return made(function, card, iterations, processes, activations).recorded()

    allocator = replaying.TORCH_EXPANDABLE if expandable_segments else replaying.TORCH
    adviser = Adviser(run, allocator, iterations, sharded=processes is not None)
    return adviser.advise(made(function, card, iterations, processes).recorded())


def _recorded(
    function: Callable[[], Any], card: Card | None, iterations: int, world: World | None, plan: bool
) -> Estimate:
    return made(function, card, iterations, world).answer(plan=plan)


def made(
    function: Callable[[], Any],
    card: Card | None,
    iterations: int,
    world: World | None,
    activations: Activations | None = None,
) -> Recording:
    """Records a function as `estimate` does."""
    if not callable(function):
        raise TypeError(f"an estimate takes a function, not {type(function).__name__}")
    if iterations < 2:
        raise StallocError(
            f"iterations={iterations}: at least 2 are needed; the first one only warms up"
        )

    def run(one: World | None) -> Recording:
        return _run(function, Recording(card, iterations, one, activations), iterations)

    return run_as(world, run)


def _run(function: Callable[[], Any], recording: Recording, iterations: int) -> Recording:
    with recording.running():
        step = function()
        made = 0
        if not callable(step):
            step, made = function, 1
            recording.end_iteration(1)
        while made < iterations:
            step()
            made += 1
            recording.end_iteration(made)
    return recording
