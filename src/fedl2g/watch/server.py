"""The server of the page: read-only, for this machine only, and only with the token."""

from __future__ import annotations

import asyncio
import hmac
import time
from collections.abc import AsyncIterator, Callable

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import QueryParams
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from fedl2g.report.page import embed_json
from fedl2g.watch.follower import Follower

HOSTS = ["127.0.0.1", "localhost"]  # requests under any other name come from a foreign page (DNS rebinding)
_TICK = 0.2  # seconds in which a stream notices that the server stops
_SILENCE = 15.0  # seconds after which a comment says that the connection is alive
_HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "frame-ancestors 'none'",  # the rest of the policy is in the page
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",  # the address holds the token
    "X-Content-Type-Options": "nosniff",
}


class TokenRequired:
    """Answers 403 to every request without the token."""

    def __init__(self, app: ASGIApp, token: str) -> None:
        self.app = app
        self.token = token.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            return await self.app(scope, receive, send)
        given = QueryParams(scope.get("query_string", b"")).get("token", "")
        # In constant time, so that the time that a wrong token takes reveals nothing about the right one.
        if scope["type"] == "http" and hmac.compare_digest(given.encode(errors="replace"), self.token):
            return await self.app(scope, receive, send)
        text = "The address lacks its token; open the one that `fedl2g watch` printed.\n"
        return await PlainTextResponse(text, status_code=403, headers=_HEADERS)(scope, receive, send)


def application(follower: Follower, token: str, stopping: Callable[[], bool] = lambda: False) -> Starlette:
    """The page at / and its events at /events; streams end when `stopping` says so."""

    async def show(request: Request) -> Response:
        state = await run_in_threadpool(follower.state)
        text = await run_in_threadpool(state.page, f"events?token={token}")
        return HTMLResponse(text, headers=_HEADERS)

    async def follow(request: Request) -> Response:
        stream = events(follower, stopping)
        return StreamingResponse(stream, media_type="text/event-stream", headers=_HEADERS)

    routes = [Route("/", show, methods=["GET"]), Route("/events", follow, methods=["GET"])]
    middleware = [Middleware(TrustedHostMiddleware, allowed_hosts=HOSTS), Middleware(TokenRequired, token=token)]
    return Starlette(routes=routes, middleware=middleware)


async def events(follower: Follower, stopping: Callable[[], bool]) -> AsyncIterator[str]:
    """The state of the page now and after every change, as server-sent events."""
    known, said = 0, time.monotonic()
    yield "retry: 1000\n\n"
    while not stopping():
        state = await run_in_threadpool(follower.state)
        if state.version != known:
            known, said = state.version, time.monotonic()
            yield f"id: {known}\ndata: {await run_in_threadpool(embed_json, state.fragment)}\n\n"
        elif time.monotonic() - said > _SILENCE:
            said = time.monotonic()
            yield ": no change\n\n"
        await asyncio.sleep(_TICK)
