"""Labels by expressions: what they give, and what they may not do."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from shadowsync.pipeline.data.columns.label_expression import LabelExpression


@pytest.mark.parametrize(
    ("text", "labels"),
    [
        ("stars >= 4", [0, 1, 1, 0]),
        ('"stars" > 3 and not stars = 5', [0, 1, 0, 0]),
        ("stars in (1, 5)", [1, 0, 1, 0]),
        ("stars between 1 and 4", [1, 1, 0, 0]),
        ("case when stars > 4 then 1 else 0 end", [0, 0, 1, 0]),
        ("stars * 2 - 1 >= 7", [0, 1, 1, 0]),
        ("stars <> 5", [1, 1, 0, 1]),
    ],
)
def test_numbers(text: str, labels: list[int]) -> None:
    column = pa.array([1.0, 4.0, 5.0, 0.0])
    assert LabelExpression(text, "stars").labels(column).tolist() == labels


@pytest.mark.parametrize(
    ("text", "labels"),
    [
        ("stars = 'it''s'", [0, 1, None]),
        ("lower(stars) like 'a%'", [1, 0, None]),
        ("stars is null", [0, 0, 1]),
        ("length(stars) > 1", [1, 1, None]),
        ("starts_with(stars, 'A')", [1, 0, None]),
    ],
)
def test_texts(text: str, labels: list[int | None]) -> None:
    column = pa.array(["Aa", "it's", None])
    found = LabelExpression(text, "stars").labels(column)
    assert [None if np.isnan(value) else int(value) for value in found] == labels


def test_a_row_does_not_depend_on_the_others() -> None:
    rule = LabelExpression("stars >= 4", "stars")
    values = [1.0, 5.0, 4.0, 3.0]
    together = rule.labels(pa.array(values)).tolist()
    assert together == [rule.labels(pa.array([value])).item() for value in values]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("other > 3", "has the word 'other'; a label may use its own column 'stars'"),
        ('"other" > 3', 'uses "other"; a label may use its own column'),
        ("stars > avg(stars)", "has the word 'avg'"),
        ("row_number() over (order by stars) > 3", "has the word 'row_number'"),
        ("stars > (select 1)", "has the word 'select'"),
        ("now() > stars", "has the word 'now'"),
        ("stars > 3; drop", "has ';' at character 10"),
        ("stars > 3 -- so", "has '-' at character 11"),
        ("stars > $1", "has '$' at character 9"),
        ("1 = 1", "does not use the column"),
        ("stars >", "is not an SQL expression"),
        ("", "is not an SQL expression"),
    ],
)
def test_refused(text: str, said: str) -> None:
    with pytest.raises(ValueError, match=r".") as caught:
        LabelExpression(text, "stars")
    assert said in str(caught.value)


def test_no_file_is_opened(tmp_path: Path) -> None:
    """Polars opens a file that an expression names while it reads the expression; ours never gets there."""
    import polars as pl

    file = tmp_path / "secret.csv"
    file.write_text("stars\n3\n")
    for word in ("read_csv", "scan_csv", "read_parquet"):
        text = f"stars > (select max(stars) from {word}('{file}'))"
        with pytest.raises(ValueError, match=r"has the word 'select'"):
            LabelExpression(text, "stars")
        # Nor where the column has the name of a clause.
        with pytest.raises(ValueError, match=r"has the word"):
            LabelExpression(text.replace("stars", "select"), "select")
    # The control: Polars itself does open it.
    missing = tmp_path / "none.csv"
    with pytest.raises((pl.exceptions.PolarsError, OSError), match=r"none\.csv|No such file"):
        pl.sql_expr(f"stars > (select max(stars) from read_csv('{missing}'))")


def test_what_gives_no_truth_value() -> None:
    with pytest.raises(ValueError, match=r"gives String, not true or false"):
        LabelExpression("upper(stars)", "stars").labels(pa.array(["a"]))
    with pytest.raises(ValueError, match=r"cannot be computed"):
        LabelExpression("upper(stars) = 'A'", "stars").labels(pa.array([1.0]))


@pytest.mark.parametrize(
    "text", ["upper(stars) = 'A'", "stars = 'a'", "length(stars) = 1 and stars like 'a%'"]
)
def test_texts_that_are_not_utf_8(text: str) -> None:
    column = pa.array([b"a\xff", b"a", b"\xc3("] * 500, pa.binary()).view(pa.string())
    assert LabelExpression(text, "stars").labels(column).tolist() == [0, 1, 0] * 500
