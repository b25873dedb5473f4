"""`hourhand import`: schedules of other systems as jobs. A dry run shows what would become of them; --apply adds them.

The signatures name the common options one by one because the help is made from them; they are read from the context, all at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Annotated, Any

import typer

from hourhand.core.clock import Clock
from hourhand.core.errors import HourhandError, InvalidOption, JobConflict
from hourhand.core.registry import Registry
from hourhand.core.settings import settings_from
from hourhand.core.zones import load_zone, zone_names
from hourhand.surfaces.cli.common import AnyApp, AsJson, Exit, err, plain, polite, print_json, run
from hourhand.surfaces.cli.connection import connected
from hourhand.surfaces.cli.importing_views import plain_import, print_import
from hourhand.surfaces.importing.checking import Import, check, compare
from hourhand.surfaces.importing.translation import Translation, dressed
from hourhand.surfaces.plans.applying import look
from hourhand.surfaces.views import BulkAdded
from hourhand.targets.builtin import builtin_targets

Files = Annotated[list[str], typer.Argument(metavar="FILE", help="Crontabs; - is standard input.", show_default=False)]
Apply = Annotated[bool, typer.Option("--apply", help="Add the jobs. Without it nothing is changed.")]
Replace = Annotated[bool, typer.Option("--replace", help="Change jobs of these names that are there already.")]
Prefix = Annotated[str, typer.Option("--prefix", metavar="TEXT", help="Put this before the name of each job.")]
Queue = Annotated[str | None, typer.Option("--queue", help="The queue of those that name none themselves.")]
Zone = Annotated[
    str | None,
    typer.Option(
        "--tz", metavar="ZONE", autocompletion=lambda: sorted(zone_names()), help="The zone of those that name none themselves."
    ),
]
Tags = Annotated[list[str] | None, typer.Option("--tag", help="For their runs to carry; repeatable.")]
Strict = Annotated[bool, typer.Option("--strict", help="End with 4 if something could not be translated.")]
FromDatabase = Annotated[
    str | None, typer.Option("--from-database", metavar="URL", help="The database that has the tables, as SQLAlchemy names it.")
]

commands = typer.Typer(
    help="Bring schedules of other systems over: shows what would become of them; --apply adds them.", no_args_is_help=True
)


@commands.command("crontab")
@connected
def import_crontab(
    app: AnyApp,
    ctx: typer.Context,
    files: Files,
    system: Annotated[
        bool | None,
        typer.Option("--system/--no-system", help="Whether the sixth field is a user. Default: for /etc/crontab and cron.d."),
    ] = None,
    shell: Annotated[
        str | None, typer.Option("--shell", metavar="PATH", help="Give the lines that need a shell to this one, such as /bin/sh.")
    ] = None,
    apply: Apply = False,
    replace: Replace = False,
    prefix: Prefix = "",
    queue: Queue = None,
    tz: Zone = None,
    tag: Tags = None,
    strict: Strict = False,
    as_json: AsJson = False,
) -> None:
    """Lines of crontabs, as jobs that start a command.

    Example: crontab -l | hourhand import crontab - --tz Europe/Berlin

    Example: hourhand import crontab /etc/crontab /etc/cron.d/* --prefix web1- --apply
    """

    def translate() -> Translation:
        from hourhand.surfaces.importing.crontab import Crontab, is_system, translate_crontabs
        from hourhand.surfaces.importing.reading import read_text

        read = [Crontab(one, read_text(one), is_system(one) if system is None else system) for one in files]
        return translate_crontabs(read, timezone=tz, shell=shell)

    _import(app, ctx.params, translate)


@commands.command("celery-beat")
@connected
def import_celery_beat(
    app: AnyApp,
    ctx: typer.Context,
    celery_app: Annotated[
        str | None, typer.Option("--celery-app", metavar="MODULE:NAME", help="Import this Celery app and take its beat_schedule.")
    ] = None,
    from_database: FromDatabase = None,
    apply: Apply = False,
    replace: Replace = False,
    prefix: Prefix = "",
    queue: Queue = None,
    tz: Zone = None,
    tag: Tags = None,
    strict: Strict = False,
    as_json: AsJson = False,
) -> None:
    """Periodic tasks of Celery: from an app, or from the tables of django-celery-beat.

    Example: hourhand import celery-beat --celery-app shop.celery:app

    Example: hourhand import celery-beat --from-database postgresql://me@host/shop --apply
    """

    def translate() -> Translation:
        from hourhand.surfaces.importing.celery_app import read_celery_app
        from hourhand.surfaces.importing.celery_beat import translate_beat_schedule

        if (celery_app is None) == (from_database is None):
            raise InvalidOption("say where the periodic tasks are: give either --celery-app or --from-database")
        if from_database is not None:
            return _beat_tables(from_database, tz)
        assert celery_app is not None
        read = read_celery_app(celery_app)
        return translate_beat_schedule(read.entries, timezone=read.timezone or tz or read.fallback, deadline=read.deadline)

    _import(app, ctx.params, translate)


def _beat_tables(url: str, tz: str | None) -> Translation:
    from hourhand.surfaces.importing.celery_beat import SCHEDULES, TASKS, translate_tables
    from hourhand.surfaces.importing.databases import Tables

    with Tables(url) as tables:
        if not tables.has(TASKS):
            raise InvalidOption(f"{tables.shown} has no table {TASKS}: django-celery-beat keeps its tasks elsewhere")
        tasks = tables.rows(TASKS)
        # Older versions have no table of clocked tasks.
        schedules = {
            kind: {row["id"]: row for row in tables.rows(name)} if tables.has(name) else {} for kind, name in SCHEDULES.items()
        }
    return translate_tables(tasks, schedules, timezone=tz)


@commands.command("apscheduler")
@connected
def import_apscheduler(
    app: AnyApp,
    ctx: typer.Context,
    from_database: FromDatabase = None,
    table: Annotated[
        str, typer.Option("--table", metavar="NAME", help="The table of the job store; schema.name if it is in a schema.")
    ] = "apscheduler_jobs",
    apply: Apply = False,
    replace: Replace = False,
    prefix: Prefix = "",
    queue: Queue = None,
    tz: Zone = None,
    tag: Tags = None,
    strict: Strict = False,
    as_json: AsJson = False,
) -> None:
    """Jobs of APScheduler 3, from its SQLAlchemy job store. Its pickles are read, never unpickled: nothing in them can run.

    Example: hourhand import apscheduler --from-database sqlite:///jobs.sqlite
    """

    def translate() -> Translation:
        from hourhand.surfaces.importing.apscheduler import translate_store
        from hourhand.surfaces.importing.databases import Tables

        if from_database is None:
            raise InvalidOption("say where the jobs are: --from-database takes the URL of the job store")
        with Tables(from_database) as tables:
            if not tables.has(table):
                raise InvalidOption(f"{tables.shown} has no table {table}; --table names another one")
            rows = tables.rows(table, "id", "job_state")
        return translate_store([(str(row["id"]), bytes(row["job_state"] or b"")) for row in rows], table=table)

    _import(app, ctx.params, translate)


@commands.command("kubernetes")
@connected
def import_kubernetes(
    app: AnyApp,
    ctx: typer.Context,
    files: Annotated[
        list[str],
        typer.Argument(metavar="FILE", help="Manifests, directories of them; - is standard input.", show_default=False),
    ],
    apply: Apply = False,
    replace: Replace = False,
    prefix: Prefix = "",
    queue: Queue = None,
    tz: Zone = None,
    tag: Tags = None,
    strict: Strict = False,
    as_json: AsJson = False,
) -> None:
    """CronJobs of Kubernetes, as jobs that start the command of their container.

    Example: kubectl get cronjobs -A -o yaml | hourhand import kubernetes -

    Example: hourhand import kubernetes manifests/ --apply
    """

    def translate() -> Translation:
        from hourhand.surfaces.importing.kubernetes import ENDINGS, read_manifests, translate_manifests
        from hourhand.surfaces.importing.reading import files_below, read_text

        read = [(one, read_manifests(one, read_text(one))) for one in files_below(files, ENDINGS)]
        return translate_manifests(read, timezone=tz)

    _import(app, ctx.params, translate)


def _import(app: AnyApp, given: dict[str, Any], translate: Callable[[], Translation]) -> None:
    """Everything is read, translated and checked before a database is asked for anything."""

    def prepare() -> Import:
        if given["tz"] is not None:
            load_zone(given["tz"])
        found = dressed(translate(), prefix=given["prefix"], queue=given["queue"], tags=given["tag"] or ())
        return check(found, _registry(app), Clock().instant(), has_code=given.get("app") is not None)

    made = polite(prepare)
    added = _add(app, made, replace=given["replace"]) if given["apply"] else None
    if added is None:
        _look(app, made)
    if given["as_json"]:
        print_json(plain_import(made, added))
    else:
        print_import(made, added, replace=given["replace"])
    if made.named("different") and not given["replace"]:
        raise typer.Exit(Exit.NOT_POSSIBLE)
    if made.untranslated and given["strict"]:
        raise typer.Exit(Exit.NOT_POSSIBLE)


def _registry(app: AnyApp) -> Registry:
    """A server at the other end keeps its tasks to itself; what every worker can run is known here as well."""
    known: Registry | None = getattr(app, "registry", None)
    if known is None:
        known, settings = Registry(), settings_from({})
        known.targets = builtin_targets(lambda: settings)
    return known


def _look(app: AnyApp, made: Import) -> None:
    """What of it is there already. Where no database can be asked, the rest of a dry run is still worth its while."""

    async def work() -> None:
        async with app:
            await _compare(app, made)

    def ask() -> None:
        try:
            asyncio.run(work())
        except HourhandError as error:
            err.print(plain(f"not compared with what is there: {error}", "yellow"), soft_wrap=True)

    polite(ask)


async def _compare(app: AnyApp, made: Import) -> None:
    compare(made, await look(app, (), [one.name for one in made.jobs]), Clock().instant())


def _add(app: AnyApp, made: Import, *, replace: bool) -> BulkAdded:
    async def work(app: AnyApp) -> BulkAdded:
        await _compare(app, made)
        taken = made.named("different")
        if taken and not replace:
            raise JobConflict(
                f"nothing was added: {', '.join(taken[:10])}{', …' if len(taken) > 10 else ''} "
                f"{'are' if len(taken) > 1 else 'is'} there already with another definition; --replace changes that, "
                "--prefix gives other names"
            )
        added: BulkAdded = await app.jobs.add_many([one.given for one in made.jobs], replace=replace)
        # Only what is new: who has resumed such a job since does not want it held again.
        for one in made.jobs:
            if one.paused and one.state == "new":
                await app.jobs.pause(one.name)
        return added

    return run(app, work)
