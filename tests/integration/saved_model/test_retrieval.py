"""Retrieval: the best items of queries over HTTP, new checkpoints, exports of items, refusals."""

from __future__ import annotations

import asyncio
import gc
import json
import math
import shutil
import sys
import weakref
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations, permutations
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from shadowsync.pipeline.errors import ClusterError, DataError, JobFileError, ResourceError
from shadowsync.pipeline.retrieval import index
from shadowsync.pipeline.retrieval.index import VectorIndex
from shadowsync.pipeline.retrieval.items_export import ItemsExport, export_items
from shadowsync.pipeline.retrieval.searched_items import ItemFiles, SearchKind, query_vectors_of_files
from shadowsync.pipeline.saved_model.model import SavedModel
from shadowsync.serving.client import ScoringClient
from shadowsync.serving.follower import FollowedModel
from shadowsync.serving.items import Items
from shadowsync.serving.retrieval import MOST_ITEMS, Queries, Retrieved, Retriever
from shadowsync.serving.rows import BadRequest, RowColumns
from shadowsync.tests.support.jobs.checkpoint_copies import kept_checkpoints, replace_checkpoint
from shadowsync.tests.support.jobs.commands import said
from shadowsync.tests.support.jobs.in_process_cluster import in_process_clusters
from shadowsync.tests.support.jobs.processes import Starter, until, wait_until
from shadowsync.tests.support.jobs.runs import write_job
from shadowsync.tests.support.outside.served import (
    client_of,
    replies_while_replaced,
    served,
    served_by_command,
    with_client,
)

USERS, MOVIES, GENRES, ROWS = 50, 120, 6, 6000
QUERIES: list[dict[str, Any]] = [
    {"user": 3, "age": 1.5},
    {"user": 4, "age": None},
    {"user": 1_000, "age": 0.0},
]
K = 7
Found = list[list[tuple[Any, float]]]


@dataclass(frozen=True)
class Saved:
    """A run of two towers: its checkpoints, in order, and files of its items and of its rows."""

    copies: list[Path]
    items: Path
    rows: Path


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Saved]:
    """Users watch movies of one genre, mostly."""
    folder = tmp_path_factory.mktemp("towers")
    rng = np.random.default_rng(1)
    user, taste = rng.integers(0, USERS, ROWS), rng.integers(0, GENRES, USERS)
    movie = np.where(
        rng.random(ROWS) < 0.8,
        rng.integers(0, MOVIES // GENRES, ROWS) * GENRES + taste[user],
        rng.integers(0, MOVIES, ROWS),
    )
    rows = {"user": user, "age": taste[user] * 1.5, "movie": movie, "genre": movie % GENRES}
    table = pa.table({**rows, "seen": np.ones(ROWS, np.int8)})
    pq.write_table(table, folder / "rows.parquet", row_group_size=1000)
    every = np.arange(MOVIES)
    pq.write_table(pa.table({"movie": every, "genre": every % GENRES}), folder / "items.parquet")
    columns = {"user": "categorical", "age": "dense", "movie": "categorical", "genre": "categorical"}
    job: dict[str, dict[str, Any]] = {
        "run": {"name": "towers", "directory": str(folder / "runs"), "start_timeout_seconds": 120.0},
        "data": {
            "format": "parquet",
            "path": str(folder / "rows.parquet"),
            "columns": columns | {"seen": "label"},
            "shuffle_window": 0,
            "epochs": 100,
        },
        "model": {
            "name": "two_tower",
            "query": ["user", "age"],
            "item": ["movie", "genre"],
            "top": [16],
            "embedding_dim": 4,
            "options": {"dim": 8},
        },
        "trainer": {"count": 1, "batch": 100, "precision": "float32"},
        "checkpoint": {"every_examples": 2000},
        "sync": {"algorithm": "none"},
        "report": {"pictures": False},
    }
    with kept_checkpoints(folder) as copies, in_process_clusters() as make:
        own = make(write_job(folder / "job.toml", job, {})).start()
        wait_until(
            lambda: len(copies()) >= 3 or own.coordinator.poll() is not None, "three checkpoints are written"
        )
        own.coordinator.interrupt()
        own.wait()
        assert len(copies()) >= 3, own.coordinator.text()
        yield Saved(copies()[:3], folder / "items.parquet", folder / "rows.parquet")


@pytest.fixture(autouse=True)
def every_list_is_searched(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that an index finds what exact search does, of vectors that differ from run to run."""
    monkeypatch.setattr(index, "LEAST_RECALL", 1.1)


def items_of(saved: Saved, search: SearchKind = "auto") -> Items:
    return Items(ItemFiles([str(saved.items)], search))


def best_of(model: SavedModel, queries: Sequence[dict[str, Any]], k: int) -> Found:
    """By the scores of all pairs, which have nothing to do with vectors."""
    found = []
    for query in queries:
        movies = list(range(MOVIES))
        pairs = [{**query, "movie": movie, "genre": movie % GENRES} for movie in movies]
        scores = model.predict(pairs)
        order = np.argsort(-scores, kind="stable")[:k].tolist()
        found.append([(movie, float(scores[movie])) for movie in order])
    return found


def assert_found(found: Found, wanted: Found) -> None:
    """The same ids, and scores that differ in the last digits at most."""
    assert [[item for item, _ in each] for each in found] == [[item for item, _ in each] for each in wanted]
    for one, other in zip(found, wanted, strict=True):
        np.testing.assert_allclose([s for _, s in one], [s for _, s in other], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("search", ["exact", "index"])
def test_the_best_items_are_those_with_the_highest_scores(saved: Saved, search: SearchKind) -> None:
    followed = FollowedModel(saved.copies[-1], "last", items=items_of(saved, search))
    wanted = best_of(followed.current.model, QUERIES, K)
    assert len({tuple(item for item, _ in each) for each in wanted}) == 3, (
        "the control: of other queries others"
    )

    def work(client: ScoringClient) -> None:
        assert_found(client.retrieve(QUERIES, K), wanted)
        turned = {name: [query[name] for query in QUERIES] for name in QUERIES[0]}
        assert_found(client.retrieve(turned, K), wanted)
        assert_found(client.retrieve({"user": [3]}, K, {"age": 1.5}), wanted[:1])
        # What a row of the data has besides does not disturb.
        assert_found(client.retrieve([{**QUERIES[0], "movie": 1, "genre": 2, "seen": 1}], K), wanted[:1])
        gone = [wanted[0][0][0], wanted[0][3][0]]
        left = [pair for pair in best_of(followed.current.model, QUERIES[:1], K)[0] if pair[0] not in gone]
        assert_found(client.retrieve(QUERIES[:1], K - 2, exclude=gone), [left])
        assert_found(client.retrieve(QUERIES, MOST_ITEMS), best_of(followed.current.model, QUERIES, MOVIES))
        stats, model = client.stats(), client.model()
        assert model["query_columns"] == ["user", "age"]
        of_items = stats["retrieval"]
        assert (of_items["requests"], of_items["rows"], of_items["rows_without_score"]) == (6, 12, 0)
        assert (of_items["items"], of_items["search"]) == (MOVIES, search)
        assert stats["requests"] == 0, "of scores"
        if search == "exact":
            assert of_items["recall"] is None
        else:
            assert of_items["recall"]["of"] == "items"
            assert of_items["recall"]["queries"] == MOVIES
            assert 0.98 <= of_items["recall"]["at_100"] <= 1.0
        assert of_items["build_seconds"] > 0

    with_client(followed, work)


def test_an_index_that_finds_too_few_items_answers_with_those(
    saved: Saved, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(index, "LEAST_RECALL", 0.0)
    monkeypatch.setattr(index, "FIRST_PROBES", 1)
    model = SavedModel.open(saved.copies[-1])
    retriever = Retriever(model, items_of(saved, "index").of_first(model))
    found = answer_of(retriever, {"rows": QUERIES, "k": MOVIES})
    for some, every in zip(found, best_of(model, QUERIES, MOVIES), strict=True):
        assert 0 < len(some) < MOVIES
        ids = {item for item, _ in some}
        assert_found([some], [[pair for pair in every if pair[0] in ids]])


@pytest.mark.parametrize("search", ["exact", "index"])
def test_vectors_of_queries_and_items_are_always_of_one_model(
    saved: Saved, search: SearchKind, tmp_path: Path
) -> None:
    """Every answer is that of the checkpoint that it names, whatever changes meanwhile."""
    models = {model.manifest.examples_trained: model for model in map(SavedModel.open, saved.copies)}
    wanted = {examples: best_of(model, QUERIES, K) for examples, model in models.items()}
    for one, other in combinations(wanted.values(), 2):
        with pytest.raises(AssertionError):
            assert_found(one, other)
    # The control: queries of one model with the items of another one are told from all of them.
    for mine, theirs in permutations(models.values(), 2):
        mixed = Retriever(mine, items_of(saved, search).of_next(theirs))
        found = answer_of(mixed, {"rows": QUERIES, "k": K})
        for examples in wanted:
            with pytest.raises(AssertionError):
                assert_found(found, wanted[examples])
    run = tmp_path / "run"
    shutil.copytree(saved.copies[0], run / "checkpoint")
    followed = FollowedModel(run, "last", items=items_of(saved, search))
    copies = dict(zip(models, saved.copies, strict=True))
    for reply in replies_while_replaced(followed, run, copies, "retrieve", {"rows": QUERIES, "k": K}):
        pairs = [list(zip(*one, strict=True)) for one in zip(reply["items"], reply["scores"], strict=True)]
        assert_found(pairs, wanted[reply["model"]["examples_trained"]])


def test_items_that_cannot_be_used_leave_the_old_ones_until_the_next_checkpoint(
    saved: Saved, tmp_path: Path
) -> None:
    run, items = tmp_path / "run", tmp_path / "items.parquet"
    shutil.copytree(saved.copies[0], run / "checkpoint")
    shutil.copy(saved.items, items)
    table = pq.read_table(items)

    async def body() -> None:
        followed = FollowedModel(run, "last", items=Items(ItemFiles([str(items)])))
        wanted = best_of(followed.current.model, QUERIES, K)
        async with served(followed, look_seconds=0.01) as server:
            with client_of(server) as client:
                pq.write_table(pa.concat_tables([table, table.slice(5, 1)]), items)
                replace_checkpoint(run, saved.copies[1])
                await until(lambda: followed.fault, "the items are refused")
                assert "has the item 5" in followed.fault
                assert_found(await asyncio.to_thread(client.retrieve, QUERIES, K), wanted)
                stats = await asyncio.to_thread(client.stats)
                assert stats["model"]["fault"] == followed.fault
                # A file with one more item, which only another checkpoint brings.
                more = pa.table({"movie": [*range(MOVIES), 7777], "genre": [*range(MOVIES), 0]})
                pq.write_table(more, items)
                replace_checkpoint(run, saved.copies[2])
                await until(lambda: followed.opened == 2, "the next one is served")
                stats = await asyncio.to_thread(client.stats)
                assert (stats["retrieval"]["items"], stats["model"]["fault"]) == (MOVIES + 1, "")

    asyncio.run(asyncio.wait_for(body(), 60.0))


def test_items_that_are_no_longer_served_need_no_collector(saved: Saved) -> None:
    followed = FollowedModel(saved.copies[0], "last", items=items_of(saved, "index"))
    assert followed.retriever is not None
    search = weakref.ref(followed.retriever.items.search)
    gc.disable()
    try:
        held = followed.retriever
        del followed
        assert search() is not None, "the control"
        del held
        assert search() is None
    finally:
        gc.enable()


def answer_of(retriever: Retriever, body: dict[str, Any]) -> Found:
    (found,) = retriever.retrieve([retriever.read(json.dumps(body).encode())])
    assert not isinstance(found, BadRequest)
    return [
        list(zip(items, scores.tolist(), strict=True))
        for items, scores in zip(found.items, found.scores, strict=True)
        if items is not None and scores is not None
    ]


def test_requests_that_are_refused(saved: Saved) -> None:
    model = SavedModel.open(saved.copies[0])
    retriever = Retriever(model, items_of(saved).of_first(model))
    query = QUERIES[0]
    for body, why in (
        ([], 'give an object with "rows" or "columns"'),
        ({"k": 3}, 'give an object with "rows" or "columns"'),
        ({"rows": []}, "no rows; give at least one"),
        ({"rows": [query] * 1001}, "1,001 rows; give at most 1,000 at once"),
        ({"rows": [{"age": 1.0}]}, "rows[0] has no column 'user'; give null where the value is missing"),
        ({"rows": [{**query, "ages": 1}]}, "there is no column 'ages'; did you mean 'age'?"),
        ({"rows": [query], "k": 0}, "k: 0 given; give a whole number from 1 to 1,000"),
        ({"rows": [query], "k": 1001}, "k: 1001 given; give a whole number from 1 to 1,000"),
        ({"rows": [query], "k": True}, "k: True given; give a whole number from 1 to 1,000"),
        ({"rows": [query], "k": 2.5}, "k: 2.5 given; give a whole number from 1 to 1,000"),
        (
            {"rows": [query] * 101, "k": 1000},
            "k: 1,000 items of 101 queries; give at most 100,000 items of all queries at once",
        ),
        (
            {"rows": [query], "excluded": [1]},
            "'excluded' is not known here; there are columns, context, exclude, k, rows",
        ),
        ({"rows": [query], "exclude": 3}, "exclude: give a list of at most 1,000 ids"),
        ({"rows": [query], "exclude": ["3"]}, "exclude: '3' given, and the ids of items are integers"),
    ):
        with pytest.raises(BadRequest) as caught:
            retriever.read(json.dumps(body).encode())
        assert str(caught.value).startswith(why), body
    with pytest.raises(BadRequest, match="the body is not JSON"):
        retriever.read(b"{")
    assert retriever.read(json.dumps({"rows": [query] * 100, "k": 1000}).encode()).count == 100, "the control"
    # Of several requests together one that cannot be read is refused alone.
    good, wrong = ({"rows": [{**query, "age": age}]} for age in (1.5, [1.5]))
    found = retriever.retrieve([retriever.read(json.dumps(body).encode()) for body in (good, wrong, good)])
    assert [isinstance(each, BadRequest) for each in found] == [False, True, False]


def test_a_query_that_cannot_be_read_has_no_items_and_the_others_theirs(saved: Saved) -> None:
    model = SavedModel.open(saved.copies[0])
    retriever = Retriever(model, items_of(saved).of_first(model))
    rows = RowColumns(3, {"user": [3, 3, 4], "age": [1.5, math.inf, None]})
    (found,) = retriever.retrieve([Queries(rows, K)])
    assert isinstance(found, Retrieved)
    assert found.items[1] is None
    assert found.scores[1] is None
    assert found.why.keys() == {1}
    assert "age 'inf'" in found.why[1]
    wanted = best_of(model, QUERIES[:2], K)
    assert [found.items[0], found.items[2]] == [[item for item, _ in each] for each in wanted]
    only = RowColumns(1, {"user": [3], "age": [math.inf]})
    (found,) = retriever.retrieve([Queries(only, K)])
    assert isinstance(found, Retrieved)
    assert (found.items, [*found.why]) == ([None], [0])


def test_a_server_without_items_and_a_model_without_towers_say_so(saved: Saved, saved_run: Path) -> None:
    def work(client: ScoringClient) -> None:
        with pytest.raises(ClusterError, match=r"replied 404: this server has no items: start .* --items"):
            client.retrieve(QUERIES)
        assert "retrieval" not in client.stats()
        assert "query_columns" not in client.model()

    with_client(FollowedModel(saved.copies[0], "last"), work)
    with pytest.raises(DataError, match="dlrm has no vectors of queries and items"):
        FollowedModel(saved_run, "last", items=items_of(saved))

    def refused(client: ScoringClient) -> None:
        with pytest.raises(DataError, match=r"rows\[0\] has no column 'user'"):
            client.retrieve([{"age": 1.0}])
        assert client.stats()["retrieval"]["refused"] == 1

    with_client(FollowedModel(saved.copies[0], "last", items=items_of(saved)), refused)


def test_an_export_has_the_vectors_and_an_index_of_this_model(saved: Saved, tmp_path: Path) -> None:
    model = SavedModel.open(saved.copies[1])
    files = ItemFiles([str(saved.items)], "index", [str(saved.rows)])
    manifest = export_items(model, files, tmp_path / "export")
    assert json.loads((tmp_path / "export" / "manifest.json").read_text()) == manifest
    assert (manifest["run"], manifest["examples_trained"]) == ("towers", model.manifest.examples_trained)
    assert model.manifest.digest.startswith(manifest["version"])
    assert manifest["items"] == {"file": "items.parquet", "column": "movie", "count": MOVIES, "dim": 8}
    recall = manifest["index"]["recall"]
    assert (recall["of"], recall["queries"]) == ("queries", USERS), "of the same user each query is the same"
    table = pq.read_table(tmp_path / "export" / "items.parquet")
    assert table.schema.field("vector").type == pa.list_(pa.float32(), 8)
    assert table.schema.metadata[b"version"].decode() == manifest["version"]
    assert table.column("id").to_pylist() == list(range(MOVIES))
    # As another system would: the products of vectors are the scores.
    vectors = np.array(table.column("vector").to_pylist(), np.float32)
    rows = pq.read_table(saved.rows).slice(0, 40)
    queries = query_vectors_of_files(model, [str(saved.rows)], 40)
    products = (queries * vectors[rows.column("movie").to_numpy()]).sum(axis=1)
    np.testing.assert_allclose(products / manifest["temperature"], model.predict(rows), rtol=1e-4, atol=1e-4)
    exported = VectorIndex.read(tmp_path / "export" / "items.faiss")
    np.testing.assert_array_equal(exported.search(vectors[:9], 1)[0][:, 0], range(9))
    # Served from the export, and with exact search from one without an index.
    export_items(model, ItemFiles([str(saved.items)], "exact"), tmp_path / "vectors")
    wanted = best_of(model, QUERIES, K)
    for name, by in (("export", "index"), ("vectors", "exact")):
        own = Retriever(model, Items(None, tmp_path / name).of_first(model))
        assert own.by == by
        assert_found(answer_of(own, {"rows": QUERIES, "k": K}), wanted)
    with pytest.raises(ResourceError, match="exists already"):
        export_items(model, files, tmp_path / "export")


def test_an_export_of_another_checkpoint_is_refused_by_name(saved: Saved, tmp_path: Path) -> None:
    models = [SavedModel.open(copy) for copy in saved.copies]
    files = ItemFiles([str(saved.items)], "index")
    export_items(models[1], files, tmp_path / "export")
    export = Items(None, tmp_path / "export")
    assert len(export.of_first(models[1])) == MOVIES, "the control"
    after = [f"{model.manifest.examples_trained:,}" for model in models]
    for model, how, own in ((models[2], "older", after[2]), (models[0], "newer", after[0])):
        with pytest.raises(
            DataError, match=f"is {how} than the model: it is after {after[1]} examples, .* {own}"
        ):
            export.of_first(model)
    with pytest.raises(JobFileError, match="no files of items given"):
        export.of_next(models[2])
    manifest = tmp_path / "export" / "manifest.json"
    text = manifest.read_text()
    manifest.write_text(text.replace('"towers"', '"others"').replace('"version": "', '"version": "0'))
    with pytest.raises(DataError, match="of the run others, and so of another model than the model"):
        export.of_first(models[1])
    manifest.write_text(text)
    file = tmp_path / "export" / "items.faiss"
    content = file.read_bytes()
    file.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(DataError, match=r"items\.faiss is missing or altered"):
        export.of_first(models[1])
    for wrong in (tmp_path / "absent", saved.copies[0]):
        with pytest.raises(DataError, match="has no manifest of exported items"):
            ItemsExport.open(wrong)


def test_a_failed_export_leaves_nothing(
    saved: Saved, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    model = SavedModel.open(saved.copies[0])
    monkeypatch.setattr(VectorIndex, "write", full)
    with pytest.raises(ResourceError, match="No space left"):
        export_items(model, ItemFiles([str(saved.items)], "index"), tmp_path / "export")
    assert list(tmp_path.iterdir()) == []


def test_without_the_extra_exact_search_serves_and_an_index_names_it(
    saved: Saved, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = SavedModel.open(saved.copies[0])
    export_items(model, ItemFiles([str(saved.items)], "index"), tmp_path / "export")
    monkeypatch.setitem(sys.modules, "faiss", None)
    assert_found(
        answer_of(Retriever(model, items_of(saved).of_first(model)), {"rows": QUERIES, "k": K}),
        best_of(model, QUERIES, K),
    )
    for items in (items_of(saved, "index"), Items(None, tmp_path / "export")):
        with pytest.raises(JobFileError, match=r"an index of items needs faiss: .*shadowsync\[retrieval\]"):
            items.of_first(model)


def test_the_commands(starter: Starter, saved: Saved, tmp_path: Path) -> None:
    run, wanted = str(saved.copies[1]), best_of(SavedModel.open(saved.copies[1]), QUERIES, K)
    out = tmp_path / "export"
    told = said("export", run, "--items", str(saved.items), "--out", str(out))
    assert f"{MOVIES} items, vectors of 8 floats; of the best 10 the index finds " in told
    assert f"({MOVIES} items as queries)" in told
    for arguments, why in (
        (["export", run, "--items", "x", "--tables", "none", "--out", "y"], "--tables: given with --items"),
        (["export", run, "--queries", "x", "--out", "y"], "--queries: given without --items"),
        (["serve", run, "--queries", "x"], "--queries: given without items"),
        (["serve", run, "--search", "exact"], "--search: given without items"),
        (["serve", run, "--index", str(out), "--follow"], "--index: has the items of one checkpoint"),
        (["serve", str(saved.copies[2]), "--index", str(out)], f"{out}: is older than the model"),
    ):
        assert why in said(*arguments, code=3 if "older" in why else 2)
    for given in (["--items", str(saved.items)], ["--index", str(out)]):
        with served_by_command(starter, run, *given, path="retrieve") as (process, client):
            assert f"retrieves from {MOVIES} items by " in process.text()
            assert_found(client.retrieve(QUERIES, K), wanted)
