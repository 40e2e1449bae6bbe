"""Algorithms by name, and what is said of options that cannot be used."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from shadowsync.nodes.launch import check_sync
from shadowsync.pipeline.config.job import Job
from shadowsync.pipeline.errors import JobFileError
from shadowsync.sync_algos import registry
from shadowsync.sync_algos.base import Algorithm, ModelOrigin
from shadowsync.sync_algos.easgd import EASGD
from shadowsync.sync_algos.easgd_symmetric import SymmetricEASGD
from shadowsync.sync_algos.none import NoSync
from shadowsync.sync_algos.registry import ALGORITHMS, AlgorithmError, find_algorithm, make_algorithm


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
    folder = Path(registry.__file__).parent
    others = {"__init__", "base", "memory", "registry"}
    assert {file.stem for file in folder.glob("*.py")} - others == set(ALGORITHMS)
    assert all(cls.name == name for name, cls in ALGORITHMS.items())


@pytest.mark.parametrize(("name", "cls"), sorted(ALGORITHMS.items()))
def test_what_an_algorithm_declares(name: str, cls: type[Algorithm]) -> None:
    assert find_algorithm(name) is cls
    assert cls.summary
    assert "\n" not in cls.summary
    assert dataclasses.is_dataclass(cls.Options)
    assert cls.Options.__dataclass_params__.frozen  # type: ignore[attr-defined]
    algorithm = make_algorithm(name, {})
    assert isinstance(algorithm, cls)
    assert algorithm.describe() == dataclasses.asdict(algorithm.options)
    assert cls.needs_center == (cls.model is ModelOrigin.CENTER)


def test_names() -> None:
    assert find_algorithm("easgd") is EASGD
    assert find_algorithm("easgd_symmetric") is SymmetricEASGD
    assert find_algorithm("none") is NoSync


def test_unknown_name(refusal: Callable[..., str]) -> None:
    assert refusal("easdg") == "sync.algorithm: 'easdg' given; did you mean 'easgd'?"
    assert refusal("easgd_symetric") == (
        "sync.algorithm: 'easgd_symetric' given; did you mean 'easgd_symmetric'?"
    )
    assert refusal("zzz") == "sync.algorithm: 'zzz' given; there are: easgd, easgd_symmetric, none"


def test_unknown_option(refusal: Callable[..., str]) -> None:
    assert refusal("easgd", alpha=0.5) == "sync.options.alpha: unknown option; easgd has: elastic_rate"
    assert refusal("none", x=1) == "sync.options.x: unknown option; none has no options"


@pytest.mark.parametrize("rate", [0, 0.0, -0.1, 1.0001, float("nan"), float("inf"), "0.5", True, None, [0.5]])
def test_elastic_rate_that_cannot_be_used(refusal: Callable[..., str], rate: Any) -> None:
    said = f"sync.options.elastic_rate: {rate!r} given; a number above 0 and at most 1 will do"
    assert refusal("easgd", elastic_rate=rate) == said
    assert refusal("easgd_symmetric", elastic_rate=rate) == said


@pytest.mark.parametrize("rate", [1, 1.0, 0.5, 1e-9])
def test_elastic_rate_that_can(rate: float) -> None:
    assert make_algorithm("easgd", {"elastic_rate": rate}).describe() == {"elastic_rate": rate}


def test_default_elastic_rate() -> None:
    assert make_algorithm("easgd", {}).describe() == {"elastic_rate": 0.5}


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
    assert refusal("outsider", period=0, needed="x") == "sync.options: there is: no such period"
    assert "missing 1 required keyword-only argument: 'needed'" in refusal("outsider")
    assert make_algorithm("outsider", {"needed": "y"}).describe() == {"period": 4, "needed": "y"}


def test_a_job_is_checked_before_anything_starts() -> None:
    good: list[dict[str, Any]] = [{}, {"nodes": 2}, {"algorithm": "none", "nodes": 0}]
    for sync in good:
        check_sync(_job(**sync))
    bad: list[tuple[dict[str, Any], str]] = [
        ({"algorithm": "easdg"}, "sync.algorithm: 'easdg' given; did you mean 'easgd'?"),
        ({"options": {"elastic_rate": 2}}, "sync.options.elastic_rate: 2 given; a number above 0"),
        ({"nodes": 0}, "sync.nodes: 0 given; easgd keeps a center and needs at least 1 sync node"),
    ]
    for sync, said in bad:
        with pytest.raises(JobFileError) as caught:
            check_sync(_job(**sync))
        assert str(caught.value).startswith(said)
