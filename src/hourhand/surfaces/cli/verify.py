"""`hourhand verify`: the promises, put to the test here, on this machine, under real faults."""

from __future__ import annotations

import asyncio
import shlex
import signal
from dataclasses import asdict
from pathlib import Path
from random import SystemRandom
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from hourhand.surfaces.cli.common import AsJson, Exit, err, out, polite, print_json
from hourhand.surfaces.verify.faults import FAULTS, parse_faults
from hourhand.surfaces.verify.processes import find_faketime
from hourhand.surfaces.verify.report import print_report, to_json

if TYPE_CHECKING:
    from hourhand.surfaces.verify.verification import Plan, Result

_EVERYWHERE = ("kill", "pause", "partition")


def verify_command(
    faults: Annotated[
        str | None,
        typer.Option(
            "--faults",
            metavar="LIST",
            help=f"What to inject, separated by commas: {', '.join(FAULTS)}. Default: kill, pause, partition, and, on a server of "
            "its own, restart; skew where libfaketime is installed.",
        ),
    ] = None,
    minutes: Annotated[float, typer.Option("--minutes", min=0.2, max=10_000, help="For how long faults are injected.")] = 5.0,
    seed: Annotated[
        int | None, typer.Option("--seed", help="The same seed makes the same jobs and faults. Default: a new one.")
    ] = None,
    rate: Annotated[float, typer.Option("--rate", min=1, max=5_000, help="Runs a second, about.")] = 50.0,
    schedulers: Annotated[int, typer.Option("--schedulers", min=1, max=50, help="Scheduler processes.")] = 3,
    workers: Annotated[int, typer.Option("--workers", min=1, max=50, help="Worker processes.")] = 3,
    lease: Annotated[
        float, typer.Option("--lease", min=3, max=600, help="Seconds after which a silent process counts as dead.")
    ] = 5.0,
    database_url: Annotated[
        str | None,
        typer.Option(
            "--database-url", help="A scratch database to use instead of a server of its own, which can be killed as well."
        ),
    ] = None,
    schema: Annotated[str, typer.Option("--schema", help="Made for the check and dropped afterwards.")] = "hourhand_verify",
    keep: Annotated[
        Path | None, typer.Option("--keep", metavar="DIR", help="Leave the logs and the sink's record there.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Start real schedulers and workers, load them, kill, pause and cut them off, and check from outside that nothing was lost.

    Everything runs on a throw-away PostgreSQL of its own, or on a scratch database of yours. Jobs, direct runs, failures,
    cancellations, poison and transfers between accounts go on meanwhile; each run tells a sink that no fault touches. In the
    end an oracle of its own says what should have happened, and the sink and the tables say what did.

    Ends with 0 if everything holds, with 1 if something does not, and with 4 if a fault left no trace, so that nothing is proved.

    Example: hourhand verify --faults kill,pause,partition,restart,skew --minutes 10
    """

    def work() -> None:
        # Not before it is wanted: the workload is an app, which reads the environment as it is imported.
        from hourhand.surfaces.verify.verification import Plan

        words = parse_faults(faults) if faults is not None else _default(own_server=database_url is None)
        plan = Plan(
            faults=words, seed=SystemRandom().randrange(10**6) if seed is None else seed, minutes=minutes, rate=rate,
            schedulers=schedulers, workers=workers, database_url=database_url, schema=schema, lease=lease, keep=keep,
        )  # fmt: skip
        replay = _replay(plan)
        err.print(f"verifying, again with: {replay}", soft_wrap=True, highlight=False)
        result = asyncio.run(_with_progress(plan))
        if as_json:
            print_json(_as_json(plan, result))
        else:
            print_report(result.verdict, out, replay)
        if result.verdict.status != "verified":
            raise typer.Exit(Exit.FAILED if result.verdict.status == "violated" else Exit.NOT_POSSIBLE)

    polite(work)


def _default(*, own_server: bool) -> tuple[str, ...]:
    return (*_EVERYWHERE, *(["restart"] if own_server else []), *(["skew"] if find_faketime() else []))


def _replay(plan: Plan) -> str:
    parts = [
        "hourhand", "verify", "--faults", ",".join(plan.faults), "--minutes", f"{plan.minutes:g}", "--seed", str(plan.seed),
        "--rate", f"{plan.rate:g}", "--schedulers", str(plan.schedulers), "--workers", str(plan.workers), "--lease", f"{plan.lease:g}",
    ]  # fmt: skip
    if plan.schema != "hourhand_verify":
        parts += ["--schema", plan.schema]
    # A URL may hold a password.
    return shlex.join(parts) + (" --database-url ..." if plan.database_url else "")


async def _with_progress(plan: Plan) -> Result:
    from hourhand.surfaces.verify.verification import verify

    columns = (BarColumn(), TextColumn("{task.percentage:>3.0f} %"), TimeElapsedColumn(), TextColumn("{task.description}"))
    with Progress(*columns, console=err, transient=True) as progress:
        shown = progress.add_task("", total=1.0)
        work = asyncio.ensure_future(verify(plan, lambda what, share: progress.update(shown, description=what, completed=share)))
        # Told to stop, it cleans up, as it does for Ctrl-C.
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, work.cancel)
        return await work


def _as_json(plan: Plan, result: Result) -> dict[str, Any]:
    settings = {name: value for name, value in asdict(plan).items() if name not in ("database_url", "keep")}
    return {"plan": settings, **to_json(result.verdict), "traces": [asdict(one) for one in result.traces]}
