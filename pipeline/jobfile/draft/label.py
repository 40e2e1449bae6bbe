"""The label of a sample, guessed from names and values."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

import polars as pl

from ...data.bad_rows import printable
from ...errors import JobFileError
from ...text.format import counted, percent
from .entry import DraftColumn, is_flat, plain_name, share_missing, toml_key, toml_value
from .missing import numbers_of
from .names import names_outcome
from .sample import InputSample

_LABELS: Final = re.compile(
    r"(is_?)?(label|target|click(s|ed)?|clk|convert(ed)?|conversion|buy|bought|purchase[d]?|like[d]?|y|class|outcome)",
    re.IGNORECASE,
)
_POSITIVE: Final = {
    "1",
    "true",
    "t",
    "yes",
    "y",
    "click",
    "clicked",
    "positive",
    "pos",
    "buy",
    "purchase",
    "like",
    "on",
    "ja",
    "si",
    "sí",
    "oui",
    "sim",
    "да",
    "是",
}
_MOST_WITHOUT_LABEL: Final = 0.5
_SHOWN: Final = 5


def label_of(frame: pl.DataFrame, label: str, sample: InputSample) -> str:
    """Return the name of the label's column.

    `label` is the one that is given, or "". Raises JobFileError if it is not there, or cannot be guessed.
    """
    twice = ""
    if sample.repeated:
        names = " and ".join(repr(name) for name in sample.repeated)
        twice = f"the first line has {names} more than once, so it was taken for a row, not for a header"
    if label:
        if label in frame.columns:
            return label
        if twice:
            raise JobFileError(twice, remedy="give each column a name of its own")
        raise JobFileError(f"there is no column {label!r}; there are {', '.join(frame.columns)}")
    if twice:
        # Among the values of a row its names would make labels of columns that have another one.
        remedy = "give each column a name of its own; if it is a row, name the label: --label column_1"
        raise JobFileError(twice, remedy=remedy)
    two = [name for name in frame.columns if _may_be_label(frame[name])]
    named = [name for name in two if _LABELS.fullmatch(plain_name(name))]
    results = [name for name in two if names_outcome(name)]
    for candidates in (named, results, two):
        if len(candidates) == 1:
            return candidates[0]
    several = f"columns with two values: {', '.join(named or two)}" if two else "no column has two values"
    # Such as what users bought.
    pairs = (
        ""
        if two
        else ", or leave init: rows of pairs, without a label, are for two towers (docs/retrieval.md)"
    )
    raise JobFileError(f"the label is not clear ({several})", remedy=f"name it: --label COLUMN{pairs}")


def ask_of_label(column: DraftColumn, frame: pl.DataFrame) -> DraftColumn:
    """Ask whether the label that was guessed is one."""
    if _LABELS.fullmatch(plain_name(column.name)):
        others = [name for name in frame.columns if name != column.name and _may_be_label(frame[name])]
        others = [name for name in others if names_outcome(name)]
    else:
        others = [name for name in frame.columns if name != column.name]
    if not others:
        return column
    why = "it has two values" if not names_outcome(column.name) else "of its name and its two values"
    named = ", ".join(others[:_SHOWN]) + (", ..." if len(others) > _SHOWN else "")
    text = f"is this to be predicted? It was taken because {why}"
    return column.asking(f"{text}. For another ({named}): shadowsync init --label NAME")


def _may_be_label(values: pl.Series) -> bool:
    return (
        is_flat(values)
        and values.drop_nulls().n_unique() == 2
        and share_missing(values) <= _MOST_WITHOUT_LABEL
    )


def label_column(values: pl.Series, positive: Sequence[str]) -> DraftColumn:
    """Guess which values of the label count as 1.

    `positive` are the texts that do, or empty. Raises JobFileError if that is not clear.
    """
    _require_unicode(values)
    if isinstance(values.dtype, pl.Decimal):
        values = values.cast(pl.Float64)
    if values.null_count() == len(values):
        raise JobFileError(f"the label {values.name!r} has no value", remedy="name another: --label COLUMN")
    column = _positive_label(values, positive) if positive else _guessed_label(values)
    share = share_missing(values)
    if not share:
        return column
    why = f"{column.why}; {percent(share, 1)} of the rows have none"
    return replace(column, why=why, missing_share=share)


def _require_unicode(values: pl.Series, path: str = "") -> None:
    """Raise JobFileError for texts that no job file can have."""
    if values.dtype == pl.Binary:
        raise JobFileError(
            f"the label {values.name!r} has texts that are not UTF-8",
            where=path,
            remedy="write them as UTF-8, or name another: --label COLUMN",
        )


def with_test_labels(columns: Sequence[DraftColumn], tested: InputSample) -> list[DraftColumn]:
    """Return the columns with a label that also fits the files of the test.

    A text of the label that differs there by a point, blanks or case alone has the same meaning. Raises
    JobFileError for others that the training files have not.
    """
    return [_tested_label(column, tested) if column.kind == "label" else column for column in columns]


def _tested_label(column: DraftColumn, tested: InputSample) -> DraftColumn:
    rule = tomllib.loads(f"rule = {column.setting}")["rule"]
    if not isinstance(rule, dict) or not rule.get("negative"):
        return column
    _require_unicode(tested.frame[column.name], tested.pattern)
    values = tested.frame[column.name].drop_nulls().cast(pl.String).str.strip_chars().unique().sort()
    rules = {key: list(rule[key]) for key in ("positive", "negative")}
    known = {str(value) for side in rules.values() for value in side}
    more = [value for value in values.to_list() if value and value not in known]
    for value in more:
        for side in rules.values():
            if _plain(value) in map(_plain, map(str, side)):
                side.append(value)
    if not any(value in side for side in rules.values() for value in values.to_list()):
        seen = ", ".join(values.head(_SHOWN).to_list())
        raise JobFileError(
            f"the label {column.name!r} is {seen} in {tested.pattern}, and {', '.join(sorted(known))} in the"
            " training data",
            remedy="write the labels alike",
        )
    swapped = {"positive": rules["negative"], "negative": rules["positive"]}
    questions = tuple(
        question._replace(line=f"{toml_key(column.name)} = {_two_sided(swapped)}")
        if question.line
        else question
        for question in column.questions
    )
    return replace(column, setting=_two_sided(rules), questions=questions)


def _two_sided(rules: Mapping[str, Sequence[object]]) -> str:
    sides = ", ".join(f"{key} = {toml_value(side)}" for key, side in rules.items())
    return f'{{ kind = "label", {sides} }}'


def _plain(value: str) -> str:
    return value.strip(" .").lower()


def _positive_label(values: pl.Series, positive: Sequence[str]) -> DraftColumn:
    texts = values.drop_nulls().cast(pl.String)
    if unknown := [value for value in positive if value not in texts]:
        seen = ", ".join(texts.unique().sort().head(_SHOWN).to_list())
        raise JobFileError(
            f"no row has the {values.name} {unknown[0]!r}; there are {seen}", remedy="correct --positive"
        )
    share = _share(texts.is_in(positive).mean())
    setting = f'{{ kind = "label", positive = {toml_value(list(positive))} }}'
    return DraftColumn(values.name, "label", setting, f"{share} are one of these, all others count as 0")


def _guessed_label(values: pl.Series) -> DraftColumn:
    known = values.drop_nulls()
    distinct = known.unique().sort().to_list()
    numbers = numbers_of(values)
    if numbers is not None and set(numbers.drop_nulls().unique().to_list()) <= {0.0, 1.0}:
        return DraftColumn(values.name, "label", '"label"', f"{_share(numbers.mean())} are 1")
    if len(distinct) == 2:
        # If neither means yes, the rarer value is probably the one to predict.
        times = {value: int((known == value).sum()) for value in distinct}
        negative, positive = sorted(
            distinct, key=lambda value: (str(value).lower() in _POSITIVE, -times[value])
        )
        text = _two_sided({"positive": [positive], "negative": [negative]})
        column = DraftColumn(
            values.name, "label", text, f"{_share((known == positive).mean())} are {positive}"
        )
        if str(positive).lower() in _POSITIVE:
            return column
        other = _two_sided({"positive": [negative], "negative": [positive]})
        why = (
            f"is {positive} the event to be predicted? It is the rarer one; if {negative} is, take this line"
        )
        return column.asking(why, other)
    if numbers is None:
        shown = ", ".join(printable(str(value).encode()) for value in distinct[:_SHOWN])
        raise JobFileError(
            f"the label {values.name!r} has {counted(len(distinct), 'text')} ({shown})",
            remedy="say which of them count as 1: --positive TEXT, once for each",
        )
    middle = numbers.mean()
    assert isinstance(middle, float)
    text = f'{{ kind = "label", threshold = {middle:.6g} }}'
    name = values.name if re.fullmatch(r"[A-Za-z_]\w*", values.name) else f'\\"{values.name}\\"'
    other = f'expression = "{name} > 0"'
    note = f"{len(distinct)} numbers: 1 from their mean on; or {other} in place of threshold; check this"
    column = DraftColumn(values.name, "label", text, note)
    return column.asking(
        "which numbers count as 1? If all above 0, take this line", f'{{ kind = "label", {other} }}'
    )


def _share(mean: object) -> str:
    return percent(float(str(mean)), 1)
