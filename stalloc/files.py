"""Writing files so that nobody ever sees half of one."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
from pathlib import Path


def write_file(path: Path, content: bytes, *, overwrite: bool) -> None:
    """Writes a file as a whole, or, when anything goes wrong, not at all.

    The content goes to a temporary file in the same folder first, which then takes the name.

    Raises:
        FileExistsError: There is such a file, and `overwrite` is not set.
        OSError: It cannot be written.
    """
    if not overwrite:
        check_new(path)
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, "is a folder: name a file in it", str(path))
    if not path.parent.is_dir():
        what = "No such file or directory: make its folder, or choose another"
        raise FileNotFoundError(errno.ENOENT, what, str(path))
    temporary = path.parent / f".{path.name}.{secrets.token_hex(8)}"
    try:
        with temporary.open("xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        if overwrite:
            temporary.replace(path)
        else:
            try:
                os.link(temporary, path)  # unlike a rename it never replaces
            except FileExistsError:
                raise _exists(path) from None
            except OSError:  # a file system without hard links
                _move_to_new(temporary, path)
        _sync_folder(path.parent)
    finally:
        with contextlib.suppress(FileNotFoundError):
            temporary.unlink()


def check_new(path: Path) -> None:
    """Raises FileExistsError when there is such a file; it may appear right after, all the same."""
    if os.path.lexists(path):
        raise _exists(path)


def check_output(path: Path, source: Path, *, overwrite: bool) -> None:
    """Refuses, before any work is done, an output that may not be written.

    Raises:
        FileExistsError: There is such a file, and `overwrite` is not set; or it is `source`, which
            is never replaced by what is made of it.
    """
    if not overwrite:
        check_new(path)
    elif path.exists() and source.exists() and path.samefile(source):
        raise FileExistsError(errno.EEXIST, "is the input itself: choose another name", str(path))


def _exists(path: Path) -> FileExistsError:
    what = "is there already: choose another name, or replace it (--force, overwrite=True)"
    return FileExistsError(errno.EEXIST, what, str(path))


def _move_to_new(temporary: Path, path: Path) -> None:
    check_new(path)
    temporary.rename(path)


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
