"""`[data]` and `[data.split]`: the input files and their split."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import BaseModel, Field, model_validator

from ..types import TOPIC_PREFIX
from .column_kinds import StoredAs
from .columns import ColumnSection, check_columns, suggest, table_of
from .date_digits import may_be_seconds
from .kafka import KafkaSection
from .sections import STRICT, Fraction, Positive
from .tables import InputColumn

Share: TypeAlias = Annotated[float, Field(ge=0, lt=1, allow_inf_nan=False)]
Moment: TypeAlias = str | int | float | None
DrawBy: TypeAlias = Literal["path", "name"]


class SplitSection(BaseModel):
    """The split of the rows of `data.path` into training, validation and test.

    Validation and test data may also be files of their own: `data.validation_path`, `data.eval_path`.
    """

    model_config = STRICT

    by: Literal["", "fraction", "order", "column", "last", "time"] = Field(
        default="",
        description='"fraction": rows are drawn at random; "order": validation and test are the last rows of'
        ' the files, in their order; "column": the ids of `column` are drawn, so all rows of an id are in one'
        ' part; "last": the last row of each id of `column` is the test, the one before it validation,'
        " by the timestamp if there is one, else in the order of the files, and at least one row of each id"
        ' is trained on; "time": validation and test are the last rows, which needs a timestamp and'
        ' data.order = "time"; "": no split.',
    )
    column: str = Field(
        default="",
        description='column, last: a column of one id, such as that of the users, or one of kind "group".'
        " Ids that share a row of a hashed table are one id here, and so are all rows without a group."
        ' "last" reads all of data.path once in the coordinator and in each'
        " process that reads a part of it, and keeps up to 144 bytes in memory for each id.",
    )
    validation: Share = Field(default=0.0, description="Fraction of the rows for validation during training.")
    test: Share = Field(default=0.0, description="Fraction of the rows for the test at the end.")
    validation_from: Moment = Field(
        default=None, description="time: when the validation part begins, as a number or ISO 8601 text."
    )
    test_from: Moment = Field(default=None, description="time: when the test part begins.")
    progressive: Share = Field(
        default=0.0,
        description="Fraction of the training rows, the last ones, that are scored before they are trained"
        " on.",
    )
    seed: Annotated[int, Field(ge=0, lt=2**31)] = Field(
        default=0,
        description="fraction: seed of the draw. Runs that differ in run.seed alone have the same split.",
    )
    draw_by: DrawBy = Field(
        default="path",
        description="What a row is drawn by, with seed and its place in the file, here and for"
        ' data.negative_share. "path": the path of the file below the folder that the patterns of data.path'
        " share, up to their first wildcard, so the draw is the same wherever that folder is; of a topic its"
        ' name and the number of the partition. "name": the name without any folder, as in runs whose job has'
        " no such key, which keep it when they are resumed: files of one name in several folders are then"
        " drawn alike.",
    )

    @model_validator(mode="after")
    def _consistent(self) -> SplitSection:
        moments = (self.validation_from, self.test_from)
        if not self.by and (self.validation or self.test):
            raise ValueError('data.split.by: not given, but data.split has parts; give "fraction" or "time"')
        if bool(self.column) != (self.by in BY_ID):
            what = f'"{self.column}" given; it is' if self.column else "not given; it is needed"
            raise ValueError(f'data.split.column: {what} for by = "column" or "last"')
        if self.by == "last" and (self.validation or self.test):
            raise ValueError(
                'data.split: by = "last" has one row of each id in each part; leave validation and test out'
            )
        if self.by != "time" and any(moment is not None for moment in moments):
            raise ValueError('data.split: validation_from and test_from need by = "time"')
        if any(moment is not None for moment in moments) and (self.validation or self.test):
            raise ValueError("data.split: give fractions, or the times at which the parts begin, not both")
        if self.by and not (self.has_validation or self.has_test):
            raise ValueError(f'data.split.by: "{self.by}" given without parts; give validation or test')
        if self.validation + self.test >= 1:
            raise ValueError(
                f"data.split: validation {self.validation:g} and test {self.test:g} leave nothing to train on"
            )
        first, second = (None if moment is None else seconds_of(moment) for moment in moments)
        if first is not None and second is not None and first > second:
            raise ValueError(
                "data.split: validation_from is after test_from; validation comes before the test"
            )
        return self

    @property
    def has_validation(self) -> bool:
        """Whether a part of the rows is for validation."""
        return bool(self.validation or self.validation_from is not None or self.by == "last")

    @property
    def has_test(self) -> bool:
        """Whether a part of the rows is for the test."""
        return bool(self.test or self.test_from is not None or self.by == "last")


def seconds_of(moment: str | int | float) -> float:
    """Convert ISO 8601 text to seconds since 1970.

    A time without a zone is UTC. A number is returned as it is. Raises ValueError for text that is not an
    ISO 8601 date or time, and for a number that may as well be a date.
    """
    if not isinstance(moment, str):
        if not may_be_seconds(moment):
            raise ValueError(
                f"data.split: {moment} is not clearly in seconds since 1970; write 2026-03-31T12:00"
            )
        return float(moment)
    try:
        parsed = datetime.fromisoformat(moment)
    except ValueError as error:
        raise ValueError(
            f"data.split: {moment!r} is not a time; write 2026-03-31T12:00 or a number"
        ) from error
    return (parsed if parsed.tzinfo else parsed.replace(tzinfo=UTC)).timestamp()


BY_ID = ("column", "last")
_PARTS = (("validation", "validation_path"), ("test", "eval_path"))


class DataSection(BaseModel):
    """The input files, their contents, and how they are read.

    Paths are one or more globs, relative to the folder of the job file, or URLs of any file system that
    fsspec supports ("s3://bucket/day-*.csv.gz"), or Kafka topics ("kafka://host:9092/clicks"), whose messages
    are rows of text.

    "csv" and "tsv" need `columns`; so does "parquet", unless its columns are those of Criteo. Text may be
    compressed (.gz, .zst). A quoted field may contain the delimiter; one that contains a line break stops the
    job.
    """

    model_config = STRICT

    format: Literal["criteo_tsv", "csv", "tsv", "parquet"] = Field(
        description="Format of the files; with `prepared` the folder states it."
    )
    path: Annotated[list[str], Field(min_length=1)] = Field(
        description="Files to train on; with `prepared` the folder states them."
    )
    validation_path: list[str] = Field(default=[], description="Files for validation during training.")
    eval_path: list[str] = Field(default=[], description="Files for the test at the end.")
    prepared: str = Field(
        default="",
        description="Folder that `shadowsync prepare` wrote, or its URL. The rows are then read from it, and"
        " it states the keys of [data] and the table sizes that the job file leaves out. `span_bytes` has no"
        " effect on it: a reader gets whole parts.",
    )
    columns: dict[str, ColumnSection] = Field(
        default={}, description="The columns by name, in the order of the file; empty for Criteo's columns."
    )
    header: bool = Field(
        default=True, description="csv, tsv: whether the first line of a file names its columns."
    )
    delimiter: Annotated[str, Field(max_length=1, pattern=r"^[ -~\t]?$")] = Field(
        default="", description='csv, tsv: separator of fields; "" means a comma in csv and a tab in tsv.'
    )
    quote: Literal['"', "'", ""] = Field(
        default='"', description='csv, tsv: quote character around a field; "" means none.'
    )
    encoding: Literal["utf-8", "latin-1", "cp1252"] = Field(
        default="utf-8",
        description="csv, tsv: encoding of the files. A row whose text is not UTF-8 is malformed.",
    )
    missing: list[str] = Field(
        default=[""],
        description="With `columns`: texts that count as missing. A number in Parquet, a DataFrame or a"
        ' request is missing, too, if one of them is the same number: with "-999" also -999 and -999.0.',
    )
    decimal: Literal[".", ","] = Field(
        default=".",
        description='With `columns`: the decimal separator of numbers in texts; with "," 1,5 is a number and'
        " 1.5 is not.",
    )
    strip: bool = Field(default=False, description="csv, tsv: remove the blanks around a field.")
    split: SplitSection = SplitSection()
    kafka: KafkaSection = KafkaSection()
    negative_share: Fraction = Field(
        default=1.0,
        description="Share of the training part's negatives that is trained on, with all positives. They"
        " depend only on split.seed, the file (split.draw_by) and the place of the row. Scores are calibrated"
        " back: a probability p becomes p / (p + (1 - p) / negative_share), which adds log(negative_share)"
        " to the logit.",
    )
    order: Literal["file", "time"] = Field(
        default="file",
        description='Order of training: that of the files, shuffled, or ("time") that of the timestamp'
        " column. Input that is sorted by time is streamed; other input is sorted in memory.",
    )
    sort_limit_bytes: Annotated[int, Field(ge=1 << 20)] = Field(
        default=1 << 30,
        description='order = "time": largest size of the examples to sort in memory; sorting takes twice as'
        " much memory. The reader reads and sorts all of data.path, and each process that scores a part of it"
        " does so again.",
    )
    follow: bool = Field(
        default=False,
        description="Also train on files that come to match `path` during training, until `shadowsync stop`"
        " ends the input. Write a file under another name, and rename it when it is complete.",
    )
    follow_seconds: Annotated[float, Field(ge=0.1, le=86_400)] = Field(
        default=10.0, description="follow: time between two looks for new files."
    )
    epochs: Positive = Field(default=1, description="Number of passes over the training data.")
    shuffle_window: Annotated[int, Field(ge=0, le=10_000_000)] = Field(
        default=65_536,
        description='Rows that are shuffled together; 0: no shuffling. With order = "time" the default is 0.',
    )
    max_bad_rows: Annotated[int, Field(ge=0)] = Field(
        default=1_000,
        description="Malformed rows, among them those without a label, are skipped and counted; if there are"
        " more than this in each epoch so far, the job stops.",
    )
    max_bad_fraction: Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)] = Field(
        default=0.01,
        description="The job also stops if more than this fraction of the rows of the spans read so far is"
        " malformed; of fewer than 1,000 rows only once all spans are read.",
    )
    readers: Positive = Field(default=1, description="Number of reader nodes.")
    span_bytes: Annotated[int, Field(ge=1 << 16)] = Field(
        default=64 << 20, description="Size of a span, the piece of a file that a reader gets at a time."
    )
    dense_features: Annotated[int, Field(ge=0, le=4096)] = Field(
        default=13, description="Without `columns`: number of dense columns, I1, I2, ..."
    )
    categorical_features: Annotated[int, Field(ge=1, le=4096)] = Field(
        default=26, description="Without `columns`: number of categorical columns, C1, C2, ..."
    )
    retain_bytes: Annotated[int, Field(ge=1 << 20)] = Field(
        default=64 << 20,
        description="Memory of a reader for batches that are not yet confirmed as trained.",
    )

    @model_validator(mode="before")
    @classmethod
    def _in_order(cls, value: Any) -> Any:
        # A shuffle would break the order of time, so it must be asked for.
        if isinstance(value, dict) and value.get("order") == "time":
            return {"shuffle_window": 0} | value
        return value

    @model_validator(mode="after")
    def _consistent(self) -> DataSection:
        self._check_columns()
        self._check_parts()
        self._check_topics()
        self._check_follow()
        return self

    def _check_columns(self) -> None:
        if self.columns and self.format == "criteo_tsv":
            raise ValueError('data.columns: given; data.format = "criteo_tsv" has its own, "tsv" takes them')
        if self.encoding != "utf-8" and self.format not in ("csv", "tsv"):
            raise ValueError(f'data.encoding: given; it is for "csv" and "tsv", this is "{self.format}"')
        if not self.columns and self.format in ("csv", "tsv"):
            raise ValueError(f'[data.columns]: is missing; data.format = "{self.format}" needs it')
        if self.columns:
            check_columns(self.columns, header=self.header or self.format == "parquet")
        if self.quote and self.quote == self.delimiter:
            raise ValueError(f"data.quote: {self.quote!r} is the delimiter too; give another")
        if self.order == "time" and not self.columns_as("timestamp"):
            raise ValueError(
                'data.order: "time" given; it needs a column of kind "timestamp" in data.columns'
            )
        if self.order == "time" and self.readers != 1:
            raise ValueError(f'data.readers: {self.readers} given; data.order = "time" needs 1')

    def _check_topics(self) -> None:
        topics = [path for path in self.paths if path.startswith(TOPIC_PREFIX)]
        if not topics:
            return
        if any("@" in path.removeprefix(TOPIC_PREFIX).partition("/")[0] for path in topics):
            # Without the address, which has a password.
            raise ValueError(
                "data.path: the address of a topic has a user; give [data.kafka] sasl_username, and"
                " the password by sasl_password_env or sasl_password_file"
            )
        if self.format == "parquet":
            raise ValueError('data.format: "parquet" given; messages of a topic are text, "csv" or "tsv"')
        if self.header and self.format != "criteo_tsv":
            raise ValueError("data.header: is true; messages of a topic have no header, so give false")
        if self.row_number:
            raise ValueError(
                f'data.columns.{self.row_number}.kind: "row_number" given; it is for files: messages of a'
                " topic may be missing, so leave it out"
            )

    def _check_follow(self) -> None:
        split = self.split
        unlike = {
            "data.epochs": (self.epochs != 1, "leave it at 1"),
            "data.order": (self.order == "time", 'leave it at "file": files are trained on as they come'),
            "data.prepared": (bool(self.prepared), "give the files themselves"),
            "data.split": (
                bool(split.by or split.progressive),
                "give data.validation_path and eval_path: a part of later files would not be scored",
            ),
        }
        wrong = [
            f"{key}: does not go with data.follow; {remedy}"
            for key, (value, remedy) in unlike.items()
            if self.follow and value
        ]
        if wrong:
            # All at once: a draft of `shadowsync init` may have several of them.
            raise ValueError("; ".join(wrong))

    def _check_parts(self) -> None:
        split = self.split
        for part, key in _PARTS:
            if getattr(self, key) and getattr(split, f"has_{part}"):
                split_key = f'split.by = "{split.by}"' if split.by == "last" else f"split.{part}"
                raise ValueError(f"data.{key}: given, and data.{split_key} too; give one of them")
        if split.by == "time" and self.order != "time":
            raise ValueError('data.split.by: "time" given; it needs data.order = "time"')
        if split.by not in ("", "time") and self.order == "time":
            raise ValueError(f'data.split.by: "{split.by}" given; data.order = "time" needs "time"')
        single = [column.name for column in self.table_columns if not column.pooling]
        known = [*single, *self.columns_as("group")]
        if split.column and split.column not in known:
            raise ValueError(
                f'data.split.column: {split.column!r} is no column of one id, nor of kind "group";'
                f" {suggest(split.column, known)}"
            )
        if split.progressive and (self.spans_shuffled or self.epochs != 1):
            raise ValueError(
                'data.split.progressive: given; it needs data.epochs = 1, and data.order = "time" or '
                "data.shuffle_window = 0"
            )

    @property
    def draws_rows(self) -> bool:
        """Whether a part of the split or the negatives are drawn."""
        return self.split.by == "fraction" or self.negative_share != 1.0

    @property
    def trains_on_whole_spans(self) -> bool:
        """Whether no span of the training part is cut by what rows of other spans are."""
        split = self.split
        return self.order == "file" and split.by in ("", "fraction", "column") and not split.progressive

    @property
    def paths(self) -> tuple[str, ...]:
        """Patterns of all files and topics that the job reads."""
        return (*self.path, *self.validation_path, *self.eval_path)

    @property
    def table_columns(self) -> tuple[InputColumn, ...]:
        """Columns whose ids have rows of a table, in the order of the model's embeddings."""
        if not self.columns:
            names = [f"C{index + 1}" for index in range(self.categorical_features)]
            return tuple(InputColumn(name, name, "") for name in names)
        return tuple(
            InputColumn(name, table_of(name, self.columns), column.table_pooling, column.fixed_rows)
            for name, column in self.columns.items()
            if column.of_kind.has_table
        )

    def table_of(self, name: str) -> str:
        """Return the name of the table that has the rows of a column's ids."""
        return table_of(name, self.columns) if self.columns else name

    @property
    def has_held_out(self) -> bool:
        """Whether there are rows for validation or the test."""
        split = self.split
        files = self.validation_path or self.eval_path
        return bool(files or split.has_validation or split.has_test)

    @property
    def label_names(self) -> tuple[str, ...]:
        """Names of the labels, in the order of the model's logits, headline first."""
        return tuple(self.columns_as("label")) if self.columns else ("label",)

    @property
    def loss_weights(self) -> tuple[float, ...]:
        """Factor of each label's loss, in the order of `label_names`."""
        if not self.columns:
            return (1.0,)
        return tuple(column.loss_weight for column in self.columns_as("label").values())

    @property
    def dense_width(self) -> int:
        """D, the number of dense values of an example."""
        return len(self.dense_names)

    @property
    def dense_names(self) -> tuple[str, ...]:
        """Names of the dense columns, in the order of an example's values."""
        if not self.columns:
            return tuple(f"I{index + 1}" for index in range(self.dense_features))
        return tuple(self.columns_as("dense"))

    def columns_as(self, stored_as: StoredAs) -> dict[str, ColumnSection]:
        """Return the columns of which an example has this, by name, in order."""
        columns = self.columns.items()
        return {name: column for name, column in columns if column.of_kind.stored_as == stored_as}

    @property
    def group_names(self) -> list[str]:
        """Return the columns of what rows are grouped by, in order."""
        return [name for name in self.columns_as("group") if name != self.row_number]

    @property
    def row_number(self) -> str:
        """Return the column with the rows' positions in their files; "" without."""
        return next((name for name, column in self.columns.items() if column.kind == "row_number"), "")

    @property
    def spans_shuffled(self) -> bool:
        """Whether spans are read in random order, a new one in each epoch."""
        return self.shuffle_window > 0 and self.order == "file" and not self.follow
