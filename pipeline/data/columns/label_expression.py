"""A label by an SQL expression on one column.

Only expressions are allowed that are computed row by row and read no file.
"""

from __future__ import annotations

import re
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from .fields import as_unicode, is_text

# Everything else, such as a comment, a semicolon, a dollar, a back quote or an escape, is refused.
_TOKEN: Final = re.compile(
    r"\s+|(?P<text>'(?:[^'\\]|'')*')|(?P<quoted>\"(?:[^\"]|\"\")*\")|(?P<number>\d+\.?\d*(?:[eE][+-]?\d+)?)"
    r"|(?P<name>[^\W\d]\w*)|(?P<operator><=|>=|<>|!=|\|\||[-+*/%<>=(),])"
)
# No aggregate, window, query, clock or random number, so that a label depends only on its row. Polars would
# run a query in an expression, and open the files that it names, already when it parses the expression.
WORDS: Final = frozenset(
    word
    for line in (
        "and or not in between is null true false like ilike case when then else end cast as",
        "abs ceil floor round sqrt exp ln log pow sign mod coalesce nullif",
        "upper lower length trim ltrim rtrim substr replace starts_with ends_with strpos",
        "double float int bigint varchar text boolean",
    )
    for word in line.split()
)
_CLAUSES: Final = frozenset({"select", "from", "with", "table", "values", "union"})


class LabelExpression:
    """Compute labels by the SQL expression `text` on the column `name`.

    One thread at a time may use it. Raises ValueError when the text is not an expression of that one column,
    or has words that are not in WORDS.
    """

    def __init__(self, text: str, name: str) -> None:
        import polars as pl

        _check_words(text, name)
        try:
            self._expression = pl.sql_expr(text)
        except pl.exceptions.PolarsError as error:
            raise ValueError(f"{text!r} is not an SQL expression ({_first_line(error)})") from error
        if set(self._expression.meta.root_names()) != {name}:
            raise ValueError(f"{text!r} does not use the column; write {name!r} in it")
        self._name, self._text = name, text

    def labels(self, column: pa.Array) -> NDArray[np.float64]:
        """Return the labels of a column of numbers or texts, float64 [n].

        True is 1.0, false 0.0, null NaN; a number is returned as it is. Raises ValueError when the expression
        cannot be computed, or gives neither truth values nor numbers.
        """
        import polars as pl

        seen = as_unicode(column) if is_text(column.type) else column
        frame = pl.DataFrame({self._name: pl.Series(pl.from_arrow(seen))})
        try:
            (result,) = frame.select(self._expression.alias("label")).get_columns()
        except pl.exceptions.PolarsError as error:
            raise ValueError(f"{self._text!r} cannot be computed ({_first_line(error)})") from error
        if not (result.dtype.is_numeric() or result.dtype == pl.Boolean):
            raise ValueError(f"{self._text!r} gives {result.dtype}, not true or false")
        values: NDArray[np.float64] = result.cast(pl.Float64).fill_null(np.nan).to_numpy()
        return values


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0][:200] if str(error).strip() else type(error).__name__


def _check_words(text: str, name: str) -> None:
    position = 0
    while position < len(text):
        token = _TOKEN.match(text, position)
        if token is None or text.startswith("--", position) or text.startswith("/*", position):
            raise ValueError(
                f"{text!r} has {text[position]!r} at character {position + 1}, which is not allowed there"
            )
        _check_token(token, text, name)
        position = token.end()


def _check_token(token: re.Match[str], text: str, name: str) -> None:
    kind: Any = token.lastgroup
    word = token[0]
    if kind == "quoted" and word[1:-1].replace('""', '"') != name:
        raise ValueError(f"{text!r} uses {word}; a label may use its own column {name!r} only")
    if kind == "name" and word.lower() not in WORDS and (word != name or word.lower() in _CLAUSES):
        raise ValueError(
            f"{text!r} has the word {word!r}; a label may use its own column {name!r} and these words: "
            f"{', '.join(sorted(WORDS))}"
        )
