"""The key of a job as a file, and what comes from it."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest
from shadowsync.pipeline.errors import JobFileError
from shadowsync.pipeline.wire.keys.job_key import KEY_VARIABLE, JobKey, job_key


def test_a_new_key_is_for_its_owner_alone_and_comes_back(tmp_path: Path) -> None:
    path, key = tmp_path / "job.key", JobKey.generate()
    key.write(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert JobKey.read(path) == key
    assert key.secret.hex() not in repr(key)
    with pytest.raises(JobFileError, match=r"cannot be written .*File exists"):
        JobKey.generate().write(path)
    assert JobKey.read(path) == key


def test_its_pairs_are_its_own() -> None:
    one, other = JobKey.generate(), JobKey.generate()
    keys = [pair for key in (one, other) for pair in (key.server, key.client)]
    assert len({pair.secret for pair in keys}) == len({pair.public for pair in keys}) == 4
    assert JobKey(one.secret).server == one.server
    assert one.server.secret.decode() not in repr(one.server)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "is not a key"),
        ("shadowsync-key-1 " + "0" * 63, "is not a key"),
        ("shadowsync-key-2 " + "0" * 64, "is not a key"),
        ("\xff", "it is not ASCII text"),
    ],
)
def test_what_is_no_key_is_refused(tmp_path: Path, text: str, why: str) -> None:
    path = tmp_path / "job.key"
    path.write_bytes(text.encode("latin-1"))
    path.chmod(0o600)
    with pytest.raises(JobFileError, match=why) as raised:
        JobKey.read(path)
    assert raised.value.where == str(path)
    assert "shadowsync key new FILE" in raised.value.remedy


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o644])
def test_a_key_that_others_can_read_is_refused(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "job.key"
    JobKey.generate().write(path)
    path.chmod(mode)
    with pytest.raises(JobFileError, match="others can read the key"):
        JobKey.read(path)


@pytest.mark.skipif(os.getuid() != 0, reason="gives a file to another user")
def test_a_mounted_secret_of_another_user_is_read(tmp_path: Path) -> None:
    path, key = tmp_path / "job.key", JobKey.generate()
    key.write(path)
    path.chmod(0o444)
    os.chown(path, 65534, 65534)
    assert JobKey.read(path) == key


def test_the_variable_names_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(KEY_VARIABLE, raising=False)
    assert job_key() is None
    path, key = tmp_path / "job.key", JobKey.generate()
    key.write(path)
    monkeypatch.setenv(KEY_VARIABLE, str(path))
    assert job_key() == key
    monkeypatch.setenv(KEY_VARIABLE, str(tmp_path / "absent"))
    with pytest.raises(JobFileError, match=r"cannot be read .*No such file"):
        job_key()
