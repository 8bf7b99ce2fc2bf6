"""On what kind of file system does a path lie? SQLite's locks and fsync are only as good as it."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

MOUNT_TABLE = Path("/proc/self/mountinfo")

# Types of the kernel's mount table. `fuse.sshfs` and the like count as fuse; `fuseblk` is a local disk.
NETWORK_TYPES = frozenset(
    (
        *("9p", "afs", "beegfs", "ceph", "cifs", "coda", "fuse", "glusterfs", "gpfs", "lustre", "ncpfs"),
        *("nfs", "nfs4", "orangefs", "panfs", "smb2", "smb3", "smbfs", "wekafs"),
    )
)


@dataclass(frozen=True)
class Mount:
    """One mounted file system."""

    point: str
    type: str
    source: str

    @property
    def network(self) -> bool:
        return self.type.partition(".")[0] in NETWORK_TYPES


def mount_of(path: Path, table: Path = MOUNT_TABLE) -> Mount | None:
    """The file system that `path` lies on, or will lie on once it is made; None where the kernel does not say."""
    try:
        lines = table.read_text(errors="surrogateescape").splitlines()
    except OSError:
        return None
    real = os.path.realpath(path)
    found: Mount | None = None
    for mount in filter(None, map(_parse, lines)):
        inside = real == mount.point or real.startswith(mount.point.rstrip("/") + "/")
        # A later mount on the same point hides an earlier one.
        if inside and (found is None or len(mount.point) >= len(found.point)):
            found = mount
    return found


def _parse(line: str) -> Mount | None:
    """`36 35 98:0 /root /point options [fields...] - type source options` (proc_pid_mountinfo(5))."""
    left, separator, right = line.partition(" - ")
    before, after = left.split(" "), right.split(" ")
    if not separator or len(before) < 5 or len(after) < 2:
        return None
    return Mount(_plain(before[4]), after[0], _plain(after[1]))


def _plain(text: str) -> str:
    """Spaces and the like are written in octal."""
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), text)
