"""Sends an event by the client that openapi-python-client generates, and reads its receipt."""
import datetime
import os

from api_client import AuthenticatedClient
from api_client.api.usage import get_receipt, ingest_usage
from api_client.models import Receipt, UsageBatch, UsageEvent

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
print("round trip")
