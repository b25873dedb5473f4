"""APScheduler's jobs, pickled by APScheduler itself: what is read fires when APScheduler would have fired it."""

from __future__ import annotations

import base64
import pickle
import zlib
from datetime import UTC, date, datetime, timedelta, timezone, tzinfo
from itertools import islice
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from apscheduler.job import Job
from apscheduler.triggers.base import BaseTrigger
from apscheduler.triggers.calendarinterval import CalendarIntervalTrigger
from apscheduler.triggers.combining import AndTrigger, OrTrigger
from apscheduler.triggers.cron import CronTrigger
from apscheduler.triggers.date import DateTrigger
from apscheduler.triggers.interval import IntervalTrigger
from hypothesis import assume, given
from hypothesis import strategies as st

from hourhand import Hourhand
from hourhand.surfaces.importing.apscheduler import translate_store
from hourhand.surfaces.importing.checking import Import, check
from hourhand.surfaces.importing.translation import Translation

NOW = datetime(2027, 1, 1, 12, tzinfo=UTC)
BERLIN = ZoneInfo("Europe/Berlin")


def state_of(trigger: Any, **changes: Any) -> dict[str, Any]:
    """What a job store writes."""
    job = Job.__new__(Job)
    given = {
        "id": "report", "func_ref": "shop.jobs:report", "trigger": trigger, "executor": "default", "args": (), "kwargs": {},
        "name": "report", "misfire_grace_time": 60, "coalesce": True, "max_instances": 1, "next_run_time": NOW,
    }  # fmt: skip
    for name, value in given.items():
        setattr(job, name, value)
    job.func = None
    return {**job.__getstate__(), **changes}


def store(*states: Any, protocol: int = pickle.HIGHEST_PROTOCOL) -> Translation:
    return translate_store([(str(one.get("id", "x")), pickle.dumps(one, protocol)) for one in states])


def checked(translation: Translation) -> Import:
    return check(translation, Hourhand("postgresql://nowhere/none").registry, NOW)


def only(trigger: BaseTrigger, **changes: Any) -> dict[str, Any]:
    done = checked(store(state_of(trigger, **changes)))
    assert done.untranslated == []
    (job,) = done.jobs
    return job.given


def reason(trigger: Any, **changes: Any) -> str:
    done = checked(store(state_of(trigger, **changes)))
    assert done.jobs == []
    (told,) = done.untranslated
    assert (told.where, told.what) == ("apscheduler_jobs", "report")
    return told.reason


def remarks(trigger: BaseTrigger, **changes: Any) -> str:
    return "\n".join(one.text for one in store(state_of(trigger, **changes)).notes)


DAILY = CronTrigger(hour=7, timezone=BERLIN)


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_a_job_in_every_protocol(protocol: int) -> None:
    trigger = CronTrigger(hour="8-17", minute="*/5", day_of_week="mon-fri", timezone=BERLIN, start_date=datetime(2027, 2, 1))
    done = checked(store(state_of(trigger, kwargs={"days": 7, "to": ["me"]}), protocol=protocol))
    assert done.untranslated == []
    assert [one.given for one in done.jobs] == [
        {
            "name": "report", "task": "shop.jobs:report", "payload": {"days": 7, "to": ["me"]}, "schedule": "*/5 8-17 * * 1-5",
            "timezone": "Europe/Berlin", "start_at": "2027-01-31T23:00:00Z", "missed_window": "SKIP", "misfire_grace": 60.0,
            "overlap": "skip",
        }
    ]  # fmt: skip


@pytest.mark.parametrize("protocol", [0, 2, 5])
def test_intervals_and_dates(protocol: int) -> None:
    every = IntervalTrigger(
        hours=6, start_date=datetime(2027, 3, 1, 9, 30, 0, 500_000), end_date=datetime(2028, 1, 1), timezone=BERLIN
    )
    once = DateTrigger(datetime(2027, 6, 1, 9), timezone=BERLIN)
    first, second = store(state_of(every, id="a"), state_of(once, id="b"), protocol=protocol).jobs
    assert (first["schedule"], first["anchor"], first["end_at"]) == (
        "every 21600s",
        "2027-03-01T08:30:00Z",
        "2027-12-31T23:00:01Z",
    )
    assert second["schedule"] == "2027-06-01T07:00:00Z"
    assert "timezone" not in second


@pytest.mark.parametrize(
    ("fields", "schedule"),
    [
        ({"minute": "*/10"}, "*/10 * * * *"),
        ({"second": "*/15"}, "*/15 * * * * *"),
        ({"second": 30}, "30 * * * * *"),
        ({"day": "last", "hour": 3}, "0 3 L * *"),
        ({"day": "1st mon,last fri", "hour": 3}, "0 3 * * 1#1,5L"),
        ({"day": "1,2nd sun", "hour": 3}, "0 3 1 * 0#2"),
        ({"day_of_week": "mon", "day": "1-7"}, "0 0 * * 1#1"),
        ({"day_of_week": 6}, "0 0 * * 0"),
        ({"day_of_week": "0-4"}, "0 0 * * 1-5"),
        ({"month": "jan-mar,dec", "day": 1}, "0 0 1 1-3,12 *"),
        ({"hour": "22/1"}, "0 22,23 * * *"),
        ({"minute": "5/20"}, "5,25,45 * * * *"),
        ({"week": "*", "hour": 1}, "0 1 * * *"),
    ],
)
def test_fields_of_cron(fields: dict[str, Any], schedule: str) -> None:
    assert only(CronTrigger(**fields, timezone=BERLIN))["schedule"] == schedule


NUMBERS = {"month": (1, 12), "day": (1, 31), "day_of_week": (0, 6), "hour": (0, 23), "minute": (0, 59), "second": (0, 59)}
NAMED = {
    "month": ["jan", "jun-sep", "feb,dec"],
    "day": ["last", "1st mon", "3rd fri,last sun", "1-7", "8-14", "2nd tue,28"],
    "day_of_week": ["mon-fri", "sun", "sat,wed"],
}


def field(name: str) -> st.SearchStrategy[str]:
    low, high = NUMBERS[name]
    number = st.integers(low, high)
    ranges = st.tuples(number, number).map(lambda pair: f"{min(pair)}-{max(pair)}")
    part = st.one_of(number.map(str), ranges, st.builds("*/{}".format, st.integers(1, high - low)))
    return st.lists(part, min_size=1, max_size=3).map(",".join) | st.sampled_from(NAMED.get(name, ["*"]))


@given(st.fixed_dictionaries({}, optional={name: field(name) for name in NUMBERS}))
def test_it_fires_when_apscheduler_would(fields: dict[str, str]) -> None:
    assume(fields)
    trigger = CronTrigger(**fields, timezone=UTC)
    done = checked(store(state_of(trigger)))
    if done.untranslated:
        assert "at once" in done.untranslated[0].reason or "no such date" in done.untranslated[0].reason
        return
    expected: list[datetime] = []
    at = NOW
    for _ in range(4):
        following = trigger.get_next_fire_time(None, at + timedelta(seconds=1))
        if following is None or following.year > 2060:
            break
        expected.append(following)
        at = following
    firings = islice(done.jobs[0].definition.schedule.firings(NOW), len(expected))
    assert list(firings) == expected


# Zones

# Written by APScheduler 3.9.1, which had its zones from pytz; compressed.
OLD_CRON = (
    "c-n<iOK;Oa5YEGm)4aujhv3i)B9Tz43W)<Z8iIsOic~5gkSepWCt0`7uC=?SNhKt>pd!t!%dg~5u<JYsqyZo7_3V7#H#<Au7w5+-Czm~+bsODJAY{au_VQ"
    "SWLXAZpo3}GcS)j2gDNoM$P(BloaG^B1N<`x^2#xnhA_EFx8iVLAqOuzZ!-dtJ`J5~=uXX3EHd-|A6|k(L30!gpMkAT2ON|9TF)3}V_fx?W*gpgjM@$dmn"
    "wP`k>%oau`dDK{Dk7905@n!e`>{;x%WK`MxIf+e{BW8!+q5;<doXA<(CPKx&UwCBt}?K2&P4B6Ozm!M9n)%9<z9acQ5r=Mhf<%KLie^Fyt~N4-9sYbrTtl"
    "*9vwz(z0M4X>0Tw0eh4Fy#!6pd6{d**X)nTR;KS__>zP=89>@JvV5x<URFLQ+IV9<jKEld?Ge!R_hd#!gi4AMoy`uZ4nm)-k=+hOf`GU;ejBdsjLo(Zr+<"
    "gadzJYNrOmsV_k;&bNtQs|+kNgF}_l)2GZ`)+Ebxhb8HrvoP<hV16gjCvGs1p;raMDb#^Sdm{Q?bU{{0AL<@457Y=l;!6nnWzM<Fq*3$8|)`AaWZB2?1x}"
    "{}6zsvq&l9qN8+Z=5`7}s<@dScR4)h5HXgzgQfF}Y-R7?G(~F9l~!o!+*^}Knr47M79;>avy3r)Ip8D)8GsqX`h-mVh#9A`0HocmGngu0q->r)w~L#17k0"
    "UC&5?G00j)x!+W"
)
OLD_INTERVAL = (
    "c-m!A%We}f6rF_96t_)Ffdb`G-XtJJV#~HG6t#;{D|t6^JvSMbiJfD6N~jbGHidubXY|LgodAn^;d}1m+<SfeqdiB~<DD$a&dEAuG+M(JZwFtMX!Df-OkF"
    "D6N^sO@i50#TpsURE%$&N<mZrvf+)horRpT*PtV%I;vZAu7$qtrLH&EJ>Jr_0mvINJA3`3{?6Kiwa=~b;^o3F)IYC;!A6PTQS_ZO@<IX+-m@8{UyEH2=M^"
    "+hQ>VN*sE3G5$0R~FKgBpo9i0mBww54_IxRi~AugKfSVOf9_9pK$jQJ2~!E8<)7B<3U=2bh#L@dzAdY55U9!BjZ(4?FGZ5VRpFP9cI7qILBUUex`h&;K@;"
    "Qy689~*?42|GznJHNHn#_v!t)EV~6McMEv?KdHZv`NI5MggqJC`l>8On3C={hk+M{bt&mj2W$-$DVVot6sL4sfo8NphmWo-SbP!HUa(El6VpP-27q-z0?z"
    "^g6-4yD571ZhF=tp%v<oMVO{s5F_q)`"
)


def unpacked(text: str) -> bytes:
    return zlib.decompress(base64.b85decode(text))


def test_zones_of_pytz() -> None:
    cron, interval = translate_store([("old", unpacked(OLD_CRON)), ("other", unpacked(OLD_INTERVAL))]).jobs
    assert (cron["schedule"], cron["timezone"], cron["payload"]) == ("0 7 * * 1-5", "Europe/Berlin", {"days": 7})
    assert (cron["start_at"], cron["end_at"]) == ("2027-06-30T22:00:00Z", "2027-12-24T11:00:01Z")
    assert (interval["schedule"], interval["anchor"]) == ("every 3600s", "2027-07-01T00:00:00Z")


@pytest.mark.parametrize(
    ("zone", "name"),
    [
        (UTC, "UTC"),
        (timezone(timedelta(hours=2)), "Etc/GMT-2"),
        (timezone(timedelta(hours=-5)), "Etc/GMT+5"),
        (ZoneInfo("America/New_York"), "America/New_York"),
    ],
)
def test_zones(zone: tzinfo, name: str) -> None:
    assert only(CronTrigger(hour=7, timezone=zone, start_date=datetime(2027, 5, 1)))["timezone"] == name


def test_zones_that_have_no_name_here() -> None:
    assert "there is no time zone '+5.5 h'" in reason(CronTrigger(hour=7, timezone=timezone(timedelta(hours=5.5))))
    state = {**DAILY.__getstate__(), "timezone": Odd()}
    assert "time zone (tests.unit.test_import_apscheduler.Odd) is not understood" in reason(Bare(state))
    assert "time zone (NoneType) is not understood" in reason(Bare({**state, "timezone": None}))


def test_the_later_of_two_equal_local_times_is_kept() -> None:
    twice = datetime(2027, 10, 31, 2, 30)
    for fold, instant in ((0, "2027-10-31T00:30:00Z"), (1, "2027-10-31T01:30:00Z")):
        trigger = IntervalTrigger(days=1, start_date=twice.replace(tzinfo=BERLIN, fold=fold), timezone=BERLIN)
        assert only(trigger)["anchor"] == instant


# What else a job says


def test_what_was_missed() -> None:
    assert "misfire_grace" not in only(DAILY, misfire_grace_time=1)
    assert "60 s are given" in remarks(DAILY, misfire_grace_time=1)
    assert only(DAILY, misfire_grace_time=None)["missed_window"] == "RUN_ONCE"
    assert only(DAILY, misfire_grace_time=None, coalesce=False)["missed_window"] == "RUN_ALL"
    assert remarks(DAILY) == ""


def test_instances_jitter_and_executors() -> None:
    assert "overlap" not in only(DAILY, max_instances=3)
    assert "any number of its runs may overlap" in remarks(DAILY, max_instances=3)
    shaky = CronTrigger(hour=7, jitter=120, timezone=BERLIN)
    assert only(shaky)["flexible_window"] == 120.0
    assert "flexible window" in remarks(shaky)
    assert "executor processes is not carried over" in remarks(DAILY, executor="processes")


def test_paused_jobs_are_added_paused() -> None:
    done = store(state_of(DAILY, next_run_time=None))
    assert done.paused == {"report"}
    assert "added and paused" in done.notes[0].text


def test_names() -> None:
    made_up = "0123456789abcdef" * 2
    names = [one["name"] for one in store(state_of(DAILY, id="my job"), state_of(DAILY, id=made_up, name="send report")).jobs]
    assert names[0] == "my-job"
    assert names[1].startswith("send-report-")
    again = store(state_of(DAILY, id=made_up, name="send report")).jobs
    assert again[0]["name"] == names[1]


class Odd:
    pass


class Bare:
    """A trigger with any state at all, which calls itself a CronTrigger."""

    def __init__(self, state: Any) -> None:
        self.state = state

    def __reduce__(self) -> Any:
        return CronTrigger, (), self.state


@pytest.mark.parametrize(
    ("trigger", "changes", "said"),
    [
        (CronTrigger(year=2030, timezone=UTC), {}, "a year"),
        (CronTrigger(week="1-10", timezone=UTC), {}, "a week of the year"),
        (CronTrigger(day=13, day_of_week="fri", timezone=UTC), {}, "at once"),
        (CronTrigger(day="last", day_of_week="fri", timezone=UTC), {}, "a place in the month and a weekday at once"),
        (CronTrigger(day=30, month=2, timezone=UTC), {}, "there is no such date"),
        (AndTrigger([DAILY]), {}, "AndTrigger has no equal here"),
        (OrTrigger([DAILY]), {}, "OrTrigger has no equal here"),
        (CalendarIntervalTrigger(months=1), {}, "CalendarIntervalTrigger has no equal here"),
        (Odd(), {}, "Odd has no equal here"),
        (None, {}, "NoneType has no equal here"),
        (DateTrigger(datetime(2020, 1, 1), timezone=UTC), {}, "is past"),
        (IntervalTrigger(seconds=0.5, timezone=UTC), {}, "from one second"),
        (DAILY, {"args": (1, 2)}, "positional arguments"),
        (DAILY, {"kwargs": {"day": date(2027, 1, 1)}}, "day in its arguments is an object (datetime.date)"),
        (DAILY, {"kwargs": {"x": float("nan")}}, "nan"),
        (DAILY, {"kwargs": [1]}, "must be a mapping"),
        (DAILY, {"version": 2}, "not one that APScheduler 3 writes"),
        (DAILY, {"func": None}, "not one that APScheduler 3 writes"),
        (DAILY, {"func": "shop.jobs:Robot.run it"}, "cannot be the name of a task"),
        (Bare({}), {}, "missing"),
        (Bare(None), {}, "damaged"),
        (Bare([1]), {}, "damaged"),
        (Bare({"fields": [1]}), {}, "damaged"),
        (Bare({"fields": []}), {}, "missing"),
    ],
)
def test_what_cannot_be_translated_says_why(trigger: Any, changes: dict[str, Any], said: str) -> None:
    assert said in reason(trigger, **changes)


def test_what_is_no_state_at_all() -> None:
    rows = [("a", b"nonsense"), ("b", b""), ("c", pickle.dumps([1])), ("d", pickle.dumps(state_of(DAILY)))]
    done = translate_store(rows, table="jobs")
    assert [(one.where, one.what) for one in done.untranslated] == [("jobs", "a"), ("jobs", "b"), ("jobs", "c")]
    assert [one["name"] for one in done.jobs] == ["d"]


@given(st.data())
def test_a_damaged_state_is_told(data: st.DataObject) -> None:
    """Whatever is changed in the bytes: a job, or a reason."""
    whole = bytearray(
        pickle.dumps(state_of(CronTrigger(hour="1-5", day="1st mon", timezone=BERLIN, start_date=datetime(2027, 1, 1))))
    )
    for place in data.draw(st.lists(st.integers(0, len(whole) - 1), min_size=1, max_size=4)):
        whole[place] = data.draw(st.integers(0, 255))
    done = checked(translate_store([("x", bytes(whole))]))
    assert len(done.jobs) + len(done.untranslated) == 1
