"""The section of a job file on addresses and the network."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from .section import Section
from .slow_network import SlowNetwork, parse_bandwidth, parse_delay


class NetworkSection(Section):
    """Addresses, which differ from host to host, and the transport. A slow network can be put on the links,
    under `shadowsync run` only. Nodes need not agree on this section."""

    transport: Literal["auto", "tcp", "ipc"] = Field(
        default="auto",
        description='"ipc" costs a third less CPU than loopback TCP and stays on one Linux machine; "auto"'
        " takes it for the nodes of `shadowsync run` while `bind` is the loopback address, else TCP.",
    )
    shared_memory: bool = Field(
        default=True,
        description="Vectors and gradients between a worker and an embedding node on one Linux machine lie in"
        ' memory that both see, instead of in messages. Never with `transport = "tcp"` or all links slow.',
    )
    bind: str = Field(default="127.0.0.1", description="Host to listen on, where `--bind` is not given.")
    advertise: str = Field(
        default="", description="Host that others are told, where `--advertise` is not given; empty: `bind`."
    )
    delay: str = Field(default="", description='A slow network: for example "50ms", one way; empty: none.')
    bandwidth: str = Field(
        default="", description='A slow network: for example "100mbit" of each listening node, each way.'
    )
    delay_links: Literal["sync", "all"] = Field(
        default="sync", description="Which links are slow: those of synchronization, or all."
    )
    emulation: Literal["auto", "relay", "tc"] = Field(
        default="auto",
        description='By which means: a relay process, which "auto" is too. "tc" of earlier versions is read'
        " in the jobs of saved models, and refused for a new run.",
    )

    @model_validator(mode="after")
    def _units(self) -> NetworkSection:
        for key, text, parse in (
            ("delay", self.delay, parse_delay),
            ("bandwidth", self.bandwidth, parse_bandwidth),
        ):
            try:
                if text:
                    parse(text)
            except ValueError as error:
                raise ValueError(f"network.{key}: {error}") from error
        return self

    @property
    def slow(self) -> SlowNetwork | None:
        """The network to emulate, if one is asked for."""
        if not self.delay and not self.bandwidth:
            return None
        return SlowNetwork(
            delay_seconds=parse_delay(self.delay) if self.delay else 0.0,
            bytes_per_second=parse_bandwidth(self.bandwidth) if self.bandwidth else None,
            every_link=self.delay_links == "all",
        )

    @property
    def shares_memory(self) -> bool:
        """Whether nodes of one machine may share memory: what goes through it takes no network's time."""
        every_link = self.slow is not None and self.slow.every_link
        return self.shared_memory and self.transport != "tcp" and not every_link
