"""Writing files: whole or not at all, on whatever a file system can do."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import Any

import pytest

from stalloc.files import check_output, write_file


@pytest.fixture(params=["all of it", "no nameless files", "no links", "neither"])
def system(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The abilities of the file system."""

    def refuse(*_: Any, **__: Any) -> None:
        raise OSError(errno.EPERM, "Operation not permitted")

    if request.param in ("no nameless files", "neither"):
        monkeypatch.setattr(os, "O_TMPFILE", 0)
    if request.param in ("no links", "neither"):
        monkeypatch.setattr(os, "link", refuse)
    return str(request.param)


def test_a_file_is_written_and_replaced_only_when_asked(system: str, tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_file(path, b"first", overwrite=False)
    with pytest.raises(FileExistsError, match="--force"):
        write_file(path, b"second", overwrite=False)
    assert path.read_bytes() == b"first"
    write_file(path, b"second", overwrite=True)
    assert path.read_bytes() == b"second"
    assert [p.name for p in tmp_path.iterdir()] == ["file"]
    (tmp_path / "other").touch()
    assert path.stat().st_mode == (tmp_path / "other").stat().st_mode


@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError(errno.ENOSPC, "No space left")])
@pytest.mark.parametrize("overwrite", [False, True])
def test_failed_write_leaves_files_unchanged(
    system: str,
    error: BaseException,
    overwrite: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    path = tmp_path / "file"
    if overwrite:
        path.write_bytes(b"mine")

    def fail(_: int) -> None:
        raise error

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises((KeyboardInterrupt, OSError)) as caught:
        write_file(path, b"new", overwrite=overwrite)
    if isinstance(caught.value, OSError):
        assert (caught.value.errno, caught.value.filename) == (errno.ENOSPC, str(path))
    assert [p.read_bytes() for p in tmp_path.iterdir()] == ([b"mine"] if overwrite else [])


def test_a_replacement_that_is_interrupted_leaves_the_old_one(
    system: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"mine")

    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "replace", interrupt)
    with pytest.raises(KeyboardInterrupt):
        write_file(path, b"new", overwrite=True)
    assert [p.read_bytes() for p in tmp_path.iterdir()] == [b"mine"]


def test_a_pipe_or_a_device_is_written_to_and_never_replaced(tmp_path: Path) -> None:
    write_file(Path("/dev/null"), b"gone", overwrite=True)
    assert stat.S_ISCHR(Path("/dev/null").stat().st_mode)
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    write_file(pipe, b"through", overwrite=False)
    assert os.read(reader, 100) == b"through"
    os.close(reader)
    with pytest.raises(OSError, match="No space left on device: '/dev/full'"):
        write_file(Path("/dev/full"), b"x", overwrite=False)


def test_replaces_a_link_and_not_its_target(tmp_path: Path) -> None:
    target, link = tmp_path / "target", tmp_path / "link"
    target.write_bytes(b"mine")
    link.symlink_to(target)
    with pytest.raises(FileExistsError):
        write_file(link, b"new", overwrite=False)
    with pytest.raises(FileExistsError, match="is the input itself"):
        check_output(link, target, overwrite=True)
    write_file(link, b"new", overwrite=True)
    assert (target.read_bytes(), link.read_bytes()) == (b"mine", b"new")
    dangling = tmp_path / "dangling"
    dangling.symlink_to(tmp_path / "nowhere")
    with pytest.raises(FileExistsError):
        write_file(dangling, b"new", overwrite=False)
