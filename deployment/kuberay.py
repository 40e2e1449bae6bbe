"""A job as KubeRay's RayJob: `run --on ray` on a cluster of its own.

The head's pod has the driver, with supervisor and coordinator. Each other pod has room for one node, so that
a pod that is lost is the death of one node. The cluster goes with the job. Imports neither torch nor ray.
"""

from __future__ import annotations

from typing import Final

from ..pipeline.config.job import Job
from ..pipeline.errors import ExitCode
from .job_nodes import COORDINATOR, PROCESS_BYTES, RoleNodes, nodes_of
from .pods import (
    JOB_FILE,
    KubernetesOptions,
    Manifest,
    data_volume,
    in_pods,
    job_and_key,
    key_variable,
    labels_of,
    pod_of,
    queued_metadata,
    rows_volumes,
    runs_volume,
    storage_access,
)
from .ray.bundles import on_machines

# Of Ray's own processes in each pod, beside the node: raylet, agents, and the actor.
RAY_BYTES: Final = 1 << 30
# Nodes send nothing through Ray's store of objects; this is the least that Ray takes.
STORE_BYTES: Final = 80 << 20
# The head has the driver, the coordinator and the cluster's own services.
HEAD_CPUS: Final = 2
HEAD_BYTES: Final = 2 << 30


def ray_job_manifests(job: Job, options: KubernetesOptions, dense_parameters: int = 0) -> list[Manifest]:
    """Return a job's manifests in the order to apply them: ConfigMap and RayJob.

    `dense_parameters` is as for `nodes_of`.

    Raises JobFileError as `in_pods` does, and for a setting that means nothing on a cluster.
    """
    job, config = in_pods(on_machines(job), options)
    return [config, _ray_job(job, options, dense_parameters)]


def _ray_job(job: Job, options: KubernetesOptions, dense_parameters: int) -> Manifest:
    finished = int(ExitCode.FINISHED_WITH_DEATHS)
    return {
        "apiVersion": "ray.io/v1",
        "kind": "RayJob",
        "metadata": queued_metadata(options),
        "spec": {
            "entrypoint": f"shadowsync run {JOB_FILE} --on ray --exit-zero-on {finished}",
            "shutdownAfterJobFinishes": True,
            **({} if options.ttl_seconds is None else {"ttlSecondsAfterFinished": options.ttl_seconds}),
            "submitterPodTemplate": _submitter(options),
            # A second try would be another run.
            "backoffLimit": 0,
            "rayClusterSpec": {
                "headGroupSpec": {
                    # No node is placed beside the driver.
                    "rayStartParams": {"num-cpus": "0", "dashboard-host": "0.0.0.0"},
                    "template": _head(job, options),
                },
                "workerGroupSpecs": [
                    _group(job, nodes, options)
                    for nodes in nodes_of(job, dense_parameters)
                    if nodes.role != COORDINATOR
                ],
            },
        },
    }


def _head(job: Job, options: KubernetesOptions) -> Manifest:
    """Return the driver's pod, which alone has the job's file and its key."""
    volumes = [*job_and_key(options), runs_volume(job, COORDINATOR, options), *data_volume(options)]
    requests = {"cpu": str(HEAD_CPUS), "memory": _mebibytes(HEAD_BYTES + PROCESS_BYTES)}
    container = {
        "name": "ray-head",
        "image": options.image,
        "env": key_variable(),
        **storage_access(options),
        "ports": [
            {"name": name, "containerPort": port, "protocol": "TCP"}
            for name, port in (("gcs-server", 6379), ("dashboard", 8265))
        ],
        "resources": {"requests": requests, "limits": {"memory": requests["memory"]}},
    }
    return _template(pod_of(container, volumes, "head", options), "head", options)


def _submitter(options: KubernetesOptions) -> Manifest:
    """Return the pod that submits the job, whose command KubeRay gives."""
    requests = {"cpu": "500m", "memory": _mebibytes(PROCESS_BYTES)}
    container = {"name": "ray-job-submitter", "image": options.image, "resources": {"requests": requests}}
    pod = {"restartPolicy": "Never"} | pod_of(container, [], "submitter", options)
    return _template(pod, "submitter", options)


def _group(job: Job, nodes: RoleNodes, options: KubernetesOptions) -> Manifest:
    """Return the pods of one role; each fits the bundle of one node."""
    volumes = [runs_volume(job, nodes.role, options), *rows_volumes(job, nodes.role)]
    if not nodes.needs_torch:
        volumes += data_volume(options)
    requests = {
        "cpu": str(nodes.cpus),
        "memory": _mebibytes(nodes.memory_bytes + RAY_BYTES + STORE_BYTES),
        **({"ephemeral-storage": _mebibytes(nodes.disk_bytes)} if nodes.disk_bytes else {}),
    }
    limits: Manifest = {"memory": requests["memory"]}
    container = {
        "name": nodes.role,
        "image": options.image,
        **storage_access(options),
        "resources": {
            "requests": requests,
            "limits": limits | ({"nvidia.com/gpu": nodes.gpus} if nodes.gpus else {}),
        },
    }
    params = {
        "num-cpus": str(nodes.cpus),
        "memory": str(nodes.memory_bytes),
        "object-store-memory": str(STORE_BYTES),
    }
    return {
        "groupName": nodes.role,
        "replicas": nodes.count,
        "minReplicas": nodes.count,
        "maxReplicas": nodes.count,
        "rayStartParams": params | ({"num-gpus": str(nodes.gpus)} if nodes.gpus else {}),
        "template": _template(pod_of(container, volumes, nodes.role, options), nodes.role, options),
    }


def _template(pod: Manifest, role: str, options: KubernetesOptions) -> Manifest:
    return {"metadata": {"labels": labels_of(options, role)}, "spec": pod}


def _mebibytes(count: int) -> str:
    return f"{-(-count >> 20)}Mi"
