"""A plan of a job from its profile, and what is refused."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from rich.console import Console
from shadowsync.cli import main
from shadowsync.lab.capacity.demands import demands_of
from shadowsync.lab.capacity.document import REMEDIES, CapacityPlan
from shadowsync.lab.capacity.machine import Machine, parse_machine, parse_price
from shadowsync.lab.capacity.plan_job import plan_job
from shadowsync.lab.capacity.render import print_plan
from shadowsync.pipeline.config.job import Job
from shadowsync.pipeline.errors import DataError, JobFileError, ResourceError
from shadowsync.pipeline.jobfile.load import load_job
from shadowsync.pipeline.performance.document import Profile
from shadowsync.pipeline.performance.plan_basis import PlanBasis
from shadowsync.pipeline.text.format import parse_rate
from shadowsync.tests.support.coordinator.capacity import GIB, profile_of

JOB = '[data]\nformat = "parquet"\npath = "train.parquet"\n'


@pytest.fixture
def job() -> Job:
    return Job.model_validate({"data": {"format": "parquet", "path": ["/x"]}})


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a job file, and one with a profile of that job."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "job.toml").write_text(JOB, encoding="utf-8")
    (tmp_path / "run").mkdir()
    profile = profile_of(load_job("job.toml"))
    (tmp_path / "run" / "profile.json").write_text(profile.model_dump_json(), encoding="utf-8")
    return tmp_path / "run"


def basis_of(job: Job) -> PlanBasis:
    return PlanBasis.of(job, int(16 * GIB))


def with_nodes(profile: Profile, nodes: list[Any]) -> Profile:
    return profile.model_copy(update={"measured": profile.measured.model_copy(update={"nodes": nodes})})


def test_costs_of_an_example_come_from_the_profile(job: Job) -> None:
    found = demands_of(profile_of(job), basis_of(job), "here")
    assert found.step_seconds == pytest.approx(17.0 / 400_000 * 512)
    assert found.trainer_seconds == pytest.approx(18.0 / 400_000), "without the rounds"
    assert found.locked_seconds == pytest.approx(1.0 / (400_000 / 512)), "a tenth of ten seconds, 781 steps"
    assert found.parser_seconds == pytest.approx(0.8 / 400_000)
    assert found.shard_seconds == pytest.approx(1.6 / 400_000)
    assert found.coordinator_seconds == pytest.approx(0.2 / 400_000)
    assert [found.round_cpu_seconds, found.shadow_seconds] == pytest.approx([0.002, 0.003])
    assert found.round_seconds == pytest.approx(0.004), "5 ms, less 1 ms of the center"
    assert found.round_sent_bytes == pytest.approx(2e6)
    assert [found.pushed_bytes, found.looked_up_bytes] == pytest.approx([700.0, 510.0])
    assert found.embedding_bytes == pytest.approx(max(0.0, 4e8 - basis_of(job).rows_bytes))


def test_a_plan_says_what_to_set_and_what_to_expect(run: Path) -> None:
    job = load_job("job.toml")
    found = plan_job(job, run, machines=4, machine_text="cores=2,memory=32GiB,nic=10gbit", price_text="1.2/h")
    assert CapacityPlan.model_validate_json(found.model_dump_json()) == found
    assert found.machines == 4
    assert sum(row.machines for row in found.layout) == 4
    for key, role in (
        ("trainer.count", "trainer"),
        ("embedding.nodes", "embedding"),
        ("data.readers", "reader"),
    ):
        assert sum(row.machines * row.nodes.get(role, 0) for row in found.layout) == found.settings[key]
    assert [limit.examples_per_second for limit in found.limits] == sorted(
        limit.examples_per_second for limit in found.limits
    )
    assert (found.bottleneck, found.runner_up) == (found.limits[0].name, found.limits[1].name)
    assert {limit.name for limit in found.limits} <= REMEDIES.keys()
    assert found.price_an_hour == pytest.approx(4.8)
    assert found.price_of_a_million == pytest.approx(4.8 / 3600 / found.examples_per_second * 1e6)
    assert found.sync_gap is not None
    said = io.StringIO()
    print_plan(found, Console(file=said, width=100))
    assert f"trainer.count = {found.settings['trainer.count']}" in said.getvalue()
    assert 'sync.algorithm = "easgd"' in said.getvalue()
    assert f"The bottleneck will be: {found.bottleneck}" in said.getvalue()
    assert "4.8 an hour" in said.getvalue()


def test_half_as_fast_cores_need_twice_the_machines(job: Job, tmp_path: Path) -> None:
    """The control: demands of another machine give another plan."""
    profile = profile_of(job)
    nodes = [
        node.model_copy(
            update={
                "cpu_seconds": 2 * node.cpu_seconds,
                "threads": {
                    name: time.model_copy(update={"cpu_seconds": 2 * time.cpu_seconds})
                    for name, time in node.threads.items()
                },
            }
        )
        for node in profile.measured.nodes
    ]
    rates = []
    for number, one in enumerate((profile, with_nodes(profile, nodes))):
        path = tmp_path / f"{number}.json"
        path.write_text(one.model_dump_json(), encoding="utf-8")
        rates.append(plan_job(job, path, machines=2, machine_text="cores=2").examples_per_second)
    assert rates[1] == pytest.approx(rates[0] / 2, rel=0.05)


def test_of_the_command(run: Path) -> None:
    arguments = ["plan", "job.toml", "--profile", str(run)]
    result = CliRunner().invoke(main, [*arguments, "--machines", "2", "--json"])
    assert result.exit_code == 0, result.stderr
    assert json.loads(result.stdout)["machines"] == 2
    shown = CliRunner().invoke(main, [*arguments, "--target", "100k/s"])
    assert "The bottleneck will be" in shown.stdout
    both = CliRunner().invoke(main, [*arguments, "--machines", "2", "--target", "1M/s"])
    assert (both.exit_code, "one of --machines and --target" in both.stderr) == (2, True)


SEVERAL = ["trainer.count=7", "embedding.nodes=3", "sync.duty=0.05"]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (["model.embedding_dim=8"], r"profile\.json: the profile is of another model \(digest"),
        (["trainer.batch=64"], r"trainer\.batch = 512, and the job has 64"),
        (['sync.mode="fixed"'], r"made without sync\.every, and the job has 30, which"),
        (["embedding.memory_bytes=10000"], r"made without embedding\.memory_bytes, and the job has 10000"),
        (["tables.C1.memory_bytes=10000"], r"made without tables\.C1\.memory_bytes, and the job has"),
        (SEVERAL, r"sync\.algorithm = easgd, and the job has bmuf"),
    ],
)
def test_a_profile_of_another_job_is_refused(run: Path, changes: list[str], said: str) -> None:
    with pytest.raises(JobFileError, match=said):
        plan_job(load_job("job.toml", changes), run, machines=1)


def test_a_profile_of_a_setting_that_the_job_has_not_is_refused(run: Path) -> None:
    made_fixed = profile_of(load_job("job.toml", ['sync.mode="fixed"'])).model_dump_json()
    (run / "profile.json").write_text(made_fixed, encoding="utf-8")
    with pytest.raises(JobFileError, match=r"made with sync\.every = 30, and the job has none, which"):
        plan_job(load_job("job.toml"), run, machines=1)


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param(["embedding.memory_bytes=1TiB"], id="nothing lies on disk"),
        pytest.param([*SEVERAL, "sync.algorithm=easgd"], id="these are planned or followed"),
    ],
)
def test_a_job_that_differs_in_what_costs_nothing_is_planned(run: Path, changes: list[str]) -> None:
    assert plan_job(load_job("job.toml", changes), run, machines=1).machines == 1


def test_a_profile_that_is_none_or_lacks_something_is_refused(job: Job, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"there is no profile; make one: shadowsync profile JOB\.toml"):
        plan_job(job, tmp_path, machines=1)
    (tmp_path / "profile.json").write_text("{", encoding="utf-8")
    with pytest.raises(DataError, match=r"the profile cannot be read \(ValidationError\)"):
        plan_job(job, tmp_path, machines=1)
    profile = profile_of(job)
    silent = [node.model_copy(update={"threads": {}}) for node in profile.measured.nodes]
    with pytest.raises(DataError, match=r"no CPU times of the workers' threads"):
        demands_of(with_nodes(profile, silent), basis_of(job), "here")
    few = [node for node in profile.measured.nodes if node.role != "reader"]
    with pytest.raises(DataError, match=r"^here: the profile has no reader; profile for longer"):
        demands_of(with_nodes(profile, few), basis_of(job), "here")


def test_too_little_memory_is_refused_with_what_is_needed(run: Path) -> None:
    with pytest.raises(ResourceError, match=r"cannot hold it; give more machines, or machines with more"):
        plan_job(load_job("job.toml"), run, machines=1, machine_text="memory=100MiB")


def test_machines_are_parsed(job: Job) -> None:
    basis = basis_of(job)
    assert parse_machine(None, 4, basis) == Machine(4, float(int(16 * GIB)))
    text = "cores=16, memory=64GiB,nic=25gbit,delay=2s"
    assert parse_machine(text, 4, basis) == Machine(16, 64 * GIB, 25e9 / 8, 2.0)
    assert parse_machine("memory=500MB", 4, basis) == Machine(4, 5e8)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "'' is not one KEY=VALUE"),
        ("cores", "'cores' is not one KEY=VALUE"),
        ("gpus=1", "'gpus=1' is not one KEY=VALUE of cores, memory, nic, delay"),
        ("cores=2,cores=3", "'cores=3' is not one KEY=VALUE"),
        ("cores=0", "cores='0' given; write a number from 1"),
        ("cores=2.5", "cores='2.5' given"),
        ("memory=64", "memory='64' given; write a size and its unit"),
        ("memory=1KiB", "memory='1KiB' given; at least 1MiB"),
        ("nic=25", "'25' given; write a number and its unit"),
        ("delay=fast", "'fast' given; write a number and its unit"),
    ],
)
def test_a_malformed_machine_is_refused(job: Job, text: str, said: str) -> None:
    with pytest.raises(JobFileError) as refused:
        parse_machine(text, 4, basis_of(job))
    assert said in str(refused.value)
    assert refused.value.remedy.startswith("write --machine cores=16")


def test_targets_and_prices() -> None:
    assert [parse_rate(text) for text in ("1M/s", "250k/s", "1.5m", "5000")] == [1e6, 25e4, 1.5e6, 5e3]
    assert parse_price("1.2/h") == pytest.approx(1.2 / 3600)
    for text in ("fast", "0/s", "-1M/s", "1G/s"):
        with pytest.raises(JobFileError, match="--target"):
            parse_rate(text)
    with pytest.raises(JobFileError, match="--price"):
        parse_price("1.2")
