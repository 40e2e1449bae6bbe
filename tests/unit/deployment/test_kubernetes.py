"""A job as Kubernetes manifests: accepted by the published schemas, and by the nodes' own commands."""

from __future__ import annotations

import copy
import json
import os
import subprocess
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import pytest
import yaml
from click.testing import CliRunner
from shadowsync.cli import main
from shadowsync.deployment.job_nodes import nodes_of
from shadowsync.deployment.kubernetes import coordinator_host, kubernetes_manifests, require_name
from shadowsync.deployment.pods import JOB_FILE
from shadowsync.pipeline.config.job import Job
from shadowsync.pipeline.config.kafka import PATH_SETTINGS
from shadowsync.pipeline.errors import ExitCode, JobFileError
from shadowsync.pipeline.jobfile.load import load_resolved, validate_job
from shadowsync.tests.support.data.parsed import parsed
from shadowsync.tests.support.outside.deployed import OPTIONS, VERSIONS, job_of


def indexed_jobs(manifests: list[dict[str, Any]]) -> Iterator[tuple[str, dict[str, Any]]]:
    for one in manifests[-1]["spec"]["replicatedJobs"]:
        yield one["name"], one["template"]["spec"]


def containers(manifests: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return {role: spec["template"]["spec"]["containers"][0] for role, spec in indexed_jobs(manifests)}


def check_schema(manifest: dict[str, Any]) -> None:
    import kubernetes_validate

    for version in VERSIONS:
        kubernetes_validate.validate(manifest, version, strict=True)


def of_towers(items: str) -> dict[str, dict[str, Any]]:
    columns = {"label": "label", "user": "categorical", "item": "categorical"}
    model = {"name": "two_tower", "query": ["user"], "item": ["item"]}
    return {"data": {"columns": columns}, "model": model, "validation": {"items": items}}


def of_kafka(**files: str) -> dict[str, dict[str, Any]]:
    kafka = {"security_protocol": "sasl_ssl", "sasl_mechanism": "PLAIN", "sasl_username": "me"}
    files = dict.fromkeys(("ssl_certificate_location", "ssl_key_location"), "/runs/pem") | files
    kafka |= files if "sasl_password_file" in files else {"sasl_password_env": "PASSWORD", **files}
    return {"data": {"format": "criteo_tsv", "path": ["kafka://host:9092/clicks"], "kafka": kafka}}


def checked_jobs(manifests: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The roles' jobs, each a manifest that the published schemas accept."""
    jobs = [
        {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": role}, "spec": spec}
        for role, spec in indexed_jobs(manifests)
    ]
    for job in jobs:
        check_schema(job)
    return jobs


@pytest.mark.parametrize("gpu", [False, True])
def test_the_published_schemas_accept_it(gpu: bool) -> None:
    import kubernetes_validate
    from kubeflow_trainer_api.models import JobsetV1alpha2JobSet

    job = job_of(trainer={"device": "cuda"}) if gpu else job_of()
    manifests = kubernetes_manifests(job, OPTIONS)
    config, policy, job_set = manifests
    check_schema(config)
    check_schema(policy)
    for whole in checked_jobs(manifests):
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
    config, *_, job_set = manifests = kubernetes_manifests(job, OPTIONS)
    tree = json.loads(config["data"]["job.json"])
    waiting = {"start_timeout_seconds": 600.0, "rejoin_seconds": 600.0, "coordinator_wait_seconds": 300.0}
    assert validate_job(tree, where="test") == job.model_copy(
        update={"run": job.run.model_copy(update={"directory": "/runs", **waiting})}
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
    assert mounts["reader"] == mounts["coordinator"] == {"job", "key", "runs", "data", "tmp"}
    assert mounts["trainer"] == {"job", "key", "runs", "tmp"}
    assert job_set["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "nightly"


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


def test_rows_on_disk_have_a_folder_that_can_be_written() -> None:
    """Only /tmp can be written to of a container's own."""
    tables = {"C1": {"memory_bytes": 1000, "folder": "/mnt/nvme"}, "C2": {"memory_bytes": "1TiB"}}
    job = job_of(
        embedding={"nodes": 2, "memory_bytes": 300_000}, tables=tables, model={"table_rows": 100_000}
    )
    found = containers(kubernetes_manifests(job, OPTIONS))
    folders = {
        role: {mount["mountPath"] for mount in one["volumeMounts"]} & {"/var/tmp", "/mnt/nvme"}
        for role, one in found.items()
    }
    assert folders.pop("embedding") == {"/var/tmp", "/mnt/nvme"}
    assert not any(folders.values())
    on_disk = sum(table.rows * table.row_bytes for table in job.tables if table.name != "C2") / 2 / 2**20
    room = found["embedding"]["resources"]["requests"]["ephemeral-storage"]
    assert on_disk < int(room.removesuffix("Mi")) < 2 * on_disk
    # The control: all rows are in memory.
    whole = containers(kubernetes_manifests(job_of(), OPTIONS))["embedding"]
    assert "ephemeral-storage" not in whole["resources"]["requests"]
    assert not any(mount["mountPath"] == "/var/tmp" for mount in whole["volumeMounts"])


def test_roles_without_nodes_and_what_is_not_given_are_left_out() -> None:
    job = job_of(sync={"algorithm": "ma", "nodes": 0}, data={"path": ["s3://bucket/day.parquet"]})
    bare = replace(OPTIONS, namespace="", data_claim="", queue="")
    config, *_, job_set = manifests = kubernetes_manifests(job, bare)
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
        (of_towers("/home/me/items.parquet"), "validation.items"),
        *((of_kafka(**{key: "/home/me/file"}), f"data.kafka.{key}") for key in PATH_SETTINGS),
    ],
)
def test_a_path_that_no_pod_sees_is_refused(sections: dict[str, dict[str, Any]], where: str) -> None:
    seen = r"coordinator and readers see /runs \(--runs-claim\), /data \(--data-claim\);"
    with pytest.raises(JobFileError, match=f"^{where}: .* is a path of this machine; the job's {seen}"):
        kubernetes_manifests(job_of(**sections), OPTIONS)


@pytest.mark.parametrize("folder", ["/data", "/tmp", "file:///tmp"])
@pytest.mark.parametrize(
    ("key", "value"),
    [("start.checkpoint", "/run"), ("model.name", "/mine.py:Mine"), ("sync.algorithm", "/mine.py:Mine")],
)
def test_a_path_that_trainers_do_not_see_is_refused(folder: str, key: str, value: str) -> None:
    """Of the input only the coordinator and the readers have the volume."""
    section, name = key.split(".")
    with pytest.raises(JobFileError, match=rf"^{key}: .*; the job's nodes see /runs \(--runs-claim\);"):
        kubernetes_manifests(job_of(**{section: {name: folder + value}}), OPTIONS)


def test_what_the_pods_see_is_taken() -> None:
    kafka = {key: f"/data/{key}" for key in PATH_SETTINGS}
    for sections in (
        of_towers("/data/items.parquet"),
        of_towers("s3://bucket/items.parquet"),
        of_towers("training"),
        of_kafka(**kafka),
        {"start": {"checkpoint": "/runs/run"}, "model": {"name": "/runs/mine.py:Mine"}},
    ):
        assert kubernetes_manifests(job_of(**sections), OPTIONS)


@pytest.mark.parametrize("name", ["", "Clicks", "1day", "day-", "a_b", "x" * 41, "täglich"])
def test_a_name_that_pods_cannot_have_is_refused(name: str) -> None:
    with pytest.raises(JobFileError, match="cannot be the name of a JobSet"):
        require_name(name)
    assert require_name("day-1") == "day-1"


def test_with_a_storage_no_pod_shares_a_claim() -> None:
    def volumes(whole: Job, **changes: Any) -> dict[str, dict[str, Any]]:
        return {
            job["metadata"]["name"]: next(
                volume for volume in job["spec"]["template"]["spec"]["volumes"] if volume["name"] == "runs"
            )
            for job in checked_jobs(kubernetes_manifests(whole, replace(OPTIONS, **changes)))
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
        manifests = kubernetes_manifests(stored, replace(OPTIONS, storage_secret=secret))
        for container in containers(manifests).values():
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
    config, _, job_set = documents = list(yaml.safe_load_all(shown.stdout))
    assert job_set["metadata"]["name"] == "clicks"
    assert dict(indexed_jobs(documents))["trainer"]["completions"] == 4
    (tmp_path / "job.json").write_text(config["data"]["job.json"])
    assert load_resolved(tmp_path / "job.json").trainer.count == 4
    # As a person would write it.
    assert "  job.json: |\n    {\n" in shown.output
    assert "&id" not in shown.output
    auto, quiet = (
        CliRunner().invoke(main, [*arguments, "--data-claim", "data", "--set", f"trainer.device={device}"])
        for device in ("auto", "cuda")
    )
    assert 'trainer.device is "auto": no GPU is asked for' in auto.stderr
    assert quiet.stderr == ""
    (job,) = (job for job in yaml.safe_load_all(quiet.stdout) if job["kind"] == "JobSet")
    assert containers([job])["trainer"]["resources"]["limits"] == {"nvidia.com/gpu": 1}


def restricted(pod: dict[str, Any]) -> bool:
    """Whether Pod Security's profile "restricted" takes a pod (Kubernetes, Pod Security Standards)."""
    contexts = [pod["securityContext"] | one.get("securityContext", {}) for one in pod["containers"]]
    sources = {next(key for key in volume if key != "name") for volume in pod["volumes"]}
    return sources <= {"configMap", "emptyDir", "persistentVolumeClaim", "secret"} and all(
        own.get("seccompProfile") == {"type": "RuntimeDefault"}
        and own.get("runAsNonRoot") is True
        and own.get("allowPrivilegeEscalation") is False
        and own.get("capabilities") == {"drop": ["ALL"]}
        for own in contexts
    )


def test_pod_security_takes_every_pod() -> None:
    pods = list(pods_of(kubernetes_manifests(job_of(), OPTIONS)))
    assert len(pods) >= 5
    for pod in pods:
        assert restricted(pod)
        without = copy.deepcopy(pod)
        del without["securityContext"]["seccompProfile"]
        assert not restricted(without), "the control"


def pods_of(tree: Any) -> Iterator[dict[str, Any]]:
    """Every pod's specification in manifests."""
    if isinstance(tree, dict):
        if "containers" in tree:
            yield tree
        for value in tree.values():
            yield from pods_of(value)
    elif isinstance(tree, list):
        for value in tree:
            yield from pods_of(value)


def test_what_is_given_of_pods_is_in_each() -> None:
    given = replace(
        OPTIONS,
        service_account="trainer",
        priority_class="batch",
        pull_secrets=("registry",),
        node_selector={"pool": "spot"},
        tolerations=("spot", "gpu=a100:NoSchedule"),
        spread="kubernetes.io/hostname",
        ttl_seconds=3600,
    )
    manifests = kubernetes_manifests(job_of(), given)
    assert manifests[-1]["spec"]["ttlSecondsAfterFinished"] == 3600
    for pod in pods_of(manifests):
        assert (pod["serviceAccountName"], pod["priorityClassName"]) == ("trainer", "batch")
        assert pod["imagePullSecrets"] == [{"name": "registry"}]
        assert pod["nodeSelector"] == {"pool": "spot"}
        *lost, spot, gpu = pod["tolerations"]
        assert {one["tolerationSeconds"] for one in lost} == {30}
        assert spot == {"key": "spot", "operator": "Exists"}
        assert gpu == {"key": "gpu", "operator": "Equal", "value": "a100", "effect": "NoSchedule"}
        assert pod["topologySpreadConstraints"][0]["topologyKey"] == "kubernetes.io/hostname"
    assert checked_jobs(manifests)
    with pytest.raises(JobFileError, match="'a:b' is no taint"):
        kubernetes_manifests(job_of(), replace(OPTIONS, tolerations=("a:b",)))


def test_times_that_the_job_file_gives_stay() -> None:
    config = kubernetes_manifests(job_of(run={"rejoin_seconds": 90.0}), OPTIONS)[0]
    assert json.loads(config["data"]["job.json"])["run"]["rejoin_seconds"] == 90.0


def test_memory_follows_the_dense_model() -> None:
    def memory(role: str, dense_parameters: int) -> int:
        text = containers(kubernetes_manifests(job_of(), OPTIONS, dense_parameters))[role]["resources"]
        return int(text["requests"]["memory"].removesuffix("Mi"))

    mebi = 1 << 20
    # Two workers; the peaks of such jobs with 103 MiB of parameters were 20.3 and 4.2 times that.
    assert memory("trainer", 100 * mebi // 4) - memory("trainer", 0) == 2500
    assert memory("sync", 100 * mebi // 4) - memory("sync", 0) == 500
    assert memory("reader", 100 * mebi) == memory("reader", 0)


def test_a_monitor_has_the_token_of_a_secret() -> None:
    _, policy, monitor, job_set = kubernetes_manifests(job_of(), replace(OPTIONS, metrics_secret="token"))
    assert len(kubernetes_manifests(job_of(), OPTIONS)) == 3
    (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
    assert endpoint["authorization"]["credentials"] == {"name": "token", "key": "token"}
    for _, spec in indexed_jobs([job_set]):
        labels = spec["template"]["metadata"]["labels"]
        for selector in (monitor["spec"]["selector"], policy["spec"]["podSelector"]):
            assert selector["matchLabels"].items() <= labels.items()
        ports = spec["template"]["spec"]["containers"][0]["ports"]
        assert {"name": endpoint["port"], "containerPort": 9100, "protocol": "TCP"} in ports


def test_probes_start_no_interpreter(tmp_path: Path) -> None:
    """They look at the files that a node touches, and fail once these are old."""
    socket = tmp_path / "health.sock"
    probes = {
        name: container[name]["exec"]["command"]
        for container in containers(kubernetes_manifests(job_of(), OPTIONS)).values()
        for name in ("startupProbe", "readinessProbe", "livenessProbe")
    }

    def passes(name: str) -> bool:
        environment = os.environ | {"SHADOWSYNC_HEALTH": str(socket)}
        return subprocess.run(probes[name], env=environment, capture_output=True).returncode == 0

    assert not any(map(passes, probes))
    (tmp_path / "health.sock.alive").touch()
    assert {name for name in probes if passes(name)} == {"livenessProbe"}
    (tmp_path / "health.sock.healthy").touch()
    assert all(map(passes, probes))
    for name in ("health.sock.alive", "health.sock.healthy"):
        os.utime(tmp_path / name, (time.time() - 60,) * 2)
    assert not any(map(passes, probes))
