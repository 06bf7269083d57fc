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
