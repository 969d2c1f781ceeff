"""The program of sdk/conformance/README.md: does what each line of standard input asks, and answers each with a line."""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "src"))

from meterplex import Client, MeterplexError, Remaining, Verdict, amount, event_id
from meterplex._events import canonical, parse_time
from meterplex._owner import take_over
from meterplex._owner import release as release_queue

Request = dict[str, Any]
AMOUNTS = {"amount", "effectiveAmount", "limit", "used", "held", "remaining", "released", "committed"}

client: Client
verdicts: list[Request] = []
errors: list[Request] = []
guard = threading.Lock()


def on_verdict(event: dict[str, Any], v: Verdict) -> None:
    shown = {"eventId": v.event_id, "status": v.status, "code": v.code, "reason": v.reason, "remedy": v.remedy, "position": v.position}
    with guard:
        verdicts.append(shown)


def on_error(code: str, detail: str) -> None:
    with guard:
        errors.append({"code": code, "detail": detail})


def drain(found: list[Request]) -> list[Request]:
    with guard:
        taken = list(found)
        found.clear()
    return taken


def seconds(r: Request, name: str, default: float) -> float:
    return default if r.get(name) is None else float(r[name]) / 1000


def new(r: Request) -> Request:
    global client
    names = {"tenant": "tenant", "durability": "durability", "memory": "memory", "maxEvents": "max_events", "maxBytes": "max_bytes",
             "queueBytes": "queue_bytes", "ca": "ca", "policy": "policy"}
    times = {"maxAgeMs": "max_age", "checkMs": "check_timeout", "timeoutMs": "timeout", "retryMs": "longest_wait", "keyRetryMs": "key_wait", "warnAgeMs": "warn_age"}
    given = {k: v for k, v in (r.get("options") or {}).items() if v not in (None, "")}
    options = {names[k]: v for k, v in given.items() if k in names} | {times[k]: v / 1000 for k, v in given.items() if k in times}
    dir = None if options.get("memory") else r["dir"]
    client = Client(r["url"], r["key"], dir, on_verdict=on_verdict, on_error=on_error, **options)
    return {}


def record(r: Request) -> Request:
    made = client.record_many([r["event"]], timeout=seconds(r, "deadlineMs", 10))[0]
    return {"eventId": made.event_id, "timestamp": made.timestamp}


def record_many(r: Request) -> Request:
    return {"eventIds": [made.event_id for made in client.record_many(r["events"], timeout=seconds(r, "deadlineMs", 30))]}


def remaining(left: Remaining) -> Request:
    return {"remaining": left.events, "oldestMs": round(left.oldest * 1000)}


def stats(r: Request) -> Request:
    s = client.stats()
    return {"waiting": s.waiting, "waitingBytes": s.waiting_bytes, "oldestMs": round(s.oldest * 1000), "accepted": s.accepted, "duplicates": s.duplicates,
            "conflicts": s.conflicts, "rejected": s.rejected, "damaged": s.damaged, "lastError": s.last_error}


def rejected(r: Request) -> Request:
    return {"events": [{"event": e.event, "status": e.status, "code": e.code, "reason": e.reason, "remedy": e.remedy} for e in client.rejected()]}


def texts(value: Any) -> Any:
    """Return an answer with its amounts as texts."""
    if isinstance(value, list):
        return [texts(v) for v in value]
    if isinstance(value, dict):
        return {k: str(v) if k in AMOUNTS and type(v) is int else texts(v) for k, v in value.items()}
    return value


def check(r: Request) -> Request:
    found = client.check(r["feature"], int(r.get("amount", 1)), min_position=r.get("minPosition"), wait=r.get("wait"))
    left = None if found.remaining is None else str(found.remaining)
    return {"allowed": found.allowed, "source": found.source, "remaining": left, "reason": found.reason, "asOfPosition": found.as_of_position}


def decide(call: Callable[..., Any], *names: str) -> Callable[[Request], Any]:
    options = {"eventId": "event_id", "reservationId": "reservation_id", "ttlSeconds": "ttl_seconds", "overage": "overage", "metadata": "metadata"}

    def run(r: Request) -> Any:
        first = [int(r[name]) if name in ("amount", "ttlSeconds") else r[name] for name in names]
        rest = {options[k]: v for k, v in r.items() if k in options and k not in names}
        return texts(call(client, *first, timeout=seconds(r, "deadlineMs", 30), **rest))

    return run


def with_reservation(r: Request) -> Any:
    def work() -> int:
        if r.get("fail"):
            raise CallbackFailed
        return int(r["actual"])

    try:
        return texts(client.with_reservation(r["feature"], int(r["amount"]), work, timeout=seconds(r, "deadlineMs", 30)))
    except CallbackFailed:
        raise MeterplexError("callback_failed", "the callback failed") from None


class CallbackFailed(Exception):
    pass


def rows(call: Callable[..., Iterable[Any]]) -> Callable[[Request], Request]:
    names = {"from": "start", "to": "end", "minPosition": "min_position", "groupBy": "group_by", "asOf": "as_of", "asOfPosition": "as_of_position"}

    def run(r: Request) -> Request:
        query = {names.get(k, k): v for k, v in (r.get("query") or {}).items()}
        for name in ("limit", "wait"):
            if name in query:
                query[name] = int(query[name])
        return {"rows": [texts(row) for row in call(client, **query)]}

    return run


def read_queue(r: Request) -> Request:
    ids: list[str] = []
    damaged: list[Request] = []
    for queue in take_over(r["dir"], ""):
        position = queue.position
        while (batch := queue.read(position, 1000, 1 << 20)) is not None:
            position = batch.after
            ids += [json.loads(event)["eventId"] for event in batch.events]
            damaged += [{"segment": d.segment, "offset": d.offset, "bytes": len(d.bytes)} for d in batch.damages if d.bytes]
        release_queue(queue, remove=False)
    return {"eventIds": ids, "damaged": damaged}


def load(r: Request) -> Request:
    begun, callers = time.monotonic(), int(r["callers"])

    def caller(first: int) -> None:
        for n in range(first, int(r["events"]), callers):
            client.record(r["feature"], 1, event_id=f"{r['prefix']}-{n}", timeout=60)

    threads = [threading.Thread(target=caller, args=(n,)) for n in range(callers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return {"ms": round((time.monotonic() - begun) * 1000)}


def fork(r: Request) -> Request:
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            made = client.record(r.get("feature") or "api_calls", 1)
            os.write(writer, made.event_id.encode())
            status = 0
        finally:
            os._exit(status)
    os.close(writer)
    with open(reader) as file:
        recorded = file.read()
    os.waitpid(pid, 0)
    if not recorded:
        raise MeterplexError("fork_failed", "the child recorded nothing")
    return {"supported": True, "eventId": recorded}


def receipt(r: Request) -> Any:
    return texts(client.receipt(r["eventId"], min_position=r.get("minPosition"), wait=r.get("wait")))


def acknowledge(r: Request) -> Request:
    client.acknowledge(r["eventId"])
    return {}


def set_key(r: Request) -> Request:
    client.set_key(r["key"])
    return {}


ACTIONS: dict[str, Callable[[Request], Any]] = {
    "new": new,
    "record": record,
    "recordMany": record_many,
    "flush": lambda r: remaining(client.flush(seconds(r, "deadlineMs", 30))),
    "close": lambda r: remaining(client.close(seconds(r, "deadlineMs", 5))),
    "stats": stats,
    "verdicts": lambda r: {"verdicts": drain(verdicts)},
    "errors": lambda r: {"errors": drain(errors)},
    "rejected": rejected,
    "acknowledge": acknowledge,
    "setKey": set_key,
    "check": check,
    "consume": decide(Client.consume, "feature", "amount"),
    "reserve": decide(Client.reserve, "feature", "amount"),
    "commit": decide(Client.commit, "feature", "reservationId", "amount"),
    "extend": decide(Client.extend, "feature", "reservationId", "ttlSeconds"),
    "release": decide(Client.release, "feature", "reservationId"),
    "withReservation": with_reservation,
    "aggregates": rows(Client.aggregates),
    "usageEvents": rows(Client.events),
    "entitlements": rows(Client.entitlements),
    "reservations": rows(Client.reservations),
    "receipt": receipt,
    "eventId": lambda r: {"eventId": event_id(r["tenant"], r["feature"], r["resource"], r["occurredAt"])},
    "amount": lambda r: {"amount": str(amount(r["decimal"], r.get("unit", ""), int(r.get("scale", 0))))},
    "canonical": lambda r: {"canonical": canonical(r["event"]).decode()},
    "readQueue": read_queue,
    "load": load,
    "fork": fork,
}


def answer(r: Request) -> Request:
    try:
        action = ACTIONS.get(r["do"])
        if action is None:
            raise MeterplexError("invalid_argument", f"no such request: {r['do']}")
        return {"id": r["id"], **(action(r) or {})}
    except MeterplexError as e:
        return {"id": r["id"], "error": {"code": e.code, "status": e.status, "detail": e.detail}}
    except Exception as e:
        return {"id": r["id"], "error": {"code": "internal", "status": None, "detail": repr(e)}}


def serve() -> None:
    out = threading.Lock()

    def reply(r: Request) -> None:
        text = json.dumps(answer(r))
        with out:
            sys.stdout.write(text + "\n")
            sys.stdout.flush()

    with ThreadPoolExecutor(64) as pool:
        for line in sys.stdin:
            request = json.loads(line)
            if request["do"] == "new":
                reply(request)
            else:
                pool.submit(reply, request)


if __name__ == "__main__":
    serve()
