"""Credentials for s3 come from the file that Amazon's own programs share, if from nowhere before."""

from __future__ import annotations

from pathlib import Path

import pytest
from shadowsync.pipeline.checkpoint.store.aws_profile import profile_credentials
from shadowsync.pipeline.checkpoint.store.contract import StorageError
from shadowsync.tests.support.outside.s3_server import write_credentials

KEYS = {"aws_access_key_id": "mine", "aws_secret_access_key": "secret%"}


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the file of this user is, of which nothing else says where."""
    for name in (
        "AWS_ACCESS_KEY_ID",
        "AWS_WEB_IDENTITY_TOKEN_FILE",
        "AWS_SHARED_CREDENTIALS_FILE",
        "AWS_PROFILE",
    ):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    path = tmp_path / ".aws" / "credentials"
    path.parent.mkdir()
    return path


def test_it_is_read_again_each_time(file: Path) -> None:
    write_credentials(file, KEYS)
    read = profile_credentials()
    assert read is not None
    first = read()
    assert (first["access_key_id"], first["secret_access_key"], first["token"]) == ("mine", "secret%", None)
    write_credentials(file, {**KEYS, "aws_access_key_id": "renewed", "aws_session_token": "t"})
    second = read()
    assert (second["access_key_id"], second["token"]) == ("renewed", "t")
    file.unlink()
    with pytest.raises(ValueError, match="no keys of the profile default can be read"):
        read()


@pytest.mark.parametrize("name", ["AWS_ACCESS_KEY_ID", "AWS_WEB_IDENTITY_TOKEN_FILE"])
def test_those_of_the_environment_come_first(file: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    write_credentials(file, KEYS)
    assert profile_credentials() is not None, "the control"
    monkeypatch.setenv(name, "x")
    assert profile_credentials() is None


def test_without_keys_the_role_of_the_machine_is_used(file: Path) -> None:
    assert profile_credentials() is None
    write_credentials(file, {"role_arn": "x"})
    assert profile_credentials() is None


def test_a_profile_that_is_named_must_be_there(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_credentials(file, KEYS, "work")
    monkeypatch.setenv("AWS_PROFILE", "work")
    read = profile_credentials()
    assert read is not None
    assert read()["access_key_id"] == "mine"
    monkeypatch.setenv("AWS_PROFILE", "other")
    with pytest.raises(StorageError, match="no keys of the profile other can be read") as caught:
        profile_credentials()
    assert caught.value.where == str(file)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(file.with_name("none")))
    with pytest.raises(StorageError, match="No such file"):
        profile_credentials()
