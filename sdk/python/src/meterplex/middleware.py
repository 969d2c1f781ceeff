"""HTTP middleware that counts the requests of an application: wsgi for Flask and Django, asgi for FastAPI and Starlette.

A request is counted when its answer begins, once the event is in the queue. An event that cannot be stored is reported to on_error of the
client; the answer is sent all the same.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, MutableMapping
from typing import Any, TypeVar

from ._async import AsyncClient
from ._client import Client
from .errors import MeterplexError

Environ = dict[str, Any]
Scope = MutableMapping[str, Any]
R = TypeVar("R")

TIMEOUT = 1.0  # seconds for which an answer waits for a full queue


def below_500(request: Any, status: int) -> bool:
    """Count a request that the application did not fail."""
    return status < 500


def one(request: Any, status: int) -> int:
    """Count a request as 1."""
    return 1


def nothing(request: Any, status: int) -> Mapping[str, Any] | None:
    """Keep no metadata."""
    return None


def wsgi(
    app: Callable[..., Iterable[bytes]],
    client: Client | Callable[[Environ], Client | None],
    feature: str,
    *,
    amount: Callable[[Environ, int], int] = one,
    metadata: Callable[[Environ, int], Mapping[str, Any] | None] = nothing,
    count: Callable[[Environ, int], bool] = below_500,
) -> Callable[..., Iterable[bytes]]:
    """Return the application with its requests counted.

    client: or a function of the environ, for an application of several tenants; None: the request is not counted
    amount, metadata, count: functions of the environ and the status
    """

    def counted(environ: Environ, start_response: Callable[..., Any]) -> Iterable[bytes]:
        begun = False

        def start(status: str, *args: Any, **kwargs: Any) -> Any:
            nonlocal begun
            if not begun:
                begun = True
                _record(environ, int(status[:3]))
            return start_response(status, *args, **kwargs)

        return app(environ, start)

    def _record(environ: Environ, status: int) -> None:
        to = client if isinstance(client, Client) else client(environ)
        if to is None or not count(environ, status):
            return
        try:
            to.record(feature, amount(environ, status), metadata=metadata(environ, status), timeout=TIMEOUT)
        except MeterplexError as e:
            to.report(e)

    return counted


def asgi(
    app: Callable[..., Awaitable[None]],
    client: AsyncClient | Callable[[Scope], AsyncClient | None],
    feature: str,
    *,
    amount: Callable[[Scope, int], int] = one,
    metadata: Callable[[Scope, int], Mapping[str, Any] | None] = nothing,
    count: Callable[[Scope, int], bool] = below_500,
) -> Callable[..., Awaitable[None]]:
    """Return the application with its HTTP requests counted, as wsgi does; the functions get the scope and the status."""

    async def counted(scope: Scope, receive: Callable[[], Awaitable[Any]], send: Callable[[Any], Awaitable[None]]) -> None:
        if scope["type"] != "http":
            return await app(scope, receive, send)

        async def start(message: Any) -> None:
            if message["type"] == "http.response.start":
                await _record(scope, int(message["status"]))
            await send(message)

        await app(scope, receive, start)

    async def _record(scope: Scope, status: int) -> None:
        to = client if isinstance(client, AsyncClient) else client(scope)
        if to is None or not count(scope, status):
            return
        try:
            await to.record(feature, amount(scope, status), metadata=metadata(scope, status), timeout=TIMEOUT)
        except MeterplexError as e:
            to.report(e)

    return counted
