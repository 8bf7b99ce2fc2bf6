"""Where a store may lie: the kernel's mount table decides."""

from __future__ import annotations

from pathlib import Path

import pytest

from controller.store import file_system, sqlite
from controller.store.file_system import Mount, mount_of
from controller.store.interface import StoreError
from controller.store.sqlite import SqliteStore
from tests.store.records import nobody

TABLE = """\
22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw
30 22 0:40 / /srv rw shared:2 - nfs4 filer:/srv rw,vers=4.2
31 30 8:2 / /srv/local rw - xfs /dev/sda2 rw
32 22 0:41 / /mnt/with\\040space rw master:3 propagate_from:4 - fuse.sshfs user@host: rw
33 22 0:42 / /over rw - cifs //filer/share rw
34 22 8:3 / /over rw - ext4 /dev/sda3 rw
35 22 8:4 / /win rw - fuseblk /dev/sda4 rw
not a line of it
"""


@pytest.fixture
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "mountinfo"
    path.write_text(TABLE)
    monkeypatch.setattr(sqlite, "mount_of", lambda asked: mount_of(asked, path))
    return path


@pytest.mark.parametrize(
    ("path", "point", "network"),
    [
        ("/var/lib/motor/controller.sqlite3", "/", False),
        ("/srv/motor/store", "/srv", True),
        ("/srv", "/srv", True),
        ("/srvother/store", "/", False),
        ("/srv/local/store", "/srv/local", False),
        ("/mnt/with space/store", "/mnt/with space", True),
        ("/over/store", "/over", False),
        ("/win/store", "/win", False),
    ],
)
def test_the_mount_of_a_path(table: Path, path: str, point: str, network: bool) -> None:
    found = mount_of(Path(path), table)
    assert found is not None and (found.point, found.network) == (point, network)


@pytest.mark.parametrize("kind", ["nfs", "nfs4", "cifs", "smb3", "fuse.sshfs", "9p", "lustre", "gpfs", "ceph"])
def test_network_types(kind: str) -> None:
    assert Mount("/", kind, "x").network


def test_symbolic_links_are_followed(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    table = tmp_path / "mountinfo"
    table.write_text(f"1 0 8:1 / / rw - ext4 d rw\n2 1 0:5 / {tmp_path / 'real'} rw - nfs filer:/x rw\n")
    found = mount_of(tmp_path / "link" / "store", table)
    assert found is not None and found.type == "nfs"


def test_the_real_table_can_be_read_and_a_missing_one_refuses_nothing(tmp_path: Path) -> None:
    real = mount_of(tmp_path)
    assert real is not None and real.point.startswith("/") and not real.network
    assert mount_of(tmp_path, tmp_path / "none") is None


async def test_a_store_on_a_network_file_system_is_refused_unless_it_is_allowed(tmp_path: Path, table: Path) -> None:
    table.write_text(f"1 0 8:1 / / rw - ext4 d rw\n2 1 0:5 / {tmp_path} rw - nfs4 filer:/x rw\n")
    path = tmp_path / "deep" / "store.sqlite3"
    with pytest.raises(StoreError) as caught:
        await SqliteStore(path).open(nobody)
    expected = f"{path}: expected a local file system, {tmp_path} is nfs4 from filer:/x"
    assert str(caught.value).startswith(expected) and "store.allow_network_fs: true" in str(caught.value)
    assert not path.parent.exists(), "nothing was made there"
    store = SqliteStore(path, allow_network_fs=True)
    assert (await store.open(nobody)).epoch == 1
    await store.close()


def test_the_types_are_the_kernels_names() -> None:
    assert "fuseblk" not in file_system.NETWORK_TYPES and "ext4" not in file_system.NETWORK_TYPES
