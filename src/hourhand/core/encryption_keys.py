"""Keys for payloads at rest, as they are written down."""

from __future__ import annotations

import base64
import binascii
import os
import re
from collections.abc import Callable

from hourhand.core.errors import ConfigurationError

KEY_SIZE = 32
PLAIN = "plain"
_KID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,31}")
_HOW = "write id:base64, where the base64 is of 32 random bytes; `hourhand encryption new-key` makes one"


def parse_keys(text: str | None) -> tuple[str | None, dict[str, bytes]]:
    """`k2:BASE64,k1:BASE64`: the id of the first one, which encrypts, and all of them. `plain` in the first place encrypts
    nothing, and the keys after it only open. No error shows anything of a key."""
    keys: dict[str, bytes] = {}
    parts = [part.strip() for part in (text or "").split(",") if part.strip()]
    for place, part in enumerate(parts, 1):
        if part == PLAIN and place == 1:
            continue
        kid, colon, encoded = part.partition(":")
        if not colon or not _KID.fullmatch(kid):
            raise ConfigurationError(f"encryption_keys: number {place} has no id of at most 32 letters and digits; {_HOW}")
        try:
            key = base64.b64decode(encoded.strip(), altchars=b"-_" if {"-", "_"} & set(encoded) else None, validate=True)
        except (binascii.Error, ValueError):
            key = b""
        if len(key) != KEY_SIZE:
            raise ConfigurationError(f"encryption_keys: {kid!r} is not a key; {_HOW}")
        if kid in keys:
            raise ConfigurationError(f"encryption_keys: two keys have the id {kid!r}; an id stands for one key for ever")
        keys[kid] = key
    return None if not keys or parts[0] == PLAIN else next(iter(keys)), keys


def new_key(kid: str, random: Callable[[int], bytes] = os.urandom) -> str:
    """A fresh key, as `parse_keys` takes it."""
    if not _KID.fullmatch(kid):
        raise ConfigurationError(f"{kid!r} cannot be the id of a key: use 1 to 32 letters, digits, '_', '.' or '-'")
    return f"{kid}:{base64.b64encode(random(KEY_SIZE)).decode()}"
