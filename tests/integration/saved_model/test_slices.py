"""The quality by the values of a column: as scikit-learn has it of the same predictions."""

from __future__ import annotations

import json
import re
from dataclasses import asdict
from pathlib import Path

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from shadowsync.cli import main
from shadowsync.pipeline.errors import DataError
from shadowsync.pipeline.saved_model.model import SavedModel
from shadowsync.pipeline.saved_model.prediction import write_predictions
from shadowsync.pipeline.saved_model.slices import Slices, score_slices
from shadowsync.tests.support.jobs.commands import said
from shadowsync.tests.support.jobs.evaluate_run import evaluate_run


@pytest.fixture(scope="module")
def files(click_log: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The held-out examples with a column more, which no model knows: some values have one label only."""
    (path,) = click_log.glob("eval-*.parquet")
    frame = pl.read_parquet(path)
    values, shares = ["a", "b", "c", "none", "rare"], [0.5, 0.3, 0.15, 0.04, 0.01]
    sites = np.random.default_rng(1).choice(values, len(frame), p=shares)
    named = pl.Series("site", [None if site == "none" else site for site in sites.tolist()])
    clicked = frame["label"].cast(pl.Float64) > 0
    own = pl.when(pl.Series(clicked) & (pl.Series(named) == "rare")).then(pl.lit("clicked")).otherwise(named)
    out = tmp_path_factory.mktemp("sites") / "eval.parquet"
    frame.with_columns(named).with_columns(own.alias("site")).write_parquet(out)
    return str(out)


@pytest.fixture(scope="module")
def model(saved_run: Path) -> SavedModel:
    return SavedModel.open(saved_run)


@pytest.fixture(scope="module")
def predicted(model: SavedModel, files: str, tmp_path_factory: pytest.TempPathFactory) -> pl.DataFrame:
    out = tmp_path_factory.mktemp("predicted") / "out.parquet"
    write_predictions(model, [files], out, ["site"])
    return pl.read_parquet(out).with_columns(pl.col("logit").cast(pl.Float64))


@pytest.fixture(scope="module")
def slices(model: SavedModel, files: str) -> Slices:
    return score_slices(model, [files], "site")


def test_every_slice_has_the_figures_of_its_rows(slices: Slices, predicted: pl.DataFrame) -> None:
    from sklearn.metrics import log_loss, roc_auc_score

    assert {one.value for one in slices.slices} == {"a", "b", "c", None, "rare", "clicked"}
    assert sum(one.examples for one in slices.slices) == len(predicted)
    excess = []
    for one in slices.slices:
        own = predicted.filter(pl.col("site").eq_missing(one.value))
        labels = own["label"].to_numpy()
        probabilities = 1 / (1 + np.exp(-own["logit"].to_numpy()))
        rate = labels.mean()
        assert one.examples == len(own)
        assert one.rate == pytest.approx(rate)
        loss = log_loss(labels, probabilities, labels=[0, 1])
        entropy = 0.0
        if 0 < rate < 1:
            entropy = log_loss(labels, np.full(len(labels), rate))
            assert one.ne == pytest.approx(loss / entropy, rel=1e-6)
            assert one.auc == pytest.approx(roc_auc_score(labels, probabilities), abs=1e-9)
        else:
            assert (one.ne, one.auc) == (None, None)
        if rate:
            assert one.calibration == pytest.approx(probabilities.mean() / rate, rel=1e-6)
        else:
            assert one.calibration is None
        excess.append(len(own) * (loss - entropy))
    # The worst come first.
    assert excess == sorted(excess, reverse=True)


def numbers_of(slices: Slices) -> dict[str, float]:
    """All numbers. Groups come in any order, so sums of the same floats may differ in their last digits."""
    numbers = {
        f"{one.value}: {name}": number
        for one in slices.slices
        for name, number in asdict(one).items()
        if name != "value" and number is not None
    }
    return numbers | {"gauc": slices.gauc or 0.0, "examples": slices.gauc_examples}


def test_bytes_are_values_too(model: SavedModel, files: str, slices: Slices, tmp_path: Path) -> None:
    """Columns of bytes, which some writers make of texts, and texts that are not UTF-8."""
    frame = pq.read_table(files)
    at, raw = frame.column_names.index("site"), frame["site"].cast(pa.binary()).to_pylist()
    file = tmp_path / "bytes.parquet"
    pq.write_table(frame.set_column(at, "site", pa.array(raw, pa.binary())), file)
    found = score_slices(model, [str(file)], "site")
    assert numbers_of(found) == pytest.approx(numbers_of(slices), rel=1e-12)
    fixed = pa.array([b"%-16s" % (one or b"none") for one in raw], pa.binary(16))
    for column in (fixed, pa.ExtensionArray.from_storage(pa.uuid(), fixed)):
        pq.write_table(frame.set_column(at, "site", column), file)
        found = score_slices(model, [str(file)], "site")
        assert found.gauc == pytest.approx(slices.gauc, rel=1e-12)
    other = pa.array([{b"a": b"\xff", b"b": b"\xfe"}.get(one, one) for one in raw], pa.binary())
    for column in (other, other.cast(pa.string(), safe=False), other.dictionary_encode()):
        pq.write_table(frame.set_column(at, "site", column), file)
        found = score_slices(model, [str(file)], "site")
        assert found.gauc == pytest.approx(slices.gauc, rel=1e-12)
        assert {one.value for one in found.slices} == {r"\xff", r"\xfe", "c", None, "rare", "clicked"}


def test_times_are_values_too(model: SavedModel, files: str, tmp_path: Path) -> None:
    """In UTC, also those that Python does not know."""
    frame, file = pq.read_table(files), tmp_path / "times.parquet"
    seconds = {"a": 0, "b": -62_167_219_200, "c": 253_402_300_800}
    ticks = pa.array([seconds.get(one, one and 5) for one in frame["site"].to_pylist()])
    texts = ["1970-01-01 00:00:00", "0000-01-01 00:00:00", "10000-01-01 00:00:00", "1970-01-01 00:00:05"]
    for zone in (None, "Europe/Paris", "Mars/Olympus"):
        times = ticks.view(pa.timestamp("s", zone))
        pq.write_table(frame.set_column(frame.column_names.index("site"), "site", times), file)
        found = score_slices(model, [str(file)], "site").slices
        assert {one.value for one in found} == {*texts, None}


def test_gauc_is_the_mean_of_those_with_both_labels(slices: Slices, predicted: pl.DataFrame) -> None:
    both = [one for one in slices.slices if one.auc is not None]
    assert {one.value for one in both} == {"a", "b", "c", None}
    assert (slices.gauc_slices, slices.gauc_examples) == (4, sum(one.examples for one in both))
    expected = sum(one.examples * (one.auc or 0) for one in both) / slices.gauc_examples
    assert slices.gauc == pytest.approx(expected)
    # The control: it is not the mean of all slices alike.
    assert slices.gauc != pytest.approx(np.mean([one.auc or 0 for one in both]))
    assert len(predicted) > slices.gauc_examples


def test_one_slice_of_all_is_the_whole(
    model: SavedModel, saved_run: Path, files: str, tmp_path: Path
) -> None:
    whole = evaluate_run(saved_run, [files])
    pl.read_parquet(files).with_columns(site=pl.lit("all")).write_parquet(tmp_path / "all.parquet")
    (one,) = score_slices(model, [str(tmp_path / "all.parquet")], "site").slices
    assert (one.value, one.examples) == ("all", whole["examples"])
    assert one.ne == pytest.approx(whole["ne"], abs=1e-6)
    # That of `eval` is of a histogram.
    assert one.auc == pytest.approx(whole["auc"], abs=1e-3)
    assert one.calibration == pytest.approx(whole["calibration"], rel=1e-6)


def test_the_first_rows_of_each_value_are_ranked(
    model: SavedModel, files: str, predicted: pl.DataFrame
) -> None:
    found = score_slices(model, [files], "site", k=3).ranking
    gains = []
    for value in ("a", "b", "c", "rare", "clicked"):
        own = predicted.filter(pl.col("site") == value).sort("logit", "label", descending=[True, False])
        labels, discounts = own["label"].to_numpy()[:3], 1 / np.log2(np.arange(2, 5))[: len(own)]
        if positives := int(own["label"].sum()):
            gains.append(float((labels * discounts).sum() / discounts[: min(3, positives)].sum()))
    assert found.ndcg == pytest.approx(np.mean(gains), rel=1e-9)
    assert (found.groups, found.rows_left_out) == (len(gains), 0)
    assert found.rows_without_group == predicted["site"].null_count() > 0


def test_the_command_prints_them(saved_run: Path, files: str) -> None:
    arguments = ["eval", str(saved_run), "--data", files, "--by", "site", "--slices", "2"]
    text = said(*arguments)
    assert "by site, over 4 of 6 values with both labels" in text
    assert "4 more values; --slices shows more" in text
    assert re.search(r"ndcg@10  0\.\d{6} by site, over \d values with a positive", text)
    refused = CliRunner().invoke(main, [*arguments, "--top", "1001"])
    assert (refused.exit_code, "--top is 1001; give 1 to 1000" in refused.output) == (2, True)
    found = json.loads(CliRunner().invoke(main, [*arguments, "--json"]).output)["by"]
    assert (len(found["slices"]), found["all_slices"], found["column"]) == (2, 6, "site")


def test_labels_that_are_all_the_same_are_told(saved_run: Path, files: str, tmp_path: Path) -> None:
    pl.read_parquet(files).filter(pl.col("label") == 1).write_parquet(tmp_path / "one.parquet")
    arguments = ["eval", str(saved_run), "--data", str(tmp_path / "one.parquet"), "--by", "site"]
    text = said(*arguments)
    assert "ne  not defined, since all labels are the same" in text
    assert "None" not in text
    assert re.search(r"gauc  \S+ by site, over 0 of [56] values with both labels", text)


def test_what_cannot_be_sliced_is_told(model: SavedModel, files: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no column 'sites'; did you mean 'site'"):
        score_slices(model, [files], "sites")
    lists = pl.read_parquet(files).with_columns(many=pl.lit([1, 2], dtype=pl.List(pl.Int64)))
    lists.write_parquet(tmp_path / "lists.parquet")
    with pytest.raises(DataError, match="column many has several values a row"):
        score_slices(model, [str(tmp_path / "lists.parquet")], "many")
    pl.read_parquet(files).drop("label").write_parquet(tmp_path / "none.parquet")
    with pytest.raises(DataError, match="no row has a label and a score"):
        score_slices(model, [str(tmp_path / "none.parquet")], "site")


def test_eval_has_ranking_and_calibration_as_scikit_learn(
    saved_run: Path, files: str, predicted: pl.DataFrame
) -> None:
    from sklearn.metrics import average_precision_score

    arguments = ["eval", str(saved_run), "--data", files]
    found = json.loads(CliRunner().invoke(main, [*arguments, "--json"]).stdout)
    labels, logits = predicted["label"].to_numpy(), predicted["logit"].to_numpy()
    assert found["pr_auc"] == pytest.approx(average_precision_score(labels, logits), abs=1e-3)
    top = np.argsort(-logits)[: len(logits) // 10]
    assert found["lift"] == pytest.approx(labels[top].mean() / labels.mean(), rel=0.02)
    curve = found["calibration_curve"]
    assert sum(part["examples"] for part in curve) == pytest.approx(len(logits))
    gaps = [part["examples"] * abs(part["predicted"] - part["rate"]) for part in curve]
    assert found["calibration_error"] == pytest.approx(sum(gaps) / len(logits))
    text = CliRunner().invoke(main, arguments).stdout
    assert f"calibration_error  {found['calibration_error']:.6f}" in text
    # Only generated logs have a teacher, and nothing is None.
    assert "teacher_ne" not in found
    assert "None" not in text
    rows = text.partition("(equal parts, by score)\n")[2].splitlines()
    assert len(rows) == len(curve) == 20
    assert [float(row.split()[2]) for row in rows] == pytest.approx([p["rate"] for p in curve], abs=1e-5)
