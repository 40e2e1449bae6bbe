"""The runs of a comparison, with a stand-in for the processes: order, failures, interrupts, going on."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from shadowsync.lab.comparison.plan import make_plan
from shadowsync.lab.comparison.record import Comparison, read_record
from shadowsync.lab.comparison.runner import run_comparison, write_all
from shadowsync.lab.comparison.variants import REFERENCE, parse_variants
from shadowsync.lab.job_process import JobProcess, last_line
from shadowsync.pipeline.config.job import Job
from shadowsync.pipeline.errors import ExitCode, JobFileError
from shadowsync.pipeline.jobfile.load import load_resolved
from shadowsync.pipeline.report.document import Report
from shadowsync.pipeline.report.run_folders.run_folder import create_run_folder

Ending = tuple[int, str, Report | None]


class Stand:
    """Answers for jobs by their algorithm; makes the run folders that jobs would have made."""

    def __init__(self, endings: dict[str, Ending]) -> None:
        self.endings = endings
        self.made: list[str] = []
        self.interrupt_at = 0

    def run(self, process: JobProcess, job_file: Path, log: Path) -> tuple[int, str]:
        del log
        job = load_resolved(job_file)
        name = f"{job.sync.algorithm if job.trainer.count > 1 else 'one trainer'}"
        self.made.append(f"{name}/{job.run.seed}")
        if len(self.made) == self.interrupt_at:
            create_run_folder(Path(job.run.directory), job.run.name)
            process.interrupts = 1
            return 130, "interrupted"
        code, message, report = self.endings[name]
        if report is not None:
            folder = create_run_folder(Path(job.run.directory), job.run.name)
            (folder / "report.json").write_text(report.model_dump_json(), encoding="utf-8")
            (folder.parent / "latest").unlink(missing_ok=True)
            (folder.parent / "latest").symlink_to(folder.name)
        return code, message


@pytest.fixture
def good(make_report: Callable[..., Report]) -> dict[str, Ending]:
    """Every run ends well."""
    return {name: (0, "", make_report()) for name in ("one trainer", "none", "easgd")}


@pytest.fixture
def comparison(base: Job, tmp_path: Path) -> tuple[Path, Comparison]:
    """Six runs, none of them made."""
    folder = tmp_path / "c"
    folder.mkdir()
    return folder, make_plan(base, parse_variants("none,easgd"), 2, folder)


@pytest.fixture
def stand(monkeypatch: pytest.MonkeyPatch, good: dict[str, Ending]) -> Stand:
    """Instead of the processes."""
    own = Stand(good)
    monkeypatch.setattr(JobProcess, "run", lambda process, job_file, log: own.run(process, job_file, log))
    return own


def test_all_runs_are_made_in_their_order(comparison: tuple[Path, Comparison], stand: Stand) -> None:
    folder, whole = comparison
    said: list[str] = []
    assert run_comparison(folder, whole, said.append) == ExitCode.OK
    assert stand.made == ["one trainer/4", "none/4", "easgd/4", "one trainer/5", "easgd/5", "none/5"]
    assert len(said) == 6
    line = re.escape("    3/6  easgd, seed 4: NE 0.8000, 1,000 examples/s, 5 rounds")
    # The time of writing its files, too.
    assert re.fullmatch(rf"{line} \(\d+ s\)", said[2])
    found = read_record(folder)
    assert found.complete
    assert [run.folder for run in found.runs] == [f"runs/{run.name}" for run in found.runs]
    assert {row["label"]: row["ne"] for row in found.summary}["easgd"] == 0.8
    assert {path.name for path in folder.glob("compare.*")} == {"compare.json", "compare.md"}
    shown = re.findall(r"\]\((.+\.png)\)", (folder / "compare.md").read_text(encoding="utf-8"))
    assert len(shown) == 5
    assert {path.name for path in folder.glob("*.png")} == set(shown)


def test_a_run_that_fails_does_not_stop_the_others(comparison: tuple[Path, Comparison], stand: Stand) -> None:
    folder, whole = comparison
    stand.endings["none"] = (8, "out of memory", None)
    said: list[str] = []
    assert run_comparison(folder, whole, said.append) == ExitCode.FINISHED_WITH_DEATHS
    assert len(stand.made) == 6
    assert said[1] == "    2/6  none, seed 4: FAILED with exit code 8: out of memory"
    found = read_record(folder)
    assert found.complete
    assert [(run.status, run.message) for run in found.of("none")] == [("failed", "out of memory")] * 2
    assert all(run.figures is not None for run in found.of("easgd"))


@pytest.mark.parametrize(
    ("code", "adds_up", "status", "exit_code"),
    [
        (5, True, "finished", ExitCode.FINISHED_WITH_DEATHS),
        (7, False, "finished", ExitCode.LEDGER),
        # A report of a part of the training is no figure to compare.
        (6, True, "failed", ExitCode.FINISHED_WITH_DEATHS),
        (130, True, "failed", ExitCode.FINISHED_WITH_DEATHS),
        (-9, True, "failed", ExitCode.FINISHED_WITH_DEATHS),
    ],
)
def test_how_a_run_ended_decides_what_its_report_is_worth(
    comparison: tuple[Path, Comparison],
    stand: Stand,
    make_report: Callable[..., Report],
    code: int,
    adds_up: bool,
    status: str,
    exit_code: ExitCode,
) -> None:
    folder, whole = comparison
    stand.endings["easgd"] = (code, "said", make_report(adds_up=adds_up))
    assert run_comparison(folder, whole, print) == exit_code
    for run in read_record(folder).of("easgd"):
        assert (run.status, run.figures is not None) == (status, status == "finished")
        assert run.exit_code == (137 if code == -9 else code)


def test_an_interrupted_comparison_goes_on_where_it_stopped(
    comparison: tuple[Path, Comparison], stand: Stand
) -> None:
    folder, whole = comparison
    stand.endings["none"] = (8, "out of memory", None)
    stand.interrupt_at = 4
    assert run_comparison(folder, whole, print) == ExitCode.INTERRUPTED
    found = read_record(folder)
    assert [run.status for run in found.runs] == ["finished", "failed", "finished"] + 3 * ["waiting"]
    assert not found.complete
    assert "INCOMPLETE: 3 of 6 runs" in (folder / "compare.md").read_text(encoding="utf-8")
    stand.made.clear()
    stand.interrupt_at = 0
    stand.endings["none"] = stand.endings["easgd"]
    assert run_comparison(folder, found, print) == ExitCode.OK
    assert stand.made == ["none/4", "one trainer/5", "easgd/5", "none/5"], "also what failed"
    # The run that was interrupted has left a folder; its figures are those of the next.
    one = found.runs[3]
    assert one.folder == f"runs/{one.name}-2"
    assert "INCOMPLETE" not in (folder / "compare.md").read_text(encoding="utf-8")


def test_a_folder_that_is_no_comparison(tmp_path: Path) -> None:
    with pytest.raises(JobFileError, match=r"compare\.json: cannot be read"):
        read_record(tmp_path)
    (tmp_path / "compare.json").write_text('{"format_version": 1}', encoding="utf-8")
    with pytest.raises(JobFileError, match="is not a comparison"):
        read_record(tmp_path)


def test_the_last_word_of_a_run(tmp_path: Path) -> None:
    log = tmp_path / "log.txt"
    log.write_bytes(b"a line\nshadowsync run: \xff went wrong\n\n  \n")
    assert last_line(log) == "\N{REPLACEMENT CHARACTER} went wrong"
    log.write_bytes(b"")
    assert last_line(log) == ""


def test_the_file_has_the_keys_of_before(comparison: tuple[Path, Comparison]) -> None:
    """Folders that were written when a variant was called a cell can be resumed, and the other way around."""
    folder, planned = comparison
    write_all(folder, planned)
    tree = json.loads((folder / "compare.json").read_bytes())
    assert [variant["label"] for variant in tree["cells"]] == [REFERENCE, "none", "easgd"]
    assert [row["cell"]["label"] for row in tree["summary"]] == [REFERENCE, "none", "easgd"]
    assert not {"variants", "variant"} & {*tree, *tree["summary"][0]}
    assert read_record(folder) == planned
