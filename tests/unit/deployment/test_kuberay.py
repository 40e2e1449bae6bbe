"""A job as KubeRay's RayJob: its pods pass the published schemas, and the rest a list of the CRD's fields."""

from __future__ import annotations

import copy
import os
import shlex
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from click.testing import CliRunner
from shadowsync.cli import main
from shadowsync.deployment.job_nodes import COORDINATOR
from shadowsync.deployment.kuberay import ray_job_manifests
from shadowsync.deployment.pods import JOB_FILE
from shadowsync.deployment.ray.bundles import bundles_of
from shadowsync.pipeline.errors import ExitCode, JobFileError
from shadowsync.tests.support.data.parsed import parsed
from shadowsync.tests.support.outside.deployed import OPTIONS as OPTIONS_OF_A_JOB_SET
from shadowsync.tests.support.outside.deployed import VERSIONS, job_of

Manifest = dict[str, Any]
OPTIONS = replace(
    OPTIONS_OF_A_JOB_SET, image="registry/shadowsync-ray:1", control_image="registry/shadowsync-ray:1"
)
# The fields that ray.io/v1 has where ours are, with their types (KubeRay 1.7, RayJob's
# CustomResourceDefinition). The templates of pods are Kubernetes' own.
SPEC: dict[str, type] = {
    "entrypoint": str,
    "shutdownAfterJobFinishes": bool,
    "ttlSecondsAfterFinished": int,
    "submitterPodTemplate": dict,
    "backoffLimit": int,
    "rayClusterSpec": dict,
}
CLUSTER: dict[str, type] = {"headGroupSpec": dict, "workerGroupSpecs": list}
HEAD: dict[str, type] = {"rayStartParams": dict, "template": dict}
GROUP: dict[str, type] = HEAD | {"groupName": str, "replicas": int, "minReplicas": int, "maxReplicas": int}


def groups(manifests: list[Manifest]) -> dict[str, Manifest]:
    found = manifests[1]["spec"]["rayClusterSpec"]["workerGroupSpecs"]
    return {group["groupName"]: group for group in found}


def require_fields(given: Manifest, known: dict[str, type]) -> None:
    for name, value in given.items():
        assert type(value) is known[name], name


def check(manifests: list[Manifest]) -> None:
    """Raises for a field that the schemas do not have, or of another type."""
    import kubernetes_validate

    config, ray_job = manifests
    assert (ray_job["apiVersion"], ray_job["kind"]) == ("ray.io/v1", "RayJob")
    spec = ray_job["spec"]
    require_fields(spec, SPEC)
    cluster = spec["rayClusterSpec"]
    require_fields(cluster, CLUSTER)
    head, workers = cluster["headGroupSpec"], cluster["workerGroupSpecs"]
    require_fields(head, HEAD)
    for group in workers:
        require_fields(group, GROUP)
    for group in (head, *workers):
        assert all(isinstance(value, str) for value in group["rayStartParams"].values())
    for template in (spec["submitterPodTemplate"], *(group["template"] for group in (head, *workers))):
        pod: Manifest = {"apiVersion": "v1", "kind": "Pod", **copy.deepcopy(template)}
        for version in VERSIONS:
            kubernetes_validate.validate(pod, version, strict=True)
            kubernetes_validate.validate(config, version, strict=True)


def _misspell_spec(manifests: list[Manifest]) -> None:
    manifests[1]["spec"]["shutDownAfterJobFinishes"] = True


def _misspell_group(manifests: list[Manifest]) -> None:
    groups(manifests)["trainer"]["minReplica"] = 1


def _number_as_parameter(manifests: list[Manifest]) -> None:
    groups(manifests)["trainer"]["rayStartParams"]["num-cpus"] = 3


def _misspell_container(manifests: list[Manifest]) -> None:
    groups(manifests)["trainer"]["template"]["spec"]["containers"][0]["imagePullPolice"] = "Always"


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_the_schemas_accept_it(device: str) -> None:
    manifests = ray_job_manifests(job_of(trainer={"device": device}), OPTIONS)
    check(manifests)
    limits = groups(manifests)["trainer"]["template"]["spec"]["containers"][0]["resources"]["limits"]
    assert limits.get("nvidia.com/gpu") == (1 if device == "cuda" else None)


@pytest.mark.parametrize(
    "spoil", [_misspell_spec, _misspell_group, _number_as_parameter, _misspell_container]
)
def test_the_schemas_refuse_another(spoil: Callable[[list[Manifest]], None]) -> None:
    """The controls."""
    import kubernetes_validate

    manifests = ray_job_manifests(job_of(), OPTIONS)
    spoil(manifests)
    with pytest.raises((AssertionError, KeyError, kubernetes_validate.ValidationError)):
        check(manifests)


def strict(schema: Any) -> Any:
    """The schema of a CustomResourceDefinition as JSON Schema that refuses unknown fields."""
    if isinstance(schema, list):
        return [strict(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    found = {name: strict(value) for name, value in schema.items()}
    if schema.get("x-kubernetes-int-or-string"):
        return {"type": ["integer", "string"]}
    if "properties" in schema and not schema.get("x-kubernetes-preserve-unknown-fields"):
        found.setdefault("additionalProperties", False)
    return found


@pytest.mark.skipif(not os.environ.get("KUBERAY_CRD"), reason="needs KUBERAY_CRD: ray.io_rayjobs.yaml")
def test_kuberays_own_definition_accepts_it() -> None:
    """The file is 1.4 MB, of another project, and not kept here."""
    definition = yaml.load(Path(os.environ["KUBERAY_CRD"]).read_text(encoding="utf-8"), yaml.CSafeLoader)
    (version,) = [one for one in definition["spec"]["versions"] if one["name"] == "v1"]
    spec = strict(version["schema"]["openAPIV3Schema"])["properties"]["spec"]
    validator = jsonschema.Draft7Validator(spec)
    manifests = ray_job_manifests(job_of(trainer={"device": "cuda"}), OPTIONS)
    validator.validate(manifests[1]["spec"])
    for spoil in (_misspell_spec, _misspell_group, _misspell_container, _number_as_parameter):
        wrong = copy.deepcopy(manifests)
        spoil(wrong)
        with pytest.raises(jsonschema.ValidationError):
            validator.validate(wrong[1]["spec"])


def test_what_it_enters_is_a_command_of_shadowsync() -> None:
    spec = ray_job_manifests(job_of(), OPTIONS)[1]["spec"]
    program, command, *arguments = shlex.split(spec["entrypoint"])
    assert program == "shadowsync"
    given = parsed(command, *arguments)
    assert (given["job_file"], given["on"]) == (JOB_FILE, "ray")
    assert given["exit_zero_on"] == (ExitCode.FINISHED_WITH_DEATHS,)
    assert spec["backoffLimit"] == 0


def test_every_node_has_a_pod_that_fits_its_bundle() -> None:
    job = job_of()
    manifests = ray_job_manifests(job, OPTIONS)
    found = groups(manifests)
    bundles = bundles_of(job)
    assert COORDINATOR not in found
    assert {role: group["replicas"] for role, group in found.items()} == {
        role: sum(bundle.role == role for bundle in bundles) for role in {bundle.role for bundle in bundles}
    }
    for bundle in bundles:
        group = found[bundle.role]
        assert group["minReplicas"] == group["replicas"] == group["maxReplicas"]
        params = group["rayStartParams"]
        # Exactly: with room for two, one pod would be left out.
        assert (float(params["num-cpus"]), float(params["memory"])) == (
            bundle.resources["CPU"],
            bundle.resources["memory"],
        )
    head = manifests[1]["spec"]["rayClusterSpec"]["headGroupSpec"]
    assert head["rayStartParams"]["num-cpus"] == "0", "none beside the driver"


def test_pods_have_what_their_nodes_need_and_no_more() -> None:
    manifests = ray_job_manifests(job_of(), OPTIONS)
    head = manifests[1]["spec"]["rayClusterSpec"]["headGroupSpec"]["template"]["spec"]
    pods = {"head": head} | {role: one["template"]["spec"] for role, one in groups(manifests).items()}
    mounts = {
        role: {one["name"] for one in pod["containers"][0]["volumeMounts"]} for role, pod in pods.items()
    }
    assert mounts == {
        "head": {"job", "key", "runs", "data"},
        "reader": {"runs", "data"},
        **{role: {"runs"} for role in ("trainer", "embedding", "sync")},
    }
    without_claim = replace(OPTIONS, storage_secret="bucket", runs_claim="")
    stored = ray_job_manifests(job_of(run={"storage": "s3://bucket/clicks"}), without_claim)
    check(stored)
    for group in groups(stored).values():
        pod = group["template"]["spec"]
        assert {"name": "runs", "emptyDir": {}} in pod["volumes"]
        assert pod["containers"][0]["envFrom"] == [{"secretRef": {"name": "bucket"}}]


def test_what_means_nothing_on_a_cluster_is_refused() -> None:
    with pytest.raises(JobFileError, match=r"network\.transport"):
        ray_job_manifests(job_of(network={"transport": "ipc"}), OPTIONS)
    with pytest.raises(JobFileError, match="is a path of this machine"):
        ray_job_manifests(job_of(data={"path": ["/home/me/day.parquet"]}), OPTIONS)
    with pytest.raises(JobFileError, match="no place for checkpoints"):
        ray_job_manifests(job_of(), replace(OPTIONS, runs_claim=""))


def test_the_command_prints_them(tmp_path: Path) -> None:
    job_file = tmp_path / "clicks.toml"
    job_file.write_text('[data]\nformat = "parquet"\npath = "/data/*.parquet"\n[model]\ntable_rows = 100\n')
    arguments = ["render", "rayjob", str(job_file), "--image", "i", "--runs-claim", "r", "--data-claim", "d"]
    shown = CliRunner().invoke(main, [*arguments, "--set", "trainer.count=4"])
    assert shown.exit_code == 0, shown.output
    documents = list(yaml.safe_load_all(shown.output))
    check(documents)
    assert groups(documents)["trainer"]["replicas"] == 4
