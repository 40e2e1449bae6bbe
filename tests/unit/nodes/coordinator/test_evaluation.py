"""The evaluation pass: what readers are told to send, however many files there are."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
from shadowsync.nodes.control.membership import Member
from shadowsync.nodes.coordinator.evaluation import SPANS_AT_ONCE, Evaluator
from shadowsync.nodes.coordinator.state.outcome import FinalModel, Score
from shadowsync.pipeline.data.span import Span
from shadowsync.pipeline.metrics.quality import QualitySums
from shadowsync.pipeline.wire.control.base import Reply, Request, encode_body
from shadowsync.pipeline.wire.control.orders import (
    EvalSums,
    Evaluate,
    EvaluateReply,
    GetEvalSums,
    PrepareEval,
    PrepareEvalReply,
)
from shadowsync.pipeline.wire.frames import encode
from shadowsync.pipeline.wire.messages import RequestMessage
from shadowsync.sync_algos.contract.model_origin import ModelOrigin
from shadowsync.tests.support.coordinator.fake_coordinator import ELEMENTS, FakeServer, member


def test_more_spans_are_scored_than_a_message_holds(tmp_path: Path) -> None:
    """A split's test part is of every file of the input."""
    folder = "s3://bucket/clicks/" + 900 * "x"
    spans = [
        Span(number, f"{folder}/{number}", "bytes", 0, 9, "test") for number in range(2 * SPANS_AT_ONCE + 1)
    ]
    delivered: list[Span] = []

    def answer(node: Member, request: Request[Any]) -> Reply:
        encode(RequestMessage(1, "any", encode_body(request)))
        if isinstance(request, PrepareEval):
            return PrepareEvalReply(True)
        if isinstance(request, Evaluate):
            assert node.info.role == "reader"
            assert request.tokens == ("token-trainer-0",)
            delivered.extend(request.spans)
            return EvaluateReply(2 * len(request.spans), 1)
        assert isinstance(request, GetEvalSums)
        sums, labels = QualitySums(), np.tile(np.array([0, 1], np.float32), len(delivered))
        sums.add(np.zeros_like(labels), labels)
        return EvalSums(sums.to_bytes())

    async def body() -> Score | None:
        c = FakeServer(tmp_path, [member("trainer", 0), member("embedding", 0), member("reader", 0)])
        c.reply = answer
        model = FinalModel(ModelOrigin.REPLICAS, "none", ELEMENTS, needs_peers=False)
        return await Evaluator(c, model, spans, list[str]().append).run()

    score = asyncio.run(asyncio.wait_for(body(), 60.0))
    assert delivered == spans
    assert score is not None
    assert score.sums[0].examples == 2 * len(spans)
    assert score.bad_rows == 0, "those of a part of the input are training's"
