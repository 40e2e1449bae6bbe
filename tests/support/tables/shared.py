"""What the workers of a trainer share, in a process by itself, without a coordinator that plans."""

from __future__ import annotations

import dataclasses

from shadowsync.nodes.replica.cuda import CudaDevice
from shadowsync.nodes.replica.replica import TrainerContext
from shadowsync.pipeline.config.job import Job
from shadowsync.pipeline.embedding.placement.plan import TablePlan
from shadowsync.tests.support.fake_streams import FakeStreams


def build_shared(job: Job, *, on_device: bool = False) -> TrainerContext:
    """Its tables are split by their rows; perhaps on a device that is not there."""
    shared = TrainerContext.build(job, TablePlan.make(job.tables, job.embedding.nodes))
    return on_fake_device(shared) if on_device else shared


def on_fake_device(shared: TrainerContext, streams: FakeStreams | None = None) -> TrainerContext:
    """The same on a device that is not there; its streams are new ones by default."""
    device = CudaDevice(streams or FakeStreams())
    replica = device.replica(shared.replica.flat, shared.examples)
    return dataclasses.replace(shared, device=device, replica=replica)
