"""Where records lie in a file: which rows have one, and side by side."""

from __future__ import annotations

import numpy as np
import pytest
from shadowsync.pipeline.embedding.storage.on_disk.row_cache import ABSENT
from shadowsync.pipeline.embedding.storage.on_disk.row_slots import FixedSlots, MovingSlots
from shadowsync.pipeline.types import Int32Array

ROWS = 2_000


def numbers(*rows: int) -> Int32Array:
    return np.array(rows, np.int32)


@pytest.mark.parametrize("kind", [FixedSlots, MovingSlots])
def test_each_row_has_a_slot_of_its_own(kind: type[FixedSlots | MovingSlots]) -> None:
    """After any calls, as a dictionary knows them."""
    draw, slots, known = np.random.default_rng(1), kind(ROWS), dict[int, int]()
    every = np.arange(ROWS, dtype=np.int32)
    for _ in range(100):
        rows = draw.permutation(ROWS)[: draw.integers(0, ROWS // 4)].astype(np.int32)
        call = draw.choice(["place", "move", "free"])
        if call == "free":
            slots.free(rows)
            for row in rows.tolist():
                known.pop(row, None)
        else:
            given = getattr(slots, call)(rows).tolist()
            if call == "place":
                assert all(
                    known.get(row, slot) == slot for row, slot in zip(rows.tolist(), given, strict=True)
                )
            known.update(zip(rows.tolist(), given, strict=True))
        assert slots.find(every).tolist() == [known.get(row, ABSENT) for row in range(ROWS)]
        assert slots.count == len(known) == len(set(known.values()))
        assert all(0 <= slot < len(slots) for slot in known.values())


def test_all_rows_find_room_however_often_they_move() -> None:
    slots, every = MovingSlots(ROWS), np.arange(ROWS, dtype=np.int32)
    for _ in range(5):
        assert len(set(slots.move(every).tolist())) == ROWS


def pieces_written(slots: FixedSlots | MovingSlots) -> list[int]:
    """Of each batch, in how many pieces its rows are written: new ones, and a few old ones again.

    A row that is free is any one, as in a table whose ids come and go.
    """
    draw, most, new, old = np.random.default_rng(1), ROWS - 200, 100, 20
    used: list[int] = []
    free = draw.permutation(ROWS).tolist()
    pieces = []
    for _ in range(150):
        again = draw.choice(used, old, replace=False).tolist() if len(used) > old else []
        used = [row for row in used if row not in set(again)]
        begun = [free.pop() for _ in range(new)]
        written = np.sort(slots.move(numbers(*again, *begun)))
        pieces.append(1 + int((np.diff(written) != 1).sum()))
        used += again + begun
        if len(used) > most:
            lost, used = used[:200], used[200:]
            slots.free(numbers(*lost))
            free = draw.permutation(free + lost).tolist()
    return pieces


def test_rows_that_are_written_together_lie_together() -> None:
    """Also when the file has been gone through several times."""
    assert max(pieces_written(MovingSlots(ROWS))[-75:]) <= 3
    # The control: a piece for nearly every row.
    assert min(pieces_written(FixedSlots(ROWS))[-75:]) > 100


def test_without_spare_slots_they_would_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shadowsync.pipeline.embedding.storage.on_disk.row_slots.SPARE", 1.0)
    assert np.mean(pieces_written(MovingSlots(ROWS))[-75:]) > 20
