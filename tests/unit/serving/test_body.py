"""Bodies of the same form are read as the first one was, without dicts, and others in general."""

from __future__ import annotations

import itertools
import json
import random
from typing import Any

import pytest
from shadowsync.pipeline.jobfile.load import validate_job
from shadowsync.pipeline.saved_model.input_rows import InputSchema, input_schema
from shadowsync.serving import body as body_module
from shadowsync.serving.body import BodyReader
from shadowsync.serving.rows import BadRequest, RowColumns, columns_of_request

MOST_ROWS = 20
VALUES = (
    None,
    0,
    -3,
    2**63,
    2**64 - 1,
    0.1,
    1e-300,
    True,
    "",
    "a",
    "é\u0000",
    "\U0001f600",
    [1, 2],
    ["x", None],
)
Row = dict[str, Any]


@pytest.fixture(scope="module")
def schema() -> InputSchema:
    """Of a job with an own label, a number, and names that are no identifiers."""
    columns = {
        "clicked": {"kind": "label"},
        "price": {"kind": "dense"},
        "user": {"kind": "categorical", "source": "user id"},
        "größe": {"kind": "categorical"},
        "class": {"kind": "categorical"},
    }
    tree = {"data": {"path": ["log.parquet"], "format": "parquet", "columns": columns}}
    return input_schema(validate_job(tree, where="a test"), {})


class Readers:
    """A reader of bodies, and how often it read in general."""

    def __init__(self, schema: InputSchema, monkeypatch: pytest.MonkeyPatch) -> None:
        self.schema, self.in_general = schema, 0
        self._reader = BodyReader(schema, MOST_ROWS)
        monkeypatch.setattr(body_module, "columns_of_request", self._count)

    @property
    def forms(self) -> Any:
        return self._reader._forms

    def _count(self, *given: Any) -> RowColumns:
        self.in_general += 1
        return columns_of_request(*given)

    def check(self, body: Any, *, general: bool) -> None:
        """It is read as it is in general, or refused with the same words."""
        before = self.in_general
        wanted = self._or_why(lambda: columns_of_request(body, self.schema, MOST_ROWS))
        found = self._or_why(lambda: self._reader.read(json.dumps(body).encode()))
        assert found == wanted
        assert (self.in_general > before) == general

    @staticmethod
    def _or_why(read: Any) -> Any:
        try:
            found = read()
        except BadRequest as error:
            return str(error)
        columns = {name: list(values) for name, values in found.columns.items()}
        return (found.count, list(columns.items()), list(found.shared.items()))


@pytest.fixture
def readers(schema: InputSchema, monkeypatch: pytest.MonkeyPatch) -> Readers:
    return Readers(schema, monkeypatch)


def rows_of(names: list[str], count: int, seed: int = 1) -> list[Row]:
    rng = random.Random(seed)
    return [{name: rng.choice(VALUES) for name in names} for _ in range(count)]


ALL = ["price", "user id", "größe", "class"]


def test_the_next_bodies_of_a_form_are_read_without_dicts(readers: Readers) -> None:
    for names in (ALL, ALL[::-1], [*ALL, "clicked"]):
        for seed in range(5):
            readers.check(
                {"rows": rows_of(names, 1 + 4 * seed, seed)}, general=not seed and names != ALL[::-1]
            )
    # The order of a row's keys, and of the body's, does not matter.
    readers.check(
        {"rows": [dict(reversed(row.items())) for row in rows_of([*ALL, "clicked"], 3)]}, general=False
    )
    shared = {"user id": "u", "price": None}
    own = rows_of(["class", "größe"], 7)
    readers.check({"context": shared, "rows": own}, general=True)
    readers.check({"rows": own, "context": {"price": 7, "user id": 1}}, general=False)
    readers.check({"context": {**shared, "clicked": 1}, "rows": own}, general=True)
    readers.check({"context": dict.fromkeys(ALL, 1), "rows": [{}] * 3}, general=True)
    readers.check({"context": dict.fromkeys(ALL, 2), "rows": [{}] * 4}, general=False)


def test_columns_are_read_in_general(readers: Readers) -> None:
    for seed in (1, 2):
        readers.check({"columns": {name: [seed] for name in ALL}}, general=True)


@pytest.mark.parametrize(
    "body",
    [
        {"rows": rows_of(ALL[1:], 2)},
        {"rows": [*rows_of(ALL, 2), *rows_of(ALL[1:], 1)]},
        {"rows": [*rows_of(ALL, 2), *rows_of([*ALL, "clas"], 1)]},
        {"rows": rows_of(ALL, MOST_ROWS + 1)},
        {"rows": []},
        {"rows": [[1]]},
        {"rows": rows_of(ALL, 1), "columns": {}},
        {"rows": rows_of(ALL, 1), "context": {"price": 1}},
        {"rows": rows_of(ALL, 1), "context": {"prize": 1}},
        {"rows": rows_of(ALL, 1), "context": None},
        {"rows": rows_of(ALL, 1), "contxt": {"price": 1}},
        {"columns": {name: [1] for name in ALL}, "k": 3},
        {},
        [],
        None,
    ],
)
def test_what_is_refused_is_refused_in_the_same_words(readers: Readers, body: Any) -> None:
    for _ in range(2):
        readers.check({"rows": rows_of(ALL, 3)}, general=not readers.in_general)
        readers.check(body, general=True)
        assert isinstance(Readers._or_why(lambda: columns_of_request(body, readers.schema, MOST_ROWS)), str)


def test_keys_of_a_body_that_are_not_known_are_named(schema: InputSchema) -> None:
    reader = BodyReader(schema, MOST_ROWS)
    for keys, why in (
        (["contxt"], "'contxt' is not known here; there are columns, context, rows"),
        (["k", "exclude"], "'exclude', 'k' are not known here; there are columns, context, rows"),
    ):
        with pytest.raises(BadRequest) as refused:
            reader.read(json.dumps({"rows": rows_of(ALL, 1), **dict.fromkeys(keys, 1)}).encode())
        assert str(refused.value) == why


def test_what_is_no_json_and_integers_beyond_64_bits(schema: InputSchema) -> None:
    reader = BodyReader(schema, MOST_ROWS)
    good = json.dumps({"rows": rows_of(ALL, 1)}).encode()
    for _ in range(2):
        for body in (b"", b"{", b"\xff", b'{"rows": [{"price": NaN}]}', b"[" * 100_000, good + b"x"):
            with pytest.raises(BadRequest, match=r"the body is not JSON \("):
                reader.read(body)
        assert reader.read(good).count == 1, "the control"
        # They stay whole, so that they are refused, and not rounded to another id.
        rows = json.dumps({"rows": [dict.fromkeys(ALL, 2**64)]}).encode()
        assert reader.read(rows).columns["user id"][0] == 2**64


def test_forms_are_made_once_and_not_kept_without_end(
    readers: Readers, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = list[int]()
    of = body_module._RowForm.of

    def count(*given: Any) -> Any:
        made.append(1)
        return of(*given)

    monkeypatch.setattr(body_module._RowForm, "of", count)
    for seed in range(5):
        for names in ([*ALL, "clicked"], ALL):
            readers.check({"rows": rows_of(names, 2, seed)}, general=True)
    assert len(made) == 2
    orders = [list(order) for order in itertools.permutations(ALL)]
    for order in orders:
        # A body of another form in between, so that each order is read in general.
        readers.check({"rows": rows_of([*ALL, "clicked"], 1)}, general=True)
        readers.check({"rows": rows_of(order, 1)}, general=True)
    assert len(made) > 20, "the control"
    assert len(readers.forms) <= body_module.MOST_FORMS
