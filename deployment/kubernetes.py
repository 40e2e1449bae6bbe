"""A job as Kubernetes manifests: a ConfigMap and a JobSet.

The ConfigMap has the job, and the JobSet a Job for each role. JobSet (https://jobset.sigs.k8s.io) gives the
pods their names, and ends them all with the coordinator. A pod whose node was killed is started again by its
Indexed Job; the other pods go on. Imports no torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from ..pipeline.config.job import Job
from ..pipeline.errors import ExitCode, JobFileError
from .job_nodes import COORDINATOR, RoleNodes, nodes_of, require_paths_below

Manifest = dict[str, Any]
Volume = tuple[str, str, bool, Manifest]
"""Its name, the folder in the pod, whether it can only be read, and its source."""

PORT: Final = 5555
METRICS_PORT: Final = 9100
RUNS: Final = "/runs"
DATA: Final = "/data"
JOB_FILE: Final = "/job/job.json"
KEY_NAME: Final = "job.key"
RETRIES_PER_NODE: Final = 10
STOP_SECONDS: Final = 30
USER: Final = 10_001
"""The user of the images."""

# With these codes a job has ended: of a coordinator that ended by itself, not of one that was killed.
_ENDS_OF_COORDINATOR: Final = [
    int(code) for code in ExitCode if code not in (ExitCode.OK, ExitCode.FINISHED_WITH_DEATHS)
]
# Starting the node again would change nothing. One that was cut off or refused may be taken in the next time.
_ENDS_OF_NODE: Final = [int(code) for code in (ExitCode.USAGE, ExitCode.DATA, ExitCode.RESOURCES)]


@dataclass(frozen=True, slots=True, kw_only=True)
class KubernetesOptions:
    """What a job file does not say.

    Attributes:
        name: name of the JobSet; of letters, digits and "-", at most 40.
        image: image for every role.
        control_image: image of coordinator and readers.
        namespace: namespace, or "" for that of the context.
        runs_claim: PersistentVolumeClaim of the run folders, which all pods mount (ReadWriteMany). With a
            storage only the coordinator mounts it, or "" for a folder that ends with its pod.
        storage_secret: Secret whose keys are environment variables that lead to the storage, or "".
        data_claim: PersistentVolumeClaim of the input, or "" if all input has URLs.
        key_secret: Secret with the job's key as KEY_NAME.
        queue: Kueue's local queue, or "".
    """

    name: str
    image: str
    control_image: str
    namespace: str
    runs_claim: str
    data_claim: str
    key_secret: str
    queue: str
    storage_secret: str = ""


def kubernetes_manifests(job: Job, options: KubernetesOptions) -> list[Manifest]:
    """Return the manifests of a job, in the order to apply them.

    Raises JobFileError as `in_pods` does.
    """
    job, config = in_pods(job, options)
    return [config, _job_set(job, options)]


def in_pods(job: Job, options: KubernetesOptions) -> tuple[Job, Manifest]:
    """Return the job as pods have it, and the ConfigMap with its file.

    Raises JobFileError for a file that no pod sees, and for checkpoints without a place.
    """
    if not (options.runs_claim or job.run.storage):
        raise JobFileError(
            "no place for checkpoints that all pods see",
            where="--runs-claim",
            remedy="give it, or set run.storage to the URL of a bucket",
        )
    if job.run.storage.startswith("file://"):
        raise JobFileError(
            f"{job.run.storage} is another folder in each pod",
            where="run.storage",
            remedy="give the URL of a bucket, or leave it out and give --runs-claim",
        )
    mounts = ({"--runs-claim": RUNS} if options.runs_claim and not job.run.storage else {}) | (
        {"--data-claim": DATA} if options.data_claim else {}
    )
    require_paths_below(job, mounts)
    job = job.model_copy(update={"run": job.run.model_copy(update={"directory": RUNS})})
    metadata = metadata_of(options, f"{options.name}-job")
    content = job.model_dump_json(indent=1)
    return job, {
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"job.json": content + "\n"},
    }  # fmt: skip


def require_name(name: str) -> str:
    """Return the name; raise JobFileError if pods cannot be called after it."""
    fits = name and len(name) <= 40 and name[0].isalpha() and name[-1].isalnum()
    if not fits or not all(c.isascii() and (c.islower() or c.isdigit() or c == "-") for c in name):
        raise JobFileError(
            f"{name!r} cannot be the name of a JobSet",
            where="--name",
            remedy='give lower-case letters, digits and "-", a letter first, at most 40',
        )
    return name


def metadata_of(options: KubernetesOptions, name: str) -> Manifest:
    """Return the metadata of an object of the job."""
    own: Manifest = {"name": name, "labels": {"app.kubernetes.io/name": "shadowsync"}}
    return own | ({"namespace": options.namespace} if options.namespace else {})


def queued_metadata(options: KubernetesOptions) -> Manifest:
    """Return the metadata of what is queued, if there is a queue."""
    metadata = metadata_of(options, options.name)
    if options.queue:
        metadata["labels"]["kueue.x-k8s.io/queue-name"] = options.queue
    return metadata


def _job_set(job: Job, options: KubernetesOptions) -> Manifest:
    return {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": queued_metadata(options),
        "spec": {
            # A node that starts asks for addresses before the other nodes are ready.
            "network": {"enableDNSHostnames": True, "publishNotReadyAddresses": True},
            "successPolicy": {"operator": "All", "targetReplicatedJobs": [COORDINATOR]},
            "failurePolicy": {"maxRestarts": 0},
            "replicatedJobs": [
                {"name": nodes.role, "replicas": 1, "template": {"spec": _indexed_job(job, nodes, options)}}
                for nodes in nodes_of(job)
            ],
        },
    }


def _indexed_job(job: Job, nodes: RoleNodes, options: KubernetesOptions) -> Manifest:
    return {
        "completionMode": "Indexed",
        "completions": nodes.count,
        "parallelism": nodes.count,
        "backoffLimitPerIndex": RETRIES_PER_NODE,
        # A replacement that starts while the old pod ends would be one node too many.
        "podReplacementPolicy": "Failed",
        "podFailurePolicy": {
            "rules": [
                {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
                {
                    "action": "FailJob",
                    "onExitCodes": {
                        "containerName": nodes.role,
                        "operator": "In",
                        "values": _ENDS_OF_COORDINATOR if nodes.role == COORDINATOR else _ENDS_OF_NODE,
                    },
                },
            ]
        },
        "template": {
            "metadata": {"labels": {"app.kubernetes.io/name": "shadowsync", "shadowsync/role": nodes.role}},
            "spec": _pod(job, nodes, options),
        },
    }  # fmt: skip


def _pod(job: Job, nodes: RoleNodes, options: KubernetesOptions) -> Manifest:
    volumes = [*job_and_key(options), runs_volume(job, nodes.role, options)]
    if not nodes.needs_torch:
        volumes += data_volume(options)
    container = {
        "name": nodes.role,
        "image": options.image if nodes.needs_torch else options.control_image,
        "args": _arguments(nodes, options),
        "env": key_variable(),
        **storage_access(options),
        "ports": [{"name": "metrics", "containerPort": METRICS_PORT, "protocol": "TCP"}],
        "resources": _resources(nodes),
        **_probes(job.run.start_timeout_seconds),
    }
    return {"restartPolicy": "Never"} | pod_of(container, volumes)


def pod_of(container: Manifest, volumes: list[Volume]) -> Manifest:
    """Return the specification of a pod of one container, with the least rights."""
    return {
        "terminationGracePeriodSeconds": STOP_SECONDS,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "securityContext": {"runAsNonRoot": True, "runAsUser": USER, "runAsGroup": USER, "fsGroup": USER},
        "containers": [
            {
                **container,
                "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
                "volumeMounts": [
                    {"name": name, "mountPath": path} | ({"readOnly": True} if read_only else {})
                    for name, path, read_only, _ in volumes
                ],
            }
        ],
        "volumes": [{"name": name} | source for name, _, _, source in volumes],
    }


def job_and_key(options: KubernetesOptions) -> list[Volume]:
    """Return the volumes of the job's file and of its key."""
    return [
        ("job", "/job", True, {"configMap": {"name": f"{options.name}-job"}}),
        # The group of the pod may read it, and nobody else.
        ("key", "/key", True, {"secret": {"secretName": options.key_secret, "defaultMode": 0o440}}),
    ]


def key_variable() -> list[Manifest]:
    """Return the environment of a container that has the key."""
    return [{"name": "SHADOWSYNC_KEY_FILE", "value": f"/key/{KEY_NAME}"}]


def data_volume(options: KubernetesOptions) -> list[Volume]:
    """Return the volume of the input, if there is one."""
    claim = {"persistentVolumeClaim": {"claimName": options.data_claim, "readOnly": True}}
    return [("data", DATA, True, claim)] if options.data_claim else []


def runs_volume(job: Job, role: str, options: KubernetesOptions) -> Volume:
    """Return the volume of the run folders.

    With a storage, the other nodes have only their log there.
    """
    own = job.run.storage and (role != COORDINATOR or not options.runs_claim)
    claim: Manifest = {"persistentVolumeClaim": {"claimName": options.runs_claim}}
    return "runs", RUNS, False, {"emptyDir": {}} if own else claim


def storage_access(options: KubernetesOptions) -> Manifest:
    """Return the environment that leads to the storage, if it needs one."""
    secret = options.storage_secret
    return {"envFrom": [{"secretRef": {"name": secret}}]} if secret else {}


def coordinator_host(name: str) -> str:
    """Return the name by which the pods of JobSet `name` find the coordinator's."""
    return f"{name}-{COORDINATOR}-0-0.{name}"


def _arguments(nodes: RoleNodes, options: KubernetesOptions) -> Sequence[str]:
    host = coordinator_host(options.name)
    own = (
        ["--bind", f"0.0.0.0:{PORT}", "--advertise", host, "--restartable"]
        if nodes.role == COORDINATOR
        else ["--join", f"tcp://{host}:{PORT}", "--bind", "0.0.0.0", "--advertise", "auto"]
    )
    finished = str(int(ExitCode.FINISHED_WITH_DEATHS))
    return [
        nodes.role, JOB_FILE, *own, "--metrics-port", str(METRICS_PORT), "--exit-zero-on", finished,
    ]  # fmt: skip


def _resources(nodes: RoleNodes) -> Manifest:
    memory = f"{-(-nodes.memory_bytes >> 20)}Mi"
    requests: Manifest = {"cpu": str(nodes.cpus), "memory": memory}
    limits: Manifest = {"nvidia.com/gpu": nodes.gpus} if nodes.gpus else {}
    if nodes.role == "embedding":
        # It checks its rows against the limit, and is not the first that the kernel kills.
        limits["memory"] = memory
    return {"requests": requests} | ({"limits": limits} if limits else {})


def _probes(start_seconds: float) -> Manifest:
    ask = {"exec": {"command": ["shadowsync", "health"]}, "timeoutSeconds": 10, "periodSeconds": 15}
    started = ask | {"failureThreshold": 2 + int(start_seconds / 15)}
    return {"startupProbe": started, "livenessProbe": ask | {"failureThreshold": 4}, "readinessProbe": ask}
