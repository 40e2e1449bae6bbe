"""Markdown of text from elsewhere."""

from __future__ import annotations

from shadowsync.pipeline.text.markdown import markdown_table, plain


def test_text_from_elsewhere_stays_in_its_line_and_cell() -> None:
    assert plain("one\ntwo | three <script>") == r"one two \| three &lt;script>"
    assert markdown_table(("a", "b"), [("x|y", "1\n2")]) == ["| a | b |", "| --- | --- |", r"| x\|y | 1 2 |"]


def test_columns_of_figures_are_aligned() -> None:
    table = markdown_table(("name", "rows", "share"), [("a", "1", "2%")], align="lrr")
    assert table == ["| name | rows | share |", "| --- | ---: | ---: |", "| a | 1 | 2% |"]
