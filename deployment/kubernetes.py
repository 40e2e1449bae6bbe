"""A job as Kubernetes manifests.

They are a ConfigMap, a NetworkPolicy, a JobSet, and a PodMonitor on request. The ConfigMap has the job, and
the JobSet a Job for each role. JobSet (https://jobset.sigs.k8s.io) gives the pods their names, and ends them
all with the coordinator. A pod whose node was killed is started again by its Indexed Job; the other pods go
on. Imports no torch.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import yaml

from ..nodes.runtime.health import ALIVE, HEALTHY, probe
from ..pipeline.config.job import Job
from ..pipeline.errors import ExitCode, JobFileError
from .job_nodes import COORDINATOR, RoleNodes, nodes_of
from .pods import (
    JOB_FILE,
    KEY_NAME,
    KubernetesOptions,
    Manifest,
    data_volume,
    in_pods,
    job_and_key,
    labels_of,
    metadata_of,
    pod_of,
    rows_volumes,
    runs_volume,
    selected,
    storage_access,
)

PORT: Final = 5555
METRICS_PORT: Final = 9100
TOKEN_NAME: Final = "token"
RETRIES_PER_NODE: Final = 10

# With these codes a job has ended: of a coordinator that ended by itself, not of one that was killed.
_ENDS_OF_COORDINATOR: Final = [
    int(code) for code in ExitCode if code not in (ExitCode.OK, ExitCode.FINISHED_WITH_DEATHS)
]
# Starting the node again would change nothing. One that was cut off or refused may be taken in the next time.
_ENDS_OF_NODE: Final = [int(code) for code in (ExitCode.USAGE, ExitCode.DATA, ExitCode.RESOURCES)]


def kubernetes_manifests(job: Job, options: KubernetesOptions, dense_parameters: int = 0) -> list[Manifest]:
    """Return the manifests of a job, in the order to apply them.

    `dense_parameters` is as for `nodes_of`. Raises JobFileError as `in_pods` does.
    """
    job, config = in_pods(job, options)
    monitor = [_pod_monitor(options)] if options.metrics_secret else []
    return [config, _network_policy(options), *monitor, _job_set(job, options, dense_parameters)]


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


def _network_policy(options: KubernetesOptions) -> Manifest:
    """Return who reaches a pod: the job's own pods, and everybody its metrics."""
    selector = {"matchLabels": selected(options)}
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": metadata_of(options, options.name),
        "spec": {
            "podSelector": selector,
            "policyTypes": ["Ingress"],
            "ingress": [
                {"from": [{"podSelector": selector}]},
                {"ports": [{"port": METRICS_PORT, "protocol": "TCP"}]},
            ],
        },
    }


def _pod_monitor(options: KubernetesOptions) -> Manifest:
    """Return what has the Prometheus operator scrape the pods."""
    credentials = {"name": options.metrics_secret, "key": TOKEN_NAME}
    return {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "PodMonitor",
        "metadata": metadata_of(options, options.name),
        "spec": {
            "selector": {"matchLabels": selected(options)},
            "podMetricsEndpoints": [{"port": "metrics", "authorization": {"credentials": credentials}}],
        },
    }


def _job_set(job: Job, options: KubernetesOptions, dense_parameters: int) -> Manifest:
    metadata = metadata_of(options, options.name)
    if options.queue:
        metadata["labels"]["kueue.x-k8s.io/queue-name"] = options.queue
    ttl = {} if options.ttl_seconds is None else {"ttlSecondsAfterFinished": options.ttl_seconds}
    return {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": metadata,
        "spec": {
            # A node that starts asks for addresses before the other nodes are ready.
            "network": {"enableDNSHostnames": True, "publishNotReadyAddresses": True},
            "successPolicy": {"operator": "All", "targetReplicatedJobs": [COORDINATOR]},
            "failurePolicy": {"maxRestarts": 0},
            **ttl,
            "replicatedJobs": [
                {"name": nodes.role, "replicas": 1, "template": {"spec": _indexed_job(job, nodes, options)}}
                for nodes in nodes_of(job, dense_parameters)
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
            "metadata": {"labels": labels_of(options, nodes.role)},
            "spec": _pod(job, nodes, options),
        },
    }  # fmt: skip


def _pod(job: Job, nodes: RoleNodes, options: KubernetesOptions) -> Manifest:
    volumes = [*job_and_key(options), runs_volume(job, nodes.role, options), *rows_volumes(job, nodes.role)]
    if not nodes.needs_torch:
        volumes += data_volume(options)
    container = {
        "name": nodes.role,
        "image": options.image if nodes.needs_torch else options.control_image,
        "args": _arguments(nodes, options),
        # Nothing but /tmp can be written to there.
        "env": [
            {"name": "SHADOWSYNC_KEY_FILE", "value": f"/key/{KEY_NAME}"},
            {"name": "HOME", "value": "/tmp"},
        ],
        **storage_access(options),
        "ports": [{"name": "metrics", "containerPort": METRICS_PORT, "protocol": "TCP"}],
        "resources": _resources(nodes),
        **_probes(job.run.start_timeout_seconds),
    }
    volumes.append(("tmp", "/tmp", False, {"emptyDir": {}}))
    return {"restartPolicy": "Never"} | pod_of(container, volumes, nodes.role, options)


def coordinator_host(name: str) -> str:
    """Return the name by which the pods of JobSet `name` find the coordinator's."""
    return f"{name}-{COORDINATOR}-0-0.{name}"


def _arguments(nodes: RoleNodes, options: KubernetesOptions) -> Sequence[str]:
    host = coordinator_host(options.name)
    addresses = (
        ["--bind", f"0.0.0.0:{PORT}", "--advertise", host, "--restartable"]
        if nodes.role == COORDINATOR
        else ["--join", f"tcp://{host}:{PORT}", "--bind", "0.0.0.0", "--advertise", "auto"]
    )
    finished = str(int(ExitCode.FINISHED_WITH_DEATHS))
    return [
        nodes.role, JOB_FILE, *addresses, "--metrics-port", str(METRICS_PORT), "--exit-zero-on", finished,
    ]  # fmt: skip


def _resources(nodes: RoleNodes) -> Manifest:
    memory = f"{-(-nodes.memory_bytes >> 20)}Mi"
    requests: Manifest = {"cpu": str(nodes.cpus), "memory": memory}
    if nodes.disk_bytes:
        requests["ephemeral-storage"] = f"{-(-nodes.disk_bytes >> 20)}Mi"
    limits: Manifest = {"nvidia.com/gpu": nodes.gpus} if nodes.gpus else {}
    if nodes.role == "embedding":
        # It checks its rows against the limit, and is not the first that the kernel kills.
        limits["memory"] = memory
    return {"requests": requests} | ({"limits": limits} if limits else {})


def _probes(start_seconds: float) -> Manifest:
    often = {"timeoutSeconds": 10, "periodSeconds": 15}
    healthy = {"exec": {"command": probe(HEALTHY)}, **often}
    # A node that waits for its coordinator is not healthy, and is needed as soon as that is back.
    alive = {"exec": {"command": probe(ALIVE)}, **often, "failureThreshold": 4}
    started = healthy | {"failureThreshold": 2 + int(start_seconds / 15)}
    return {"startupProbe": started, "livenessProbe": alive, "readinessProbe": healthy}


class _Dumper(yaml.SafeDumper):
    def ignore_aliases(self, data: Any) -> bool:  # noqa: ARG002
        """Return True: equal parts are written again."""
        return True


def _text(dumper: _Dumper, text: str) -> yaml.ScalarNode:
    style = "|" if "\n" in text else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _text)


def yaml_text(documents: Iterable[Mapping[str, Any]]) -> str:
    """Return the documents as one YAML stream, keys in their order."""
    return yaml.dump_all(documents, Dumper=_Dumper, sort_keys=False, width=110)
