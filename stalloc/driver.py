"""Takes a training loop from profiling over planning to serving. Every integration uses a driver.

An integration knows a framework: the begin and end of an iteration, and the current microbatch. It
reports them to a `Driver`, which does the rest for its rank: it skips the first iterations, records
some, plans, and writes trace and plan; or it finds a plan in the folder and serves from it.

    WAITING -> PROFILING -> SERVING      auto: what is recorded is served from at once
            -> SERVING                   plan, or auto with a plan that is there already
            -> PROFILING -> OFF          profile

If the whole run is recorded or served already, as by `stalloc run`, a driver joins that profile or
session: it reports phases, layers and iterations, and does not end it.

An error is reported once and turns the driver OFF: training goes on unplanned. A rank never waits
for another. An event costs about a microsecond when OFF. In a forked child, such as a data loader's
worker, an active driver turns OFF: profile and files belong to the parent.

Not thread-safe: the thread that trains calls it.
"""

from __future__ import annotations

import atexit
import contextlib
import enum
import gc
import logging
import os
import warnings
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

from torch import nn

from stalloc import _automatic, hooks, session
from stalloc.errors import PlanError, StallocError, StallocWarning
from stalloc.hooks import PhaseKind
from stalloc.options import Dynamic, Options
from stalloc.planner import Streams
from stalloc.plans import Plan
from stalloc.profiling import Profile, active_profile, profile
from stalloc.ranks import Parallelism, RankFiles, described, rank, rank_info, rank_mismatch

Model = nn.Module | Sequence[nn.Module]

_NOTHING: AbstractContextManager[None] = contextlib.nullcontext()
_drivers: weakref.WeakSet[Driver] = weakref.WeakSet()
_log = logging.getLogger("stalloc")


class Stage(enum.Enum):
    """The stage of a driver."""

    WAITING = "waiting"
    PROFILING = "profiling"
    SERVING = "serving"
    OFF = "off"


class Driver:
    """Profiles, plans and serves the training of this rank.

    Example:
        driver = Driver(parallelism={"pp": 2})
        for batches in data:
            with driver.iteration(model):
                for i, batch in enumerate(batches):
                    with driver.forward(i):
                        loss = model(batch)
                    with driver.backward(i):
                        loss.backward()
                with driver.optimizer():
                    optimizer.step()

    A loop as simple as this one needs only `iteration`: the hooks find the phases.

    Under `stalloc run` or `enable(plan, startup=True)`, the run's own settings replace all options
    but mode "off" and `dynamic`.

    Args:
        options: Mode, folder, iterations and the rest; None takes the defaults.
        parallelism: The sizes that decide the sizes of this rank's tensors, or a function that
            returns them when the first iteration begins: see `stalloc.ranks`.
        framework: Its name and version, recorded in the files.
    """

    def __init__(
        self,
        options: Options | None = None,
        *,
        parallelism: Parallelism | Callable[[], Parallelism] | None = None,
        framework: str = "",
    ) -> None:
        self._options = options or Options()
        self._parallelism = parallelism
        self._framework = framework
        # Known when the first iteration begins, but perhaps not when the process ends.
        self._rank = rank()
        self._rank_info: dict[str, str] = {}
        self._files: RankFiles | None = None
        self._stage = Stage.OFF if self._options.mode == "off" else Stage.WAITING
        self._looked_for_plan = self._options.mode == "profile"
        self._plan: Plan | None = None  # found, not in force yet
        self._pinned: Plan | None = None  # found beside it
        self._root: nn.Module | None = None
        self._profile: Profile | None = None
        self._session: session.Session | None = None
        self._joined = False  # profile or session belong to the whole run
        self._collects_garbage = False
        self._recorded = 0
        self._inside = False
        self._completed = 0
        _drivers.add(self)

    @property
    def stage(self) -> Stage:
        """The current stage."""
        return self._stage

    @property
    def active(self) -> bool:
        """True while phases matter: a profile is being recorded, or a plan is in force."""
        return self._stage is Stage.PROFILING or self._stage is Stage.SERVING

    @property
    def in_iteration(self) -> bool:
        """True between the begin and the end of an iteration."""
        return self._inside

    @property
    def completed(self) -> int:
        """Iterations that have ended."""
        return self._completed

    # Iterations

    def begin_iteration(self, model: Model | None = None) -> None:
        """Begins an iteration. One that raised, and so never ended, ends first.

        Args:
            model: The model, or its chunks on this rank, from the first iteration on. Without it
                the hooks take the first module that is called.
        """
        self.end_iteration()
        self._inside = True
        if self._stage is Stage.WAITING:
            with self._guarded():
                self._start(model)

    def end_iteration(self) -> None:
        """Ends the iteration, if one has begun."""
        if not self._inside:
            return
        self._inside = False
        self._completed += 1
        if not self.active:
            return
        session.step()
        if self._stage is Stage.PROFILING:
            self._recorded += 1
            if self._joined:
                self._leave_if_complete()
            elif self._recorded == self._options.iterations:
                with self._guarded():
                    self._finish_profile(serve=self._options.mode == "auto")
        elif self._session is None or not self._session.enabled:
            self._plan_was_refused()

    @contextlib.contextmanager
    def iteration(self, model: Model | None = None) -> Iterator[None]:
        """`begin_iteration` and `end_iteration`."""
        self.begin_iteration(model)
        try:
            yield
        finally:
            self.end_iteration()

    # Phases

    def forward(
        self, microbatch: int, chunk: int = 0, inputs: Mapping[str, object] | None = None
    ) -> AbstractContextManager[None]:
        """The forward of a microbatch through a chunk of the model; both count from 0.

        `inputs` are as for `stalloc.hooks.phase`.
        """
        if not self.active:
            return _NOTHING
        return hooks.phase(PhaseKind.FORWARD, microbatch, chunk, inputs)

    def backward(self, microbatch: int, chunk: int = 0) -> AbstractContextManager[None]:
        """The backward of a microbatch through a chunk of the model."""
        return self.phase(PhaseKind.BACKWARD, microbatch, chunk)

    def optimizer(self) -> AbstractContextManager[None]:
        """The optimizer's step."""
        return self.phase(PhaseKind.OPTIMIZER)

    def phase(
        self, kind: PhaseKind, microbatch: int | None = None, chunk: int = 0
    ) -> AbstractContextManager[None]:
        """Any other phase: `stalloc.hooks.phase` while active, else nothing."""
        return hooks.phase(kind, microbatch, chunk) if self.active else _NOTHING

    def tell_inputs(self, **inputs: object) -> None:
        """Reports the inputs of the open forward, if the model itself is not called."""
        if self.active:
            hooks.tell_inputs(**inputs)

    def evaluation(self) -> AbstractContextManager[None]:
        """Work that does not repeat: evaluation, checkpointing."""
        return hooks.unplanned() if self.active else _NOTHING

    # Ends

    def stand_aside(self, reason: str) -> None:
        """Turns the driver OFF with a warning, because something runs that cannot be planned.

        A profile or session of the whole run ends, too.
        """
        if self._stage is Stage.OFF:
            return
        begun = None
        if self._joined:
            begun = self._session or self._profile
        elif self._stage is Stage.WAITING:
            begun = _begun()
        if isinstance(begun, session.Session):
            self._switch_off()
            begun.give_up(reason)
            return
        if begun is not None:
            begun.stop()
        with self._guarded():
            raise StallocError(reason)

    def finish(self) -> None:
        """Turns the driver OFF. The complete iterations of a profile that is cut short are planned.

        May be repeated. Runs also when the process ends during a profile. A profile or session
        that the driver has joined goes on.
        """
        if self._stage is Stage.PROFILING and not self._joined and self._recorded >= 2:
            with self._guarded():
                self._finish_profile(serve=False)
        elif self._stage is Stage.PROFILING and not self._joined:
            with self._guarded():
                raise StallocError(
                    f"training ended after {self._recorded} of {self._options.iterations} profiled "
                    f"iterations ({self._options.warmup} before them are left out): too few to plan"
                )
        self._switch_off()

    # Parts

    def _start(self, model: Model | None) -> None:
        self._root = _root_of(model)
        if self._completed == 0 and (begun := _begun()) is not None:
            self._identify()
            self._join(begun)
            return
        if not self._looked_for_plan:
            self._looked_for_plan = True
            self._identify()
            self._plan = self._find_plan()
        if self._plan is not None and self._completed >= self._options.serve_from:
            plan, self._plan = self._plan, None
            self._serve(plan, self._pinned)
        waits = self._stage is Stage.WAITING and self._plan is None
        if waits and self._completed >= self._options.warmup:
            self._identify()
            self._begin_profile()

    def _join(self, begun: Profile | session.Session) -> None:
        self._joined = True
        if isinstance(begun, Profile):
            begun.follow(self._root, self._patterns(), self._info())
            self._profile = begun
            self._stage = Stage.PROFILING
            self._hold_garbage()
        elif not _tagged_alike(begun.plan, self._framework):
            _log.info("rank %d: the plan was profiled without this driver", self._rank)
            self._stage = Stage.OFF
        else:
            self._session = begun
            self._stage = Stage.SERVING
            begun.follow(self._root, rank_mismatch(begun.plan, self._rank_info))

    def _leave_if_complete(self) -> None:
        assert self._profile is not None
        if self._profile.complete:
            self._profile.stop()
            self._switch_off()

    def _identify(self) -> None:
        given = self._parallelism
        parallelism = (given() if callable(given) else given) or {}
        self._rank, self._rank_info = rank(), rank_info(parallelism)
        if self._options.folder is not None:
            self._files = RankFiles(Path(self._options.folder), self._rank, parallelism)

    def _find_plan(self) -> Plan | None:
        files = self._files
        if files is None:
            return None
        path = files.find_plan()
        if self._options.mode == "auto" and not path.exists():
            return None
        if not path.exists():
            raise PlanError(_no_plan(files))
        try:
            plan = Plan.load(path)
            if path != files.plan and not plan.extents:
                raise PlanError(_no_plan(files))
            if problem := rank_mismatch(plan, self._rank_info):
                raise PlanError(f"{path} does not fit this run: {problem}")
            pinned = files.pinned_plan(path)
            if self._options.pinned and pinned.exists():
                self._pinned = Plan.load(pinned)
        except PlanError as e:
            if self._options.mode == "plan":
                raise
            _log.warning("rank %d: profiling again: %s", self._rank, e)
            return None
        return plan

    def _serve(self, plan: Plan, pinned: Plan | None) -> None:
        self._session = session.enable(
            plan, model=self._root, strict=self._options.strict, pinned=pinned
        )
        if self._session.enabled:
            self._stage = Stage.SERVING
            _log.info("rank %d: %r is in force", self._rank, plan)
        elif self._options.mode != "auto":
            self._switch_off()

    def _plan_was_refused(self) -> None:
        """The first forward had another batch, or someone called disable()."""
        self._session = None
        # If the driver made the plan itself, it would make, and refuse, the same plan again.
        may_profile = self._options.mode == "auto" and self._profile is None and not self._joined
        self._stage = Stage.WAITING if may_profile else Stage.OFF

    def _begin_profile(self) -> None:
        self._profile = profile(
            self._root,
            device=self._options.device,
            dynamic=self._patterns(),
            pinned=bool(self._options.pinned),
        )
        self._profile.__enter__()
        self._stage = Stage.PROFILING
        atexit.register(self.finish)
        self._hold_garbage()

    def _patterns(self) -> Dynamic:
        dynamic = self._options.dynamic
        return dynamic() if callable(dynamic) else dynamic

    def _hold_garbage(self) -> None:
        # Objects that only the garbage collector frees have no fixed lifetime. With the collector
        # off they outlive their iteration, so they are not planned.
        self._collects_garbage = gc.isenabled()
        gc.disable()

    def _finish_profile(self, serve: bool) -> None:
        atexit.unregister(self.finish)
        recorded = self._profile
        assert recorded is not None
        self._stage = Stage.OFF
        recorded.stop()
        self._let_garbage_go()
        trace = recorded.trace
        trace.info = {**trace.info, **self._info()}
        plan = trace.plan(
            time_limit=self._options.time_limit, streams=self._options.streams or Streams.AUTO
        )
        _log.info("rank %d: %r", self._rank, plan)
        pinned = None
        if self._options.pinned:
            recorded.pinned_trace.info = {**recorded.pinned_trace.info, **self._info()}
            pinned = recorded.plan_pinned(time_limit=self._options.time_limit)
            _log.info("rank %d: pinned memory: %r", self._rank, pinned)
        files = self._files
        if files is not None:
            files.folder.mkdir(parents=True, exist_ok=True)
            trace.save(files.trace, overwrite=True)
            plan.save(files.plan, overwrite=True)
            files.drop_pinned()
            if pinned is not None:
                recorded.pinned_trace.save(files.pinned_trace)
                pinned.save(files.pinned_plan())
            _log.info("rank %d: written to %s", self._rank, files.plan)
        if serve:
            self._serve(plan, pinned)
            if self._session is not None and self._session.enabled:
                self._session.trust()

    def _info(self) -> dict[str, str]:
        return {**self._rank_info, "framework": self._framework}

    def _let_garbage_go(self) -> None:
        if self._collects_garbage:
            self._collects_garbage = False
            gc.enable()

    def _switch_off(self) -> None:
        atexit.unregister(self.finish)
        self._stage = Stage.OFF
        self._let_garbage_go()
        if self._profile is not None and not self._joined:
            self._profile.stop()
        if self._session is not None and self._session.enabled and not self._joined:
            session.disable()
        self._session = None
        self._root = None

    def _leave_to_parent(self) -> None:
        """In a forked child: forgets everything that belongs to the parent, without touching it."""
        if self.active:
            atexit.unregister(self.finish)
            self._stage = Stage.OFF
            self._profile = self._session = self._root = None
            self._let_garbage_go()

    @contextlib.contextmanager
    def _guarded(self) -> Iterator[None]:
        try:
            yield
        except (StallocError, OSError) as e:
            refused = self._joined and self._session is not None
            self._switch_off()
            if self._options.strict or refused:
                raise
            warnings.warn(
                f"stalloc, rank {self._rank}: training goes on unplanned: {e}",
                StallocWarning,
                stacklevel=4,
            )
        except BaseException:
            self._switch_off()
            raise


def _leave_to_parent() -> None:
    for driver in list(_drivers):
        driver._leave_to_parent()


os.register_at_fork(after_in_child=_leave_to_parent)


def _begun() -> Profile | session.Session | None:
    """The profile or session of the whole run that no driver has begun or joined."""
    if _automatic.current is not None:  # the driver's own calls take over from it
        return None
    taken = [x for driver in _drivers if driver.active for x in (driver._profile, driver._session)]
    recording, serving = active_profile(), session.current_session()
    if recording is not None and recording not in taken:
        return recording
    if serving is not None and serving.startup and serving not in taken:
        return serving
    return None


def _tagged_alike(plan: Plan, framework: str) -> bool:
    """True if a driver of the same framework, in any version, reported the plan's phases."""
    return plan.info.get("framework", "").partition(" ")[0] == framework.partition(" ")[0]


def _root_of(model: Model | None) -> nn.Module | None:
    if model is None or isinstance(model, nn.Module):
        return model
    # The root of several chunks is never called; it holds the layers of all.
    return model[0] if len(model) == 1 else nn.ModuleList(model)


def _no_plan(files: RankFiles) -> str:
    others = [path.name for path in files.others()]
    known = f"; there are {', '.join(others)}, for another parallelism" if others else ""
    return (
        f"there is no {files.plan}{known}. Run in mode profile with the parallelism of this run "
        f"first: {described(files.parallelism) or 'all sizes 1'}"
    )
