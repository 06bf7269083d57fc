"""The commit that figures come from."""

from __future__ import annotations

import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def last_change(*folders: str) -> str:
    """The last commit that changed these folders; with a `+` if they differ from it."""
    changed = _git("status", "--short", "--", *folders)
    return _git("log", "-1", "--format=%h", "--", *folders) + ("+" if changed else "")


def older_than(commit: str, *folders: str) -> bool:
    """True if these folders differ from what they were at a commit of `last_change`."""
    if not commit or commit.endswith("+"):
        return True
    command = ["git", "diff", "--quiet", commit, "--", *folders]
    done = subprocess.run(command, cwd=ROOT, stderr=subprocess.DEVNULL, check=False)
    return done.returncode != 0


def _git(*arguments: str) -> str:
    done = subprocess.run(
        ["git", *arguments], cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False
    )
    return done.stdout.strip()
