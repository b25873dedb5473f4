"""The rules and the dashboard in deploy/, as Prometheus and Grafana would read them."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from hourhand.surfaces.cli.main import COMMANDS
from tests.conftest import missing
from tests.support.metrics import DASHBOARD, DEPLOY, RULES, panel_expressions, rule_expressions


@pytest.fixture
def promtool() -> str:
    found = shutil.which("promtool")
    if found is None:
        missing("promtool is not there; it is in Debian's package prometheus")
    assert found is not None
    return found


def run(*command: str) -> None:
    done = subprocess.run(command, cwd=DEPLOY / "prometheus", capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_promtool_finds_nothing_wrong(promtool: str) -> None:
    run(promtool, "check", "rules", "--lint-fatal", RULES.name)
    run(promtool, "check", "config", "--syntax-only", "prometheus.yml")
    run(promtool, "test", "rules", "hourhand.rules.test.yml")


def test_every_alert_is_tested_and_says_what_to_do() -> None:
    groups = yaml.safe_load(RULES.read_text())["groups"]
    alerts = [rule for group in groups for rule in group["rules"] if "alert" in rule]
    tested = (DEPLOY / "prometheus" / "hourhand.rules.test.yml").read_text()
    for one in alerts:
        assert one["labels"]["severity"] in ("info", "warning", "critical")
        assert set(one["annotations"]) == {"summary", "description", "action"}, one["alert"]
        assert f'alertname="{one["alert"]}"' in tested, f"{one['alert']} is in no test"
    assert len({one["alert"] for one in alerts}) == len(alerts) > 20


def test_every_command_that_an_alert_names_exists() -> None:
    named = set(re.findall(r"hourhand ([a-z]+)", RULES.read_text()))
    assert named >= {"doctor", "nodes", "dead"}
    assert named <= {*COMMANDS}, named - {*COMMANDS}


def test_the_dashboard_can_be_imported() -> None:
    dashboard = json.loads(DASHBOARD.read_text())
    panels = dashboard["panels"]
    assert len({one["id"] for one in panels}) == len(panels)
    taken = set[tuple[int, int]]()
    for one in panels:
        place = one["gridPos"]
        cells = {(place["x"] + x, place["y"] + y) for x in range(place["w"]) for y in range(place["h"])}
        assert not cells & taken, f"{one['title']} lies on another panel"
        assert max(x for x, _ in cells) < 24
        taken |= cells
        if one["type"] != "row":
            assert one["description"]
            assert one["datasource"]["uid"] == "${datasource}", "whoever imports it chooses his Prometheus"
            assert {target["datasource"]["uid"] for target in one["targets"]} == {"${datasource}"}
    assert {one["name"] for one in dashboard["templating"]["list"]} == {"datasource", "queue", "task"}
    assert len(panel_expressions()) == len([one for one in panels if one["type"] != "row"]), "titles differ"


def test_series_that_are_the_same_from_every_api_are_not_added_up() -> None:
    """Two APIs tell the same of the fleet: a plain sum would double it."""
    fleet = re.compile(r"hourhand_(?:queue_|dead_letters|jobs|nodes\b|node_|shards_unowned|stuck_|lost_|probation_)")
    expressions = [one for many in panel_expressions().values() for one in many] + list(rule_expressions().values())
    for one in expressions:
        for found in fleet.finditer(one):
            calls = list[str]()  # those around it
            for part in re.finditer(r"([a-z_]*)(?: by \([a-z, ]*\))? ?\(|\)", one[: found.start()]):
                if part.group() == ")":
                    calls.pop()
                else:
                    calls.append(part.group(1))
            aggregations = [call for call in calls if call in ("sum", "max", "min", "count", "avg")]
            assert not aggregations or aggregations[-1] in ("max", "min"), one


def test_ports_of_the_example_do_not_clash() -> None:
    config = yaml.safe_load((DEPLOY / "prometheus" / "prometheus.yml").read_text())
    targets = [one for job in config["scrape_configs"] for static in job["static_configs"] for one in static["targets"]]
    assert len(set(targets)) == len(targets)
    assert all(job["job_name"].startswith("hourhand") for job in config["scrape_configs"])
    assert [Path(one).name for one in config["rule_files"]] == [RULES.name]
