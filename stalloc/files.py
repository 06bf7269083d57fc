"""Writing files so that nobody ever sees half of one."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path


def named(path: str | os.PathLike[str]) -> str:
    """A file's name for messages, with escapes for bytes that are no text."""
    return os.fspath(path).encode(errors="backslashreplace").decode()


def write_file(path: Path, content: bytes, *, overwrite: bool) -> None:
    """Writes a file as a whole, or, when anything goes wrong, not at all.

    The content goes to a file without a name first, of which nothing is left whatever becomes of
    the process; only then it takes the name. A device or a pipe, which has no content of its own to
    lose, is written to as it is.

    Raises:
        FileExistsError: There is such a file, and `overwrite` is not set.
        OSError: It cannot be written; it has the file's name.
    """
    if not overwrite:
        check_new(path)
    _check_folder(path)
    if not path.parent.is_dir():
        what = "No such file or directory: make its folder, or choose another"
        raise FileNotFoundError(errno.ENOENT, what, str(path))
    try:
        if _is_stream(path):
            with path.open("wb") as stream:
                stream.write(content)
            return
    except OSError as error:
        raise OSError(error.errno, error.strerror or str(error), str(path)) from None
    try:
        try:
            _write(path, content, overwrite, nameless=True)
        except FileExistsError:
            raise
        except OSError:  # a file system without nameless files, or without links
            _write(path, content, overwrite, nameless=False)
        _sync_folder(path.parent)
    except FileExistsError:
        raise
    except OSError as error:
        raise _refused(error, path) from None


def _write(path: Path, content: bytes, overwrite: bool, *, nameless: bool) -> None:
    with _temporary(path.parent, nameless) as (descriptor, source):
        with open(descriptor, "wb", closefd=False) as file:
            file.write(content)
            file.flush()
            os.fsync(descriptor)
        _name(source, path, overwrite)


@contextlib.contextmanager
def _temporary(folder: Path, nameless: bool) -> Iterator[tuple[int, Path]]:
    """A new file in a folder, open for writing, and the name to link or move it by."""
    if nameless:
        descriptor = os.open(folder, os.O_TMPFILE | os.O_WRONLY, 0o666)
        path = Path(f"/proc/self/fd/{descriptor}")
    else:
        path = folder / f".stalloc-{secrets.token_hex(8)}"
        descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666)
    try:
        yield descriptor, path
    finally:
        os.close(descriptor)
        if not nameless:
            path.unlink(missing_ok=True)


def _name(source: Path, path: Path, overwrite: bool) -> None:
    """Gives the written file its name; unlike a rename, a link never replaces."""
    if not overwrite:
        _link(source, path)
        return
    complete = path.parent / f".stalloc-{secrets.token_hex(8)}"
    _link(source, complete)
    try:
        complete.replace(path)
    except BaseException:
        complete.unlink(missing_ok=True)
        raise


def _link(source: Path, path: Path) -> None:
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        # Only with a folder's descriptor are links of /proc followed to the file.
        os.link(source, path.name, dst_dir_fd=folder)
    except FileExistsError:
        raise _exists(path) from None
    except OSError:  # a file system without hard links
        if source.is_symlink():
            raise
        check_new(path)
        source.rename(path)
    finally:
        os.close(folder)


def _is_stream(path: Path) -> bool:
    try:
        mode = path.stat().st_mode
    except OSError:
        return False
    return stat.S_ISCHR(mode) or stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode)


def check_new(path: Path) -> None:
    """Raises FileExistsError when there is such a file; it may appear right after, all the same."""
    if os.path.lexists(path) and not _is_stream(path):
        raise _exists(path)


def check_output(path: Path, source: Path, *, overwrite: bool) -> None:
    """Refuses, before any work is done, an output that may not be written.

    Raises:
        FileExistsError: There is such a file, and `overwrite` is not set; or it is `source`, which
            is never replaced by what is made of it.
        IsADirectoryError: It is a folder.
    """
    _check_folder(path)
    if not overwrite:
        check_new(path)
    elif path.exists() and source.exists() and path.samefile(source):
        raise FileExistsError(errno.EEXIST, "is the input itself: choose another name", str(path))


def make_folder(path: Path) -> None:
    """Makes a folder, unless it is there, and makes sure that files can be written into it.

    Raises:
        NotADirectoryError: It is a file.
        OSError: It cannot be made, or takes no files; it has the folder's name.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path):
            pass
    except FileExistsError:
        raise NotADirectoryError(errno.ENOTDIR, "is a file: name a folder", str(path)) from None
    except OSError as error:
        raise _refused(error, path) from None


def _refused(error: OSError, path: Path) -> OSError:
    what = f"{error.strerror or error}: choose another folder"
    return OSError(error.errno, what, str(path))


def _check_folder(path: Path) -> None:
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, "is a folder: name a file in it", str(path))


def _exists(path: Path) -> FileExistsError:
    what = "is there already: choose another name, or replace it (--force, overwrite=True)"
    return FileExistsError(errno.EEXIST, what, str(path))


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
