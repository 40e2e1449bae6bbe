"""The histories of the example: what a user liked before a rating, and nothing of it or later."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest
import shadowsync

if not (Path(shadowsync.__file__).resolve().parent / "examples").is_dir():
    pytest.skip("an installed package has no examples beside it", allow_module_level=True)

from shadowsync.examples.histories.histories import LONGEST, read_ratings, with_histories


def test_a_history_has_the_films_liked_before() -> None:
    ratings = pl.DataFrame(
        {
            "user_id": [1, 1, 2, 1, 1, 2],
            "item_id": [10, 11, 10, 12, 13, 14],
            "rating": [5, 3, 4, 4, 1, 5],
            "timestamp": [1, 2, 2, 4, 5, 3],
        }
    )
    made = with_histories(ratings).select("user_id", "item_id", "history", "liked").rows()
    assert made == [
        (1, 10, [], 1),
        (1, 11, [10], 0),
        (2, 10, [], 1),
        (2, 14, [10], 1),
        (1, 12, [10], 1),
        (1, 13, [12, 10], 0),
    ]


def test_a_history_has_at_most_so_many_films() -> None:
    count = LONGEST + 5
    ratings = pl.DataFrame(
        {
            "user_id": [1] * count,
            "item_id": list(range(count)),
            "rating": [5] * count,
            "timestamp": list(range(count)),
        }
    )
    assert with_histories(ratings)["history"].to_list()[-1] == list(range(count - 2, count - 2 - LONGEST, -1))


@pytest.mark.parametrize("header", ["", "user_id:token\titem_id:token\trating:float\ttimestamp:float\n"])
def test_both_forms_of_the_file_are_read(tmp_path: Path, header: str) -> None:
    path = tmp_path / "ratings"
    path.write_text(f"{header}196\t242\t3\t881250949\n186\t302\t4\t891717742\n", encoding="utf-8")
    read = read_ratings(path)
    assert read.select("user_id", "item_id", "timestamp").rows() == [
        (196, 242, 881250949),
        (186, 302, 891717742),
    ]
    assert read["rating"].to_list() == [3, 4]
