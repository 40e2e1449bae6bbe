"""The pods that a cluster makes of a rendered job, for `podman kube play`.

    shadowsync render kubernetes ... > job.yaml; python docker/pods_of_jobset.py job.yaml FOLDER

Prints the pods' names, the coordinator's first; FOLDER gets NAME.yaml and, for a shell of the pod, its probes
as NAME.probes. What an engine of one machine lacks is changed: the key is in
a claim `key` instead of a Secret, no port is published on the host, and an empty folder has the pod in its
name, since podman would give all pods the same one.
"""

from __future__ import annotations

import copy
import shlex
import sys
from pathlib import Path
from typing import Any

import yaml


def pods_of(config: dict[str, Any], job_set: dict[str, Any]) -> dict[str, list[dict[str, Any]]]:
    """Return the documents of each pod, by its name: the ConfigMap and the pod."""
    pods = {}
    for replicated in job_set["spec"]["replicatedJobs"]:
        job = replicated["template"]["spec"]
        for index in range(job["completions"]):
            name = f"{job_set['metadata']['name']}-{replicated['name']}-0-{index}"
            spec = copy.deepcopy(job["template"]["spec"])
            spec["hostname"] = name
            del spec["containers"][0]["ports"]
            empty = {volume["name"] for volume in spec["volumes"] if "emptyDir" in volume}
            for volume in [*spec["volumes"], *spec["containers"][0]["volumeMounts"]]:
                if volume["name"] in empty:
                    volume["name"] = f"{name}-{volume['name']}"
                if volume.pop("secret", None):
                    volume["persistentVolumeClaim"] = {"claimName": "key"}
            pods[name] = [
                config,
                {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec},
            ]
    return pods


def main() -> None:
    """Write the files."""
    rendered = yaml.safe_load_all(Path(sys.argv[1]).read_text(encoding="utf-8"))
    by_kind = {manifest["kind"]: manifest for manifest in rendered}
    for name, documents in pods_of(by_kind["ConfigMap"], by_kind["JobSet"]).items():
        (Path(sys.argv[2]) / f"{name}.yaml").write_text(yaml.safe_dump_all(documents), encoding="utf-8")
        (container,) = documents[1]["spec"]["containers"]
        probes = [container[f"{kind}Probe"]["exec"]["command"] for kind in ("startup", "liveness")]
        lines = "".join(f"{shlex.join(command)} &&\n" for command in probes)
        (Path(sys.argv[2]) / f"{name}.probes").write_text(f"{lines}true\n", encoding="utf-8")
        print(name)


if __name__ == "__main__":
    main()
