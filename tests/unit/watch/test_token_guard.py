"""The page, its events and the metrics off loopback: for who has the token, and for nobody else."""

from __future__ import annotations

import http.client
import logging
from collections.abc import Callable
from contextlib import AbstractContextManager
from http.cookies import SimpleCookie
from pathlib import Path

import pytest
from shadowsync.pipeline.errors import JobFileError
from shadowsync.pipeline.wire.keys.http_token import TOKEN_VARIABLE
from shadowsync.pipeline.wire.keys.job_key import INSECURE_VARIABLE, KEY_VARIABLE, JobKey
from shadowsync.pipeline.wire.refusals import LOGGED_REFUSALS
from shadowsync.tests.support.outside.watch_servers import LOOPBACK, response, served_metrics, served_page
from shadowsync.watch.exporters.metrics_server import MetricsServer
from shadowsync.watch.page.files import FILES
from shadowsync.watch.page.server import PageServer

EVERYWHERE = "0.0.0.0"
PAGE_PATHS = (*FILES, "/events", "/status.json", "/absent")
Served = Callable[[str], AbstractContextManager[PageServer | MetricsServer]]
WRONG = ("", "x", "0" * 32, "%C3%A9%FF", "token")


@pytest.fixture(autouse=True)
def nothing_given(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in (KEY_VARIABLE, TOKEN_VARIABLE, INSECURE_VARIABLE):
        monkeypatch.delenv(variable, raising=False)


@pytest.fixture
def token(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """That of the job's key, which this process has from here on."""
    key = JobKey.generate()
    key.write(tmp_path / "job.key")
    monkeypatch.setenv(KEY_VARIABLE, str(tmp_path / "job.key"))
    return key.http_token


def cookie_of(headers: http.client.HTTPMessage) -> str:
    """The cookie that an answer sets, as a browser sends it back."""
    (morsel,) = SimpleCookie(headers["Set-Cookie"]).values()
    assert morsel["httponly"]
    assert morsel["samesite"] == "Lax"
    return f"{morsel.key}={morsel.value}"


def assert_refused(port: int, path: str, headers: dict[str, str] | None = None, method: str = "GET") -> None:
    """Check that a request has the answer of who has no token, whatever it asked for."""
    code, given, body = response(port, path, headers, method)
    assert code == 401, path
    assert given["WWW-Authenticate"].startswith("Bearer")
    assert "Set-Cookie" not in given
    if method != "HEAD":
        assert body.startswith(b"This needs the job's token: ")
        assert body.count(b"\n") == 1


def test_the_page_needs_the_token(token: str) -> None:
    with served_page(EVERYWHERE) as server:
        assert server.url.endswith(f":{server.port}/?token={token}")
        for path in PAGE_PATHS:
            assert_refused(server.port, path)
            for wrong in WRONG:
                assert_refused(server.port, f"{path}?token={wrong}")
                assert_refused(server.port, path, {"Authorization": f"Bearer {wrong}"})
            assert_refused(server.port, path, {"Authorization": f"Basic {token}"})
            assert_refused(server.port, path, {"Cookie": f"token={token}"})
        for method in ("POST", "HEAD", "DELETE"):
            assert_refused(server.port, "/", method=method)


@pytest.mark.parametrize("scheme", ["Bearer", "bearer"])
def test_the_page_is_for_who_has_the_token(token: str, scheme: str) -> None:
    with served_page(EVERYWHERE) as server:
        code, headers, body = response(server.port, f"/?token={token}")
        assert (code, b"<title>shadowsync" in body) == (200, True)
        kept = {"Cookie": f"other=1; {cookie_of(headers)}"}
        for path in ("/page.css", "/status.json", "/events"):
            for given in (kept, {"Authorization": f"{scheme} {token}"}):
                code, headers, _ = response(server.port, path, given)
                assert code == 200, path
                assert "Set-Cookie" not in headers
            assert response(server.port, f"{path}?token={token}")[0] == 200
        assert response(server.port, "/events", kept)[2].endswith(b"event: whole\n")
        assert response(server.port, "/absent", kept)[0] == 404
        assert response(server.port, "/", kept, method="POST")[0] == 405


def test_another_site_s_page_has_no_use_for_the_token(token: str) -> None:
    """A name that leads here is refused first, whatever it brings."""
    with served_page(EVERYWHERE) as server:
        code, _, body = response(server.port, f"/status.json?token={token}", {"Host": "evil.example"})
        assert (code, body) == (421, b"this server has another name\n")


def test_metrics_need_the_token(token: str) -> None:
    with served_metrics(EVERYWHERE) as server:
        assert_refused(server.port, "/metrics")
        assert_refused(server.port, "/")
        for wrong in WRONG:
            assert_refused(server.port, f"/metrics?token={wrong}")
            assert_refused(server.port, "/metrics", {"Authorization": f"Bearer {wrong}"})
        _, headers, _ = response(server.port, f"/metrics?token={token}")
        for path, given in (
            (f"/metrics?token={token}", {}),
            ("/metrics", {"Cookie": cookie_of(headers)}),
            ("/metrics", {"Authorization": f"Bearer {token}"}),
        ):
            code, _, body = response(server.port, path, given)
            assert (code, b"shadowsync_cpu_seconds_total{" in body) == (200, True), path


@pytest.mark.parametrize(("well", "code", "text"), [(True, 200, b"well\n"), (False, 503, b"not well\n")])
def test_a_probe_needs_no_token_and_is_told_no_more_than_whether(
    token: str, well: bool, code: int, text: bytes
) -> None:
    with served_metrics(EVERYWHERE, is_well=lambda: well) as server:
        for path in ("/healthz", "/healthz?token=x"):
            assert response(server.port, path)[::2] == (code, text)
        assert response(server.port, f"/healthz?token={token}")[::2] == (code, b"reader-0: told\n")


@pytest.mark.parametrize(("served", "path"), [(served_page, "/status.json"), (served_metrics, "/metrics")])
def test_on_loopback_nobody_needs_a_token(token: str, served: Served, path: str) -> None:
    del token
    with served(LOOPBACK) as server:
        code, headers, _ = response(server.port, f"{path}?token=x")
        assert (code, response(server.port, path)[0]) == (200, 200)
        assert "Set-Cookie" not in headers


def test_the_token_of_a_file_is_wanted_in_place_of_the_keys_and_on_loopback(
    token: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = "a-token_of~my.own"
    file = tmp_path / "token"
    file.write_text(f"{own}\n", encoding="ascii")
    file.chmod(0o600)
    monkeypatch.setenv(TOKEN_VARIABLE, str(file))
    for host in (EVERYWHERE, LOOPBACK):
        with served_page(host) as server:
            assert server.url.endswith(f"/?token={own}")
            assert_refused(server.port, f"/?token={token}")
            code, headers, _ = response(server.port, f"/?token={own}")
            assert code == 200
            assert response(server.port, "/page.js", {"Cookie": cookie_of(headers)})[0] == 200


@pytest.mark.parametrize(("served", "path"), [(served_page, "/status.json"), (served_metrics, "/metrics")])
def test_off_loopback_without_a_key_nothing_is_served_but_by_wish(
    served: Served, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(JobFileError, match="without a token") as raised, served(EVERYWHERE):
        pass
    assert "--http-token FILE" in raised.value.remedy
    monkeypatch.setenv(INSECURE_VARIABLE, "1")
    with served(EVERYWHERE) as server:
        assert response(server.port, path)[0] == 200


def test_the_cookies_of_two_jobs_stand_side_by_side(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Browsers send a cookie to every port of its host."""
    cookies, servers = [], []
    for name in ("one", "two"):
        key = JobKey.generate()
        key.write(tmp_path / name)
        monkeypatch.setenv(KEY_VARIABLE, str(tmp_path / name))
        servers.append(PageServer(EVERYWHERE, 0))
        servers[-1].start()
        cookies.append(cookie_of(response(servers[-1].port, f"/?token={key.http_token}")[1]))
    for server in servers:
        assert response(server.port, "/page.css", {"Cookie": "; ".join(cookies)})[0] == 200
        server.close()


def test_refusals_are_logged_but_cannot_fill_the_disk(token: str, caplog: pytest.LogCaptureFixture) -> None:
    with served_page(EVERYWHERE) as server, caplog.at_level(logging.ERROR):
        assert_refused(server.port, "/")
        assert caplog.messages == ["refused a request from 127.0.0.1: it has no token"]
        assert_refused(server.port, "/?token=nearly")
        assert caplog.messages[1] == "refused a request from 127.0.0.1: it has a wrong token"
        for _ in range(2 * LOGGED_REFUSALS):
            assert_refused(server.port, "/")
    assert len(caplog.messages) == LOGGED_REFUSALS + 1
    assert token not in caplog.text
    assert "nearly" not in caplog.text
