"""Where torch's own tests come from: the source package of PyTorch that Debian has.

A wheel of torch has the helpers of its tests, but not the tests. Debian's source package has them,
for few versions; the one nearest to the torch that runs is taken. apt-get verifies it. Nothing of
the machine's own set-up of apt changes: lists and downloads lie in the cache folder.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Iterable
from pathlib import Path

SUITES = ("stable", "testing", "unstable")
KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")


class SourceError(Exception):
    """No tests of torch are to be had."""


def numbers(version: str) -> tuple[int, ...]:
    """The numbers of a version: (2, 6, 0) of "2.6.0+dfsg-7"."""
    return tuple(int(part) for part in re.findall(r"\d+", re.split(r"[^\d.]", version)[0]))


def nearest_first(versions: Iterable[str], torch: str) -> list[str]:
    """Debian's versions, the nearest to a version of torch first, and of two as near the newer."""

    def distance(version: str) -> tuple[tuple[int, ...], tuple[int, ...]]:
        ours, wanted = numbers(version), numbers(torch)
        return tuple(abs(a - b) for a, b in zip(ours, wanted, strict=False)), tuple(
            -n for n in ours
        )

    return sorted(set(versions), key=distance)


class _Apt:
    """apt-get with a folder of its own, and the source packages of newer suites."""

    def __init__(self, folder: Path) -> None:
        if shutil.which("apt-get") is None:
            raise SourceError("there is no apt-get here")
        self._folder = folder
        for name in ("lists/partial", "cache/archives/partial"):
            (folder / name).mkdir(parents=True, exist_ok=True)
        keyring = f"[signed-by={KEYRING}] " if KEYRING.exists() else ""
        (folder / "sources.list").write_text(
            "".join(
                f"deb-src {keyring}{mirror} {suite} main\n"
                for mirror in self._mirrors()
                for suite in SUITES
            )
        )

    @staticmethod
    def _mirrors() -> list[str]:
        """The mirrors of Debian that this machine uses."""
        found = subprocess.run(
            ["apt-get", "indextargets", "--format", "$(ORIGIN)\t$(CODENAME)\t$(REPO_URI)"],
            capture_output=True,
            text=True,
            check=False,
        ).stdout
        targets = [line.split("\t") for line in found.splitlines()]
        mirrors = {
            uri
            for origin, codename, uri in targets
            if origin == "Debian" and not codename.endswith("-security")
        }
        if not mirrors:
            raise SourceError("apt knows no mirror of Debian here; run `apt-get update` once")
        return sorted(mirrors)

    def call(self, program: str, *arguments: str, cwd: Path | None = None) -> str | None:
        """The output, or None if it failed."""
        options = {
            "Dir::Etc::sourcelist": self._folder / "sources.list",
            "Dir::Etc::sourceparts": "-",
            "Dir::State::lists": self._folder / "lists",
            "Dir::Cache": self._folder / "cache",
            "APT::Sandbox::User": "root",
        }
        done = subprocess.run(
            [program, "-q", *(f"-o{k}={v}" for k, v in options.items()), *arguments],
            capture_output=True,
            text=True,
            cwd=cwd,
            check=False,
        )
        return done.stdout if done.returncode == 0 else None


def _unpack(archive: Path, folder: Path) -> None:
    """Unpacks the tests alone."""
    with tarfile.open(archive) as tar:
        for member in tar:
            _, _, inner = member.name.partition("/")
            if inner.startswith("test/") and (member.isfile() or member.isdir()):
                member.name = inner
                tar.extract(member, folder, filter="data")


def tests_of_torch(cache: Path, torch: str) -> tuple[Path, str]:
    """The folder of torch's tests, fetched the first time, and the version they are of.

    Raises:
        SourceError: Debian's package cannot be had.
    """
    done = cache / "version"
    if done.exists():
        return cache / "test", done.read_text()
    apt = _Apt((cache / "apt").absolute())
    apt.call("apt-get", "update")
    versions = re.findall(
        r"^Version: (\S+)$", apt.call("apt-cache", "showsrc", "pytorch") or "", re.MULTILINE
    )
    for version in nearest_first(versions, torch):
        # A suite's list may be older than the mirror: then the next version is taken.
        source = f"pytorch={version}"
        with tempfile.TemporaryDirectory(dir=cache) as folder:
            if apt.call("apt-get", "source", "--download-only", source, cwd=Path(folder)) is None:
                continue
            (archive,) = Path(folder).glob("pytorch_*.orig.tar.*")
            _unpack(archive, cache)
        release = ".".join(map(str, numbers(version)))
        done.write_text(release)
        return cache / "test", release
    known = ", ".join(versions) or "none is known"
    raise SourceError(f"none of Debian's versions of pytorch can be had ({known})")
