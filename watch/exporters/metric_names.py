"""The metrics that nodes serve to Prometheus: names, units and their counts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

PREFIX = "shadowsync_"


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric; `key` is the count's name in a heartbeat, `name` lacks `_total`."""

    name: str
    kind: Literal["counter", "gauge"]
    key: str
    text: str


def _counter(name: str, key: str, text: str) -> Metric:
    return Metric(name, "counter", key, text)


def _gauge(name: str, key: str, text: str) -> Metric:
    return Metric(name, "gauge", key, text)


COMMON = (
    _counter("cpu_seconds", "cpu_seconds", "CPU time of the process, all threads"),
    _gauge("memory_bytes", "memory_bytes", "resident memory of the process"),
    _gauge("peak_memory_bytes", "peak_memory_bytes", "the most resident memory so far"),
    _counter("refused_messages", "refused_messages", "messages refused as malformed"),
    _counter(
        "refused_connections",
        "refused_connections",
        "connections refused for a wrong or missing key, or for what they left unfinished",
    ),
    _counter(
        "http_refused_connections",
        "http_refused",
        "connections to page and metrics that were closed because too many were open",
    ),
    _counter(
        "http_closed_connections",
        "http_closed",
        "connections to page and metrics that were closed because they were idle or too slow",
    ),
)
_LISTENER = (
    _counter("unsent_messages", "unsent_messages", "messages not sent: a queue was full or a peer lost"),
    _counter("sent_bytes", "sent_bytes", "bytes of messages sent to others, without the control plane"),
    _counter(
        "received_bytes",
        "received_bytes",
        "bytes of messages received from others, without the control plane",
    ),
)
_SHARED = _counter(
    "shared_bytes", "shared_bytes", "bytes of vectors and gradients in shared memory, in no message"
)
READER = (
    *_LISTENER,
    _counter("read_examples", "read_examples", "examples delivered to trainers"),
    _counter("read_batches", "read_batches", "batches delivered to trainers"),
    _counter("resent_batches", "resent_batches", "batches delivered again because no receipt came"),
    _counter("bad_rows", "bad_rows", "malformed rows"),
    _gauge("queued_batches", "queued_batches", "ready batches that no trainer has credit for"),
    _gauge("retained_bytes", "retained_bytes", "memory of batches not yet confirmed as trained"),
    _gauge("sharing_examples_ratio", "sharing_examples", "share of examples with an id in a row of several"),
)
TRAINER = (
    *_LISTENER,
    _SHARED,
    _gauge("unshared_links", "unshared_links", "workers' links to embedding nodes that cannot share memory"),
    _counter("trained_examples", "trained_examples", "examples trained by this trainer"),
    _counter("iterations", "iterations", "steps of all workers"),
    _counter("captured_steps", "captured_steps", "steps that a GPU replayed from a captured graph"),
    _counter("clipped_steps", "clipped_steps", "steps whose gradient norm exceeded trainer.clip_norm"),
    _counter("left_out_batches", "left_out_batches", "batches left out, as not finite"),
    _counter("repeated_deliveries", "repeated_deliveries", "duplicate deliveries from readers"),
    _counter("wait_seconds", "wait_seconds", "time that workers waited for batches and vectors, summed"),
    _counter("lookup_requests", "lookups", "lookups sent to embedding nodes"),
    _counter("resent_requests", "resent_requests", "requests sent again because no reply came"),
    _counter("sync_rounds", "rounds", "completed rounds of synchronization"),
    _counter("sync_incomplete_rounds", "incomplete_rounds", "rounds that ended with slices missing"),
    _counter("sync_gap_iterations", "gap_sum", "iterations between completed rounds, summed over rounds"),
    _gauge("sync_gap_open_iterations", "gap_open", "iterations since the last completed round"),
    _gauge("sync_gap_max_iterations", "gap_max", "the largest sync gap so far"),
    _counter("sync_round_seconds", "round_seconds", "time that rounds took, summed"),
    _counter("sync_round_cpu_seconds", "round_cpu_seconds", "CPU time that rounds took, summed"),
    _counter("sync_sent_bytes", "sync_sent_bytes", "bytes sent for synchronization"),
    _counter("sync_received_bytes", "sync_received_bytes", "bytes received for synchronization"),
)
EMBEDDING = (
    *_LISTENER,
    _SHARED,
    _counter("lookups", "lookups", "lookups answered"),
    _counter("looked_up_rows", "looked_up_rows", "rows in the answered lookups"),
    _counter("pushes", "staleness_count", "pushes applied"),
    _gauge("shared_segments", "shared_segments", "workers' segments of shared memory that are attached"),
    _counter("repeated_pushes", "repeated_pushes", "duplicate pushes, which changed nothing"),
    _counter("staleness_pushes", "staleness_sum", "staleness of the pushes applied, summed"),
    _gauge("staleness_max_pushes", "staleness_max", "the largest staleness so far"),
    _gauge("disk_memory_rows", "disk_memory_rows", "rows in memory, where others lie on disk"),
    _gauge("disk_file_rows", "disk_file_rows", "rows that the file on disk has"),
    _counter("disk_requested_rows", "disk_requested", "rows of lookups and pushes, where some lie on disk"),
    _counter("disk_missed_rows", "disk_missed", "of these, rows that were not in memory"),
    _counter("disk_read_rows", "disk_reads", "rows read from the disk"),
    _counter("disk_written_rows", "disk_writes", "rows written to the disk"),
    _counter("disk_bytes", "disk_bytes", "bytes of the rows read and written"),
    _counter("disk_wait_seconds", "disk_wait_seconds", "time that the node waited for its disk"),
)
SYNC = (
    *_LISTENER,
    _counter("applied_slices", "applied_slices", "slices of the center that were moved"),
    _counter("abandoned_exchanges", "abandoned_exchanges", "exchanges that a trainer gave up halfway"),
    _counter("repeated_chunks", "repeated_chunks", "duplicate chunks, which changed nothing"),
    _counter("merges", "merges", "merges of trainers' work that moved the center"),
    _counter("late_merges", "late_merges", "merges that closed without a trainer, which was late"),
    _counter("orphaned_slices", "orphaned_slices", "slices moved for a trainer that then died"),
)
COORDINATOR = (
    _gauge("job_seconds", "seconds", "time since the job's start"),
    _gauge("job_ended", "ended", "1 when the job has ended"),
    _counter("job_trained_examples", "trained", "acknowledged examples, including replayed ones"),
    _counter("job_distinct_examples", "distinct", "distinct acknowledged examples"),
    _counter("job_replayed_examples", "replayed", "further acknowledgements of an example"),
    _counter("job_returned_examples", "returned", "examples that came back from dead or leaving trainers"),
    _counter("job_left_out_examples", "left_out", "examples of batches left out, as not finite"),
    _gauge("job_in_flight_examples", "in_flight", "examples read, and not trained, returned or left out"),
    _gauge("job_expected_examples", "total", "examples of all epochs, perhaps estimated"),
    _gauge("job_ne", "ne", "normalized entropy in training, of all examples so far"),
    _gauge("job_recent_ne", "ne_recent", "normalized entropy in training, of the latest examples"),
    _gauge(
        "job_validation_score", "validation", "the last validation, in the metric of the job's [validation]"
    ),
    _gauge("job_divergence", "divergence", "how far the replicas are apart: ‖w - mean‖ / ‖mean‖, averaged"),
    _gauge("job_sync_gap_mean_iterations", "gap_mean", "iterations between rounds, mean over trainers"),
    _gauge("job_living_nodes", "living", "nodes that are alive, the coordinator among them"),
    _gauge("job_dead_nodes", "dead", "nodes that died"),
)
# What a hub of attached loops has of these.
_OF_HUB = {
    "seconds",
    "ended",
    "divergence",
    "gap_mean",
    "living",
    "dead",
}
HUB = (
    *(metric for metric in COORDINATOR if metric.key in _OF_HUB),
    _counter("hub_steps", "steps", "steps of all attached loops"),
    _counter("hub_synchronized_steps", "synchronized_steps", "steps that a complete round has carried on"),
    _counter("hub_lost_steps", "lost_steps", "steps that loops had not synchronized as they died or left"),
    _counter("hub_rounds", "rounds", "completed rounds of all loops"),
)
BY_ROLE: dict[str, tuple[Metric, ...]] = {
    "coordinator": (*COMMON, *COORDINATOR),
    "reader": (*COMMON, *READER),
    "trainer": (*COMMON, *TRAINER),
    "embedding": (*COMMON, *EMBEDDING),
    "sync": (*COMMON, *SYNC),
    "hub": (*COMMON, *HUB),
}
# Counted by trainers for each node at the other end.
LINKS = (
    _counter("link_sent_bytes", "to/", "bytes sent to one other node"),
    _counter("link_received_bytes", "from/", "bytes received from one other node"),
    _counter("link_shared_bytes", "shared/", "bytes, both ways, in memory shared with one other node"),
)
# Counted by trainers for each other trainer, where rounds begin when all are ready.
WAITS = (
    _counter(
        "sync_waited_seconds", "waited_seconds/", "time that rounds waited for another trainer to be ready"
    ),
)
# Counted by sync nodes for each trainer, where the center merges.
MERGES = (
    _counter("merged_examples", "merged_examples/", "examples of one trainer in merges"),
    _counter("merges_with", "merges_with/", "merges that one trainer was in"),
    _counter("merges_without", "merges_without/", "merges that closed without one trainer, which trained"),
    _counter("merge_late_seconds", "late_seconds/", "time by which one trainer's work came late, summed"),
    _gauge("merge_most_late_seconds", "most_late_seconds/", "the most that one trainer's work came late"),
)
# Of a job with several labels, one value for each.
LABELS_OF_JOB = (
    _gauge("job_label_ne", "ne/", "normalized entropy in training of one label, of all examples so far"),
    _gauge(
        "job_label_recent_ne",
        "ne_recent/",
        "normalized entropy in training of one label, of the latest examples",
    ),
    _gauge(
        "job_label_validation_score",
        "validation/",
        "the last validation of one label, in the metric of the job's [validation]",
    ),
)
# Counted by embedding nodes for each growing table.
GROWING_TABLES = (
    _gauge("growing_rows", "growing/rows/", "rows of a growing table here that have an id"),
    _counter("growing_admitted_ids", "growing/admitted/", "how often an id got a row here"),
    _counter("growing_evicted_ids", "growing/evicted/", "how often an id lost its row here"),
    _counter(
        "growing_refused_ids", "growing/refused/", "how often an id was due for a row here and none was free"
    ),
)
# Measured by readers for each hashed table.
HASHED_TABLES = (
    _gauge("shared_rows_ratio", "shared_rows/", "share of a hashed table's ids in a row of several"),
)
# Of a hub, one value for each attached loop.
LOOPS = (
    _counter("loop_steps", "loop/steps/", "steps of one loop's optimizer"),
    _counter(
        "loop_synchronized_steps", "loop/synchronized/", "steps of one loop that a complete round carried on"
    ),
    _counter("loop_sync_rounds", "loop/rounds/", "completed rounds of one loop"),
    _gauge("loop_sync_gap_open_steps", "loop/gap_open/", "steps of one loop since its last round"),
    _counter("loop_sync_sent_bytes", "loop/sent/", "bytes that one loop sent for synchronization"),
    _counter(
        "loop_sync_received_bytes", "loop/received/", "bytes that one loop received for synchronization"
    ),
)
# Of a hub, one value for each data set that its loops share.
SAMPLES = (
    _counter("samples_granted", "samples/granted/", "examples of one data set that loops were given"),
    _counter("samples_finished", "samples/finished/", "given examples that loops have trained"),
    _counter("samples_returned", "samples/returned/", "given examples that came back untrained"),
    _gauge("samples_held", "samples/held/", "given examples that living loops have yet to train"),
)
BY_LABEL: dict[str, tuple[Metric, ...]] = {
    "peer": (*LINKS, *WAITS),
    "trainer": MERGES,
    "table": (*GROWING_TABLES, *HASHED_TABLES),
    "label": LABELS_OF_JOB,
    "loop": LOOPS,
    "stream": SAMPLES,
}
"""Metrics with a further label, and its name; a count's name is the metric's key and the label's value."""
