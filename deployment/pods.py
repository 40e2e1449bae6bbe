"""The pods of a job: options, volumes, rights, and the machines that take them.

Imports no torch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from ..pipeline.config.job import Job
from ..pipeline.errors import JobFileError
from ..pipeline.performance.plan_basis import files_of_rows
from .job_nodes import COORDINATOR, require_paths_below

Manifest = dict[str, Any]
Volume = tuple[str, str, bool, Manifest]
"""Its name, the folder in the pod, whether it can only be read, and its source."""

RUNS: Final = "/runs"
DATA: Final = "/data"
JOB_FILE: Final = "/job/job.json"
KEY_NAME: Final = "job.key"
STOP_SECONDS: Final = 30
LOST_MACHINE_SECONDS: Final = 30
"""After this a machine that does not answer has lost its pods; by default it is 300."""

# A pod runs once it is scheduled and its image is pulled; that of a lost machine once the machine is removed.
_WAITING_SECONDS: Final = {
    "start_timeout_seconds": 600.0, "rejoin_seconds": 600.0, "coordinator_wait_seconds": 300.0,
}  # fmt: skip
USER: Final = 10_001
"""The user of the images."""


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
        metrics_secret: Secret with the token of the metrics as TOKEN_NAME, for a PodMonitor; "" for none.
        service_account, priority_class: of the pods, or "".
        pull_secrets: Secrets of the images' registries.
        node_selector: labels of the machines.
        tolerations: taints that the pods bear, each KEY[=VALUE][:EFFECT].
        spread: label of machines by which the pods of a role are spread, or "".
        ttl_seconds: how long the JobSet stays after its end; None for ever.
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
    metrics_secret: str = ""
    service_account: str = ""
    priority_class: str = ""
    pull_secrets: Sequence[str] = ()
    node_selector: Mapping[str, str] = field(default_factory=dict)
    tolerations: Sequence[str] = ()
    spread: str = ""
    ttl_seconds: int | None = None


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
    runs = {"--runs-claim": RUNS} if options.runs_claim and not job.run.storage else {}
    require_paths_below(job, runs, {"--data-claim": DATA} if options.data_claim else {})
    waiting = {key: value for key, value in _WAITING_SECONDS.items() if key not in job.run.model_fields_set}
    job = job.model_copy(update={"run": job.run.model_copy(update={"directory": RUNS, **waiting})})
    metadata = metadata_of(options, f"{options.name}-job")
    content = job.model_dump_json(indent=1)
    return job, {
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"job.json": content + "\n"},
    }  # fmt: skip


def metadata_of(options: KubernetesOptions, name: str) -> Manifest:
    """Return the metadata of an object of the job."""
    metadata: Manifest = {"name": name, "labels": {"app.kubernetes.io/name": "shadowsync"}}
    return metadata | ({"namespace": options.namespace} if options.namespace else {})


def labels_of(options: KubernetesOptions, role: str) -> dict[str, str]:
    return {**selected(options), "app.kubernetes.io/name": "shadowsync", "shadowsync/role": role}


def selected(options: KubernetesOptions) -> dict[str, str]:
    """Return the label by which all pods of the job are found."""
    return {"app.kubernetes.io/instance": options.name}


def pod_of(container: Manifest, volumes: list[Volume], role: str, options: KubernetesOptions) -> Manifest:
    """Return the specification of a pod of one container, with the least rights.

    Pod Security "restricted" takes it.
    """
    user = {"runAsNonRoot": True, "runAsUser": USER, "runAsGroup": USER, "fsGroup": USER}
    rights = {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "readOnlyRootFilesystem": True,
    }
    return {
        "terminationGracePeriodSeconds": STOP_SECONDS,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "securityContext": {**user, "seccompProfile": {"type": "RuntimeDefault"}},
        **_placement(role, options),
        "containers": [
            {
                **container,
                "securityContext": rights,
                "volumeMounts": [
                    {"name": name, "mountPath": path} | ({"readOnly": True} if read_only else {})
                    for name, path, read_only, _ in volumes
                ],
            }
        ],
        "volumes": [{"name": name} | source for name, _, _, source in volumes],
    }


def _placement(role: str, options: KubernetesOptions) -> Manifest:
    """Return who the pods of a role are, and which machines take them."""
    lost = {"operator": "Exists", "effect": "NoExecute", "tolerationSeconds": LOST_MACHINE_SECONDS}
    spread = {
        "maxSkew": 1,
        "topologyKey": options.spread,
        "whenUnsatisfiable": "ScheduleAnyway",
        "labelSelector": {"matchLabels": labels_of(options, role)},
    }
    fields: Manifest = {
        "serviceAccountName": options.service_account,
        "priorityClassName": options.priority_class,
        "imagePullSecrets": [{"name": name} for name in options.pull_secrets],
        "nodeSelector": dict(options.node_selector),
        "tolerations": [
            *({"key": f"node.kubernetes.io/{key}", **lost} for key in ("not-ready", "unreachable")),
            *map(_toleration, options.tolerations),
        ],
        "topologySpreadConstraints": [spread] if options.spread else [],
    }
    return {key: value for key, value in fields.items() if value}


def _toleration(text: str) -> Manifest:
    """Return the toleration of KEY[=VALUE][:EFFECT]; raise JobFileError for another text."""
    taint, _, effect = text.partition(":")
    key, is_value, value = taint.partition("=")
    if not key or effect not in ("", "NoSchedule", "PreferNoSchedule", "NoExecute"):
        raise JobFileError(
            f"{text!r} is no taint",
            where="--toleration",
            remedy="write KEY[=VALUE][:EFFECT], as kubectl taint",
        )
    borne = (
        {"key": key, "operator": "Equal", "value": value} if is_value else {"key": key, "operator": "Exists"}
    )
    return borne | ({"effect": effect} if effect else {})


def job_and_key(options: KubernetesOptions) -> list[Volume]:
    return [
        ("job", "/job", True, {"configMap": {"name": f"{options.name}-job"}}),
        # The group of the pod may read it, and nobody else.
        ("key", "/key", True, {"secret": {"secretName": options.key_secret, "defaultMode": 0o440}}),
    ]


def data_volume(options: KubernetesOptions) -> list[Volume]:
    claim = {"persistentVolumeClaim": {"claimName": options.data_claim, "readOnly": True}}
    return [("data", DATA, True, claim)] if options.data_claim else []


def runs_volume(job: Job, role: str, options: KubernetesOptions) -> Volume:
    """Return the volume of the run folders.

    With a storage, the other nodes have only their log there.
    """
    only_log = job.run.storage and (role != COORDINATOR or not options.runs_claim)
    claim: Manifest = {"persistentVolumeClaim": {"claimName": options.runs_claim}}
    return "runs", RUNS, False, {"emptyDir": {}} if only_log else claim


def rows_volumes(job: Job, role: str) -> list[Volume]:
    """Return the volumes of an embedding node's rows on disk, on the disk of its machine."""
    folders = sorted(files_of_rows(job)) if role == "embedding" else []
    return [(f"rows-{number}", folder, False, {"emptyDir": {}}) for number, folder in enumerate(folders)]


def storage_access(options: KubernetesOptions) -> Manifest:
    """Return the environment that leads to the storage, if it needs one."""
    secret = options.storage_secret
    return {"envFrom": [{"secretRef": {"name": secret}}]} if secret else {}
