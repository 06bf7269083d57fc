"""Runs a training script as it is, with stalloc in its trainer.

    torchrun --nproc-per-node 8 -m stalloc.integrations megatron pretrain_gpt.py ...

stalloc is installed as soon as the script makes its engine, booster, accelerator or trainer.
`STALLOC_MODE` and `STALLOC_DIR` choose the mode and the folder; see `stalloc.options.Options`.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from stalloc._script import run_as_main
from stalloc.errors import StallocError
from stalloc.integrations._scripts import FRAMEWORKS


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the script in this process. Returns 1, with a message, if it cannot be run."""
    parser = argparse.ArgumentParser(
        prog="python -m stalloc.integrations",
        description="Runs a training script as it is, with stalloc in its trainer. STALLOC_MODE "
        "(auto, profile, plan, off) and STALLOC_DIR say what to do.",
    )
    parser.add_argument("framework", choices=sorted(FRAMEWORKS), help="the script's framework")
    parser.add_argument("-m", dest="module", action="store_true", help="SCRIPT names a module")
    parser.add_argument("script", metavar="SCRIPT", help="the script to run")
    parser.add_argument(
        "arguments", metavar="...", nargs=argparse.REMAINDER, help="the script's own arguments"
    )
    args = parser.parse_args(arguments)
    path = Path(args.script)
    if not args.module and not path.is_file():
        return _fail(f"{path}: there is no such script")
    sys.path.insert(0, str(Path.cwd() if args.module else path.resolve().parent))
    try:
        FRAMEWORKS[args.framework]()
    except (StallocError, ImportError) as e:
        return _fail(f"{args.framework}: {e}")
    sys.argv = [args.script, *args.arguments]
    run_as_main(args.script, module=args.module)
    return 0


def _fail(message: str) -> int:
    print(f"stalloc: {message}", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
