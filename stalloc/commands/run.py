"""`stalloc run`: plans an unchanged training script while it runs, or in two runs."""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import os
import shlex
import signal
import sys
import warnings
from pathlib import Path
from typing import TYPE_CHECKING

import stalloc
from stalloc import _core
from stalloc._auto.settings import LEAST_ITERATIONS, switched_off
from stalloc._auto.status import ENDS
from stalloc._script import Enough, main_restored, run_as_main, show_error
from stalloc.commands.inputs import device_of, naming, positive, read_plan
from stalloc.commands.output import print_json, printable, size
from stalloc.commands.search import INTERRUPTED, searching
from stalloc.commands.termination import saved_when_terminated
from stalloc.errors import StallocError, StallocWarning
from stalloc.files import check_new, make_folder

if TYPE_CHECKING:
    from collections.abc import Iterator
    from importlib.machinery import ModuleSpec

    from stalloc.commands import Subparsers
    from stalloc.plans import Plan
    from stalloc.profiling import Profile
    from stalloc.ranks import RankFiles
    from stalloc.session import Session

PROFILED_ITERATIONS = 5

_MOST_GUESSES = 5  # told at the end of a run that pretends

TERMINATED_TIME_LIMIT = 2.0
"""Seconds to look for a better plan while the run is being ended."""


def add_parser(subparsers: Subparsers) -> argparse.ArgumentParser:
    """Adds the sub-command's parser."""
    parser = subparsers.add_parser(
        "run",
        help="run a training script under a plan made meanwhile; or profile it, or use its plan",
        description="Runs a Python script, or a module with -m, unchanged. Its first iterations "
        "are recorded, a plan is solved in the background, and goes into force if it saves memory. "
        "With --profile the plan is only written; with --plan the script is served from it. "
        f"{ENDS[0].upper()}{ENDS[1:]}. Under torchrun each rank has files of its own.",
        epilog="With --profile, files are written when the script has ended, also by an error, "
        "Ctrl-C, SIGTERM or SIGHUP. Exit codes: the script's own; 1 also when there is nothing to "
        "plan, the plan cannot be read, or it does not fit and --strict is given; 2 wrong usage; "
        "130 interrupted.",
    )
    mode = parser.add_mutually_exclusive_group()
    mode.add_argument(
        "--profile", metavar="DIR", type=Path, help="record and plan, and write both to DIR"
    )
    mode.add_argument(
        "--plan", metavar="DIR", type=Path, help="serve from the plan in DIR, or from a plan file"
    )
    parser.add_argument(
        "--iterations",
        metavar="N",
        type=positive,
        default=PROFILED_ITERATIONS,
        help="iterations to record; then the script continues unrecorded (default: %(default)s; "
        f"without --profile at least {LEAST_ITERATIONS})",
    )
    parser.add_argument(
        "--device",
        metavar="NAME",
        type=device_of,
        help="the device to record: cpu, cuda or cuda:1; with --profile also meta, where nothing "
        "is computed (default: the GPU if torch finds one, else the CPU)",
    )
    parser.add_argument(
        "--target",
        choices=["cpu", "cuda"],
        help="with --device meta: the device that the plan is for; with cpu, the script is the one "
        "that trains there, and ends once its iterations are recorded (default: cuda)",
    )
    parser.add_argument(
        "--pinned",
        action="store_true",
        help="with --profile: record and plan pinned host memory, too, on a GPU in native mode; "
        "--plan serves it if its plan is in DIR",
    )
    parser.add_argument(
        "--corrected",
        metavar="DIR",
        type=Path,
        help="with --plan: write the plan of the first iterations to DIR, for the next run, if the "
        "one given was made without this device, as by stalloc fits --profile",
    )
    parser.add_argument(
        "--strict",
        action="store_true",
        help="fail if the plan does not fit the script, instead of running it unplanned",
    )
    parser.add_argument("--force", action="store_true", help="replace existing files")
    parser.add_argument(
        "--json", action="store_true", help="print one line of JSON when the script has ended"
    )
    add_script(parser)
    return parser


def add_script(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments that name a script and its own arguments."""
    parser.add_argument("-m", dest="module", action="store_true", help="SCRIPT names a module")
    parser.add_argument("script", metavar="SCRIPT", help="the script to run")
    parser.add_argument(
        "arguments", metavar="...", nargs=argparse.REMAINDER, help="the script's own arguments"
    )


def main(args: argparse.Namespace) -> int:
    """Runs the script in this process. Returns its exit code."""
    _check_options(args)
    with as_script(args):
        if args.profile:
            return _profile(args)
        return _planned(args) if args.plan else _automatic(args)


def _check_options(args: argparse.Namespace) -> None:
    """Refuses, as wrong usage, options that do not go together."""
    if args.corrected is not None and not args.plan:
        args.parser.error("--corrected needs --plan: a plan to correct")
    if args.target is not None and (args.profile is None or args.device != "meta"):
        args.parser.error("--target needs --profile DIR --device meta")
    if args.profile:
        return
    if args.device == "meta":
        args.parser.error(
            "--device meta needs --profile DIR: nothing is computed there, so a script that runs "
            "has no memory to plan; leave --device out, or name the device that it trains on"
        )
    if args.plan:
        return
    if args.pinned:
        args.parser.error("--pinned needs --profile DIR, or --plan DIR with what that has written")
    if args.iterations < LEAST_ITERATIONS:
        args.parser.error(
            f"--iterations {args.iterations}: without --profile at least {LEAST_ITERATIONS} are "
            "needed: a warm-up, and two to compare"
        )


@contextlib.contextmanager
def as_script(args: argparse.Namespace) -> Iterator[None]:
    """This process is that of the script: its arguments, and where it finds modules.

    Raises:
        StallocError: There is no such script or module.
    """
    before = sys.argv, sys.path[:]
    sys.argv = [args.script, *args.arguments]
    folder = Path.cwd() if args.module else Path(args.script).resolve().parent
    if not getattr(sys.flags, "safe_path", False):
        sys.path.insert(0, str(folder))
    try:
        _check_script(args)
        with _short_warnings():
            yield
    finally:
        sys.argv, sys.path[:] = before


@contextlib.contextmanager
def _short_warnings() -> Iterator[None]:
    """Shows stalloc's own warnings as one line, without the line of their source."""
    usual = warnings.formatwarning

    def format_warning(
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        line: str | None = None,
    ) -> str:
        if issubclass(category, StallocWarning):
            return f"stalloc: warning: {printable(str(message).removeprefix('stalloc: '))}\n"
        return usual(message, category, filename, lineno, line)

    warnings.formatwarning = format_warning
    try:
        yield
    finally:
        warnings.formatwarning = usual


def _check_script(args: argparse.Namespace) -> None:
    if not args.module:
        if Path(args.script).is_dir():
            raise StallocError(
                f"{args.script}: is a folder: name a script in it, or run a package with -m"
            )
        if not Path(args.script).is_file():
            raise StallocError(f"{args.script}: there is no such script")
        return
    spec = _find_module(args.script)
    if spec is None:
        raise StallocError(f"{args.script}: there is no such module")
    if spec.submodule_search_locations is not None:
        main_module = f"{args.script}.__main__"
        if _find_module(main_module) is None:
            raise StallocError(f"{args.script}: a package that cannot be run: it has no __main__")


def _find_module(name: str) -> ModuleSpec | None:
    if not all(part.isidentifier() for part in name.split(".")):
        return None
    try:
        return importlib.util.find_spec(name)
    except ModuleNotFoundError as error:
        if f"{name}.".startswith(f"{error.name}."):
            return None
        raise  # a parent package has a missing import: the script's own failure


def _profile(args: argparse.Namespace) -> int:
    from stalloc.ranks import RankFiles, use_own_device  # which imports torch

    device = use_own_device(args.device)
    prof = stalloc.profile(
        device=device, iterations=args.iterations, pinned=args.pinned, target=args.target
    )
    folder: Path = args.profile
    make_folder(folder)
    files = RankFiles(folder)
    if not args.force:
        check_new(files.trace)
        check_new(files.plan)
        if args.pinned:
            check_new(files.pinned_trace)
            check_new(files.pinned_plan())
    process = os.getpid()
    replace = args.force

    def save(number: signal.Signals) -> None:
        prof.stop()
        _say_at_once(f"{number.name}: the recording is saved")
        replaces = replace
        try:
            try:
                _, said, _ = _save(prof, args.pinned, files, replaces, TERMINATED_TIME_LIMIT)
            except FileExistsError:
                if replaces or not replace:
                    raise
                # The training thread has begun to write them meanwhile.
                _, said, _ = _save(prof, args.pinned, files, True, TERMINATED_TIME_LIMIT)
            for line in said:
                _say_at_once(line)
        except (StallocError, OSError) as error:
            _say_at_once(" ".join(str(error).split()))

    with saved_when_terminated(save, lambda: prof.is_ending):
        code = _run_pretended(args, prof) if args.target == "cpu" else _run_profiled(args, prof)
        if os.getpid() != process:
            return code  # a child that the script forked: the files are its parent's
        trace = prof.trace
        if code == 0 and len(trace.requests) == 0:
            raise StallocError(
                f"the script asked for no memory on {device}: name the device it trains on with "
                "--device; nothing was written"
            )
        if code != 0 and len(trace.iterations) <= 1:
            return code  # the script has said why
        prof.check()
        if len(trace.iterations) <= 1:
            raise StallocError(
                "0 complete iterations were seen, and at least 2 are needed, better "
                f"{LEAST_ITERATIONS}: train for more steps ({ENDS}); nothing was written"
            )
        replace = True  # files written from here on
        plan, said, interrupted = _save(
            prof, args.pinned, files, args.force, show=sys.stderr.isatty()
        )
    if args.json:
        print_json(
            {
                "mode": "profile",
                "trace": str(files.trace),
                "plan": str(files.plan),
                "iterations": len(trace.iterations) - 1,
                **plan.summary(),
            }
        )
    else:
        for line in said:
            _say(line)
        complete = len(trace.iterations) - 1
        if complete < LEAST_ITERATIONS:
            remedy = "train for more steps" if complete < args.iterations else "raise --iterations"
            _say(
                "a better plan, with a warm-up and two iterations to compare, needs at least "
                f"{LEAST_ITERATIONS} iterations: {remedy}, and profile again"
            )
        if files.rank == 0:
            _say(f"next: {_next_command(args)}")
    return INTERRUPTED if interrupted else code


def _run_profiled(args: argparse.Namespace, prof: Profile) -> int:
    with prof:
        return _run(args)


def _run_pretended(args: argparse.Namespace, prof: Profile) -> int:
    """Runs the script until enough is recorded. What it prints goes to stderr: it has no values."""

    def watch() -> None:
        if prof.complete:
            raise Enough

    prof.watch = watch
    with contextlib.redirect_stdout(sys.stderr):
        code = _run_profiled(args, prof)
    for guess in prof.guesses[:_MOST_GUESSES]:
        _say(f"{guess.line}: {guess.read} was taken for {guess.value}: nothing is computed")
    return code


def _save(
    prof: Profile,
    pinned: bool,
    files: RankFiles,
    force: bool,
    time_limit: float | None = None,
    show: bool = False,
) -> tuple[Plan, list[str], bool]:
    """Writes the trace, plans, and writes the plan; if asked for, those of pinned memory, too.

    Returns the plan, the lines to print, and True if Ctrl-C has cut the search short.
    """
    trace = prof.trace
    trace.save(files.trace, overwrite=force)
    with naming(files.trace), searching(show) as search:
        plan = trace.plan(time_limit=time_limit, progress=search.progress)
    search.check(plan.gap)
    plan.save(files.plan, overwrite=force)
    complete = len(trace.iterations) - 1
    said = [
        f"{_iterations(complete)}, {len(trace.requests):,} requests: {files.trace}",
        f"{_described(plan)}: {files.plan}",
    ]
    if pinned:
        said.append(_save_pinned(prof, files, force, time_limit))
    elif force:
        files.drop_pinned()
    return plan, said, search.interrupted


def _save_pinned(prof: Profile, files: RankFiles, force: bool, time_limit: float | None) -> str:
    """The same for pinned memory. Returns the line to print."""
    prof.pinned_trace.save(files.pinned_trace, overwrite=force)
    plan = prof.plan_pinned(time_limit=time_limit)
    plan.save(files.pinned_plan(), overwrite=force)
    return f"pinned memory, {_described(plan)}: {files.pinned_plan()}"


def _iterations(count: int) -> str:
    return "1 iteration" if count == 1 else f"{count} iterations"


def _described(plan: Plan) -> str:
    pool = f"pool {size(plan.pool)}, gap {plan.gap:.3%}" + ", proven optimal" * plan.optimal
    return pool + (f", resident region {size(plan.resident)}" if plan.resident > 0 else "")


def _next_command(args: argparse.Namespace) -> str:
    """The command that runs the script under its plan, launched as it is now."""
    launcher = "torchrun ... -m " if "TORCHELASTIC_RUN_ID" in os.environ else ""
    module = "-m " if args.module else ""
    rest = shlex.join([args.script, *args.arguments])
    return f"{launcher}stalloc run --plan {shlex.quote(str(args.profile))} {module}{rest}"


def _planned(args: argparse.Namespace) -> int:
    from stalloc.ranks import RankFiles, use_own_device  # which imports torch

    path: Path = args.plan
    plan_file = RankFiles(path).plan if path.is_dir() else path
    pinned_file = RankFiles(plan_file.parent).pinned_plan(plan_file)
    if not plan_file.exists():
        raise StallocError(
            f"{plan_file}: there is no such plan; make it with stalloc run --profile DIR"
        )
    plan = read_plan(plan_file)
    device = plan.info.get("device", "cpu")
    use_own_device(None if device == "meta" else device)
    process = os.getpid()
    pinned = read_plan(pinned_file) if pinned_file.exists() else None
    files = None
    if args.corrected is not None:
        make_folder(args.corrected)
        files = RankFiles(args.corrected)
        if not args.force:
            check_new(files.plan)
    with stalloc.enable(plan, strict=args.strict, startup=True, pinned=pinned) as session:
        code = _run(args)
        stats = stalloc.memory_stats()
    if os.getpid() != process:
        return code  # a child that the script forked: its parent will tell
    corrected = _save_correction(args, files, session)
    if args.json:
        found = session.correction
        correction = found.to_json() if found is not None else None
        answer = {"mode": "plan", "refusal": session.refusal, "correction": correction}
        print_json({**answer, **stats})
    elif not stats["enabled"]:
        _say("the plan was not used" + (f": {session.refusal}" if session.refusal else ""))
    else:
        served = f"no complete iteration was seen ({ENDS})"
        if stats["iterations"] > 0:
            served = (
                f"{_iterations(stats['iterations'])}, hit rate {100 * stats['hit_rate']:.2f} %, "
                f"{stats['startup_requests']} of {stats['startup']} requests of start-up"
            )
        _say(
            f"{served}, {_core.format_bytes(stats['run_peak_reserved'])} reserved at the peak for "
            f"a load of {_core.format_bytes(stats['run_peak_allocated'])}, efficiency "
            f"{stats['run_efficiency']:.4f}"
        )
    if corrected and not args.json:
        _say(corrected)
    if stats["enabled"] and plan.info.get("framework") and not session.followed:
        _say(
            f"{plan.info['framework']} reported the phases of the profile, and nothing reported "
            "them here: serve the plan with the same framework, or profile again"
        )
    return code


def _save_correction(args: argparse.Namespace, files: RankFiles | None, session: Session) -> str:
    """Writes the corrected plan if it is asked for. Returns the line to print."""
    correction = session.correction
    if correction is None:
        return "no plan was corrected" if files is not None else ""
    told = f"the plan was made without this device; {correction}"
    if files is None:
        return told
    correction.plan.save(files.plan, overwrite=args.force)
    return f"{told}: {files.plan}"


def _automatic(args: argparse.Namespace) -> int:
    from stalloc.ranks import use_own_device  # which imports torch

    process = os.getpid()
    device = None if switched_off() else use_own_device(args.device)
    automatic = stalloc.auto(device=device, iterations=args.iterations)
    code = 1
    try:
        code = _run(args)
    finally:
        status = automatic.status()
        # A script that failed has said so, and its end explains the rest.
        automatic.stop(silently=code not in (0, INTERRUPTED))
    if args.json and os.getpid() == process:
        print_json({"mode": "auto", **status})
    return code


def _run(args: argparse.Namespace) -> int:
    """Runs the script as `python` would, and returns the exit code it would have had."""
    with main_restored(waits=True):
        return _ran(args)


def _ran(args: argparse.Namespace) -> int:
    try:
        run_as_main(args.script, module=args.module)
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            return end.code or 0
        print(end.code, file=sys.stderr)
        return 1
    except Enough:
        return 0
    except StallocError:
        raise  # the plan does not fit, and --strict was given
    except KeyboardInterrupt:
        # Ctrl-C ends the script; its profile is kept.
        print("stalloc run: interrupted", file=sys.stderr)
        return INTERRUPTED
    except BaseException as error:
        # The script failed, and its recording is kept.
        show_error(error)
        return 1
    return 0


def _say_at_once(message: str) -> None:
    """Past the stream, which the thread that stands still may be writing to."""
    with contextlib.suppress(OSError):  # the terminal may be gone
        os.write(2, f"stalloc run: {printable(message)}\n".encode())


def _say(message: str) -> None:
    print(f"stalloc run: {printable(message)}", file=sys.stderr)
