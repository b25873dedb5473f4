"""Traces that come in over HTTP, processes that export them, and one in which OpenTelemetry is not installed."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from hourhand import Hourhand
from hourhand.client import AsyncClient
from hourhand.client import Client as BlockingClient
from hourhand.core.chain import Step
from hourhand.core.tracing import read
from tests.db.conftest import Served
from tests.db.test_cli import Command, hourhand
from tests.support.api import ADMIN, ApiProcess, Client
from tests.support.fleet import Fleet, make_sink, until
from tests.support.outside import row, script
from tests.support.served import blocking, client
from tests.support.traces import Seen, stored, traced

pytestmark = pytest.mark.once
__all__ = ["blocking", "client", "hourhand"]
OUTSIDE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
HEADERS = {"traceparent": OUTSIDE, "tracestate": "vendor=a"}


@pytest.fixture
def seen() -> Iterator[Seen]:
    with traced() as one:
        yield one


@pytest.fixture
async def fleet(url: str, schema: str, tmp_path: Path) -> AsyncIterator[Fleet]:
    one = Fleet(url, schema, tmp_path)
    yield one
    one.close()


async def kept(sql: asyncpg.Connection, schema: str, run: str) -> Any:
    found = (await row(sql, schema, run))["options"]
    return None if found is None else json.loads(found)


# Requests


async def test_a_request_brings_its_trace(admin: Client, served: Served, sql: asyncpg.Connection) -> None:
    """Past this server, which traces nothing itself, to whoever executes the run."""
    whole = {"trace": f"{OUTSIDE} vendor=a"}
    express = (await admin.post("runs", {"task": "far"}, headers=HEADERS)).ok(201)
    assert await kept(sql, served.schema, express["run_id"]) == whole
    once = (await admin.post("runs", {"task": "far"}, headers={**HEADERS, "Idempotency-Key": "one"})).ok(201)
    assert await kept(sql, served.schema, once["run_id"]) == whole
    more = (await admin.post("runs", {"task": "far", "timeout_seconds": 5}, headers={"traceparent": OUTSIDE})).ok(201)
    assert await kept(sql, served.schema, more["run_id"]) == {"timeout": 5.0, "trace": OUTSIDE}
    lines = b'{"task": "far"}\n{"task": "far"}\n{"task": "far", "key": "k"}\n'
    how = {"headers": {**HEADERS, "Content-Type": "application/x-ndjson"}}
    for run in (await admin.call("POST", "runs/batch", data=lines, **how)).ok(201)["run_ids"]:
        assert await kept(sql, served.schema, run) == whole
    # The one after it has nothing to do with it.
    assert await kept(sql, served.schema, (await admin.post("runs", {"task": "far"})).ok(201)["run_id"]) is None


async def test_a_trace_is_said_by_headers_only_and_shown(admin: Client, served: Served, sql: asyncpg.Connection) -> None:
    for bad in ("nonsense", OUTSIDE.upper(), f"00-{'0' * 32}-{'0' * 16}-01"):
        run = (await admin.post("runs", {"task": "far"}, headers={"traceparent": bad})).ok(201)["run_id"]
        assert await kept(sql, served.schema, run) is None, "a header that cannot be read hinders nobody"
    run = (await admin.post("runs", {"task": "far"}, headers={"tracestate": "vendor=a"})).ok(201)["run_id"]
    assert await kept(sql, served.schema, run) is None
    for name in ("trace", "after"):
        assert (await admin.post("runs", {"task": "far", name: OUTSIDE})).status == 422
    run = (await admin.post("runs", {"task": "far"}, headers=HEADERS)).ok(201)["run_id"]
    assert (await admin.get(f"runs/{run}")).ok()["options"] == {"trace": f"{OUTSIDE} vendor=a"}


async def test_clients_send_where_they_stand(
    client: AsyncClient, blocking: BlockingClient, served: Served, sql: asyncpg.Connection, seen: Seen
) -> None:
    with seen.tracer.start_as_current_span("the user's"):
        runs = [
            (await client.enqueue("far")).id,
            *await client.enqueue_many("far", [{}, {}]),
            (await asyncio.to_thread(blocking.enqueue, "far")).id,
        ]
    one, many, other = seen.named("enqueue far")
    assert [(await kept(sql, served.schema, run))["trace"] for run in runs] == [stored(each) for each in (one, many, many, other)]
    assert (one.attributes or {})["hourhand.run_id"] == runs[0]
    assert (many.attributes or {})["messaging.batch.message_count"] == 2
    assert len(seen.traces) == 1
    assert await kept(sql, served.schema, (await client.enqueue("far")).id) is None


def spans(text: str) -> list[dict[str, Any]]:
    """What the exporter to the console has written among other things."""
    found, decoder, place = [], json.JSONDecoder(), text.find('{\n    "name"')
    while place >= 0:
        span, end = decoder.raw_decode(text, place)
        found.append(span)
        place = text.find('{\n    "name"', end)
    return found


async def test_a_server_that_traces_stands_between(url: str, schema: str, sql: asyncpg.Connection, tmp_path: Path) -> None:
    api = ApiProcess(url, schema, tmp_path, OTEL_TRACES_EXPORTER="console")
    await api.started()
    async with Client(api.base, ADMIN) as admin:
        run = (await admin.post("runs", {"task": "far"}, headers=HEADERS)).ok(201)["run_id"]
        # Nobody's trace: the worker begins one.
        assert await kept(sql, schema, (await admin.post("runs", {"task": "far"})).ok(201)["run_id"]) is None
    api.stop()
    (span,) = spans(api.process.text())
    assert (span["name"], span["kind"], span["parent_id"]) == ("enqueue far", "SpanKind.PRODUCER", "0xb7ad6b7169203331")
    assert span["resource"]["attributes"]["service.name"] == "hourhand-api"
    place = read((await kept(sql, schema, run))["trace"])
    assert place is not None
    assert (f"0x{place.trace:032x}", f"0x{place.span:016x}") == (span["context"]["trace_id"], span["context"]["span_id"])
    assert place.state == "vendor=a"


# Processes


async def test_a_worker_exports_what_its_environment_says(
    fleet: Fleet, app: Hourhand, sql: asyncpg.Connection, schema: str
) -> None:
    """Its children too; and the last spans when it is stopped."""
    await make_sink(sql, schema)
    worker = fleet.worker(OTEL_TRACES_EXPORTER="console", OTEL_BSP_SCHEDULE_DELAY="600000", OTEL_SERVICE_NAME="shop")
    await fleet.alive(sql, 1)
    run = await app.enqueue("record", then=Step("isolated_enqueue", result=None))

    async def over() -> bool:
        done = f"SELECT count(*) FROM {schema}.runs WHERE task IN ('isolated_enqueue', 'noop') AND outcome = 'succeeded'"
        return bool(await sql.fetchval(done) == 2)

    await until(over, lambda: f"the chain; its log:\n{worker.text()}")

    async def child() -> bool:
        return '"enqueue noop"' in worker.text()

    await until(child, lambda: f"the child's span; its log:\n{worker.text()}")
    worker.send(signal.SIGTERM)
    assert await worker.ended() == 0
    found = {one["name"]: one for one in spans(worker.text())}
    assert found.keys() == {"enqueue record", "run record", "run isolated_enqueue", "enqueue noop", "run noop"}
    assert len({one["context"]["trace_id"] for one in found.values()}) == 1
    assert found["enqueue noop"]["parent_id"] == found["run isolated_enqueue"]["context"]["span_id"], "made in a child process"
    assert found["run noop"]["parent_id"] == found["enqueue noop"]["context"]["span_id"]
    assert {one["resource"]["attributes"]["service.name"] for one in found.values()} == {"shop"}
    assert found["run record"]["attributes"]["hourhand.run_id"] == run.id


async def test_an_exporter_that_is_not_there_is_said_at_the_start(hourhand: Command) -> None:
    for command in ("worker", "scheduler", "api"):
        done = await hourhand(command, OTEL_TRACES_EXPORTER="pigeon")
        assert done.code != 0
        assert "'pigeon' (OTEL_TRACES_EXPORTER) is not installed" in " ".join(done.err.split())
        assert "Traceback" not in done.err


WITHOUT = """
import asyncio, json, sys
from importlib.abc import MetaPathFinder
import structlog

class Blocked(MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name.partition(".")[0] == "opentelemetry":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Blocked())
structlog.configure(logger_factory=structlog.ReturnLoggerFactory())
from hourhand import Context, Hourhand, Retry
from hourhand.core.tracing import carried, read
from hourhand.engine.worker import Worker, WorkerOptions
from tests.support.endpoints import answering

app = Hourhand(sys.argv[1], schema=sys.argv[2], http_allow="127.0.0.1")

@app.task(retry=Retry(max_attempts=3, base=0, cap=0))
async def first(ctx: Context) -> int:
    if ctx.attempt < 3:
        raise ValueError("again")
    return 1

@app.task
def second(result: int) -> int:
    return result + 1

async def main():
    async with app, answering() as endpoint:
        worker = Worker(await app._database(), app.settings, app.registry, WorkerOptions())
        task = asyncio.create_task(worker.run())
        await worker.started.wait()
        with carried(read(sys.argv[3])):
            runs = [await first.enqueue(), await app.enqueue("http", {"url": endpoint.url()})]
            (many,) = await second.enqueue_many([{"result": 1}])
        runs.append(await second.options(max_attempts=2).enqueue(result=5))
        ends = [await one.wait(30) for one in runs]
        worker.ask_to_stop()
        await task
        print(json.dumps({
            "states": [one.state for one in ends], "options": [one.options for one in ends],
            "many": (await app.runs.show(many)).options, "header": endpoint.requests[0].headers.get("traceparent"),
            "errors": [sorted(one) for one in ends[0].errors],
            "loaded": [name for name in sys.modules if name.startswith("opentelemetry")],
        }))

asyncio.run(main())
"""


async def test_without_the_package_everything_works(url: str, schema: str) -> None:
    said = json.loads(await script(WITHOUT, url, schema, OUTSIDE))
    assert said["states"] == ["succeeded"] * 3
    assert said["options"] == [{"trace": OUTSIDE}, {"trace": OUTSIDE, "secret": ["tls.client_key"]}, {"max_attempts": 2}]
    assert said["many"] == {"trace": OUTSIDE}
    assert said["header"] == OUTSIDE
    assert said["errors"] == [["at", "attempt", "message", "node", "traceback", "type"]] * 2
    assert said["loaded"] == []
