"""Records the tokens of calls to language models, from the usage that OpenAI, Anthropic and servers like them report."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from ._async import AsyncClient
from ._client import Client
from ._events import Event, uuid7
from .errors import MeterplexError

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True)
class Tokens:
    """The tokens of a call. input includes those that were read from or written to a cache of prompts."""

    id: str  # of the response, or ""
    input: int
    output: int


def tokens(response: Any) -> Tokens | None:
    """Return the tokens that a response or an event of a stream reports; None: it reports none."""
    message = _member(response, "message") or _member(response, "response") or response  # the first and the last event of a stream
    usage = _member(message, "usage") or _member(response, "usage")
    if usage is None:
        return None

    def number(*names: str) -> int:
        return next((int(n) for n in (_member(usage, name) for name in names) if isinstance(n, int)), 0)

    cached = number("cache_creation_input_tokens") + number("cache_read_input_tokens")  # Anthropic: not within input_tokens
    found = _member(message, "id")
    return Tokens(found if isinstance(found, str) else "", number("input_tokens", "prompt_tokens") + cached, number("output_tokens", "completion_tokens"))


def _member(value: Any, name: str) -> Any:
    return value.get(name) if isinstance(value, Mapping) else getattr(value, name, None)


def record_tokens(call: F, client: Client | AsyncClient, *, input: str = "llm_input_tokens", output: str = "llm_output_tokens", metadata: Mapping[str, Any] | None = None) -> F:
    """Return a function that calls `call` and records the tokens that its response reports, as two features.

        create = record_tokens(openai.chat.completions.create, client)
        answer = create(model="gpt-5", messages=[…])

    A coroutine function needs an AsyncClient. The tokens of a stream are recorded when it ends (OpenAI: stream_options=
    {"include_usage": True}). The ids of the events are that of the response, so that a response counts once. A response without usage,
    and an event that cannot be stored, are reported to on_error of the client: the response is returned all the same.
    """

    def events(found: Tokens | None) -> list[Event]:
        if found is None:
            client.report(MeterplexError("usage_missing", "the response reports no tokens: nothing was recorded"))
            return []
        id = found.id or uuid7()
        both = ((input, "input", found.input), (output, "output", found.output))
        return [{"feature": feature, "amount": n, "eventId": f"{id}-{kind}", "metadata": metadata} for feature, kind, n in both if n > 0]

    if isinstance(client, AsyncClient):
        return _record_async(call, client, events)
    return _record(call, client, events)


def _record(call: F, client: Client, events: Callable[[Tokens | None], list[Event]]) -> F:
    def record(found: Tokens | None) -> None:
        try:
            client.record_many(events(found))
        except MeterplexError as e:
            client.report(e)

    @functools.wraps(call)
    def run(*args: Any, **kwargs: Any) -> Any:
        response = call(*args, **kwargs)
        if hasattr(response, "__next__"):
            return _Stream(response, record)
        record(tokens(response))
        return response

    return run  # type: ignore[return-value]


def _record_async(call: F, client: AsyncClient, events: Callable[[Tokens | None], list[Event]]) -> F:
    async def record(found: Tokens | None) -> None:
        try:
            await client.record_many(events(found))
        except MeterplexError as e:
            client.report(e)

    @functools.wraps(call)
    async def run(*args: Any, **kwargs: Any) -> Any:
        response = call(*args, **kwargs)
        if inspect.isawaitable(response):
            response = await response
        if hasattr(response, "__anext__"):
            return _AsyncStream(response, record)
        await record(tokens(response))
        return response

    return run  # type: ignore[return-value]


class _Seen:
    """Passes a stream on, and keeps the largest number of tokens of each kind: they are totals up to their event."""

    def __init__(self, stream: Any, record: Callable[[Tokens | None], Any]) -> None:
        self._stream, self._record = stream, record
        self._found: Tokens | None = None
        self._ended = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def _see(self, event: Any) -> None:
        new, old = tokens(event), self._found or Tokens("", 0, 0)
        if new is not None:
            self._found = Tokens(old.id or new.id, max(old.input, new.input), max(old.output, new.output))

    def _end(self) -> Any:
        """Record once."""
        ended, self._ended = self._ended, True
        return None if ended else self._record(self._found)


class _Stream(_Seen):
    def __iter__(self) -> _Stream:
        return self

    def __next__(self) -> Any:
        try:
            event = next(self._stream)
        except BaseException:
            self._end()
            raise
        self._see(event)
        return event

    def close(self) -> None:
        self._end()
        if hasattr(self._stream, "close"):
            self._stream.close()

    def __enter__(self) -> _Stream:
        return self

    def __exit__(self, *error: Any) -> None:
        self.close()


class _AsyncStream(_Seen):
    def __aiter__(self) -> _AsyncStream:
        return self

    async def __anext__(self) -> Any:
        try:
            event = await self._stream.__anext__()
        except BaseException:
            await self._finish()
            raise
        self._see(event)
        return event

    async def _finish(self) -> None:
        done = self._end()
        if done is not None:
            await done

    async def close(self) -> None:
        await self._finish()
        end = getattr(self._stream, "close", None) or getattr(self._stream, "aclose", None)
        if end is not None:
            await end()

    async def __aenter__(self) -> _AsyncStream:
        return self

    async def __aexit__(self, *error: Any) -> None:
        await self.close()
