"""A whole `shadowsync chaos --every`: kills by the clock, and what was useful beside a job without a kill."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import replace
from itertools import chain, islice, repeat
from pathlib import Path
from typing import Any

import pytest
from shadowsync.lab.chaos import soak
from shadowsync.lab.chaos.schedule import ScheduledFault, soak_faults
from shadowsync.pipeline.errors import ExitCode
from shadowsync.tests.support.jobs.commands import said
from shadowsync.tests.support.jobs.processes import Starter
from shadowsync.tests.support.jobs.runs import EXAMPLES, JobMaker

KILLS = 2
# A worker waits for the rows of each batch: no machine trains all before the kills, at 1 s and 2 s.
SLOW = {"network": {"delay": "100ms", "delay_links": "all"}, "trainer": {"count": 2, "workers": 1}}


def first_kills(*plan: Any) -> Iterator[ScheduledFault]:
    """The soak's own faults without those after KILLS: a busy machine, which trains longer, has no more."""
    drawn = list(islice(soak_faults(*plan), KILLS + 1))
    return chain(drawn[:KILLS], repeat(replace(drawn[KILLS], soak_seconds=math.inf)))


def useful_per_second(stretch: dict[str, float]) -> float:
    return (stretch["input_examples"] - stretch["lost_examples"]) / stretch["seconds"]


@pytest.mark.matrix
@pytest.mark.timeout(600)
def test_a_soak(
    starter: Starter, job_file: JobMaker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    del starter  # It looks for processes that are left.
    monkeypatch.setattr(soak, "soak_faults", first_kills)
    options = ["--every", "1s", "--for", "2s", "--faults", "kill", "--roles", "trainer,reader"]
    folder = tmp_path / "soak"
    text = said("chaos", str(job_file(SLOW)), *options, "--clean-runs", "1", "--out", str(folder))
    found = json.loads((folder / "chaos.json").read_text("utf-8"))
    assert found["problems"] == []
    assert found["injected"] == {"trainer killed": 1, "reader killed": 1}
    (job,) = found["jobs"]
    assert job["exit_codes"] != [ExitCode.OK], "the kills met it"

    (faulted,), (clean,) = found["faulted"], found["clean"]
    assert faulted["input_examples"] == EXAMPLES
    counts = clean["input_examples"], clean["repeated_examples"], clean["lost_examples"]
    assert counts == (EXAMPLES, 0, 0), "the control: a job without a kill"
    assert found["goodput"] == pytest.approx(useful_per_second(faulted) / useful_per_second(clean))
    assert f"goodput {found['goodput']:.3f}" in text

    # Not of a kill after which its run trained nothing more.
    assert set(found["speeds"]) <= set(found["injected"])
    for parts in found["speeds"].values():
        for seconds, examples in parts:
            assert 0.0 < seconds < faulted["seconds"]
            assert 0 <= examples < EXAMPLES
