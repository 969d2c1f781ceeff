"""AsyncClient, the middleware, the wrapper of calls to language models, and errors."""

from __future__ import annotations

import asyncio
import inspect
import pickle
from types import SimpleNamespace

from meterplex import AsyncClient, Client, MeterplexError, QueueFull, UnknownOutcome
from meterplex.llm import record_tokens, tokens
from meterplex.middleware import asgi, wsgi

from .base import KEY, ClientTest, event
from .fake import about
from .test_limits import HELD, Extended


class Async(ClientTest):
    def run_with(self, work, **options):
        async def run():
            async with AsyncClient(options.pop("url", self.fake.url), KEY, self.dir, max_age=0.01, on_error=self._on_error, **options) as client:
                return await work(client)

        return asyncio.run(run())

    def test_concurrent_records(self):
        async def work(client):
            made = await asyncio.gather(*(client.record("f", n + 1) for n in range(100)))
            self.assertEqual(len({m.event_id for m in made}), 100)
            self.assertEqual((await client.flush(20)).events, 0)
            return await client.stats()

        self.assertEqual(self.run_with(work).accepted, 100)

    def test_calls_and_rows(self):
        self.fake.then = lambda r: about(r, {**HELD, "data": [{"a": 1}], "nextCursor": None if "cursor" in r.path else "2", "allowed": True})

        async def work(client):
            async with client.reservation("tokens", 5) as hold:
                hold.used = 3

            async def three():
                return 3

            await client.with_reservation("tokens", 5, three)
            with self.assertRaises(KeyError):
                async with client.reservation("tokens", 5):
                    raise KeyError
            self.assertEqual((await client.check("tokens", 2)).source, "service")
            return [row async for row in client.aggregates(limit=1)], await client.consume("tokens", 1)

        rows, consumed = self.run_with(work)
        self.assertEqual((rows, consumed["allowed"]), ([{"a": 1}, {"a": 1}], True))
        methods = [r.method for r in self.fake.requests]
        self.assertEqual(methods, ["POST", "POST", "POST", "POST", "POST", "DELETE", "GET", "GET", "GET", "POST"])

    def test_a_hold_is_extended_while_its_block_runs(self):
        self.fake.then = lambda r: about(r, HELD)
        extended = Extended()

        async def work(client):
            client._client.extend = extended
            async with client.reservation("tokens", 5, reservation_id="r1", ttl_seconds=0.03) as hold:
                while not extended.refused.is_set():
                    await asyncio.sleep(0.005)
                await asyncio.sleep(0.05)
                hold.used = 1
            async with client.reservation("tokens", 5, ttl_seconds=3) as hold:
                hold.used = 1
            await asyncio.sleep(0.01)
            self.assertEqual(len(asyncio.all_tasks()), 1, "it ends with the block")

        self.run_with(work)
        extended.check(self, "r1")

    def test_deadline_and_cancellation(self):
        async def work(client):
            await client.record_many([event("a")])
            with self.assertRaises(QueueFull):
                await client.record("f", 1, timeout=0.05)
            waits = asyncio.ensure_future(client.record("f", 1, timeout=None))
            await asyncio.sleep(0.05)
            waits.cancel()
            with self.assertRaises(asyncio.CancelledError):
                await waits
            client._client._settings.queue_bytes = 10000
            await client.record_many([event("b")])
            await client.close(0)

        self.run_with(work, url="http://127.0.0.1:1", queue_bytes=120)
        with self.client() as client:
            client.flush(20)
        self.assertEqual([e["eventId"] for e, _ in self.verdicts], ["a", "b"], "what was cancelled before it was stored is not stored")

    def test_it_has_each_function_of_client(self):
        self.assertEqual(inspect.signature(AsyncClient), inspect.signature(Client))
        for name, function in inspect.getmembers(Client, inspect.isfunction):
            if not name.startswith("_") and name not in ("submit", "give_up"):
                self.assertTrue(getattr(AsyncClient, name).__doc__, name)


class Middleware(ClientTest):
    def app(self, status="200 OK"):
        def app(environ, start_response):
            start_response(status, [])
            return [b"ok"]

        return app

    def sent(self, client):
        client.flush(20)
        return [(e["feature"], e["amount"], e.get("metadata")) for r in self.fake.requests for e in r.events()]

    def test_wsgi(self):
        with self.client() as client:
            started = []
            for status in ("200 OK", "404 Not Found", "503 Busy"):
                self.assertEqual(wsgi(self.app(status), client, "calls")({}, lambda *a: started.append(a[0])), [b"ok"])
            counted = wsgi(self.app(), lambda e: e.get("client"), "calls", amount=lambda e, s: 5, metadata=lambda e, s: {"status": s}, count=lambda e, s: e["path"] != "/health")
            for environ in ({"client": client, "path": "/"}, {"client": client, "path": "/health"}, {"path": "/"}):
                counted(environ, lambda *a: None)
            self.assertEqual(started, ["200 OK", "404 Not Found", "503 Busy"])
            self.assertEqual(self.sent(client), [("calls", 1, None), ("calls", 1, None), ("calls", 5, {"status": 200})])
            wsgi(self.app(), client, "BAD")({}, lambda *a: started.append("sent"))
            self.assertEqual(started[-1], "sent")
        self.assertEqual([c for c, _ in self.errors], ["feature_invalid"])

    def test_asgi(self):
        async def app(scope, receive, send):
            await send({"type": "http.response.start", "status": scope.get("status", 200)})
            await send({"type": "http.response.body", "body": b"ok"})

        async def run():
            sent = []

            async def send(message):
                sent.append(message["type"])

            async with AsyncClient(self.fake.url, KEY, self.dir, max_age=0.01, on_error=self._on_error) as client:
                counted = asgi(app, client, "calls", metadata=lambda s, status: {"status": status})
                for scope in ({"type": "http"}, {"type": "http", "status": 500}, {"type": "lifespan"}):
                    await counted(scope, None, send)
                await asgi(app, lambda scope: None, "calls")({"type": "http"}, None, send)
                await asgi(app, client, "BAD")({"type": "http"}, None, send)
                self.assertEqual(len(sent), 10)
                await client.flush(20)

        asyncio.run(run())
        self.assertEqual([e["metadata"] for r in self.fake.requests for e in r.events()], [{"status": 200}])
        self.assertEqual([c for c, _ in self.errors], ["feature_invalid"])


OPENAI = SimpleNamespace(id="chatcmpl-1", usage=SimpleNamespace(prompt_tokens=11, completion_tokens=22))
ANTHROPIC = {"id": "msg_1", "usage": {"input_tokens": 5, "cache_creation_input_tokens": 3, "cache_read_input_tokens": None, "output_tokens": 7}}
STREAM = [
    {"type": "message_start", "message": {"id": "msg_2", "usage": {"input_tokens": 9, "output_tokens": 1}}},
    {"type": "content_block_delta"},
    {"type": "message_delta", "usage": {"output_tokens": 30}},
]


class Tokens(ClientTest):
    def sent(self):
        return sorted((e["eventId"], e["feature"], e["amount"]) for r in self.fake.requests for e in r.events())

    def test_usage_of_different_services(self):
        self.assertEqual([(t.id, t.input, t.output) for t in map(tokens, (OPENAI, ANTHROPIC))], [("chatcmpl-1", 11, 22), ("msg_1", 8, 7)])
        responses = {"type": "response.completed", "response": {"id": "resp_1", "usage": {"input_tokens": 1, "output_tokens": 2}}}
        self.assertEqual(tokens(responses).id, "resp_1")
        self.assertIsNone(tokens("text"))
        self.assertIsNone(tokens(SimpleNamespace(id="x", usage=None)))

    def test_sync(self):
        with self.client() as client:
            self.assertIs(record_tokens(lambda **kwargs: OPENAI, client)(model="m"), OPENAI)
            record_tokens(lambda: ANTHROPIC, client, input="in", output="out")()
            stream = record_tokens(lambda: iter(STREAM), client)()
            self.assertEqual(list(stream), STREAM)
            with record_tokens(lambda: iter(STREAM), client)() as stream:
                next(stream)  # its reader ends early
            record_tokens(lambda: "text", client)()
            client.flush(20)
        self.assertEqual(self.sent(), [
            ("chatcmpl-1-input", "llm_input_tokens", 11), ("chatcmpl-1-output", "llm_output_tokens", 22), ("msg_1-input", "in", 8), ("msg_1-output", "out", 7),
            ("msg_2-input", "llm_input_tokens", 9), ("msg_2-input", "llm_input_tokens", 9), ("msg_2-output", "llm_output_tokens", 1), ("msg_2-output", "llm_output_tokens", 30)])
        self.assertEqual([c for c, _ in self.errors], ["usage_missing"])

    def test_async(self):
        async def create(**kwargs):
            return OPENAI

        async def events():
            for e in STREAM:
                yield e

        async def stream():
            return events()

        async def run():
            async with AsyncClient(self.fake.url, KEY, self.dir, max_age=0.01, on_error=self._on_error) as client:
                self.assertIs(await record_tokens(create, client)(model="m"), OPENAI)
                found = await record_tokens(stream, client)()
                self.assertEqual([e async for e in found], STREAM)
                await client.flush(20)

        asyncio.run(run())
        self.assertEqual([n for _, _, n in self.sent()], [11, 22, 9, 30])

    def test_a_response_is_returned_also_if_it_cannot_be_recorded(self):
        client = self.client()
        client.close()
        self.assertIs(record_tokens(lambda: OPENAI, client)(), OPENAI)
        self.assertEqual([c for c, _ in self.errors], ["closed"])


class Errors(ClientTest):
    def test_they_can_be_pickled(self):
        for e in (MeterplexError("a", "b", 409, {"state": "X"}), UnknownOutcome("unknown_outcome", "d", id="i")):
            copy = pickle.loads(pickle.dumps(e))
            self.assertEqual((type(copy), copy.__dict__, str(copy)), (type(e), e.__dict__, str(e)))
