"""A profile on paper and on the terminal, and read back."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from pydantic import ValidationError
from rich.console import Console
from shadowsync.pipeline.performance.document import Profile, TraceNote, read_profile
from shadowsync.pipeline.performance.render import print_profile, render_profile, write_profile
from shadowsync.tests.support.jobs.profile_measurements import measured, node

TRACE = TraceNote(seconds=1.0, events=3, clock_error_seconds=0.0)
WAITING = {
    "compute_seconds": 8.0,
    "compute_cpu_seconds": 8.0,
    "wait_for_vectors_seconds": 11.0,
    "to/embedding-0": 50e6,
    "from/embedding-0": 40e6,
    "round_trips": 100.0,
    "round_trip_seconds": 0.9,
}
BUSY = node(
    "embedding", {"busy_seconds": 9.5, "handled_messages": 1000.0, "handled_seconds": 4.0}, stalled_share=0.07
)


@pytest.fixture
def profile() -> Profile:
    return Profile.of(measured(WAITING, embedding=BUSY), ["The input ended | early."], TRACE)


def test_paper_says_the_answer_first(profile: Profile) -> None:
    text = render_profile(profile)
    lines = text.splitlines()
    assert lines[0] == "# Profile of planted"
    assert lines[2].startswith("**The bottleneck is the embedding nodes: workers wait 5")
    assert "5,120 examples/s" in text
    assert "took 9 ms, 4 ms of it in the node's socket thread" in text
    assert "at most 5.00 MB/s one way, between trainer-0 and embedding-0" in text
    assert "| trainer-0 | embedding-0 | 5.00 MB/s | 4.00 MB/s |" in text
    assert "was stopped 7%" in text
    assert "perfetto" in text


def test_the_terminal_says_the_same(profile: Profile) -> None:
    out = io.StringIO()
    print_profile(profile, Console(file=out, width=100))
    text = out.getvalue()
    assert text.startswith("The bottleneck is the embedding nodes")
    assert "\x1b" not in text
    assert all(len(line) <= 100 for line in text.splitlines())
    joined = " ".join(text.split())
    for reason in profile.verdict.reasons:
        assert reason in joined
    assert "waiting for synchronization" not in joined, "what took no time is left out"


def test_a_profile_is_read_back_and_another_file_refused(profile: Profile, tmp_path: Path) -> None:
    write_profile(tmp_path, profile, [{"name": "compute", "ph": "X"}])
    assert read_profile(tmp_path / "profile.json") == profile
    trace = json.loads((tmp_path / "trace.json").read_text("utf-8"))
    assert trace["traceEvents"] == [{"name": "compute", "ph": "X"}]
    assert (tmp_path / "profile.png").read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / "profile.md").read_text("utf-8") == render_profile(profile)
    with pytest.raises(ValidationError):
        read_profile(tmp_path / "trace.json")


def test_a_profile_with_another_key_is_refused(profile: Profile, tmp_path: Path) -> None:
    write_profile(tmp_path, profile, [])
    tree = json.loads((tmp_path / "profile.json").read_text("utf-8"))
    tree["measured"]["another"] = 1
    (tmp_path / "profile.json").write_text(json.dumps(tree), "utf-8")
    with pytest.raises(ValidationError):
        read_profile(tmp_path / "profile.json")


def test_without_a_trace_none_is_written(profile: Profile, tmp_path: Path) -> None:
    write_profile(tmp_path, profile.model_copy(update={"trace": None}), [])
    assert not (tmp_path / "trace.json").exists()
    assert "perfetto" not in (tmp_path / "profile.md").read_text("utf-8")
