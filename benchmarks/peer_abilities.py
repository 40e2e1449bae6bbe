"""What each system of the comparison can and cannot do.

It was read in its documentation or code, not measured.

Sources: the docstrings of torch 2.13 (DistributedDataParallel, PeriodicModelAverager) and its pages on
torchrun ("when any number of workers fail we restart all the workers") and RPC ("stable and in maintenance
mode", "CUDA support is a beta feature"); facebookresearch/dlrm at 090956e (dlrm_s_pytorch.py); TorchRec
1.8.0 (DistributedModelParallel, planner); hivemind 1.1.12 (Optimizer, allreduce.py); torchft 0.2.0 (README,
local_sgd.py, data.py: "this sampler is inherently lossy"); for shadowsync its own README and tests.
"""

from __future__ import annotations

from dataclasses import dataclass

ABILITIES = (
    "tables in one copy, over machines",
    "when a trainer dies",
    "training waits for synchronization",
    "CPU, GPU",
    "algorithms of synchronization",
    "account of the examples",
)
RESTART = "torchrun restarts all from your checkpoint"
NOTHING = "nothing built in"


@dataclass(frozen=True, slots=True)
class System:
    """A system of the comparison, with what it can do.

    `label` is its name, `peers` are the runs that are its float32 figures, `abilities` is what it can do in
    the order of ABILITIES. `shipped` are the runs of its default precision, where that is not float32.
    """

    label: str
    peers: tuple[str, ...]
    abilities: tuple[str, str, str, str, str, str]
    shipped: tuple[str, ...] = ()


SYSTEMS = (
    System(
        "**shadowsync**",
        ("shadowsync",),
        (
            "yes, rows over embedding nodes",
            "the others train its batches again, each shard changes once; `shadowsync run` starts another",
            "no",
            "CPU; GPU trainers not measured yet",
            "ten, and any class of yours, in the background or at a fixed rate",
            "every batch by its id; the sums must agree, or the job says so",
        ),
        ("shadowsync_shipped",),
    ),
    System(
        "Hogwild: processes over shared memory, plain torch",
        ("torch_hogwild", "torch_hogwild_fused"),
        ("one machine only", NOTHING, "nothing to synchronize", "CPU", "none", "none"),
    ),
    System(
        "plain torch, one process of 2 threads",
        ("torch_single_t2", "torch_single_fused_t2"),
        ("one machine only", "the job is over", "nothing to synchronize", "CPU, GPU", "none", "none"),
    ),
    System(
        "DistributedDataParallel, all replicated",
        ("torch_ddp",),
        ("no, a copy a process", RESTART, "every step", "CPU, GPU", "hooks on the gradients", "none"),
    ),
    System(
        "DistributedDataParallel, tables split by all_to_all by hand",
        ("torch_ddp_mp",),
        ("yes, as you split them", RESTART, "every step", "CPU, GPU", "hooks on the gradients", "none"),
    ),
    System(
        "PeriodicModelAverager",
        ("torch_pma5", "torch_pma30"),
        (
            "no, a copy a process (measured with shared memory)",
            RESTART,
            "every so many steps",
            "CPU, GPU",
            "periodic averages, or your own averager",
            "none",
        ),
    ),
    System(
        "facebookresearch/dlrm",
        ("dlrm_repo_p1_t2", "dlrm_repo_p2_t1"),
        (
            "yes, whole tables over processes",
            "start again from its saved model",
            "every step",
            "CPU, GPU",
            "none",
            "none",
        ),
    ),
    System(
        "TorchRec, DistributedModelParallel",
        ("torchrec_dmp_p1_t2", "torchrec_dmp_p2_t1"),
        (
            "yes, by table, row or column, as its planner says",
            RESTART,
            "every step",
            "GPU first, CPU",
            "none; replicas of shards can be averaged",
            "none",
        ),
    ),
    System(
        "torch.distributed.rpc, the tutorial's way",
        ("rpc_autograd_uv",),
        (
            "yes, on a server",
            NOTHING,
            "every lookup and update",
            "CPU; CUDA is beta",
            "what you write",
            "none",
        ),
    ),
    System(
        "torch.distributed.rpc, prefetch and push by hand",
        ("rpc_push_uv",),
        ("yes, on a server", NOTHING, "as you write it", "CPU; CUDA is beta", "what you write", "none"),
    ),
    System(
        "hivemind",
        ("hivemind_averager_gap1", "hivemind_optimizer30"),
        (
            "no, a copy a peer (measured with shared memory)",
            "the others go on",
            "no, if you ask for it",
            "CPU, GPU",
            "its all-reduce of parameters or gradients",
            "a running estimate of samples",
        ),
    ),
    System(
        "torchft, LocalSGD and DiLoCo",
        ("torchft_localsgd30", "torchft_diloco30"),
        (
            "no, replicated (measured with shared memory)",
            "the others go on; the steps since the last synchronization may be dropped",
            "LocalSGD yes; DiLoCo after a delay",
            "CPU, GPU",
            "these two, or your own on its parts",
            "none; its sampler is lossy",
        ),
    ),
)


def abilities_table() -> str:
    """The table of docs/comparison.md, in Markdown.

    It says what each system can and cannot do.
    """
    lines = [f"| {' | '.join(['', *ABILITIES])} |", "|---" * (len(ABILITIES) + 1) + "|"]
    lines += [f"| {' | '.join([system.label, *system.abilities])} |" for system in SYSTEMS]
    return "\n".join(lines)
