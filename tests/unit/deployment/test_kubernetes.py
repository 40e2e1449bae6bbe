"""A job as Kubernetes manifests: accepted by the published schemas, and by the nodes' own commands."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import kubernetes_validate
import pytest
import yaml
from click.testing import CliRunner
from kubeflow_trainer_api.models import JobsetV1alpha2JobSet
from shadowsync.cli import main
from shadowsync.deployment.job_nodes import nodes_of
from shadowsync.deployment.kubernetes import (
    JOB_FILE,
    coordinator_host,
    kubernetes_manifests,
    require_name,
)
from shadowsync.pipeline.config.job import Job
from shadowsync.pipeline.errors import ExitCode, JobFileError
from shadowsync.pipeline.jobfile.load import load_resolved, validate_job
from shadowsync.tests.support.deployed import OPTIONS, VERSIONS, job_of
from shadowsync.tests.support.parsed import parsed


def indexed_jobs(manifests: list[dict[str, Any]]) -> Iterator[tuple[str, dict[str, Any]]]:
    for one in manifests[1]["spec"]["replicatedJobs"]:
        yield one["name"], one["template"]["spec"]


def containers(manifests: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return {role: spec["template"]["spec"]["containers"][0] for role, spec in indexed_jobs(manifests)}


def check_schema(manifest: dict[str, Any]) -> None:
    for version in VERSIONS:
        kubernetes_validate.validate(manifest, version, strict=True)


@pytest.mark.parametrize("gpu", [False, True])
def test_the_published_schemas_accept_it(gpu: bool) -> None:
    job = job_of(trainer={"device": "cuda"}) if gpu else job_of()
    manifests = kubernetes_manifests(job, OPTIONS)
    config, job_set = manifests
    check_schema(config)
    for role, spec in indexed_jobs(manifests):
        whole: dict[str, Any] = {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "metadata": {"name": role},
            "spec": spec,
        }
        check_schema(whole)
        # The control: a key that there is not.
        wrong = copy.deepcopy(whole)
        wrong["spec"]["template"]["spec"]["containers"][0]["imagePullPolice"] = "Always"
        with pytest.raises(kubernetes_validate.ValidationError):
            check_schema(wrong)
    parsed = JobsetV1alpha2JobSet.from_dict(job_set)
    assert parsed is not None
    assert parsed.to_dict() == job_set
    wrong = copy.deepcopy(job_set)
    wrong["spec"]["successPolice"] = {}
    unknown = JobsetV1alpha2JobSet.from_dict(wrong)
    assert unknown is not None
    assert unknown.to_dict() != wrong
    limits = containers(manifests)["trainer"]["resources"].get("limits", {})
    assert limits == ({"nvidia.com/gpu": 1} if gpu else {})


def test_every_pod_has_a_command_of_shadowsync() -> None:
    """The commands' own parsers take the arguments, and nodes join where the coordinator listens."""
    host = coordinator_host(OPTIONS.name)
    for role, container in containers(kubernetes_manifests(job_of(), OPTIONS)).items():
        own, *arguments = container["args"]
        assert own == role
        given = parsed(role, *arguments)
        assert given["job_file"] == JOB_FILE
        assert given["exit_zero_on"] == (ExitCode.FINISHED_WITH_DEATHS,)
        if role == "coordinator":
            assert (given["bind"], given["advertise"], given["restartable"]) == ("0.0.0.0:5555", host, True)
        else:
            assert given["join"] == f"tcp://{host}:5555"
        with pytest.raises(click.UsageError):
            parsed(role, *arguments, "--advertice", "x")


def test_the_pods_have_the_job_and_what_it_says() -> None:
    job = job_of()
    config, _ = manifests = kubernetes_manifests(job, OPTIONS)
    tree = json.loads(config["data"]["job.json"])
    assert validate_job(tree, where="test") == job.model_copy(
        update={"run": job.run.model_copy(update={"directory": "/runs"})}
    )
    counts = {role: spec["completions"] for role, spec in indexed_jobs(manifests)}
    assert counts == {"coordinator": 1, "reader": 2, "trainer": 3, "embedding": 2, "sync": 1}
    found = containers(manifests)
    assert {role: container["image"] for role, container in found.items()} == {
        "coordinator": "registry/control:1",
        "reader": "registry/control:1",
        **dict.fromkeys(("trainer", "embedding", "sync"), "registry/shadowsync:1"),
    }
    assert {role: container["resources"]["requests"]["cpu"] for role, container in found.items()} == {
        "coordinator": "1", "reader": "1", "trainer": "3", "embedding": "4", "sync": "1",
    }  # fmt: skip
    mounts = {role: {one["name"] for one in container["volumeMounts"]} for role, container in found.items()}
    assert mounts["reader"] == mounts["coordinator"] == {"job", "key", "runs", "data"}
    assert mounts["trainer"] == {"job", "key", "runs"}
    assert manifests[1]["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "nightly"


def test_an_embedding_node_asks_for_the_memory_of_its_rows() -> None:
    def memory(rows: int, nodes: int) -> int:
        job = job_of(model={"table_rows": rows, "embedding_dim": 64}, embedding={"nodes": nodes})
        (found,) = (one.memory_bytes for one in nodes_of(job) if one.role == "embedding")
        return found

    rows_bytes = 26 * 1_000_000 * 4 * (64 + 1)
    assert memory(1_000_000, 1) > rows_bytes
    assert memory(1_000_000, 1) - memory(1_000_000, 2) > 0.5 * rows_bytes
    manifests = kubernetes_manifests(job_of(), OPTIONS)
    resources = containers(manifests)["embedding"]["resources"]
    assert resources["limits"]["memory"] == resources["requests"]["memory"]


def test_roles_without_nodes_and_what_is_not_given_are_left_out() -> None:
    job = job_of(sync={"algorithm": "ma", "nodes": 0}, data={"path": ["s3://bucket/day.parquet"]})
    bare = replace(OPTIONS, namespace="", data_claim="", queue="")
    config, job_set = manifests = kubernetes_manifests(job, bare)
    assert "sync" not in containers(manifests)
    assert "namespace" not in config["metadata"] | job_set["metadata"]
    assert "data" not in {one["name"] for one in containers(manifests)["reader"]["volumeMounts"]}
    assert list(job_set["metadata"]["labels"]) == ["app.kubernetes.io/name"]


def test_a_node_is_started_again_unless_that_would_change_nothing() -> None:
    for role, spec in indexed_jobs(kubernetes_manifests(job_of(), OPTIONS)):
        ignored, failed = spec["podFailurePolicy"]["rules"]
        assert ignored["onPodConditions"][0]["type"] == "DisruptionTarget"
        values = failed["onExitCodes"]["values"]
        assert failed["onExitCodes"]["containerName"] == role
        assert {ExitCode.USAGE, ExitCode.DATA, ExitCode.RESOURCES} <= set(values)
        # One that was cut off, or came when it could not be taken in, is no end of the job.
        may_come_again = {ExitCode.CLUSTER, ExitCode.STOPPED_BY_DEATH, ExitCode.INTERRUPTED}
        assert (may_come_again <= set(values)) == (role == "coordinator")
        assert role == "coordinator" or not may_come_again & set(values)
        # 128 + SIGKILL is not among them; Kubernetes refuses 0 there.
        assert not {0, 137, int(ExitCode.FINISHED_WITH_DEATHS)} & set(values)


@pytest.mark.parametrize(
    ("sections", "where"),
    [
        ({"data": {"path": ["/home/me/day.parquet"]}}, "data.path"),
        ({"data": {"eval_path": ["/database/day.parquet"]}}, "data.eval_path"),
        ({"start": {"checkpoint": "/tmp/run"}}, "start.checkpoint"),
        ({"model": {"name": "/home/me/mine.py:Mine"}}, "model.name"),
    ],
)
def test_a_path_that_no_pod_sees_is_refused(sections: dict[str, dict[str, Any]], where: str) -> None:
    with pytest.raises(JobFileError, match="is a path of this machine; the job's nodes see /runs") as caught:
        kubernetes_manifests(job_of(**sections), OPTIONS)
    assert where in str(caught.value)


@pytest.mark.parametrize("name", ["", "Clicks", "1day", "day-", "a_b", "x" * 41, "täglich"])
def test_a_name_that_pods_cannot_have_is_refused(name: str) -> None:
    with pytest.raises(JobFileError, match="cannot be the name of a JobSet"):
        require_name(name)
    assert require_name("day-1") == "day-1"


def test_with_a_storage_no_pod_shares_a_claim() -> None:
    def volumes(job: Job, **changes: str) -> dict[str, dict[str, Any]]:
        manifests = kubernetes_manifests(job, replace(OPTIONS, **changes))
        for role, spec in indexed_jobs(manifests):
            check_schema({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": role}, "spec": spec})
        return {
            role: next(v for v in spec["template"]["spec"]["volumes"] if v["name"] == "runs")
            for role, spec in indexed_jobs(manifests)
        }

    stored = job_of(run={"storage": "s3://bucket/clicks"})
    claimed = {"name": "runs", "persistentVolumeClaim": {"claimName": "runs"}}
    own = {"name": "runs", "emptyDir": {}}
    without = volumes(stored, runs_claim="", storage_secret="bucket")
    assert set(map(str, without.values())) == {str(own)}
    kept = volumes(stored)
    assert kept.pop("coordinator") == claimed
    assert set(map(str, kept.values())) == {str(own)}
    assert set(map(str, volumes(job_of()).values())) == {str(claimed)}, "the control"
    for secret in ("", "bucket"):
        for container in containers(
            kubernetes_manifests(stored, replace(OPTIONS, storage_secret=secret))
        ).values():
            assert container.get("envFrom") == ([{"secretRef": {"name": secret}}] if secret else None)
    with pytest.raises(JobFileError, match="--runs-claim: no place for checkpoints"):
        kubernetes_manifests(job_of(), replace(OPTIONS, runs_claim=""))
    with pytest.raises(JobFileError, match="is another folder in each pod"):
        kubernetes_manifests(job_of(run={"storage": "file:///runs/x"}), OPTIONS)


def test_the_command_prints_them(tmp_path: Path) -> None:
    job_file = tmp_path / "clicks.toml"
    job_file.write_text('[data]\nformat = "parquet"\npath = "/data/*.parquet"\n[model]\ntable_rows = 100\n')
    arguments = ["render", "kubernetes", str(job_file), "--image", "i", "--runs-claim", "runs"]
    refused = CliRunner().invoke(main, arguments)
    assert refused.exit_code == ExitCode.USAGE
    assert "data.path: /data/*.parquet is a path of this machine" in refused.output
    shown = CliRunner().invoke(main, [*arguments, "--data-claim", "data", "--set", "trainer.count=4"])
    assert shown.exit_code == 0, shown.output
    config, job_set = documents = list(yaml.safe_load_all(shown.output))
    assert job_set["metadata"]["name"] == "clicks"
    assert dict(indexed_jobs(documents))["trainer"]["completions"] == 4
    (tmp_path / "job.json").write_text(config["data"]["job.json"])
    assert load_resolved(tmp_path / "job.json").trainer.count == 4
    # As a person would write it.
    assert "  job.json: |\n    {\n" in shown.output
    assert "&id" not in shown.output
