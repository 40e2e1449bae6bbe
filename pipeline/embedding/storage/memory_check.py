"""Whether a node's rows fit into its memory."""

from __future__ import annotations

from ...config.row_bytes import STORAGE_BYTES
from ...errors import ResourceError
from ...performance.memory import available_memory_bytes
from ...text.format import data_size
from ..placement.plan import TablePlan


def check_memory(plan: TablePlan, node: int, fraction: float) -> None:
    """Raise ResourceError if a node's rows need more than `fraction` of the free memory."""
    pieces = [(plan.tables[piece.table], len(piece)) for piece in plan.pieces_of(node)]
    rows = sum(count for _, count in pieces)
    needed = sum(count * table.row_bytes for table, count in pieces)
    weights_bytes = sum(count * table.dim * STORAGE_BYTES[table.storage] for table, count in pieces)
    available = available_memory_bytes()
    allowed = int(available * fraction)
    if needed > allowed:
        widths = _describe_range({table.dim for table, _ in pieces})
        sizes = _describe_range({STORAGE_BYTES[table.storage] for table, _ in pieces})
        growing = any(table.growth is not None for table, _ in pieces)
        wide = any(table.storage == "float32" for table, _ in pieces)
        beside = "optimizer state and search for ids" if growing else "optimizer state"
        narrower = 'set embedding.storage = "bfloat16", ' if wide else ""
        raise ResourceError(
            f"the tables need {data_size(needed)} ({rows:,} rows x {widths} x {sizes} bytes = "
            f"{data_size(weights_bytes)}, and {data_size(needed - weights_bytes)} of {beside}), but "
            f"only {data_size(allowed)} may be used: {fraction:g} (embedding.memory_fraction) of the "
            f"{data_size(available)} available",
            where=f"embedding node {node}",
            remedy=f"raise embedding.nodes on more hosts, {narrower}or lower model.table_rows or "
            "model.embedding_dim",
        )


def _describe_range(numbers: set[int]) -> str:
    return str(min(numbers)) if len(numbers) == 1 else f"{min(numbers)} to {max(numbers)}"
