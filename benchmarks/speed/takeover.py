"""CPU and wall seconds in which a coordinator takes over a long job.

    python benchmarks/speed/takeover.py --batches 1000000 5000000 --out takeover.json

For each number of batches, a coordinator's state and journal are driven without nodes: 2 readers, 4 trainers,
--per-span batches of 512 examples in a span, --per-message batches in a message. Then another state takes
over from the file, as after a death at the last batch, with and without the snapshot. The file --out has, as
JSON, the seconds, the rows of the journal that were read, the CPU seconds of making the journal, and the
total and longest CPU seconds that snapshots cost the coordinator's loop.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import resource
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from shadowsync.nodes.coordinator.journal import JobJournal
from shadowsync.nodes.coordinator.ledger.ledger import LedgerState
from shadowsync.nodes.coordinator.ledger.store import LedgerStore, LedgerWriter
from shadowsync.nodes.coordinator.recovery.takeover import Takeover
from shadowsync.nodes.coordinator.state.changes import JobBegan, MembersStarted, TrainingBegan
from shadowsync.nodes.coordinator.state.job import JobState
from shadowsync.nodes.coordinator.state.placement import TablePlacement
from shadowsync.pipeline.config.job import Job
from shadowsync.pipeline.data.span import Span
from shadowsync.pipeline.types import BatchId
from shadowsync.pipeline.wire.control.messages import (
    Hello,
    NextSpan,
    NextSpanReply,
    NodeFacts,
    Ready,
    SpanRead,
    TrainedBatch,
    TrainedBatches,
)

EXAMPLES = 512
READERS = 2
TRAINERS = 4
FILE = "ledger.sqlite"
JOB = Job.model_validate(
    {
        "data": {"format": "criteo_tsv", "path": ["part.tsv"], "readers": READERS},
        "trainer": {"count": TRAINERS},
        "sync": {"algorithm": "none"},
    }
)


def main() -> None:
    """Make the journals, take over from each, and print the seconds."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--batches", type=int, nargs="+", default=[1_000_000])
    parser.add_argument("--per-span", type=int, default=100)
    parser.add_argument("--per-message", type=int, default=8)
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    found = []
    for batches in given.batches:
        with tempfile.TemporaryDirectory(prefix="benchmark-") as folder:
            found.append(_measure(Path(folder), batches, given.per_span, given.per_message))
        given.out.write_text(json.dumps({"runs": found}, indent=1) + "\n", encoding="utf-8")
        print(json.dumps(found[-1]), flush=True)


def _measure(folder: Path, batches: int, per_span: int, per_message: int) -> dict[str, Any]:
    spans = -(-batches // per_span)
    made = asyncio.run(_make(folder, spans, per_span, per_message))
    made |= {f"takeover_{key}": value for key, value in _take_over(folder, spans).items()}
    store = LedgerStore(folder / FILE, new=False)
    store.forget_snapshot()
    store.close()
    return made | {f"whole_journal_{key}": value for key, value in _take_over(folder, spans).items()}


def _take_over(folder: Path, spans: int) -> dict[str, Any]:
    cpu, wall = time.process_time(), time.perf_counter()
    takeover = Takeover.open(folder, FILE)
    state = _state(folder, spans, takeover.clock)
    takeover.replay(state)
    found = {"cpu_seconds": time.process_time() - cpu, "seconds": time.perf_counter() - wall}
    takeover.store.close()
    return found | {
        "rows": takeover.replayed,
        "batches": state.ledger.totals.distinct_batches,
        "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10,
    }


def _state(folder: Path, spans: int, clock: Callable[[], float] = time.monotonic) -> JobState:
    plan = [Span(number, "part.tsv", "bytes", number, number + 1) for number in range(spans)]
    ledger = LedgerState(plan, epochs=1, seed=1, shuffled=True)
    return JobState(JOB, folder, ledger, TablePlacement.by_rows(JOB), clock=clock)


class _TimedJournal(JobJournal):
    """The journal, which measures its snapshots."""

    count = 0
    on_loop = 0.0
    longest_on_loop = 0.0

    def _save(self) -> None:
        began = time.thread_time()
        super()._save()
        took = time.thread_time() - began
        self.count += 1
        self.on_loop += took
        self.longest_on_loop = max(self.longest_on_loop, took)


async def _make(folder: Path, spans: int, per_span: int, per_message: int) -> dict[str, Any]:
    def failed(error: BaseException) -> None:
        raise error

    state, store = _state(folder, spans), LedgerWriter(LedgerStore(folder / FILE))
    journal = _TimedJournal(state, store, failed)
    await journal.decided(JobBegan(time.time(), "ipc://here", state.placement.plan.to_body(), "rows"))
    numbers = iter(range(1, 1 << 62))
    for role, count in JOB.expected.items():
        for place in range(count):
            token = f"{role}-{place}"
            journal.apply(token, next(numbers), Hello(role, token, JOB.digest, "", 1, "here"))
            await journal.apply(token, next(numbers), Ready(NodeFacts()))[1]
    state.start_members()
    journal.decided(MembersStarted())
    state.begin_training({})
    await journal.decided(TrainingBegan({}))
    cpu = time.process_time()
    for place in range(spans):
        reader = f"reader-{place % READERS}"
        reply, _ = journal.apply(reader, next(numbers), NextSpan())
        assert isinstance(reply, NextSpanReply)
        assert reply.grant is not None
        span = reply.grant.span.number
        read = SpanRead(0, span, per_span, per_span * EXAMPLES, 0)
        await journal.apply(reader, next(numbers), read)[1]
        for start in range(0, per_span, per_message):
            ids = [BatchId(0, span, n, 1) for n in range(start, min(per_span, start + per_message))]
            trained = tuple(TrainedBatch(one, EXAMPLES, 300.5, 130.0, 512.0, 0.01) for one in ids)
            trainer = f"trainer-{(start // per_message) % TRAINERS}"
            written = journal.apply(trainer, next(numbers), TrainedBatches(trained, (), start))[1]
        await written
    made = {
        "batches": state.ledger.totals.distinct_batches,
        "journal_cpu_seconds": time.process_time() - cpu,
        "snapshots": journal.count,
        "snapshot_cpu_seconds": journal.on_loop,
        "longest_snapshot_cpu_seconds": journal.longest_on_loop,
    }
    await store.close()
    return made | {"file_mb": (folder / FILE).stat().st_size >> 20}


if __name__ == "__main__":
    main()
