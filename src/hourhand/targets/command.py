"""A run that starts a program, on a worker that allows it.

What survives a crash: nothing here needs to. When a worker dies, the kernel and the warden end its commands, and the run goes to
another worker.
"""

from __future__ import annotations

import errno
import grp
import os
import pwd
import shutil
import signal
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from typing import Any

import msgspec
import structlog

from hourhand.core.clock import Clock
from hourhand.core.context import Context
from hourhand.core.errors import HourhandError, PermanentFailure
from hourhand.core.settings import Settings
from hourhand.core.task import TaskDefinition, define_task
from hourhand.targets.command_payload import CommandCodec, Order
from hourhand.targets.program import Account, Output, Program

log = structlog.get_logger("hourhand.command")
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
"""Where bare names are looked for, here and by the program; the worker's own PATH plays no part."""
INHERITED = ("LANG", "TZ")
"""Of the worker's environment. The rest is not for others: it holds the password of the database."""
_LAST_WORDS = 1_000
_LATER = (errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE, errno.ETXTBSY)
"""Errors of a start that another attempt may not meet."""


class CommandFailed(HourhandError):
    """The program ended with an exit code that is not a success, or was killed, or could not be started just now."""


def command_task(settings: Callable[[], Settings]) -> TaskDefinition:
    codec = CommandCodec()

    async def command(ctx: Context, order: Order) -> dict[str, Any]:
        return await perform(ctx, order, settings())

    async def vet(payload: dict[str, Any]) -> None:
        codec.read(payload)

    return replace(
        define_task(command, name="command"), codec=codec, vet=vet, offered=lambda: bool(settings().allow_commands.strip())
    )


async def perform(ctx: Context, order: Order, settings: Settings) -> dict[str, Any]:
    path = find_program(order.argv[0], settings.allow_commands)
    account, home = find_account(order.user, order.group)
    environment = _environment(ctx, order, home)
    outputs = (
        Output(order.output, lambda line: ctx.say(line, "stdout"), lambda: not ctx.pen.empty),
        Output(order.output, lambda line: ctx.say(line, "stderr"), lambda: not ctx.pen.empty),
    )
    ctx.patience = order.grace
    began = Clock.monotonic()
    try:
        program = Program([path, *order.argv[1:]], environment, order.cwd, account, order.stdin, outputs)
    except OSError as error:
        kind = CommandFailed if error.errno in _LATER else PermanentFailure
        raise kind(f"{path} could not be started: {error.strerror}: {error.filename or path}") from None
    if await program.run(order.grace):
        ctx.say("it ended, but left processes behind that held its output; they were killed", "warning")
    seconds = round(Clock.monotonic() - began, 3)
    out, err = (ctx.pen.scrubbed(one.text()) for one in outputs)
    judge(path, program.code, order, out, err)
    truncated = any(one.truncated for one in outputs)
    result = {"exit_code": program.code, "stdout": out, "stderr": err, "truncated": truncated, "seconds": seconds}
    return _fitting(result, settings.max_result)


def judge(path: str, code: int, order: Order, out: str, err: str) -> None:
    """Whether that was a success; an error that says what it was if not."""
    if code in order.success:
        return
    words = (err.strip() or out.strip())[-_LAST_WORDS:]
    said = f"; its last words: {words}" if words else ""
    if code < 0:
        raise CommandFailed(f"{path} was killed by {signal_name(-code)}{said}")
    failure = PermanentFailure if order.gives_up_on(code) else CommandFailed
    raise failure(f"{path} ended with exit code {code}{said}")


def _fitting(result: dict[str, Any], limit: int) -> dict[str, Any]:
    """Rather less of the output than no result at all."""
    while len(msgspec.json.encode(result)) > limit and (result["stdout"] or result["stderr"]):
        longer = max("stdout", "stderr", key=lambda name: len(result[name]))
        result = {**result, longer: result[longer][len(result[longer]) // 2 + 1 :], "truncated": True}
    return result


def signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def find_program(name: str, allowed: str) -> str:
    """The path of the program, if it is among those that this worker may start."""
    programs = allowed_programs(allowed)
    if not programs:
        raise PermanentFailure(
            "this worker starts no programs: HOURHAND_ALLOW_COMMANDS has to name those that it may start, as absolute paths "
            "separated by commas"
        )
    path = _resolve(name)
    if path not in programs:
        known = ", ".join(sorted(programs))
        raise PermanentFailure(
            f"{name!r} is not among the programs that this worker may start ({known}): HOURHAND_ALLOW_COMMANDS names them. "
            "Write the program as it is written there"
        )
    return path


@lru_cache(maxsize=8)
def allowed_programs(text: str) -> frozenset[str]:
    """Looked up once: what is put onto the PATH later is not what was allowed."""
    found = {name: _resolve(name) for name in map(str.strip, text.split(",")) if name}
    for name in (name for name, path in found.items() if path is None):
        log.warning("command.not_found", program=name, path=PATH, meaning="it is not on that path, so it cannot be started")
    return frozenset(path for path in found.values() if path is not None)


def _resolve(name: str) -> str | None:
    """An absolute path as it stands, or where a bare name is on the fixed PATH. Links are not followed: what was listed under
    its name is called by it, and nothing else under any other."""
    if "/" in name:
        return name if name.startswith("/") and os.path.normpath(name) == name else None
    return shutil.which(name, path=PATH)


def find_account(user: str | None, group: str | None) -> tuple[Account | None, str]:
    """Whose rights the program gets (None: the worker's), and the home directory that goes with them."""
    mine = os.geteuid()
    if user is None:
        return None, _home(mine)
    try:
        entry = pwd.getpwnam(user)
    except KeyError:
        raise PermanentFailure(f"there is no user {user!r} on this worker's machine") from None
    try:
        number = entry.pw_gid if group is None else grp.getgrnam(group).gr_gid
    except KeyError:
        raise PermanentFailure(f"there is no group {group!r} on this worker's machine") from None
    account = (entry.pw_uid, number)
    if mine != 0:
        if account == (mine, os.getegid()):
            return None, entry.pw_dir
        raise PermanentFailure(
            f"only a worker that runs as root can start a program as user {user!r}; this one runs as user {mine}"
        )
    return account, entry.pw_dir


def _home(user: int) -> str:
    try:
        return pwd.getpwuid(user).pw_dir
    except KeyError:
        return "/"


def _environment(ctx: Context, order: Order, home: str) -> dict[str, str]:
    own = {name: os.environ[name] for name in INHERITED if name in os.environ}
    about = {
        "HOURHAND_RUN_ID": ctx.run_id, "HOURHAND_TOKEN": ctx.token, "HOURHAND_ATTEMPT": str(ctx.attempt),
        "HOURHAND_SCHEDULED_AT": ctx.scheduled_at.isoformat(), **({"HOURHAND_JOB_ID": ctx.job_id} if ctx.job_id else {}),
    }  # fmt: skip
    return {"PATH": PATH, "HOME": home, "LANG": "C.UTF-8", **own, **order.env, **about}
