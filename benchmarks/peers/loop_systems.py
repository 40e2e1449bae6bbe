"""Systems that synchronize a torch loop: this one, and its peers.

Each function gets a loop's model and optimizer ready, and returns the module to call and what to do after
each step. Peers are imported when they are used: they need an environment of their own.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from importlib import import_module
from pathlib import Path
from typing import Any, Final

import shadowsync
import torch
from torch import nn

# Steps between two synchronizations, of all systems that have such a number.
EXAMPLES: Final = Path(shadowsync.__file__).resolve().parent / "examples" / "algorithms"
EVERY: Final = 30
# Of those in the background that make the most of not being waited for.
OFTEN: Final = ("--set", "sync.gap=4", "--set", "sync.duty=0.1")
# Replicas keep what they trained during a round.
KEEP: Final = ("--set", 'sync.options.form="keep"')
START: Final = ("--set", "sync.start_iterations=100", "--set", "sync.start_duty=1.0")
MOMENTUM: Final = ("--set", "sync.options.elastic_rate=1.0", "--set", 'sync.options.block_momentum="auto"')
STORE_PORT: Final = 29_400
SERVER_PORT: Final = 29_300
MATCHMAKING_SECONDS: Final = 1.0
SECONDS: Final = timedelta(seconds=30)


@dataclass(frozen=True, slots=True)
class Place:
    """Where a loop runs: number, addresses, and the folder that all share."""

    rank: int
    addresses: tuple[str, ...]
    server: str
    interface: str
    folder: Path

    @property
    def world(self) -> int:
        """The number of loops."""
        return len(self.addresses)

    @property
    def address(self) -> str:
        """The address of this loop."""
        return self.addresses[self.rank]


Ready = tuple[nn.Module, Callable[[], object]]
System = Callable[[nn.Module, torch.optim.Optimizer, Place], Ready]


def attached(model: nn.Module, optimizer: torch.optim.Optimizer, place: Place) -> Ready:
    """Attach to the hub of this run; it says which algorithm."""
    sync = shadowsync.attach(
        model,
        optimizer,
        join=f"tcp://{place.server}:{SERVER_PORT}",
        key=place.folder / "job.key",
        wait_for=place.world,
    )
    _KEPT.append(sync)
    _COUNTS.append(lambda: int(sync.metrics()["rounds"]))
    return model, lambda: None


def ddp(model: nn.Module, optimizer: torch.optim.Optimizer, place: Place) -> Ready:  # noqa: ARG001
    """DistributedDataParallel: gradients are averaged in every step."""
    _process_group(place)
    return nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=True), lambda: None


def periodic_averager(model: nn.Module, optimizer: torch.optim.Optimizer, place: Place) -> Ready:  # noqa: ARG001
    """PeriodicModelAverager of torch: the loop waits for the mean after every EVERY steps."""
    _process_group(place)
    averagers = import_module("torch.distributed.algorithms.model_averaging.averagers")
    averager = averagers.PeriodicModelAverager(period=EVERY, warmup_steps=0)
    return model, lambda: averager.average_parameters(model.parameters())


def torchft_local_sgd(model: nn.Module, optimizer: torch.optim.Optimizer, place: Place) -> Ready:
    """LocalSGD of torchft."""
    local_sgd = import_module("torchft.local_sgd")
    _enter(local_sgd.LocalSGD(_torchft_manager(model, place), model, optimizer, sync_every=EVERY))
    return model, lambda: None


def torchft_diloco(model: nn.Module, optimizer: torch.optim.Optimizer, place: Place) -> Ready:
    """DiLoCo of torchft; the sum is made during half of the steps."""
    local_sgd = import_module("torchft.local_sgd")
    outer = torch.optim.SGD(model.parameters(), lr=0.7, momentum=0.9, nesterov=True)
    manager = _torchft_manager(model, place)
    _enter(
        local_sgd.DiLoCo(
            manager,
            [model],
            optimizer,
            outer,
            sync_every=EVERY,
            pin_memory=False,
            use_bucketization=True,
            fragment_sync_delay=EVERY // 2,
        )
    )
    return model, lambda: None


def hivemind_averager(model: nn.Module, optimizer: torch.optim.Optimizer, place: Place) -> Ready:  # noqa: ARG001
    """DecentralizedAverager of hivemind in a thread of ours: p += average - snapshot."""
    import_module("multiprocessing").set_start_method("fork", force=True)
    hivemind = import_module("hivemind")
    told = place.folder / "hivemind.txt"
    where: dict[str, Any] = {"host_maddrs": [f"/ip4/{place.address}/tcp/0"], "start": True, "use_ipfs": False}
    if place.rank == 0:
        dht = hivemind.DHT(**where)
        partial = told.with_suffix(".partial")
        partial.write_text("\n".join(map(str, dht.get_visible_maddrs())), encoding="utf-8")
        partial.rename(told)
    else:
        while not told.exists():
            time.sleep(0.05)
        dht = hivemind.DHT(initial_peers=told.read_text("utf-8").splitlines(), **where)
    values = [parameter.data for parameter in model.parameters()]
    averager = hivemind.DecentralizedAverager(
        [torch.zeros_like(one) for one in values],
        dht,
        prefix="peers",
        start=True,
        target_group_size=place.world,
        min_matchmaking_time=MATCHMAKING_SECONDS,
        request_timeout=MATCHMAKING_SECONDS / 2,
        allreduce_timeout=10.0,
    )
    complete: list[int] = []
    _COUNTS.append(lambda: len(complete))
    threading.Thread(target=_average, args=(averager, values, complete), daemon=True).start()
    return model, lambda: None


def rounds() -> int | None:
    """Return how many rounds were complete; None where they come at fixed steps."""
    return _COUNTS[0]() if _COUNTS else None


def _average(averager: Any, values: Sequence[torch.Tensor], complete: list[int]) -> None:
    while True:
        with averager.get_tensors() as tensors:
            snapshot = [one.clone() for one in values]
            for tensor, one in zip(tensors, snapshot, strict=True):
                tensor.copy_(one)
        found = None
        with contextlib.suppress(Exception):
            # No group in time is usual, and says nothing.
            found = averager.step(timeout=10)
        if found and len(found) > 1:
            with averager.get_tensors() as tensors:
                for one, tensor, before in zip(values, tensors, snapshot, strict=True):
                    one.add_(tensor - before)
            complete.append(len(found))


def _process_group(place: Place) -> None:
    os.environ["GLOO_SOCKET_IFNAME"] = place.interface
    torch.distributed.init_process_group(
        "gloo",
        init_method=f"tcp://{place.addresses[0]}:{STORE_PORT}",
        rank=place.rank,
        world_size=place.world,
        timeout=SECONDS,
    )


def _torchft_manager(model: nn.Module, place: Place) -> Any:
    os.environ["GLOO_SOCKET_IFNAME"] = place.interface
    os.environ["NO_PROXY"] = "*"
    torchft = import_module("torchft")
    distributed: Any = torch.distributed
    store = distributed.TCPStore(place.address, STORE_PORT, is_master=True, wait_for_workers=False)
    _KEPT.append(store)
    return torchft.Manager(
        pg=torchft.ProcessGroupGloo(timeout=SECONDS),
        min_replica_size=place.world,
        use_async_quorum=False,
        load_state_dict=model.load_state_dict,
        state_dict=model.state_dict,
        replica_id=f"g{place.rank}",
        store_addr=place.address,
        store_port=store.port,
        rank=0,
        world_size=1,
        lighthouse_addr=f"http://{place.server}:{SERVER_PORT}",
        hostname=place.address,
        timeout=SECONDS,
    )


def _enter(block: Any) -> None:
    """Enter a block that ends with the process."""
    block.__enter__()
    _KEPT.append(block)


_KEPT: list[Any] = []
_COUNTS: list[Callable[[], int]] = []

SYSTEMS: Final[Mapping[str, System]] = {
    "none": attached,
    "easgd": attached,
    "easgd_often": attached,
    "ma": attached,
    "ma_often": attached,
    "ma_keep_whole": attached,
    "ma_keep": attached,
    "ma_keep_most": attached,
    "ma_start": attached,
    "bmuf_keep": attached,
    "downpour_mean": attached,
    "diloco": attached,
    "diloco_often": attached,
    "ddp": ddp,
    "periodic_averager": periodic_averager,
    "torchft_local_sgd": torchft_local_sgd,
    "torchft_diloco": torchft_diloco,
    "hivemind_averager": hivemind_averager,
}
# Those of ours, with the hub's options.
HUBS: Final[Mapping[str, tuple[str, ...]]] = {
    "none": ("--algo", "none"),
    "easgd": ("--algo", "easgd", "--set", f"sync.gap={EVERY}"),
    "easgd_often": ("--algo", "easgd", *OFTEN),
    "ma": ("--algo", "ma", "--set", f"sync.gap={EVERY}"),
    "ma_often": ("--algo", "ma", *OFTEN),
    "ma_keep_whole": ("--algo", "ma", *OFTEN, *KEEP, "--set", "sync.options.elastic_rate=1.0"),
    "ma_keep": ("--algo", "ma", *OFTEN, *KEEP),
    "ma_keep_most": ("--algo", "ma", *OFTEN, *KEEP, "--set", "sync.options.elastic_rate=0.75"),
    "ma_start": ("--algo", "ma", *OFTEN, *START),
    "bmuf_keep": ("--algo", "bmuf", *OFTEN, *KEEP, *MOMENTUM),
    "downpour_mean": ("--algo", f"{EXAMPLES}/downpour.py:Downpour", *OFTEN, "--set", "sync.options.rate=0.5"),
    "diloco": ("--algo", f"{EXAMPLES}/diloco.py:DiLoCo", "--set", f"sync.gap={EVERY}"),
    "diloco_often": ("--algo", f"{EXAMPLES}/diloco.py:DiLoCo", *OFTEN),
}


def serve_lighthouse(place: Place) -> None:
    """Start torchft's lighthouse, on a thread of its own."""
    coordination = import_module("torchft.coordination")
    _KEPT.append(
        coordination.LighthouseServer(
            bind=f"{place.server}:{SERVER_PORT}", min_replicas=place.world, join_timeout_ms=2000
        )
    )
