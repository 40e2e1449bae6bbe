"""The JSON bodies of requests, read as rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from ..pipeline.saved_model.input_rows import InputSchema
from .rows import BadRequest, RowColumns, columns_of_request

MOST_FORMS: Final = 16


def decoded(body: bytes) -> Any:
    """Return what a body has as JSON; raises BadRequest for what is no JSON."""
    try:
        return msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadRequest(f"the body is not JSON ({error})") from error


class BodyReader:
    """Read the JSON bodies of requests. Used by one thread.

    A client sends the same columns again and again. So rows with the keys of the last body's first row, and
    its context's columns, are read into tuples of values. Any other body is read in general, and all that is
    refused is refused there.

    Args:
        schema: schema of the model's input.
        most_rows: limit for a request's rows.
    """

    def __init__(self, schema: InputSchema, most_rows: int) -> None:
        self._schema = schema
        self._most_rows = most_rows
        self._form: _RowForm | None = None
        self._forms: dict[tuple[tuple[str, ...], frozenset[str]], _RowForm] = {}

    def read(self, body: bytes) -> RowColumns:
        """Return a body's rows; raises BadRequest as `columns_of_request`, and for what is no JSON."""
        if self._form is not None and (columns := self._form.read(body, self._most_rows)) is not None:
            return columns
        parsed = decoded(body)
        columns = columns_of_request(parsed, self._schema, self._most_rows)
        if "rows" in parsed:
            self._form = self._form_of(parsed["rows"][0], columns, parsed.get("context", {}))
        return columns

    def _form_of(self, row: dict[str, Any], columns: RowColumns, context: dict[str, Any]) -> _RowForm:
        """Return the form of a body.

        The last ones are kept, since a new one takes longer than to read a body.
        """
        key = (tuple(row), frozenset(context))
        if key not in self._forms:
            if len(self._forms) >= MOST_FORMS:
                self._forms.clear()
            self._forms[key] = _RowForm.of(row, columns, context)
        return self._forms[key]


@dataclass(frozen=True, slots=True)
class _RowForm:
    """The form of bodies with rows.

    Attributes:
        places: where each column that the model needs is among a row's keys.
        shared: the context's columns that the model needs, in order.
        context: all columns of the context.
        decoder: of bodies whose rows have exactly these keys.
    """

    places: dict[str, int]
    shared: Sequence[str]
    context: frozenset[str]
    decoder: msgspec.json.Decoder[Any]

    @classmethod
    def of(cls, row: dict[str, Any], columns: RowColumns, context: dict[str, Any]) -> _RowForm:
        """Return the form of a body that was read in general."""
        # In the order of the row's keys, where each is found at once. Names may be no identifiers.
        names = {f"field_{number}": name for number, name in enumerate(row)}
        row_type = msgspec.defstruct(
            "Row", [(field, Any) for field in names], rename=names, forbid_unknown_fields=True, gc=False
        )
        body_type = msgspec.defstruct(
            "Body",
            [("rows", list[row_type]), ("context", dict[str, Any], msgspec.field(default_factory=dict))],  # type: ignore[valid-type]
            forbid_unknown_fields=True,
        )
        keys = [*row]
        places = {name: keys.index(name) for name in columns.columns}
        return cls(places, [*columns.shared], frozenset(context), msgspec.json.Decoder(body_type))

    def read(self, body: bytes, most_rows: int) -> RowColumns | None:
        """Return a body's rows, or None if it has another form or is faulty."""
        try:
            parsed = self.decoder.decode(body)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return None
        count, context = len(parsed.rows), parsed.context
        if not 0 < count <= most_rows or context.keys() != self.context:
            return None
        values = [*zip(*map(msgspec.structs.astuple, parsed.rows), strict=True)]
        columns = {name: values[place] for name, place in self.places.items()}
        return RowColumns(count, columns, {name: context[name] for name in self.shared})
