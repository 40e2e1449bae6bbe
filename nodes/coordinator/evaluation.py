"""Evaluation of the final model by the job's trainers.

In progressive validation, batches are scored before their training step.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from ...pipeline.data.bad_rows import own_bad_rows
from ...pipeline.data.span import Span
from ...pipeline.errors import ClusterError, ExitCode
from ...pipeline.metrics.pass_sums import PassSums
from ...pipeline.metrics.quality import QualitySums
from ...pipeline.metrics.top_k import SENT_BYTES, GroupRanking, TopKSums
from ...pipeline.report.quality import Progressive, ProgressiveLabel
from ...pipeline.wire.control.orders import (
    TOP_PIECE_BYTES,
    DrainReply,
    EvalSums,
    Evaluate,
    EvaluateReply,
    GetEvalSums,
    PrepareEval,
)
from ...pipeline.wire.tasks import race
from ...sync_algos.contract.model_origin import ModelOrigin
from ..control.membership import Member
from ..control.server import REQUEST_SECONDS
from .server import CoordinatorServer
from .state.outcome import FinalModel, Score, Stop

EVAL_SECONDS = 24 * 3600.0
# Per message: the path of a span may have a thousand characters.
SPANS_AT_ONCE = 4096
# Pass numbers of one evaluation: more than trainers can die, each of which starts a new pass.
PASSES_OF_ONE = 1 << 16


@dataclass(frozen=True, slots=True)
class PassScores:
    """Sums over the examples of a pass, the malformed rows that it skipped, and the figures of groups."""

    sums: QualitySums
    bad_rows: int
    ranking: GroupRanking | None


class Doubt:
    """Who is wrong, if trainers scored another number of examples than readers delivered.

    The pass is repeated, first with all, then without one node after the other. If the counts agree only
    without a node, it is that one. A state machine without I/O.

    Attributes:
        left_out: the node without which the next pass is scored.
        counts: the counts that did not agree.
    """

    def __init__(self) -> None:
        self.left_out: Member | None = None
        self.counts = ""
        self._suspects: list[Member] | None = None

    def leave_next_out(
        self, trainers: Sequence[Member], readers: Sequence[Member], scored: int, delivered: int
    ) -> None:
        """Choose who is left out next; raises ClusterError if it can be nobody else."""
        if self._suspects is None:
            self.counts = (
                f"the trainers scored {scored:,} held-out examples, but the readers delivered {delivered:,}"
            )
            self._suspects = [node for nodes in (trainers, readers) if len(nodes) > 1 for node in nodes]
            return
        if not self._suspects:
            raise ClusterError(
                f"{self.counts}, and no one node is the cause",
                remedy="score the checkpoint with shadowsync eval, and report this as a defect of shadowsync",
            )
        self.left_out = self._suspects.pop(0)


class Evaluator:
    """One evaluation pass over the held-out spans; `note` is called with sentences for the report."""

    def __init__(
        self, server: CoordinatorServer, model: FinalModel, spans: list[Span], note: Callable[[str], None]
    ) -> None:
        self._server = server
        self._state = server.state
        self._note = note
        self._model = model
        self._spans = spans
        # Nodes may still know passes of a coordinator that died.
        self._pass = self._state.lifecycle.takeovers * PASSES_OF_ONE

    async def run(self) -> Score | None:
        """Return the score, or None if nobody is left to score; raise ClusterError without a model."""
        trainers = self._state.members.alive("trainer")
        if self._model.single:
            same = set(self._model.agreeing(t.info.name for t in trainers))
            passes = [await self._score(self._model.origin, [t for t in trainers if t.info.name in same])]
        else:
            passes = [await self._score(ModelOrigin.REPLICAS, [trainer]) for trainer in trainers]
        scored = [scored_pass for scored_pass in passes if scored_pass is not None]
        if not scored:
            return None
        bad_rows = own_bad_rows(self._spans, scored[0].bad_rows)
        return Score(
            self._model.scored(len(scored)),
            [scored_pass.sums for scored_pass in scored],
            bad_rows,
            [scored_pass.ranking for scored_pass in scored if scored_pass.ranking is not None],
        )

    async def _score(self, model: str, trainers: list[Member]) -> PassScores | None:
        """Score one pass; repeat it without nodes that die in it.

        And without trainers that do not get the model, or a node whose counts cannot be right.

        Returns None if no trainer or no reader is left.
        """
        doubt = Doubt()
        while trainers and self._state.lifecycle.stop is None:
            self._pass += 1
            scoring = [trainer for trainer in trainers if trainer is not doubt.left_out]
            ready = await self._server.call_all(scoring, PrepareEval(self._pass, model), REQUEST_SECONDS)
            able = {name for name, reply in ready.items() if reply.ready}
            if ready and not able:
                raise ClusterError(f"{self._model.words} is not available for the evaluation")
            if len(able) < len(scoring):
                for name in sorted(ready.keys() - able):
                    self._note(f"{name} could not read {self._model.words}, and does not score it")
                unable = {member.info.name for member in scoring} - able
                trainers, doubt = [t for t in trainers if t.info.name not in unable], Doubt()
                continue
            alive = self._state.members.alive("reader")
            if not alive:
                text = "the last reader died, and the held-out files were not scored"
                self._server.request_stop(Stop("death", text, ExitCode.STOPPED_BY_DEATH))
                return None
            readers = [reader for reader in alive if reader is not doubt.left_out]
            delivered, results = await self._run_pass(scoring, readers)
            if self._state.lifecycle.stop is not None:
                # Only a part of the files was scored, which is not their score.
                return None
            if delivered is not None and len(results) == len(scoring):
                total = PassSums.of(self._state.job.ranking)
                for result in results.values():
                    total.merge(result)
                scored = total.quality.examples
                if scored == delivered.examples:
                    self._end_doubt(doubt)
                    return PassScores(total.quality, delivered.bad_rows, total.ranking)
                doubt.leave_next_out(trainers, alive, scored, delivered.examples)
                who = "" if doubt.left_out is None else f", without {doubt.left_out.info.name}"
                self._server.event("coordinator", f"{doubt.counts}; they are scored again{who}")
                continue
            left = [trainer for trainer in trainers if trainer.alive]
            if len(left) == len(trainers) and all(reader.alive for reader in readers):
                raise ClusterError("the held-out files could not be scored; the readers' logs say why")
            trainers, doubt = left, Doubt()
        return None

    async def _run_pass(
        self, trainers: list[Member], readers: list[Member]
    ) -> tuple[EvaluateReply | None, dict[str, PassSums]]:
        """Let these readers deliver and these trainers score the pass; return what they say."""
        delivered = await self._deliver(trainers, readers)
        if self._state.lifecycle.stop is not None:
            return None, {}
        replies = await self._server.call_all(trainers, GetEvalSums(self._pass), REQUEST_SECONDS)
        quality = read_scores(self._server, {name: reply.sums for name, reply in replies.items()})
        sums: dict[str, PassSums] = {}
        for trainer in trainers:
            if (scores := quality.get(name := trainer.info.name)) is not None:
                try:
                    top = await self._all_groups(trainer, replies[name])
                    if top is not None:
                        sums[name] = self._with_groups(scores, top)
                except ValueError as error:
                    self._server.expel(trainer, f"its scores: {error}")
        return delivered, sums

    async def _all_groups(self, trainer: Member, first: EvalSums) -> bytes | None:
        """Return all of a trainer's groups; None if it dies.

        Raises ValueError for pieces that cannot be.
        """
        most = SENT_BYTES + TOP_PIECE_BYTES if self._state.job.ranking is not None else 0
        if first.top_bytes > most:
            raise ValueError(f"groups of {first.top_bytes:,} bytes; at most {most:,} can be")
        top = first.top
        while len(top) < first.top_bytes:
            request = GetEvalSums(self._pass, len(top))
            reply = await self._server.call(trainer, request, REQUEST_SECONDS)
            if reply is None:
                return None
            if not reply.top:
                raise ValueError(f"{len(top):,} of {first.top_bytes:,} bytes of groups")
            top += reply.top
        return top

    def _with_groups(self, quality: QualitySums, top: bytes) -> PassSums:
        """Return a trainer's sums; raises ValueError for first rows of groups that cannot be."""
        sums = PassSums.of(self._state.job.ranking)
        sums.quality = quality
        if (sums.top is None) != (not top):
            raise ValueError("first rows of groups, or none, where the job's are the other")
        if sums.top is not None:
            sent = TopKSums.from_bytes(top)
            if sent.rows != quality.examples:
                raise ValueError(f"groups of {sent.rows:,} rows, of {quality.examples:,} examples")
            sums.top.merge(sent)
        return sums

    def _end_doubt(self, doubt: Doubt) -> None:
        if doubt.left_out is not None:
            self._server.expel(doubt.left_out, f"{doubt.counts}, and the counts agree only without it")

    async def _deliver(self, trainers: list[Member], readers: list[Member]) -> EvaluateReply | None:
        """Let the readers send the pass to these trainers.

        Returns the sums of their replies, or None if it is not scored whole, since one of them or a reader
        died.
        """
        tokens = tuple(trainer.info.token for trainer in trainers)
        calls = [
            self._deliver_all(reader, tokens, self._spans[number :: len(readers)])
            for number, reader in enumerate(readers)
        ]
        died = self._server.wait_for(lambda: not all(t.alive for t in trainers))
        replies = await race(asyncio.gather(*calls), died)
        return None if replies is None else _sum_replies(replies)

    async def _deliver_all(
        self, reader: Member, tokens: tuple[str, ...], spans: Sequence[Span]
    ) -> EvaluateReply | None:
        """Let one reader send its spans of the pass, several messages if need be."""
        replies: list[EvaluateReply | None] = []
        for start in range(0, max(1, len(spans)), SPANS_AT_ONCE):
            some = Evaluate(self._pass, tokens, tuple(spans[start : start + SPANS_AT_ONCE]))
            replies.append(await self._server.call(reader, some, EVAL_SECONDS))
            if replies[-1] is None:
                break
        return _sum_replies(replies)


def _sum_replies(replies: Sequence[EvaluateReply | None]) -> EvaluateReply | None:
    """Sum the replies; None if one is missing."""
    whole = [reply for reply in replies if reply is not None]
    if len(whole) < len(replies):
        return None
    return EvaluateReply(sum(answer.examples for answer in whole), sum(answer.bad_rows for answer in whole))


MODEL = "the trainers' replicas, each before its step"


async def read_progressive(
    server: CoordinatorServer, drained: Mapping[str, DrainReply]
) -> dict[str, QualitySums]:
    """Read the scores of batches before their step from the trainers' last replies; see `read_scores`.

    A trainer cannot have scored more of the progressive part than it trained and still had.
    """
    spans = server.state.training.input.progressive
    trained = await server.store.run(lambda store: store.trained_examples_in(spans)) if spans else {}
    # Another trainer's acknowledgement of a batch may have been the first.
    repeated = server.state.ledger.totals.replayed_examples
    most = {name: trained.get(name, 0) + reply.in_flight + repeated for name, reply in drained.items()}
    return read_scores(server, {name: reply.progressive for name, reply in drained.items()}, most)


def read_scores(
    server: CoordinatorServer, parts: Mapping[str, bytes], most: Mapping[str, int] | None = None
) -> dict[str, QualitySums]:
    """Read the float64 scores that trainers sent, by name; see `QualitySums`.

    A trainer whose scores cannot be is declared dead, and missing in the result. `most` has the number of
    examples that each can have scored.
    """
    scores: dict[str, QualitySums] = {}
    data = server.state.job.data
    further = len(data.label_names) - 1
    weighted = bool(data.columns_as("weight"))
    for trainer in server.state.members.everyone("trainer"):
        if (part := parts.get(trainer.info.name)) is None:
            continue
        try:
            sums = QualitySums.from_bytes(part)
            if sums.examples and len(sums.others) != further:
                raise ValueError(f"sums of {len(sums.others) + 1} labels; the job has {further + 1}")
            if sums.examples and sums.weighted != weighted:
                raise ValueError("sums with weights, or without, where the job's are the other")
            if most is not None and sums.examples > (can := most[trainer.info.name]):
                raise ValueError(f"{sums.examples:,} examples; it can have scored {can:,} before their step")
        except ValueError as error:
            server.expel(trainer, f"its scores: {error}")
        else:
            scores[trainer.info.name] = sums
    return scores


def sum_scores(parts: Iterable[QualitySums]) -> QualitySums:
    """Sum scores of one job."""
    total = QualitySums()
    for part in parts:
        total.merge(part)
    return total


def progressive_report(
    sums: QualitySums | None, trained: int, labels: Sequence[str], *, of_logits: bool = True
) -> Progressive:
    """Build the report's part for `trained` distinct examples; without sums none was scored.

    Without logits (`of_logits`) there is no log loss.
    """
    if sums is None or not sums.examples:
        return Progressive(
            model=MODEL, examples=0, trained=trained, ne=None, auc=None, auc_error=None, logloss=None
        )
    return Progressive(
        model=MODEL,
        examples=sums.examples,
        trained=trained,
        ne=sums.ne if of_logits else None,
        auc=sums.auc,
        auc_error=sums.auc_error,
        logloss=sums.logloss if of_logits else None,
        labels=_by_label(sums, labels, of_logits=of_logits),
    )


def _by_label(sums: QualitySums, labels: Sequence[str], *, of_logits: bool) -> dict[str, ProgressiveLabel]:
    """Return the figures of each of several labels, the first one's too."""
    if not sums.others:
        return {}
    return {
        name: ProgressiveLabel(
            ne=label.ne if of_logits else None,
            auc=label.auc,
            auc_error=label.auc_error,
            logloss=label.logloss if of_logits else None,
        )
        for name, label in sums.by_label(labels).items()
    }
