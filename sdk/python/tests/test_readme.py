"""Each block of code in the README runs, in order, in one namespace."""

import os
import re
from types import SimpleNamespace

from .base import ClientTest
from .fake import about, verdicts
from .test_limits import HELD
from .test_wrappers import OPENAI

README = os.path.join(os.path.dirname(__file__), "..", "README.md")


class Readme(ClientTest):
    def reply(self, request):
        if request.path == "/api/v1/usage/events":
            return verdicts(request, **{id: {"status": "rejected", "code": "feature_not_found", "reason": "x"} for e in request.events() if e["feature"] == "emails" for id in [e["eventId"]]})
        return about(request, {**HELD, "allowed": True, "status": "AGGREGATED", "data": [{"feature": "api_calls", "amount": 1}], "nextCursor": None})

    def test_blocks(self):
        self.fake.then = self.reply
        with open(README, encoding="utf-8") as file:
            blocks = re.findall(r"```python\n(.*?)```", file.read(), re.S)
        self.assertGreaterEqual(len(blocks), 8)
        printed = []
        openai = SimpleNamespace(chat=SimpleNamespace(completions=SimpleNamespace(create=lambda **k: OPENAI)))
        space = {"print": lambda *a: printed.append(" ".join(map(str, a))), "openai": openai, "app": lambda environ, start: [start("200 OK", [])]}
        for block in blocks:
            block = block.replace("https://meterplex.example.com", self.fake.url).replace("usage-queue", self.dir)
            if "client.rejected()" in block:
                with self.assertLogs("meterplex", "WARNING"):
                    space["client"].flush(20)
            exec(compile(block, "README.md", "exec"), space)
        space["app"]({"PATH_INFO": "/"}, lambda *a: b"")
        client = space["client"]
        self.assertEqual(client.flush(20).events, 0)
        client.close()
        self.assertEqual(len([line for line in printed if "feature_not_found" in line]), 1)
        sent = sorted((e["feature"], e["amount"]) for r in self.fake.requests if r.path == "/api/v1/usage/events" for e in r.events())
        self.assertEqual(sent, [("api_calls", 1), ("api_calls", 1), ("api_calls", 1), ("api_calls", 3), ("emails", 1), ("input_tokens", 11), ("input_tokens", 2000),
                                ("output_tokens", 22), ("output_tokens", 1500)])
