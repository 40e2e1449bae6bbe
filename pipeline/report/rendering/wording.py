"""The sentences of a report, for report.md and the terminal."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Final

from ...config.network import SlowNetwork
from ...text import format
from ..document import ExampleCounts, LinkTraffic, Report, Staleness, Sync
from ..ledger import Identity
from ..merged_work import MergedWork
from ..quality import Evaluation, GroupQuality, RetrievalFigures

NOT_MEASURED = "not measured"
_METRIC_NAMES = {"ne": "NE", "auc": "AUC", "pr_auc": "PR-AUC", "calibration_error": "calibration error"}
ADDS_UP = "adds up"
DOES_NOT = "DOES NOT ADD UP"


# A report says in words that a figure was not measured.
counted = format.counted
count = partial(format.count, missing=NOT_MEASURED)
number = partial(format.number, missing=NOT_MEASURED)
amount = partial(format.amount, missing=NOT_MEASURED)
data_size = partial(format.data_size, missing=NOT_MEASURED)
data_rate = partial(format.data_rate, missing=NOT_MEASURED)
duration = partial(format.duration, missing=NOT_MEASURED)
percent = partial(format.percent, missing=NOT_MEASURED)


def mean_and_most(mean: str, most: str) -> str:
    """Join a mean and a maximum, both already formatted."""
    return NOT_MEASURED if mean == most == NOT_MEASURED else f"{mean} mean, {most} at most"


def lookups_ahead(staleness: Staleness) -> str:
    """Write how many batches the trainers look up ahead, "1 to 14" where they differ."""
    if not (depths := sorted(staleness.lookups_ahead.values())):
        return NOT_MEASURED
    least, most = amount(depths[0]), amount(depths[-1])
    return least if least == most else f"{least} to {most}"


def merges(sync: Sync) -> list[tuple[str, str]]:
    """Write a center's merges and each trainer's work in them, or for whom rounds waited."""
    merged = sync.merges
    if merged is None:
        return [
            (f"rounds waited for {name}", duration(seconds)) for name, seconds in sync.waited_seconds.items()
        ]
    return [
        ("merges, of them without a late trainer", f"{count(merged.number)}, {count(merged.late)}"),
        *((f"merged of {name}", _merged(work)) for name, work in merged.trainers.items()),
    ]


def _merged(work: MergedWork) -> str:
    possible = work.merges + work.missed_merges
    text = f"{count(work.examples)} examples in {count(work.merges)} of {count(possible)} merges"
    text += f", {count(work.unmerged_examples)} in none" if work.unmerged_examples else ""
    if not work.late_seconds:
        return text
    return f"{text}; late for {duration(work.late_seconds)}, {duration(work.most_late_seconds)} at most"


def metric_name(key: str) -> str:
    """Return a metric's name in sentences, "NE of LABEL" for "ne/LABEL".

    That of the page is the same, watch/page/static/words.js.
    """
    metric, _, label = key.partition("/")
    return _METRIC_NAMES.get(metric, metric) + (f" of {label}" if label else "")


def in_flight(examples: ExampleCounts) -> str:
    """Format the examples in flight, "unknown" if not said."""
    return format.count(examples.in_flight, missing="unknown")


def verdict(holds: bool) -> str:
    """Say whether an identity or the whole ledger holds."""
    return ADDS_UP if holds else DOES_NOT


def difference(identity: Identity) -> str:
    """Describe an identity's error, or why it is unknown."""
    if identity.left is None or identity.right is None:
        return f"unknown: {identity.unknown}"
    off = identity.left - identity.right
    return verdict(True) if identity.holds else f"{verdict(False)} (off by {'+' * (off > 0)}{count(off)})"


def auc(evaluation: Evaluation) -> str:
    """Format the AUC, with its error bound if that shows in the digits."""
    text = number(evaluation.auc)
    error = evaluation.auc_error
    return f"{text} (within {error:.1g})" if error is not None and error >= 1e-3 else text


def quality(report: Report) -> str:
    """Describe the quality of the model; without held-out data, that on the progressive part."""
    evaluation = report.headline
    if evaluation is None:
        unscored = "The model was not evaluated: no held-out data was scored in this run."
        return progressive(report) or unscored
    if evaluation.retrieval is not None or evaluation.logloss is None:
        score = _score_of_ranks(evaluation)
    elif evaluation.ne is None:
        score = f"logloss {number(evaluation.logloss)} (all labels are the same, so there is no NE)"
    else:
        score = f"NE {number(evaluation.ne)}"
    if evaluation.labels:
        score += f" of {next(iter(evaluation.labels))}"
    text = f"{score} on {count(evaluation.examples)} held-out examples, of {evaluation.model}."
    if evaluation.logloss is None and evaluation.retrieval is None:
        text += " NE, logloss and calibration are left out: the model's own scores are no probabilities."
    if evaluation.gain_ratio is not None:
        text += (
            f" That is {percent(evaluation.gain_ratio, 1)} of what the teacher that made the data gains over"
        )
        text += f" the mean (its NE is {number(evaluation.teacher_ne)})."
    return text


def _score_of_ranks(evaluation: Evaluation) -> str:
    """Describe the quality of scores that are no probabilities."""
    ranks = evaluation.retrieval
    if ranks is None:
        same = " (all labels are the same)" if evaluation.auc is None else ""
        return f"AUC {number(evaluation.auc)}{same}"
    among = f"over {counted(ranks.queries, 'query', 'queries')} among {counted(ranks.items, 'item')}"
    return f"recall@{ranks.k} {number(ranks.recall)}, NDCG@{ranks.k} {number(ranks.ndcg)} {among},"


def has_log_loss(report: Report) -> bool:
    """Whether the scores are probabilities, as far as held-out examples or those of training say."""
    if report.headline is not None:
        return report.headline.logloss is not None
    return report.train.ne_progressive is not None or not report.examples.distinct


def progressive(report: Report) -> str:
    """Describe the progressive part; "" if the job has none."""
    part = report.train.progressive
    if part is None:
        return ""
    if not part.examples:
        return f"None of the {count(part.trained)} examples of the progressive part were scored."
    score = f"logloss {number(part.logloss)}, " if part.ne is None else f"NE {number(part.ne)}, "
    score = "" if part.logloss is None else score
    some = "" if part.examples == part.trained else f" of {count(part.trained)}"
    text = f"{score}AUC {number(part.auc)} on {count(part.examples)}{some} examples of the progressive part"
    return f"{text}, of {part.model}."


def emulated_links(slow: SlowNetwork) -> str:
    parts = [f"a delay of {duration(slow.delay_seconds)} one way" if slow.delay_seconds else "no delay"]
    if slow.bytes_per_second is not None:
        parts.append(f"{amount(slow.bytes_per_second * 8 / 1e6)} Mbit/s for each node that listens, each way")
    where = "all links" if slow.every_link else "the links of synchronization"
    return f"{' and '.join(parts)}, on {where}"


def network(report: Report) -> str:
    """Describe the emulated network; "" if there was none."""
    slow = report.network
    if slow is None:
        return ""
    links = SlowNetwork(slow.delay_seconds, slow.bytes_per_second, every_link=slow.links == "all")
    text = f"Emulated network, by {slow.means}: {emulated_links(links)}."
    if slow.relay_cpu_seconds is not None:
        text += (
            f" The relay took {duration(slow.relay_cpu_seconds)} of CPU for {data_size(slow.relay_bytes)}."
        )
    return text


def traffic(link: LinkTraffic, *, of_peers: bool = False) -> str:
    """Describe the traffic of one direction: bytes, codec, and bytes saved.

    What trainers send to each other, `of_peers`, they also receive.
    """
    text = f"{data_size(link.bytes)}{', sent and again received' if of_peers else ''}, {link.codec}"
    if link.codec == "float32" or link.compression is None:
        return text
    return f"{text}, {number(link.compression, 2)} times fewer bytes than float32"


def divergence(report: Report) -> str:
    """Describe the divergence at the end, and in training, where they were apart.

    At the end it may be 0, as in a job whose training waited: the last round made the replicas equal.
    """
    text = amount(report.replicas.divergence)
    apart = [value for _, value in report.curves.divergence if value]
    return f"{text} at the end, {amount(sum(apart) / len(apart))} in training" if apart else text


def references(report: Report) -> str:
    """Describe the memory of references and residuals; "" if there was none."""
    held = report.sync.reference_bytes
    return ", ".join(f"{data_size(size)} on {role} nodes" for role, size in held.items())


def saved(report: Report) -> str:
    """Say which model the checkpoint holds."""
    if report.model_saved is None:
        return "No model was saved."
    return f"Saved in {report.storage or 'checkpoint/'}: {report.model_saved}."


def checkpoints(report: Report) -> list[str]:
    """Return sentences on the run's start, its validation and its checkpoints."""
    sentences = []
    if report.resumed_from is not None:
        restored = count(report.restored_examples)
        sentences.append(f"It resumed {report.resumed_from}, which had trained {restored} examples.")
    validation = report.validation
    if validation is not None and validation.best is not None:
        where = (
            "also the last one"
            if validation.best_is_last
            else f"kept in {report.storage or f'{validation.folder}/'}"
        )
        sentences.append(
            f"Validated {counted(validation.count, 'time')}: best {metric_name(validation.metric)}"
            f" {number(validation.best)} after {count(validation.best_examples)} examples, {where}."
        )
        others = [
            f"{metric_name(name)} {number(value)}"
            for name, value in validation.best_metrics.items()
            if name != validation.metric and ("/" not in name or name.startswith(("ne/", "auc/")))
        ]
        if others:
            sentences.append(f"At the best checkpoint, on validation data: {', '.join(others)}.")
    if validation is not None and validation.waited_seconds:
        waited = duration(validation.waited_seconds)
        sentences.append(f"Training waited {waited} for validations, which the examples/s include.")
    if validation is not None and validation.failed:
        sentences.append(f"{counted(validation.failed, 'validation')} failed; the events say why.")
    if validation is not None and validation.skipped:
        sentences.append(
            f"{counted(validation.skipped, 'validation')} skipped, since training was faster than scoring:"
            " validate less often, or fewer examples."
        )
    if report.checkpoints is not None and report.checkpoints.failed:
        total = report.checkpoints.written + report.checkpoints.failed
        sentences.append(
            f"{count(report.checkpoints.failed)} of {counted(total, 'checkpoint')} during training failed;"
            " the events say why."
        )
    if report.eval_last is not None:
        # The headline has the best checkpoint.
        last = report.eval_last
        score = _score_of_ranks(last) if last.logloss is None else f"NE {number(last.ne)}"
        sentences.append(f"{score} on the held-out examples, of the last model, {last.model}.")
    return sentences


def bad_batches(report: Report) -> str:
    """Describe the batches that were left out; "" if there were none."""
    bad = report.bad_batches
    if bad is None:
        return ""
    batches = counted(bad.count, "batch", "batches")
    return (
        f"{batches} ({counted(bad.examples, 'example')}) left out, for a loss or gradients that no step"
        f" can be made of (at most {count(bad.limit)} are tolerated); the first: {bad.first[0]}."
    )


def ledger(report: Report) -> str:
    examples = report.ledger
    wrong = sum(identity.holds is False for identity in examples.identities)
    if wrong:
        which = f"{wrong} of its {len(examples.identities)} identities {'fails' if wrong == 1 else 'fail'}"
        return f"The ledger {DOES_NOT}: {which}. Do not trust this run."
    unknown = sum(identity.holds is None for identity in examples.identities)
    text = f"The ledger {ADDS_UP}"
    text += f", as far as it is known: {unknown} of its identities cannot be checked." if unknown else "."
    if examples.lost_dense_updates:
        text += f" {count(examples.lost_dense_updates)} dense updates were lost with a dead trainer."
    return text


def dropped_negatives(examples: ExampleCounts) -> list[tuple[str, int]]:
    """Return the row on dropped negatives; empty without any."""
    number = examples.dropped_negatives
    return [("negatives left out; scores are calibrated", number)] if number else []


def held_out(evaluation: Evaluation, of: str = "held-out") -> list[tuple[str, str]]:
    """Return the rows on a model's quality; `of` says which model and examples.

    A report of an earlier version lacks PR-AUC, lift and calibration error, and one of scores that are no
    probabilities what needs these.
    """
    has_logloss, has_error = evaluation.logloss is not None, evaluation.calibration_error is not None
    # Of pairs alone there is nothing but their ranks.
    has_auc = evaluation.retrieval is None or evaluation.auc is not None
    has_ranking = has_error or (not has_logloss and has_auc)
    rows = [
        (has_logloss, f"NE, {of}", number(evaluation.ne)),
        (has_auc, f"AUC, {of}", auc(evaluation)),
        (has_logloss, f"logloss, {of}", number(evaluation.logloss)),
        (has_logloss, f"calibration, {of}: mean prediction / mean label", number(evaluation.calibration)),
        (has_ranking, f"PR-AUC, {of}: average precision", number(evaluation.pr_auc)),
        (has_ranking, f"lift of the top tenth, {of}", number(evaluation.lift)),
        (has_error, f"expected calibration error, {of}", number(evaluation.calibration_error)),
    ]
    return [
        *((what, value) for is_known, what, value in rows if is_known),
        *_within_groups(evaluation.within_groups, of),
        *_retrieval(evaluation.retrieval, of),
        *((f"{name}, {of}", number(value)) for name, value in evaluation.own.items()),
    ]


def found_items(evaluation: Evaluation) -> list[tuple[str, str]]:
    """Return the rows of the terminal on the ranks among a catalogue; none for a job without."""
    ranks = evaluation.retrieval
    if ranks is None:
        return []
    named = ((f"recall@{ranks.k}", ranks.recall), (f"NDCG@{ranks.k}", ranks.ndcg), ("MRR", ranks.mrr))
    return [(f"{name}, held-out", number(value)) for name, value in named]


def _retrieval(figures: RetrievalFigures | None, of: str) -> list[tuple[str, str]]:
    """Return the row on the ranks among a catalogue; none for a job without."""
    if figures is None:
        return []
    values = ", ".join(map(number, (figures.recall, figures.ndcg, figures.hit, figures.mrr)))
    over = f"over {counted(figures.queries, 'query', 'queries')} and {counted(figures.items, 'item')}"
    trained = ", those trained or validated on left out" if figures.without_trained else ""
    rest = _not_counted(
        [
            (figures.rows_without_group, "row without a group", "rows without a group"),
            (figures.rows_left_out, *_NO_ROOM),
        ]
    )
    missed = counted(figures.rows_not_in_catalogue, "item")
    absent = f"; missed, as the catalogue lacks them: {missed}" if figures.rows_not_in_catalogue else ""
    what = f"recall, NDCG, hit rate @{figures.k} and MRR, {of}"
    return [(what, f"{values} {over}{trained}{absent}{rest}")]


_NO_ROOM: Final = (
    "row of groups for which memory had no room",
    "rows of groups for which memory had no room",
)


def _not_counted(counts: Sequence[tuple[int, str, str]]) -> str:
    """Return the end of a row of figures: what they leave out, each as a number, and its two words."""
    rest = [f"{count(many)} {singular if many == 1 else plural}" for many, singular, plural in counts if many]
    return f"; left out: {', '.join(rest)}" if rest else ""


def _within_groups(quality: GroupQuality | None, of: str) -> list[tuple[str, str]]:
    """Return the row on the first rows of groups; none for a job without groups."""
    if quality is None:
        return []
    by = quality.column + (f" of {quality.label}" if quality.label else "")
    figures = ", ".join(map(number, (quality.ndcg, quality.recall, quality.map)))
    over = f"over {counted(quality.groups, 'group')} with a positive"
    left_out = _not_counted(
        [
            (quality.groups_without_positive, "group without one", "groups without one"),
            (quality.rows_without_group, "row without a group", "rows without a group"),
            (quality.rows_left_out, *_NO_ROOM),
        ]
    )
    return [(f"NDCG, recall, MAP @{quality.k} by {by}, {of}", f"{figures} {over}{left_out}")]
