"""Sealed payloads: what comes back, what does not open, and what each error says."""

from __future__ import annotations

import base64
import builtins
import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hourhand import ConfigurationError, Hourhand, InvalidPayload
from hourhand.core import sealing
from hourhand.core.encryption_keys import new_key, parse_keys
from hourhand.core.errors import PayloadUnreadable, PermanentFailure
from hourhand.core.payload import MAX_PAYLOAD, encode_untyped
from hourhand.core.sealing import FIELD, NO_KEYS, Sealer, kid_of
from hourhand.core.settings import Settings

K1, K2 = f"k1:{base64.b64encode(bytes(range(32))).decode()}", f"k2:{base64.b64encode(bytes(range(32, 64))).decode()}"
OLD, NEW, BOTH = Sealer(K1), Sealer(K2), Sealer(f"{K2},{K1}")

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
payloads = st.dictionaries(st.text(max_size=8).filter(lambda name: name != FIELD), json_values, max_size=4)
tasks = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9_.:-]{0,20}", fullmatch=True)


def seal_of(text: str) -> dict[str, str]:
    seal: dict[str, str] = json.loads(text)[FIELD]
    return seal


def as_stored(text: str) -> str:
    """As PostgreSQL gives a jsonb back: keys by their length, and spaces."""
    return json.dumps(
        dict(sorted(json.loads(text).items(), key=lambda item: (len(item[0].encode()), item[0]))), ensure_ascii=False
    )


# There and back


@given(payload=payloads, task=tasks)
def test_what_is_sealed_opens_to_the_same(payload: dict[str, Any], task: str) -> None:
    text = json.dumps(payload)
    sealed = BOTH.seal(text, task)
    assert BOTH.open(sealed, task) == text
    assert BOTH.open(as_stored(sealed), task) == text
    assert NEW.open(sealed, task) == text
    assert BOTH.open(OLD.seal(text, task), task) == text


@given(payload=payloads, task=tasks)
def test_a_payload_that_is_not_sealed_stays_as_it_is(payload: dict[str, Any], task: str) -> None:
    text = json.dumps(payload)
    for sealer in (NO_KEYS, BOTH):
        assert sealer.open(text, task) == text
    assert NO_KEYS.seal(text, task) == text


def test_nothing_of_the_payload_can_be_read() -> None:
    sealed = NEW.seal('{"password": "hunter22"}', "login")
    assert "hunter22" not in sealed
    assert "password" not in sealed
    assert seal_of(sealed).keys() == {"kid", "nonce", "data"}
    assert kid_of(json.loads(sealed)) == "k2"


@pytest.mark.parametrize(
    ("key", "aad", "sealed"),
    [
        (b"\x01", b"", "ce546ef63c9cc60765923609b33a9a1974e96e52daf2fcf7075e2271"),
        (b"\x03", b"c2sp.org/XAES-256-GCM", "986ec1832593df5443a179437fd083bf3fdb41abd740a21f71eb769d"),
    ],
)
def test_the_cipher_is_that_of_the_specification(key: bytes, aad: bytes, sealed: str) -> None:
    """The vectors of c2sp.org/XAES-256-GCM, whose two keys differ in the bit that the derivation branches on."""
    nonce = b"ABCDEFGHIJKLMNOPQRSTUVWX"
    assert sealing._cipher(key * 32, nonce).encrypt(nonce[12:], b"XAES-256-GCM", aad).hex() == sealed


def test_no_two_seals_are_alike() -> None:
    sealed = [NEW.seal("{}", "t") for _ in range(1_000)]
    nonces = {seal_of(one)["nonce"] for one in sealed}
    assert len(nonces) == len({seal_of(one)["data"] for one in sealed}) == 1_000
    assert {len(base64.b64decode(one)) for one in nonces} == {24}


def test_both_halves_of_the_nonce_count() -> None:
    drawn = iter([b"a" * 12 + b"b" * 12, b"a" * 12 + b"c" * 12, b"d" * 12 + b"b" * 12])
    sealer = Sealer(K2, lambda size: next(drawn))
    assert len({seal_of(sealer.seal("{}", "t"))["data"] for _ in range(3)}) == 3


# What does not open


@given(place=st.integers(min_value=0), bit=st.integers(0, 7), field=st.sampled_from(["nonce", "data"]))
def test_one_changed_bit_is_noticed(place: int, bit: int, field: str) -> None:
    seal = seal_of(NEW.seal('{"amount": 12}', "pay"))
    raw = bytearray(base64.b64decode(seal[field]))
    raw[place % len(raw)] ^= 1 << bit
    changed = json.dumps({FIELD: {**seal, field: base64.b64encode(raw).decode()}})
    with pytest.raises(PayloadUnreadable, match="it was changed, or belongs to another task"):
        NEW.open(changed, "pay")
    assert NEW.shown(json.loads(changed), "pay") == (
        "[encrypted with key k2 and does not open: it was changed, or belongs to another task]"
    )


@given(task=tasks, other=tasks)
def test_what_was_sealed_for_one_task_does_not_open_for_another(task: str, other: str) -> None:
    sealed = NEW.seal('{"to": "alice"}', task)
    if task != other:
        with pytest.raises(PayloadUnreadable, match="belongs to another task"):
            NEW.open(sealed, other)


def test_a_seal_cannot_be_said_to_be_of_another_key() -> None:
    same = Sealer(f"{K2},other:{K2.partition(':')[2]}")
    seal = seal_of(same.seal("{}", "t"))
    with pytest.raises(PayloadUnreadable):
        same.open(json.dumps({FIELD: {**seal, "kid": "other"}}), "t")


@pytest.mark.parametrize("sealer", [NO_KEYS, OLD])
def test_without_the_key_it_is_said_which_one_is_missing(sealer: Sealer) -> None:
    sealed = NEW.seal("{}", "pay")
    with pytest.raises(PermanentFailure, match=r"'pay' is encrypted with key 'k2', which this process does not have"):
        sealer.open(sealed, "pay")
    assert sealer.shown(json.loads(sealed), "pay") == "[encrypted with key k2]"


@pytest.mark.parametrize("field", ["nonce", "data"])
@pytest.mark.parametrize("value", ["", "!", "AAAA", "ä"])
def test_nonsense_in_a_seal_is_an_error_and_nothing_worse(field: str, value: str) -> None:
    seal = seal_of(NEW.seal("{}", "t"))
    with pytest.raises(PayloadUnreadable):
        NEW.open(json.dumps({FIELD: {**seal, field: value}}), "t")


@pytest.mark.parametrize("value", [1, "x", None, {}, {"kid": "k2"}, {"kid": 1, "nonce": "", "data": ""}, ["k2"]])
def test_what_only_looks_like_a_seal_is_a_plain_payload(value: Any) -> None:
    text = json.dumps({FIELD: value, "a": 1})
    assert NEW.open(text, "t") == text


def test_nobody_can_give_a_payload_that_claims_to_be_sealed() -> None:
    with pytest.raises(InvalidPayload, match=r"no argument can be named \$sealed"):
        encode_untyped("t", json.loads(NEW.seal("{}", "t")))
    app = Hourhand()

    @app.task
    async def free(**fields: Any) -> None: ...

    with pytest.raises(InvalidPayload, match=r"no argument can be named \$sealed"):
        app._by_name("free", {FIELD: {}}, {})


# Chains: the result comes beside the seal


@given(payload=payloads, result=json_values)
def test_the_result_of_the_step_before_joins_what_was_sealed(payload: dict[str, Any], result: Any) -> None:
    inside = {name: value for name, value in payload.items() if name != "result"}
    stored = {**json.loads(NEW.seal(json.dumps(inside), "load")), "result": result}
    assert json.loads(NEW.open(as_stored(json.dumps(stored)), "load")) == {**inside, "result": result}


def test_numbers_beside_a_seal_keep_every_digit() -> None:
    stored = {**json.loads(NEW.seal('{"a": 123456789012345678901234567890}', "t"))}
    text = json.dumps(stored)[:-1] + ', "result": 1.00000000000000000001}'
    assert NEW.open(text, "t") == '{"a":123456789012345678901234567890,"result":1.00000000000000000001}'


def test_a_field_beside_the_seal_cannot_take_the_place_of_one_inside() -> None:
    stored = {**json.loads(NEW.seal('{"amount": 12}', "pay")), "amount": 1_000_000}
    with pytest.raises(PayloadUnreadable, match="was changed"):
        NEW.open(json.dumps(stored), "pay")


def chain() -> dict[str, Any]:
    last = {"task": "c", "payload": {"z": 3}, "queue": "default", "priority": "normal"}
    return {
        "timeout": 5.0,
        "then": {
            "task": "b", "payload": {"y": 2, "result": "never seen"}, "result": "result",
            "options": {"secret": ["y"], "then": last},
        },
    }  # fmt: skip


def test_every_step_is_sealed_for_its_own_task() -> None:
    options = chain()
    sealed = NEW.seal_steps(options)
    assert options == chain()
    assert sealed is not None
    step = sealed["then"]
    assert json.loads(NEW.open(json.dumps(step["payload"]), "b")) == {"y": 2}
    assert json.loads(NEW.open(json.dumps(step["options"]["then"]["payload"]), "c")) == {"z": 3}
    assert NEW.seal_steps(sealed) == sealed
    opened = NEW.open_steps(sealed)
    assert opened is not None
    assert opened["then"]["payload"] == {"y": 2}
    assert opened["then"]["options"]["then"] == chain()["then"]["options"]["then"]
    assert OLD.open_steps(sealed) == sealed
    shown = OLD.show_steps(sealed)
    assert shown is not None
    assert shown["then"]["payload"] == shown["then"]["options"]["then"]["payload"] == "[encrypted with key k2]"


def test_steps_are_sealed_anew_with_the_newest_key() -> None:
    sealed = BOTH.reseal_steps(OLD.seal_steps(chain()))
    assert sealed is not None
    assert kid_of(sealed["then"]["payload"]) == kid_of(sealed["then"]["options"]["then"]["payload"]) == "k2"
    with pytest.raises(PayloadUnreadable):
        OLD.reseal_steps(sealed)


@pytest.mark.parametrize("options", [None, {}, {"timeout": 1}])
def test_options_without_a_chain_are_left_alone(options: Any) -> None:
    assert NEW.seal_steps(options) == NEW.open_steps(options) == options
    assert NO_KEYS.seal_steps(chain()) == chain()


# Keys


def test_the_first_key_seals_and_all_of_them_open() -> None:
    first, every = parse_keys(f" {K2} , {K1} ,")
    assert (first, every.keys()) == ("k2", {"k2", "k1"})
    assert (BOTH.kid, OLD.kid, NO_KEYS.kid) == ("k2", "k1", None)
    assert Sealer("").active is False


def test_keys_behind_the_word_plain_only_open() -> None:
    sealer = Sealer(f"plain,{K2},{K1}")
    assert (sealer.active, sealer.seal("{}", "t")) == (False, "{}")
    assert sealer.open(NEW.seal("{}", "t"), "t") == sealer.open(OLD.seal("{}", "t"), "t") == "{}"
    assert sealer.seal_steps(chain()) == chain()
    with pytest.raises(ConfigurationError, match="number 2 has no id"):
        parse_keys(f"{K1},plain")
    assert parse_keys("plain") == (None, {})


def test_a_new_key_is_a_key() -> None:
    made = [new_key("2027-05") for _ in range(10)]
    assert len(set(made)) == 10
    assert all(len(parse_keys(one)[1]["2027-05"]) == 32 for one in made)
    with pytest.raises(ConfigurationError, match="cannot be the id of a key"):
        new_key("no id")


def test_base64_for_urls_is_taken_as_well() -> None:
    key = bytes([251] * 32)
    assert parse_keys(f"a:{base64.urlsafe_b64encode(key).decode()}") == parse_keys(f"a:{base64.b64encode(key).decode()}")


SECRET = base64.b64encode(b"s" * 32).decode()


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (SECRET, "number 1 has no id"),
        (f"{K1},{SECRET}", "number 2 has no id"),
        (f":{SECRET}", "number 1 has no id"),
        (f"a b:{SECRET}", "number 1 has no id"),
        (f"a:{SECRET[:-4]}", "'a' is not a key"),
        (f"a:{SECRET}AAAA", "'a' is not a key"),
        ("a:not base64 at all", "'a' is not a key"),
        ("a:", "'a' is not a key"),
        (f"{K1},k1:{SECRET}", "two keys have the id 'k1'"),
    ],
)
def test_keys_that_are_none_are_refused_at_once_and_never_shown(text: str, says: str) -> None:
    with pytest.raises(ConfigurationError, match=says) as caught:
        Settings(encryption_keys=text)
    assert SECRET[:8] not in str(caught.value)


def test_settings_do_not_show_what_is_secret_when_they_are_printed() -> None:
    settings = Settings(encryption_keys=K1, webhook_secret="whsec_c2VjcmV0")
    assert K1[3:] not in repr(settings)
    assert "whsec" not in repr(settings)
    assert settings.environment()["HOURHAND_ENCRYPTION_KEYS"] == K1


def test_without_the_library_it_is_said_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *rest: Any) -> Any:
        if name.startswith("cryptography"):
            raise ImportError(name)
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without)
    sealing._library.cache_clear()
    try:
        with pytest.raises(ConfigurationError, match=r"pip install 'hourhand\[encryption\]'"):
            Sealer(K1)
        assert Sealer(None).seal("{}", "t") == "{}"
    finally:
        monkeypatch.undo()
        sealing._library.cache_clear()


def test_the_largest_payload_can_be_sealed() -> None:
    text = msgspec.json.encode({"x": "a" * (MAX_PAYLOAD - 10)}).decode()
    sealed = NEW.seal(text, "t")
    assert len(sealed) < 1.4 * len(text)
    assert NEW.open(sealed, "t") == text
