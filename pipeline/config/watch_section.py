"""The sections of a job file on how a run can be watched, and what its report has."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, Field, field_validator

from .sections import STRICT

LOOPBACK = "127.0.0.1"
MAX_PORT = 65_535


def parse_page_address(text: str) -> tuple[str, int]:
    """Host and port of "8080" (loopback) or "HOST:PORT"; port 0 is any free one. Raises ValueError."""
    host, colon, port = text.strip().rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not port.isdecimal() or int(port) > MAX_PORT or (colon and not host):
        raise ValueError(f'"{text}" given; write a port, as "8080", or HOST:PORT, as "0.0.0.0:8080"')
    return host or LOOPBACK, int(port)


class WatchSection(BaseModel):
    """What shows a run while it goes on; docs/watching.md. Nodes need not agree on it."""

    model_config = STRICT

    web: str = Field(
        default="", description='Where the coordinator serves its page: "8080" (loopback) or "HOST:PORT".'
    )
    tensorboard: bool = Field(
        default=False, description="Whether the coordinator writes event files into the run's folder."
    )
    metrics_port: Annotated[int, Field(ge=0, le=MAX_PORT)] = Field(
        default=0,
        description="Where every node serves Prometheus its metrics, at `network.bind`; 0: nowhere. Under"
        " `shadowsync run` it is the coordinator's, and the nodes have the ports after it.",
    )

    @field_validator("web")
    @classmethod
    def _address(cls, text: str) -> str:
        try:
            if text:
                parse_page_address(text)
        except ValueError as error:
            raise ValueError(f"watch.web: {error}") from error
        return text


class ReportSection(BaseModel):
    """What the report of a run has beside its figures. Nodes need not agree on it."""

    model_config = STRICT

    pictures: bool = Field(
        default=True,
        description="Whether the curves are drawn, as ne.png, throughput.png and sync_gap.png; their points"
        " are in report.json in any case.",
    )
