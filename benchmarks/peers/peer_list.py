"""The peers (other systems that people would pick), and how each is started.

A folder has a harness script for each. The script takes `--batch`, `--warm` and `--window` (seconds), runs
its peer on the model and the data of the comparison, and ends with a line of JSON that has `ex_s` and
`cpu_s_per_M`, over all processes.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from shadowsync.benchmarks.pairs import Figures

LIMIT_SECONDS = 150.0


class PeerFailed(RuntimeError):
    """A peer gave no figures; the message has the end of its output."""


@dataclass(frozen=True, slots=True)
class Peer:
    """A peer: its harness script, the script's arguments, and its environment's name."""

    script: str
    arguments: tuple[str, ...]
    python: str
    least_warm_seconds: float = 0.0
    least_window_seconds: float = 0.0


def _torch(*arguments: str) -> Peer:
    return Peer("p2_torch.py", arguments, "torch")


PEERS = {
    "torch_hogwild_fused": _torch("--mode", "hogwild", "--emb", "fused"),
    "torch_hogwild": _torch("--mode", "hogwild"),
    "torch_single_fused_t2": _torch("--mode", "single", "--emb", "fused"),
    "torch_single_t2": _torch("--mode", "single"),
    "torch_ddp": _torch("--mode", "ddp"),
    "torch_ddp_mp": _torch("--mode", "ddp_mp"),
    "torch_pma5": _torch("--mode", "pma5"),
    "torch_pma30": _torch("--mode", "pma30"),
    "dlrm_repo_p1_t2": Peer("p1_dlrm.py", ("--threads", "2"), "dlrm"),
    "dlrm_repo_p2_t1": Peer("p1_dlrm.py", ("--world", "2", "--threads", "1"), "dlrm"),
    "torchft_localsgd30": Peer("p4_torchft.py", ("--mode", "localsgd"), "torchft"),
    "torchft_diloco30": Peer("p4_torchft.py", ("--mode", "diloco"), "torchft"),
    "torchrec_dmp_p1_t2": Peer("p5_torchrec.py", (), "torchrec"),
    "torchrec_dmp_p2_t1": Peer("p5_torchrec.py", ("--world", "2", "--threads", "1"), "torchrec"),
    "rpc_autograd_uv": Peer("p7_rpc.py", ("--mode", "autograd"), "torch"),
    "rpc_push_uv": Peer("p7_rpc.py", ("--mode", "push"), "torch"),
    "hivemind_averager_gap1": Peer("p3_hivemind.py", ("--mode", "averager"), "hivemind"),
    # Its first round takes some seconds, and a window must hold at least one.
    "hivemind_optimizer30": Peer("p3_hivemind.py", ("--mode", "optimizer"), "hivemind", 6.0, 8.0),
}


def pythons(given: Sequence[str], variables: Mapping[str, str]) -> dict[str, str]:
    """The Python of each environment: NAME=PATH in `given`, else the variable PY_NAME.

    Plain torch peers default to the Python that runs this. Raises SystemExit for a name that no peer needs.
    """
    names = sorted({peer.python for peer in PEERS.values()})
    found = {name: variables[f"PY_{name.upper()}"] for name in names if variables.get(f"PY_{name.upper()}")}
    found.setdefault("torch", sys.executable)
    for text in given:
        name, _, path = text.partition("=")
        if name not in names or not path:
            raise SystemExit(f"--python {text}: NAME=PATH with NAME one of {', '.join(names)}")
        found[name] = path
    return found


def run_peer(peer: Peer, harness: Path, python: str, warm: float, window: float, batch: int) -> Figures:
    """Run a peer once, in an environment of its own.

    `warm` and `window` are in seconds. Raises PeerFailed if the peer fails or exceeds LIMIT_SECONDS.
    """
    command = [python, str(harness / peer.script), *peer.arguments, "--batch", str(batch)]
    command += ["--warm", str(max(warm, peer.least_warm_seconds))]
    command += ["--window", str(max(window, peer.least_window_seconds))]
    variables = {key: value for key, value in os.environ.items() if key != "PEERS_OUT"}
    # The harness's scripts import each other, and must not leave byte code in a folder that is not ours.
    variables["PYTHONDONTWRITEBYTECODE"] = "1"
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, env=variables, cwd=harness,
            stdin=subprocess.DEVNULL, timeout=LIMIT_SECONDS,
        )  # fmt: skip
    except subprocess.TimeoutExpired as error:
        raise PeerFailed(f"no answer in {LIMIT_SECONDS:.0f} s") from error
    if done.returncode:
        raise PeerFailed(f"ended with {done.returncode}: {done.stderr[-1500:]}")
    return read_figures(done.stdout)


def read_figures(printed: str) -> Figures:
    """The figures of the last line of JSON that has `ex_s`.

    Raises PeerFailed if there is none.
    """
    for line in reversed(printed.splitlines()):
        if line.startswith("{") and '"ex_s"' in line:
            found = json.loads(line)
            return {
                "examples_per_second": float(found["ex_s"]),
                "cpu_seconds_per_million": float(found["cpu_s_per_M"]),
            }
    raise PeerFailed(f"no line of JSON with ex_s: {printed[-500:]}")
