"""Has a file changed? For files that are read again when they have: looked at by whoever asks, without a timer."""

from __future__ import annotations

from pathlib import Path


def stamp(path: Path) -> object:
    """Another value after the file was written, replaced or removed, its owner or mode changed, or a link turned."""
    try:
        status = path.stat()
    except OSError as error:
        return error.errno
    return status.st_mtime_ns, status.st_ctime_ns, status.st_size, status.st_ino
