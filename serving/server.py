"""The HTTP server of a saved model."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
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
from .rows import BadRequest
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
    """Serve scores at `/score`, on its caller's loop.

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
        self._batcher = Batcher(lambda: model.current, MOST_ROWS)
        self._bodies = BodyMemory(BODY_LIMIT_BYTES, ALL_BODIES_BYTES)
        self.counts = RequestCounts()
        app = web.Application(
            middlewares=[
                _errors_as_json,
                check_host((*names_of(host), host), guard),
                guard.middleware(open_paths=(HEALTH_PATH,)),
            ],
            client_max_size=BODY_LIMIT_BYTES,
        )
        app.router.add_post("/score", self._score)
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
        await self._model.follow(every_seconds, self._batcher.between)

    async def start(self) -> None:
        """Start to answer requests."""
        await self._server.start()

    async def close(self) -> None:
        """Answer the requests that are there, and end the server."""
        await self._server.close()
        await self._batcher.close()

    async def _score(self, request: web.Request) -> web.Response:
        since = time.perf_counter()
        try:
            rows = self._model.current.bodies.read(await self._bodies.read(request))
            scores = await self._batcher.score(rows)
        except TooLarge as error:
            return self._refuse(error, 413)
        except BadRequest as error:
            return self._refuse(error, 400)
        except Busy as error:
            return self._refuse(error, 503)
        self.counts.scored(rows.count, len(scores.why), time.perf_counter() - since)
        return web.Response(body=_reply(scores), content_type="application/json")

    def _refuse(self, why: Exception, status: int) -> web.Response:
        self.counts.refuse()
        return web.json_response({"error": str(why)}, status=status)

    async def _describe(self, _: web.Request) -> web.Response:
        served = self._model.current
        columns = served.schema.kinds_in_file
        of_model = _version(served.model.manifest) | {
            "description": served.model.description,
            "precision": served.model.precision,
        }
        return web.json_response(of_model | {"columns": columns})

    async def _stats(self, _: web.Request) -> web.Response:
        model = _version(self._model.manifest) | {
            "opened": self._model.opened,
            "age_seconds": round(self._model.age_seconds, 1),
            "fault": self._model.fault,
        }
        connections = {"connections": asdict(self._server.counts)}
        return web.json_response(self.counts.values() | connections | {"model": model})

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
        why = f"{request.method} {request.path}: there is POST /score, GET /model, /stats and {HEALTH_PATH}"
    headers = {name: response.headers[name] for name in _KEPT_HEADERS if name in response.headers}
    body = {"error": (why or response.reason or "").strip()}
    return web.json_response(body, status=response.status, headers=headers)


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
        "faults": [{"row": row, "why": why} for row, why in sorted(scores.why.items())],
        "model": _version(scores.manifest),
    }
    return orjson.dumps(reply, option=orjson.OPT_SERIALIZE_NUMPY)


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
