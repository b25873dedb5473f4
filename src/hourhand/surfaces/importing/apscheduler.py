"""Jobs of APScheduler 3, from the table of its SQLAlchemy job store. Their states are pickles, and are never unpickled."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from typing import Any

from hourhand.core.errors import InvalidSchedule
from hourhand.core.zones import load_zone
from hourhand.surfaces.importing.fields import DAY, HOUR, MINUTE, MONTH, SECOND, WEEKDAY, Kind, both_days, write_field
from hourhand.surfaces.importing.pickles import Made, Name, Unreadable, plain, read_pickle
from hourhand.surfaces.importing.translation import (
    Found,
    Translation,
    Untranslatable,
    Untranslated,
    digest,
    iso,
    put_together,
    shortened,
)

TABLE = "apscheduler_jobs"
_FIELDS = {"second": SECOND, "minute": MINUTE, "hour": HOUR, "day": DAY, "month": MONTH, "day_of_week": WEEKDAY}
_EXPRESSIONS = "apscheduler.triggers.cron.expressions"
_RANGES = ("AllExpression", "RangeExpression", "MonthRangeExpression", "WeekdayRangeExpression")
_MADE_UP = re.compile(r"[0-9a-f]{32}")
"""An id that nobody chose."""
_UNCHOSEN_GRACE = 1
"""What APScheduler takes for misfire_grace_time where nobody says anything."""


def translate_store(rows: Iterable[tuple[str, bytes]], *, table: str = TABLE) -> Translation:
    """`rows`: the id and the state of each job."""
    found: list[Found] = []
    untranslated: list[Untranslated] = []
    for number, state in rows:
        try:
            found.append(_translate(number, read_pickle(state), table))
        except Untranslatable as reason:
            untranslated.append(Untranslated(table, number, str(reason)))
        except Unreadable as reason:
            untranslated.append(Untranslated(table, number, shortened(f"its state is not understood: {reason}", 300)))
    return put_together(found, untranslated)


def _translate(number: str, state: Any, table: str) -> Found:
    if not isinstance(state, dict) or state.get("version") != 1 or not isinstance(state.get("func"), str):
        raise Untranslatable("its state is not one that APScheduler 3 writes")
    remarks: list[str] = []
    if state.get("args"):
        raise Untranslatable(
            "it has positional arguments (or is a method of an object), and arguments travel by name here; give them as kwargs"
        )
    try:
        kwargs = plain(state.get("kwargs") or {}, "its arguments")
    except Unreadable as reason:
        raise Untranslatable(str(reason)) from None
    options: dict[str, Any] = {"task": state["func"], **({"payload": kwargs} if kwargs else {})}
    options |= _schedule(state.get("trigger"), remarks)
    options |= _policies(state, remarks)
    paused = state.get("next_run_time") is None
    if paused:
        remarks.append("it is paused there: it is added and paused at once; hourhand jobs resume starts it")
    name = state.get("name")
    wanted = number if not _MADE_UP.fullmatch(number) else f"{name if isinstance(name, str) else 'job'}-{digest(number)}"
    return Found(wanted, number, options, (table, number), tuple(remarks), paused=paused)


def _policies(state: Mapping[str, Any], remarks: list[str]) -> dict[str, Any]:
    grace, instances = state.get("misfire_grace_time"), state.get("max_instances")
    options: dict[str, Any] = {}
    if grace is None:
        # Never too late: what was missed runs, all of it or once for all.
        options["missed_window"] = "RUN_ONCE" if state.get("coalesce") else "RUN_ALL"
    else:
        options["missed_window"] = "SKIP"
        if grace != _UNCHOSEN_GRACE and isinstance(grace, int):
            options["misfire_grace"] = float(grace)
        else:
            remarks.append(
                "misfire_grace_time is 1 s, as APScheduler has it by default: 60 s are given, so that another scheduler can step in"
            )
    if instances == 1:
        options["overlap"] = "skip"
    else:
        remarks.append("max_instances is more than 1: there is no such number here, and any number of its runs may overlap")
    if isinstance(state.get("executor"), str) and state["executor"] != "default":
        remarks.append(
            f"the executor {shortened(state['executor'], 40)} is not carried over: isolation= of the task says where it runs"
        )
    return options


def _schedule(trigger: Any, remarks: list[str]) -> dict[str, Any]:
    kind = str(trigger) if isinstance(trigger, Made) else type(trigger).__name__
    reader = {
        "apscheduler.triggers.cron.CronTrigger": _cron,
        "apscheduler.triggers.interval.IntervalTrigger": _interval,
        "apscheduler.triggers.date.DateTrigger": _date,
    }.get(kind)
    if reader is None:
        raise Untranslatable(f"a trigger of the type {kind.rpartition('.')[2]} has no equal here")
    state = _attributes(trigger)
    options = reader(state)
    end, jitter = state.get("end_date"), state.get("jitter")
    if end is not None:
        # There the last instant belongs to it, here it does not.
        options["end_at"] = iso(_instant(end).replace(microsecond=0) + timedelta(seconds=1))
    if isinstance(jitter, (int, float)) and jitter:
        options["flexible_window"] = float(jitter)
        remarks.append("jitter becomes a flexible window: a place within it that stays the same for the job")
    return options


def _date(state: Mapping[str, Any]) -> dict[str, Any]:
    return {"schedule": iso(_instant(state.get("run_date")))}


def _interval(state: Mapping[str, Any]) -> dict[str, Any]:
    seconds = f"{_span(state.get('interval')).total_seconds():.6f}".rstrip("0").rstrip(".")
    return {"schedule": f"every {seconds}s", "anchor": iso(_instant(state.get("start_date")).replace(microsecond=0))}


def _cron(state: Mapping[str, Any]) -> dict[str, Any]:
    fields = {}
    for one in state.get("fields") or []:
        attributes = _attributes(one)
        fields[attributes.get("name")] = attributes.get("expressions")
    if not _is_any(fields.get("year")):
        raise Untranslatable("it asks for a year, and cron here has no field for that: use start_at and end_at")
    if not _is_any(fields.get("week")):
        raise Untranslatable("it asks for a week of the year, and cron here has no field for that")
    written = {name: _field(fields.get(name), kind) for name, kind in _FIELDS.items() if name not in ("day", "day_of_week")}
    day, weekday = _days(fields.get("day"), fields.get("day_of_week"))
    five = f"{written['minute']} {written['hour']} {day} {written['month']} {weekday}"
    options = {
        "schedule": five if written["second"] == "0" else f"{written['second']} {five}",
        "timezone": _zone(state.get("timezone")).key,
    }
    if state.get("start_date") is not None:
        options["start_at"] = iso(_instant(state["start_date"]))
    return options


def _field(expressions: Any, kind: Kind) -> str:
    """In the words of cron where it has the same, so that `*/5` stays `*/5`."""
    parts = []
    for one in _list(expressions):
        attributes = _range(one)
        if _kind(one) == "AllExpression":
            parts.append(f"*/{attributes['step']}" if attributes.get("step") else "*")
        else:
            parts.append(write_field(_values(one, kind), kind))
    return "*" if "*" in parts else ",".join(parts)


def _days(days: Any, weekdays: Any) -> tuple[str, str]:
    """Both must match. Within the days of a month there may be weekdays too, such as `2nd fri`: of those any will do."""
    numbers: set[int] = set()
    last: list[str] = []
    placed: list[str] = []
    for one in _list(days):
        match _kind(one):
            case "WeekdayPositionExpression":
                weekday, place = _place(one)
                placed.append(f"{weekday}L" if place == 6 else f"{weekday}#{place}")
            case "LastDayOfMonthExpression":
                last.append("L")
            case _:
                numbers |= _values(one, DAY)
    chosen = {(one + 1) % 7 for expression in _list(weekdays) for one in _values(expression, WEEKDAY)}
    if not placed and not last:
        return both_days(numbers, chosen)
    if len(chosen) < 7:
        raise Untranslatable("it asks for a place in the month and a weekday at once, and cron here takes either")
    day = ",".join([*([write_field(numbers, DAY)] if numbers else []), *last])
    # Cron takes either of the two, unless one of them is *.
    return (day or "*", ",".join(placed) or "*")


def _place(expression: Any) -> tuple[int, int]:
    """The weekday, Sunday being 0, and which of them in the month; 6 is the last."""
    state = _attributes(expression)
    weekday, place = state.get("weekday"), state.get("option_num")
    if not isinstance(weekday, int) or not isinstance(place, int) or weekday not in range(7) or place not in range(6):
        raise Untranslatable("a field of its trigger is damaged")
    return (weekday + 1) % 7, place + 1


def _values(expression: Any, kind: Kind) -> set[int]:
    state = _range(expression)
    first, last = state.get("first", kind.lowest), state.get("last", kind.highest)
    last = kind.highest if last is None else last
    if first not in kind.all or last not in kind.all:
        raise Untranslatable(f"a {kind.name} of its trigger is none")
    return set(range(first, last + 1, state.get("step") or 1))


def _range(expression: Any) -> Mapping[str, Any]:
    if _kind(expression) not in _RANGES:
        raise Untranslatable(f"a field of the type {_kind(expression)} is not known")
    state = _attributes(expression)
    if not all(isinstance(state.get(name), (int, type(None))) for name in ("first", "last", "step")):
        raise Untranslatable("a field of its trigger is damaged")
    return state


def _is_any(expressions: Any) -> bool:
    return all(_kind(one) == "AllExpression" and not _attributes(one).get("step") for one in _list(expressions))


def _list(value: Any) -> list[Any]:
    if not isinstance(value, list) or not value:
        raise Untranslatable("a field of its trigger is missing")
    return value


def _kind(expression: Any) -> str:
    by = expression.by if isinstance(expression, Made) else None
    return by.name if isinstance(by, Name) and by.module == _EXPRESSIONS else str(by)


def _attributes(made: Any) -> Mapping[str, Any]:
    """What an object was given: a dictionary, or a pair of one and the slots."""
    state = made.state if isinstance(made, Made) else None
    parts = [one for one in (state if isinstance(state, tuple) else (state,)) if isinstance(one, dict)]
    if not parts:
        raise Untranslatable("a part of its trigger is damaged")
    return {name: value for part in parts for name, value in part.items()}


@dataclass(frozen=True, slots=True)
class _Zone:
    key: str
    rules: tzinfo


def _zone(made: Any) -> _Zone:
    """From zoneinfo, pytz, or datetime's own: whichever the pickle names."""
    by: Any = made.by if isinstance(made, Made) else None
    arguments: Any = made.arguments if isinstance(made, Made) else ()
    # Its own way to be made is an attribute of the class, which older pickles ask for by a call.
    if isinstance(by, Made) and isinstance(by.arguments, tuple) and by.arguments and isinstance(by.arguments[0], Name):
        by = Name(str(by.arguments[0]), "_unpickle")
    match str(by) if isinstance(by, Name) else None:
        case "zoneinfo.ZoneInfo._unpickle" | "backports.zoneinfo.ZoneInfo._unpickle":
            return _named(arguments)
        case "pytz._UTC" | "dateutil.tz.tz.tzutc":
            return _Zone("UTC", UTC)
        case "pytz._p":
            zone = _named(arguments)
            # It says which of the offsets of its zone holds: of two equal local times it is the only one who knows.
            offset = arguments[1] if len(arguments) > 1 and isinstance(arguments[1], int) else None
            return zone if offset is None else _Zone(zone.key, timezone(timedelta(seconds=offset)))
        case "datetime.timezone":
            span = _span(arguments[0] if isinstance(arguments, tuple) and arguments else None)
            hours = span / timedelta(hours=1)
            key = "UTC" if not hours else f"Etc/GMT{-int(hours):+d}" if hours == int(hours) else f"{hours:+g} h"
            return _Zone(key, timezone(span))
    raise Untranslatable(f"its time zone ({by if isinstance(by, Name) else type(made).__name__}) is not understood")


def _named(arguments: Any) -> _Zone:
    key = arguments[0] if isinstance(arguments, tuple) and arguments else None
    if not isinstance(key, str):
        raise Untranslatable("its time zone has no name")
    try:
        return _Zone(key, load_zone(key))
    except InvalidSchedule as error:
        raise Untranslatable(str(error)) from None


def _instant(made: Any) -> datetime:
    arguments = made.arguments if isinstance(made, Made) and str(made) == "datetime.datetime" else ()
    if not isinstance(arguments, tuple) or len(arguments) != 2 or not isinstance(arguments[0], bytes) or len(arguments[0]) != 10:
        raise Untranslatable("an instant of its trigger is not understood, or has no time zone")
    packed = arguments[0]
    # As datetime packs itself: the fold is in the topmost bit of the month.
    year, (hour, minute, second), micro = packed[0] * 256 + packed[1], packed[4:7], int.from_bytes(packed[7:10], "big")
    fold, month = packed[2] >> 7, packed[2] & 127
    try:
        at = datetime(year, month, packed[3], hour, minute, second, micro, _zone(arguments[1]).rules, fold=fold)
        return at.astimezone(UTC)
    except (ValueError, OverflowError):
        raise Untranslatable("an instant of its trigger is outside of the calendar") from None


def _span(made: Any) -> timedelta:
    arguments = made.arguments if isinstance(made, Made) and str(made) == "datetime.timedelta" else None
    if not isinstance(arguments, tuple) or len(arguments) != 3 or not all(isinstance(one, int) for one in arguments):
        raise Untranslatable("a span of time of its trigger is not understood")
    try:
        return timedelta(*arguments)
    except OverflowError:
        raise Untranslatable("a span of time of its trigger is outside of the calendar") from None
