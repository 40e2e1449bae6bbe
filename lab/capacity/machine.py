"""The machines of a plan, as `--machine` and `--price` describe them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from ...pipeline.config.network import parse_bandwidth, parse_delay
from ...pipeline.errors import JobFileError
from ...pipeline.performance.plan_basis import PlanBasis
from ...pipeline.text.sizes import parse_size

_KEYS: Final = ("cores", "memory", "nic", "delay")
_EXAMPLE: Final = "write --machine cores=16,memory=64GiB,nic=25gbit"
_SECONDS_AN_HOUR: Final = 3600.0


@dataclass(frozen=True)
class Machine:
    """One of the plan's equal machines.

    Attributes:
        cores: cores that the job may use.
        memory_bytes: memory that the job may use.
        nic_bytes_per_second: bandwidth of its network card in each direction; None: not a limit.
        delay_seconds: one way between two machines.
    """

    cores: int
    memory_bytes: float
    nic_bytes_per_second: float | None = None
    delay_seconds: float = 0.0


def parse_machine(text: str | None, cores: int, basis: PlanBasis) -> Machine:
    """Parse `--machine`; what it leaves out is as on the profiled machine.

    Args:
        text: the option's value; None if it is not given.
        cores: cores of the profiled machine.
        basis: what the profile says of its memory.

    Raises JobFileError.
    """
    machine = Machine(cores, float(basis.machine_memory_bytes))
    values: dict[str, str] = {}
    for part in text.split(",") if text is not None else ():
        key, equals, value = (piece.strip() for piece in part.partition("="))
        if not equals or key not in _KEYS or key in values:
            raise JobFileError(
                f"--machine: {part.strip()!r} is not one KEY=VALUE of {', '.join(_KEYS)}", remedy=_EXAMPLE
            )
        values[key] = value
    try:
        return Machine(
            cores=_cores(values["cores"]) if "cores" in values else machine.cores,
            memory_bytes=_memory(values["memory"]) if "memory" in values else machine.memory_bytes,
            nic_bytes_per_second=parse_bandwidth(values["nic"]) if "nic" in values else None,
            delay_seconds=parse_delay(values["delay"]) if "delay" in values else 0.0,
        )
    except ValueError as error:
        raise JobFileError(f"--machine: {error}", remedy=_EXAMPLE) from error


def parse_price(text: str) -> float:
    """Parse `--price`, such as "1.2/h", into a machine's price per second; raises JobFileError."""
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?) ?/ ?h", text.strip())
    if match is None:
        raise JobFileError(
            f"--price: {text!r} given", remedy="write a machine's price an hour, such as 1.2/h"
        )
    return float(match[1]) / _SECONDS_AN_HOUR


def _cores(text: str) -> int:
    if not (text.isascii() and text.isdigit() and 1 <= int(text) <= 4096):
        raise ValueError(f"cores={text!r} given; write a number from 1 to 4096")
    return int(text)


def _memory(text: str) -> float:
    try:
        size = parse_size(text)
    except ValueError as error:
        raise ValueError(f"memory={error}") from error
    if size < 2**20:
        raise ValueError(f"memory={text!r} given; at least 1MiB")
    return float(size)
