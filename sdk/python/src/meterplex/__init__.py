"""Send usage to Meterplex with a queue that survives restarts and outages, and ask limits.

    from meterplex import Client

    with Client("https://meterplex.example.com", "mp_live_…", "/var/lib/app/usage") as client:
        client.record("api_calls", 1)
"""

from ._async import AsyncClient, AsyncRows
from ._calls import Row, Rows
from ._client import Client, Recorded
from ._events import Event, Verdict, amount, event_id
from ._http import VERSION as __version__
from ._limits import Account, Check, Committed, Consumed, Held, Reservation
from ._pipeline import Remaining, Stats
from ._refused import Rejected
from .errors import InvalidEvent, MeterplexError, QueueFull, QuotaExceeded, UnknownOutcome

__all__ = [
    "Account",
    "AsyncClient",
    "AsyncRows",
    "Check",
    "Client",
    "Committed",
    "Consumed",
    "Event",
    "Held",
    "InvalidEvent",
    "MeterplexError",
    "QueueFull",
    "QuotaExceeded",
    "Recorded",
    "Rejected",
    "Remaining",
    "Reservation",
    "Row",
    "Rows",
    "Stats",
    "UnknownOutcome",
    "Verdict",
    "__version__",
    "amount",
    "event_id",
]
