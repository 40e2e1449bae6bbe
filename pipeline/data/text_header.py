"""Which columns a delimited text file has: by its first line, or by their order in the job file."""

from __future__ import annotations

from ..config.data import suggest
from ..config.data_section import DataSection
from ..errors import DataError
from .bad_rows import printable
from .line_parser import LineParser
from .record_schema import RecordSchema
from .text import first_line


def columns_of(path: str, schema: RecordSchema) -> list[str]:
    """The names of a file's columns, in order; with a header, reads the file's first line.

    Raises DataError when the file has no header that fits: a column of the schema is absent or there twice.
    """
    data = schema.data
    if not data.header:
        return schema.places
    line = first_line(path)
    parser = LineParser(["a"], ["a"], delimiter_of(data), data.quote)
    try:
        names = parser.split_line(line)
    except ValueError as error:
        raise DataError(f"the header has {error}: {printable(line)}", where=path) from error
    if data.strip:
        names = [name.strip() for name in names]
    for source in schema.sources:
        if names.count(source) != 1:
            times = "no" if source not in names else f"{names.count(source)} times"
            raise DataError(
                f"its header has {times} column {source!r}; {suggest(source, names)}",
                where=path,
                remedy="name the columns of [data.columns] as the file does, or set data.header = false",
            )
    return names


def delimiter_of(data: DataSection) -> str:
    """The character between fields."""
    return data.delimiter or ("," if data.format == "csv" else "\t")
