"""`shadowsync render`: a job as manifests or a script for a cluster."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from .options import job_of, job_options, trust_option

if TYPE_CHECKING:
    from ..deployment.pods import KubernetesOptions
    from ..pipeline.config.job import Job


@click.group()
def render() -> None:
    """Render a job for the engine of a cluster.

    What is printed is applied by the engine's own command, such as kubectl or sbatch.
    """


def _options(
    job: Job,
    *,
    name: str | None,
    key_secret: str | None,
    image: str,
    node_selector: tuple[str, ...],
    control_image: str | None = None,
    **options: Any,
) -> KubernetesOptions:
    from ..deployment.kubernetes import require_name
    from ..deployment.pods import KubernetesOptions

    job_name = require_name(name or job.run.name)
    return KubernetesOptions(
        name=job_name,
        image=image,
        control_image=control_image or image,
        key_secret=key_secret or f"{job_name}-key",
        node_selector=dict(map(_label, node_selector)),
        **options,
    )


def _label(text: str) -> tuple[str, str]:
    label, is_label, value = text.partition("=")
    if not (label and is_label):
        raise click.BadParameter(f"{text!r} is no LABEL=VALUE", param_hint="--node-selector")
    return label, value


def _dense_parameters(job: Job) -> int:
    """Count the dense model's parameters.

    Returns 0, and says so, if the model's code is on other machines.
    """
    from ..pipeline.errors import JobFileError
    from ..pipeline.models.registry import build_model

    try:
        return sum(parameter.numel() for parameter in build_model(job).parameters())
    except JobFileError as error:
        click.echo(f"trainers and sync nodes ask for the memory of a small model: {error}", err=True)
        return 0


def _say_that_no_gpu_is_asked_for(job: Job) -> None:
    if job.trainer.device == "auto":
        click.echo(
            'trainer.device is "auto": no GPU is asked for; --set trainer.device=cuda asks for one a trainer',
            err=True,
        )


@render.command()
@job_options
@click.option("--control-image", help="The image of coordinator and readers. [default: --image]")
@click.option(
    "--metrics-secret",
    default="",
    metavar="SECRET",
    help="Secret with the output of `shadowsync key token` as token: prints a PodMonitor, by which the"
    " Prometheus operator scrapes the pods.",
)
@click.option("--image", required=True, help="The image for every role (docker/Dockerfile).")
@click.option("--name", help="Name of the job's objects. [default: run.name]")
@click.option("--namespace", default="", help="Namespace. [default: that of kubectl's context]")
@click.option(
    "--runs-claim",
    default="",
    metavar="CLAIM",
    help="PersistentVolumeClaim, ReadWriteMany, of the run folders; the pods see it at /runs. A"
    " job with run.storage needs none; its coordinator alone mounts the one that is given.",
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
@click.option("--service-account", default="", metavar="NAME", help="Service account of the pods.")
@click.option("--priority-class", default="", metavar="NAME", help="Priority class of the pods.")
@click.option(
    "--pull-secret",
    "pull_secrets",
    multiple=True,
    metavar="SECRET",
    help="Secret of the images' registry.",
)
@click.option(
    "--node-selector",
    multiple=True,
    metavar="LABEL=VALUE",
    help="A label of the machines that take the pods.",
)
@click.option(
    "--toleration",
    "tolerations",
    multiple=True,
    metavar="KEY[=VALUE][:EFFECT]",
    help="A taint of the machines that take the pods.",
)
@click.option(
    "--spread",
    default="",
    metavar="LABEL",
    help="Spread the pods of a role over machines that differ in LABEL, such as kubernetes.io/hostname.",
)
@click.option(
    "--ttl-seconds",
    type=click.IntRange(min=0),
    help="Remove the job and its pods this long after its end. [default: never]",
)
@trust_option
def kubernetes(job_file: str, overrides: tuple[str, ...], trust: bool, **options: Any) -> None:
    """Print the manifests of a job: a ConfigMap, a NetworkPolicy and a JobSet.

    For example: `shadowsync render kubernetes job.toml --image registry/shadowsync --runs-claim runs |
    kubectl apply -f -`. The cluster needs JobSet 0.8 and Kubernetes 1.33 or later, and the Secret:
    `kubectl create secret generic NAME-key --from-file=job.key`.
    """
    from ..pipeline.jobfile.extras import require_extra

    require_extra("shadowsync render kubernetes", "kubernetes")
    from ..deployment.kubernetes import kubernetes_manifests, yaml_text

    job = job_of(job_file, overrides, trust=trust)
    manifests = kubernetes_manifests(job, _options(job, **options), _dense_parameters(job))
    _say_that_no_gpu_is_asked_for(job)
    click.echo(yaml_text(manifests), nl=False)


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

    job = job_of(job_file, overrides, may_import=False, trust=True)
    _say_that_no_gpu_is_asked_for(job)
    options = SlurmOptions(
        name=name or job.run.name,
        job_file=str(Path(job_file).absolute()),
        overrides=overrides,
        key=str(key.absolute()),
        directives=sbatch,
        prolog=prolog,
    )
    click.echo(slurm_script(job, options), nl=False)
