"""`shadowsync serve`: scores as of `predict`, many requests at once, new checkpoints, refusals."""

from __future__ import annotations

import asyncio
import gc
import json
import math
import shutil
import urllib.error
import urllib.request
import weakref
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from shadowsync.pipeline.checkpoint.manifest import CheckpointManifest, begin, commit, open_checkpoint
from shadowsync.pipeline.errors import ClusterError, DataError, JobFileError
from shadowsync.pipeline.saved_model.model import ModelUpdate, SavedModel
from shadowsync.pipeline.types import Float32Array
from shadowsync.pipeline.wire.keys.http_token import TOKEN_VARIABLE
from shadowsync.pipeline.wire.keys.job_key import INSECURE_VARIABLE, KEY_VARIABLE
from shadowsync.serving.client import ScoringClient
from shadowsync.serving.follower import FollowedModel
from shadowsync.serving.rows import BadRequest, columns_of_request
from shadowsync.serving.scores import Scores, ServedModel
from shadowsync.serving.server import ModelServer
from shadowsync.tests.support.jobs.processes import Starter, until, wait_until
from shadowsync.tests.support.outside.served import (
    client_of,
    served,
    served_by_command,
    with_client,
    with_server,
)

ROWS = 300
TOKEN = "a-token-of-the-server"
Row = dict[str, Any]


@pytest.fixture(scope="module")
def rows(click_log: Path) -> list[Row]:
    """Of the held-out file, without labels; some values are missing."""
    (file,) = click_log.glob("eval-*.parquet")
    found: list[Row] = pq.read_table(file).slice(0, ROWS).drop_columns("label").to_pylist()
    found[1]["I1"] = found[2]["C1"] = None
    return found


@pytest.fixture(scope="module")
def predicted(saved_run: Path, rows: list[Row]) -> Float32Array:
    """By the saved model itself."""
    columns = {name: [row[name] for row in rows] for name in rows[0]}
    return SavedModel.open(saved_run).predict(columns)


@pytest.fixture(autouse=True)
def nothing_given(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in (KEY_VARIABLE, TOKEN_VARIABLE, INSECURE_VARIABLE):
        monkeypatch.delenv(variable, raising=False)


def model_of(run: Path) -> FollowedModel:
    return FollowedModel(run, "last")


def test_scores_are_those_of_predict(saved_run: Path, rows: list[Row], predicted: Float32Array) -> None:
    def work(client: ScoringClient) -> None:
        np.testing.assert_allclose(client.score(rows), predicted, rtol=1e-5)
        columns = {name: [row[name] for row in rows] for name in rows[0]}
        np.testing.assert_allclose(client.score(columns), predicted, rtol=1e-5)
        # What all rows share is given once.
        shared = {name: rows[0][name] for name in ("I1", "C1", "C26")}
        own = [{name: value for name, value in row.items() if name not in shared} for row in rows[:5]]
        expected = client.score([{**row, **shared} for row in rows[:5]])
        np.testing.assert_allclose(client.score(own, shared), expected, rtol=1e-5)
        turned = {name: [row[name] for row in own] for name in own[0]}
        np.testing.assert_allclose(client.score(turned, shared), expected, rtol=1e-5)
        assert np.abs(expected - predicted[:5]).max() > 1e-4, "the control"
        # The label is not needed, and does not disturb.
        np.testing.assert_allclose(client.score([{**rows[0], "label": 1}]), predicted[:1], rtol=1e-5)
        assert len({round(float(p), 6) for p in predicted}) > ROWS / 2, "the control: they differ"
        model, stats = client.model(), client.stats()
        assert model["columns"]["I1"] == "dense"
        assert model["description"].startswith("the center (easgd), after ")
        assert model["columns"]["C26"] == "categorical"
        assert (stats["requests"], stats["rows"], stats["refused"]) == (6, 2 * ROWS + 16, 0)
        assert 0 < stats["p50_milliseconds"] <= stats["p99_milliseconds"]
        assert model["examples_trained"] == stats["model"]["examples_trained"] > 0

    with_client(model_of(saved_run), work)


def test_many_clients_at_once_get_their_own_scores(
    saved_run: Path, rows: list[Row], predicted: Float32Array, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Requests that wait are scored together; one of other types is scored, or refused, by itself."""
    together: list[int] = []
    servers: list[ModelServer] = []
    score = ServedModel.score

    def noted(model: ServedModel, requests: Any) -> Any:
        if not together:
            wait_until(lambda: len(servers[0]._scores._waiting) > 1, "others came while this one is scored")
        together.append(len(requests))
        return score(model, requests)

    monkeypatch.setattr(ServedModel, "score", noted)

    async def body() -> list[Float32Array | str]:
        async with served(model_of(saved_run)) as server:
            servers.append(server)

            def ask(at: int) -> Float32Array | str:
                own = rows[at * 5 : at * 5 + 5]
                if at % 10 == 7:
                    own = [{**row, "I1": "many"} for row in own]
                elif at % 10 == 8:
                    own = [{**row, "I1": [1]} for row in own]
                context = {name: rows[at * 5][name] for name in ("I5", "C3")} if at % 10 == 6 else {}
                own = [{name: value for name, value in row.items() if name not in context} for row in own]
                with client_of(server) as client:
                    try:
                        return client.score(own, context)
                    except DataError as error:
                        return str(error)

            with ThreadPoolExecutor(8) as pool:
                loop = asyncio.get_running_loop()
                return await asyncio.gather(*(loop.run_in_executor(pool, ask, at) for at in range(60)))

    found = asyncio.run(asyncio.wait_for(body(), 60.0))
    assert max(together) > 1
    for at, scores in enumerate(found):
        if at % 10 == 8:
            assert isinstance(scores, str)
            assert "I1" in scores
        else:
            assert isinstance(scores, np.ndarray)
            if at % 10 == 7:
                assert np.isnan(scores).all()
            elif at % 10 == 6:
                # The other rows have another context than of their own.
                np.testing.assert_allclose(scores[0], predicted[at * 5], rtol=1e-5)
                assert not np.allclose(scores, predicted[at * 5 : at * 5 + 5], rtol=1e-5)
            else:
                np.testing.assert_allclose(scores, predicted[at * 5 : at * 5 + 5], rtol=1e-5)


def test_a_row_without_a_score_says_why(saved_run: Path, rows: list[Row]) -> None:
    own = [{**row, "I2": text} for row, text in zip(rows, ("3", "x", ""), strict=False)]
    sent = json.dumps({"rows": own}).encode()

    def ask(server: ModelServer) -> Any:
        with urllib.request.urlopen(f"http://127.0.0.1:{server.port}/score", sent) as reply:
            return json.load(reply)

    # Texts that are numbers are read as such, and one that is none has no score.
    reply = with_server(model_of(saved_run), ask)
    assert [p is None for p in reply["probabilities"]] == [False, True, False]
    assert reply["faults"] == [{"row": 1, "why": "I2 'x' not numeric"}]


def refused(served_model: ServedModel, body: Any) -> str:
    with pytest.raises(BadRequest) as caught:
        columns_of_request(body, served_model.schema, 100)
    return str(caught.value)


def test_requests_that_are_refused(saved_run: Path, rows: list[Row]) -> None:
    model = ServedModel(SavedModel.open(saved_run))
    row = rows[0]
    without = {name: value for name, value in row.items() if name != "C7"}
    assert refused(model, [row]) == 'give an object with "rows" or "columns"'
    assert refused(model, {"rows": [row], "columns": {}}) == 'give an object with "rows" or "columns"'
    assert refused(model, {"rows": row}) == "rows: give a list of objects, one for each row"
    assert refused(model, {"rows": []}) == "no rows; give at least one"
    assert refused(model, {"rows": [row] * 101}) == "101 rows; give at most 100 at once"
    assert refused(model, {"rows": [row, without]}) == (
        "rows[1] has no column 'C7'; give null where the value is missing"
    )
    assert refused(model, {"rows": [{**row, "C77": "x"}]}).startswith(
        "there is no column 'C77'; did you mean"
    )
    assert refused(model, {"columns": row}).startswith("columns: give an object with a list of values")
    columns = {name: [value] for name, value in row.items()}
    assert refused(model, {"columns": columns | {"C1": ["x", "y"]}}) == (
        "columns: lists of 1 to 2 values; give as many for each"
    )
    assert refused(model, {"columns": columns, "context": {"I3": 1}}) == (
        "column 'I3' is in the context and in the rows; give it once"
    )
    assert refused(model, {"rows": [row], "context": {"I33": 1}}).startswith("there is no column 'I33'")
    assert refused(model, {"rows": [row], "context": [1]}).startswith(
        "context: give an object with the value"
    )
    assert refused(model, {"columns": {}, "context": row}) == "no rows; give at least one"
    del columns["I3"]
    assert refused(model, {"columns": columns}) == (
        "columns: no column 'I3'; give nulls where values are missing"
    )


def test_dense_features_that_all_rows_share_are_computed_once_a_request(
    saved_run: Path, rows: list[Row]
) -> None:
    model = SavedModel.open(saved_run)
    served_model = ServedModel(model)
    bottom = model.dense.get_submodule("bottom")
    seen = list[int]()
    bottom.register_forward_pre_hook(lambda _, given: seen.append(len(given[0])))
    dense = [name for name in rows[0] if name.startswith("I")]
    requests, wanted = [], []
    for at in (0, 10, 20):
        shared = {name: rows[at][name] for name in dense}
        own = [
            {name: value for name, value in row.items() if name not in shared} for row in rows[at : at + 7]
        ]
        # One without a score is left out of what is computed.
        shared |= {"I2": math.inf} if at == 10 else {}
        body = {"context": shared, "rows": own}
        requests.append(columns_of_request(body, served_model.schema, 10))
        wanted.append(model.predict([{**row, **{name: rows[at][name] for name in dense}} for row in own]))
    seen.clear()
    found = served_model.score(requests)
    assert seen == [2]
    for at, (scores, of_rows) in enumerate(zip(found, wanted, strict=True)):
        assert isinstance(scores, Scores)
        if at == 1:
            assert np.isnan(scores.probabilities).all()
        else:
            np.testing.assert_allclose(scores.probabilities, of_rows, rtol=1e-5)
    # The control: a row that has its own I1 is computed by itself.
    body = {"context": {"C1": "x"}, "rows": [{n: v for n, v in row.items() if n != "C1"} for row in rows[:4]]}
    served_model.score([requests[0], columns_of_request(body, served_model.schema, 10)])
    assert seen[-1] == 11


def test_a_context_that_would_fill_the_memory_is_refused(saved_run: Path, rows: list[Row]) -> None:
    served_model = ServedModel(SavedModel.open(saved_run))
    others = {name: [value] * 10_000 for name, value in rows[0].items() if name != "C1"}
    for length, wanted in ((10, False), (1 << 20, True)):
        body = {"context": {"C1": "x" * length}, "columns": others}
        (found,) = served_model.score([columns_of_request(body, served_model.schema, 10_000)])
        assert isinstance(found, BadRequest) == wanted
        assert not wanted or str(found) == "column 'C1': the context's value is too long for 10,000 rows"


def test_what_is_no_request_gets_an_error_and_the_next_one_its_scores(
    saved_run: Path, rows: list[Row]
) -> None:
    def work(client: ScoringClient) -> None:
        for body in (b"", b"{", b"\xff", b"[" * 100_000, b'{"rows": [{}]}'):
            request = urllib.request.Request(f"{client.url}/score", body)
            with pytest.raises(urllib.error.HTTPError) as caught:
                urllib.request.urlopen(request)
            with caught.value as answer:
                assert answer.code == 400
                assert json.load(answer)["error"]
        with pytest.raises(DataError, match="no column 'I2'"):
            client.score([{"I1": 1}])
        assert not math.isnan(client.score(rows[:1])[0])
        assert client.stats()["refused"] == 6

    with_client(model_of(saved_run), work)


def replace_checkpoint(saved_run: Path, run: Path, examples: int, *, damaged: bool = False) -> None:
    """As a job does, with a checkpoint after so many examples."""
    folder, manifest = open_checkpoint(saved_run)
    partial = begin(run)
    for entry in manifest.files:
        data = (folder / entry.name).read_bytes()
        (partial / entry.name).write_bytes(data[:-1] + bytes([data[-1] ^ damaged]))
    commit(partial, manifest.model_copy(update={"examples_trained": examples}))


def test_a_new_checkpoint_is_served_and_a_damaged_one_is_not(
    saved_run: Path, rows: list[Row], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "run"
    shutil.copytree(saved_run / "checkpoint", run / "checkpoint")
    looks, opened = list[bool](), list[bool]()
    look, open_model = FollowedModel._newest_manifest, SavedModel.open

    def count_looks(model: FollowedModel) -> CheckpointManifest:
        looks.append(True)
        return look(model)

    def count_opened(*given: Any, **options: Any) -> SavedModel:
        opened.append(True)
        return open_model(*given, **options)

    monkeypatch.setattr(FollowedModel, "_newest_manifest", count_looks)
    monkeypatch.setattr(SavedModel, "open", count_opened)

    def replace(examples: int, *, damaged: bool = False) -> None:
        replace_checkpoint(saved_run, run, examples, damaged=damaged)

    async def body() -> None:
        model = model_of(run)
        async with served(model, look_seconds=0.02) as server:
            with client_of(server) as client:
                before = await asyncio.to_thread(client.score, rows[:9])
                replace(77)
                await until(lambda: model.opened == 2, "the new one is served")
                assert (await asyncio.to_thread(client.model))["examples_trained"] == 77
                assert np.array_equal(await asyncio.to_thread(client.score, rows[:9]), before)
                replace(99, damaged=True)
                await until(lambda: model.fault, "the damaged one is noticed")
                stats = await asyncio.to_thread(client.stats)
                assert (stats["model"]["examples_trained"], stats["model"]["opened"]) == (77, 2)
                assert stats["model"]["fault"]
                tried, looked = len(opened), len(looks)
                await until(lambda: len(looks) >= looked + 3, "it looks again")
                assert len(opened) == tried, "a damaged one is not read again and again"
                assert model.fault
                replace(111)
                await until(lambda: model.manifest.examples_trained == 111, "it goes on")

    asyncio.run(asyncio.wait_for(body(), 60.0))


def test_no_error_of_a_new_checkpoint_ends_the_look_for_others(
    saved_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "run"
    shutil.copytree(saved_run / "checkpoint", run / "checkpoint")
    update, errors, tried = SavedModel.update, list[Exception](), list[int]()

    def fail(model: SavedModel, *given: Any) -> ModelUpdate:
        tried.append(len(errors))
        if errors:
            raise errors.pop(0)
        return update(model, *given)

    monkeypatch.setattr(SavedModel, "update", fail)

    async def body() -> None:
        model = model_of(run)
        async with served(model, look_seconds=0.02) as server:
            with client_of(server) as client:
                errors[:] = [RuntimeError("nobody foresaw it")]
                replace_checkpoint(saved_run, run, 77)
                await until(lambda: model.fault, "the error is shown")
                assert model.fault == "RuntimeError: nobody foresaw it"
                stats = await asyncio.to_thread(client.stats)
                assert stats["model"]["fault"] == model.fault
                # Memory may be there at the next look, and then the same checkpoint is served.
                errors[:] = [MemoryError("none for two models"), MemoryError("none for two models")]
                replace_checkpoint(saved_run, run, 99)
                await until(lambda: model.opened == 2, "it is tried again")
                assert (model.manifest.examples_trained, model.fault, tried) == (99, "", [1, 2, 1, 0])

    asyncio.run(asyncio.wait_for(body(), 60.0))


def test_a_model_that_is_no_longer_served_needs_no_collector(saved_run: Path) -> None:
    """The command freezes what is there when it starts: a model in a cycle would stay for ever."""
    followed = FollowedModel(saved_run, "last")
    tables, module = weakref.ref(followed.current.model._loaded), weakref.ref(followed.current.model.dense)
    gc.disable()
    try:
        held = followed.current
        del followed
        assert None not in (tables(), module()), "the control"
        del held
        assert (tables(), module()) == (None, None)
    finally:
        gc.enable()


def test_off_loopback_it_needs_a_token(
    saved_run: Path, rows: list[Row], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(JobFileError, match="key"):
        ModelServer(FollowedModel(saved_run, "last"), "0.0.0.0", 0)
    (tmp_path / "token").write_text(TOKEN)
    (tmp_path / "token").chmod(0o600)
    monkeypatch.setenv(TOKEN_VARIABLE, str(tmp_path / "token"))

    def work(server: ModelServer) -> None:
        url = f"http://127.0.0.1:{server.port}"
        with ScoringClient(url) as client, pytest.raises(ClusterError, match="replied 401"):
            client.score(rows[:1])
        with ScoringClient(url, TOKEN) as client:
            assert not math.isnan(client.score(rows[:1])[0])
        assert urllib.request.urlopen(f"{url}/healthz").status == 200

    with_server(model_of(saved_run), work, "0.0.0.0")


def test_the_command(starter: Starter, saved_run: Path, rows: list[Row], predicted: Float32Array) -> None:
    with served_by_command(starter, str(saved_run)) as (process, client):
        np.testing.assert_allclose(client.score(rows[:20]), predicted[:20], rtol=1e-5)
        assert client.stats()["requests"] == 1
    assert "scored 20 rows in 1 request, refused 0; p50 " in process.text()
    assert "Traceback" not in process.text()
