"""One contract for every store of checkpoints: a folder, stores of obstore, servers."""

from __future__ import annotations

import hashlib
import importlib
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from shadowsync.pipeline.checkpoint.store.addresses import open_store
from shadowsync.pipeline.checkpoint.store.contract import ObjectMissing, PartTarget, StorageError, Store
from shadowsync.pipeline.checkpoint.store.local import LocalStore
from shadowsync.pipeline.checkpoint.store.objects import CHUNK_BYTES, ObjectStore
from shadowsync.tests.support.outside.object_servers import SERVERS
from shadowsync.tests.support.outside.s3_server import s3_url

KINDS = ["folder", "memory", "obstore's folder", *SERVERS]


@pytest.fixture(params=KINDS)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    if request.param == "folder":
        yield LocalStore(tmp_path)
    elif request.param in SERVERS:
        yield request.getfixturevalue("server_store")(request.param)
    else:
        stores = pytest.importorskip("obstore.store")
        own = stores.MemoryStore() if request.param == "memory" else stores.LocalStore(tmp_path)
        yield ObjectStore(own, request.param)


def test_an_object_comes_back_with_its_size_and_sum(store: Store) -> None:
    pieces = [b"one", b"", b"two", b"x" * 5000]
    stored = store.put("part/a-0.safetensors", iter(pieces))
    whole = b"".join(pieces)
    assert (stored.name, stored.bytes) == ("part/a-0.safetensors", len(whole))
    assert stored.sha256 == hashlib.sha256(whole).hexdigest()
    assert store.get("part/a-0.safetensors") == whole
    assert store.list() == {"part/a-0.safetensors": len(whole)}
    assert store.put("empty/a", []).bytes == 0
    assert store.get("empty/a") == b""


def test_a_large_object_is_streamed(store: Store) -> None:
    """In several parts of an upload; no more of it is asked for than is written."""
    piece = bytes(range(256)) * (1 << 12)
    count = 2 * CHUNK_BYTES // len(piece) + 3
    stored = store.put("large", (piece for _ in range(count)))
    assert stored.bytes == count * len(piece) > 2 * CHUNK_BYTES
    digest = hashlib.sha256()
    for back in store.pieces("large"):
        digest.update(back)
    assert digest.hexdigest() == stored.sha256
    start = CHUNK_BYTES - 3
    assert store.get_range("large", start, 7) == (piece * count)[start : start + 7]
    assert store.get_range("large", stored.bytes - 2, 100) == piece[-2:]


def test_an_object_is_replaced_whole(store: Store) -> None:
    store.put("a", [b"old and long"])
    store.put("a", [b"new"])
    assert store.get("a") == b"new"


@pytest.mark.parametrize("before", [0, 3 * CHUNK_BYTES])
def test_what_ends_half_way_is_not_there(store: Store, before: int) -> None:
    """Neither a small one nor one whose upload has begun; an older one stays."""
    store.put("kept", [b"older"])

    def ends() -> Iterator[bytes]:
        yield from (b"y" * (1 << 20) for _ in range(before >> 20))
        raise KeyError("mine")

    for name in ("new", "kept"):
        with pytest.raises(KeyError, match="mine"):
            store.put(name, ends())
    assert store.list() == {"kept": 5}
    assert store.get("kept") == b"older"


def test_only_the_first_writer_gets_a_name(store: Store) -> None:
    assert store.put_if_absent("m/manifest.json", b"first")
    assert not store.put_if_absent("m/manifest.json", b"other")
    assert store.get("m/manifest.json") == b"first"
    # The control: an unconditional write does replace it.
    store.put("m/manifest.json", [b"other"])
    assert store.get("m/manifest.json") == b"other"


def test_of_many_writers_at_once_one_wins(store: Store) -> None:
    together = threading.Barrier(6)

    def write(number: int) -> bool:
        together.wait(60.0)
        return store.put_if_absent("claimed", b"%d" % number)

    with ThreadPoolExecutor(6) as pool:
        won = list(pool.map(write, range(6)))
    assert won.count(True) == 1
    assert store.get("claimed") == b"%d" % won.index(True)


def test_what_is_removed_is_gone_and_its_namesakes_stay(store: Store) -> None:
    for name in ("p-1/a", "p-1/b", "p-10/a", "q/p-1"):
        store.put(name, [b"x"])
    store.delete(["p-1/a", "p-1/b"])
    assert list(store.list()) == ["p-10/a", "q/p-1"]
    store.delete(["p-10/a", "never"])
    store.delete([])
    assert list(store.list()) == ["q/p-1"]


def test_what_is_missing_is_named(store: Store) -> None:
    with pytest.raises(ObjectMissing, match="nowhere/x"):
        store.get("nowhere/x")
    with pytest.raises(ObjectMissing, match="nowhere"):
        store.get_range("nowhere", 0, 1)
    assert store.list() == {}


def test_a_part_goes_below_its_prefix(store: Store) -> None:
    assert PartTarget(store, "parts-1").put("a", [b"x"]).name == "parts-1/a"
    assert PartTarget(store).put("a", [b"yy"]).name == "a"
    assert store.list() == {"a": 2, "parts-1/a": 1}


@pytest.mark.parametrize(
    ("error", "refused"),
    [
        ("PermissionDeniedError", True),
        ("UnauthenticatedError", True),
        ("GenericError:<Error><Code>ExpiredToken</Code><Message>has expired</Message></Error>", True),
        ("GenericError:Server returned non-2xx status code: 403 Forbidden: <Error/>", True),
        ("GenericError:Server returned non-2xx status code: 503 Busy: <Error/>", False),
        ("GenericError:<Error><Code>SlowDown</Code><Message>later</Message></Error>", False),
        ("GenericError:error sending request", False),
    ],
)
def test_refused_credentials_are_told_from_other_failures(error: str, refused: bool) -> None:
    """An expired token is answered with status 400, as any bad request."""
    stores = pytest.importorskip("obstore.store")
    kinds = importlib.import_module("obstore.exceptions")
    name, _, text = error.partition(":")
    store = ObjectStore(stores.MemoryStore(), "s3://bucket/run")
    with pytest.raises(StorageError) as caught, store._named("a"):
        raise getattr(kinds, name)(text)
    assert ("refuses the credentials" in str(caught.value)) == refused
    assert ("renew the credentials" in caught.value.remedy) == refused
    assert caught.value.where == "s3://bucket/run/a"


def test_a_key_that_cannot_be_sent_is_an_error_of_the_storage(monkeypatch: pytest.MonkeyPatch) -> None:
    """obstore panics, and what it raises is no Exception."""
    with s3_url(monkeypatch) as url:
        assert open_store(url).list() == {}, "the control"
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test\n")
        with pytest.raises(StorageError, match="the client of the storage failed") as caught:
            open_store(url).list()
    assert "line breaks" in caught.value.remedy
