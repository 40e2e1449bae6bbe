"""Scoring a saved model without a cluster: the tables of all shards in this process's memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import psutil
import torch
from torch import nn

from ..pipeline.checkpoint.manifest import CheckpointManifest, open_checkpoint
from ..pipeline.checkpoint.reader import TensorReader
from ..pipeline.config.job import Job
from ..pipeline.config.load import validate_job
from ..pipeline.data.bad_rows import BadRows
from ..pipeline.data.batch import Float32Array
from ..pipeline.data.cutter import FeatureShape, cut_batches
from ..pipeline.data.spans import plan_spans
from ..pipeline.embedding.plan import TablePlan
from ..pipeline.embedding.routing import ShardRouter
from ..pipeline.errors import CheckpointError, DataError, ResourceError
from ..pipeline.metrics.quality import QualitySums, gain_ratio
from ..pipeline.models.registry import build_model
from .job_report import teacher_ne

SCORE_BATCH = 4096


def evaluate_run(run_folder: Path, patterns: list[str]) -> dict[str, Any]:
    """NE, AUC, logloss and calibration of a run's saved model on data files of the job's format.

    Raises CheckpointError, DataError, ResourceError (the tables do not fit into memory).
    """
    folder, manifest = open_checkpoint(run_folder, verify=True)
    job = validate_job(manifest.job, where=str(folder))
    module = load_dense(folder, manifest, job)
    shards = load_shards(folder, manifest, job)
    plan = TablePlan.make(job.table_rows, job.model.embedding_dim, job.embedding.nodes)
    shape = FeatureShape(job.data.dense_features, job.data.categorical_features, job.table_rows)
    router, sums = ShardRouter(plan), QualitySums()
    bad_rows = BadRows(job.data.max_bad_rows)
    spans = plan_spans(patterns, job.data.format, job.data.span_bytes, shape)
    with torch.no_grad():
        for span in spans:
            for batch in cut_batches(
                span,
                epoch=0,
                seed=job.run.seed,
                data_format=job.data.format,
                shape=shape,
                batch=SCORE_BATCH,
                shuffle_window=0,
                bad_rows=bad_rows,
            ):
                requests = router.requests(batch.rows)
                answers = [shards[request.node][request.rows] for request in requests]
                embeddings = router.assemble(requests, list(answers)).embeddings
                sums.add(module(torch.from_numpy(batch.dense), embeddings).numpy(), batch.labels)
    if not sums.examples:
        raise DataError("no example could be read", where=", ".join(patterns))
    teacher = teacher_ne(sorted({span.path for span in spans}))
    return {
        "model": manifest.model,
        "examples": sums.examples,
        "bad_rows": bad_rows.count,
        "ne": sums.ne,
        "auc": sums.auc,
        "logloss": sums.logloss,
        "calibration": sums.calibration,
        "teacher_ne": teacher,
        "gain_ratio": gain_ratio(sums.ne, teacher),
    }


def load_dense(folder: Path, manifest: CheckpointManifest, job: Job) -> nn.Module:
    """The dense module with the saved weights, in evaluation mode; raises CheckpointError."""
    module = build_model(job)
    reader = TensorReader(folder, [entry for entry in manifest.files if entry.role == "dense"])
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            values = reader.read(name)
            if tuple(values.shape) != tuple(parameter.shape):
                raise CheckpointError(
                    f"{name} is {values.shape}, the model's is {tuple(parameter.shape)}", where=str(folder)
                )
            parameter.copy_(torch.from_numpy(np.array(values)))
    return module.eval()


def load_shards(folder: Path, manifest: CheckpointManifest, job: Job) -> list[Float32Array]:
    """The rows of every embedding node, float32 [rows, dim] each; raises ResourceError, CheckpointError."""
    plan = TablePlan.make(job.table_rows, job.model.embedding_dim, job.embedding.nodes)
    needed = sum(plan.rows_of(node) for node in range(plan.nodes)) * plan.dim * 4
    available = psutil.virtual_memory().available
    if needed > available:
        raise ResourceError(
            f"the tables need {needed / 2**30:.2f} GiB of memory; {available / 2**30:.2f} GiB are available",
            where=str(folder),
            remedy="evaluate on a larger machine, or in the job, by data.eval_path",
        )
    shards = []
    for node in range(plan.nodes):
        entries = [entry for entry in manifest.files if entry.role == f"embedding-{node}"]
        shards.append(TensorReader(folder, entries).read("weights"))
    return shards
