"""Sends an event by the client that openapi-python-client generates, reads its receipt, pages through a list, and reads an error."""
import datetime
import os

from api_client import AuthenticatedClient
from api_client.api.usage import get_receipt, ingest_usage, list_usage_events
from api_client.models import CloudEvent, CloudEventData, CloudEventSpecversion, Problem, Receipt, UsageBatch, UsageEvent

client = AuthenticatedClient(base_url=os.environ["METERPLEX_URL"], token=os.environ["METERPLEX_KEY"])
now = datetime.datetime.now(datetime.timezone.utc)
batch = UsageBatch(events=[
    UsageEvent(event_id="python-1", feature="api_calls", amount=3, timestamp=now),
    UsageEvent(event_id="python-2", feature="foobar", amount=1, timestamp=now),
])
verdict = ingest_usage.sync(client=client, body=batch)
assert (verdict.accepted, verdict.rejected) == (1, 1), verdict
assert verdict.events[1].code == "feature_not_found", verdict
receipt = get_receipt.sync("python-1", client=client)
assert isinstance(receipt, Receipt) and receipt.recorded.position == verdict.events[0].position, receipt
cursor, read = None, 0
while True:
    page = list_usage_events.sync(client=client, limit=1, **({"cursor": cursor} if cursor else {}))
    read, cursor = read + len(page.data), page.next_cursor
    if cursor is None:
        break
assert read >= 1, read
problem = get_receipt.sync("python-9", client=client)
assert isinstance(problem, Problem) and (problem.status, problem.code) == (404, "not_found"), problem
unknown = CloudEvent(specversion=CloudEventSpecversion("1.0"), id="python-3", source="/x", type_="foobar", time=now, data=CloudEventData(amount=1))
problem = ingest_usage.sync(client=client, body=unknown)
assert isinstance(problem, Problem) and (problem.status, problem.code) == (404, "feature_not_found"), problem
print("round trip")
