"""Periodic tasks of Celery: the `beat_schedule` of an app, and the tables of django-celery-beat.

Celery itself is not imported here: its objects are known by the names of their classes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec

from hourhand.surfaces.importing.fields import (
    DAY,
    HOUR,
    MINUTE,
    MONTH,
    WEEKDAY,
    Kind,
    both_days,
    kept_field,
    read_field,
    write_field,
)
from hourhand.surfaces.importing.translation import (
    Found,
    Translation,
    Untranslatable,
    Untranslated,
    iso,
    put_together,
)

_PERIODS = ("days", "hours", "minutes", "seconds", "microseconds")
_CRON = {"minute": MINUTE, "hour": HOUR, "day_of_month": DAY, "month_of_year": MONTH, "day_of_week": WEEKDAY}
_CARRIED = frozenset({"queue", "time_limit"})
_ENTRY = ("task", "schedule", "args", "kwargs", "options", "relative")
_DJANGO = ("django_celery_beat.tzcrontab", "django_celery_beat.clockedschedule")
_COUNTED_ANEW = "an interval is counted from the moment of the import"


def translate_beat_schedule(
    entries: Mapping[str, Any], *, timezone: str | None = None, deadline: float | None = None
) -> Translation:
    """`timezone`: that of the app. `deadline`: its `beat_cron_starting_deadline`."""
    found: list[Found] = []
    untranslated: list[Untranslated] = []
    for name, entry in entries.items():
        try:
            found.append(_entry(str(name), entry, timezone, deadline))
        except Untranslatable as reason:
            untranslated.append(Untranslated("beat_schedule", str(name), str(reason)))
    return put_together(found, untranslated)


def _entry(name: str, entry: Any, timezone: str | None, deadline: float | None) -> Found:
    given = entry if isinstance(entry, Mapping) else {one: getattr(entry, one, None) for one in _ENTRY}
    remarks: list[str] = []
    options = _call(given.get("task"), given.get("args"), given.get("kwargs"))
    schedule = given.get("schedule")
    if given.get("relative") or getattr(schedule, "relative", False):
        remarks.append("a relative interval is rounded to its unit by Celery; here it is counted from the import as it is")
    options |= _schedule(schedule, timezone, remarks)
    if deadline is not None and "every " not in options["schedule"]:
        options |= {"missed_window": "SKIP", "misfire_grace": float(deadline)}
    options |= _carried(given.get("options") or {}, remarks)
    return Found(name, name, options, ("beat_schedule", name), tuple(remarks))


def _call(task: Any, args: Any, kwargs: Any) -> dict[str, Any]:
    if not isinstance(task, str) or not task:
        raise Untranslatable("it names no task")
    if args:
        raise Untranslatable(
            f"it has positional arguments ({', '.join(repr(one)[:40] for one in args)}), and arguments travel by name here; "
            "give them as kwargs"
        )
    if kwargs and not isinstance(kwargs, Mapping):
        raise Untranslatable("its kwargs are no mapping of names to values")
    return {"task": task, **({"payload": dict(kwargs)} if kwargs else {})}


def _schedule(schedule: Any, timezone: str | None, remarks: list[str]) -> dict[str, Any]:
    classes = {one.__name__ for one in type(schedule).__mro__ if one.__module__ in ("celery.schedules", *_DJANGO)}
    if "crontab" in classes:
        own = vars(schedule).get("tz")
        fields = {name: _field_of(schedule, name, kind) for name, kind in _CRON.items()}
        return {"schedule": _cron(fields), "timezone": str(own) if own else _zone(timezone, remarks)}
    if "solar" in classes:
        raise Untranslatable("the sun decides when it fires (solar), and no schedule here follows the sun")
    if "clocked" in classes:
        return {"schedule": iso(_instant(schedule.clocked_time))}
    every = getattr(schedule, "run_every", None) if "schedule" in classes else schedule
    if isinstance(every, (int, float)) and not isinstance(every, bool):
        every = timedelta(seconds=every)
    if not isinstance(every, timedelta):
        raise Untranslatable(f"a schedule of the type {type(schedule).__qualname__} is not known")
    remarks.append(_COUNTED_ANEW)
    return {"schedule": _interval(every)}


def _field_of(schedule: Any, name: str, kind: Kind) -> str:
    """As it was written, if that is still to be had; what counts are the numbers Celery made of it."""
    values, written = getattr(schedule, name), getattr(schedule, f"_orig_{name}", None)
    if isinstance(written, str) and kind not in (DAY, WEEKDAY):
        try:
            if read_field(written, kind) == set(values):
                return kept_field(written, kind)
        except Untranslatable:
            pass
    return write_field(values, kind)


def _cron(fields: Mapping[str, str]) -> str:
    day, weekday = both_days(read_field(fields["day_of_month"], DAY), read_field(fields["day_of_week"], WEEKDAY))
    return f"{fields['minute']} {fields['hour']} {day} {fields['month_of_year']} {weekday}"


def _zone(timezone: str | None, remarks: list[str]) -> str:
    if timezone is None:
        remarks.append("no zone is said, and UTC is taken; give --tz if it is meant in another one")
    return timezone or "UTC"


def _interval(every: timedelta) -> str:
    seconds = f"{every.total_seconds():.6f}".rstrip("0").rstrip(".")
    return f"every {seconds}s"


def _carried(options: Mapping[str, Any], remarks: list[str]) -> dict[str, Any]:
    kept: dict[str, Any] = {}
    if options.get("queue"):
        kept["queue"] = str(getattr(options["queue"], "name", options["queue"]))
    if isinstance(options.get("time_limit"), (int, float)):
        kept["timeout"] = float(options["time_limit"])
    left = sorted(name for name, value in options.items() if name not in _CARRIED and value is not None)
    if "expires" in left:
        left.remove("expires")
        remarks.append("expires is not carried over: a run waits in its queue until a worker has time for it")
    if "priority" in left:
        left.remove("priority")
        remarks.append(
            f"priority {options['priority']} is not carried over: brokers disagree on what is high; "
            "hourhand jobs update JOB --priority high says it here"
        )
    if left:
        remarks.append(f"not carried over: {', '.join(left)}")
    return kept


# The tables of django-celery-beat

TASKS = "django_celery_beat_periodictask"
SCHEDULES = {
    "crontab": "django_celery_beat_crontabschedule",
    "interval": "django_celery_beat_intervalschedule",
    "solar": "django_celery_beat_solarschedule",
    "clocked": "django_celery_beat_clockedschedule",
}
# A task of Celery's own, which cleans up after Celery.
_HOUSEKEEPING = "celery.backend_cleanup"


def translate_tables(
    tasks: Iterable[Mapping[str, Any]], schedules: Mapping[str, Mapping[Any, Mapping[str, Any]]], *, timezone: str | None = None
) -> Translation:
    """`tasks`: the rows; `schedules`: the rows of each kind, by their id. Names of columns are those of the tables."""
    found: list[Found] = []
    untranslated: list[Untranslated] = []
    for row in tasks:
        try:
            found.append(_row(row, schedules, timezone))
        except Untranslatable as reason:
            untranslated.append(Untranslated(TASKS, str(row.get("name")), str(reason)))
    return put_together(found, untranslated)


def _row(row: Mapping[str, Any], schedules: Mapping[str, Mapping[Any, Mapping[str, Any]]], timezone: str | None) -> Found:
    if row.get("task") == _HOUSEKEEPING:
        raise Untranslatable("it cleans up the results of Celery, which nobody writes any more")
    remarks: list[str] = []
    options = _call(row.get("task"), _json(row, "args", []), _json(row, "kwargs", {}))
    options |= _scheduled(row, schedules, timezone, remarks)
    expires, start = row.get("expires"), row.get("start_time")
    if expires is not None:
        options["end_at"] = iso(_instant(expires))
    if start is not None and "every " in options["schedule"]:
        options["anchor"] = iso(_instant(start).replace(microsecond=0))
    elif start is not None:
        options["start_at"] = iso(_instant(start))
    elif "every " in options["schedule"]:
        remarks.append(_counted_anew(row))
    if row.get("one_off") and row.get("clocked_id") is None:
        options["max_runs"] = 1
    other = {name: row.get(name) for name in ("queue", "priority", "exchange", "routing_key")}
    other |= {"expires": row.get("expire_seconds"), "headers": _json(row, "headers", {}) or None}
    options |= _carried({name: value for name, value in other.items() if value not in (None, "")}, remarks)
    disabled = not row.get("enabled", True)
    if disabled:
        remarks.append("it is disabled: it is added and paused at once; hourhand jobs resume starts it")
    name = str(row["name"])
    return Found(name, name, options, (TASKS, name), tuple(remarks), paused=disabled)


def _counted_anew(row: Mapping[str, Any]) -> str:
    last = row.get("last_run_at")
    if last is None:
        return _COUNTED_ANEW
    at = iso(_instant(last).replace(microsecond=0))
    return f"{_COUNTED_ANEW}; to go on from its last run: hourhand jobs update JOB --anchor {at}"


def _scheduled(
    row: Mapping[str, Any], schedules: Mapping[str, Mapping[Any, Mapping[str, Any]]], timezone: str | None, remarks: list[str]
) -> dict[str, Any]:
    for kind in SCHEDULES:
        number = row.get(f"{kind}_id")
        if number is None:
            continue
        when = schedules.get(kind, {}).get(number)
        if when is None:
            raise Untranslatable(f"its schedule ({kind} {number}) is missing")
        if kind == "crontab":
            fields = {name: _kept(str(when[name]), of) for name, of in _CRON.items()}
            return {"schedule": _cron(fields), "timezone": str(when.get("timezone") or "") or _zone(timezone, remarks)}
        if kind == "interval":
            if when["period"] not in _PERIODS:
                raise Untranslatable(f"an interval of {when['period']!r} is not known")
            return {"schedule": _interval(timedelta(**{when["period"]: int(when["every"])}))}
        if kind == "clocked":
            return {"schedule": iso(_instant(when["clocked_time"]))}
        raise Untranslatable(f"the sun decides when it fires ({when.get('event')}), and no schedule here follows the sun")
    raise Untranslatable("it has no schedule")


def _kept(text: str, kind: Kind) -> str:
    return write_field(read_field(text, kind), kind) if kind in (DAY, WEEKDAY) else kept_field(text, kind)


def _json(row: Mapping[str, Any], name: str, default: Any) -> Any:
    text = row.get(name)
    if text is None or text == "":
        return default
    try:
        return msgspec.json.decode(str(text))
    except msgspec.DecodeError:
        raise Untranslatable(f"its {name} are not JSON: {str(text)[:60]}") from None


def _instant(value: Any) -> datetime:
    """Django keeps instants in UTC; databases without time zones, and SQLite, give them back without."""
    try:
        at = value if isinstance(value, datetime) else datetime.fromisoformat(str(value))
    except ValueError:
        raise Untranslatable(f"{value!r} is no instant") from None
    return at.replace(tzinfo=UTC) if at.tzinfo is None else at.astimezone(UTC)
