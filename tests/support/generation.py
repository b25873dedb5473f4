"""What Schemathesis has to be told about this API: how a body of many lines is sent."""

from __future__ import annotations

from typing import Any

import schemathesis


@schemathesis.serializer("application/x-ndjson")
def lines(ctx: schemathesis.SerializationContext, value: Any) -> bytes:
    return value.encode("utf-8", "replace") if isinstance(value, str) else str(value).encode("utf-8", "replace")
