"""Verbs of the control plane: sender, receiver, request, reply."""

from __future__ import annotations

from typing import Final

from .base import Done, Verb, VerbTable
from .loops import (
    EndSamples,
    GetLoops,
    JoinLoops,
    JoinLoopsReply,
    LoopsReply,
    PauseLoop,
    SamplesReply,
    TakeSamples,
)
from .messages import (
    ChildExited,
    ChildExitedReply,
    EndInput,
    GetStatus,
    Hello,
    HelloReply,
    Interrupt,
    Leave,
    NextSpan,
    NextSpanReply,
    NodeFailed,
    Ready,
    RejoinGroup,
    ReportReader,
    ReportSlowPeer,
    ReturnBatches,
    ReturnBatchesReply,
    Scale,
    ScaleReply,
    SpanRead,
    StatusReply,
    TrainedBatches,
)
from .orders import (
    Begin,
    ComposeModel,
    ConnectPeers,
    DivideBatches,
    Drain,
    DrainReply,
    EvalSums,
    Evaluate,
    EvaluateReply,
    Finalize,
    FinalizeReply,
    FindLacking,
    Finish,
    FinishReply,
    GetEvalSums,
    JobEnded,
    LackingBatches,
    MoreSpans,
    NodeLost,
    PauseTraining,
    PrepareEval,
    PrepareEvalReply,
    ReaderJoined,
    ReadReplica,
    ReplicaSample,
    ReplicaValues,
    SampleReplica,
    SetGroup,
    SetSync,
    SettleReader,
    ShardReplaced,
    StartNode,
    SyncReplaced,
    TakeCenter,
    TakeCenterReply,
    TrainerJoined,
    WriteCheckpoint,
    WriteCheckpointReply,
    WriteReplica,
)
from .profile import Measure, MeasureReply, Trace, TraceReply
from .tables import JoinTables, JoinTablesReply

_COORDINATOR: Final = frozenset({"coordinator"})
_HUB: Final = frozenset({"hub"})
_READER: Final = frozenset({"reader"})
_TRAINER: Final = frozenset({"trainer"})
_NODE: Final = frozenset({"reader", "trainer", "embedding", "sync"})
_WATCHER: Final = frozenset({"watcher"})
_SAVER: Final = frozenset({"trainer", "embedding", "sync"})

CONTROL_VERBS: Final = VerbTable(
    {
        "hello": Verb(Hello, HelloReply, _NODE, _COORDINATOR),
        "ready": Verb(Ready, Done, _NODE, _COORDINATOR),
        "next_span": Verb(NextSpan, NextSpanReply, _READER, _COORDINATOR),
        "span_read": Verb(SpanRead, Done, _READER, _COORDINATOR),
        "trained": Verb(TrainedBatches, Done, _TRAINER, _COORDINATOR),
        "return_batches": Verb(ReturnBatches, ReturnBatchesReply, _READER, _COORDINATOR),
        "report_slow_peer": Verb(ReportSlowPeer, Done, _TRAINER, _COORDINATOR),
        "report_reader": Verb(ReportReader, Done, _TRAINER, _COORDINATOR),
        "rejoin_group": Verb(RejoinGroup, Done, _TRAINER, _COORDINATOR),
        "failed": Verb(NodeFailed, Done, _NODE, _COORDINATOR),
        "leave": Verb(Leave, Done, _NODE, _COORDINATOR),
        "interrupt": Verb(Interrupt, Done, _NODE, _COORDINATOR),
        "exited": Verb(ChildExited, ChildExitedReply, frozenset({"supervisor"}), _COORDINATOR),
        "status": Verb(
            GetStatus,
            StatusReply,
            frozenset({"watcher", "supervisor"}),
            frozenset({"coordinator", "hub"}),
            repeatable=True,
        ),
        "scale": Verb(Scale, ScaleReply, _WATCHER, _COORDINATOR),
        "end_input": Verb(EndInput, Done, _WATCHER, _COORDINATOR),
        "join_loops": Verb(JoinLoops, JoinLoopsReply, _TRAINER, _HUB),
        "pause_loop": Verb(PauseLoop, Done, _TRAINER, _HUB),
        "get_loops": Verb(GetLoops, LoopsReply, frozenset({"trainer", "watcher"}), _HUB, repeatable=True),
        "take_samples": Verb(TakeSamples, SamplesReply, _TRAINER, _HUB),
        "end_samples": Verb(EndSamples, Done, _TRAINER, _HUB),
        "join_tables": Verb(JoinTables, JoinTablesReply, frozenset({"client"}), _HUB),
        "connect_peers": Verb(ConnectPeers, Done, _COORDINATOR, _NODE),
        "begin": Verb(Begin, Done, _COORDINATOR, _NODE),
        "node_lost": Verb(NodeLost, Done, _COORDINATOR, _NODE),
        "settle_reader": Verb(SettleReader, Done, _COORDINATOR, _TRAINER),
        "reader_joined": Verb(ReaderJoined, Done, _COORDINATOR, _TRAINER),
        "trainer_joined": Verb(TrainerJoined, Done, _COORDINATOR, _NODE),
        "sync_replaced": Verb(SyncReplaced, Done, _COORDINATOR, _TRAINER),
        "shard_replaced": Verb(ShardReplaced, Done, _COORDINATOR, _TRAINER),
        "find_lacking": Verb(
            FindLacking, LackingBatches, _COORDINATOR, frozenset({"embedding"}), repeatable=True
        ),
        "more_spans": Verb(MoreSpans, Done, _COORDINATOR, _READER),
        "set_group": Verb(SetGroup, Done, _COORDINATOR, _TRAINER),
        "divide_batches": Verb(DivideBatches, Done, _COORDINATOR, _TRAINER),
        "pause_training": Verb(PauseTraining, Done, _COORDINATOR, _TRAINER),
        "drain": Verb(Drain, DrainReply, _COORDINATOR, _NODE),
        "finalize": Verb(Finalize, FinalizeReply, _COORDINATOR, _TRAINER),
        "read_replica": Verb(ReadReplica, ReplicaValues, _COORDINATOR, _TRAINER, repeatable=True),
        "write_replica": Verb(WriteReplica, Done, _COORDINATOR, _TRAINER, repeatable=True),
        "take_center": Verb(TakeCenter, TakeCenterReply, _COORDINATOR, _TRAINER, repeatable=True),
        "sample_replica": Verb(SampleReplica, ReplicaSample, _COORDINATOR, _TRAINER, repeatable=True),
        "set_sync": Verb(SetSync, Done, _COORDINATOR, frozenset({"trainer", "sync"})),
        "checkpoint": Verb(WriteCheckpoint, WriteCheckpointReply, _COORDINATOR, _SAVER),
        "compose_model": Verb(ComposeModel, WriteCheckpointReply, _COORDINATOR, _TRAINER),
        "prepare_eval": Verb(PrepareEval, PrepareEvalReply, _COORDINATOR, _TRAINER),
        "evaluate": Verb(Evaluate, EvaluateReply, _COORDINATOR, _READER),
        "eval_sums": Verb(GetEvalSums, EvalSums, _COORDINATOR, _TRAINER),
        "measure": Verb(Measure, MeasureReply, _COORDINATOR, _NODE),
        "trace": Verb(Trace, TraceReply, _COORDINATOR, _NODE),
        "finish": Verb(Finish, FinishReply, _COORDINATOR, _NODE),
        "start_node": Verb(StartNode, Done, _COORDINATOR, frozenset({"supervisor"})),
        "job_ended": Verb(JobEnded, Done, _COORDINATOR, _WATCHER),
    }
)
