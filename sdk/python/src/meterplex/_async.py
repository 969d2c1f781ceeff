"""The client for asyncio: the same core, whose writer and sender are threads."""

from __future__ import annotations

import asyncio
import functools
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Mapping
from concurrent.futures import Future
from contextlib import asynccontextmanager
from datetime import datetime
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, TypeVar

from ._calls import Row, Rows
from ._client import Client, Recorded, event_of
from ._events import Event
from ._limits import DEFAULT_TTL, Committed, Reservation, check_used
from .errors import MeterplexError

P = ParamSpec("P")
T = TypeVar("T")


async def _beside(work: Callable[[], T]) -> T:
    """Run a call in a thread of its own, which keeps no process alive: those of an executor are joined at exit."""
    future: Future[T] = Future()

    def run() -> None:
        if future.set_running_or_notify_cancel():
            try:
                future.set_result(work())
            except BaseException as e:
                future.set_exception(e)

    threading.Thread(target=run, name="meterplex-call", daemon=True).start()
    return await asyncio.wrap_future(future)


def _awaitable(call: Callable[Concatenate[Client, P], T]) -> Callable[Concatenate[AsyncClient, P], Coroutine[Any, Any, T]]:
    async def run(self: AsyncClient, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await _beside(functools.partial(call, self._client, *args, **kwargs))

    functools.update_wrapper(run, call)
    return run


class AsyncRows:
    """The rows of a list, page by page."""

    def __init__(self, rows: Rows) -> None:
        self._rows = rows

    async def __aiter__(self) -> AsyncIterator[Row]:
        cursor = None
        while True:
            page, cursor = await _beside(functools.partial(self._rows.read, cursor))
            for row in page:
                yield row
            if cursor is None:
                return


def _iterable(call: Callable[Concatenate[Client, P], Rows]) -> Callable[Concatenate[AsyncClient, P], AsyncRows]:
    def run(self: AsyncClient, /, *args: P.args, **kwargs: P.kwargs) -> AsyncRows:
        return AsyncRows(call(self._client, *args, **kwargs))

    functools.update_wrapper(run, call)
    return run


def _with_arguments_of(make: Callable[P, Client]) -> Callable[[Callable[..., None]], Callable[Concatenate[AsyncClient, P], None]]:
    """Give a constructor the arguments of another one, for type checkers and help()."""
    return lambda init: functools.update_wrapper(init, make.__init__)


class AsyncClient:
    """As Client, with its arguments: calls are awaited, lists are iterated with async for. Handlers are called by the sender's thread.

        async with AsyncClient("https://meterplex.example.com", "mp_live_…", "/var/lib/app/usage") as client:
            await client.record("api_calls", 1)
    """

    @_with_arguments_of(Client)
    def __init__(self, *args: Any, **options: Any) -> None:
        self._client = Client(*args, **options)

    async def record(
        self,
        feature: str,
        amount: int | None = None,
        *,
        event_id: str | None = None,
        timestamp: str | datetime | None = None,
        metadata: Mapping[str, Any] | None = None,
        type: str = "usage",
        correction_ref: str | None = None,
        timeout: float | None = 10.0,
    ) -> Recorded:
        """Store an event in the queue, and return once it is durable there; see Client.record. Concurrent calls share a sync."""
        event = event_of(feature, amount, event_id, timestamp, metadata, type, correction_ref)
        return (await self.record_many([event], timeout=timeout))[0]

    async def record_many(self, events: Iterable[Event], *, timeout: float | None = 10.0) -> list[Recorded]:
        """Store events under one sync; see Client.record_many."""
        made, tickets = self._client.submit(events)
        waits = [asyncio.wrap_future(ticket.future) for ticket in tickets]
        try:
            if waits:
                await asyncio.wait(waits, timeout=timeout)
        except asyncio.CancelledError:
            for wait in waits:
                wait.cancel()
            raise
        if not all(wait.done() for wait in waits):
            await _beside(functools.partial(self._client.give_up, made, tickets))
        for wait in waits:
            await wait
        return made

    flush = _awaitable(Client.flush)
    close = _awaitable(Client.close)
    stats = _awaitable(Client.stats)
    rejected = _awaitable(Client.rejected)
    acknowledge = _awaitable(Client.acknowledge)
    check = _awaitable(Client.check)
    consume = _awaitable(Client.consume)
    reserve = _awaitable(Client.reserve)
    commit = _awaitable(Client.commit)
    extend = _awaitable(Client.extend)
    release = _awaitable(Client.release)
    receipt = _awaitable(Client.receipt)
    aggregates = _iterable(Client.aggregates)
    usage = _iterable(Client.usage)
    events = _iterable(Client.events)
    entitlements = _iterable(Client.entitlements)
    reservations = _iterable(Client.reservations)

    def set_key(self, key: str) -> None:
        """Use another key; what waited for it is sent at once."""
        self._client.set_key(key)

    def report(self, error: MeterplexError) -> None:
        """Report an error to on_error."""
        self._client.report(error)

    @asynccontextmanager
    async def reservation(
        self, feature: str, amount: int, *, reservation_id: str | None = None, ttl_seconds: int | None = None, timeout: float = 30.0
    ) -> AsyncIterator[Reservation]:
        """Hold an amount during a block; see Client.reservation."""
        core = self._client
        hold = await _beside(lambda: core._hold(feature, amount, reservation_id, ttl_seconds, timeout))
        made, ttl = hold.held["reservationId"], ttl_seconds or DEFAULT_TTL

        async def extend() -> None:
            going = True
            while going:
                await asyncio.sleep(ttl / 3)
                going = await _beside(lambda: core._extended(feature, made, ttl))

        extending = asyncio.ensure_future(extend())
        try:
            yield hold
            used = check_used(hold)
        except BaseException:
            await asyncio.shield(_beside(lambda: core._let_go(feature, made, timeout)))
            raise
        finally:
            extending.cancel()
        if used:
            hold.committed = await self.commit(feature, made, used, overage="record", timeout=timeout)
        else:
            await self.release(feature, made, timeout=timeout)

    async def with_reservation(
        self, feature: str, amount: int, fn: Callable[[], Awaitable[int]], *, reservation_id: str | None = None, ttl_seconds: int | None = None,
        timeout: float = 30.0,
    ) -> Committed | None:
        """Hold an amount, await fn(), and commit the amount that it returns (None for 0); release if it fails."""
        async with self.reservation(feature, amount, reservation_id=reservation_id, ttl_seconds=ttl_seconds, timeout=timeout) as hold:
            hold.used = await fn()
        return hold.committed

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await _beside(functools.partial(self._client.__exit__, kind, error, trace))
