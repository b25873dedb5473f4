"""A real Prometheus that scrapes a real fleet, with the rules and the dashboard's questions of deploy/."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import aiohttp
import asyncpg
import pytest
import yaml

from hourhand import Hourhand
from tests.conftest import missing
from tests.support.api import ADMIN, ApiProcess
from tests.support.fleet import Fleet, make_sink, until
from tests.support.metrics import RULES, Scrape, get, panel_expressions, rule_expressions
from tests.support.servers import free_port

pytestmark = pytest.mark.once
QUIET = {"Failures", "Retries", "Ended without a worker"}
"""Panels that have nothing to show where nothing has gone wrong."""


class Prometheus:
    def __init__(self, directory: Path, targets: dict[str, int]) -> None:
        found = shutil.which("prometheus")
        if found is None:
            missing("prometheus is not there; it is in Debian's package of that name")
        assert found is not None
        self.port = free_port()
        jobs: list[dict[str, Any]] = [
            {"job_name": name, "static_configs": [{"targets": [f"127.0.0.1:{port}"]}]} for name, port in targets.items()
        ]
        for one in jobs:
            if one["job_name"] == "hourhand-api":
                one["authorization"] = {"credentials": ADMIN}
        config = {
            "global": {"scrape_interval": "500ms", "evaluation_interval": "500ms"},
            "rule_files": [str(RULES)],
            "scrape_configs": jobs,
        }
        (directory / "prometheus.yml").write_text(yaml.safe_dump(config))
        self.log = directory / "prometheus.log"
        with self.log.open("wb") as output:
            self.process = subprocess.Popen(
                [found, f"--config.file={directory / 'prometheus.yml'}", f"--storage.tsdb.path={directory / 'tsdb'}",
                 f"--web.listen-address=127.0.0.1:{self.port}", "--log.level=warn"],
                stdout=output, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, cwd=directory, start_new_session=True,
            )  # fmt: skip

    async def ask(self, path: str, **query: str) -> Any:
        async with aiohttp.ClientSession() as session:
            try:
                async with session.get(f"http://127.0.0.1:{self.port}/api/v1/{path}", params=query) as answer:
                    told = await answer.json()
            except (aiohttp.ClientConnectionError, aiohttp.ContentTypeError):
                assert self.process.poll() is None, self.log.read_text()
                return None  # it is still starting
        assert told["status"] == "success", (query, told)
        return told["data"]

    async def query(self, expression: str) -> list[dict[str, Any]]:
        told = await self.ask("query", query=expression)
        return [] if told is None else list(told["result"])

    async def value(self, expression: str) -> float:
        found = await self.query(expression)
        return float(found[0]["value"][1]) if found else 0.0

    async def alerts(self) -> dict[str, str]:
        found = await self.ask("alerts")
        return {one["labels"]["alertname"]: one["state"] for one in found["alerts"]}


@pytest.fixture
async def fleet(url: str, schema: str, sql: asyncpg.Connection, tmp_path: Path) -> AsyncIterator[Fleet]:
    await make_sink(sql, schema)
    one = Fleet(url, schema, tmp_path)
    yield one
    one.close()


@pytest.fixture
def ports() -> dict[str, int]:
    return {f"hourhand-{name}": free_port() for name in ("worker", "scheduler")}


@pytest.fixture
def prometheus(ports: dict[str, int], api: ApiProcess, tmp_path: Path) -> Iterator[Prometheus]:
    one = Prometheus(tmp_path, {**ports, "hourhand-api": api.port})
    yield one
    one.process.kill()
    one.process.wait()


@pytest.fixture
def api(url: str, schema: str, tmp_path: Path) -> Iterator[ApiProcess]:
    one = ApiProcess(url, schema, tmp_path)
    yield one
    one.stop()


async def test_prometheus_sees_a_fleet_and_hears_of_its_trouble(
    fleet: Fleet, ports: dict[str, int], api: ApiProcess, prometheus: Prometheus, app: Hourhand, sql: asyncpg.Connection
) -> None:
    worker = fleet.worker("--metrics-port", str(ports["hourhand-worker"]))
    fleet.start("scheduler", "--metrics-port", str(ports["hourhand-scheduler"]))
    await fleet.alive(sql, 2)
    await api.started()
    await app.enqueue_many("noop", [{}] * 40)
    await app.enqueue("noop", {"n": "many"})  # what it does not take it gives up
    await app.jobs.add("each-second", task="noop", schedule="every 1s")

    troubles: dict[str, str] = {}

    async def all_up() -> bool:
        targets = (await prometheus.ask("targets") or {}).get("activeTargets", ())
        troubles.update({one["scrapePool"]: one["lastError"] for one in targets})
        return [one["health"] for one in targets] == ["up"] * 3

    await until(all_up, lambda: f"three targets, but {troubles}; Prometheus says:\n{prometheus.log.read_text()}")

    async def counted() -> bool:
        ended = await prometheus.value('sum(hourhand_runs_total{task="noop",status="succeeded",attempt="1"})')
        return ended > 40 and await prometheus.value("sum(hourhand_firings_total)") > 1

    await until(counted, "the runs, those that were fired among them")
    assert await prometheus.value('sum(hourhand_runs_total{task="noop",status="dead",attempt="1"})') == 1
    assert await prometheus.value('hourhand_nodes{kind="worker",state="alive"}') == 1
    assert await prometheus.value("sum(hourhand_shards_owned)") == 256
    counts = 'sum(hourhand_start_lateness_seconds_bucket{le="+Inf"}) == sum(hourhand_start_lateness_seconds_count)'
    assert await prometheus.query(counts)

    async def judged() -> bool:
        groups = (await prometheus.ask("rules"))["groups"]
        rules = [rule for group in groups for rule in group["rules"]]
        assert not [rule for rule in rules if rule["health"] == "err"], rules
        return len(rules) == len(rule_expressions()) and all(rule["health"] == "ok" for rule in rules)

    await until(judged, "the rules to be evaluated")
    assert not {"HourhandNodeDied", "HourhandTargetDown", "HourhandNoWorker"} & (await prometheus.alerts()).keys()
    empty = set(panel_expressions()) - QUIET

    async def drawn() -> bool:
        for title in sorted(empty):
            if all([await prometheus.query(one) for one in panel_expressions()[title]]):
                empty.remove(title)
        return not empty

    await until(drawn, lambda: f"something to show in {empty}")
    for title in QUIET:
        for one in panel_expressions()[title]:
            await prometheus.query(one)  # which fails if it is wrong

    worker.kill()

    async def heard() -> bool:
        told = await prometheus.alerts()
        return told.get("HourhandNodeDied") == "firing" and {"HourhandTargetDown", "HourhandNoWorker"} <= told.keys()

    await until(heard, "the alerts")

    async def declared() -> bool:
        return await prometheus.value("sum(hourhand_nodes_declared_dead_total)") == 1

    await until(declared, "the word of who declared it dead")


async def test_each_of_several_processes_has_a_port(fleet: Fleet, sql: asyncpg.Connection) -> None:
    first = await _two_free_ports()
    parent = fleet.worker("--processes", "2", "--metrics-port", str(first), HOURHAND_METRICS_PORT="1")
    await fleet.alive(sql, 2)
    nodes = set[str]()
    for port in (first, first + 1):
        status, body = await get("127.0.0.1", port)
        assert status == 200
        nodes |= Scrape(body).labels("hourhand_node_info", "node")
    assert len(nodes) == 2
    said = parent.text()
    assert said.count("metrics.served") == 2
    other = fleet.worker("--metrics-port", str(first + 1))
    assert await other.ended() == 2
    assert f"127.0.0.1:{first + 1} cannot be used for metrics" in other.text().replace("\n", " ")
    several = fleet.worker("--processes", "3", "--metrics-port", str(first - 1))
    assert await several.ended() == 2


async def _two_free_ports() -> int:
    while True:
        first = free_port()
        try:
            server = await asyncio.start_server(lambda *_: None, "127.0.0.1", first + 1)
        except OSError:
            continue
        server.close()
        await server.wait_closed()
        return first
