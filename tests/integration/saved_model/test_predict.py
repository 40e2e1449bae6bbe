"""`shadowsync predict` and `SavedModel.predict`: a score for every row, in order, and none for bad ones."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.csv as pcsv
import pyarrow.parquet as pq
import pytest
from numpy.typing import NDArray
from shadowsync.pipeline.data.bad_rows import BadRows
from shadowsync.pipeline.data.batch import Batch
from shadowsync.pipeline.errors import CheckpointError, DataError
from shadowsync.pipeline.jobfile.load import validate_job
from shadowsync.pipeline.saved_model.evaluate import batches_of, spans_of
from shadowsync.pipeline.saved_model.model import SavedModel
from shadowsync.pipeline.saved_model.prediction import write_predictions
from shadowsync.pipeline.types import IndexArray
from shadowsync.tests.support.jobs.processes import Starter

ROWS = 700


@pytest.fixture(scope="module")
def model(saved_run: Path) -> SavedModel:
    """The model of the run."""
    return SavedModel.open(saved_run)


@pytest.fixture(scope="module")
def raw(click_log: Path) -> pa.Table:
    """The first held-out rows, as they are in the file."""
    (file,) = click_log.glob("eval-*.parquet")
    return pq.read_table(file).slice(0, ROWS)


@pytest.fixture(scope="module")
def logits(model: SavedModel, click_log: Path) -> NDArray[np.float32]:
    """Of these rows, as the job's own readers cut them into batches."""
    spans = spans_of(model, [str(click_log / "eval-*.parquet")])
    return np.concatenate([model.logits(batch) for batch in batches_of(model, spans, BadRows(0))])[:ROWS]


def with_data(model: SavedModel, **data: object) -> SavedModel:
    """The same weights, of a job whose files are written in another way."""
    tree = model.job.model_dump(mode="json")
    tree["data"] |= data
    return dataclasses.replace(model, job=validate_job(tree, where="a test"))


def as_text(raw: pa.Table) -> list[str]:
    """The rows as lines of Criteo's text, without the ends."""
    columns = [
        ["" if value is None else str(value) for value in column.to_pylist()] for column in raw.columns
    ]
    return ["\t".join(fields) for fields in zip(*columns, strict=True)]


def test_rows_in_memory_are_scored_as_columns_are(model: SavedModel, raw: pa.Table) -> None:
    rows = raw.slice(0, 9).to_pylist()
    scores = model.predict(rows)
    assert np.array_equal(scores, model.predict(raw.slice(0, 9)))
    assert not np.array_equal(scores, model.predict(rows[::-1])), "the order is that of the rows"
    del rows[4]["C3"]
    with pytest.raises(DataError, match="row 4 has no 'C3', which others have; give a dict of columns, or"):
        model.predict(rows)
    with pytest.raises(DataError, match="are a list of something else than rows"):
        model.predict([1, 2])
    rows = raw.slice(0, 2).to_pylist()
    for row in rows:
        row["C3"] = 1 << 70
    with pytest.raises(DataError, match=r"do not form a table \(has integers that do not fit into 64 bits"):
        model.predict(rows)


def test_a_model_is_shown_in_one_line(model: SavedModel) -> None:
    text = repr(model)
    assert "26 tables; " in text
    assert model.description in text
    assert len(text) < 400


def test_the_command_scores_every_row_in_order(
    starter: Starter, saved_run: Path, click_log: Path, logits: NDArray[np.float32], tmp_path: Path
) -> None:
    out = tmp_path / "out.parquet"
    pattern = str(click_log / "eval-*.parquet")
    text = starter.ended("predict", str(saved_run), "--data", pattern, "--out", str(out), "--keep", "C3")
    assert "4,000 rows, 0 of them without a score" in text
    written = pq.read_table(out)
    (file,) = click_log.glob("eval-*.parquet")
    given = pq.read_table(file)
    assert written.column_names == ["file", "row", "probability", "logit", "label", "C3"]
    assert written["row"].to_pylist() == list(range(1, 4001))
    assert written["file"].unique().to_pylist() == [str(file)]
    assert written["C3"].to_pylist() == given["C3"].to_pylist()
    np.testing.assert_array_equal(written["label"].to_numpy(), given["label"].to_numpy())
    np.testing.assert_allclose(written["logit"].to_numpy()[:ROWS], logits, rtol=1e-5, atol=1e-5)
    expected = 1 / (1 + np.exp(-written["logit"].to_numpy().astype(np.float64)))
    np.testing.assert_allclose(written["probability"].to_numpy(), expected, rtol=1e-6)


def test_csv_has_the_same_rows(model: SavedModel, raw: pa.Table, tmp_path: Path) -> None:
    pq.write_table(raw, tmp_path / "in.parquet")
    source, whole, text = str(tmp_path / "in.parquet"), tmp_path / "out.parquet", tmp_path / "out.csv"
    write_predictions(model, [source], whole, ["C3"])
    write_predictions(model, [source], text, ["C3"])
    expected, found = pq.read_table(whole), pcsv.read_csv(text)
    assert found.column_names == expected.column_names
    for name in ("file", "row", "C3"):
        assert [str(value) for value in found[name].to_pylist()] == [
            str(value or "") if name == "C3" else str(value) for value in expected[name].to_pylist()
        ]
    np.testing.assert_allclose(found["logit"].to_numpy(), expected["logit"].to_numpy(), rtol=1e-6)
    lists = raw.append_column("many", pa.array([[1, 2]] * ROWS))
    pq.write_table(lists, tmp_path / "lists.parquet")
    with pytest.raises(
        DataError, match=r"out\.csv: column many has lists, which CSV cannot have; drop --keep many"
    ):
        write_predictions(model, [str(tmp_path / "lists.parquet")], text, ["many"])
    # The one before stays.
    assert pcsv.read_csv(text) == found


def test_columns_in_memory_are_scored_alike(
    model: SavedModel, raw: pa.Table, logits: NDArray[np.float32]
) -> None:
    """A dict without the label, and a table of Arrow; the control: ids in the columns of others."""
    expected = 1 / (1 + np.exp(-logits.astype(np.float64)))
    columns = raw.to_pydict()
    del columns["label"]
    np.testing.assert_allclose(model.predict(columns), expected, rtol=1e-5)
    np.testing.assert_allclose(model.predict(raw), expected, rtol=1e-5)
    swapped = columns | {"C1": columns["C2"], "C2": columns["C1"]}
    assert np.abs(model.predict(swapped) - expected).max() > 1e-3


def test_text_without_labels_and_with_bad_lines(
    model: SavedModel, raw: pa.Table, logits: NDArray[np.float32], tmp_path: Path
) -> None:
    text_model = with_data(model, format="criteo_tsv")
    lines = as_text(raw)
    file = tmp_path / "rows.tsv"
    for name in ("with", "without"):
        own = lines if name == "with" else [line.partition("\t")[2] for line in lines]
        broken = [*own[:3], "\t".join(["x"] * len(own[0].split("\t"))), "1\t2", *own[3:]]
        file.write_text("\n".join(broken) + "\n")
        out = tmp_path / f"{name}.parquet"
        done = write_predictions(text_model, [str(file)], out)
        assert (done.rows, done.without_score) == (ROWS + 2, 2)
        assert f"{file}:4: I1 'x' " in done.first[0]
        assert f"{file}:5: 2 columns" in done.first[1]
        written = pq.read_table(out)
        scores = written["logit"].to_pylist()
        assert scores[3:5] == [None, None]
        assert written["probability"].to_pylist()[3:5] == [None, None]
        np.testing.assert_allclose(scores[:3] + scores[5:], logits, rtol=1e-5, atol=1e-5)
        labels = written["label"].to_pylist()
        expected = raw["label"].to_pylist() if name == "with" else [None] * ROWS
        assert labels[:3] + labels[5:] == expected
        assert labels[3:5] == [None, None]


def test_a_csv_file_with_a_schema(
    model: SavedModel, raw: pa.Table, logits: NDArray[np.float32], tmp_path: Path
) -> None:
    """A header whose order is another, a quoted field, a column to keep, one spelled with integers."""
    columns: dict[str, object] = {"label": {"kind": "label"}}
    columns |= {f"I{at + 1}": {"kind": "dense"} for at in range(13)}
    columns |= {f"C{at + 1}": {"kind": "categorical"} for at in range(26)}
    csv_model = with_data(model, format="csv", columns=columns)
    names = [name for name in reversed(raw.column_names) if name != "label"]
    note = pa.array([f'said "{at}, {at}"' for at in range(ROWS)])
    file = tmp_path / "rows.csv"
    pcsv.write_csv(raw.select(names).append_column("note", note), file)
    out = tmp_path / "out.parquet"
    done = write_predictions(csv_model, [str(file)], out, ["note"])
    assert (done.rows, done.without_score) == (ROWS, 0)
    written = pq.read_table(out)
    np.testing.assert_allclose(written["logit"].to_numpy(), logits, rtol=1e-5, atol=1e-5)
    assert written["note"].to_pylist() == note.to_pylist()
    assert written["row"].to_pylist() == list(range(2, ROWS + 2))
    assert written["label"].null_count == ROWS


def test_integers_are_hashed_as_they_stood_in_the_text_of_training(model: SavedModel) -> None:
    text_model = with_data(model, format="criteo_tsv")
    columns: dict[str, list[object]] = {f"I{at + 1}": [1.0] for at in range(13)}
    columns |= {f"C{at + 1}": ["7"] for at in range(26)}
    integers = columns | {f"C{at + 1}": [7] for at in range(26)}
    assert text_model.predict(columns) == text_model.predict(integers)
    # The run read texts from Parquet, and its checkpoint says so.
    assert set(model.id_classes.values()) == {"text"}
    assert model.predict(columns) == model.predict(integers)
    unknown = dataclasses.replace(model, id_classes={})
    assert unknown.predict(columns) != unknown.predict(integers), "the control"
    on_integers = dataclasses.replace(model, id_classes={"C1": "integer"})
    with pytest.raises(DataError, match="column 'C1' has texts, but the model was trained on integers"):
        on_integers.predict(columns)


def test_files_whose_ids_would_get_other_rows_are_not_evaluated(
    model: SavedModel, raw: pa.Table, tmp_path: Path
) -> None:
    ids = pa.array(np.arange(ROWS))
    file = tmp_path / "integers.parquet"
    pq.write_table(raw.set_column(raw.column_names.index("C3"), "C3", ids), file)
    with pytest.raises(DataError, match=r"column C3 has integer ids, but text ids in .*small"):
        spans_of(model, [str(file)])
    unknown = dataclasses.replace(model, id_classes={})
    assert spans_of(unknown, [str(file)]), "the control"


def test_a_file_behind_a_url(model: SavedModel, raw: pa.Table, logits: NDArray[np.float32]) -> None:
    url = "memory://predict/rows.parquet"
    with fsspec.open(url, "wb") as file:
        pq.write_table(raw, file)
    expected = 1 / (1 + np.exp(-logits.astype(np.float64)))
    np.testing.assert_allclose(model.predict(url), expected, rtol=1e-5)


def test_what_cannot_be_scored_leaves_no_file(
    model: SavedModel, raw: pa.Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "rows.parquet"
    out = tmp_path / "out" / "out.parquet"
    out.parent.mkdir()
    pq.write_table(raw.drop_columns(["C7"]), file)
    with pytest.raises(DataError, match=r"rows\.parquet: has no column 'C7'; did you mean"):
        write_predictions(model, [str(file)], out)
    pq.write_table(raw, file, row_group_size=100)
    for keep, words in ((["C99"], "no column 'C99'"), (["logit"], "already has a column 'logit'")):
        with pytest.raises(DataError, match=words):
            write_predictions(model, [str(file)], out, keep)
    with pytest.raises(DataError, match="matches no file"):
        write_predictions(model, [str(tmp_path / "none-*.parquet")], out)
    other_name = tmp_path / "link.parquet"
    other_name.symlink_to(file)
    before = file.read_bytes()
    for name in (file, other_name):
        with pytest.raises(DataError, match=r"--out .*\.parquet: is a file to score; give another file"):
            write_predictions(model, [str(file)], name)
    assert file.read_bytes() == before
    pq.write_table(raw.append_column("bytes", pa.array([b"\xff"] * ROWS)), tmp_path / "bytes.parquet")
    with pytest.raises(DataError, match=r"bytes\.parquet: a column cannot be kept .*drop it from --keep"):
        write_predictions(model, [str(tmp_path / "bytes.parquet")], out.with_suffix(".csv"), ["bytes"])
    with pytest.raises(DataError, match="the columns: has no column 'I1'"):
        model.predict({"C1": ["a"]})
    original = type(model).logits
    monkeypatch.setattr(
        type(model), "logits", lambda own, batch, owner: original(own, batch, owner) * np.float32(np.nan)
    )
    with pytest.raises(CheckpointError, match="diverged"):
        model.predict(pq.read_table(file))
    with pytest.raises(CheckpointError, match="diverged"):
        write_predictions(model, [str(file)], out)
    assert list(out.parent.iterdir()) == []


def test_a_row_without_a_finite_logit_has_no_score_and_the_others_have(
    model: SavedModel, raw: pa.Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, out = tmp_path / "rows.parquet", tmp_path / "out.parquet"
    pq.write_table(raw.slice(0, 50), file)
    original = type(model).logits

    def one_diverges(own: SavedModel, batch: Batch, owner: IndexArray | None) -> NDArray[np.float32]:
        found = original(own, batch, owner).copy()
        found[7] = np.inf
        return found

    whole = model.predict(raw.slice(0, 50))
    monkeypatch.setattr(type(model), "logits", one_diverges)
    done = write_predictions(model, [str(file)], out)
    assert (done.rows, done.without_score) == (50, 1)
    assert done.first == [f"{file}:8: the model's logit is not finite"]
    written = pq.read_table(out)
    assert [at for at, value in enumerate(written["logit"].to_pylist()) if value is None] == [7]
    scores = model.predict(raw.slice(0, 50))
    assert np.flatnonzero(np.isnan(scores)).tolist() == [7]
    np.testing.assert_array_equal(np.delete(scores, 7), np.delete(whole, 7))
