"""Which jobs `run --autoscale` takes, and what it does when a change is refused."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

import pytest
from click.testing import CliRunner
from shadowsync.cli import main
from shadowsync.nodes.clients import autoscale
from shadowsync.nodes.clients.autoscale import TrainerCounts, keep_scaled, require_scalable
from shadowsync.nodes.clients.count_law import CountRules
from shadowsync.pipeline.config.job import Job
from shadowsync.pipeline.errors import ClusterError, JobFileError

RULES = CountRules(1, 8)


def a_job(**changes: dict[str, object]) -> Job:
    data = {"format": "criteo_tsv", "path": ["part.tsv"]}
    return Job.model_validate({"data": data, "sync": {"nodes": 1}, "trainer": {"count": 2}} | changes)


@pytest.mark.parametrize(
    ("changes", "rules", "what", "remedy"),
    [
        ({"trainer": {"count": 1}}, RULES, "trainer.count = 1 given; a job of one", "trainer.count = 2"),
        ({"trainer": {"count": 9}}, RULES, "1:8 and trainer.count = 9 given, which is not", "a range with"),
        ({}, CountRules(3, 4), "3:4 and trainer.count = 2 given, which is not within", "a range with"),
        ({"network": {"delay": "10ms"}}, RULES, "emulated network", "leave out --delay"),
    ],
)
def test_jobs_whose_trainers_cannot_come_and_go_are_refused(
    changes: dict[str, Any], rules: CountRules, what: str, remedy: str
) -> None:
    with pytest.raises(JobFileError, match=what) as refused:
        require_scalable(a_job(**changes), rules)
    assert remedy in refused.value.remedy


def test_others_are_taken() -> None:
    require_scalable(a_job(), RULES)
    require_scalable(a_job(trainer={"count": 8}), RULES)


def test_a_coordinator_that_is_away_is_followed_again_with_what_was_measured(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    seen: list[TrainerCounts] = []

    async def follow(
        _address: str, counts: TrainerCounts, _changed: object, refused: Callable[[ClusterError], object]
    ) -> str:
        seen.append(counts)
        if len(seen) == 1:
            raise ClusterError("no answer for 20 s")
        refused(ClusterError("the job cannot take another trainer now"))
        return "finished"

    monkeypatch.setattr(autoscale, "autoscale_job", follow)
    monkeypatch.setattr(autoscale, "RETRY_SECONDS", 0.0)
    with caplog.at_level(logging.WARNING):
        asyncio.run(keep_scaled("tcp://127.0.0.1:1", RULES))
    assert len(seen) == 2
    assert seen[0] is seen[1]
    assert ["no answer for 20 s" in caplog.text, "cannot take another trainer now" in caplog.text] == [
        True
    ] * 2


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--autoscale", "4"], "'4' given; MIN:MAX trainers are needed"),
        (["--autoscale", "0:4"], "'0:4' given; MIN:MAX trainers are needed"),
        (["--target", "1k/s"], "--target is for --autoscale"),
        (["--autoscale", "1:4", "--target", "fast"], "--target: 'fast' given"),
    ],
)
def test_options_that_cannot_be_are_refused_before_the_job_is_read(options: list[str], said: str) -> None:
    result = CliRunner().invoke(main, ["run", "no-such-job.toml", *options])
    assert result.exit_code == 2
    assert said in result.stderr
