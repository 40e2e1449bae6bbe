"""Reports to test with: one with everything in it, and one with nothing that could be left out."""

from __future__ import annotations

import io
import math
from typing import Any

import pytest
from pydantic import BaseModel
from rich.console import Console
from shadowsync.pipeline.report.document import (
    Curves,
    Event,
    ExampleCounts,
    Hardware,
    LinkTraffic,
    NodeRecord,
    Replicas,
    Report,
    Staleness,
    Sync,
    Throughput,
)
from shadowsync.pipeline.report.ledger import Identity, Ledger
from shadowsync.pipeline.report.quality import Evaluation, GroupQuality, RetrievalFigures, Train
from shadowsync.pipeline.report.rendering.terminal import print_report


def _nodes() -> list[NodeRecord]:
    roles = ["coordinator", "reader", "trainer", "trainer", "embedding", "embedding", "sync"]
    return [
        NodeRecord(
            name=f"{role}-{number}",
            role=role,
            cpu_seconds=10.5 * (number + 1),
            peak_memory_bytes=(200 + number) << 20,
            exit="killed by signal 9" if number == 3 else "0",
        )
        for number, role in enumerate(roles)
    ]


def _curves() -> Curves:
    return Curves(
        ne=[(k * 20_000.0, 0.79 + 0.2 * math.exp(-k / 12)) for k in range(1, 50)],
        throughput={
            f"trainer-{t}": [(float(s), 9000 + 400 * t + 300 * math.sin(s)) for s in range(1, 50)]
            for t in (2, 3)
        },
        sync_gap={f"trainer-{t}": [(s * 0.5, float(3 + (s * t) % 5)) for s in range(1, 90)] for t in (2, 3)},
    )


@pytest.fixture(scope="session")
def full_report() -> Report:
    identities = [
        Identity.of("read = trained + returned + in_flight", 1_005_120, 1_005_120),
        Identity.of("trained = distinct + replayed", 1_001_024, 1_001_024),
        Identity.of("embedding-0 applied = batches", 1953, 1953),
        Identity.of("embedding-1 applied = batches", 1953, 1953),
    ]
    return Report(
        run="demo",
        outcome="finished although a node died",
        exit_code=5,
        started_at="2024-05-01T12:00:00+00:00",
        wall_seconds=104.2,
        seed=1,
        job_digest="0123456789abcdef" * 4,
        model_saved="the center (easgd)",
        examples=ExampleCounts(
            read=1_005_120,
            distinct=1_000_000,
            trained=1_001_024,
            replayed=1024,
            returned=4096,
            in_flight=0,
            dropped=0,
            bad_rows=3,
            reasons={"39 columns": 2, "a | in a number": 1},
        ),
        throughput=Throughput(
            examples_per_second=10_234.5,
            per_trainer={"trainer-2": 5200.25, "trainer-3": 5034.25},
            cpu_seconds_per_million=161.7,
        ),
        train=Train(ne_progressive=0.8412, rows_warmup_examples=30_720),
        eval=Evaluation(
            model="the center (easgd)",
            ne=0.8123,
            auc=0.7654,
            auc_error=2e-5,
            logloss=0.4567,
            calibration=1.0123,
            examples=100_000,
            teacher_ne=0.7801,
            gain_ratio=0.8536,
        ),
        sync=Sync(
            algorithm="easgd",
            mode="shadow",
            rounds=412,
            gap_mean=4.74,
            gap_max=19.0,
            bytes=3_456_789_012,
            seconds_mean=0.0312,
            cpu_seconds_mean=0.0021,
            links={
                "center_up": LinkTraffic(codec="int8", bytes=1 << 30, float32_bytes=15 << 28),
                "center_down": LinkTraffic(codec="float32", bytes=2 << 30, float32_bytes=2 << 30),
            },
            reference_bytes={"trainer": 3 << 20, "sync": 6 << 20},
        ),
        elp=1024,
        staleness=Staleness(embedding_mean=1.31, embedding_max=9.0),
        replicas=Replicas(divergence=0.0213),
        ledger=Ledger.of(identities, 2, {"embedding-0": 1953, "embedding-1": 1953}),
        events=[Event(seconds=42.7, node="trainer-3", what="died: killed by signal 9")],
        nodes=_nodes(),
        hardware=Hardware(cpu_model="A CPU", cores=2, memory_bytes=8 << 30),
        versions={"shadowsync": "0.1.0", "python": "3.11.9"},
        curves=_curves(),
    )


@pytest.fixture(scope="session")
def minimal_report() -> Report:
    return Report(
        run="job",
        outcome="interrupted",
        exit_code=130,
        started_at="2024-05-01T12:00:00+00:00",
        wall_seconds=0.8,
        seed=1,
        job_digest="ab" * 32,
        model_saved=None,
        examples=ExampleCounts(
            read=0, distinct=0, trained=0, replayed=0, returned=0, in_flight=0, dropped=0, bad_rows=0
        ),
        throughput=Throughput(examples_per_second=None, per_trainer={}, cpu_seconds_per_million=None),
        train=Train(ne_progressive=None),
        eval=None,
        sync=Sync(
            algorithm="none", mode="shadow", rounds=0, gap_mean=None, gap_max=None, bytes=0, seconds_mean=None
        ),
        elp=512,
        staleness=Staleness(embedding_mean=None, embedding_max=None),
        replicas=Replicas(divergence=None),
        ledger=Ledger.of([Identity.of("trained = distinct + replayed", 0, 0)], 0, {}),
        hardware=Hardware(cpu_model=None, cores=None, memory_bytes=None),
        versions={},
    )


@pytest.fixture(scope="session")
def red_report(full_report: Report) -> Report:
    """The full report, but one message of the ledger was lost."""
    wrong = Identity.of("read = trained + returned + in_flight", 1_005_120, 1_004_608)
    ledger = Ledger.of([*full_report.ledger.identities[1:], wrong], 0, {"embedding-0": 1953})
    return altered(full_report, ledger=ledger, outcome="stopped: the ledger does not add up", exit_code=7)


def on_terminal(report: Report, width: int = 100, *, terminal: bool = False) -> str:
    """What is shown of a report; with the colours of a terminal, or as in a file."""
    text = io.StringIO()
    console = Console(
        file=text,
        width=width,
        force_terminal=terminal,
        color_system="standard" if terminal else None,
        _environ={"TERM": "xterm"},
    )
    print_report(report, console)
    return text.getvalue()


def altered(report: Report, **changes: Any) -> Report:
    """The report with other values; of a section those that a dict names, the others stay."""
    for name, value in changes.items():
        section = getattr(report, name)
        if isinstance(section, BaseModel) and isinstance(value, dict):
            value = section.model_copy(update=value)
        report = report.model_copy(update={name: value})
    return report


def among_a_catalogue(**figures: float) -> RetrievalFigures:
    """Ranks of 4,000 queries among 1,682 items."""
    left_out = {"rows_not_in_catalogue": 3, "rows_without_group": 12, "rows_left_out": 0}
    counts = {"k": 10, "queries": 4_000, "items": 1_682, "rows": 8_013} | left_out
    whole = {"catalogue": "training", "column": "user", "without_trained": True} | counts | figures
    return RetrievalFigures.model_validate(whole)


def within_groups(**figures: float) -> GroupQuality:
    """Ranks within 4,000 groups of a user."""
    counts = {"groups": 4_000, "groups_without_positive": 1, "rows_without_group": 12, "rows_left_out": 0}
    return GroupQuality.model_validate({"column": "user", "k": 10} | counts | figures)
