"""Atomic writes: files that are whole or not there; one writer at a time."""

import json
import os
import platform
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

if sys.platform != "win32":
    import fcntl

LOCK = ".lock"  # the file that is locked in a folder


def write_file(path: Path, content: bytes) -> None:
    """Write a file that gets its name only when all of it is on the disk.

    Args:
        path: the file; one that is there already is replaced.
        content: what it shall hold.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     write_file(Path(folder) / "a.txt", b"whole")
        ...     [path.name for path in Path(folder).iterdir()]
        ['a.txt']
    """
    with whole_files(path.parent, path.name) as (part,):
        part.write_bytes(content)


@contextmanager
def whole_files(folder: Path, *names: str) -> Iterator[list[Path]]:
    """Write files that belong together, so that no reader finds some old and some new ones.

    Only when all are on the disk do they get their names. The last one is taken away before the
    first gets its name, and comes back at the end: it must be a file without which the others are
    not read. So a crash leaves the old files, the new ones, or an error for their reader.

    Args:
        folder: where the files shall be; made if need be.
        names: what they are called; those that are there already are replaced.

    Yields:
        Where to write each of them, in the ``with`` block.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     with whole_files(Path(folder), "weights", "settings") as (
        ...         weights,
        ...         settings,
        ...     ):
        ...         size = (
        ...             weights.write_bytes(b"0123"),
        ...             settings.write_bytes(b"{}"),
        ...         )
        ...     sorted(path.name for path in Path(folder).iterdir())
        ['settings', 'weights']
    """
    folder.mkdir(parents=True, exist_ok=True)
    parts = [_unfinished(folder / name) for name in names]
    try:
        yield parts
        for part in parts:
            _sync(part, os.O_RDWR)
    except BaseException:  # also Ctrl-C; a full disk gets its room back
        for part in parts:
            with suppress(OSError):
                os.unlink(part)
        raise
    last = folder / names[-1]
    if len(names) > 1 and last.exists():
        os.unlink(last)
        _sync(folder)
    for part, name in zip(parts, names, strict=True):
        os.replace(part, folder / name)
    _sync(folder)


def why_missing(path: Path) -> str:
    """Say what is known of a file that is not there.

    Args:
        path: the file.

    Returns:
        The end of an error message, empty unless :func:`whole_files` was cut off there.

    Example:
        >>> why_missing(Path("nowhere/model.json"))
        ''
    """
    if path.exists() or not _unfinished(path).exists():
        return ""
    return "; it was being written when its writer stopped: write it again"


def read_object(path: Path) -> dict[str, object]:
    """Read a JSON file that holds an object.

    Args:
        path: the file.

    Returns:
        Its content.

    Raises:
        ValueError: if it is missing or damaged, or holds something else.

    Example:
        >>> read_object(Path("nowhere/config.json"))
        Traceback (most recent call last):
        ValueError: nowhere has no config.json
    """
    if not path.is_file():
        raise ValueError(f"{path.parent} has no {path.name}{why_missing(path)}")
    try:
        content: object = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(content, dict):
            raise ValueError("expected an object")
    except ValueError as error:
        raise ValueError(f"{path} is damaged: {error}") from None
    return content


@contextmanager
def lock_folder(folder: str | Path | None) -> Iterator[None]:
    """Keep other processes from writing to a folder, until the ``with`` block ends.

    The lock is one of the operating system, so a process that is killed leaves none behind.
    Windows has no such locks: nothing happens there. Some network drives have none either, which a
    warning says.

    Args:
        folder: the folder, made if need be; ``None`` locks nothing.

    Yields:
        Nothing.

    Raises:
        BlockingIOError: if it is locked; the message says by which process.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     with lock_folder(folder):
        ...         [path.name for path in Path(folder).iterdir()]
        ['.lock']
    """
    if folder is None or sys.platform == "win32":
        yield
        return
    path = Path(folder) / LOCK
    path.parent.mkdir(parents=True, exist_ok=True)
    handle = _lock(path)
    try:
        os.ftruncate(handle, 0)
        os.pwrite(handle, f"{os.getpid()} on {platform.node()}".encode(), 0)
        yield
    finally:
        if _is_at(path, handle):  # before the lock is gone: what is there later is not ours
            os.unlink(path)
        os.close(handle)


def book_folder() -> Path:
    """Find the data and results of the book.

    Returns:
        The folder in the package if that is installed, else in the clone that it belongs to.

    Example:
        >>> (book_folder() / "data" / "shakespeare.txt").is_file()
        True
    """
    package = Path(__file__).resolve().parents[1]
    installed = package / "book"
    return installed if installed.is_dir() else package.parent / "book"


def _lock(path: Path) -> int:
    """Open and lock a file; return its handle."""
    while True:
        handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(handle, 1000, 0).decode(errors="replace") or "unknown"
            os.close(handle)
            raise BlockingIOError(
                f"folder={str(path.parent)!r} is in use by process {holder}; "
                "expected a folder that nobody else writes to"
            ) from None
        except OSError as error:
            warnings.warn(f"{path} cannot be locked: {error}; let no other write", stacklevel=4)
            return handle
        if _is_at(path, handle):
            return handle
        os.close(handle)  # its last holder has removed it since we opened it: try the new one


def _is_at(path: Path, handle: int) -> bool:
    """Whether an open file is the one that a path leads to."""
    with suppress(FileNotFoundError):
        return os.path.samestat(os.stat(path), os.fstat(handle))
    return False


def _unfinished(path: Path) -> Path:
    return path.with_name(f".{path.name}.part")


def _sync(path: Path, flags: int = os.O_RDONLY) -> None:
    """Wait until a file, or the names in a folder, are on the disk."""
    if os.name != "posix" and path.is_dir():  # Windows has no call for that
        return
    handle = os.open(path, flags)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
