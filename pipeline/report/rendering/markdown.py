"""Rendering of report.md, which begins with the outcome and needs no prior knowledge."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from ...text.markdown import markdown_table, plain
from ..document import NE_PICTURE, SYNC_GAP_PICTURE, THROUGHPUT_PICTURE, Report
from ..quality import HourOfLabel, TrainedHour
from ..tables.disk_rows import disk_section
from ..tables.growth import growth_section
from ..tables.placement import HOW_IN_WORDS
from ..tables.sharing import sharing_section
from . import wording
from .by_label import tables_by_label
from .importance import importance_section
from .quality_warnings import FIRST_ITERATIONS

_WAYS = {
    "center_up": "to the center",
    "center_down": "from the center",
    "peers_up": "to the trainers of an all-reduce",
    "peers_down": "from the trainers of an all-reduce",
}


def render_markdown(report: Report) -> str:
    """Render report.md, ending in a newline, with links to the pictures."""
    sections = (
        _summary(report),
        _quality(report),
        _ledger(report),
        _throughput(report),
        _sync(report),
        _nodes(report),
        *_placement(report),
        *growth_section(report.growing_tables),
        *disk_section(report.disk_rows),
        *sharing_section(report.shared_rows),
        *importance_section(report.importance),
        _events(report),
        _versions(report),
    )
    return "\n\n".join("\n".join(section) for section in sections) + "\n"


def _summary(report: Report) -> list[str]:
    ledger = wording.ledger(report)
    measured = report.throughput.examples_per_second
    speed = (
        f"throughput {wording.NOT_MEASURED}" if measured is None else f"{wording.amount(measured)} examples/s"
    )
    trained = wording.count(report.examples.trained)
    return [
        f"# Run {plain(report.run)}: {plain(report.outcome)}",
        "",
        *([] if report.ledger.adds_up else [f"> **{ledger}**", ""]),
        f"**{plain(wording.quality(report))}**",
        "",
        f"- {plain(wording.saved(report))}",
        *(f"- {plain(text)}" for text in wording.checkpoints(report)),
        *([f"- {plain(wording.bad_batches(report))}"] if report.bad_batches is not None else []),
        *(f"- **Warning:** {plain(text)}" for text in report.warnings),
        *([f"- {ledger}"] if report.ledger.adds_up else []),
        f"- {trained} examples trained; {wording.duration(report.wall_seconds)} in all; {speed}.",
        f"- Exit code {report.exit_code}, seed {report.seed}, started {plain(report.started_at)}, "
        f"job `{plain(report.job_digest)}`.",
    ]


def _quality(report: Report) -> list[str]:
    rows = [("NE in training, each example scored before it is trained on", report.train.ne_progressive)]
    has_log_loss = wording.has_log_loss(report)
    table = [(what, wording.number(value)) for what, value in rows if has_log_loss]
    table += [
        (f"NE in training of {name}", wording.number(ne))
        for name, ne in list(report.train.ne_by_label.items())[1:]
    ]
    if warmup := report.train.rows_warmup_examples:
        table += [("examples of the embedding warm-up", wording.count(warmup))]
    if (part := report.train.progressive) is not None:
        table += [
            ("NE, progressive part", wording.number(part.ne)),
            ("AUC, progressive part", wording.number(part.auc)),
            ("logloss, progressive part", wording.number(part.logloss)),
            (
                f"examples of the progressive part scored, of {wording.count(part.trained)}",
                wording.count(part.examples),
            ),
        ]
    # The model of the headline, which is also the one that is served, comes first.
    if report.eval is not None:
        of = "held-out" if report.eval_last is None else "held-out, of the best checkpoint"
        table += wording.held_out(report.eval, of)
    if report.eval_last is not None:
        table += wording.held_out(report.eval_last, "held-out, of the last model")
    if report.eval is not None and report.eval.teacher_ne is not None:
        table += [
            ("NE of the teacher, held-out", wording.number(report.eval.teacher_ne)),
            ("gain ratio: (1 - NE) / (1 - NE of the teacher)", wording.number(report.eval.gain_ratio)),
        ]
    # Without held-out data it is the headline.
    second = report.headline is not None and report.train.progressive is not None
    progressive = [plain(wording.progressive(report)), ""] if second else []
    note = "NE is the logloss over that of always predicting the mean label: 1 is useless, lower is better."
    picture = f"![NE over examples]({NE_PICTURE})"
    return [
        "## Quality",
        "",
        *progressive,
        *markdown_table(("measure", "value"), table),
        *(["", note] if has_log_loss else []),
        "",
        *tables_by_label(report),
        *_hours(report),
        *_calibration_curve(report),
        *([picture] if has_log_loss else []),
    ]


def _hours(report: Report) -> list[str]:
    """Return quality in training by the hour, if there are several."""
    hours = report.train.hours
    if len(hours) < 2:
        return []
    began = datetime.fromisoformat(report.started_at).astimezone(UTC)

    def further(hour: TrainedHour) -> list[HourOfLabel]:
        return list(hour.labels.values())[1:]

    rows = [
        (
            (began + timedelta(hours=hour_ne.hour)).strftime("%Y-%m-%d %H:%M"),
            wording.count(hour_ne.examples),
            wording.number(hour_ne.ne),
            wording.number(hour_ne.label_rate),
            *(
                wording.number(value)
                for of_label in further(hour_ne)
                for value in (of_label.ne, of_label.label_rate)
            ),
        )
        for hour_ne in hours
    ]
    head = ["hour from (UTC)", "examples trained", "NE, before each step", "mean label"]
    for name in map(plain, list(hours[0].labels)[1:]):
        head += [f"NE of {name}", f"mean of {name}"]
    return ["By the hour:", "", *markdown_table(head, rows), ""]


def _calibration_curve(report: Report) -> list[str]:
    """Return the calibration curve of the model in the headline, as a table."""
    evaluation = report.headline
    if evaluation is None or not evaluation.calibration_curve:
        return []
    rows = [
        (wording.count(round(part.examples)), wording.number(part.predicted), wording.number(part.rate))
        for part in evaluation.calibration_curve
    ]
    head = ("examples, by ascending score", "mean prediction", "mean label")
    return [plain(f"Calibration of {evaluation.model}, held-out:"), "", *markdown_table(head, rows), ""]


def _ledger(report: Report) -> list[str]:
    examples, ledger = report.examples, report.ledger
    terms = [
        ("read (delivered to trainers)", wording.count(examples.read)),
        ("trained (acknowledged)", wording.count(examples.trained)),
        ("distinct", wording.count(examples.distinct)),
        ("replayed (acknowledged again)", wording.count(examples.replayed)),
        ("returned (from dead or leaving trainers)", wording.count(examples.returned)),
        ("in flight at the end", wording.in_flight(examples)),
        ("dropped", wording.count(examples.dropped)),
        ("bad rows", wording.count(examples.bad_rows)),
        *((what, wording.count(number)) for what, number in wording.dropped_negatives(examples)),
        *((f"of these: {why}", wording.count(number)) for why, number in examples.reasons.items()),
    ]
    identities = [
        (
            i.name,
            wording.count(i.left),
            wording.count(i.right),
            _loud(wording.difference(i), i.holds is not True),
        )
        for i in ledger.identities
    ]
    shards = [(name, wording.count(batches)) for name, batches in ledger.shard_applied.items()]
    return [
        f"## Ledger: {wording.verdict(ledger.adds_up)}",
        "",
        *markdown_table(("identity", "left side", "right side", "verdict"), identities),
        "",
        *markdown_table(("examples", "count"), terms),
        "",
        f"Dense updates lost with a dead trainer: {wording.count(ledger.lost_dense_updates)}.",
        *(["", *markdown_table(("embedding shard", "batches applied"), shards)] if shards else []),
        *_bad_batches(report),
    ]


def _bad_batches(report: Report) -> list[str]:
    if report.bad_batches is None:
        return []
    first = [(str(bad.id), bad.path, bad.trainer, bad.why) for bad in report.bad_batches.first]
    return [
        "",
        *markdown_table(("batch left out (epoch, span, number, seed)", "file", "trainer", "why"), first),
    ]


def _throughput(report: Report) -> list[str]:
    throughput = report.throughput
    rows = [
        ("all trainers, examples/s", wording.amount(throughput.examples_per_second)),
        *((f"{name}, examples/s", wording.amount(v)) for name, v in throughput.per_trainer.items()),
        (
            "CPU seconds per million examples, all nodes and the coordinator",
            wording.amount(throughput.cpu_seconds_per_million),
        ),
        ("batch x workers x trainers", wording.count(report.elp)),
        *((f"{name}, precision of products", value) for name, value in report.precision.items()),
    ]
    picture = f"![examples/s per trainer]({THROUGHPUT_PICTURE})"
    note = "From the first to the last trained batch."
    return ["## Throughput", "", *markdown_table(("measure", "value"), rows), "", note, "", picture]


def _sync(report: Report) -> list[str]:
    sync, staleness = report.sync, report.staleness
    rows = [
        ("rounds completed", wording.count(sync.rounds)),
        ("rounds that ended with slices missing", wording.count(sync.incomplete_rounds)),
        ("of these, possibly completed by a trainer that had left", wording.count(sync.undecided_rounds)),
        (
            "slices applied by a center, without a confirmed reply",
            wording.count(sync.unanswered_slices),
        ),
        ("gap between rounds, iterations, mean", wording.number(sync.gap_mean, 1)),
        ("gap between rounds, iterations, maximum", wording.amount(sync.gap_max)),
        *(
            (f"{name}, rounds in its first {FIRST_ITERATIONS} iterations", wording.count(rounds))
            for name, rounds in sync.first_rounds.items()
        ),
        ("seconds of a round, mean", wording.duration(sync.seconds_mean)),
        ("CPU seconds of a round, mean", wording.duration(sync.cpu_seconds_mean)),
        ("bytes in all, sent and received by the trainers", wording.data_size(sync.bytes)),
        *(
            (f"of these: {_WAYS.get(way, way)}", wording.traffic(link, of_peers=way.startswith("peers")))
            for way, link in sync.links.items()
        ),
        *([("memory of lossy codecs", wording.references(report))] if sync.reference_bytes else []),
        *wording.merges(sync),
        ("divergence of the replicas", wording.divergence(report)),
        ("staleness of embeddings, pushes, mean", wording.amount(staleness.embedding_mean)),
        ("staleness of embeddings, pushes, maximum", wording.amount(staleness.embedding_max)),
        ("batches looked up ahead, at the end", wording.lookups_ahead(staleness)),
    ]
    with_state = ", with the optimizer's state" * (sync.optimizer_state == "synchronized")
    title = f"## Synchronization: {plain(sync.algorithm)}, {plain(sync.mode)}{with_state}"
    picture = f"![sync gap per trainer]({SYNC_GAP_PICTURE})"
    slow = [plain(wording.network(report)), ""] if report.network is not None else []
    return [title, "", *slow, *markdown_table(("measure", "value"), rows), "", picture]


def _nodes(report: Report) -> list[str]:
    rows = [
        (
            node.name,
            node.role,
            wording.duration(node.cpu_seconds),
            wording.data_size(node.peak_memory_bytes),
            "still running" if node.exit is None else node.exit,
        )
        for node in report.nodes
    ]
    if rows and (cpu := report.throughput.coordinator_cpu_seconds) is not None:
        rows = [("coordinator", "coordinator", wording.duration(cpu), "", ""), *rows]
    lines = (
        markdown_table(("node", "role", "CPU time", "peak memory", "exit"), rows)
        if rows
        else ["None reported."]
    )
    return ["## Nodes", "", *lines]


def _placement(report: Report) -> list[list[str]]:
    """Build the section on placement; empty unless several nodes share the tables."""
    placement = report.placement
    if placement is None or len(placement.nodes) < 2:
        return []
    rows = [
        (
            node.name,
            wording.count(node.pieces),
            wording.count(node.rows),
            node.memory,
            wording.amount(node.expected_ns),
            wording.count(node.looked_up_rows),
            wording.duration(node.cpu_seconds),
        )
        for node in placement.nodes
    ]
    head = ("node", "pieces", "rows", "memory", "expected ns/example", "rows looked up", "CPU time")
    note = "The pieces, and what was sampled of each table, are in plan.json."
    return [[f"## Tables: {HOW_IN_WORDS[placement.how]}", "", *markdown_table(head, rows), "", note]]


def _events(report: Report) -> list[str]:
    rows = [(wording.duration(event.seconds), event.node, event.what) for event in report.events]
    lines = markdown_table(("after", "node", "event"), rows) if rows else ["Nothing happened to any node."]
    return ["## Events", "", *lines]


def _versions(report: Report) -> list[str]:
    hardware = report.hardware
    rows = [
        ("CPU", hardware.cpu_model or wording.NOT_MEASURED),
        ("cores", wording.count(hardware.cores)),
        ("memory", wording.data_size(hardware.memory_bytes)),
        *report.versions.items(),
    ]
    return ["## Machine and versions", "", *markdown_table(("what", "which"), rows)]


def _loud(text: str, loud: bool) -> str:
    return f"**{text}**" if loud else text
