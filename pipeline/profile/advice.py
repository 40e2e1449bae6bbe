"""What helps against each bottleneck. Every setting that is named here exists: a test holds it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

MORE_CORES: Final = (
    "More cores, or fewer processes on these: steps that could have run waited for one. More trainers or"
    " workers here would wait for the same cores."
)
PREPARE: Final = (
    "What is read is parsed, and its ids hashed, again in every run: `shadowsync prepare JOB.toml --out"
    " FOLDER` does it once, and with `data.prepared` set to that folder text is read several times as fast."
)
ADVICE: Final[Mapping[str, tuple[str, ...]]] = {
    "compute": (
        "More trainers or workers (`trainer.count`, `trainer.workers`), where cores are free.",
        "Cheaper arithmetic: `trainer.precision`, smaller `model.bottom` and `model.top`.",
        "Where the worker's own Python is a large part of it, a larger `trainer.batch`.",
    ),
    "reader": (
        "More readers (`data.readers`), where cores and files are enough for them.",
        "Faster storage, or the files nearer, if the reader waited for them and did not parse.",
    ),
    "network": (
        "Fewer bytes: `codecs.vectors` and `codecs.gradients` as bfloat16 or int8, or a smaller"
        " `model.embedding_dim`.",
        "More batches under way, against a long delay: `trainer.lookups_ahead` and `trainer.credit`.",
        "Trainers and embedding nodes nearer to each other, or more embedding nodes, if each has its own"
        " link.",
    ),
    "embedding": (
        "More embedding nodes (`embedding.nodes`), on cores of their own.",
        "Fewer rows in a batch: bags that are cut short, or fewer tables.",
        "If the process stood still or had no core: give it one, and see what else runs there.",
    ),
    "sync": (
        'Synchronization in the background: `sync.mode = "shadow"`; training then never waits for it.',
        "At a fixed rate, rarer rounds: a larger `sync.every`.",
        "Smaller rounds: a codec on `codecs.center_up` and `codecs.center_down`, or on `codecs.peers_up` and"
        " `codecs.peers_down`.",
    ),
    "gil": (
        'Workers as processes: `trainer.worker_kind = "process"`; each has an interpreter of its own.',
        "Or more trainers with a worker each: `trainer.count` up, `trainer.workers` down.",
        "Less Python in each step: in a model of one's own, whole tensors in place of loops, and a larger"
        " `trainer.batch`.",
    ),
    "balanced": (
        "Nothing stands out. More of everything (trainers, readers, embedding nodes) scales it; a change of"
        " one part alone gains little.",
    ),
}
