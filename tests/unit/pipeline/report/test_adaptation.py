"""Which codecs the links had: from a trainer's counts to every report."""

from __future__ import annotations

from shadowsync.pipeline.report.adaptation import LinkChoice, choice_counts, choices_of
from shadowsync.pipeline.report.markdown import render_markdown
from shadowsync.pipeline.report.model import Report
from shadowsync.pipeline.report.quality_warnings import link_warnings
from shadowsync.tests.unit.pipeline.report.conftest import on_terminal

EXCHANGES = {"float32": 5, "bfloat16": 0, "int8": 1095}
SLOW = LinkChoice(
    trainer="trainer-1",
    node="sync-0",
    exchanges={"float32": 5, "int8": 1095},
    codec="int8",
    bytes_per_second=1_250_000,
    fits=False,
)
NEW = LinkChoice(
    trainer="trainer-1", node="sync-1", exchanges={}, codec="float32", bytes_per_second=None, fits=True
)


def test_what_a_trainer_tells_is_what_the_report_has() -> None:
    counts = choice_counts("sync-0", EXCHANGES, "int8", 1_249_999.7, fits=False)
    counts |= choice_counts("sync-1", dict.fromkeys(EXCHANGES, 0), "float32", None, fits=True)
    # A heartbeat takes no truth value for a number.
    assert {type(count) for count in counts.values()} == {int}
    assert choices_of("trainer-1", {"rounds": 3, "to/sync-0": 7, **counts}) == [SLOW, NEW]
    assert choices_of("trainer-1", {"rounds": 3, "to/sync-0": 7}) == []


def test_links_that_are_too_slow_are_warned_of() -> None:
    assert link_warnings([]) == link_warnings([NEW]) == []
    (text,) = link_warnings([NEW, SLOW])
    assert text.startswith("At the end the link from trainer-1 to sync-0 was too slow: an exchange by int8")
    assert "Raise the link's bandwidth, or sync.nodes" in text
    (text,) = link_warnings([SLOW, NEW, SLOW, SLOW])
    assert text.startswith("At the end the link from trainer-1 to sync-0 and 2 others was too slow")


def test_the_codecs_of_links_stand_in_every_report(full_report: Report) -> None:
    said = "Codecs of the links to sync nodes"
    assert said not in render_markdown(full_report) + on_terminal(full_report)
    sync = full_report.sync.model_copy(update={"link_codecs": [SLOW, NEW]})
    report = full_report.model_copy(update={"sync": sync})
    page = render_markdown(report)
    assert f"## {said}\n" in page
    assert "| trainer-1 | sync-0 | int8 | 5 | 0 | 1,095 | 1.25 MB/s | no |" in page
    assert "| trainer-1 | sync-1 | float32 | 0 | 0 | 0 | not measured | yes |" in page
    summary = f"{said}: 1 float32, 1 int8 at the end; 0% of all exchanges were float32."
    assert summary in " ".join(on_terminal(report).split())
    assert Report.model_validate_json(report.model_dump_json()) == report
