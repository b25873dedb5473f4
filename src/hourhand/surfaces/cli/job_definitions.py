"""`hourhand jobs add`, `update` and `deploy`: what a job is.

The signatures of `add` and `update` name the options one by one because the help is made from them; what was given is
read from the context, all at once.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from hourhand.core.errors import InvalidOption
from hourhand.engine.logs import configure_logs
from hourhand.surfaces.cli import job_options as options
from hourhand.surfaces.cli.common import AnyApp, AsJson, Exit, discreet, err, out, plain, polite, print_json, run
from hourhand.surfaces.cli.connection import Data, Schema, Url, connected, make_app
from hourhand.surfaces.cli.job_file import add_file
from hourhand.surfaces.cli.job_views import print_changed
from hourhand.surfaces.deployment import NEWER


@connected
def add_job(
    app: AnyApp,
    ctx: typer.Context,
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="What the job is called.", show_default=False)] = None,
    schedule: options.Expression = None,
    task: options.Task = None,
    tz: options.Zone = None,
    payload: options.Payload = None,
    queue: options.Queue = None,
    priority: options.Priority = None,
    dst: options.Dst = None,
    anchor: options.Anchor = None,
    missed_window: options.MissedWindow = None,
    max_missed: options.MaxMissed = None,
    misfire_grace: options.MisfireGrace = None,
    overlap: options.Overlap = None,
    flexible_window: options.FlexibleWindow = None,
    start_at: options.StartAt = None,
    end_at: options.EndAt = None,
    max_runs: options.MaxRuns = None,
    max_attempts: options.MaxAttempts = None,
    timeout: options.Timeout = None,
    delivery: options.Delivery = None,
    retry_backoff: options.RetryBackoff = None,
    retry_base: options.RetryBase = None,
    retry_cap: options.RetryCap = None,
    idempotency_key_template: options.KeyTemplate = None,
    tag: options.Tags = None,
    secret: options.Secret = None,
    then: options.Then = None,
    replace: Annotated[bool, typer.Option("--replace", help="Change the job of this name if there is one.")] = False,
    file: Annotated[
        str | None,
        typer.Option(
            "--file", metavar="FILE", help="Many jobs, each a line of JSON with what app.jobs.add takes; - is standard input."
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Add a job, or with --file very many: all of them, or, if one cannot be, none.

    The same definition again changes nothing; another one under the same name is refused unless --replace.
    With --app the payload is checked against the task's signature.

    Example: hourhand jobs add weekly --schedule "0 9 * * 1" --tz America/New_York --task report --payload '{"days": 7}'

    Example: hourhand jobs add --file jobs.ndjson --replace
    """
    given = polite(lambda: options.given_in(ctx.params))
    if file is not None:
        added = polite(lambda: add_file(app, name, given, file, replace))
        if as_json:
            print_json(added)
        else:
            counts = asdict(added)
            out.print(", ".join(f"{count:,} {what}" for what, count in counts.items() if count or what == "added"))
        return
    word = polite(lambda: _named(name))
    loaded = app
    view = run(loaded, lambda app: options.reworded(app.jobs.add(word, replace=replace, **given)))
    print_changed(discreet(app, view), as_json)


def _named(name: str | None) -> str:
    if name is None:
        raise InvalidOption("say what the job is called, or give --file with many of them")
    return name


@connected
def update_job(
    app: AnyApp,
    ctx: typer.Context,
    name: options.Job,
    schedule: options.Expression = None,
    task: options.Task = None,
    tz: options.Zone = None,
    payload: options.Payload = None,
    queue: options.Queue = None,
    priority: options.Priority = None,
    dst: options.Dst = None,
    anchor: options.Anchor = None,
    missed_window: options.MissedWindow = None,
    max_missed: options.MaxMissed = None,
    misfire_grace: options.MisfireGrace = None,
    overlap: options.Overlap = None,
    flexible_window: options.FlexibleWindow = None,
    start_at: options.StartAt = None,
    no_start_at: Annotated[bool, typer.Option("--no-start-at", help="It may fire from now on.")] = False,
    end_at: options.EndAt = None,
    no_end_at: Annotated[bool, typer.Option("--no-end-at", help="It goes on for ever.")] = False,
    max_runs: options.MaxRuns = None,
    no_max_runs: Annotated[bool, typer.Option("--no-max-runs", help="Its firings are no longer counted.")] = False,
    max_attempts: options.MaxAttempts = None,
    no_max_attempts: Annotated[bool, typer.Option("--no-max-attempts", help="As many tries as its task says.")] = False,
    timeout: options.Timeout = None,
    no_timeout: Annotated[bool, typer.Option("--no-timeout", help="As long as its task says.")] = False,
    delivery: options.Delivery = None,
    no_delivery: Annotated[bool, typer.Option("--no-delivery", help="As its task says.")] = False,
    retry_backoff: options.RetryBackoff = None,
    no_retry_backoff: Annotated[bool, typer.Option("--no-retry-backoff", help="As its task says.")] = False,
    retry_base: options.RetryBase = None,
    no_retry_base: Annotated[bool, typer.Option("--no-retry-base", help="As its task says.")] = False,
    retry_cap: options.RetryCap = None,
    no_retry_cap: Annotated[bool, typer.Option("--no-retry-cap", help="As its task says.")] = False,
    idempotency_key_template: options.KeyTemplate = None,
    no_idempotency_key_template: Annotated[
        bool, typer.Option("--no-idempotency-key-template", help="A hash of job and instant again.")
    ] = False,
    tag: options.Tags = None,
    no_tags: Annotated[bool, typer.Option("--no-tags", help="Its runs carry no tags.")] = False,
    secret: options.Secret = None,
    no_secret: Annotated[
        bool, typer.Option("--no-secret", help="Of a new payload, only what its task declares is secret.")
    ] = False,
    then: options.Then = None,
    no_then: Annotated[bool, typer.Option("--no-then", help="Nothing follows.")] = False,
    as_json: AsJson = False,
) -> None:
    """Change what is given and leave the rest. A job whose schedule stays keeps its pending firing.

    Tags, secret fields and payload are given whole: they replace what was there. Where a payload has [redacted] in the place
    of a secret, the value stays.

    Example: hourhand jobs update weekly --schedule "30 8 * * 1" --no-end-at
    """
    changes = polite(lambda: options.changes_in(ctx.params))
    view = run(app, lambda app: app.jobs.update(name, **changes))
    print_changed(discreet(app, view), as_json)


def deploy_jobs(
    app: Annotated[str, typer.Option("--app", help="The app, as module:name or file.py:name.")],
    force: Annotated[bool, typer.Option("--force", help="Even if a newer version of the code is running.")] = False,
    as_json: AsJson = False,
    database_url: Url = None,
    data: Data = None,
    schema: Schema = None,
) -> None:
    """Bring the jobs that an app declares in code into force: added, changed, removed.

    Workers and schedulers that are started with --app do this by themselves.

    Example: hourhand jobs deploy --app shop.jobs:app
    """
    # Its log would go to standard output, among what is printed here; this says the same.
    configure_logs(level="error")
    loaded = make_app(app, database_url, data, schema)
    done = run(loaded, lambda app: app.deployment.apply(force=force))
    waits = done.reason == NEWER
    if as_json:
        print_json(done)
    elif not done.applied:
        (err if waits else out).print(plain(f"nothing was changed: {done.reason}"), soft_wrap=True)
    else:
        changes = {"added": done.added, "changed": done.changed, "removed": done.removed}
        for what, names in changes.items():
            for one in names:
                out.print(f"{what:<7}  {one}", soft_wrap=True)
        for one in done.refused:
            err.print(plain(f"refused  {one}: a job of that name was added in another way, and stays as it is"), soft_wrap=True)
        if not any(changes.values()) and not done.refused:
            out.print("everything is as it was declared")
    if waits:
        err.print("--force brings this version into force all the same", soft_wrap=True)
    if waits or done.refused:
        raise typer.Exit(Exit.NOT_POSSIBLE)
