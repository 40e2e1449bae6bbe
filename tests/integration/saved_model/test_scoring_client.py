"""The Python client of `shadowsync serve`: a server that starts again, and rows that cannot be sent."""

from __future__ import annotations

import asyncio
import math
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from shadowsync.pipeline.errors import ClusterError, DataError
from shadowsync.serving.client import ScoringClient
from shadowsync.serving.follower import FollowedModel
from shadowsync.serving.server import ModelServer
from shadowsync.tests.support.outside.served import with_client

Row = dict[str, Any]


@pytest.fixture(scope="module")
def rows(click_log: Path) -> list[Row]:
    """Of the held-out file, without labels."""
    (file,) = click_log.glob("eval-*.parquet")
    found: list[Row] = pq.read_table(file).slice(0, 4).drop_columns("label").to_pylist()
    return found


def test_a_server_that_is_started_again_is_found(saved_run: Path, rows: list[Row]) -> None:
    model = FollowedModel(saved_run, "last")

    async def body() -> None:
        first = ModelServer(model, "127.0.0.1", 0)
        await first.start()
        with ScoringClient(f"http://127.0.0.1:{first.port}") as client:
            before = await asyncio.to_thread(client.score, rows)
            await first.close()
            # The control: while nobody listens it says so, and goes on afterwards.
            with pytest.raises(
                ClusterError, match=r"does not reply .* check that shadowsync serve runs there"
            ):
                await asyncio.to_thread(client.score, rows)
            second = ModelServer(model, "127.0.0.1", first.port)
            await second.start()
            assert np.array_equal(await asyncio.to_thread(client.score, rows), before)
            await second.close()
            third = ModelServer(model, "127.0.0.1", first.port)
            await third.start()
            # The client still has the connection that the second one closed.
            assert np.array_equal(await asyncio.to_thread(client.score, rows), before)
            assert third.counts.requests == 1
            await third.close()

    asyncio.run(asyncio.wait_for(body(), 60.0))


def test_values_of_numpy_are_sent_and_what_json_has_not_is_refused(saved_run: Path, rows: list[Row]) -> None:
    def work(client: ScoringClient) -> None:
        columns = {name: [row[name] for row in rows] for name in rows[0]}
        expected = client.score(columns)
        whole = {name: [7] * len(rows) if name == "I1" else own for name, own in columns.items()}
        as_array = whole | {"I1": np.full(len(rows), 7)}
        assert np.array_equal(client.score(as_array), client.score(whole))
        assert not np.array_equal(client.score(whole), expected), "the control"
        for value in (math.nan, math.inf, object()):
            with pytest.raises(DataError, match=r"the rows cannot be sent \(.*; give texts"):
                client.score([{**rows[0], "I1": value}])
        with pytest.raises(DataError, match="column 'I1' has values of several types"):
            client.score([{**rows[0], "I1": "dear"}, {**rows[0], "I1": 3.5}])
        scalar = [{**rows[0], "I1": np.float32(7)}]
        assert np.array_equal(client.score(scalar), client.score([{**rows[0], "I1": 7}]))

    with_client(FollowedModel(saved_run, "last"), work)
