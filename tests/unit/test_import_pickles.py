"""Pickles that are read and not run: hostile ones above all."""

from __future__ import annotations

import builtins
import pickle
import pickletools
import subprocess
import sys
from collections import OrderedDict
from contextlib import suppress
from datetime import date, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hourhand.surfaces.importing import pickles
from hourhand.surfaces.importing.pickles import Made, Name, Unreadable, plain, read_pickle

VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text(max_size=5)
    | st.binary(min_size=1, max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.tuples(inner, inner)
        | st.dictionaries(st.text(max_size=5) | st.integers(), inner, max_size=3)
    ),
    max_leaves=10,
)


@given(VALUES, st.integers(0, pickle.HIGHEST_PROTOCOL))
def test_plain_values_come_back_as_they_are(value: Any, protocol: int) -> None:
    assert read_pickle(pickle.dumps(value, protocol)) == value


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_sets_are_lists(protocol: int) -> None:
    if protocol >= 4:
        assert sorted(read_pickle(pickle.dumps({3, 1}, protocol))) == [1, 3]
        assert sorted(read_pickle(pickle.dumps(frozenset("ab"), protocol))) == ["a", "b"]


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_objects_stay_on_paper(protocol: int) -> None:
    made = read_pickle(pickle.dumps(timedelta(days=3), protocol))
    assert (str(made), made.arguments) == ("datetime.timedelta", (3, 0, 0))
    path = read_pickle(pickle.dumps(Path("/etc"), protocol))
    assert isinstance(path, Made)
    state = read_pickle(pickle.dumps(pytest.approx, protocol))
    assert isinstance(state, Name)
    assert isinstance(read_pickle(pickle.dumps(OrderedDict(a=1), protocol)), Made)


class Bomb:
    def __init__(self, *call: Any) -> None:
        self.call = call

    def __reduce__(self) -> Any:
        return self.call


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_nothing_in_it_is_run(protocol: int, tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    for call in (
        (subprocess.call, (["touch", str(mark)],)),
        (builtins.eval, (f"open({str(mark)!r}, 'w')",)),
        (builtins.getattr, (Path, "home")),
    ):
        data = pickle.dumps({"a": Bomb(*call)}, protocol)
        assert isinstance(read_pickle(data)["a"], Made)
    assert not mark.exists()


def test_nothing_in_it_is_imported() -> None:
    assert "this" not in sys.modules
    made = read_pickle(b"cthis\nthat\n(S'x'\ntR.")
    assert (str(made), made.arguments) == ("this.that", ("x",))
    assert "this" not in sys.modules


def test_the_reader_has_no_way_to_run_anything() -> None:
    source = Path(pickles.__file__).read_text()
    for word in ("__import__", "import_module", "pickle.load", "import pickle\n", "eval(", "exec(", "getattr("):
        assert word not in source


@given(st.binary(max_size=60))
def test_garbage_is_told(data: bytes) -> None:
    with suppress(Unreadable):
        read_pickle(data)


INSTRUCTIONS = st.lists(
    st.sampled_from([one.code.encode("latin-1") for one in pickletools.opcodes if one.arg is None]), max_size=30
)


@given(INSTRUCTIONS.map(lambda codes: b"N" + b"".join(codes) + b"."))
def test_instructions_in_any_order_are_told(data: bytes) -> None:
    with suppress(Unreadable):
        plain(read_pickle(data), "it")


@given(VALUES, st.integers(0, pickle.HIGHEST_PROTOCOL), st.data())
def test_damaged_pickles_are_told(value: Any, protocol: int, data: st.DataObject) -> None:
    whole = bytearray(pickle.dumps(value, protocol))
    for place in data.draw(st.lists(st.integers(0, len(whole) - 1), max_size=3)):
        whole[place] = data.draw(st.integers(0, 255))
    end = data.draw(st.integers(0, len(whole)))
    with suppress(Unreadable):
        read_pickle(bytes(whole[:end]))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b".",
        b"N",
        b"Pid\n.",
        b"\x82\x01.",
        b"\x80\x05\x97.",
        b"(lp0\n(h\x09.",
        b"]" + b"2" * 10 + b"0" * 20 + b".",
        b"N" * (pickles.LARGEST + 1) + b".",
        b"N0" * pickles.MOST_INSTRUCTIONS + b".",
        b"NNb.",
        b"NNs.",
        b"NNa.",
        b"}((NtNs.",
        b"I" + b"9" * 10_000 + b"\n.",
        b"\x8e" + b"\xff" * 8 + b".",
        b"cos\n.",
        b"K\x01K\x01\x93.",
        b"c_codecs\nencode\nNR.",
        b"N)R.",
    ],
)
def test_what_is_no_pickle_or_not_followed(data: bytes) -> None:
    with pytest.raises(Unreadable):
        read_pickle(data)


def test_a_long_chain_of_makers_breaks_nothing() -> None:
    data = b"cos\nsystem\n" + b")R" * 20_000 + b"."
    assert str(read_pickle(data)) == "made by another object"
    with pytest.raises(Unreadable, match="made by another object"):
        plain({"x": read_pickle(data)}, "its arguments")


def test_few_bytes_do_not_become_many_values() -> None:
    laughs: list[Any] = ["ha"]
    for _ in range(15):
        laughs = [laughs] * 10
    with pytest.raises(Unreadable, match="too many"):
        plain(read_pickle(pickle.dumps(laughs)), "its arguments")
    inside: list[Any] = []
    inside.append(inside)
    with pytest.raises(Unreadable, match="nested too deeply"):
        plain(read_pickle(pickle.dumps(inside)), "its arguments")
    deep = b")" + b"\x85" * 90_000 + b"."
    with pytest.raises(Unreadable, match="nested too deeply"):
        plain(read_pickle(deep), "its arguments")
    with pytest.raises(Unreadable, match="key"):
        read_pickle(b"})" + b"\x85" * 90_000 + b"Ns.")


def test_only_plain_values_travel() -> None:
    given: dict[str, Any] = {"a": [1, (2.5, None)], "b": {"c": True}}
    assert plain(read_pickle(pickle.dumps(given)), "its arguments") == {"a": [1, [2.5, None]], "b": {"c": True}}
    for value, said in (
        (date(2026, 1, 1), "x in its arguments is an object (datetime.date)"),
        ([b"raw"], "x[0] in its arguments is an object (bytes)"),
        ({"y": datetime}, "x['y'] in its arguments is an object (datetime.datetime)"),
        ({1: 2}, "x in its arguments is an object (dict)"),
    ):
        with pytest.raises(Unreadable) as error:
            plain(read_pickle(pickle.dumps({"x": value})), "its arguments")
        assert said in str(error.value)
