"""A sample of a job's input, read before the job starts."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from ..config.job import Job
from ..data.bad_rows import UnreportedBadRows
from ..data.batch import Batch
from ..data.batches.shuffle import SPANS, permutation
from ..data.span import Span
from ..errors import ShadowSyncError
from ..text.format import duration
from .job_input import JobInput

SAMPLED_SPANS = 4

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class LeastSample:
    """So many examples are waited for, at most so many seconds in all."""

    examples: int
    seconds: float


def sample_batches(job: Job, spans: Sequence[Span], examples: int) -> Iterator[Batch]:
    """Yield about `examples` examples in batches of the job's size.

    These are the first batches of some spans of the plan, and of others where these have too few, neither
    shuffled nor sorted by time. Bad rows are left out. Raises DataError for files that cannot be read.
    """
    source = JobInput(job)
    if any(span.kind == "sorted" for span in spans):
        spans = source.plan(job.data.path)
    left = examples
    for span, share in spread(spans, SAMPLED_SPANS):
        left_here = min(-(-examples // share), left)
        # From the span's first row, because skipping rows would need reading them. `last` stays, because
        # later rows may be of another part.
        whole = replace(span, first=0)
        batches = source.batches(
            whole,
            epoch=0,
            seed=job.run.seed,
            batch=job.trainer.batch,
            shuffle_window=0,
            bad_rows=UnreportedBadRows(),
        )
        for batch in batches:
            yield batch
            left_here -= len(batch)
            left -= len(batch)
            if left_here <= 0:
                break
        if left <= 0:
            return


def spread(spans: Sequence[Span], count: int) -> Iterator[tuple[Span, int]]:
    """Yield all spans, first at most `count` that are evenly apart.

    Beside each is the number of spans that share the sample: of the others each may have all that is missing.
    """
    first = dict.fromkeys(len(spans) * place // count for place in range(count)) if spans else {}
    for number in first:
        yield spans[number], len(first)
    for number in permutation(len(spans), SPANS).tolist():
        if number not in first:
            yield spans[number], 1


def take_sample(
    job: Job,
    spans: Sequence[Span],
    add: Callable[[Batch], bool],
    *,
    examples: int,
    seconds: float | None,
    least: LeastSample | None = None,
) -> None:
    """Give a sample of the input to `add`, batch by batch.

    The sample ends after about `examples` examples, when `add` returns False, or after about `seconds`, later
    if it has less than the `least` by then. Without `seconds` there is no time limit, so the sample does not
    depend on a clock. The input is read on a separate thread, which calls `add`, so that a slow file does not
    block; `add` is not called after this returns. A file that cannot be read ends the sample and is logged;
    the job's readers will raise the error.
    """
    lock = threading.Lock()
    is_over, examples_read = False, 0
    least_examples = least.examples if least is not None else 0
    enough = threading.Event()

    def read() -> None:
        nonlocal examples_read
        try:
            for batch in sample_batches(job, spans, examples):
                with lock:
                    if is_over or not add(batch):
                        return
                    examples_read += len(batch)
                if examples_read >= least_examples:
                    enough.set()
        except ShadowSyncError as error:
            log.warning("the sample of the input ends early: %s", error)
        finally:
            enough.set()

    thread = threading.Thread(target=read, name="sample", daemon=True)
    began = time.monotonic()
    thread.start()
    thread.join(seconds)
    if least is not None and seconds is not None:
        enough.wait(max(0.0, least.seconds - seconds))
    with lock:
        is_over = True
    log.info("sampled the input for %s", duration(time.monotonic() - began))
