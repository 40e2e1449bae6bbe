"""Folders that are no place for rows."""

from __future__ import annotations

from pathlib import Path

import pytest
from shadowsync.pipeline.embedding.storage.on_disk.file_system import unfit_for_rows

MOUNTS = r"""22 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw
30 22 0:26 / /tmp rw - tmpfs tmpfs rw
31 22 0:27 / /mnt/shared\040data rw,relatime - nfs4 host:/data rw
32 31 0:28 / /mnt/shared\040data/local rw - xfs /dev/vdb rw
33 22 0:29 / /mnt/bucket rw - fuse.s3fs s3fs rw
"""


@pytest.mark.parametrize(
    ("folder", "said"),
    [
        ("/var/tmp", ""),
        ("/tmp/rows", "/tmp/rows is in memory (tmpfs): rows there take as much of it as rows without a file"),
        (
            "/mnt/shared data/rows",
            "/mnt/shared data/rows is on a network file system (nfs4): each row that is not in memory"
            " crosses it",
        ),
        ("/mnt/shared data/local/rows", ""),
        ("/mnt/bucket", "/mnt/bucket is on a network file system (fuse.s3fs): each row that is not in"),
        # Not below /tmp.
        ("/tmporary", ""),
    ],
)
def test_networks_and_memory_are_told_apart_from_disks(folder: str, said: str, tmp_path: Path) -> None:
    mounts = tmp_path / "mountinfo"
    mounts.write_text(MOUNTS)
    found = unfit_for_rows(Path(folder), mounts)
    assert found.startswith(said)
    assert bool(found) == bool(said)


def test_without_a_list_of_mounts_nothing_is_said(tmp_path: Path) -> None:
    assert unfit_for_rows(Path("/tmp"), tmp_path / "nothing") == ""
