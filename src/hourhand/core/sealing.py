"""Payloads at rest: sealed by whoever writes them, opened by whoever has the key.

XAES-256-GCM (C2SP), which is AES-256-GCM under a key made for each message from the first half of a random 24-byte nonce:
with 12 random bytes alone, a queue at full speed would come to nonces it has had within weeks. The task's name and the key's id
are authenticated with the payload, so that what was sealed for one task does not open for another.
"""

from __future__ import annotations

import base64
import os
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from typing import Any

import msgspec

from hourhand.core.chain import map_steps
from hourhand.core.encryption_keys import parse_keys
from hourhand.core.errors import ConfigurationError, PayloadUnreadable
from hourhand.core.payload import RESERVED

FIELD = RESERVED
SIGN = f'"{FIELD}"'
"""What is in the JSON text of every sealed payload, and hardly in any other."""
NONCE_SIZE = 24

Payload = dict[str, Any]


class Seal(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    kid: str
    nonce: str
    data: str


_fields = msgspec.json.Decoder(dict[str, msgspec.Raw])
_seal = msgspec.json.Decoder(Seal)


@lru_cache(maxsize=32)
def sealer(keys: str | None) -> Sealer:
    return Sealer(keys)


class Sealer:
    """The keys of this process. Without any, nothing is sealed, and what others have sealed cannot be opened."""

    def __init__(self, keys: str | None, random: Callable[[int], bytes] = os.urandom) -> None:
        self.kid, self._keys = parse_keys(keys)
        """The key that seals; None: this process writes payloads as they are."""
        self._random = random
        if self._keys:
            _library()

    @property
    def active(self) -> bool:
        return self.kid is not None

    @property
    def has_keys(self) -> bool:
        """Whether anything can be opened."""
        return bool(self._keys)

    def seal(self, text: str, task: str) -> str:
        """A payload's JSON text as it is stored; without keys, the text itself."""
        if self.kid is None:
            return text
        nonce = self._random(NONCE_SIZE)
        data = _cipher(self._keys[self.kid], nonce).encrypt(nonce[12:], text.encode(), _bound(task, self.kid))
        return f'{{{SIGN}:{{"kid":"{self.kid}","nonce":"{_base64(nonce)}","data":"{_base64(data)}"}}}}'

    def seal_all(self, texts: Iterable[str], task: str) -> list[str]:
        return [self.seal(text, task) for text in texts]

    def open(self, text: str, task: str) -> str:
        """The payload as it was given. One that is not sealed is returned as it is.

        What stands beside the seal was added by the database: the result of the step before.
        """
        if SIGN not in text:
            return text
        fields = _fields.decode(text)
        if (seal := _read(fields.pop(FIELD, None))) is None:
            return text
        opened = self._decrypt(seal, task)
        if not fields:
            return opened
        inside = _fields.decode(opened)
        if inside.keys() & fields.keys():
            raise PayloadUnreadable(f"the payload of task {task!r} was changed: a field stands beside its seal and inside it")
        return msgspec.json.encode(inside | fields).decode()

    def opened(self, payload: Payload, task: str) -> Payload:
        """The same for one that was read already."""
        if FIELD not in payload:
            return payload
        plain: Payload = msgspec.json.decode(self.open(msgspec.json.encode(payload).decode(), task))
        return plain

    def shown(self, payload: Any, task: str) -> Any:
        """For looking at: opened if that is possible, and otherwise a word about it."""
        if (kid := kid_of(payload)) is None:
            return payload
        try:
            return self.opened(payload, task)
        except PayloadUnreadable:
            why = " and does not open: it was changed, or belongs to another task" if kid in self._keys else ""
            return f"[encrypted with key {kid}{why}]"

    def seal_steps(self, options: Payload | None) -> Payload | None:
        """The payloads of a chain's later steps, each for its own task."""
        if not self.active:
            return options

        def sealed(step: Payload) -> Payload:
            payload = step.get("payload") or {}
            if kid_of(payload) is not None:
                return step
            # The result takes the place of an argument of its name: beside a seal, that cannot be inside as well.
            inside = {name: value for name, value in payload.items() if name != step.get("result")}
            return {**step, "payload": msgspec.json.decode(self.seal(msgspec.json.encode(inside).decode(), step["task"]))}

        return map_steps(options, sealed)

    def open_steps(self, options: Payload | None) -> Payload | None:
        """What can be opened is; the rest stays sealed."""

        def opened(step: Payload) -> Payload:
            try:
                return {**step, "payload": self.opened(step.get("payload") or {}, step["task"])}
            except PayloadUnreadable:
                return step

        return map_steps(options, opened)

    def reseal_steps(self, options: Payload | None) -> Payload | None:
        """With the newest key, whatever they were sealed with. One that cannot be opened is an error."""
        opened = map_steps(options, lambda step: {**step, "payload": self.opened(step.get("payload") or {}, step["task"])})
        return self.seal_steps(opened)

    def show_steps(self, options: Payload | None) -> Payload | None:
        return map_steps(options, lambda step: {**step, "payload": self.shown(step.get("payload"), step["task"])})

    def _decrypt(self, seal: Seal, task: str) -> str:
        key = self._keys.get(seal.kid)
        if key is None:
            raise PayloadUnreadable(
                f"the payload of task {task!r} is encrypted with key {seal.kid!r}, which this process does not have: add it to "
                "HOURHAND_ENCRYPTION_KEYS"
            )
        try:
            nonce = base64.b64decode(seal.nonce, validate=True)
            data = base64.b64decode(seal.data, validate=True)
            text: str = _cipher(key, nonce).decrypt(nonce[12:], data, _bound(task, seal.kid)).decode()
            return text
        except (ValueError, _library().InvalidTag):
            raise PayloadUnreadable(
                f"the payload of task {task!r} does not open with key {seal.kid!r}: it was changed, or belongs to another task"
            ) from None


NO_KEYS = Sealer(None)


def kid_of(payload: Any) -> str | None:
    """Which key a payload that was read is sealed with; None: it is not sealed."""
    seal = payload.get(FIELD) if isinstance(payload, Mapping) else None
    return str(seal["kid"]) if isinstance(seal, Mapping) and seal.keys() == {"kid", "nonce", "data"} else None


def _read(raw: msgspec.Raw | None) -> Seal | None:
    try:
        return None if raw is None else _seal.decode(raw)
    except msgspec.DecodeError:
        return None


def _bound(task: str, kid: str) -> bytes:
    return f"hourhand payload\0{kid}\0{task}".encode()


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()


class _Library:
    def __init__(self) -> None:
        from cryptography.exceptions import InvalidTag
        from cryptography.hazmat.primitives.ciphers import Cipher, modes
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM
        from cryptography.hazmat.primitives.ciphers.algorithms import AES256

        self.InvalidTag, self.AESGCM, self.AES256, self.Cipher, self.modes = InvalidTag, AESGCM, AES256, Cipher, modes


@lru_cache
def _library() -> _Library:
    """Only with keys: most installations need none of it."""
    try:
        return _Library()
    except ImportError:
        raise ConfigurationError(
            "encryption_keys is set, and the cryptography package is not installed: pip install 'hourhand[encryption]'"
        ) from None


def _cipher(key: bytes, nonce: bytes) -> Any:
    """AES-256-GCM under the message's own key: CMAC of a counter, a label and the first half of the nonce, as NIST SP 800-108 has it."""
    if len(nonce) != NONCE_SIZE:
        raise ValueError("not a nonce of ours")
    library = _library()
    block = library.Cipher(library.AES256(key), library.modes.ECB()).encryptor()
    first = int.from_bytes(block.update(bytes(16)), "big")
    mask = (first << 1) & (1 << 128) - 1 ^ (0x87 if first >> 127 else 0)
    halves = b"".join(
        (int.from_bytes(bytes([0, number, 0x58, 0]) + nonce[:12], "big") ^ mask).to_bytes(16, "big") for number in (1, 2)
    )
    return library.AESGCM(block.update(halves))
