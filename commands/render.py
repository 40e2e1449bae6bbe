"""`shadowsync render`: a job as manifests or a script for a cluster."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from .options.job_arguments import job_of, job_options

if TYPE_CHECKING:
    from ..deployment.kubernetes import KubernetesOptions
    from ..pipeline.config.job import Job

F = TypeVar("F", bound=Callable[..., Any])


@click.group()
def render() -> None:
    """Render a job for the engine of a cluster.

    What is printed is applied by the engine's own command, such as kubectl or sbatch.
    """


def _pod_options(command: F) -> F:
    """Add the options of a job in pods; they become the arguments of `_options`."""
    for option in reversed(
        (
            click.option("--image", required=True, help="The image for every role (docker/Dockerfile)."),
            click.option("--name", help="Name of the job's objects. [default: run.name]"),
            click.option("--namespace", default="", help="Namespace. [default: that of kubectl's context]"),
            click.option(
                "--runs-claim",
                default="",
                metavar="CLAIM",
                help="PersistentVolumeClaim, ReadWriteMany, of the run folders; the pods see it at /runs. A"
                " job with run.storage needs none; its coordinator alone mounts the one that is given.",
            ),
            click.option(
                "--storage-secret",
                default="",
                metavar="SECRET",
                help="Secret with the environment variables of run.storage, such as AWS_ACCESS_KEY_ID.",
            ),
            click.option(
                "--data-claim",
                default="",
                metavar="CLAIM",
                help="PersistentVolumeClaim of the input; coordinator and readers see it at /data.",
            ),
            click.option(
                "--key-secret", metavar="SECRET", help="Secret with the key as job.key. [default: NAME-key]"
            ),
            click.option("--queue", default="", help="Kueue's local queue."),
        )
    ):
        command = option(command)
    return command


def _options(
    job: Job,
    *,
    name: str | None,
    key_secret: str | None,
    image: str,
    control_image: str | None = None,
    **given: str,
) -> KubernetesOptions:
    from ..deployment.kubernetes import KubernetesOptions, require_name

    own = require_name(name or job.run.name)
    return KubernetesOptions(
        name=own,
        image=image,
        control_image=control_image or image,
        key_secret=key_secret or f"{own}-key",
        **given,
    )


@render.command()
@job_options
@click.option("--control-image", help="The image of coordinator and readers. [default: --image]")
@_pod_options
def kubernetes(job_file: str, overrides: tuple[str, ...], **given: Any) -> None:
    """Print the manifests of a job: a ConfigMap and a JobSet.

    For example: `shadowsync render kubernetes job.toml --image registry/shadowsync --runs-claim runs |
    kubectl apply -f -`. The cluster needs JobSet 0.8 and Kubernetes 1.33 or later, and the Secret:
    `kubectl create secret generic NAME-key --from-file=job.key`.
    """
    from ..pipeline.jobfile.extras import require_extra

    require_extra("shadowsync render kubernetes", "kubernetes")
    from ..deployment.kubernetes import kubernetes_manifests
    from ..deployment.yaml_text import yaml_text

    job = job_of(job_file, overrides, torch=True)
    click.echo(yaml_text(kubernetes_manifests(job, _options(job, **given))), nl=False)


@render.command()
@job_options
@_pod_options
def rayjob(job_file: str, overrides: tuple[str, ...], **given: Any) -> None:
    """Print the manifests of a job: a ConfigMap and KubeRay's RayJob.

    It makes a Ray cluster with a pod for each node, and runs the job there as `shadowsync run --on ray` does.
    The image needs Ray, too (docker/Dockerfile.ray). The cluster needs KubeRay 1.1 or later, and the Secret,
    as for `render kubernetes`.
    """
    from ..pipeline.jobfile.extras import require_extra

    require_extra("shadowsync render rayjob", "kubernetes")
    from ..deployment.kuberay import ray_job_manifests
    from ..deployment.yaml_text import yaml_text

    job = job_of(job_file, overrides, torch=True)
    click.echo(yaml_text(ray_job_manifests(job, _options(job, **given))), nl=False)


@render.command()
@job_options
@click.option(
    "--key",
    required=True,
    type=click.Path(path_type=Path),
    help="The job's key, under the same path on all machines.",
)
@click.option("--name", help="Name of the job. [default: run.name]")
@click.option("--sbatch", multiple=True, metavar="OPTION", help="An option of sbatch: --partition=gpu.")
@click.option(
    "--prolog", default="", metavar="COMMAND", help="A command to run first: source venv/bin/activate."
)
def slurm(
    job_file: str,
    overrides: tuple[str, ...],
    key: Path,
    name: str | None,
    sbatch: tuple[str, ...],
    prolog: str,
) -> None:
    """Print a batch script of a job for sbatch.

    For example: `shadowsync render slurm job.toml --key job.key > job.sh; sbatch job.sh`. All machines see
    the job file, the key, the input and the run folders under the same paths.
    """
    from ..deployment.slurm import SlurmOptions, slurm_script

    job = job_of(job_file, overrides, torch=True)
    options = SlurmOptions(
        name=name or job.run.name,
        job_file=str(Path(job_file).absolute()),
        overrides=overrides,
        key=str(key.absolute()),
        directives=sbatch,
        prolog=prolog,
    )
    click.echo(slurm_script(job, options), nl=False)
