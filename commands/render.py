"""`shadowsync render`: a job as manifests or a script for a cluster."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from .options.job_arguments import job_of, job_options


@click.group()
def render() -> None:
    """Render a job for the engine of a cluster.

    What is printed is applied by the engine's own command, such as kubectl or sbatch.
    """


@render.command()
@job_options
@click.option("--image", required=True, help="The image for every role (docker/Dockerfile).")
@click.option("--control-image", help="The image of coordinator and readers. [default: --image]")
@click.option("--name", help="Name of the JobSet. [default: run.name]")
@click.option("--namespace", default="", help="Namespace. [default: that of kubectl's context]")
@click.option(
    "--runs-claim",
    default="",
    metavar="CLAIM",
    help="PersistentVolumeClaim, ReadWriteMany, of the run folders; the pods see it at /runs. A job with"
    " run.storage needs none; its coordinator alone mounts the one that is given.",
)
@click.option(
    "--storage-secret",
    default="",
    metavar="SECRET",
    help="Secret with the environment variables of run.storage, such as AWS_ACCESS_KEY_ID.",
)
@click.option(
    "--data-claim",
    default="",
    metavar="CLAIM",
    help="PersistentVolumeClaim of the input; coordinator and readers see it at /data.",
)
@click.option("--key-secret", metavar="SECRET", help="Secret with the key as job.key. [default: NAME-key]")
@click.option("--queue", default="", help="Kueue's local queue.")
def kubernetes(
    job_file: str,
    overrides: tuple[str, ...],
    image: str,
    control_image: str | None,
    name: str | None,
    key_secret: str | None,
    **given: Any,
) -> None:
    """Print the manifests of a job: a ConfigMap and a JobSet.

    For example: `shadowsync render kubernetes job.toml --image registry/shadowsync --runs-claim runs |
    kubectl apply -f -`. The cluster needs JobSet 0.8 and Kubernetes 1.33 or later, and the Secret:
    `kubectl create secret generic NAME-key --from-file=job.key`.
    """
    from ..pipeline.jobfile.extras import require_extra

    require_extra("shadowsync render kubernetes", "kubernetes")
    from ..deployment.kubernetes import KubernetesOptions, kubernetes_manifests, require_name
    from ..deployment.yaml_text import yaml_text

    job = job_of(job_file, overrides, torch=True)
    own = require_name(name or job.run.name)
    options = KubernetesOptions(
        name=own,
        image=image,
        control_image=control_image or image,
        key_secret=key_secret or f"{own}-key",
        **given,
    )
    click.echo(yaml_text(kubernetes_manifests(job, options)), nl=False)


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
