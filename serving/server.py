"""The HTTP server of a saved model."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from typing import Any, Final

import numpy as np
import orjson
from aiohttp import web
from aiohttp.typedefs import Handler

from ..pipeline.checkpoint.manifest import CheckpointManifest
from ..pipeline.wire.http.hosts import check_host, names_of
from ..pipeline.wire.http.listening import HEALTH_PATH, HttpServer, listen
from ..pipeline.wire.http.token_guard import TokenGuard
from ..pipeline.wire.keys.http_token import required_token
from .batcher import Batcher
from .follower import FollowedModel
from .latency import RequestCounts
from .retrieval import MOST_QUERIES, Queries, Retrieved, Retriever
from .rows import BadRequest, RowColumns
from .scores import MOST_ROWS, Scores
from .unpack import BodyMemory, Busy, TooLarge

BODY_LIMIT_BYTES: Final = 32 << 20
ALL_BODIES_BYTES: Final = 4 * BODY_LIMIT_BYTES
MOST_CONNECTIONS: Final = 256
IDLE_SECONDS: Final = 75.0
SHUTDOWN_SECONDS: Final = 5.0

_KEPT_HEADERS: Final = ("Allow", "WWW-Authenticate")

log = logging.getLogger(__name__)


class ModelServer:
    """Serve scores at `/score`, and with items those of queries at `/retrieve`, on its caller's loop.

    `/model` describes the model and the columns that it needs, `/stats` has counts and latency, `/healthz` is
    for probes. Off loopback all but `/healthz` need a token (see `required_token`).

    Raises:
        ClusterError: it cannot listen there.
        JobFileError: other machines can reach it, and there is neither a key nor a token.
    """

    def __init__(self, model: FollowedModel, host: str, port: int) -> None:
        guard = TokenGuard(required_token(host, port), log)
        listening = listen(host, port, what="the model", remedy="choose another --port")
        self.port: int = listening.getsockname()[1]
        self._model = model
        # One thread computes all answers: what it uses is replaced between two of them.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="score")
        self._scores: Batcher[RowColumns, Scores] = Batcher(
            lambda requests: model.current.score(requests), MOST_ROWS, self._thread
        )
        self._retrieval: Batcher[Queries, Retrieved] = Batcher(
            lambda requests: self._retriever().retrieve(requests), MOST_QUERIES, self._thread
        )
        self._bodies = BodyMemory(BODY_LIMIT_BYTES, ALL_BODIES_BYTES)
        self.counts, self.retrieval_counts = RequestCounts(), RequestCounts()
        app = web.Application(
            middlewares=[
                _errors_as_json,
                check_host((*names_of(host), host), guard),
                guard.middleware(open_paths=(HEALTH_PATH,)),
            ],
            client_max_size=BODY_LIMIT_BYTES,
        )
        app.router.add_post("/score", self._score)
        app.router.add_post("/retrieve", self._retrieve)
        app.router.add_get("/model", self._describe)
        app.router.add_get("/stats", self._stats)
        app.router.add_get(HEALTH_PATH, self._health)
        self._server = HttpServer(
            app,
            listening,
            log,
            most=MOST_CONNECTIONS,
            idle_seconds=IDLE_SECONDS,
            shutdown_seconds=SHUTDOWN_SECONDS,
        )

    async def follow(self, every_seconds: float) -> None:
        """Serve each new checkpoint of the model, until cancelled."""
        await self._model.follow(every_seconds, self._between)

    async def start(self) -> None:
        await self._server.start()

    async def close(self) -> None:
        """Answer the requests that are there, and end the server."""
        await self._server.close()
        await self._scores.close()
        await self._retrieval.close()
        self._thread.shutdown()

    async def _between(self, work: Callable[[], None]) -> None:
        """Do some work on the thread that answers, while it answers nothing; raises what `work` raises."""
        await asyncio.get_running_loop().run_in_executor(self._thread, work)

    async def _score(self, request: web.Request) -> web.Response:
        async def answer(body: bytes) -> tuple[int, int, bytes]:
            rows = self._model.current.bodies.read(body)
            scores = await self._scores.answer(rows)
            return rows.count, len(scores.why), _reply(scores)

        return await self._answered(request, answer, self.counts)

    async def _retrieve(self, request: web.Request) -> web.Response:
        if self._model.retriever is None:
            why = "this server has no items: start shadowsync serve with --items"
            return web.json_response({"error": why}, status=404)

        async def answer(body: bytes) -> tuple[int, int, bytes]:
            queries = self._retriever().read(body)
            retrieved = await self._retrieval.answer(queries)
            return queries.count, len(retrieved.why), _items_reply(retrieved)

        return await self._answered(request, answer, self.retrieval_counts)

    def _retriever(self) -> Retriever:
        assert self._model.retriever is not None
        return self._model.retriever

    async def _answered(
        self,
        request: web.Request,
        answer: Callable[[bytes], Awaitable[tuple[int, int, bytes]]],
        counts: RequestCounts,
    ) -> web.Response:
        """Reply with an answer, of which the rows and those without a result are counted, or refuse."""
        since = time.perf_counter()
        try:
            rows, without, reply = await answer(await self._bodies.read(request))
        except TooLarge as error:
            return _refusal(error, 413, counts)
        except BadRequest as error:
            return _refusal(error, 400, counts)
        except Busy as error:
            return _refusal(error, 503, counts)
        counts.scored(rows, without, time.perf_counter() - since)
        return web.Response(body=reply, content_type="application/json")

    async def _describe(self, _: web.Request) -> web.Response:
        served = self._model.current
        columns = served.schema.kinds_in_file
        of_model = _version(served.model.manifest) | {
            "description": served.model.description,
            "precision": served.model.precision,
        }
        if (retriever := self._model.retriever) is not None:
            of_model |= {"query_columns": retriever.schema.read.sources}
        return web.json_response(of_model | {"columns": columns})

    async def _stats(self, _: web.Request) -> web.Response:
        model = _version(self._model.manifest) | {
            "opened": self._model.opened,
            "age_seconds": round(self._model.age_seconds, 1),
            "fault": self._model.fault,
        }
        connections = {"connections": asdict(self._server.counts)}
        return web.json_response(self.counts.values() | connections | {"model": model} | self._of_retrieval())

    def _of_retrieval(self) -> dict[str, Any]:
        """Return what `/stats` says of retrieval; nothing without items."""
        if (retriever := self._model.retriever) is None:
            return {}
        items = retriever.items
        return {
            "retrieval": self.retrieval_counts.values()
            | {
                "items": len(items),
                "search": retriever.by,
                "recall": None if items.recall is None else items.recall.values(),
                "build_seconds": round(items.seconds, 3),
            }
        }

    async def _health(self, _: web.Request) -> web.Response:
        return web.Response(text="well\n")


@web.middleware
async def _errors_as_json(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Reply to all that fails with a status and the JSON that `/score` replies with."""
    try:
        response = await handler(request)
    except web.HTTPException as error:
        response = error
    except ConnectionError:
        # The client went, or its connection was closed: nobody reads a reply, and nothing failed here.
        response = web.Response(status=400, text="the connection was lost")
    except Exception:
        log.exception("%s %s failed", request.method, request.path)
        response = web.Response(status=500, text="the server failed; its log says why")
    if response.status < 400 or response.content_type == "application/json":
        return response
    why = response.text if isinstance(response, web.Response) else None
    if response.status in (404, 405):
        known = f"POST /score and /retrieve, GET /model, /stats and {HEALTH_PATH}"
        why = f"{request.method} {request.path}: there is {known}"
    headers = {name: response.headers[name] for name in _KEPT_HEADERS if name in response.headers}
    body = {"error": (why or response.reason or "").strip()}
    return web.json_response(body, status=response.status, headers=headers)


def _refusal(why: Exception, status: int, counts: RequestCounts) -> web.Response:
    counts.refuse()
    return web.json_response({"error": str(why)}, status=status)


def _version(manifest: CheckpointManifest) -> dict[str, Any]:
    return {
        "run": manifest.run,
        "examples_trained": manifest.examples_trained,
        "created_at": manifest.created_at,
    }


def _reply(scores: Scores) -> bytes:
    """Return the reply's JSON; a row without a score has null."""
    probabilities = scores.probabilities
    columns = np.ascontiguousarray(probabilities.T) if probabilities.ndim > 1 else probabilities
    reply = {
        scores.name: dict(zip(scores.labels, columns, strict=True)) if probabilities.ndim > 1 else columns,
        "faults": _faults(scores.why),
        "model": _version(scores.manifest),
    }
    return orjson.dumps(reply, option=orjson.OPT_SERIALIZE_NUMPY)


def _items_reply(retrieved: Retrieved) -> bytes:
    """Return the reply's JSON; a query without items has null."""
    reply = {
        "items": retrieved.items,
        "scores": retrieved.scores,
        "faults": _faults(retrieved.why),
        "search": retrieved.by,
        "model": _version(retrieved.manifest),
    }
    return orjson.dumps(reply, option=orjson.OPT_SERIALIZE_NUMPY)


def _faults(why: Mapping[int, str]) -> list[dict[str, Any]]:
    return [{"row": row, "why": text} for row, text in sorted(why.items())]


async def serve_model(
    model: FollowedModel,
    host: str,
    port: int,
    *,
    follow_seconds: float | None,
    started: Callable[[int], object],
) -> RequestCounts:
    """Serve until cancelled; return the counts.

    `started` is called with the port when requests are answered. `follow_seconds`: how often a new checkpoint
    is looked for; None for never.
    """
    server = ModelServer(model, host, port)
    following = None
    try:
        await server.start()
        started(server.port)
        if follow_seconds is not None:
            following = asyncio.ensure_future(server.follow(follow_seconds))
        await asyncio.Event().wait()
    except asyncio.CancelledError:
        log.info("ends")
    finally:
        if following is not None:
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)
        await server.close()
    return server.counts
