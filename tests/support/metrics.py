"""What Prometheus would read."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path
from typing import Any

import yaml
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

from hourhand.engine.exposition import text

DEPLOY = Path(__file__).parent.parent.parent / "deploy"
RULES = DEPLOY / "prometheus" / "hourhand.rules.yml"
DASHBOARD = DEPLOY / "grafana" / "hourhand.json"
_SUFFIXES = ("_total", "_bucket", "_count", "_sum")


class Scrape:
    """One answer, by what it says."""

    def __init__(self, answer: bytes | Collector) -> None:
        body = answer if isinstance(answer, bytes) else text(answer)
        self.families = list(text_string_to_metric_families(body.decode()))
        self.samples: dict[tuple[str, tuple[tuple[str, str], ...]], float] = {}
        for family in self.families:
            for one in family.samples:
                key = (one.name, tuple(sorted(one.labels.items())))
                assert key not in self.samples, f"Prometheus refuses an answer that says {key} twice"
                self.samples[key] = one.value

    @property
    def names(self) -> set[str]:
        """Without what is added to the names of counters and histograms."""
        return {one.name for one in self.families}

    def value(self, name: str, **labels: str) -> float:
        return self.samples[name, tuple(sorted(labels.items()))]

    def sum(self, name: str, **labels: str) -> float:
        """Over everything that has at least these labels."""
        wanted = set(labels.items())
        return sum(value for (one, found), value in self.samples.items() if one == name and wanted <= set(found))

    def labels(self, name: str, label: str) -> set[str]:
        return {dict(found)[label] for one, found in self.samples if one == name and label in dict(found)}


def plain(name: str) -> str:
    """The metric that a series belongs to."""
    return next((name.removesuffix(one) for one in _SUFFIXES if name.endswith(one)), name)


def rule_expressions() -> dict[str, str]:
    groups = yaml.safe_load(RULES.read_text())["groups"]
    return {rule.get("alert") or rule["record"]: rule["expr"] for group in groups for rule in group["rules"]}


def panel_expressions() -> dict[str, list[str]]:
    """By title. What Grafana puts in for its variables is put in."""
    panels: list[dict[str, Any]] = json.loads(DASHBOARD.read_text())["panels"]
    return {
        one["title"]: [_filled(target["expr"]) for target in one["targets"]] for one in panels if one["type"] != "row"
    }  # fmt: skip


def _filled(expression: str) -> str:
    return expression.replace("$__rate_interval", "1m").replace("$queue", ".*").replace("$task", ".*")


def series_in(expression: str) -> set[str]:
    """The series of ours, and of the process, that an expression asks for; strings in it are none."""
    return set(re.findall(r"\b(?:hourhand|process)[_:][a-z0-9_:]+", re.sub(r'"[^"]*"', "", expression)))


async def get(host: str, port: int, request: bytes = b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n") -> tuple[int, bytes]:
    """Status and body, as they come over the wire; 0: it was closed without an answer."""
    reader, writer = await asyncio.open_connection(host, port)
    try:
        writer.write(request)
        answer = await reader.read()
    except ConnectionResetError:
        answer = b""
    finally:
        writer.close()
    head, _, body = answer.partition(b"\r\n\r\n")
    return (int(head.split()[1]), body) if head else (0, b"")
