"""The effect sink: what it answered for is on record, once, in order, and no stale effect is taken."""

from __future__ import annotations

import asyncio
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from hourhand.core.clock import Clock
from hourhand.surfaces.verify.sink import MOST_BYTES, Event, Sink, SinkClient, StaleFence, read_log


def event(**given: Any) -> dict[str, Any]:
    return {"kind": "begin", "run": "r_1", "task": "pay", **given}


def line(**given: Any) -> bytes:
    return msgspec.json.encode(event(**given)) + b"\n"


@contextmanager
def process(place: Path) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-m", "hourhand.surfaces.verify.sink", str(place / "sink"), str(place / "log")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as sink:
        assert sink.stdout is not None
        try:
            assert sink.stdout.readline() == b"ready\n"
            yield sink
        finally:
            sink.kill()


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Where a sink runs, for all tests that can share one."""
    place = tmp_path_factory.mktemp("sink")
    with process(place):
        yield place


@pytest.fixture
async def client(place: Path) -> AsyncIterator[SinkClient]:
    client = SinkClient(place / "sink")
    yield client
    client.close()
    await client.close_async()


def found(place: Path, run: str) -> list[Event]:
    return [one for one in read_log(place / "log") if one.run == run]


def test_what_it_answered_for_is_on_record(place: Path, client: SinkClient) -> None:
    before = Clock.machine()
    number = client.record(
        kind="effect", run="r_all", job="tick", task="pay", scheduled_at="2026-03-01T12:00:00Z", attempt=2, fence=7, token="t",
        delivery="exactly_once", data={"amount": 3, "to": "zoë"},
    )  # fmt: skip
    [one] = found(place, "r_all")
    assert (one.n, one.kind, one.job, one.task, one.attempt, one.fence) == (number, "effect", "tick", "pay", 2, 7)
    assert (one.token, one.delivery, one.scheduled_at) == ("t", "exactly_once", "2026-03-01T12:00:00Z")
    assert one.data == {"amount": 3, "to": "zoë"}
    assert one.pid > 0
    assert before <= one.at <= Clock.machine()


def test_threads_share_a_client(place: Path, client: SinkClient) -> None:
    with ThreadPoolExecutor(8) as pool:
        numbers = list(pool.map(lambda n: client.record(**event(run="r_threads", attempt=n)), range(200)))
    events = found(place, "r_threads")
    assert {one.attempt: one.n for one in events} == dict(enumerate(numbers))
    assert [one.n for one in events] == sorted(numbers)
    assert [one.at for one in events] == sorted(one.at for one in events)


async def test_coroutines_share_a_client(place: Path, client: SinkClient) -> None:
    numbers = await asyncio.gather(*(client.record_async(**event(run="r_tasks", attempt=n)) for n in range(100)))
    assert {one.attempt: one.n for one in found(place, "r_tasks")} == dict(enumerate(numbers))


async def test_a_cancelled_event_does_not_confuse_the_answers(place: Path, client: SinkClient) -> None:
    await client.record_async(**event(run="r_cancelled", attempt=1))
    given_up = asyncio.create_task(client.record_async(**event(run="r_cancelled", attempt=2)))
    await asyncio.sleep(0)
    given_up.cancel()
    with pytest.raises(asyncio.CancelledError):
        await given_up
    number = await client.record_async(**event(run="r_cancelled", attempt=3))
    assert [one.n for one in found(place, "r_cancelled") if one.attempt == 3] == [number]


def test_an_effect_under_an_old_fence_is_refused_and_on_record(place: Path, client: SinkClient) -> None:
    client.record(**event(kind="effect", run="r_fence", fence=5))
    client.record(**event(kind="effect", run="r_fence", fence=8))
    with pytest.raises(StaleFence) as refused:
        client.record(**event(kind="effect", run="r_fence", fence=5))
    client.record(**event(kind="effect", run="r_fence", fence=8))
    client.record(**event(kind="end", run="r_fence", fence=5))
    client.record(**event(kind="effect", run="r_other", fence=1))
    assert [one.kind for one in found(place, "r_fence")] == ["effect", "effect", "refused", "effect", "end"]
    assert found(place, "r_fence")[2].n == refused.value.number


async def test_a_refusal_reaches_coroutines_too(client: SinkClient) -> None:
    await client.record_async(**event(kind="effect", run="r_late", fence=2))
    with pytest.raises(StaleFence):
        await client.record_async(**event(kind="effect", run="r_late", fence=1))


def test_what_it_does_not_understand_it_says_and_goes_on(place: Path, client: SinkClient) -> None:
    with pytest.raises(ValueError, match=r"does not take this event.*colour"):
        client.record(**event(run="r_wrong", colour="red"))
    with pytest.raises(ValueError, match="Invalid enum value 'middle'"):
        client.record(**event(run="r_wrong", kind="middle"))
    with pytest.raises(ValueError, match="too large"):
        client.record(**event(run="r_wrong", data={"much": "x" * MOST_BYTES}))
    assert client.record(**event(run="r_right")) > 0
    assert not found(place, "r_wrong")


def test_half_a_line_of_a_client_that_died_is_not_on_record(place: Path, client: SinkClient) -> None:
    with socket.socket(socket.AF_UNIX) as dying:
        dying.connect(str(place / "sink"))
        dying.sendall(line(id="half", run="r_half")[:-10])
    client.record(**event(run="r_whole"))
    assert not found(place, "r_half")
    assert found(place, "r_whole")


def test_it_ends_when_told_and_goes_on_where_it_was(tmp_path: Path) -> None:
    client = SinkClient(tmp_path / "sink")
    with process(tmp_path) as sink:
        assert client.record(**event(kind="effect", fence=4)) == 1
        sink.send_signal(signal.SIGTERM)
        output, errors = sink.communicate(timeout=20)
        assert (sink.returncode, output, errors) == (0, b"", b"")
    with (tmp_path / "log").open("ab") as log:
        log.write(b'{"id": "torn"')
    with process(tmp_path):
        # The client finds out that its connection is gone, and makes another.
        assert client.record(**event()) == 2
        with pytest.raises(StaleFence):
            client.record(**event(kind="effect", fence=3))
    client.close()
    assert [(one.n, one.kind) for one in read_log(tmp_path / "log")] == [(1, "effect"), (2, "begin"), (3, "refused")]


def test_a_client_waits_for_a_sink_that_is_not_there_yet(tmp_path: Path) -> None:
    client = SinkClient(tmp_path / "sink")
    tried = threading.Thread(target=client.record, kwargs=event(run="r_early"))
    tried.start()
    with process(tmp_path):
        tried.join(20)
        assert not tried.is_alive()
    client.close()
    assert found(tmp_path, "r_early")


async def test_a_client_does_not_wait_for_ever(tmp_path: Path) -> None:
    client = SinkClient(tmp_path / "sink", patience=0.0)
    with pytest.raises(ConnectionError, match="no answer from the sink"):
        client.record(**event())
    with pytest.raises(ConnectionError, match="no answer from the sink"):
        await client.record_async(**event())


def test_an_event_whose_answer_was_lost_is_sent_again_and_counts_once(tmp_path: Path) -> None:
    """The sink hangs up on the first try, after the event is on record."""
    sink, client = Sink(tmp_path / "log"), SinkClient(tmp_path / "sink")
    with socket.socket(socket.AF_UNIX) as server, ThreadPoolExecutor(1) as pool:
        server.bind(str(tmp_path / "sink"))
        server.listen()
        answer = pool.submit(client.record, **event(attempt=9))
        for answers in (False, True):
            connection, _ = server.accept()
            with connection, connection.makefile("rb") as lines:
                taken = sink.take(lines.readline())
                if answers:
                    connection.sendall(taken)
        assert answer.result(20) == 2
    client.close()
    sink.close()
    assert (tmp_path / "log").read_bytes().count(b"\n") == 2
    assert [(one.n, one.attempt) for one in read_log(tmp_path / "log")] == [(1, 9)]


def test_a_torn_last_line_is_passed_over_and_a_broken_one_is_not(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(line(id="a", n=1, at=1.5) + line(id="b", n=2, at=2.5)[:-4])
    assert [one.id for one in read_log(path)] == ["a"]
    path.write_bytes(line(id="a", n=1)[:-4] + b"\n" + line(id="b", n=2))
    with pytest.raises(msgspec.DecodeError):
        read_log(path)
    assert read_log(tmp_path / "none") == []
