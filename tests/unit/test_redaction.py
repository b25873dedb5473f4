"""Secret fields: what is hidden, what comes back when an edited payload is saved, and what is taken out of other text."""

from __future__ import annotations

import json
import traceback
from copy import deepcopy
from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hourhand import ConfigurationError, Hourhand, InvalidOption, InvalidPayload
from hourhand.core import failure
from hourhand.core.chain import Step
from hourhand.core.lines import Line, Pen, RunLog
from hourhand.core.options import EnqueueOptions, merge
from hourhand.core.redaction import (
    REDACTED,
    check_marks,
    cleaner,
    marks_in,
    mentions,
    redact,
    restore,
    scrub,
    scrub_values,
    scrubber,
)
from hourhand.core.settings import Settings

NAMES = Settings().secret_names
CARD = {"card": {"number": "4111111111111111", "name": "A. Person"}, "amount": 12}

keys = st.text(st.characters(exclude_characters=".*", exclude_categories=["Cs"]), min_size=1, max_size=6).filter(
    lambda text: not text.isdigit()
)
leaves = st.none() | st.booleans() | st.integers() | st.text(max_size=12)
values = st.recursive(leaves, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=3), max_leaves=8)
payloads = st.dictionaries(keys, values, min_size=1, max_size=4)


def paths_of(value: Any, path: tuple[str, ...] = ()) -> list[tuple[tuple[str, ...], Any]]:
    """Every place in a payload, with `*` for the items of lists."""
    items = value.items() if isinstance(value, dict) else (("*", one) for one in value) if isinstance(value, list) else ()
    found = [(path, value)] if path else []
    return found + [one for key, item in items for one in paths_of(item, (*path, str(key)))]


# What is hidden


@pytest.mark.parametrize(
    ("payload", "marks", "shown"),
    [
        (CARD, ["card.number"], {"card": {"number": REDACTED, "name": "A. Person"}, "amount": 12}),
        (CARD, ["card"], {"card": REDACTED, "amount": 12}),
        (CARD, ["card.*"], {"card": {"number": REDACTED, "name": REDACTED}, "amount": 12}),
        (CARD, ["*.number"], {"card": {"number": REDACTED, "name": "A. Person"}, "amount": 12}),
        (CARD, ["*"], {"card": REDACTED, "amount": REDACTED}),
        (CARD, ["card.cvc", "nothing", "amount.x", "card.number.x"], CARD),
        ({"x": [{"t": "a"}, {"t": "b", "u": 1}]}, ["x.*.t"], {"x": [{"t": REDACTED}, {"t": REDACTED, "u": 1}]}),
        ({"x": [{"t": "a"}, {"t": "b"}]}, ["x.t"], {"x": [{"t": REDACTED}, {"t": REDACTED}]}),
        ({"x": [{"t": "a"}, {"t": "b"}]}, ["x.1.t"], {"x": [{"t": "a"}, {"t": REDACTED}]}),
        ({"x": ["a", ["b"]]}, ["x.*"], {"x": [REDACTED, REDACTED]}),
        ({"x": [[{"t": "a"}]]}, ["x.t"], {"x": [[{"t": REDACTED}]]}),
        ({"a.b": 1, "a": {"b": 2, "c.d": 3}}, ["a.b", "a.c.d"], {"a.b": REDACTED, "a": {"b": REDACTED, "c.d": REDACTED}}),
        ({"a": None, "b": ""}, ["a", "b"], {"a": REDACTED, "b": REDACTED}),
    ],
)
def test_marked_places_are_hidden_and_nothing_else(payload: Any, marks: list[str], shown: Any) -> None:
    before = deepcopy(payload)
    assert redact(payload, marks) == shown
    assert payload == before


@pytest.mark.parametrize("key", ["password", "PASSWORD", "Api-Key", "api_key", "apiKey", "APIKEY", "Authorization", "secret"])
def test_named_fields_are_hidden_at_any_depth_however_they_are_written(key: str) -> None:
    assert redact({"a": [{"b": {key: "x"}}], key: {"c": 1}}, (), NAMES) == {"a": [{"b": {key: REDACTED}}], key: REDACTED}


@pytest.mark.parametrize("key", ["passwords", "my_password", "keys", "api", "secretary", ""])
def test_a_name_is_a_whole_name(key: str) -> None:
    assert redact({key: "x"}, (), NAMES) == {key: "x"}


@given(payload=payloads, data=st.data())
def test_nothing_of_a_marked_value_is_left(payload: dict[str, Any], data: st.DataObject) -> None:
    path, value = data.draw(st.sampled_from(paths_of(payload)))
    shown = redact(payload, [".".join(path)])
    assert (path, value) not in [one for one in paths_of(shown) if one[1] != REDACTED]
    assert restore(shown, payload, [".".join(path)]) == payload


@given(payload=payloads)
def test_without_marks_and_names_everything_is_shown(payload: dict[str, Any]) -> None:
    assert redact(payload) == payload
    assert scrubber(payload) is None


# Marks


@pytest.mark.parametrize("bad", ["password", 7, [""], ["a..b"], [".a"], ["a."], [7], [None], ["x" * 201], {"a": 1}, ["a\0"]])
def test_what_is_no_list_of_fields_is_refused(bad: Any) -> None:
    with pytest.raises(InvalidOption, match="secret takes a list of fields"):
        check_marks(bad)
    with pytest.raises(InvalidOption):
        merge(EnqueueOptions(), {"secret": bad})


def test_there_may_not_be_too_many_marks() -> None:
    with pytest.raises(InvalidOption, match="at most 100"):
        check_marks(f"f{number}" for number in range(101))


@pytest.mark.parametrize("options", [None, {}, {"secret": None}, {"secret": "a"}, {"secret": [1, None]}, {"secret": {"a": 1}}])
def test_marks_of_others_that_make_no_sense_are_no_marks(options: Any) -> None:
    assert marks_in(options) == ()


def test_what_a_task_declares_and_what_an_enqueue_adds_travel_together() -> None:
    merged = merge(EnqueueOptions(secret=("a",)), {"secret": ["b", "a"]})
    assert merged.kept() == {"secret": ["a", "b"]}
    assert merge(merged, {"secret": None}).secret == ("a", "b")


def test_a_task_cannot_mark_an_argument_that_it_does_not_have() -> None:
    app = Hourhand()
    with pytest.raises(ConfigurationError, match=r"secret names 'pasword', but its function takes user, password"):

        @app.task(secret=["pasword"])
        async def login(user: str, password: str) -> None: ...

    with pytest.raises(ConfigurationError, match="secret takes a list"):

        @app.task(secret="password")
        async def logout(password: str) -> None: ...

    @app.task(secret=["anything.at.all"])
    async def free(**fields: Any) -> None: ...


def test_marks_of_a_tasks_and_its_steps_go_with_jobs_and_chains() -> None:
    app = Hourhand()

    @app.task(secret=["token"])
    async def fetch(token: str) -> str:
        return token

    @app.task(secret=["result", "user.ssn"])
    async def store(result: str, user: dict[str, str]) -> None: ...

    step = store.step(user={"ssn": "078-05-1120"})
    assert step.options == {"secret": ["result", "user.ssn"]}
    kept = fetch.options(then=store.options(then="fetch", secret=["user.name"]).step(user={}))._options.kept()
    assert kept is not None
    assert kept["secret"] == ["token"]
    assert kept["then"]["options"]["secret"] == ["result", "user.ssn", "user.name"]
    assert kept["then"]["options"]["then"]["options"] == {"secret": ["token"]}
    _, merged = app._by_name("fetch", {"token": "x"}, {"then": Step("store", {"user": {}}), "secret": ["more"]})
    assert merged.secret == ("token", "more")
    assert merged.then is not None
    assert merged.then.options == {"secret": ["result", "user.ssn"]}


def test_steps_of_tasks_without_marks_are_left_as_they_are() -> None:
    step = Step("a", options={"then": Step("b", {"x": 1}).plain()})
    merged = merge(EnqueueOptions(), {"then": step}, lambda task: ())
    assert merged.then == step


# Coming back


def test_what_is_left_redacted_keeps_its_value_and_the_rest_is_as_it_was_edited() -> None:
    edited = {"card": {"number": REDACTED, "name": "B. Person"}, "amount": 13, "new": [1]}
    assert restore(edited, CARD, ["card.number"]) == {
        "card": {"number": "4111111111111111", "name": "B. Person"}, "amount": 13, "new": [1],
    }  # fmt: skip
    assert restore({"card": REDACTED}, CARD, ["card"]) == {"card": CARD["card"]}
    assert restore({"amount": 1}, CARD, ["card"]) == {"amount": 1}


@pytest.mark.parametrize(
    "edited",
    [
        {"note": REDACTED},
        {"card": {"number": REDACTED, "copy": REDACTED}},
        {"card": {"name": REDACTED}},
        {"amount": REDACTED},
        {"card": {"number": {"again": REDACTED}}},
        {"card": [REDACTED]},
        {"x": [{"y": REDACTED}]},
    ],
)
def test_the_word_is_never_stored_in_place_of_a_value(edited: Any) -> None:
    with pytest.raises(InvalidPayload, match=r"is \[redacted\], but nothing is hidden there|has \[redacted\]"):
        restore(edited, CARD, ["card.number"])


def test_the_word_itself_may_be_a_value_that_was_there() -> None:
    assert restore({"note": REDACTED}, {"note": REDACTED}) == {"note": REDACTED}


PEOPLE = {"people": [{"name": "a", "pin": "1111"}, {"name": "b", "pin": "2222"}, {"name": "c", "pin": "3333"}]}


@pytest.mark.parametrize(
    ("edited", "pins"),
    [
        (["a", "b", "c"], "1111 2222 3333"),
        (["b", "c"], "2222 3333"),
        (["c", "a", "b"], "3333 1111 2222"),
        (["a", "B", "c"], "1111 2222 3333"),
        (["c"], "3333"),
    ],
)
def test_items_of_a_list_are_known_by_what_is_visible_of_them(edited: list[str], pins: str) -> None:
    shown = {"people": [{"name": name, "pin": REDACTED} for name in edited]}
    back = restore(shown, PEOPLE, ["people.*.pin"])
    assert [one["pin"] for one in back["people"]] == pins.split()


@pytest.mark.parametrize(
    ("original", "edited"),
    [
        ({"x": ["one", "two"]}, {"x": [REDACTED]}),
        ({"x": ["one", "two"]}, {"x": [REDACTED, "new", REDACTED]}),
    ],
)
def test_of_a_list_that_has_changed_nothing_is_guessed(original: Any, edited: Any) -> None:
    with pytest.raises(InvalidPayload, match="not clear which value"):
        restore(edited, original, ["x.*"])


def test_alike_items_are_alike() -> None:
    assert restore({"x": [REDACTED]}, {"x": ["one", "one"]}, ["x.*"]) == {"x": ["one"]}
    assert restore({"x": [REDACTED, REDACTED]}, {"x": ["one"]}, ["x.*"]) == {"x": ["one", "one"]}


@given(payload=payloads)
def test_whether_the_word_is_in_it(payload: dict[str, Any]) -> None:
    assert mentions(payload) == (json.dumps(REDACTED) in json.dumps(payload))
    assert mentions({"a": [payload, {"b": REDACTED}]})


# In other text


@given(secret=st.text(min_size=4, max_size=30), before=st.text(max_size=20), after=st.text(max_size=20))
def test_a_secret_is_taken_out_of_any_text(secret: str, before: str, after: str) -> None:
    clean = scrub(f"{before}{secret}{after}", {"password": secret}, (), NAMES)
    assert secret not in clean.replace(REDACTED, "\n\n") or secret in f"{before}\n\n{after}"


@pytest.mark.parametrize(
    "secret", ['it\'s "quoted"', "tab\tand\nline and more", "päss wörd/?&=+", "back\\slash", "4111 1111 1111 1111", "🔑🔑🔑🔑"]
)
def test_a_secret_is_found_as_programs_write_it(secret: str) -> None:
    forms = [secret, repr(secret), json.dumps(secret, ensure_ascii=False), quote(secret, safe=""), f"{{'x': {secret!r}}}"]
    for text in forms:
        shown = scrub(f"failed with {text}!", {"password": secret}, (), NAMES)
        assert REDACTED in shown
        assert "quoted" not in shown
        assert shown.startswith("failed with ")


def test_numbers_are_taken_out_as_whole_numbers() -> None:
    payload = {"pin": 98765, "small": 12, "share": 0.12345, "yes": True, "none": None}
    marks = ["pin", "small", "share", "yes", "none"]
    text = "98765 198765 987651 x98765y -98765 12 0.12345 True None"
    shown = scrub(text, payload, marks)
    assert shown == f"{REDACTED} 198765 987651 x{REDACTED}y -{REDACTED} 12 {REDACTED} True None"


def test_short_values_are_not_looked_for() -> None:
    assert scrub("a cat sat", {"password": "cat"}, (), NAMES) == "a cat sat"


def test_the_longer_secret_goes_first_and_the_word_itself_is_left_whole() -> None:
    payload = {"a": "abcdef", "b": "abcd", "c": "redacted", "d": "acte"}
    assert scrub("abcdef abcd acte", payload, ["*"]) == f"{REDACTED} {REDACTED} {REDACTED}"


def test_everything_below_a_mark_is_secret() -> None:
    payload = {"account": {"owner": {"name": "Grace"}, "ibans": ["DE1234"]}, "city": "Berlin"}
    assert scrub("Grace in Berlin has DE1234", payload, ["account"]) == f"{REDACTED} in Berlin has {REDACTED}"


def test_each_line_of_a_private_key_is_secret() -> None:
    pem = "-----BEGIN KEY-----\nMIIEvQIBADANBg\nkqhkiG9w0BAQEF\n-----END KEY-----\n"
    assert "kqhkiG9w0BAQEF" not in scrub("  | kqhkiG9w0BAQEF", {"k": pem}, ["k"])


def test_a_payload_without_secrets_is_not_read() -> None:
    assert cleaner('{"this is": no JSON', None, (), NAMES) is None
    assert cleaner('{"a": 1}', {"secret": ["a"]}, (), ()) is None
    found = cleaner('{"a": "hunter22"}', {"secret": ["a"]}, (), ())
    assert found is not None
    assert found("hunter22") == REDACTED
    by_name = cleaner('{"API-Key": "hunter22"}', None, (), NAMES)
    assert by_name is not None
    assert by_name("x hunter22") == f"x {REDACTED}"


def test_a_payload_that_cannot_be_read_lets_nothing_through() -> None:
    clean = cleaner('{"password": ' + "[" * 100_000, None, (), NAMES)
    assert clean is not None
    assert clean("whatever it says") == REDACTED


def test_what_would_take_too_long_to_look_through_is_left_out_whole() -> None:
    payload = {"tokens": [f"token {number}" for number in range(50_000)]}
    clean = scrubber(payload, ["tokens"])
    assert clean is not None
    assert clean("x" * 100_000) == REDACTED
    assert clean("with token 123") == f"with {REDACTED}"


def test_results_and_reports_are_scrubbed_value_by_value() -> None:
    clean = scrubber({"password": "hunter22", "pin": 98765}, ["pin"], NAMES)
    told = {"echo": ["hunter22", 98765, 5, None, True], "note": "was hunter22", "share": 0.5}
    assert scrub_values(told, clean) == {"echo": [REDACTED, REDACTED, 5, None, True], "note": f"was {REDACTED}", "share": 0.5}
    assert scrub_values(told, None) is told


def test_an_error_is_scrubbed_before_it_is_cut() -> None:
    secret = "s" * 1_000
    clean = scrubber({"password": secret}, (), NAMES)
    error = ValueError("a" * 1_500 + secret + "z" * 1_500)
    assert secret in "".join(traceback.format_exception(error))
    kept = failure.describe(error, 1, "", "", clean)
    for text in (kept["message"], kept["traceback"]):
        assert "sss" not in text
        assert REDACTED in text or "left out" in text


# Lines


class Loud:
    def __repr__(self) -> str:
        return "Loud(hunter22)"


class Recorder:
    """A structlog logger that remembers what it was told."""

    def __init__(self, told: list[Any], **bound: Any) -> None:
        self.told, self.bound = told, bound

    def bind(self, **fields: Any) -> Recorder:
        return Recorder(self.told, **self.bound, **fields)

    new = bind

    def log(self, level: int, event: str, *args: Any, **fields: Any) -> None:
        self.told.append((event, args, {**self.bound, **fields}))

    def info(self, event: str, *args: Any, **fields: Any) -> None:
        self.log(20, event, *args, **fields)

    error = exception = info


def test_what_a_handler_logs_is_scrubbed_in_its_lines_and_in_the_log_of_the_process() -> None:
    kept: list[Line] = []
    told: list[Any] = []
    log = RunLog(Recorder(told), Pen(100, kept.append, scrubber({"password": "hunter22"}, (), NAMES)), {})
    log.info("logging in with hunter22", password="hunter22", loud=Loud(), nested={"x": ["hunter22"]}, fine=7)
    log.info("as %s", "hunter22")
    log.bind(who="hunter22").error("bound")
    log.new(who="hunter22").log(20, "anew")
    try:
        raise ValueError("bad hunter22")
    except ValueError:
        log.exception("failed")
    assert len(kept) == len(told) == 5
    everything = repr(told) + "".join(f"{line.text}{line.fields}" for line in kept)
    assert "hunter22" not in everything
    assert "bad [redacted]" in everything
    assert told[0][2]["fine"] == 7


def test_without_secrets_the_logger_is_told_what_it_was_told() -> None:
    told: list[Any] = []
    loud = Loud()
    RunLog(Recorder(told), Pen(0, lambda line: None), {}).info("x %s", loud, fields={"a": loud})
    assert told == [("x %s", (loud,), {"fields": {"a": loud}})]
