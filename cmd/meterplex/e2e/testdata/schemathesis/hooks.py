"""What the tool may not send: bytes that no HTTP/1.1 header can hold (RFC 9110, 5.5).

Go's server answers such a request by itself, in plain text, before the service sees
it; TestConnectionsThatLie sends some of them.
"""

import schemathesis


@schemathesis.hook
def filter_headers(ctx, headers):
    return not any(
        (ord(c) < 0x20 and c != "\t") or ord(c) == 0x7F
        for value in (headers or {}).values()
        for c in str(value)
    )
