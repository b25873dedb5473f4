"""CronJobs of Kubernetes: what comes along, and what is told instead."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml

from hourhand import Hourhand
from hourhand.core.errors import InvalidOption
from hourhand.surfaces.importing.checking import Import, check
from hourhand.surfaces.importing.kubernetes import read_manifests, translate_manifests
from hourhand.surfaces.importing.reading import LARGEST, files_below, read_text
from hourhand.surfaces.importing.translation import Translation

NOW = datetime(2027, 1, 1, tzinfo=UTC)


def cron_job(
    spec: dict[str, Any] | None = None, job: dict[str, Any] | None = None, pod: dict[str, Any] | None = None,
    container: dict[str, Any] | None = None, **metadata: Any,
) -> dict[str, Any]:  # fmt: skip
    one = {"name": "main", "command": ["/bin/report", "-v"], **(container or {})}
    template = {"spec": {"restartPolicy": "Never", "containers": [one], **(pod or {})}}
    whole = {"schedule": "0 7 * * 1", "timeZone": "Europe/Berlin", "jobTemplate": {"spec": {"template": template, **(job or {})}}}
    return {
        "apiVersion": "batch/v1",
        "kind": "CronJob",
        "metadata": {"name": "report", **metadata},
        "spec": {**whole, **(spec or {})},
    }


def translated(*objects: Any, **options: Any) -> Translation:
    """Through YAML and back, as it comes."""
    text = yaml.safe_dump_all(objects)
    return translate_manifests([("m.yaml", read_manifests("m.yaml", text))], **options)


def checked(translation: Translation) -> Import:
    return check(translation, Hourhand("postgresql://nowhere/none").registry, NOW)


def only(one: dict[str, Any], **options: Any) -> dict[str, Any]:
    done = checked(translated(one, **options))
    assert done.untranslated == []
    (job,) = done.jobs
    return job.given


def reason(one: dict[str, Any]) -> str:
    done = checked(translated(one))
    assert done.jobs == []
    (told,) = done.untranslated
    assert told.where == "m.yaml"
    return told.reason


def remarks(one: dict[str, Any], **options: Any) -> list[str]:
    return [note.text for note in translated(one, **options).notes]


def test_a_cron_job() -> None:
    assert only(cron_job()) == {
        "name": "report", "task": "command", "schedule": "0 7 * * 1", "timezone": "Europe/Berlin", "overlap": "allow",
        "max_attempts": 7, "payload": {"argv": ["/bin/report", "-v"]},
    }  # fmt: skip
    assert remarks(cron_job()) == []


def test_policies() -> None:
    job = only(
        cron_job(
            {"concurrencyPolicy": "Forbid", "startingDeadlineSeconds": 200}, {"backoffLimit": 2, "activeDeadlineSeconds": 600},
            {"activeDeadlineSeconds": 900},
        )
    )  # fmt: skip
    assert job["overlap"] == "skip"
    assert (job["misfire_grace"], job["missed_window"]) == (200.0, "SKIP")
    assert (job["max_attempts"], job["timeout"]) == (3, 600.0)
    assert only(cron_job({"concurrencyPolicy": "Replace"}))["overlap"] == "replace"
    assert only(cron_job(job={"backoffLimit": 0}))["max_attempts"] == 1
    assert any("timeout here holds for each" in one for one in remarks(cron_job(job={"activeDeadlineSeconds": 60})))
    assert remarks(cron_job(job={"activeDeadlineSeconds": 60, "backoffLimit": 0})) == []


def test_names_and_namespaces() -> None:
    assert only(cron_job(namespace="shop"))["name"] == "shop.report"
    assert only(cron_job(namespace="default"))["name"] == "report"
    objects = [cron_job(name="a"), cron_job(name="b"), {"kind": "Service", "metadata": {"name": "web"}}, None, "text", 7]
    done = translated(
        {"kind": "List", "items": objects}, {"kind": "CronJobList", "items": [cron_job(name="c")]}, cron_job(name="d")
    )
    assert [one["name"] for one in done.jobs] == ["a", "b", "c", "d"]
    assert [one.text for one in done.notes] == ["1 object that is no CronJob is passed over"]


@pytest.mark.parametrize(
    ("written", "schedule", "zone"),
    [
        ("@hourly", "@hourly", "Asia/Tokyo"),
        ("CRON_TZ=America/New_York 0 7 * * 1", "0 7 * * 1", "America/New_York"),
        ("TZ=America/New_York 0 7 * * 1", "0 7 * * 1", "America/New_York"),
        ("0 7 ? * MON", "0 7 * * MON", "Asia/Tokyo"),
        ("@every 1h30m", "@every 1h30m", "Asia/Tokyo"),
        # Either day will do there, whatever the first character is.
        ("0 0 */2 * 1", "0 0 1-31/2 * 1", "Asia/Tokyo"),
        ("0 0 1 * */2", "0 0 1 * 0-6/2", "Asia/Tokyo"),
        ("0 0 */2 * *", "0 0 */2 * *", "Asia/Tokyo"),
        ("0 0 */2,5 * */3", "0 0 1-31/2,5 * 0-6/3", "Asia/Tokyo"),
    ],
)
def test_schedules(written: str, schedule: str, zone: str) -> None:
    job = only(cron_job({"schedule": written, "timeZone": None}), timezone="Asia/Tokyo")
    assert (job["schedule"], job["timezone"]) == (schedule, zone)


def test_no_zone_is_utc_and_told() -> None:
    silent = cron_job({"timeZone": None})
    assert only(silent)["timezone"] == "UTC"
    assert any("names no zone" in one for one in remarks(silent))
    assert remarks(silent, timezone="UTC") == []


def test_suspended_jobs_are_added_paused() -> None:
    done = translated(cron_job({"suspend": True}))
    assert done.paused == {"report"}
    assert any("added and paused" in one.text for one in done.notes)
    assert checked(done).jobs[0].paused


def test_the_command_its_directory_and_environment() -> None:
    env = [{"name": "DAYS", "value": "7"}, {"name": "WORD", "value": "$(DAYS) $(NOPE) $$x"}, {"name": "EMPTY"}]
    job = only(
        cron_job(
            container={"command": ["./report"], "args": ["$(DAYS)", "$$(DAYS)", "$(date)"], "workingDir": "/srv", "env": env}
        )
    )
    assert job["payload"] == {
        "argv": ["/srv/report", "7", "$(DAYS)", "$(date)"], "cwd": "/srv", "env": {"DAYS": "7", "WORD": "7 $(NOPE) $x", "EMPTY": ""},
    }  # fmt: skip


def test_what_is_left_behind_is_told() -> None:
    env = [{"name": "PASSWORD", "valueFrom": {"secretKeyRef": {"name": "db", "key": "password"}}}]
    more = {"image": "shop:1", "env": env, "envFrom": [{"secretRef": {"name": "keys"}}, {"configMapRef": {"name": "conf"}}]}
    one = cron_job(pod={"volumes": [{"name": "x"}], "serviceAccountName": "me"}, container={**more, "resources": {"limits": {}}})
    assert only(one)["payload"] == {"argv": ["/bin/report", "-v"]}
    left, secrets = remarks(one)
    assert left == "not carried over: image shop:1, volumes, service account, resources; the program must be where the worker is"
    assert "(PASSWORD, all of keys, all of conf)" in secrets


@pytest.mark.parametrize(
    ("one", "said"),
    [
        (cron_job(pod={"containers": [{"name": "a"}, {"name": "b"}]}), "2 containers"),
        (cron_job(pod={"containers": []}), "no container"),
        (cron_job(pod={"containers": ["x"]}), "no command"),
        (cron_job(container={"command": None, "image": "curl", "args": ["x"]}), "known only to its image (curl)"),
        (cron_job(container={"command": "/bin/a"}), "command is not a list of texts"),
        (cron_job(container={"args": [1]}), "args is not a list of texts"),
        (cron_job(container={"command": ["bin/a"]}), "starts from the directory of its image"),
        (cron_job(pod={"initContainers": [{"name": "a"}]}), "init containers"),
        (cron_job(job={"parallelism": 3}), "parallelism is 3"),
        (cron_job(job={"backoffLimit": "x"}), "backoffLimit is 'x'"),
        (cron_job({"schedule": ""}), "no schedule"),
        (cron_job({"schedule": "0 0 30 2 *"}), "no such date"),
        (cron_job({"timeZone": "Mars/Base"}), "no time zone"),
        (cron_job({"concurrencyPolicy": "Sometimes"}), "not known"),
        (cron_job(name=None), "has no name"),
        (cron_job(container={"env": [{"value": "x"}]}), "has no name"),
        (cron_job(container={"args": ["$(P)"], "env": [{"name": "P", "valueFrom": {}}]}), "value of P is not in the manifest"),
        (cron_job(container={"env": [{"name": "PATH", "value": "/x"}]}), "PATH in env"),
        ({"kind": "CronJob"}, "has no name"),
        ({"kind": "CronJob", "metadata": {"name": "x"}, "spec": []}, "no schedule"),
    ],
)
def test_what_cannot_be_translated_says_why(one: dict[str, Any], said: str) -> None:
    assert said in reason(one)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a: [", "m.yaml, line"),
        ("schedule: {{ .Values.schedule }}\n  x: {{ y", "helm template"),
        ("a: !!python/object/apply:os.system ['true']", "not YAML"),
        ("[" * 100_000, "nested more than 100 deep"),
        ("- " * 100_000, "nested more than 100 deep"),
        (
            "\n".join(["a0: &a0 {x: 1}", *(f"a{n + 1}: &a{n + 1} {{<<: [{f'*a{n}, ' * 20}]}}" for n in range(9))]),
            "more than 10,000 keys",
        ),
        ("a: 2026-99-99", "m.yaml"),
        ("\x07", "not YAML"),
    ],
)
def test_what_is_no_yaml_is_refused(text: str, said: str) -> None:
    with pytest.raises(InvalidOption) as refused:
        read_manifests("m.yaml", text)
    assert said in str(refused.value)
    assert "Nothing was added" in str(refused.value)


# Files, for all sources


def test_files_are_read_within_bounds(tmp_path: Path) -> None:
    file = tmp_path / "f"

    def refused(data: bytes | None) -> str:
        if data is not None:
            file.write_bytes(data)
        with pytest.raises(InvalidOption) as error:
            read_text(str(file if data is not None else tmp_path / "none"))
        return str(error.value)

    assert "No such file" in refused(None)
    assert "is binary" in refused(b"\x7fELF\0\0")
    assert "UTF-16" in refused("0 1 * * * a".encode("utf-16"))
    assert "line 2: not UTF-8 (byte 0xfc)" in refused("a\nf\xfcr\n".encode("latin-1"))
    assert "larger than 4 MiB" in refused(b"a" * (LARGEST + 1))
    with pytest.raises(InvalidOption, match="directory"):
        read_text(str(tmp_path))
    with pytest.raises(InvalidOption, match="larger than 4 MiB"):
        read_text("/dev/zero")
    file.write_bytes(b"\xef\xbb\xbfabc")
    assert read_text(str(file)) == "abc"


def test_directories_are_opened(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    for name in ("b.yaml", "a.yml", "in/c.json", "d.txt"):
        (tmp_path / name).write_text("")
    found = list(files_below([str(tmp_path), "-"], [".yaml", ".yml", ".json"]))
    assert [Path(one).name for one in found] == ["a.yml", "b.yaml", "c.json", "-"]
    with pytest.raises(InvalidOption, match="has no"):
        list(files_below([str(tmp_path / "in")], [".yaml"]))
