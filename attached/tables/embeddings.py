"""`shadowsync.Embeddings`: tables on embedding nodes, for any torch loop."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from os import PathLike
from types import TracebackType
from typing import Any, Final, NoReturn, Self, overload

import numpy as np
import torch
from torch import nn

from ...pipeline.embedding.lookup.router import ShardRouter
from ...pipeline.embedding.storage.store import LARGEST_LR_SCALE
from ...pipeline.types import Float32Array, Int32Array
from ..checks import plain, plain_mapping
from ..errors import AttachError
from ..hub.members import CLIENT
from ..joining import find_hub, hub_address
from ..torchrun import ENV
from .connection import TablesConnection
from .row_client import RowsLost, TableRequest
from .vectors import DIMENSIONS_OF_BAGS, DistinctIds, Pooling, differentiable

# Floats of one request when whole tables are read.
READ_FLOATS: Final = 1 << 20
_NO_SINGLE_ROWS: Final[Int32Array] = np.zeros((0, 1), np.int32)


class Embeddings(nn.Module):
    """Tables on the embedding nodes of a hub, shared by all loops.

    The forward pass fetches rows, the backward pass sends their gradients and does not wait: the nodes step
    the rows, by the table's own optimizer, once for each backward pass. The module has no parameters, so the
    loop's optimizer does not see it, and `attach` does not synchronize it. Any thread may call it; call
    `close`, or use it in a `with` block, when training is over.

    Args:
        tables: number of rows by name; None for the tables that another module has declared. All modules of a
            hub declare the same.
        dim: floats in a row, of all tables or by name.
        join: as of `attach`.
        key: as of `attach`.
        optimizer: "sgd", "rowwise_adagrad", "adagrad" or "adam" (lazy).
        lr: learning rate of the rows.
        weight_decay: decoupled weight decay of the rows, of those that a step has.
        init_scale: first values are uniform in [-init_scale, init_scale).
        storage: "float32" or "bfloat16", of the rows in memory. What is None is as other modules have it, or
            else as [embedding] of the hub.
        pooling: how the rows of a bag, ids of the shape [batch, length], become one vector; None: not.
        padding_idx: an id that is left out: it adds nothing to a bag, and its vector is zeros.
        scaler: the GradScaler of the loop, if it has one: gradients are divided by its scale, and those of a
            backward pass that are not finite are dropped, as it drops the step.
        max_pending: backward passes whose gradients may be on their way before the next one waits.
        hub_wait_seconds: how long a lookup or a backward pass waits for a hub that died to come back with the
            rows of its last checkpoint; 0: it raises at once. The hub of "env://" does not come back.
        timeout_seconds: how long to wait for the hub and its nodes.

    Attributes:
        lr_scale: factor of the learning rates from now on; set it for a schedule.

    Raises:
        AttachError: tables or settings that cannot be, or differ from those of other modules.
        ClusterError: there is no hub, or its nodes cannot hold the tables; later, when they are gone and do
            not come back, or come back without the rows.
    """

    def __init__(
        self,
        tables: Mapping[str, int] | None = None,
        dim: int | Mapping[str, int] = 16,
        *,
        join: str | None = None,
        key: str | PathLike[str] | None = None,
        optimizer: str | None = None,
        lr: float | None = None,
        weight_decay: float | None = None,
        init_scale: float | None = None,
        storage: str | None = None,
        pooling: Pooling | None = None,
        padding_idx: int | None = None,
        scaler: Any = None,
        max_pending: int = 8,
        hub_wait_seconds: float = 600.0,
        timeout_seconds: float = 60.0,
    ) -> None:
        super().__init__()
        if pooling not in (None, "sum", "mean") or max_pending < 1:
            raise AttachError(
                f'pooling={pooling!r}, max_pending={max_pending} given; give "sum", "mean" or None, and at'
                " least 1"
            )
        options = {
            "optimizer": optimizer,
            "lr": lr,
            "weight_decay": weight_decay,
            "init_scale": init_scale,
            "storage": storage,
        }
        settings_of_tables = None if tables is None else _settings_by_table(tables, dim, options)
        self._pooling, self._padding_idx, self._scaler = pooling, padding_idx, scaler
        self._lr_scale = 1.0
        self._pid, self._is_over = os.getpid(), False
        self._dropped = 0
        # Not a parameter: nobody steps it. It makes autograd come to the rows.
        self._anchor = torch.empty(0, requires_grad=True)
        # What waits for messages cannot be compiled.
        self._outside_graphs = torch.compiler.disable(self._forward)  # type: ignore[no-untyped-call]
        address = hub_address(join, key)
        self._slot = find_hub(address, CLIENT, {}, timeout_seconds)
        try:
            self._connection = TablesConnection(
                self._slot.endpoint,
                settings_of_tables,
                max_pending=max_pending,
                timeout_seconds=timeout_seconds,
                wait_seconds=0.0 if address == ENV else hub_wait_seconds,
            )
        except BaseException:
            self._slot.withdraw()
            raise
        plan = self._connection.role.plan
        assert plan is not None
        self._router = ShardRouter(plan)
        self._tables = {table.name: table for table in plan.tables}

    @property
    def lr_scale(self) -> float:
        """Factor of the learning rates, as it was set."""
        return self._lr_scale

    @lr_scale.setter
    def lr_scale(self, scale: float) -> None:
        # Here: nodes refuse another one, and with it a backward pass that is already made.
        value = plain(scale, "Embeddings.lr_scale")
        if not isinstance(value, int | float) or not 0.0 <= value <= LARGEST_LR_SCALE:
            raise AttachError(
                f"{value!r} given",
                where="Embeddings.lr_scale",
                remedy=f"give a number from 0 to {LARGEST_LR_SCALE:g}",
            )
        self._lr_scale = float(value)

    @property
    def rows(self) -> dict[str, int]:
        """Number of rows by table."""
        return {name: table.rows for name, table in self._tables.items()}

    @property
    def dims(self) -> dict[str, int]:
        """Floats in a row by table."""
        return {name: table.dim for name, table in self._tables.items()}

    @overload
    def forward(self, ids: torch.Tensor) -> torch.Tensor: ...

    @overload
    def forward(self, ids: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]: ...

    def forward(
        self, ids: torch.Tensor | Mapping[str, torch.Tensor]
    ) -> torch.Tensor | dict[str, torch.Tensor]:
        """Return the vectors of ids, float32 on the device of the ids.

        `ids` are int64: those of the only table, or by the name of the table. The shape [batch] gives
        [batch, dim]; [batch, length] gives [batch, dim] with pooling, else [batch, length, dim]. Only without
        pooling may there be more dimensions. Waits for the nodes' answers.

        Raises AttachError for ids or tables that are not there, ClusterError once the nodes are gone.
        """
        vectors: torch.Tensor | dict[str, torch.Tensor] = self._outside_graphs(ids)
        return vectors

    def _forward(
        self, ids: torch.Tensor | Mapping[str, torch.Tensor]
    ) -> torch.Tensor | dict[str, torch.Tensor]:
        if isinstance(ids, Mapping):
            return self._look_up(ids)
        if len(self._tables) > 1:
            raise AttachError(
                f"one tensor given; there are {len(self._tables)} tables",
                remedy="give {NAME: ids}, with names among " + ", ".join(self._tables),
            )
        (name,) = self._tables
        return self._look_up({name: ids})[name]

    def vectors(self, table: str, rows: torch.Tensor | None = None) -> torch.Tensor:
        """Read rows as they are now, by default all of the table.

        The result is float32 [rows, dim] on the CPU. The gradients of this module are applied before. `rows`
        are int64 [rows].
        """
        settings = self._require_table(table)
        self.flush()
        all_rows = torch.arange(settings.rows) if rows is None else rows
        parts = []
        with torch.no_grad():
            for part in torch.split(all_rows, max(1, READ_FLOATS // settings.dim)):
                distinct = DistinctIds.of(settings, part, None)
                (fetched,) = self._fetch({table: distinct}, torch.device("cpu"))
                parts.append(fetched[distinct.places])
        return torch.cat(parts) if parts else torch.zeros(0, settings.dim)

    def state(self) -> dict[str, torch.Tensor]:
        """Read all rows of all tables; see `vectors`."""
        return {name: self.vectors(name) for name in self._tables}

    def flush(self) -> None:
        """Wait until the gradients of all backward passes so far are applied.

        Those that die with a hub that comes back are counted as lost.
        """
        self._require_here()
        self._connection.call(lambda rows: rows.flush())

    def metrics(self) -> dict[str, float]:
        """Return counts so far.

        `lookups` and `pushes` (applied; a lookup is counted once for each node), `pending_pushes`,
        `lost_pushes` (they died with a hub that came back, or were on their way to it), `dropped_pushes` (not
        finite, with a scaler), `resent_requests`, `sent_bytes`, `received_bytes`, and `shared_bytes` through
        memory that is shared with nodes of this machine.
        """
        role = self._connection.role
        counts = role.metrics()
        names = ("lookups", "pushes", "pending_pushes", "resent_requests", "sent_bytes", "received_bytes")
        figures = {name: float(counts.get(name, 0)) for name in (*names, "shared_bytes")}
        return figures | {"lost_pushes": float(role.lost), "dropped_pushes": float(self._dropped)}

    def close(self) -> None:
        """Wait until all gradients are applied, and leave; a second call does nothing.

        With "env://" rank 0 waits for the modules of the others, since it hosts the nodes. Raises
        ClusterError if gradients were lost with the nodes.
        """
        if self._is_over or os.getpid() != self._pid:
            return
        try:
            # It does not wait for a hub to come back, which would not have these gradients.
            self._connection.role.rows.flush()
        except RowsLost as error:
            raise self._connection.lost(self._connection.why_ended()[1]) from error
        finally:
            self._leave()
        self._slot.await_others()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.close()
        elif os.getpid() == self._pid and not self._is_over:
            # The user's exception is the one to see.
            self._leave()

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """Return the module itself: a copy of a model has the same rows."""
        return self

    def __getstate__(self) -> NoReturn:
        raise AttachError(
            "the rows are on embedding nodes, and cannot be written with a module",
            where="Embeddings",
            remedy="write state_dict() of the model, and state() of this module",
        )

    def extra_repr(self) -> str:
        """Return each table's rows and dim, for `print(module)`."""
        return ", ".join(f"{name}: {table.rows} x {table.dim}" for name, table in self._tables.items())

    def _look_up(self, ids: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        if not ids:
            return {}
        for name, table_ids in ids.items():
            self._require_bags(name, table_ids)
        distinct = {
            name: DistinctIds.of(self._require_table(name), table_ids, self._padding_idx)
            for name, table_ids in ids.items()
        }
        device = next(iter(ids.values())).device
        fetched = self._fetch(distinct, device)
        return {
            name: table_ids.spread(vectors, self._pooling)
            for (name, table_ids), vectors in zip(distinct.items(), fetched, strict=True)
        }

    def _fetch(self, distinct: Mapping[str, DistinctIds], device: torch.device) -> list[torch.Tensor]:
        """Return the vectors of distinct rows, float32 [N, dim], in the order of `distinct`."""
        self._require_here()
        none = np.zeros(0, np.int32)
        of_tables = [distinct[name].rows if name in distinct else none for name in self._tables]
        lengths = np.array([[len(rows)] for rows in of_tables], np.int32)
        plans = self._router.requests(_NO_SINGLE_ROWS, np.concatenate(of_tables), lengths)
        request = self._connection.call(lambda rows: rows.look_up(plans))
        made = self._router.assemble(request.requests, request.replies, device)
        fetched: Sequence[torch.Tensor] = made.embeddings
        if torch.is_grad_enabled():
            fetched = differentiable(made, self._anchor, lambda gradients: self._push(request, gradients))
        by_name = dict(zip(self._tables, fetched, strict=True))
        return [by_name[name][0] for name in distinct]

    def _push(self, request: TableRequest, gradients: Sequence[Float32Array]) -> None:
        self._require_here()
        if self._scaler is not None and (scale := float(self._scaler.get_scale())) != 1.0:
            gradients = [gradient / np.float32(scale) for gradient in gradients]
        if not all(np.isfinite(gradient.dot(gradient)) for gradient in gradients):
            if self._scaler is not None:
                self._dropped += 1
                return
            raise AttachError(
                "the gradients of rows are not finite, or enormous",
                where="Embeddings",
                remedy="lower the learning rates; with a GradScaler, give it as scaler",
            )
        # Rows that were read before a hub came back get their gradients there.
        self._connection.call(lambda rows: rows.push(request, gradients, self.lr_scale))

    def _leave(self) -> None:
        self._is_over = True
        self._connection.leave()
        self._slot.leave()

    def _require_bags(self, name: str, ids: torch.Tensor) -> None:
        if self._pooling is not None and isinstance(ids, torch.Tensor) and ids.dim() > DIMENSIONS_OF_BAGS:
            raise AttachError(
                f"ids of the shape {list(ids.shape)} given, and pooling={self._pooling!r} pools bags of the"
                " shape [batch, length]",
                where=f"table {name!r}",
                remedy="give ids.flatten(0, -2) and unflatten the vectors, or leave pooling out",
            )

    def _require_table(self, name: str) -> Any:
        if name not in self._tables:
            raise AttachError(
                f"there is no table {name!r}",
                where="Embeddings",
                remedy=f"give one of {', '.join(self._tables)}",
            )
        return self._tables[name]

    def _require_here(self) -> None:
        if os.getpid() != self._pid:
            raise AttachError(
                "this process was forked after the tables were joined",
                where="Embeddings",
                remedy="make the module in each process that trains, after it was started",
            )
        if self._is_over:
            raise AttachError("was closed", where="Embeddings")


def _settings_by_table(
    tables: Mapping[str, int], dim: int | Mapping[str, int], options: Mapping[str, object]
) -> dict[str, dict[str, object]]:
    """Return the settings that the hub must have, by table."""
    given_options = {key: value for key, value in options.items() if value is not None}
    rows, given_options = plain_mapping(tables, "tables"), plain_mapping(given_options, "Embeddings")
    dims = plain_mapping(dim if isinstance(dim, Mapping) else dict.fromkeys(rows, dim), "dim")
    if set(dims) != set(rows):
        raise AttachError(
            f"dims of {', '.join(sorted(dims))} given, and tables {', '.join(sorted(rows))}",
            where="dim",
            remedy="give one number, or one for each table",
        )
    return {name: {"rows": rows[name], "dim": dims[name], **given_options} for name in rows}
