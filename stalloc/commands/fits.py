"""`stalloc fits`: tells whether an unchanged training script fits a GPU, without one."""

from __future__ import annotations

import argparse
import contextlib
import functools
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from stalloc.commands import curve
from stalloc.commands.inputs import positive
from stalloc.commands.output import (
    print_facts,
    print_json,
    print_table,
    print_text,
    printable,
    size,
)
from stalloc.commands.run import add_script, as_script
from stalloc.commands.stages import STAGES, failure, print_stages
from stalloc.errors import StallocError
from stalloc.files import check_new, make_folder

if TYPE_CHECKING:
    from collections.abc import Callable

    from stalloc._estimate.advice import Advice, Recorded
    from stalloc._estimate.answer import Estimate
    from stalloc._estimate.largest import Largest
    from stalloc._estimate.means import Activations
    from stalloc._estimate.recording import Recording
    from stalloc._estimate.stages import Stages
    from stalloc._estimate.world import World
    from stalloc.commands import Subparsers
    from stalloc.ranks import RankFiles

FITS, DOES_NOT_FIT, UNANSWERED = 0, 1, 2

_ALLOCATORS = {
    "torch": "torch",
    "expandable": "torch, expandable segments",
    "stalloc": "stalloc",
}
_EXTENTS = {"rows": "--batch-size", "tokens": "--seq-len"}
"""The extents of a batch that `--largest` knows, each with an option that may tell it."""

_LEAST_ITERATIONS = 2
_MOST_GUESSES = 12
_MOST_ADVICE = 12


def add_parser(subparsers: Subparsers) -> argparse.ArgumentParser:
    """Adds the sub-command's parser."""
    parser = subparsers.add_parser(
        "fits",
        help="tell what an unchanged training script needs of a GPU, without one",
        description="Runs a Python script, or a module with -m, unchanged, on a GPU that only "
        "pretends: models and batches have shapes and no memory, and nothing is computed. Data, "
        "tokenizers and files are real. A few iterations are recorded, then the script is ended.",
        epilog="The script's own output goes to stderr. Exit codes: 0 the script fits; 1 it does "
        "not, or not surely; 2 the script cannot be answered, or wrong usage.",
    )
    parser.add_argument(
        "--gpu",
        metavar="GPU",
        required=True,
        help="the GPU's name, such as H100 or 'RTX 3060', or its memory, such as 80GiB",
    )
    parser.add_argument(
        "--iterations",
        metavar="N",
        type=positive,
        default=3,
        help="iterations to record (default: %(default)s)",
    )
    parser.add_argument(
        "--allocator",
        choices=list(_ALLOCATORS),
        default="torch",
        help="whose verdict the exit code is (default: %(default)s)",
    )
    parser.add_argument(
        "--world",
        metavar="N",
        type=positive,
        help="run the script as one of N processes, as torchrun starts them",
    )
    parser.add_argument(
        "--rank",
        metavar="R",
        type=_rank,
        default=0,
        help="the rank of the process among them (default: %(default)s), or stages: one rank of "
        "each stage of a pipeline, side by side",
    )
    parser.add_argument(
        "--largest",
        metavar="WHAT",
        type=_values,
        help="find the largest that fits: rows or tokens, if the script's arguments tell its batch "
        "or length, or any option with values to run first, as in --largest=--batch-size=4,8,12",
    )
    parser.add_argument(
        "--advise",
        action="store_true",
        help="list means with which the script fits, cheapest first; it is run several times",
    )
    parser.add_argument(
        "--profile",
        metavar="DIR",
        type=Path,
        help="write the recording and its plan to DIR: stalloc run --plan DIR serves the script "
        "from its first request, and corrects the plan",
    )
    parser.add_argument("--force", action="store_true", help="replace existing files")
    parser.add_argument("--json", action="store_true", help="print one line of JSON")
    add_script(parser)
    return parser


def main(args: argparse.Namespace) -> int:
    """Runs the script in this process. Returns the exit code."""
    largest: Largest | None = None
    stages: Stages | None = None
    option = ""
    advice: list[Advice] | None = None
    failed: list[str] = []
    try:
        if args.advise and (args.largest is not None or args.allocator == "stalloc"):
            raise StallocError(
                "--advise goes with --allocator torch or expandable, and without --largest"
            )
        if args.iterations < _LEAST_ITERATIONS:
            raise StallocError("--iterations: at least 2 are needed; the first one only warms up")
        if args.rank == STAGES and args.largest is not None:
            raise StallocError(
                "--largest goes with one rank: run --rank stages first, then --largest with "
                "--rank R, the stage that needs the most"
            )
        files = _files(args)
        if args.largest is not None:
            option, largest = _largest(args)
            estimate, ended = largest.estimate, ""
        elif args.rank == STAGES:
            stages, worlds = _stages(args)
            if reason := failure(stages):
                return _unanswered(args, reason, stages)
            chosen = stages.largest(_ALLOCATORS[args.allocator])
            assert chosen.estimate is not None
            estimate, ended, args.rank = chosen.estimate, chosen.reason, chosen.rank
            if args.advise:
                again = _run_as(args, worlds(chosen.rank), args.arguments)[0]
                advice, failed = _advice(args, again)
        else:
            recording, ended = _recorded(args, args.arguments)
            estimate = recording.answer()
            if args.advise:
                advice, failed = _advice(args, recording)
        saved = "" if files is None else _save_all(files, stages, estimate, args.force)
    except StallocError as error:
        return _unanswered(args, str(error))
    except OSError as error:
        return _unanswered(args, f"{error.filename}: {error.strerror or error}")
    allocator = _ALLOCATORS[args.allocator]
    needs = {need.allocator: need for need in estimate.needs}
    if allocator not in needs:
        print("stalloc fits: no answer: no complete iteration to plan was seen", file=sys.stderr)
        return UNANSWERED
    verdict = needs[allocator].verdict
    if args.json:
        answer: dict[str, object] = {"verdict": verdict, "allocator": allocator, "ended": ended}
        if largest is not None:
            answer["largest"] = {
                "option": option,
                "value": largest.value,
                "recorded": list(largest.recorded),
                "proven": largest.proven,
                "predicted": largest.predicted,
            }
        if stages is not None:
            answer["rank"] = args.rank
            answer["stages"] = [stage.to_json(allocator) for stage in stages.stages]
        if advice is not None:
            answer["advice"] = [asdict(each) for each in advice]
            answer["not_tried"] = failed
        print_json({**answer, **estimate.to_json()})
    else:
        if stages is not None:
            print_stages(stages, allocator)
        _print(estimate, allocator, ended)
        if advice is not None:
            _print_advice(advice, failed)
        if largest is not None:
            print_text(
                f"{option}={largest.value} is the largest that fits. Recorded with "
                f"{', '.join(map(str, largest.recorded))}; laws prove {largest.proven:.1%} of the "
                "sizes."
            )
            held = estimate.need(allocator).reserved
            if largest.predicted and abs(largest.predicted - held) > held / 50:
                print_text(
                    f"Recorded with it, {size(held)} are reserved, where the laws of the sizes "
                    f"said {size(largest.predicted)}: perhaps the script has fewer data than one "
                    "such batch."
                )
        if saved:
            print_text(saved)
    return FITS if verdict == "fits" else DOES_NOT_FIT


def _unanswered(args: argparse.Namespace, reason: str, stages: Stages | None = None) -> int:
    message = printable(" ".join(reason.split()))
    allocator = _ALLOCATORS[args.allocator]
    if args.json:
        answer: dict[str, object] = {"verdict": None, "reason": message}
        if stages is not None:
            answer["stages"] = [stage.to_json(allocator) for stage in stages.stages]
        print_json(answer)
    elif stages is not None:
        print_stages(stages, allocator)
    print(f"stalloc fits: no answer: {message}", file=sys.stderr)
    return UNANSWERED


def _rank(text: str) -> int | str:
    """The number of a rank, or `stages`."""
    if text == STAGES:
        return text
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is neither a rank nor {STAGES}") from None


def _stages(args: argparse.Namespace) -> tuple[Stages, Callable[[int], World]]:
    """The stages, and each rank with what the others have sent it."""
    from stalloc._estimate.stages import walk_side_by_side

    def run(world: World) -> tuple[Estimate, str, set[int]]:
        recording, ended = _run_as(args, world, args.arguments)
        return recording.answer(), ended, recording.peers

    return walk_side_by_side(args.world, run)


def _files(args: argparse.Namespace) -> RankFiles | None:
    """The files to write, of rank 0 for `--rank stages`; None: none."""
    if args.profile is None:
        return None
    from stalloc.ranks import RankFiles  # which imports torch

    if args.largest is not None:
        raise StallocError(
            "--profile goes without --largest: run it again with the value that was found"
        )
    make_folder(args.profile)
    files = RankFiles(args.profile, 0 if args.rank == STAGES else args.rank)
    if not args.force:
        check_new(files.trace)
        check_new(files.plan)
    return files


def _save_all(files: RankFiles, stages: Stages | None, estimate: Estimate, replace: bool) -> str:
    """Writes the files of each stage, or of the one rank. Returns the line to print."""
    if stages is None:
        return _save(files, estimate, replace)
    every = [(type(files)(files.folder, stage.rank), stage.estimate) for stage in stages.stages]
    if not replace:
        for other, _ in every:
            check_new(other.trace)
            check_new(other.plan)
    lines = [_save(other, one, replace) for other, one in every if one is not None]
    return lines[-1]


def _save(files: RankFiles, estimate: Estimate, replace: bool) -> str:
    """Writes the recording and its plan. Returns the line to print."""
    if estimate.plan is None:
        return "Nothing was written: no complete iteration to plan was seen."
    from stalloc._estimate.answer import with_verdict

    with_verdict(estimate).save(files.trace, overwrite=replace)
    estimate.plan.save(files.plan, overwrite=replace)
    return (
        f"The run's plan: stalloc run --plan {files.folder}. Its page: stalloc report {files.trace}"
    )


def _values(text: str) -> tuple[str, tuple[int, ...]]:
    """The script's option and the values to try, as in `--batch-size=4,8,12`; or a known extent."""
    if text in _EXTENTS:
        return text, ()
    option, _, listed = text.rpartition("=")
    parts = listed.split(",")
    if not option or not all(part.isdecimal() and int(part) > 0 for part in parts):
        raise argparse.ArgumentTypeError(
            f"{text!r} is neither rows, nor tokens, nor an option with values, as in "
            "--largest=--batch-size=4,8,12"
        )
    values = tuple(sorted({int(part) for part in parts}))
    if len(values) < 2:
        raise argparse.ArgumentTypeError(f"{text!r}: at least two different values are needed")
    return option, values


def _advice(args: argparse.Namespace, recording: Recording) -> tuple[list[Advice], list[str]]:
    from stalloc._estimate.advice import Adviser
    from stalloc._estimate.arguments import divided

    def run(activations: Activations, number: int) -> Recorded | None:
        arguments = args.arguments if number == 1 else divided(args.arguments, number)
        if arguments is None:
            return None
        if number == 1:  # what other ranks have sent still holds
            return _run_as(args, recording.world, arguments, activations)[0].recorded()
        return _recorded(args, arguments, activations)[0].recorded()

    sharded = args.world is not None
    adviser = Adviser(run, _ALLOCATORS[args.allocator], args.iterations, sharded=sharded)
    return adviser.advise(recording.recorded()), adviser.failed


def _print_advice(advice: list[Advice], failed: list[str]) -> None:
    if advice and not advice[0].means:
        return
    if advice:
        print_table(
            "Means with which it fits, cheapest first",
            ("means", "reserved", "left", "recomputed", "to the host", "to GPUs", "how"),
            [
                (
                    " and ".join(each.means),
                    _short(each.reserved),
                    _short(each.free),
                    f"{each.recomputed:.0%}",
                    _short(each.transferred),
                    _short(each.sent),
                    "; ".join(each.how),
                )
                for each in advice[:_MOST_ADVICE]
            ],
            text=("how",),
        )
    else:
        print_text("None of the known means makes it fit, nor two of them together.")
    for reason in failed:
        print_text(f"Not tried: {reason}")


def _largest(args: argparse.Namespace) -> tuple[str, Largest]:
    """The option, and its largest value."""
    from stalloc._estimate import arguments
    from stalloc._estimate.largest import find
    from stalloc._estimate.values import Unanswerable

    option, values = args.largest
    if args.allocator == "stalloc":
        raise StallocError("--largest needs --allocator torch or expandable")
    known = None
    if not values:
        known = arguments.find(args.arguments, arguments.NAMES[option])
        if known is None or known.value == 0:
            example = _EXTENTS[option]
            raise StallocError(
                f"--largest {option}: no argument of the script tells its {option}; give it one, "
                f"such as {example} 8, or name the option and values: --largest={example}=4,8,12"
            )
        option = known.name
    tries = [values] if known is None else arguments.steps(known.value)

    @functools.cache
    def run(value: int) -> Estimate:
        given = args.arguments
        changed = known.changed(given, value) if known else [*given, f"{option}={value}"]
        return _estimated(args, changed)

    for values in tries[:-1]:
        with contextlib.suppress(Unanswerable):
            return option, find(run, values, _ALLOCATORS[args.allocator])
    return option, find(run, tries[-1], _ALLOCATORS[args.allocator])


def _estimated(args: argparse.Namespace, arguments: list[str]) -> Estimate:
    return _recorded(args, arguments)[0].answer(plan=False)


def _recorded(
    args: argparse.Namespace, arguments: list[str], activations: Activations | None = None
) -> tuple[Recording, str]:
    from stalloc._estimate.world import world_of

    return _run_as(args, world_of(args.world, args.rank), arguments, activations)


def _run_as(
    args: argparse.Namespace,
    world: World | None,
    arguments: list[str],
    activations: Activations | None = None,
) -> tuple[Recording, str]:
    from stalloc._estimate.cards import card_of
    from stalloc._estimate.recording import Recording
    from stalloc._estimate.scripts import run_script
    from stalloc._estimate.world import run_as

    script = argparse.Namespace(**{**vars(args), "arguments": arguments})

    def run(world: World | None) -> tuple[Recording, str]:
        with as_script(script):
            recording = Recording(card_of(args.gpu), args.iterations, world, activations)
            return recording, run_script(recording, args.script, module=args.module)

    return run_as(world, run)


def _print(estimate: Estimate, allocator: str, ended: str) -> None:
    card = estimate.card
    assert card is not None  # --gpu is required
    where = estimate.phase + (f", in {estimate.layer}" if estimate.layer else "")
    print_facts(
        {
            "GPU": f"{card.name}, {size(card.memory)}",
            "load": size(estimate.load),
            "most is live": where,
            "recorded": f"{estimate.iterations} iterations, {estimate.requests:,} requests",
        }
    )
    print_table(
        "The load at its peak",
        ("part", "bytes", "share"),
        [
            (name, size(part), f"{part / estimate.load:.1%}")
            for name, part in estimate.parts.items()
        ],
    )
    print_text("")
    print_text("Live bytes over the run, and the limit: the GPU less the most that extras take")
    print("\n".join(curve.draw(estimate.live, estimate.limit)))
    print_table(
        "Needed of the GPU",
        ("allocator", "reserved", "with extras, at least", "at most", "left", "verdict"),
        [
            (
                need.allocator,
                *(size(value) for value in (need.reserved, need.low, need.high)),
                _signed(need.free or 0),
                need.verdict or "",
            )
            for need in estimate.needs
        ],
        text=("verdict",),
    )
    print_table(
        "Extras beside the allocator",
        ("holder", "at least", "at most", "source"),
        [
            (extra.name, size(extra.low), size(extra.high), extra.source)
            for extra in estimate.extras
        ],
        text=("source",),
    )
    if estimate.guesses:
        print_table(
            "Guesses: values that the script read, and that were not computed",
            ("line", "read", "answer", "times"),
            [
                (guess.line, guess.read, guess.value, str(guess.times))
                for guess in estimate.guesses[:_MOST_GUESSES]
            ],
            text=("read", "answer"),
        )
        left = len(estimate.guesses) - _MOST_GUESSES
        if left > 0:
            print(f"... and {left} more; --json has all")
    print()
    if ended:
        print_text(f"The script ended early: {ended}")
    need = estimate.need(allocator)
    margin = f"{size(abs(need.free or 0))} "
    if (need.free or 0) >= 0:
        margin += "to spare"
    elif need.verdict == "fits":
        margin += "of what it would cache go back to the device before it runs out"
    else:
        margin += "missing at the upper end"
    print_text(f"{need.verdict} on {card.name} with {need.allocator}: {margin}")


def _short(count: int) -> str:
    """Bytes without their exact number."""
    return _signed(count).partition(" (")[0]


def _signed(count: int) -> str:
    return size(count) if count >= 0 else f"-{size(-count)}"
