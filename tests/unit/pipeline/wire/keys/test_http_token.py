"""The token of a job's HTTP servers: where it comes from, and where it is wanted."""

from __future__ import annotations

from pathlib import Path

import pytest
from shadowsync.pipeline.errors import JobFileError
from shadowsync.pipeline.wire.keys.http_token import (
    TOKEN_VARIABLE,
    given_token,
    http_warnings,
    read_token,
    required_token,
)
from shadowsync.pipeline.wire.keys.job_key import INSECURE_VARIABLE, KEY_VARIABLE, JobKey

OPEN = ("0.0.0.0", "::", "10.0.0.1", "a-host")
OWN = ("127.0.0.1", "127.1.2.3", "::1", "localhost")


@pytest.fixture(autouse=True)
def nothing_given(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in (KEY_VARIABLE, TOKEN_VARIABLE, INSECURE_VARIABLE):
        monkeypatch.delenv(variable, raising=False)


def written(path: Path, text: str) -> Path:
    """A file that only its owner can read."""
    path.write_text(text, encoding="latin-1")
    path.chmod(0o600)
    return path


def test_the_keys_token_is_its_own_and_tells_nothing_of_it() -> None:
    one, other = JobKey.generate(), JobKey.generate()
    assert JobKey(one.secret).http_token == one.http_token != other.http_token
    assert len(bytes.fromhex(one.http_token)) == 16
    known = {one.secret.hex(), *(pair.secret.decode() for pair in (one.server, one.client))}
    assert not any(one.http_token in text or text in one.http_token for text in known)


@pytest.mark.parametrize("host", OPEN)
def test_off_loopback_the_token_of_the_key_is_wanted(
    host: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(JobFileError, match="without a token") as raised:
        required_token(host, 8080)
    assert raised.value.where == f"{host}:8080"
    assert "shadowsync key new FILE" in raised.value.remedy
    key = JobKey.generate()
    key.write(tmp_path / "job.key")
    monkeypatch.setenv(KEY_VARIABLE, str(tmp_path / "job.key"))
    assert required_token(host, 8080) == key.http_token
    assert http_warnings("The page", host, 8080) == []
    monkeypatch.setenv(TOKEN_VARIABLE, str(written(tmp_path / "token", "0123456789abcdef\n")))
    assert required_token(host, 8080) == "0123456789abcdef"
    monkeypatch.delenv(KEY_VARIABLE)
    assert required_token(host, 8080) == "0123456789abcdef"
    assert http_warnings("The page", host, 8080) == []
    monkeypatch.delenv(TOKEN_VARIABLE)
    monkeypatch.setenv(INSECURE_VARIABLE, "1")
    assert required_token(host, 8080) is None
    assert http_warnings("The page", host, 8080) == [
        f"The page at {host}:8080 was open to anyone who could reach it (--insecure)."
    ]


@pytest.mark.parametrize("host", OWN)
def test_on_loopback_only_a_file_s_is_wanted(
    host: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert required_token(host, 8080) is None
    assert http_warnings("The page", host, 8080) == []
    JobKey.generate().write(tmp_path / "job.key")
    monkeypatch.setenv(KEY_VARIABLE, str(tmp_path / "job.key"))
    assert required_token(host, 8080) is None
    monkeypatch.setenv(TOKEN_VARIABLE, str(written(tmp_path / "token", "0123456789abcdef")))
    assert required_token(host, 8080) == "0123456789abcdef"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "is not a token"),
        ("0123456789abcde", "is not a token"),
        ("0123456789 abcdef", "is not a token"),
        ("0123456789abcdef\n0123456789abcdef", "is not a token"),
        ("0123456789abcde+", "is not a token"),
        ("0123456789abcde\xff", "it is not ASCII text"),
    ],
)
def test_what_is_no_token_is_refused(tmp_path: Path, text: str, why: str) -> None:
    path = written(tmp_path / "token", text)
    with pytest.raises(JobFileError, match=why) as raised:
        read_token(path)
    assert raised.value.where == str(path)
    assert "16 or more" in raised.value.remedy


def test_a_token_that_others_can_read_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = written(tmp_path / "token", "0123456789abcdef")
    path.chmod(0o644)
    with pytest.raises(JobFileError, match="others can read the token"):
        read_token(path)
    monkeypatch.setenv(TOKEN_VARIABLE, str(tmp_path / "absent"))
    with pytest.raises(JobFileError, match=r"cannot be read .*No such file"):
        given_token()
