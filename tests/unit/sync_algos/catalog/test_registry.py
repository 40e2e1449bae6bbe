"""Algorithms by name, and what is said of options that cannot be used."""

from __future__ import annotations

import ast
import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from shadowsync.nodes.sync_rules import check_sync
from shadowsync.pipeline.config.job import Job
from shadowsync.pipeline.errors import JobFileError
from shadowsync.sync_algos.base import Algorithm, ModelOrigin
from shadowsync.sync_algos.catalog import registry
from shadowsync.sync_algos.catalog.names import NEEDS_CENTER
from shadowsync.sync_algos.catalog.registry import ALGORITHMS, AlgorithmError, find_algorithm, make_algorithm
from shadowsync.sync_algos.none import NoSync


@pytest.fixture
def refusal() -> Callable[..., str]:
    """What is said of an algorithm and its options."""

    def refusal(name: str, **options: Any) -> str:
        with pytest.raises(AlgorithmError) as caught:
            make_algorithm(name, options)
        assert str(caught.value).startswith(f"{caught.value.key}: ")
        assert "\n" not in str(caught.value)
        return str(caught.value)

    return refusal


def _job(**sync: Any) -> Job:
    data = {"format": "parquet", "path": ["x"]}
    return Job.model_validate({"data": data, "sync": sync})


def test_all_files_of_the_folder_are_registered() -> None:
    """A file with a concrete algorithm that the dict lacks would be unreachable."""
    folder = Path(registry.__file__).parents[1]
    names = {cls for file in folder.glob("*.py") for cls in _algorithms_of(file)}
    assert names == {cls.__name__ for cls in ALGORITHMS.values()}
    assert len(names) == 8
    assert all(cls.name == name for name, cls in ALGORITHMS.items())
    assert all(cls.__module__.rpartition(".")[2] == name for name, cls in ALGORITHMS.items())


def _algorithms_of(file: Path) -> list[str]:
    """Names of the classes in a file that have a coroutine `round`, and are not the base or a protocol."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    found = [node for node in tree.body if isinstance(node, ast.ClassDef)]
    concrete = [node for node in found if node.name != "OuterModel"]
    bases = {"Algorithm", "DeltaExchange", "OuterModel"}
    return [node.name for node in concrete if bases & {ast.unparse(base) for base in node.bases}]


def test_what_is_known_without_torch_is_so() -> None:
    assert {name: cls.needs_center for name, cls in ALGORITHMS.items()} == NEEDS_CENTER


@pytest.mark.parametrize(("name", "cls"), sorted(ALGORITHMS.items()))
def test_what_an_algorithm_declares(name: str, cls: type[Algorithm]) -> None:
    assert find_algorithm(name) is cls
    algorithm = make_algorithm(name, {})
    assert isinstance(algorithm, cls)
    assert algorithm.describe() == dataclasses.asdict(algorithm.options)
    assert cls.needs_center == (cls.model is ModelOrigin.CENTER)


def test_unknown_name(refusal: Callable[..., str]) -> None:
    assert refusal("easdg") == "sync.algorithm: 'easdg' is not an algorithm; did you mean 'easgd'?"
    assert refusal("zzz") == (
        "sync.algorithm: 'zzz' is not an algorithm; "
        "give one of bmuf, decoupled, ds_sync, easgd, gaia, ma, none, tree"
    )


def test_unknown_option(refusal: Callable[..., str]) -> None:
    assert refusal("easgd", alpha=0.5) == "sync.options.alpha: unknown option; easgd has elastic_rate"
    assert refusal("none", x=1) == "sync.options.x: unknown option; none has no options"
    assert refusal("bmuf", alpha=1) == "sync.options.alpha: unknown option; bmuf has " + ", ".join(
        ["block_momentum", "elastic_rate", "eta", "form", "nesterov"]
    )
    said = "sync.options.elasticrate: unknown option; did you mean 'elastic_rate'?"
    assert refusal("ma", elasticrate=0.5) == said


OUTSIDE = 'give a number of at least 0 and below 1, "auto" or "warmup"'


@pytest.mark.parametrize(
    ("name", "key", "value", "said"),
    [
        ("ma", "form", "kep", "'kep' given; give 'interpolate' or 'keep'"),
        ("ma", "weighted", 1, "1 given; give true or false"),
        ("bmuf", "eta", 0, "0 given; give a number above 0"),
        ("bmuf", "eta", float("inf"), "inf given; give a number above 0"),
        ("bmuf", "eta", float("nan"), "nan given; give a number above 0"),
        ("bmuf", "block_momentum", 1.0, f"1.0 given; {OUTSIDE}"),
        ("bmuf", "block_momentum", -0.1, f"-0.1 given; {OUTSIDE}"),
        ("bmuf", "block_momentum", "atuo", "'atuo' given; give a number or 'auto' or 'warmup'"),
        ("ds_sync", "group_size", 1, "1 given; give an integer of at least 2"),
        ("ds_sync", "group_size", 2.0, "2.0 given; give an integer"),
        ("gaia", "threshold", -0.1, "-0.1 given; give a number of at least 0"),
        ("gaia", "threshold", float("inf"), "inf given; give a number of at least 0"),
        ("gaia", "combine", "median", "'median' given; give 'sum' or 'mean'"),
        ("tree", "site_size", 0, "0 given; give an integer of at least 1"),
        ("tree", "site_every", 0, "0 given; give an integer of at least 1"),
        ("tree", "site_every", 1.5, "1.5 given; give an integer"),
        ("ds_sync", "reshuffle", "no", "'no' given; give true or false"),
    ],
)
def test_options_that_cannot_be_used(
    refusal: Callable[..., str], name: str, key: str, value: Any, said: str
) -> None:
    assert refusal(name, **{key: value}) == f"sync.options.{key}: {said}"


@pytest.mark.parametrize("momentum", ["auto", "warmup"])
def test_a_look_ahead_needs_a_momentum_of_its_own(refusal: Callable[..., str], momentum: str) -> None:
    said = f'sync.options.nesterov: true given; give block_momentum as a number, not as "{momentum}"'
    assert refusal("bmuf", nesterov=True, block_momentum=momentum) == said
    said = "sync.options.nesterov: true given; give a block_momentum above 0 too"
    assert refusal("bmuf", nesterov=True, block_momentum=0.0) == said


@pytest.mark.parametrize(
    ("rate", "wanted"),
    [
        *((rate, "a number") for rate in ("0.5", True, None, [0.5])),
        *((rate, "a number above 0 and at most 1") for rate in (0, 0.0, -0.1, 1.0001)),
        *((float(rate), "a number above 0 and at most 1") for rate in ("nan", "inf")),
    ],
)
def test_elastic_rate_that_cannot_be_used(refusal: Callable[..., str], rate: Any, wanted: str) -> None:
    said = f"sync.options.elastic_rate: {rate!r} given; give {wanted}"
    for name in ("easgd", "ma", "bmuf", "ds_sync", "tree"):
        assert refusal(name, elastic_rate=rate) == said


@pytest.mark.parametrize("rate", [1, 1.0, 0.5, 1e-9])
def test_elastic_rate_that_can(rate: float) -> None:
    assert make_algorithm("easgd", {"elastic_rate": rate}).describe() == {"elastic_rate": rate}


def test_options_of_an_outsider_may_fail_otherwise(
    refusal: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A message that names no key of the options is given whole."""

    @dataclasses.dataclass(frozen=True, slots=True)
    class Period:
        period: int = 4
        needed: str = dataclasses.field(kw_only=True)

        def __post_init__(self) -> None:
            if self.period < 1:
                raise ValueError("there is: no such period")

    class Outsider(NoSync):
        name = "outsider"
        Options = Period

    monkeypatch.setitem(ALGORITHMS, "outsider", Outsider)
    monkeypatch.setitem(NEEDS_CENTER, "outsider", False)
    assert refusal("outsider", period=0, needed="x") == "sync.options: there is: no such period"
    assert refusal("outsider") == "sync.options.needed: is missing; give it a value"
    assert make_algorithm("outsider", {"needed": "y"}).describe() == {"period": 4, "needed": "y"}


def test_a_center_from_which_no_replica_takes_is_for_one_trainer() -> None:
    def job(count: int, algorithm: str, rate: float) -> Job:
        whole = _job(algorithm=algorithm, options={"elastic_rate": rate}).model_dump()
        return Job.model_validate(whole | {"trainer": {"count": count}})

    for good in ((1, "easgd", 1.0), (2, "easgd", 0.9)):
        check_sync(job(*good))
    with pytest.raises(
        JobFileError, match=r"^sync\.options\.elastic_rate: 1 given with 2 trainers; under easgd "
    ):
        check_sync(job(2, "easgd", 1.0))


def test_an_outsider_refuses_what_cannot_work(monkeypatch: pytest.MonkeyPatch) -> None:
    class Pairs(NoSync):
        name = "pairs"

        def check_trainers(self, trainers: int) -> None:
            if trainers % 2:
                raise ValueError(f"size: {trainers} trainers are not pairs")

    monkeypatch.setitem(ALGORITHMS, "pairs", Pairs)
    monkeypatch.setitem(NEEDS_CENTER, "pairs", False)
    whole = _job(algorithm="pairs").model_dump()
    check_sync(Job.model_validate(whole | {"trainer": {"count": 2}}))
    with pytest.raises(JobFileError, match=r"^sync\.options\.size: 3 trainers are not pairs$"):
        check_sync(Job.model_validate(whole | {"trainer": {"count": 3}}))


@pytest.mark.parametrize("way", ["peers_up", "peers_down"])
def test_lossy_codecs_need_steady_groups(way: str) -> None:
    def job(algorithm: str, codec: str) -> Job:
        whole = _job(algorithm=algorithm).model_dump() | {"codecs": {way: codec}}
        return Job.model_validate(whole)

    check_sync(job("ma", "int8"))
    check_sync(job("ds_sync", "float32"))
    check_sync(job("ds_sync", "sparse"))
    for algorithm in ("ds_sync", "tree"):
        with pytest.raises(JobFileError, match=f'codecs.{way}: "int8" given; the groups of {algorithm}'):
            check_sync(job(algorithm, "int8"))


@pytest.mark.parametrize(
    ("sync", "optimizer", "codecs", "said"),
    [
        ("none", "adagrad", {}, "none can synchronize the state of no optimizer, and trainer.optimizer is"),
        ("bmuf", "adagrad", {}, "bmuf can synchronize the state of no optimizer"),
        ("easgd", "sgd", {}, 'easgd can synchronize the state of adagrad or adam or adamw, and .* is "sgd"'),
        ("easgd", "adam", {"center_up": "int8"}, '"synchronized" given with codecs.center_up = "int8"'),
        ("ma", "adam", {"peers_down": "bfloat16"}, 'given with codecs.peers_down = "bfloat16"'),
    ],
)
def test_a_state_that_cannot_be_synchronized(
    sync: str, optimizer: str, codecs: dict[str, str], said: str
) -> None:
    def job(state: str) -> Job:
        whole = _job(algorithm=sync, optimizer_state=state).model_dump()
        whole["trainer"]["optimizer"] = optimizer
        return Job.model_validate(whole | {"codecs": codecs})

    check_sync(job("own"))
    with pytest.raises(JobFileError, match=f"sync.optimizer_state: .*{said}"):
        check_sync(job("synchronized"))


def test_states_that_can_be_synchronized() -> None:
    for sync, optimizer in (("easgd", "adam"), ("ma", "adamw"), ("tree", "adagrad")):
        whole = _job(algorithm=sync, optimizer_state="synchronized").model_dump()
        whole["trainer"]["optimizer"] = optimizer
        # Links that carry nothing may have any codec.
        other = "peers_up" if sync == "easgd" else "center_up"
        check_sync(Job.model_validate(whole | {"codecs": {other: "int8"}}))


def test_deltas_may_be_sent_by_a_lossy_codec() -> None:
    codecs = {"center_up": "topk", "center_down": "int4"}
    check_sync(Job.model_validate(_job(algorithm="decoupled").model_dump() | {"codecs": codecs}))


def test_a_merge_closes_before_its_trainers_give_up() -> None:
    def job(longest: float, algorithm: str = "decoupled") -> Job:
        options = {"longest_wait_seconds": longest} if algorithm == "decoupled" else {}
        return _job(algorithm=algorithm, timeout_seconds=2.0, options=options)

    check_sync(job(1.9))
    check_sync(job(2.0, "easgd"))
    with pytest.raises(JobFileError, match=r"sync\.options\.longest_wait_seconds: 2 s, with .* = 2;"):
        check_sync(job(2.0))
    by_default = _job(algorithm="decoupled", timeout_seconds=0.5)
    with pytest.raises(JobFileError, match="longest_wait_seconds"):
        check_sync(by_default)
