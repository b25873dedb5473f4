"""Crontabs of users and of the system, as the common crons (Vixie, Debian, cronie) read them.

A line that needs a shell is left to its owner: what a shell would make of it is known only on the machine where it ran.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hourhand.surfaces.importing.command_line import NeedsShell, read_command
from hourhand.surfaces.importing.translation import (
    Found,
    Note,
    Translation,
    Untranslatable,
    Untranslated,
    digest,
    put_together,
    shortened,
    slug,
)

_SETTING = re.compile(r"""(?:"([^"=]+)"|'([^'=]+)'|([^\s="']+))[ \t]*=[ \t]*(.*)""")
_USER = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*\$?")
_RANDOM = re.compile(r"(\d{1,2})?~(\d{1,2})?")
_TIMES = re.compile(r"@[a-z]+\b|(?:[\d*/,~-]+[ \t]+){2}", re.IGNORECASE)
_HEADING = re.compile(r"m(in(ute)?)?\s+h(our)?\s", re.IGNORECASE)
# They speak to cron, not to the command; of PATH and HOME a worker has its own.
_FOR_CRON = frozenset({
    "MAILTO", "MAILFROM", "CONTENT_TYPE", "CONTENT_TRANSFER_ENCODING", "CRON_TZ", "RANDOM_DELAY", "LOGNAME", "SHELL", "PATH", "HOME",
})  # fmt: skip
# Of these the script says what it is about.
_STARTERS = frozenset({
    "bash", "dash", "env", "flock", "ionice", "nice", "node", "perl", "php", "python", "python3", "ruby", "sh", "sudo", "timeout",
})  # fmt: skip
_LONGEST_COMMENT = 60
_AS_CRON = (
    "as with cron, a failed run is not tried again and a missed firing is not made up for; "
    "hourhand jobs update JOB --max-attempts 3 --missed-window RUN_ONCE changes that"
)


@dataclass(frozen=True, slots=True)
class Crontab:
    name: str
    text: str
    system: bool = False
    """Whether the sixth field is a user."""


@dataclass(slots=True)
class Entry:
    where: str
    line: str
    schedule: str
    rest: str
    settings: dict[str, str]
    comment: str | None = None
    user: str | None = None
    remarks: list[str] = field(default_factory=list)


def is_system(path: str) -> bool:
    whole = Path(path).absolute()
    return str(whole) == "/etc/crontab" or whole.parent.name == "cron.d"


def translate_crontabs(files: Sequence[Crontab], *, timezone: str | None = None, shell: str | None = None) -> Translation:
    """`timezone`: where the crontab does not say one. `shell`: for the lines that need one."""
    found: list[Found] = []
    untranslated: list[Untranslated] = []
    for file in files:
        for entry in _entries(file):
            try:
                found.append(_translate(entry, file.system, timezone, shell))
            except NeedsShell as reason:
                advice = "put the line into a script, or give --shell /bin/sh"
                untranslated.append(Untranslated(entry.where, shortened(entry.line), f"{reason}: {advice}"))
            except Untranslatable as reason:
                untranslated.append(Untranslated(entry.where, shortened(entry.line), str(reason)))
    return put_together(found, untranslated, [Note(_AS_CRON)] if found else [])


def _entries(file: Crontab) -> list[Entry]:
    entries: list[Entry] = []
    settings: dict[str, str] = {}
    comments: list[str] = []
    for number, raw in enumerate(file.text.split("\n"), 1):
        line = raw.strip(" \t\r")
        if line.startswith("#"):
            comments.append(line)
            continue
        if line and (setting := _SETTING.fullmatch(line)):
            settings = {**settings, (setting[1] or setting[2] or setting[3]): _unquoted(setting[4])}
        elif line:
            schedule, rest = _times(line)
            entries.append(Entry(f"{file.name}:{number}", line, schedule, rest, settings, _title(comments)))
        comments = []
    return entries


def _unquoted(text: str) -> str:
    return text[1:-1] if len(text) > 1 and text[0] in "\"'" and text[0] == text[-1] else text


def _times(line: str) -> tuple[str, str]:
    """When, and the rest of the line, untouched: blanks may mean something in it."""
    found = re.match(r"(@\S+)[ \t]*" if line.startswith("@") else r"((?:\S+[ \t]+){4}\S+)[ \t]*", line)
    return ("", line) if found is None else (" ".join(found[1].split()), line[found.end() :])


def _title(comments: Sequence[str]) -> str | None:
    """A comment of a single short line right above is what people call the job."""
    if len(comments) != 1:
        return None
    text = comments[0].strip("# \t").lower()
    out_of_use = _TIMES.match(text) or _SETTING.fullmatch(text) or _HEADING.match(text)
    return text if len(text) <= _LONGEST_COMMENT and re.search(r"[A-Za-z]{2}", text) and not out_of_use else None


def _translate(entry: Entry, system: bool, timezone: str | None, shell: str | None) -> Found:
    options = _schedule(entry, timezone)
    _take_user(entry, system)
    line, stdin = split_input(entry.rest)
    if not line.strip():
        raise Untranslatable("there is no command on the line")
    if line.startswith("-"):
        raise Untranslatable(
            f"{line.split()[0]} is a flag for one kind of cron; take it away, and say what it means with options"
        )
    argv, cwd = _command(entry, line, shell)
    if entry.user is not None:
        entry.remarks.append("it runs as the user of its line, which only a worker that runs as root can do")
    payload = {"argv": argv, "cwd": cwd, "env": _environment(entry), "user": entry.user, "stdin": stdin}
    options["payload"] = {name: value for name, value in payload.items() if value}
    identity = f"{entry.schedule} {entry.user or ''} {entry.rest}"
    wanted = entry.comment or f"{_program(argv, line)}-{digest(identity)}"
    return Found(wanted, identity, options, (entry.where, shortened(entry.line)), tuple(entry.remarks))


def _schedule(entry: Entry, timezone: str | None) -> dict[str, Any]:
    written = entry.schedule
    if not written:
        raise Untranslatable("it is neither a setting nor five fields and a command")
    if written.lower() == "@reboot":
        raise Untranslatable("@reboot fires when a machine starts, and no job here does; use a unit of systemd")
    if written.startswith("-"):
        written = written[1:]
        entry.remarks.append("the - before its minute keeps cron from logging it; it means nothing here")
    zone = entry.settings.get("CRON_TZ") or timezone
    options: dict[str, Any] = {"task": "command", "schedule": written, "timezone": zone or "UTC"}
    options |= {"missed_window": "SKIP", "max_attempts": 1}
    if zone is None:
        entry.remarks.append("the crontab names no zone, and UTC is taken; give --tz if its machine's clock is in another one")
    if "TZ" in entry.settings:
        entry.remarks.append("TZ is passed on to the command and, as with cron, has no part in when it starts")
    minute, _, rest = written.partition(" ")
    if found := _RANDOM.fullmatch(minute):
        first, last = int(found[1] or 0), int(found[2] or 59)
        if last <= first:
            raise Untranslatable(f"{minute} is no range of minutes")
        options |= {"schedule": f"{first} {rest}", "flexible_window": f"{last - first}m"}
        entry.remarks.append("a random minute becomes a flexible window: a place within it that stays the same for the job")
    elif re.fullmatch(r"0*[1-9][0-9]{0,3}", delay := entry.settings.get("RANDOM_DELAY", "")):
        options["flexible_window"] = f"{int(delay)}m"
        entry.remarks.append("RANDOM_DELAY becomes a flexible window: a place within it that stays the same for the job")
    return options


def _take_user(entry: Entry, system: bool) -> None:
    found = re.match(r"(\S*)[ \t]*", entry.rest)
    assert found is not None
    user, rest = found[1], entry.rest[found.end() :]
    if not system:
        if user == "root" and rest:
            raise Untranslatable("root looks like the user of a system crontab, which has one before the command; give --system")
        return
    if not _USER.fullmatch(user):
        raise Untranslatable(
            f"in a system crontab the sixth field is a user, and {user!r} is none; give --no-system if this is a user's own crontab"
        )
    entry.user, entry.rest = user, rest


def split_input(text: str) -> tuple[str, str | None]:
    """The command, and what cron feeds it: after the first % each further one is a line break, and \\% is a percent sign."""
    parts = [""]
    place = 0
    while place < len(text):
        pair = text[place : place + 2]
        if pair == "\\%":
            parts[-1] += "%"
        elif pair[0] == "\\" and len(parts) == 1:
            # In the command a backslash takes the one after it along; in what is fed it does not.
            parts[-1] += pair
        elif pair[0] == "%":
            parts.append("")
        else:
            parts[-1] += pair[0]
        place += 2 if pair == "\\%" or (pair[0] == "\\" and len(parts) == 1) else 1
    if len(parts) == 1:
        return parts[0], None
    fed = "\n".join(parts[1:])
    return parts[0], fed if fed.endswith("\n") else f"{fed}\n"


def _command(entry: Entry, line: str, shell: str | None) -> tuple[list[str], str | None]:
    home = entry.settings.get("HOME")
    try:
        read = read_command(line)
    except NeedsShell:
        if shell is None:
            raise
        said = entry.settings.get("SHELL", shell)
        if posixpath.basename(said) != posixpath.basename(shell):
            entry.remarks.append(f"the crontab says SHELL={said}, and it is given to {shell}")
        argv, cwd = [shell, "-c", line.strip()], home
    else:
        argv, cwd = read.argv, home if read.cwd is None else _from(home, read.cwd)
        if "/" in argv[0]:
            argv = [_from(cwd, argv[0]), *argv[1:]]
        if read.silenced:
            entry.remarks.append("it throws output away (/dev/null); that is left out, because output is kept with the run")
        if read.lax:
            entry.remarks.append("if its directory is missing, the run fails; with cron the command ran all the same, elsewhere")
    if cwd is None:
        entry.remarks.append(
            "cron starts it in the home directory of its user; here it starts in / unless the line begins with cd"
        )
    return argv, cwd


def _from(place: str | None, path: str) -> str:
    """The whole path. A worker knows programs by nothing else."""
    whole = posixpath.normpath(posixpath.join(place or "", path))
    if not whole.startswith("/"):
        raise Untranslatable(f"{path} starts from the home directory of its user; write the whole path")
    return whole


def _environment(entry: Entry) -> dict[str, str]:
    settings = entry.settings
    if settings.get("MAILTO"):
        entry.remarks.append(
            f"no mail is sent to {settings['MAILTO']}: failed runs are dead letters (hourhand dead list); "
            "alert on run.dead in the log of the workers"
        )
    if settings.get("PATH"):
        entry.remarks.append("PATH is not passed on: programs are found in the directories of the system; write whole paths")
    return {name: value for name, value in settings.items() if name not in _FOR_CRON}


def _program(argv: Sequence[str], line: str) -> str:
    """The word by which people know the command."""
    words = line.split() if len(argv) == 3 and argv[1] == "-c" and argv[2] == line.strip() else argv
    first = posixpath.basename(words[0])
    if first in _STARTERS:
        scripts = [one for one in words[1:] if re.fullmatch(r"[A-Za-z/.][A-Za-z0-9/_.-]*", one)]
        first = posixpath.basename(scripts[0]) if scripts else first
    return slug(first.removesuffix(".sh").removesuffix(".py").removesuffix(".php")) or "command"
