"""report.md: the answer first, what is wrong before it, nothing that was not measured as a number."""

from __future__ import annotations

import re

from shadowsync.pipeline.report.document import Event, Report
from shadowsync.pipeline.report.quality import CalibrationPart, HourOfLabel, TrainedHour
from shadowsync.pipeline.report.rendering.markdown import render_markdown

from ..conftest import altered, among_a_catalogue, within_groups


def test_the_answer_comes_first_and_names_its_model(full_report: Report) -> None:
    text = render_markdown(full_report)
    head = text.split("## ")[0]
    assert head.startswith("# Run demo: finished although a node died\n")
    assert "NE 0.8123 on 100,000 held-out examples, of the center (easgd)" in head
    assert "85.4% of what the teacher" in head
    assert "The ledger adds up. 2 dense updates were lost with a dead trainer." in head
    assert "10,234 examples/s" in head


def test_every_fact_of_the_report_is_in_it(full_report: Report) -> None:
    text = render_markdown(full_report)
    for fact in [
        "0.7654", "0.4567", "1.0123", "0.7801", "0.8412", "1,005,120", "1,001,024", "4,096", "5,200", "161.7",
        "412", "4.7", "31.2 ms", "3.46 GB", "0.0213", "1.31", "died: killed by signal 9", "A CPU", "8.59 GB",
        "3.11.9", "39 columns", "1,953", "1 min 44 s", "213 MB", "30,720",
    ]:  # fmt: skip
        assert fact in text, fact
    for node in full_report.nodes:
        assert f"| {node.name} | {node.role} |" in text
    for picture in ("ne.png", "throughput.png", "sync_gap.png"):
        assert f"]({picture})" in text


def test_ranking_within_groups_says_what_is_left_out(full_report: Report) -> None:
    within = within_groups(ndcg=0.71234, recall=0.5, map=0.25)
    text = render_markdown(altered(full_report, eval={"within_groups": within}))
    figures = "0.7123, 0.5000, 0.2500 over 4,000 groups with a positive"
    rest = "left out: 1 group without one, 12 rows without a group"
    assert f"| NDCG, recall, MAP @10 by user, held-out | {figures}; {rest} |" in text
    assert "NDCG" not in render_markdown(full_report)


def test_ranks_among_a_catalogue_say_what_is_missed_and_left_out(full_report: Report) -> None:
    ranked = among_a_catalogue(recall=0.25, ndcg=0.125, hit=0.5, mrr=0.0625)
    text = render_markdown(altered(full_report, eval={"retrieval": ranked}))
    figures = "0.2500, 0.1250, 0.5000, 0.0625 over 4,000 queries and 1,682 items"
    rest = ", those trained or validated on left out; missed, as the catalogue lacks them: 3 items"
    rest += "; left out: 12 rows without a group"
    assert f"| recall, NDCG, hit rate @10 and MRR, held-out | {figures}{rest} |" in text
    assert "hit rate" not in render_markdown(full_report)


def test_scores_that_are_no_probabilities_have_no_log_loss(full_report: Report) -> None:
    none = dict.fromkeys(("ne", "logloss", "calibration", "calibration_error", "gain_ratio", "teacher_ne"))
    text = render_markdown(altered(full_report, eval=none | {"pr_auc": 0.4321, "calibration_curve": []}))
    assert "AUC 0.7654 on 100,000 held-out examples" in text
    assert "NE, logloss and calibration are left out: the model's own scores are no probabilities." in text
    assert "| PR-AUC, held-out: average precision | 0.4321 |" in text
    assert "expected calibration" not in text
    for measure in ("| NE, held-out", "| logloss, held-out", "| calibration, held-out"):
        assert measure not in text
        assert measure in render_markdown(full_report)


def test_what_codecs_saved_and_what_memory_they_took(full_report: Report, minimal_report: Report) -> None:
    text = render_markdown(full_report)
    assert "| of these: to the center | 1.07 GB, int8, 3.75 times fewer bytes than float32 |" in text
    assert "| of these: from the center | 2.15 GB, float32 |" in text
    assert "| memory of lossy codecs | 3.15 MB on trainer nodes, 6.29 MB on sync nodes |" in text
    plain = render_markdown(minimal_report)
    assert "of these: " not in plain
    assert "lossy" not in plain


def test_a_red_ledger_is_above_everything(red_report: Report) -> None:
    text = render_markdown(red_report)
    head = text.split("## ")[0]
    assert head.index("DOES NOT ADD UP: 1 of its 4 identities fails") < head.index("NE 0.8123")
    assert "The ledger adds up" not in text
    assert "## Ledger: DOES NOT ADD UP" in text
    assert "| 1,005,120 | 1,004,608 | **DOES NOT ADD UP (off by +512)** |" in text
    assert text.count("| adds up |") == 3


def test_a_minimal_report_invents_nothing(minimal_report: Report) -> None:
    text = render_markdown(minimal_report)
    assert "The model was not evaluated" in text
    assert "No model was saved." in text
    assert "not measured examples/s" not in text
    assert "throughput not measured" in text
    assert "| all trainers, examples/s | not measured |" in text
    assert "| gap between rounds, iterations, mean | not measured |" in text
    assert "held-out |" not in text
    assert "Nothing happened to any node." in text
    assert "None" not in text.replace("None reported.", "")


def test_one_class_has_no_ne(full_report: Report) -> None:
    one_class = dict.fromkeys(("ne", "auc", "auc_error", "gain_ratio"))
    text = render_markdown(altered(full_report, eval=one_class))
    assert "logloss 0.4567 (all labels are the same, so there is no NE)" in text
    assert "| AUC, held-out | not measured |" in text


def test_a_coarse_auc_states_its_bound(full_report: Report) -> None:
    assert "0.7654 (within 0.02)" in render_markdown(altered(full_report, eval={"auc_error": 0.0234}))


def test_foreign_text_stays_in_its_cell(full_report: Report) -> None:
    event = Event(seconds=1.0, node="a|b", what="line one\nline | two <script>")
    text = render_markdown(altered(full_report, events=[event]))
    assert r"| 1 s | a\|b | line one line \| two &lt;script> |" in text


def test_tables_are_whole(full_report: Report) -> None:
    """Every row of a table has as many cells as its head."""
    blocks = [block for block in render_markdown(full_report).split("\n\n") if block.startswith("|")]
    assert len(blocks) >= 7
    for block in blocks:
        cells = {len(re.findall(r"(?<!\\)\|", line)) for line in block.splitlines()}
        assert len(cells) == 1, block


def test_ranking_and_calibration_of_the_last_and_of_the_best(full_report: Report) -> None:
    assert "PR-AUC" not in render_markdown(full_report), "not measured"
    curve = [CalibrationPart(examples=50_000.0, predicted=0.0123, rate=rate) for rate in (0.0171, 0.0319)]
    figures = {"pr_auc": 0.1234, "lift": 3.4567, "calibration_error": 0.0078, "calibration_curve": curve}
    last = altered(full_report, eval=figures)
    best = {"pr_auc": 0.2345, "model": "the best one", "auc": 0.8765, "logloss": 0.3456}
    text = render_markdown(altered(last, eval=best, eval_last=last.eval))
    assert "| AUC, held-out, of the best checkpoint | 0.8765 |" in text
    assert "| logloss, held-out, of the best checkpoint | 0.3456 |" in text
    assert "| AUC, held-out |" not in text, "it does not say of which of the two"
    assert "| PR-AUC, held-out, of the last model: average precision | 0.1234 |" in text
    assert "| PR-AUC, held-out, of the best checkpoint: average precision | 0.2345 |" in text
    assert "| lift of the top tenth, held-out, of the last model | 3.4567 |" in text
    assert "| expected calibration error, held-out, of the last model | 0.0078 |" in text
    assert "| lift of the top tenth, held-out | 3.4567 |" in render_markdown(last)
    assert "Calibration of the best one, held-out:" in text
    assert "| 50,000 | 0.0123 | 0.0171 |" in text
    assert "| 50,000 | 0.0123 | 0.0319 |" in text


def test_hours_are_a_table_where_there_are_several(full_report: Report) -> None:
    hours = [
        TrainedHour(hour=0, examples=1_000, ne=0.9, label_rate=0.25),
        TrainedHour(hour=30, examples=2_000, ne=None, label_rate=0.0),
    ]

    def of(count: int) -> str:
        begun = "2026-11-25T22:30:05+00:00"
        return render_markdown(altered(full_report, started_at=begun, train={"hours": hours[:count]}))

    assert "| 2026-11-25 22:30 | 1,000 | 0.9000 | 0.2500 |" in of(2)
    assert "| 2026-11-27 04:30 | 2,000 | not measured | 0.0000 |" in of(2)
    assert "By the hour" not in of(1)


def test_further_labels_have_columns_by_the_hour_and_a_line(full_report: Report) -> None:
    def of(hour: int) -> TrainedHour:
        clicked = HourOfLabel(ne=0.9, label_rate=0.25)
        bought = HourOfLabel(ne=0.8 + hour / 100, label_rate=0.01)
        labels = {"clicked": clicked, "bought": bought}
        return TrainedHour(hour=hour, examples=1_000, ne=0.9, label_rate=0.25, labels=labels)

    by_label = {"clicked": 0.9, "bought": 0.8123}
    text = render_markdown(altered(full_report, train={"hours": [of(0), of(1)], "ne_by_label": by_label}))
    assert "NE, before each step | mean label | NE of bought | mean of bought |" in text
    assert "| 1,000 | 0.9000 | 0.2500 | 0.8100 | 0.0100 |" in text
    assert "| NE in training of bought | 0.8123 |" in text
    assert "NE in training of clicked" not in text
    assert "NE in training of" not in render_markdown(full_report)


def test_negatives_that_were_left_out_are_a_figure(full_report: Report) -> None:
    assert "negatives left out" not in render_markdown(full_report)
    text = render_markdown(altered(full_report, examples={"dropped_negatives": 123_456}))
    assert "| negatives left out; scores are calibrated | 123,456 |" in text
