"""`make mutants`: break each guarantee on purpose and see its test fail.

Each mutant is one replacement in a copy of the source; the named test must fail on it. A mutant that
survives means that the test proves nothing.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

PROJECT = Path(__file__).parent.parent
QUEUE = "src/hourhand/storage/sql/queue.sql"
NODES = "src/hourhand/storage/sql/nodes.sql"
FIRING = "src/hourhand/storage/sql/schedules.sql"
SCHEDULES = "src/hourhand/storage/migrations/0002_schedules.sql"
OVERLAP = "src/hourhand/storage/migrations/0003_runs_of_jobs.sql"
JOBS = "src/hourhand/storage/migrations/0004_jobs.sql"
SCHEMA = "src/hourhand/storage/migrations/0001_queue.sql"
DELIVERY = "src/hourhand/storage/migrations/0005_delivery.sql"
SURFACES = "src/hourhand/storage/migrations/0006_surfaces.sql"
TRACED = "src/hourhand/storage/migrations/0009_traces.sql"
SEEING = "src/hourhand/storage/migrations/0007_seeing.sql"
ADMISSION = "src/hourhand/storage/sql/admission.sql"
RULES = "src/hourhand/storage/migrations/0010_limits.sql"
HOLDS = "tests/db/test_holds.py -k"
STATISTICS = "src/hourhand/storage/sql/statistics.sql"
DASHBOARD = "src/hourhand/surfaces/dashboard"
ENGINE = "src/hourhand/engine"
TARGETS = "src/hourhand/targets"
HTTP = "src/hourhand/targets/http.py"
ADDRESSES = "src/hourhand/targets/addresses.py"
HTTP_TEST = "tests/db/test_http_target.py"


@dataclass(frozen=True)
class Mutant:
    name: str
    file: str
    old: str
    new: str
    test: str
    every: bool = False
    also: tuple[tuple[str, str, str], ...] = ()
    """Further replacements, each a file, what is there, and what comes instead."""
    seconds: int = 25
    """For how long `hourhand verify` injects faults, where that is the test."""


FLEET = "tests/cluster/test_schedulers.py -k every_firing_once"
NO_EPOCH = ("ON held.shard = s.shard AND held.epoch = s.epoch\n    WHERE s.owner = $1", "ON held.shard = s.shard\n    WHERE true")
NOTHING_UNIQUE = (
    (FIRING, "      AND s.next_run_at = planned.due_at AND", "      AND"),
    (SCHEDULES, "    PRIMARY KEY (schedule_id, scheduled_at)\n", "    CHECK (count > 0)\n"),
)
LOCAL_CLOCK = (
    ("src/hourhand/storage/schedules.py", "*row[7:])", "*row[7:9], Clock().instant(), row[10])"),
    (
        "src/hourhand/storage/schedules.py",
        "from hourhand.core.schedule import Schedule",
        "from hourhand.core.clock import Clock\nfrom hourhand.core.schedule import Schedule",
    ),
)
LINES = "tests/db/test_lines.py -k"
TRACES = "tests/db/test_traces.py -k"
BATCHES = "tests/db/test_batches.py -k"
COMMANDS = "tests/db/test_command_target.py -k"
CLIENT = "src/hourhand/surfaces/client"
LOST = "tests/db/test_client_lost.py -k"
CLAIM = "WHERE worker_id = $1 AND run_id = mine.run_id AND token = mine.token"
VERIFY = "tests/cluster/chaos.py -k nothing_is_lost and"
NOT_DUE = (" AND planned.due_at <= clock_timestamp()", "")
API = "tests/db/test_api.py -k"
SECURITY = "tests/db/test_api_security.py -k"
SCOPES = "tests/db/test_api_scopes.py -k embedded and"
AUDIT = "tests/db/test_api_audit.py -k"
LIMITS = "tests/db/test_api_limits.py -k"
REST = "src/hourhand/surfaces/rest"
ACCESS = "src/hourhand/surfaces/access.py"

ALERTS = "src/hourhand/storage/sql/alerts.sql"
LOOKING = "tests/db/test_alerts.py -k"
TELLING = "tests/db/test_alert_delivery.py -k"

JOBS_PAGES = "src/hourhand/storage/sql/dashboard_jobs.sql"
ADMIN_SQL = "src/hourhand/storage/sql/admin.sql"
LETTERS_SQL = "src/hourhand/storage/sql/dashboard_runs.sql"
LISTS = "tests/db/test_dashboard_runs.py -k"
PAGES_OF_JOBS = "tests/db/test_dashboard_jobs.py -k"
ONE_JOB = "tests/db/test_dashboard_job.py -k"

MUTANTS = [
    Mutant("no claim token in any transition", QUEUE, " AND token = mine.token", "",
           "tests/cluster/test_crash.py -k zombies_outcome", every=True),
    Mutant("no lease check", NODES, "n.lease_until < clock_timestamp()) AS silent", "false) AS silent",
           "tests/cluster/test_crash.py -k paused_past_its_lease"),
    Mutant("heartbeat of the dead accepted", NODES, "WHERE id = $1 AND died_at IS NULL\nRETURNING", "WHERE id = $1\nRETURNING",
           "tests/cluster/test_crash.py -k paused_past_its_lease"),
    Mutant("claims of the dead accepted", QUEUE, "n.id = $4 AND n.died_at IS NULL)\n          AND (SELECT version = $5", "n.id = $4)\n          AND (SELECT version = $5",
           "tests/cluster/test_crash.py -k declared_dead_claims"),
    Mutant("session lock not looked at", NODES, "AND n.session AND n.id NOT IN (SELECT node FROM locks)) AS unlocked",
           "AND false) AS unlocked", "tests/cluster/test_crash.py -k kill_9"),
    Mutant("judge without grace after a restart", f"{ENGINE}/maintainer.py", "if connected < grace * 2:", "if connected < 0:",
           "tests/db/test_resilience.py -k just_connected"),
    Mutant("recovered runs without probation", f"{ENGINE}/executor.py", "handler.isolated or (claim.crashes > 0 and self._children.possible)",
           "handler.isolated", "tests/cluster/test_crash.py -k poison"),
    Mutant("handing back charges an attempt", QUEUE,
           "    SELECT seq, run_id, job_id, scheduled_at, enqueued_at, expires_at, lane, attempt, crashes,",
           "    SELECT seq, run_id, job_id, scheduled_at, enqueued_at, expires_at, lane, attempt + 1, crashes,",
           "tests/db/test_worker.py -k no_attempt_charged"),
    Mutant("strays not handed back", f"{ENGINE}/claimer.py", "if now < self._doubt_until:", "if False:",
           "tests/db/test_worker.py -k answer_was_lost"),
    Mutant("a word does not lower the mark", "src/hourhand/core/marks.py", "        if seq < self._low:\n            self._low = seq\n", "",
           "tests/db/test_claim.py -k committed_late"),
    Mutant("no sweep below the mark", "src/hourhand/core/marks.py", "        if now >= self._sweep_at:\n            return 0\n", "",
           "tests/db/test_claim.py -k found_by_the_sweep"),
    Mutant("keys never freed", SCHEMA, "RETURNS trigger LANGUAGE plpgsql AS $$", "RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RETURN NULL; END $$;\nCREATE FUNCTION hourhand.unused() RETURNS trigger LANGUAGE plpgsql AS $$",
           "tests/db/test_worker.py -k edit_replay_purge"),
    Mutant("no unique key", "src/hourhand/storage/migrations/0009_traces.sql", "duplicate := run_id <> number;", "duplicate := false; run_id := number;",
           "tests/db/test_enqueue.py -k key"),
    Mutant("history without its primary key", SCHEMA, "    PRIMARY KEY (run_id, scheduled_at)\n", "    CHECK (run_id > 0)\n",
           "tests/db/test_claim.py -k end_once"),
    Mutant("enqueue_many without a transaction", "src/hourhand/storage/enqueue.py", "            async with own.transaction():\n    ", "            if True:\n    ",
           "tests/db/test_enqueue.py -k written_all_or_not"),
    Mutant("planner left to itself", "src/hourhand/storage/database.py", '("seqscan", "bitmapscan", "sort", "incremental_sort", "nestloop", "mergejoin")', "()",
           "tests/db/test_claim.py -k whatever_the_statistics"),
    Mutant("cancel requests forgotten by recovery and heartbeat", NODES, "ARRAY(SELECT c.run_id FROM hourhand.cancels c JOIN hourhand.running r ON r.worker_id = $1 AND r.run_id = c.run_id)",
           "ARRAY(SELECT 0::bigint WHERE false)", "tests/db/test_worker.py -k next_heartbeat"),
    Mutant("no epoch check in firing", FIRING, *NO_EPOCH, "tests/db/test_firing.py -k deposed"),
    Mutant("the shard is not locked while firing", FIRING, " FOR SHARE OF s", "", "tests/db/test_firing.py -k change_of_hands"),
    Mutant("schedules move from wherever they are", FIRING, "AND s.next_run_at = planned.due_at AND", "AND",
           "tests/db/test_firing.py -k from_one_plan"),
    Mutant("no unique firing", SCHEDULES, "    PRIMARY KEY (schedule_id, scheduled_at)\n", "    CHECK (count > 0)\n",
           "tests/db/test_firing.py -k second_barrier"),
    Mutant("wheel and local clock trusted", FIRING, " AND planned.due_at <= clock_timestamp()", "", "tests/db/test_firing.py -k not_due"),
    Mutant("shards taken from the living", FIRING, "(owner IS NULL OR owner <> ALL ($3::integer[]))", "true",
           "tests/db/test_firing.py -k willing"),
    Mutant("fleet: no epoch check", FIRING, *NO_EPOCH, FLEET),
    Mutant("fleet: wheel trusted without a second look", FIRING, *NOT_DUE, FLEET,
           also=((f"{ENGINE}/scheduler.py", "if one.due_at > one.present:", "if False:"),)),
    Mutant("fleet: the machine's clock instead of the database's", FIRING, *NOT_DUE, FLEET, also=LOCAL_CLOCK),
    Mutant("fleet: nothing makes a firing unique", FIRING, *NO_EPOCH, FLEET, also=NOTHING_UNIQUE),
    Mutant("a change of a job leaves plans valid", FIRING, " AND s.revision = planned.revision", "", "tests/db/test_policies.py -k plan_from_before"),
    Mutant("a job leaves without its due firing", DELIVERY, "    ELSIF pending <= boundary THEN", "    ELSIF false THEN", "tests/db/test_policies.py -k not_lost_when"),
    Mutant("two runs at once in spite of overlap", OVERLAP, "            EXIT WHEN FOUND;\n", "            EXIT;\n", "tests/db/test_policies.py -k one_after_another"),
    Mutant("the next in the queue is forgotten", OVERLAP, "    IF number IS NULL THEN\n        DELETE FROM hourhand.live", "    IF true THEN\n        DELETE FROM hourhand.live",
           "tests/db/test_policies.py -k lets_the_next"),
    Mutant("a resume forgets the pause", JOBS, "WHERE at >= old.paused_at),", "WHERE false),", "tests/db/test_policies.py -k treats_the_pause"),
    Mutant("hints that come twice", FIRING, "(SELECT DISTINCT * FROM unnest($8::bigint[], $9::timestamptz[]) AS twice (schedule_id, at))", "unnest($8::bigint[], $9::timestamptz[])",
           "tests/db/test_scheduler.py -k comes_twice", also=((FIRING, "AS given\n        ON given.schedule_id", "AS given (schedule_id, at)\n        ON given.schedule_id"),)),
    Mutant("chains end", DELIVERY, "WHEN (NEW.options ? 'then' AND", "WHEN (false AND", "tests/db/test_chains.py -k one_transaction"),
    Mutant("schedules collected under open transactions", JOBS, "        PERFORM FROM hourhand.schedules WHERE id = one FOR UPDATE SKIP LOCKED;", "        PERFORM FROM hourhand.schedules WHERE id = one;",
           "tests/db/test_jobs_api.py -k somebodys_open"),
    Mutant("an audit that sees nothing", "src/hourhand/core/account.py", "        return Line(at, UNEXPLAINED,", '        return Line(at, "fired",', "tests/db/test_ledger.py -k lost_run"),
    Mutant("a process of the old version deploys", "src/hourhand/surfaces/deployment.py", '    if known["seen"] and', "    if False and", "tests/db/test_deployment.py -k restarts"),
    Mutant("one-offs of open transactions share their instant", JOBS, "CASE WHEN (given->>'apart')::boolean THEN format('once %s', fresh.id) ELSE given->>'expression' END", "given->>'expression'",
           "tests/db/test_jobs_api.py -k not_lost"),
    Mutant("backfills made twice", JOBS, "DO UPDATE SET decided_at = clock_timestamp() WHERE again;", "DO UPDATE SET decided_at = clock_timestamp();",
           "tests/db/test_ledger.py -k each_run_once", also=(("src/hourhand/surfaces/past.py", "if one not in done and one not in wanted]", "if one not in done]"),)),
    Mutant("recovery does not mind what has begun", NODES, "WHEN lost.begun_at IS NOT NULL THEN 'lost' ", "", "tests/db/test_delivery.py -k had_begun_when"),
    Mutant("effects are not unique", DELIVERY, "    token   bytea PRIMARY KEY,", "    token   bytea,", "tests/db/test_delivery.py -k of_two_that_run"),
    Mutant("a zombie's transaction is committed", "src/hourhand/storage/atomic.py", "    if held and fresh:\n        await", "    if True:\n        await", "tests/db/test_delivery.py -k zombie_writes"),
    Mutant("what it enqueues goes its own way", "src/hourhand/storage/atomic.py", "return None if transaction is None else await transaction.connection()", "return None", "tests/db/test_delivery.py -k are_one"),
    Mutant("steps are forgotten", "src/hourhand/storage/effects.py", "return rows[0][0] if rows else None", "return None", "tests/db/test_delivery.py -k does_not_repeat"),
    Mutant("a zombie's step is kept", QUEUE, "    SELECT run_id FROM hourhand.running WHERE worker_id = $1 AND run_id = $2 AND token = $3 FOR SHARE),", "    SELECT $2::bigint AS run_id WHERE $1::integer > 0 AND $3::bigint > 0),", "tests/db/test_delivery.py -k zombies_result"),
    Mutant("the fence stands still", QUEUE, "SELECT $4, (SELECT nextval('hourhand.claim_tokens'))", "SELECT $4, 1", "tests/db/test_delivery.py -k grows_with_each", every=True),
    Mutant("a thread's transaction ends well", "src/hourhand/storage/carriers.py", "self._transaction.__exit__(Undone, undone, None)", "self._transaction.__exit__(None, None, None)", "tests/db/test_delivery.py -k sync_handlers"),
    Mutant("templates with unknown names", "src/hourhand/core/template.py", "        if field not in payload:\n            known", "        if False:\n            known", "tests/db/test_delivery.py -k unknown_names"),
    Mutant("the watchdog sleeps", f"{ENGINE}/watchdog.py", "            elif still >= patience:", "            elif False:", "tests/cluster/test_poison.py -k computes_on_the_loop"),
    Mutant("a stuck process stays", f"{ENGINE}/watchdog.py", "        exits = last and self._may_exit", "        exits = False", "tests/cluster/test_poison.py -k cannot_be_interrupted"),
    Mutant("children without a limit of memory", f"{ENGINE}/child.py", "    limit_memory(order[\"memory\"])\n", "", "tests/cluster/test_poison.py -k memory"),
    Mutant("a stubborn handler keeps its slot", f"{ENGINE}/executor.py", "        if active.stop(cause, reason):", "        if active.stop(cause, reason) and False:", "tests/cluster/test_poison.py -k memory"),
    Mutant("suspects among the healthy", f"{ENGINE}/executor.py", "        if any(one.crashes for one in claims):", "        if False:", "tests/cluster/test_poison.py -k claimed_apart",
           also=((f"{ENGINE}/claimer.py", "if self._probation and self._executor.room_for_suspects > 0:", "if self._probation and self._want() > 0:"),
                 (f"{ENGINE}/claimer.py", "self._claim_parked(self._executor.room_for_suspects, probation=True)", "self._claim_parked(self._want(), probation=True)"))),
    Mutant("http: connections are not checked", ADDRESSES, "        self._guard.check(host, port, addresses)\n        return [", "        return [", f"{HTTP_TEST} -k moves_inside"),
    Mutant("http: literal addresses are not checked", "src/hourhand/targets/http_payload.py", "            self._guard().check_host(call.host, call.port)\n", "", f"{HTTP_TEST} -k by_the_worker"),
    Mutant("http: a name is asked for twice", ADDRESSES, "        self._guard.check(host, port, addresses)\n        return [", "        self._guard.check(host, port, addresses)\n        addresses = await lookup(host)\n        return [",
           f"{HTTP_TEST} -k what_was_checked"),
    Mutant("http: redirects are followed", HTTP, "allow_redirects=False", "allow_redirects=True", f"{HTTP_TEST} -k redirects"),
    Mutant("http: jobs are not vetted", "src/hourhand/surfaces/job_payloads.py", "        if definition is not None and definition.vet is not None and not mentions(payload):", "        if False:", f"{HTTP_TEST} -k looked_up_when"),
    Mutant("http: calls take a slot", HTTP, "light=True", "light=False", f"{HTTP_TEST} -k three_hundred"),
    Mutant("http: signed with another id", HTTP, "signature(ctx.token, secret", "signature(ctx.run_id, secret", f"{HTTP_TEST} -k are_signed"),
    Mutant("http: proxies of the environment", HTTP, "trust_env=False", "trust_env=True", f"{HTTP_TEST} -k proxies"),
    Mutant("http: cookies go from one job to another", HTTP, "aiohttp.DummyCookieJar()", "aiohttp.CookieJar(unsafe=True)", f"{HTTP_TEST} -k proxies"),
    Mutant("http: bombs are unpacked", HTTP, "unpacker.decompress(data, limit)", "unpacker.decompress(data)", f"{HTTP_TEST} -k bomb"),
    Mutant("http: one host may have every socket", HTTP, "limit_per_host=PER_HOST", "limit_per_host=0", f"{HTTP_TEST} -k use_up",
           also=((HTTP, "asyncio.Semaphore(PER_HOST)", "asyncio.Semaphore(10**6)"),)),
    Mutant("http: waiting for a turn is charged", HTTP, "async with _turn(call.origin), asyncio.timeout(call.timeout):",
           "async with asyncio.timeout(call.timeout), _turn(call.origin):", f"{HTTP_TEST} -k its_turn"),
    Mutant("http: steps are not checked", "src/hourhand/core/registry.py", "self.targets[step[\"task\"]].codec.encode(step.get(\"payload\") or {})", "pass",
           f"{HTTP_TEST} -k asked_for"),
    Mutant("secrets go where an edit sends them", "src/hourhand/core/redaction.py", "if place is not None and place(original) != place(restored):", "if False:",
           "tests/db/test_secrets.py -k elsewhere"),
    Mutant("a trigger may use what is hidden", "src/hourhand/surfaces/jobs.py", "            if mentions(payload):\n                # Whoever may start", "            if False:\n                # Whoever may start",
           "tests/db/test_secrets.py -k editor_did_not_see"),
    Mutant("a job may be named like another's id", "src/hourhand/core/job.py", "if ids.parse_job_id(name) is not None:", "if False:", "tests/db/test_together.py -k looks_like_an_id"),
    Mutant("a bulk is on record as a number", "src/hourhand/surfaces/jobs.py", "        if named is None:\n            await record", "        if True:\n            await record",
           "tests/db/test_together.py -k bulk"),
    Mutant("everybody reads about keys", "src/hourhand/storage/sql/access.sql", "($10 OR NOT action ^@ 'key.')", "($10 OR true)", "tests/db/test_together.py -k for_admins"),
    Mutant("lines numbered anew", QUEUE, "before.last + row_number()", "row_number()", f"{LINES} numbers_go_on",
           also=((SURFACES, "CREATE UNIQUE INDEX lines_run", "CREATE INDEX lines_run"),)),
    Mutant("lines numbered for each attempt", QUEUE, "l.scheduled_at = r.scheduled_at\n                     ORDER BY", "l.scheduled_at = r.scheduled_at AND l.attempt = (SELECT max(attempt) FROM given)\n                     ORDER BY",
           f"{LINES} numbers_go_on", also=((SURFACES, "CREATE UNIQUE INDEX lines_run", "CREATE INDEX lines_run"),)),
    Mutant("writers of lines do not notice each other", SURFACES, "CREATE UNIQUE INDEX lines_run", "CREATE INDEX lines_run", f"{LINES} number_them_apart"),
    Mutant("lines doubled after a lost answer", QUEUE, "CASE WHEN $9::boolean THEN", "CASE WHEN $9::boolean AND false THEN", f"{LINES} lost_or_doubled"),
    Mutant("lines lost when the database is away", f"{ENGINE}/scribe.py", "            await self._gateway.keep_lines(self._writing, self._most, again=again)\n",
           "            lines, self._writing = self._writing, []\n            await self._gateway.keep_lines(lines, self._most, again=again)\n", f"{LINES} lost_or_doubled"),
    Mutant("no bound on lines over attempts", QUEUE, "WHERE number <= $8 + 1 ORDER BY", "WHERE $8 + 1 > 0 ORDER BY", f"{LINES} so_many_lines"),
    Mutant("lines are not written at the end", f"{ENGINE}/executor.py", "            self.scribe.wake()", "            pass", f"{LINES} soon_after_the_end"),
    Mutant("any program may be started", f"{TARGETS}/command.py", "    if path not in programs:", "    if path is None:", f"{COMMANDS} not_listed"),
    Mutant("commands without any list", f"{TARGETS}/command.py", "offered=lambda: bool(settings().allow_commands.strip())", "offered=None", f"{COMMANDS} not_told_otherwise"),
    Mutant("only the leader is killed", f"{TARGETS}/program.py", "os.killpg(self._group, one)", "os.kill(self._group, one)", f"{COMMANDS} whole_group"),
    Mutant("commands inherit the environment", f"{TARGETS}/command.py", "    return {\"PATH\": PATH,", "    return {**os.environ, \"PATH\": PATH,", f"{COMMANDS} its_environment"),
    Mutant("loader variables pass", f"{TARGETS}/command_payload.py", "        if name in _LOADER_NAMES or", "        if name in () and", f"{COMMANDS} payloads_that_are_refused"),
    Mutant("all output is held", f"{TARGETS}/program.py", "            if len(self._tail) > 2 * self._keep:", "            if False:", f"{COMMANDS} little_is_held"),
    Mutant("a line without an end is held", f"{TARGETS}/program.py", "piece[: MAX_TEXT + 1 - len(self._line)]", "piece", f"{COMMANDS} little_is_held"),
    Mutant("groups of root are kept", f"{TARGETS}/program.py", "extra_groups=None if group is None else [group]", "extra_groups=None", f"{COMMANDS} another_user"),
    Mutant("no death signal", f"{TARGETS}/program.py", "        prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL))\n", "", "tests/cluster/test_command_kill.py -k without_its_warden"),
    Mutant("no warden", f"{TARGETS}/program.py", "        WARDEN.watch(self._group)\n", "", "tests/cluster/test_command_kill.py -k kill_9",
           also=(("tests/cluster/test_command_kill.py", "    (warden,) = wardens(victim.pid)\n    victim.kill()", "    warden = victim.pid\n    victim.kill()"),)),
    Mutant("secrets: commands print them", "src/hourhand/surfaces/cli/common.py", "return view if reveal else view.redacted(app.settings.secret_names)", "return view",
           "tests/db/test_secrets.py -k no_command_prints"),
    Mutant("secrets: lists of dead letters print them", "src/hourhand/surfaces/cli/dead.py", "[discreet(app, one) for one in run(", "[one for one in run(", "tests/db/test_secrets.py -k no_command_prints"),
    Mutant("secrets: errors tell them", f"{ENGINE}/settler.py", "failure.describe(error, attempt, at, self._node.name, clean)", "failure.describe(error, attempt, at, self._node.name)",
           "tests/db/test_secrets.py -k an_error_is_stored"),
    Mutant("secrets: cut in a child before they are taken out", f"{ENGINE}/child.py", "    if clean is not None:\n        words, trace = clean(words), clean(trace)\n", "",
           "tests/db/test_secrets.py -k an_error_is_stored"),
    Mutant("secrets: lines tell them", f"{ENGINE}/scribe.py", "lambda line: self._keep(context, line), clean)", "lambda line: self._keep(context, line))", "tests/db/test_secrets.py -k lines_and_log"),
    Mutant("secrets: marks stay where they are declared", "src/hourhand/core/options.py", '            kept["secret"] = list(self.secret)\n', "            pass\n", "tests/db/test_secrets.py -k without_the_code"),
    Mutant("secrets: chains are shown", "src/hourhand/surfaces/views.py", "options=_redacted_steps(self.options, names, clean)", "options=self.options", "tests/db/test_secrets.py -k without_the_code"),
    Mutant("secrets: the word is stored", "src/hourhand/core/redaction.py", "        if shown != REDACTED:\n            raise", "        if shown != REDACTED:\n            return edited\n            raise",
           "tests/unit/test_redaction.py -k never_stored"),
    Mutant("secrets: items of a list by their place only", "src/hourhand/core/redaction.py", "    alike = [was[place] for place, one in enumerate(saw) if one == item]", "    alike, same_size = [], index < len(was)",
           "tests/unit/test_redaction.py -k visible_of_them"),
    Mutant("encryption: a seal is not bound to its task", "src/hourhand/core/sealing.py", '    return f"hourhand payload\\0{kid}\\0{task}".encode()', '    return b""', "tests/db/test_encryption.py -k tampered"),
    Mutant("encryption: the same nonce for all", "src/hourhand/core/sealing.py", "nonce = self._random(NONCE_SIZE)", "nonce = bytes(NONCE_SIZE)", "tests/unit/test_sealing.py -k no_two_seals"),
    Mutant("encryption: half of the nonce", "src/hourhand/core/sealing.py", "nonce = self._random(NONCE_SIZE)", "nonce = bytes(12) + self._random(NONCE_SIZE)[12:]", "tests/unit/test_sealing.py -k both_halves"),
    Mutant("encryption: COPY writes plain text", "src/hourhand/storage/enqueue.py", "            if sealer.active:\n", "            if False:\n", "tests/db/test_encryption.py -k whatever_is_written"),
    Mutant("encryption: jobs by COPY are plain", "src/hourhand/storage/jobs.py", "await asyncio.to_thread(self._sealed, jobs) if self._database.sealer.active else jobs", "jobs", "tests/db/test_encryption.py -k whatever_is_written"),
    Mutant("encryption: later steps are plain", "src/hourhand/storage/enqueue.py", "options.kept_json(sealer.seal_steps)", "options.kept_json()", "tests/db/test_encryption.py -k whatever_is_written", every=True),
    Mutant("encryption: the audit log reads along", "src/hourhand/surfaces/auditing.py", 'return "[encrypted]" if sealer.active else redacted', "return redacted", "tests/db/test_encryption.py -k whatever_is_written"),
    Mutant("encryption: the same job is another one", "src/hourhand/storage/jobs.py", "        if sealer.has_keys and await _is_the_same(door, job, given, sealer):\n", "        if False:\n", "tests/db/test_encryption.py -k same_job_again"),
    Mutant("encryption: large steps do not fit", "src/hourhand/storage/migrations/0006_surfaces.sql", "measured => arguments ? '$sealed'", "measured => false", "tests/db/test_encryption.py -k beside_the_seal"),
    Mutant("encryption: rotation forgets a table", "src/hourhand/storage/sealing.py", '"jobs", "delayed", "parked", "ready"', '"jobs", "delayed", "ready"', "tests/db/test_encryption.py -k rotation_seals"),
    Mutant("encryption: rotation forgets chains", "src/hourhand/storage/sealing.py", "self._sealer.reseal_steps(steps)", "steps", "tests/db/test_encryption.py -k rotation_seals"),
    Mutant("encryption: rotation waits for locks", "src/hourhand/storage/sql/sealing.sql", " FOR UPDATE SKIP LOCKED", " FOR UPDATE", "tests/db/test_encryption.py -k locked_or", every=True),
    Mutant("client: changes without a key", f"{CLIENT}/transport.py", "if call.once and not call.looks:", "if False:", f"{LOST} makes_no_second_run"),
    Mutant("client: a new key for each try", f"{CLIENT}/transport.py", "                answer = await self._exchange(call, headers)\n                trouble",
           "                headers = {**headers, \"Idempotency-Key\": uuid.uuid4().hex}\n                answer = await self._exchange(call, headers)\n                trouble", f"{LOST} makes_no_second_run"),
    Mutant("client: only POST is remembered", "src/hourhand/surfaces/rest/route.py", "if looks or key is None:", "if request.method != \"POST\" or key is None:", f"{LOST} of_any_verb"),
    Mutant("client: one page is all", f"{CLIENT}/asking.py", "if cursor is None or len(found) >= limit:", "if True:", "tests/db/test_client.py -k two_and_a_half_thousand"),
    Mutant("client: a page of the record begins anywhere", "src/hourhand/surfaces/rest/jobs.py", "        lines = lines[: -seen[2]]", "        lines = lines[:-1]", "tests/db/test_client.py -k page_by_page"),
    Mutant("client: a backfill is left alone", f"{CLIENT}/jobs.py", "            await asyncio.wait([asking])\n", "            asking.cancel()\n", "tests/db/test_client.py -k gives_up"),
    Mutant("client: redirects are followed", f"{CLIENT}/transport.py", "allow_redirects=False", "allow_redirects=True", "tests/unit/test_client_transport.py -k redirect"),
    Mutant("client: no patience", f"{CLIENT}/transport.py", "max(wished, _PAUSES.delay(attempt, self._random))", "_PAUSES.delay(attempt, self._random)", "tests/unit/test_client_transport.py -k how_long"),
    Mutant("client: silence after a gap", f"{CLIENT}/events.py", "                if connected:\n                    yield dict(GAP)\n", "", f"{LOST} heard_again"),
    Mutant("cli: a server and a database at once", "src/hourhand/surfaces/cli/connection.py", "        if database:", "        if False:", "tests/db/test_cli_server.py -k before_the_environment"),
    Mutant("verify: no claim token", QUEUE, CLAIM, "WHERE run_id = mine.run_id AND $1 > 0", f"{VERIFY} pause", every=True, seconds=90,
           also=((QUEUE, "WHERE worker_id = $1::integer AND run_id = $2::bigint AND token = $3::bigint", "WHERE $1::integer > 0 AND run_id = $2::bigint AND $3::bigint > 0"),)),
    Mutant("verify: no epoch", FIRING, *NO_EPOCH, f"{VERIFY} pause", seconds=120),
    Mutant("verify: no unique firing", FIRING, *NO_EPOCH, f"{VERIFY} pause", also=NOTHING_UNIQUE, seconds=120),
    Mutant("verify: acknowledged before the work", f"{ENGINE}/executor.py", "                result = await self._caller.call(active)",
           "                self._completer.succeed(active.claim, active.started, active.started, None)\n                result = await self._caller.call(active)", f"{VERIFY} kill"),
    Mutant("verify: a zombie's transaction is committed", "src/hourhand/storage/atomic.py", "    if held and fresh:\n        await", "    if True:\n        await", f"{VERIFY} pause", seconds=90),
    Mutant("verify: rescue by elapsed time only", NODES, "WHERE r.worker_id = n.id ORDER BY", "WHERE r.worker_id = n.id AND r.claimed_at < now() - interval '1 second' ORDER BY", f"{VERIFY} kill",
           also=((NODES, "WHERE NOT n.settled AND (n.died_at IS NOT NULL OR n.stopped_at IS NOT NULL)))", "))"),
                 (NODES, "WHERE NOT n.settled AND (n.died_at IS NOT NULL OR n.stopped_at IS NOT NULL)) AS orphans", "WHERE true) AS orphans"))),
    Mutant("verify: the beginning is not on record", f"{ENGINE}/gate.py", "        return (await self._beginnings.ask(holder)) is not None", "        return True", f"{VERIFY} kill", seconds=60),
    Mutant("verify: local clock", FIRING, *NOT_DUE, f"{VERIFY} skew", also=LOCAL_CLOCK, seconds=60),
    Mutant("api: any secret will do", ACCESS, "if row is None or not right:", "if row is None:", f"{SECURITY} that_is_wrong"),
    Mutant("api: keys compared letter by letter", ACCESS, "hmac.compare_digest(_hash(secret), _NO_HASH if row is None else row[\"hash\"])", "_hash(secret) == (_NO_HASH if row is None else row[\"hash\"])", f"{SECURITY} constant_time"),
    Mutant("api: the environment's key compared letter by letter", f"{REST}/keyring.py", "hmac.compare_digest(digest, self._admin)", "digest == self._admin", f"{SECURITY} constant_time"),
    Mutant("api: tokens compared letter by letter", f"{REST}/gate.py", 'hmac.compare_digest(one.encode("utf-8", "surrogatepass"), other.encode())', "one == other", f"{SECURITY} constant_time"),
    Mutant("api: keys for ever", ACCESS, 'return view if view.state == "active" else None', "return view", f"{SECURITY} expired_or_revoked"),
    Mutant("api: keys remembered for long", f"{REST}/keyring.py", "REMEMBERED = 1.0", "REMEMBERED = 600.0", f"{SECURITY} expired_or_revoked"),
    Mutant("api: the secret on record", ACCESS, "after=view.to_dict())", 'after={**view.to_dict(), "secret": secret})', f"{SECURITY} no_secret"),
    Mutant("api: answers with a secret are kept", f"{REST}/route.py", "            if not remembered:", "            if False:", f"{SECURITY} no_secret"),
    Mutant("api: open below the open path", f"{REST}/gate.py", 'if scope["path"] in FREE or', 'if scope["path"].startswith(FREE) or', f"{SECURITY} every_route_is_closed"),
    Mutant("api: open to options", f"{REST}/gate.py", 'if scope["path"] in FREE or', 'if scope["path"] in FREE or scope["method"] == "OPTIONS" or', f"{SECURITY} every_route_is_closed"),
    Mutant("api: roles not asked for", f"{REST}/route.py", "            need_role(request.state.actor, role)\n", "", f"{SECURITY} role_may_do"),
    Mutant("api: roles not asked for on the short way", f"{REST}/gate.py", '        need_role(scope["state"]["actor"], role)\n', "", f"{SECURITY} role_may_do"),
    Mutant("api: viewers delete jobs", f"{REST}/jobs.py", 'operation_id="delete_job", status_code=204,', 'operation_id="delete_job", openapi_extra=roles("viewer"), status_code=204,', f"{SECURITY} roles_are_these"),
    Mutant("api: any host", f"{REST}/gate.py", "if not is_loopback(host) and host not in self._allowed:", "if False:", f"{SECURITY} page_that_somebody"),
    Mutant("api: any origin", f"{REST}/gate.py", 'if origin is not None and _site(origin) != headers.get("host", "").lower():', "if False:", f"{SECURITY} page_that_somebody"),
    Mutant("api: any site", f"{REST}/gate.py", 'if headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):', "if False:", f"{SECURITY} page_that_somebody"),
    Mutant("api: proxies believed", f"{REST}/gate.py", "or any(_passed_on(name) for name in headers)", "", f"{SECURITY} proxy"),
    Mutant("api: open although there is a key", f"{REST}/keyring.py", "bool(await (await self._app._database()).fetchval(\"any_key\"))", "False", f"{SECURITY} closed_as_soon"),
    Mutant("api: open again after the last key", "src/hourhand/storage/sql/access.sql", "SELECT EXISTS (SELECT FROM hourhand.api_keys);", "SELECT EXISTS (SELECT FROM hourhand.api_keys WHERE revoked_at IS NULL);", f"{SECURITY} closed_as_soon",
           also=((f"{REST}/keyring.py", "or self._any_key:\n            return False", ":\n            return False"),)),
    Mutant("api: open to the world", f"{REST}/keyring.py", '    if not any(one.state == "active" and one.key_id != ENVIRONMENT for one in keys):', "    if False:", f"{SECURITY} strangers"),
    Mutant("api: a revoked key is one", f"{REST}/keyring.py", "keys = await app.keys.list()", "keys = await app.keys.list(revoked=True)", f"{SECURITY} strangers", also=((f"{REST}/keyring.py", 'any(one.state == "active" and one.key_id != ENVIRONMENT for one in keys)', "keys"),)),
    Mutant("api: placeholders as keys", f"{REST}/keyring.py", "if any(word in text.lower() for word in _PLACEHOLDERS) and len(text) < 2 * _SHORTEST:", "if False:", f"{SECURITY} others_guess"),
    Mutant("api: short keys", f"{REST}/keyring.py", "if len(text) < _SHORTEST or len(set(text)) < 10:", "if False:", f"{SECURITY} others_guess"),
    Mutant("api: every name is its own", f"{REST}/gate.py", 'if self._allowed and _host(headers.get("host", "")) not in self._allowed', "if False", f"{SECURITY} only_to_its_names"),
    Mutant("api: scripts read the cookie", f"{REST}/access.py", "httponly=True", "httponly=False", f"{SECURITY} session_of_a_browser"),
    Mutant("api: other sites send the cookie", f"{REST}/access.py", 'samesite="strict"', 'samesite="lax"', f"{SECURITY} session_of_a_browser"),
    Mutant("api: no token of the session", f"{REST}/gate.py", 'and not _equal(headers.get("x-csrf-token", ""), session.csrf)', "and False", f"{SECURITY} session_of_a_browser"),
    Mutant("api: sessions do not end", "src/hourhand/storage/sql/access.sql", "DELETE FROM hourhand.sessions WHERE hash = $1 RETURNING", "DELETE FROM hourhand.sessions WHERE hash = $1 AND false RETURNING", f"{SECURITY} session_of_a_browser"),
    Mutant("api: sessions outlive their key", f"{REST}/keyring.py", 'if view is not None and view.state == "active":', "if view is not None:", f"{SECURITY} ends_with_its_key"),
    Mutant("api: sessions outlive their time", "src/hourhand/storage/sql/access.sql", " AND s.expires_at > clock_timestamp()", "", f"{SECURITY} ends_with_its_key"),
    Mutant("api: sessions last longer than their key", "src/hourhand/storage/sql/access.sql", "least(expires_at, clock_timestamp() + $4::interval)", "clock_timestamp() + $4::interval", f"{SECURITY} no_longer_than"),
    Mutant("api: sessions of a key that was replaced", "src/hourhand/storage/sql/access.sql", "AND k.hash <> $3)", "AND k.hash <> $3 AND false)", f"{SECURITY} environments_key"),
    Mutant("api: streams outlive their key", f"{REST}/events.py", "if not await request.app.state.still_valid(request):", "if False:", f"{SECURITY} streams_end"),
    Mutant("api: for every site", f"{REST}/gate.py", '    "X-Frame-Options": "DENY",\n', '    "X-Frame-Options": "DENY",\n    "Access-Control-Allow-Origin": "*",\n', f"{SECURITY} say_nothing"),
    Mutant("api: what serves it", f"{REST}/server.py", "server_header=False", "server_header=True", f"{SECURITY} say_nothing"),
    Mutant("api: others' jobs", "src/hourhand/surfaces/job_verbs.py", "if not ACTOR.get().may_touch(stored.definition.queue, stored.definition.name):", "if False:", f"{SCOPES} others_are_not"),
    Mutant("api: others' runs", "src/hourhand/surfaces/verbs.py", "if not actor.may_touch(run.queue, job):", "if False:", f"{SCOPES} others_are_not"),
    Mutant("api: others' jobs in lists", "src/hourhand/storage/sql/jobs.sql", "OR q.name = ANY ($8)) AND ($9::text[] IS NULL OR j.name ^@ ANY ($9))", "OR true) AND ($9::text[] IS NULL OR true)", f"{SCOPES} lists_and_counts"),
    Mutant("api: others' runs in lists", "src/hourhand/surfaces/verbs.py", "return numbers, None if actor.prefixes is None else list(actor.prefixes)", "return None, None", f"{SCOPES} lists_and_counts"),
    Mutant("api: others' dead letters replayed and purged", "src/hourhand/surfaces/verbs.py", "return numbers, None if actor.prefixes is None else list(actor.prefixes)", "return None, None", f"{SCOPES} only_ones_own_is_meant"),
    Mutant("api: others' queues in lists", "src/hourhand/surfaces/verbs.py", 'if actor.may_touch(row["name"], None)', "if True", f"{SCOPES} lists_and_counts"),
    Mutant("api: whether there is such a queue", "src/hourhand/surfaces/verbs.py", "if number is None or (actor.queues is not None and name not in actor.queues):", "if number is None:", f"{SCOPES} lists_and_counts"),
    Mutant("api: jobs anywhere", "src/hourhand/surfaces/job_verbs.py", '        self._actor.need(job.queue, job.name, f"job {job.name!r} in queue {job.queue!r}")\n        if', "        if", f"{SCOPES} made_or_moved"),
    Mutant("api: others' jobs replaced", "src/hourhand/surfaces/jobs.py", "                self._actor.need(before.definition.queue, name, f\"job {name!r} in queue {before.definition.queue!r}\")\n", "", f"{SCOPES} made_or_moved"),
    Mutant("api: others' jobs replaced in bulk", "src/hourhand/surfaces/jobs.py", "if replace and self._actor.scoped:", "if False:", f"{SCOPES} made_or_moved"),
    Mutant("api: chains lead anywhere", "src/hourhand/core/chain.py", "    for step in _steps(options):\n        actor", "    for step in ():\n        actor", f"{SCOPES} made_or_moved"),
    Mutant("api: runs anywhere", "src/hourhand/surfaces/app.py", "            actor.need(queue, None, f\"queue {queue!r}\")\n", "", f"{SCOPES} made_or_moved"),
    Mutant("api: others' queues paused", "src/hourhand/surfaces/verbs.py", "        actor.need(name, None, f\"queue {name!r}\")\n", "", f"{SCOPES} made_or_moved"),
    Mutant("api: a queue paused for the jobs of others", "src/hourhand/surfaces/verbs.py", "        if actor.prefixes is not None:\n            actor.need_everything", "        if False:\n            actor.need_everything", f"{SCOPES} made_or_moved",
           also=(("src/hourhand/surfaces/verbs.py", "        actor.need(name, None, f\"queue {name!r}\")\n", "        if actor.prefixes is None:\n            actor.need(name, None, f\"queue {name!r}\")\n"),)),
    Mutant("api: everything for a part", "src/hourhand/core/actor.py", "        if self.scoped:\n            raise", "        if False:\n            raise", f"{SCOPES} concerns_everything"),
    Mutant("api: the record of others", "src/hourhand/storage/sql/access.sql", "OR queue = ANY ($8)) AND ($9::text[] IS NULL OR name ^@ ANY ($9))", "OR true) AND ($9::text[] IS NULL OR true)", f"{SCOPES} record_of_others"),
    Mutant("api: the record of keys", "src/hourhand/storage/sql/access.sql", "  AND (action NOT LIKE 'key.%' OR coalesce($8, $9) IS NULL)\n", "", f"{SCOPES} record_of_others"),
    Mutant("api: changes of others are heard", f"{REST}/events.py", 'return event if not about_keys and actor.may_touch(event.get("queue"), event.get("name")) else None', "return event", f"{SCOPES} changes_of_others"),
    Mutant("api: changes of keys are heard", f"{REST}/events.py", "return event if not about_keys and", "return event if", f"{SCOPES} changes_of_others"),
    Mutant("api: runs of others are heard", f"{REST}/events.py", 'if not actor.scoped or event["type"] == "gap":', 'if not actor.scoped or event["type"] != "change":', f"{SCOPES} runs_of_others"),
    Mutant("api: answers by the name of a key", f"{REST}/route.py", "actor = request.state.actor.identity", "actor = request.state.actor.name", f"{SCOPES} keys_of_one_name"),
    Mutant("api: changes without their entry", "src/hourhand/surfaces/auditing.py", "        async with door.database.together():\n            yield", "        yield", f"{AUDIT} no_change_without"),
    Mutant("api: entries without their change", "src/hourhand/surfaces/auditing.py", "        async with door.database.together():\n            yield", "        yield", f"{AUDIT} no_change_without or no_entry_without"),
    Mutant("api: a deletion off the record", "src/hourhand/surfaces/jobs.py", '            await self._note(door, "job.delete", stored.view(), None)\n', "", f"{AUDIT} leaves_one_entry"),
    Mutant("api: what was there is said to be added", "src/hourhand/surfaces/jobs.py", "before = await self._views(own, named) if named is not None else {}", "before = dict[str, JobView]()", f"{AUDIT} leaves_one_entry"),
    Mutant("api: everybody reads of keys", "src/hourhand/storage/sql/access.sql", "AND ($10 OR NOT action ^@ 'key.')", "AND ($10 OR true)", f"{AUDIT} found_by_what"),
    Mutant("api: nothing before it", "src/hourhand/surfaces/auditing.py", '"queue": job.queue, "before": was, "after": now}', '"queue": job.queue, "before": None, "after": now}', f"{AUDIT} leaves_one_entry"),
    Mutant("api: the record can be changed", "src/hourhand/storage/migrations/0006_surfaces.sql", "BEFORE UPDATE OR DELETE OR TRUNCATE ON", "BEFORE DELETE OR TRUNCATE ON", f"{AUDIT} only_be_added"),
    Mutant("api: the record can be emptied", "src/hourhand/storage/migrations/0006_surfaces.sql", "BEFORE UPDATE OR DELETE OR TRUNCATE ON", "BEFORE UPDATE OR DELETE ON", f"{AUDIT} only_be_added"),
    Mutant("api: secrets of jobs shown", f"{REST}/jobs.py", "wire.job_to_wire(view.redacted(app_of(request).settings.secret_names))", "wire.job_to_wire(view)", f"{AUDIT} shown_nowhere"),
    Mutant("api: secrets of runs shown", f"{REST}/runs.py", "wire.run_to_wire(view.redacted(app_of(request).settings.secret_names))", "wire.run_to_wire(view)", f"{AUDIT} shown_nowhere"),
    Mutant("api: secrets on record", "src/hourhand/surfaces/auditing.py", "payload_for_record(view.redacted(names).payload, sealer)", "payload_for_record(view.payload, sealer)", f"{AUDIT} shown_nowhere"),
    Mutant("api: a secret shown on demand", "src/hourhand/surfaces/job_payloads.py", '            made["secret"] = (*marks, *made["secret"])\n', "            pass\n", f"{AUDIT} saying_that_it_is_none"),
    Mutant("api: the answer apart from the change", f"{REST}/route.py", "    async with database.together():\n        if not await database.fetch(\"remember_request\"", "    if True:\n        if not await database.fetch(\"remember_request\"", f"{API} killed_server"),
    Mutant("api: two at once", f"{REST}/route.py", "        if not await database.fetch(\"remember_request\", actor, key, fingerprint):", "        if not await database.fetch(\"remember_request\", actor, f\"{key} {id(request)}\", fingerprint):", f"{API} two_at_once"),
    Mutant("api: one answer to everything", f"{REST}/route.py", 'if row["fingerprint"] != fingerprint:', "if False:", f"{API} has_its_first_answer"),
    Mutant("api: any version", "src/hourhand/surfaces/jobs.py", "if version is not None and stored.version != version:", "if False:", f"{API} only_the_version"),
    Mutant("api: half a batch", f"{REST}/runs.py", "    async with (await app._database()).together():\n", "    if True:\n", f"{API} batch_of_runs"),
    Mutant("api: pages overlap", "src/hourhand/storage/sql/admin.sql", "(died_at, run_id) < ($11, $12::bigint)", "(died_at, $12::bigint) <= ($11, $12::bigint)", f"{API} comes_in_pages"),
    Mutant("api: pages leave out", "src/hourhand/storage/sql/jobs.sql", "(scheduled_at, run_id) < ($3, $4::bigint)", "(scheduled_at, $4::bigint) < ($3, $4::bigint)", f"{API} comes_in_pages", every=True),
    Mutant("api: links as they come", f"{REST}/answers.py", 'quote(url.path, safe="/:@%")', "url.path", f"{API} strange_signs"),
    Mutant("api: streams hold up the end", f"{REST}/server.py", "        self._hub.close()\n", "", f"{API} from_stopping"),
    Mutant("api: a gap before its end", f"{REST}/events.py", "            await self._listen()\n", "            self._hears()\n                    await self._listen()\n", f"{API} without_its_database",
           also=((f"{REST}/events.py", "lambda *heard: self._hear(str(heard[3])))\n            self._hears()\n", "lambda *heard: self._hear(str(heard[3])))\n"),)),
    Mutant("api: where the database is", f"{REST}/problems.py", 'f"{_TITLES[503]} at the moment; try again"', "str(error)", f"{API} without_its_database"),
    Mutant("api: bodies of any size", f"{REST}/gate.py", "        if size > _limit(scope):", "        if False:", f"{LIMITS} ten_megabytes", also=((f"{REST}/gate.py", "            if left < 0:", "            if False:"),)),
    Mutant("api: bodies of any size, unannounced", f"{REST}/gate.py", "            if left < 0:", "            if False:", f"{LIMITS} ten_megabytes"),
    Mutant("api: headers of any size", f"{REST}/protocol.py", "if self._taken > LARGEST_HEAD:", "if False:", f"{LIMITS} large_headers"),
    Mutant("api: headers without number", f"{REST}/protocol.py", "if len(self.headers) >= MOST_HEADERS:", "if False:", f"{LIMITS} large_headers", also=((f"{REST}/protocol.py", "if self._taken > LARGEST_HEAD:", "if False:"),)),
    Mutant("api: everybody waits for a proof", "src/hourhand/surfaces/job_past.py", "found = await asyncio.to_thread(list, islice(lines, most + 1))", "found = list(islice(lines, most + 1))", f"{LIMITS} keep_nobody"),
    Mutant("api: everybody waits for a preview", f"{REST}/fleet.py", "await asyncio.to_thread(list, islice(one.firings(start), count))", "list(islice(one.firings(start), count))", f"{LIMITS} keep_nobody"),
    Mutant("api: steps unread", "src/hourhand/surfaces/wire.py", "        encode_untyped(task, payload)\n", "", f"{LIMITS} json_or_the_database"),
    Mutant("api: zones from anywhere", "src/hourhand/core/zones.py", "    if name not in zone_names():", "    if False:", f"{LIMITS} zone_that_is_none"),
    Mutant("api: instants from anywhere", f"{REST}/fleet.py", "    check(after=after)\n", "", f"{LIMITS} question_out_of"),
    Mutant("alerts: two open incidents of one thing", "src/hourhand/storage/migrations/0008_alerts.sql", "CREATE UNIQUE INDEX incidents_open", "CREATE INDEX incidents_open", f"{LOOKING} whoever_looks"),
    Mutant("alerts: opened at once", ALERTS, "CASE WHEN $6::float8 = 0 THEN", "CASE WHEN true THEN", f"{LOOKING} so_for_a_while"),
    Mutant("alerts: closed by an old belief", ALERTS, "  AND i.seen_at <= clock_timestamp() - make_interval(secs => $4)\n", "", f"{LOOKING} looked_long_ago"),
    Mutant("alerts: the bare one closes what it does not know", f"{ENGINE}/watchman.py", "        if self._whole:", "        if True:", f"{LOOKING} who_has_no_file"),
    Mutant("alerts: a storm one by one", f"{ENGINE}/watchman.py", "room = 0 if OTHERS in standing else max(0, limit - len(standing))", "room = limit", f"{LOOKING} storm"),
    Mutant("alerts: never forgotten", f"{ENGINE}/maintainer.py", "        rows += await self._gateway.forget_incidents(kept, BATCH)\n", "", f"{LOOKING} forgotten"),
    Mutant("alerts: replayed letters have waited since they were made", f"{ENGINE}/lookout.py", "since = max(since, self._times[before]) if before >= 0 else since", "since = row['since']", f"{LOOKING} last_week"),
    Mutant("alerts: backfills are late", f"{ENGINE}/measures.py", ' and not claim.errors and not (claim.options and "by_hand" in claim.options)', "", f"{LOOKING} backfilled"),
    Mutant("alerts: every skip is a catch-up", ALERTS, "\n             AND d.reason LIKE 'missed %'", "", f"{LOOKING} no_catch_up"),
    Mutant("alerts: paused jobs are missed", ALERTS, "AND j.paused_at IS NULL AND s.next_run_at IS NOT NULL", "AND s.next_run_at IS NOT NULL", f"{LOOKING} left_alone"),
    Mutant("alerts: a resume counts for nothing", ALERTS, "AND p.paused AND p.until > now() - make_interval(secs => $2)) END", "AND false) END", f"{LOOKING} left_alone"),
    Mutant("alerts: any end is a success", ALERTS, "AND r.outcome = 'succeeded' AND r.finished_at >", "AND r.finished_at >", f"{LOOKING} no_success"),
    Mutant("alerts: a turn ends where it began", f"{ENGINE}/lookout.py", "            turn.after = last\n", "", f"{LOOKING} in_turns"),
    Mutant("alerts: replaced too early to count", ALERTS, "f.at <= d.died_at - interval '20 seconds'", "f.at < d.died_at", f"{LOOKING} before_its_death"),
    Mutant("alerts: the duty stays with the dead", ALERTS, "d.rank < excluded.rank\n       OR EXISTS (SELECT FROM hourhand.nodes n WHERE n.id = d.node AND (n.stopped_at IS NOT NULL OR n.died_at IS NOT NULL))", "d.rank < excluded.rank", f"{LOOKING} duty_passes"),
    Mutant("alerts: the duty stays with who can do less", ALERTS, "OR d.rank < excluded.rank", "", f"{LOOKING} duty_passes"),
    Mutant("alerts: lease ignored", ALERTS, " AND n.until <= clock_timestamp()", "", f"{TELLING} both_send"),
    Mutant("alerts: token ignored", ALERTS, "WHERE incident = $1 AND channel = $2 AND token = $3\nRETURNING incident", "WHERE incident = $1 AND channel = $2 AND $3::bigint > 0\nRETURNING incident", f"{TELLING} late_word"),
    Mutant("alerts: over without a beginning", ALERTS, "CASE WHEN n.opened_at IS NULL THEN 'opened' WHEN i.closed_at IS NOT NULL THEN 'closed'", "CASE WHEN i.closed_at IS NOT NULL THEN 'closed' WHEN n.opened_at IS NULL THEN 'opened'", f"{TELLING} first_the_beginning"),
    Mutant("alerts: told again and again", ALERTS, "SET opened_at = coalesce(opened_at, clock_timestamp()), told_at", "SET opened_at = opened_at, told_at", f"{TELLING} webhook_is_told"),
    Mutant("alerts: one try", ALERTS, "    done = EXISTS (SELECT", "    done = true OR EXISTS (SELECT", f"{TELLING} first_the_beginning"),
    Mutant("alerts: reminders unasked", ALERTS, "OR n.told_at <= clock_timestamp() - make_interval(secs => i.repeat))", "OR i.closed_at IS NULL)", f"{TELLING} tell_each_thing_once"),
    Mutant("alerts: functions hear of everything", "src/hourhand/core/alert_rules.py", "return self.channels is None or PYTHON in self.channels", "return True", f"{TELLING} unless_it_names"),
    Mutant("alerts: addresses in errors", f"{TARGETS}/channels.py", "raise NotDelivered(address_cleaner(*secrets)(str(error))[:_LONGEST]) from None", "raise NotDelivered(str(error)) from None", f"{TELLING} give_the_address_away"),
    Mutant("alerts: addresses in others' logs", f"{TARGETS}/channels.py", "            heard.append(record.getMessage())\n        return False", "            heard.append(record.getMessage())\n        return True", f"{TELLING} goes_nowhere"),
    Mutant("alerts: an unsigned webhook", f"{TARGETS}/channels.py", 'return signature(alert.key, secret, body) if secret else {"webhook-id": alert.key}', 'return {"webhook-id": alert.key}', f"{TELLING} webhook_is_told"),
    Mutant("alerts: hooks in the threads of all", f"{TARGETS}/channels.py", "await self._aside.call(self._function, alert)", "await asyncio.to_thread(self._function, alert)", f"{TELLING} takes_no_thread"),
    Mutant("alerts: called while it hangs", f"{TARGETS}/aside.py", "if self._last is not None and not self._last.done():", "if False:", f"{TELLING} is_not_called_again"),
    Mutant("alerts: one slow rule stops all", f"{ENGINE}/watchman.py", "        except Exception as error:\n            if rule", "        except ZeroDivisionError as error:\n            if rule", f"{LOOKING} gets_no_answer"),
    Mutant("alerts: nothing is told while nobody can look", f"{ENGINE}/watchman.py", "            await self._gateway.add_notices(self._pairs)\n            raise", "            raise", f"{LOOKING} nobody_can_look"),
    Mutant("alerts: a blip tells twice", f"{ENGINE}/herald.py", "            if Clock.monotonic() >= until:", "            if True:", f"{TELLING} hear_it_twice"),
    Mutant("alerts: closed by an older look", ALERTS, "  AND i.seen_at < $5::timestamptz\n", "", f"{LOOKING} after_it_began"),
    Mutant("alerts: opened by an older look", ALERTS, "AND i.closed_at >= $11::timestamptz)", "AND i.closed_at >= $11::timestamptz AND false)", f"{LOOKING} after_it_began"),
    Mutant("alerts: addresses in what functions say", f"{TARGETS}/channels.py", 'without_addresses(f"{type(error).__name__}: {error}")', 'f"{type(error).__name__}: {error}"', f"{TELLING} would_end_the_process"),
    Mutant("api: not what the document says", f"{REST}/access.py", '"role": actor.role,', '"roles": [actor.role],', "tests/db/test_api_schema.py -k generated"),
    Mutant("traces: not stored", "src/hourhand/storage/enqueue.py", "kept = rest[-1] if doing is None else doing.kept(rest[-1])", "kept = rest[-1]", f"{TRACES} every_way"),
    Mutant("traces: not stored in transactions", "src/hourhand/surfaces/app.py", "return (*arguments, True) if doing is None else", "return (*arguments, True) if True else", f"{TRACES} in_a_transaction"),
    Mutant("traces: bulks without", "src/hourhand/storage/enqueue.py", "options, connection, doing.kept(kept))", "options, connection, kept)", f"{TRACES} every_way"),
    Mutant("traces: attempts unlinked", f"{ENGINE}/settler.py", '            one["trace"] = active.attempt.place.stored', '            one["trail"] = active.attempt.place.stored', f"{TRACES} through_every_attempt"),
    Mutant("traces: attempts of any parent", f"{ENGINE}/tracing.py", "parent = self.first(claim, before) if stored is None else stored", "parent = self.first(claim, before)", f"{TRACES} through_every_attempt"),
    Mutant("traces: end with the step", TRACED, "IF NEW.options ?| ARRAY['trace', 'after'] THEN", "IF false THEN", f"{TRACES} chain_is_one_trace"),
    Mutant("traces: steps unlinked", QUEUE, "CASE WHEN f.onward IS NULL THEN options ELSE options || f.onward::jsonb END", "CASE WHEN f.onward IS NULL THEN options ELSE options END", f"{TRACES} chain_is_one_trace"),
    Mutant("traces: end with exactly once", f"{ENGINE}/delivery.py", "text, remark, active.onward)", "text, remark, None)", f"{TRACES} chain_is_one_trace"),
    Mutant("traces: firings begin anywhere", f"{ENGINE}/tracing.py", 'f"{self._installation}:{claim.run_number}"', 'f"{id(self)}:{claim.run_number}"', f"{TRACES} every_worker_finds"),
    Mutant("traces: installations alike", f"{ENGINE}/tracing.py", 'f"{self._installation}:{claim.run_number}"', 'f"{claim.run_number}"', f"{TRACES} two_installations"),
    Mutant("traces: everybody has the ids of the first", f"{ENGINE}/tracing.py", "self._first = copy.copy(tracer)", "self._first = tracer", "tests/unit/test_tracing.py -k to_no_other"),
    Mutant("traces: what is handed back begins twice", f"{ENGINE}/tracing.py", 'UNSETTLED = ("handed_back", "abandoned")', "UNSETTLED = ()", f"{TRACES} how_an_attempt"),
    Mutant("traces: what is replayed begins twice", f"{ENGINE}/tracing.py", "stored is None and not claim.attempt and not claim.errors,", "stored is None and not claim.attempt,", f"{TRACES} replayed"),
    Mutant("traces: the sampler is not asked", f"{ENGINE}/tracing.py", "int(self._sampled(claim, number))", "1", f"{TRACES} not_sampled"),
    Mutant("traces: the sampler is asked again", f"{ENGINE}/tracing.py", "if before is not None and before.trace == number:", "if False:", f"{TRACES} changes_its_mind"),
    Mutant("traces: a provider breaks runs", f"{ENGINE}/tracing.py", "        except Exception as error:\n            self._failed(error)\n", "        except ZeroDivisionError:\n            raise\n", f"{TRACES} does_not_break"),
    Mutant("traces: a provider breaks enqueues", "src/hourhand/core/tracing.py", "    except Exception:  # a sampler", "    except ZeroDivisionError:  # a sampler", f"{TRACES} does_not_break"),
    Mutant("traces: spans tell secrets", f"{ENGINE}/settler.py", "failure.describe(error, attempt, at, self._node.name, clean)", "failure.describe(error, attempt, at, self._node.name)", f"{TRACES} what_is_secret"),
    Mutant("traces: children stand alone", f"{ENGINE}/child.py", 'carried(read(order["trace"]))', "carried(None)", f"{TRACES} belongs_to_its_attempt"),
    Mutant("traces: spans of children die with them", f"{ENGINE}/child.py", "loop.run_in_executor(None, flush_traces)", "loop.run_in_executor(None, int)", "tests/db/test_traces_api.py -k its_environment_says"),
    Mutant("traces: the last spans are lost", f"{ENGINE}/exporting.py", "    finally:\n        flush_traces()", "    finally:\n        pass", "tests/unit/test_tracing.py -k last_spans"),
    Mutant("traces: an application's provider is replaced", f"{ENGINE}/exporting.py", "        return False  # the application's own", "        pass", "tests/unit/test_tracing.py -k left_alone"),
    Mutant("traces: any text is one", TRACED, "OR given #>> '{}' !~", "OR false AND given #>> '{}' !~", f"{TRACES} refuses_what_is_none"),
    Mutant("traces: no headers on calls", HTTP, "return {**headers, **doing.place.headers}", "return headers", f"{TRACES} headers_of_its_attempt"),
    Mutant("traces: a job's own headers fall", HTTP, 'if doing is None or any(name.lower() in ("traceparent", "tracestate") for name in headers):', "if doing is None:", f"{TRACES} own_headers_stand"),
    Mutant("traces: the API is deaf", f"{REST}/runs.py", "    return None if parent is None else read_headers(", "    return None if True else read_headers(", "tests/db/test_traces_api.py -k brings_its_trace"),
    Mutant("traces: the API tells of every request", f"{REST}/application.py", "        telemetry=_SILENT,\n", "", "tests/db/test_traces_api.py -k stands_between"),
    Mutant("traces: clients are silent", f"{CLIENT}/transport.py", "{**self._headers, **tracing.headers()}", "{**self._headers}", "tests/db/test_traces_api.py -k clients_send"),
    Mutant("traces: loaded by everybody", "src/hourhand/core/tracing.py", "import msgspec\n", "import msgspec\nimport opentelemetry.trace\n", "tests/unit/test_tracing.py -k does_not_load"),
    Mutant("statistics: told twice", f"{ENGINE}/measures.py", "        self._told = self._telling\n", "", "tests/db/test_statistics.py -k told_again"),
    Mutant("statistics: the last of it not told", f"{ENGINE}/maintainer.py", "        with contextlib.suppress(DatabaseUnavailable, StatementRefused):\n            await self.tell()\n        if self._held:", "        if self._held:", "tests/db/test_statistics.py -k when_it_stops"),
    Mutant("statistics: merging loses", STATISTICS, "SELECT slot, queue, 0, sum(succeeded)", "SELECT slot, queue, 0, max(succeeded)", "tests/db/test_statistics.py -k nothing_is_lost"),
    Mutant("statistics: cancelled by nobody", SEEING, "    PERFORM hourhand.tally(in_lane / 4, 'cancelled', 1);\n", "", "tests/db/test_statistics.py -k by_itself"),
    Mutant("statistics: expired by nobody", NODES, "SELECT count(hourhand.tally(queue, 'expired', runs))", "SELECT count(queue)", "tests/db/test_statistics.py -k by_itself"),
    Mutant("statistics: steps that do not know each other", "src/hourhand/storage/migrations/0009_traces.sql", "    INSERT INTO hourhand.follows (run_id, next_id) VALUES (NEW.run_id, number) ON CONFLICT DO NOTHING;\n", "", "tests/db/test_statistics.py -k know_each_other"),
    Mutant("forecast: clocks never change", "src/hourhand/core/forecast.py", "is not None:\n            # The clocks change", "is not None and False:\n            # The clocks change", "tests/unit/test_forecast.py -k each_second"),
    Mutant("forecast: windows are rigid", "src/hourhand/core/forecast.py", "        if flexible < 1:\n", "        if True:\n", "tests/unit/test_forecast.py -k spreads"),
    Mutant("forecast: any day", "src/hourhand/core/forecast.py", "for day in self._days(timezone) if cron_days(days, day))", "for day in self._days(timezone))", "tests/unit/test_forecast.py -k each_second"),
    Mutant("dashboard: forms without a token", f"{DASHBOARD}/pages.py", "    if session is not None:\n        given", "    if False:\n        given", "tests/browser/test_overview.py -k token_is_refused"),
    Mutant("dashboard: roles not asked for", f"{DASHBOARD}/pages.py", "                need_role(request.state.actor, role)\n", "", "tests/browser/test_overview.py -k forges_nothing"),
    Mutant("dashboard: sent to another site", f"{DASHBOARD}/pages.py", 'not to.startswith(("//", "/\\\\"))', "True", "tests/browser/test_access.py -k another_site"),
    Mutant("dashboard: signed in from another site", f"{REST}/gate.py", "            if scope[\"method\"] not in _SAFE:\n                _same_origin(headers)\n            return STRANGER", "            return STRANGER", f"{SECURITY} the_way_in"),
    Mutant("dashboard: pages open to strangers", f"{REST}/gate.py", 'in FREE or scope["path"].startswith(STATIC):', 'in FREE or is_page(scope["path"]):', f"{SECURITY} every_route_is_closed"),
    Mutant("dashboard: scripts of others", f"{DASHBOARD}/pages.py", "script-src 'self'", "script-src 'none'", "tests/browser/test_overview.py -k it_is_alive"),
    Mutant("metrics: labels without bound", f"{ENGINE}/exposition.py", "if len(copies) >= MOST or pair == (OTHER, OTHER):", "if pair == (OTHER, OTHER):", "tests/unit/test_exposition.py -k however_many"),
    Mutant("metrics: the newest have names", f"{ENGINE}/exposition.py", "    for one in measures:\n        pair", "    for one in reversed(list(measures)):\n        pair", "tests/unit/test_exposition.py -k however_many"),
    Mutant("metrics: one series twice", f"{ENGINE}/exposition.py", "if len(copies) >= MOST or pair == (OTHER, OTHER):\n            pair = (OTHER, OTHER)\n        copies.setdefault(pair", "if len(copies) >= MOST:\n            pair = (OTHER, OTHER, OTHER)\n        copies.setdefault(pair", "tests/unit/test_exposition.py -k called_other",
           also=((f"{ENGINE}/exposition.py", "Measured(*pair, one.queue_number)", "Measured(*pair[:2], one.queue_number)"),)),
    Mutant("metrics: told while it changes", f"{ENGINE}/exposition.py", "    copies: dict[tuple[str, str], Measured] = {}\n", "    return list(measures)\n    copies: dict[tuple[str, str], Measured] = {}\n", "tests/unit/test_exposition.py -k is_a_copy"),
    Mutant("metrics: queues without bound", "src/hourhand/surfaces/metrics.py", 'if len(together) < MOST and row["name"] != OTHER:', 'if row["name"] != OTHER:', "tests/unit/test_exposition.py -k many_queues"),
    Mutant("metrics: every start is late", f"{ENGINE}/measures.py", "if first and not claim.crashes", "if not claim.crashes", "tests/unit/test_exposition.py -k first_start"),
    Mutant("metrics: a crash is lateness", f"{ENGINE}/measures.py", "if first and not claim.crashes", "if first", "tests/unit/test_exposition.py -k first_start"),
    Mutant("metrics: refused outcomes uncounted", f"{ENGINE}/completer.py", "            self.refused += len(lost)\n", "", "tests/db/test_metrics.py -k outcome_that_is_refused"),
    Mutant("metrics: refused firings uncounted", f"{ENGINE}/scheduler.py", "            self.refused += refused\n", "", "tests/db/test_metrics.py -k firing_that_is_refused"),
    Mutant("metrics: what is late is missed", FIRING, "    FROM judged WHERE missed GROUP BY schedule_id),", "    FROM judged GROUP BY schedule_id),", "tests/db/test_metrics.py -k what_it_missed"),
    Mutant("metrics: failed statements uncounted", "src/hourhand/storage/trips.py", "            trip.failed += 1\n", "            pass\n", "tests/db/test_metrics.py -k statements_that_fail"),
    Mutant("metrics: none is nothing", "src/hourhand/surfaces/metrics.py", "    counts.update({(row", "    counts = dict({(row", "tests/db/test_metrics.py -k how_the_fleet_is"),
    Mutant("metrics: whoever is silent keeps others out", f"{ENGINE}/metrics_server.py", "            self._asking.discard(me)\n", "", "tests/db/test_metrics.py -k say_nothing"),
    Mutant("logs: lines without their queue", f"{ENGINE}/logs.py", '"queue": claim.queue, ', "", "tests/cluster/test_logs.py -k every_line"),
    Mutant("batches: one failing item fails all", "src/hourhand/core/batch.py", '    if isinstance(answer, list) and len(answer) == count:\n', '    if isinstance(answer, list) and len(answer) == count:\n        if errors := [one for one in answer if isinstance(one, BaseException)]:\n            raise errors[0]\n',
           f"{BATCHES} fails_its_item_alone"),
    Mutant("batches: results of others", f"{ENGINE}/batcher.py", 'zip(members, answers, strict=True), 1)', 'zip(members, reversed(answers), strict=True), 1)',
           f"{BATCHES} its_own_result"),
    Mutant("batches: a list of any length", "src/hourhand/core/batch.py", 'isinstance(answer, list) and len(answer) == count', 'isinstance(answer, list)',
           f"{BATCHES} fits_no_item"),
    Mutant("batches: linger ignored", f"{ENGINE}/batcher.py", 'if len(claims) < most and linger:', 'if False:',
           f"{BATCHES} called_when_full"),
    Mutant("batches: lingers for ever", f"{ENGINE}/bench.py", 'call_later(linger, self._close, collection)', 'call_later(linger + 3600, self._close, collection)',
           f"{BATCHES} does_not_fill"),
    Mutant("batches: full, and still waiting", f"{ENGINE}/bench.py", 'if len(collection.claims) >= collection.most:', 'if False:',
           f"{BATCHES} called_when_full"),
    Mutant("batches: nothing is claimed for them", f"{ENGINE}/claimer.py", 'executor.concurrency + stock + appetite -', 'executor.concurrency + stock -',
           f"{BATCHES} full_batches"),
    Mutant("batches: a queue is emptied for one", f"{ENGINE}/bench.py", 'min(self.most - len(self.claims), _PROOF * len(self.claims))', 'self.most - len(self.claims)',
           f"{BATCHES} rare_in_it"),
    Mutant("batches: many slots for one call", f"{ENGINE}/executor.py", ' - self._batcher.surplus', '',
           f"{BATCHES} hands_back_all_of_a_call"),
    Mutant("batches: what is collected is forgotten", f"{ENGINE}/bench.py", '[*self.deque, *(claim for one in self._held for claim in one.claims)]', '[*self.deque]',
           f"{BATCHES} lost_claims"),
    Mutant("batches: called after it was handed back", f"{ENGINE}/bench.py", '            one.claims.clear()\n', '',
           f"{BATCHES} hands_back_what_it_collects"),
    Mutant("batches: a payload that does not fit harms others", f"{ENGINE}/batcher.py", '                self._executor.forget(one)\n                self._settle_one(one, None, error)\n            else:', '                raise\n            else:',
           f"{BATCHES} does_not_fit_fails_alone"),
    Mutant("batches: cancelled for one, cancelled for all", f"{ENGINE}/batcher.py", 'if isinstance(error, Cancelled) and group.told and one not in group.told:', 'if False:',
           f"{BATCHES} cancelled_for_one"),
    Mutant("batches: one that is cancelled stops all", f"{ENGINE}/batcher.py", 'return len(self.told) == len(self.members) and not', 'return not',
           f"{BATCHES} cancelled_during_the_call"),
    Mutant("batches: cancelled and tried again", f"{ENGINE}/batcher.py", 'if one in group.told and one.cause is None:', 'if False:',
           f"{BATCHES} cancelled_during_the_call"),
    Mutant("batches: all cancelled, and it goes on", f"{ENGINE}/batcher.py", 'and not member.in_thread and self.stop("cancelled")', 'and False',
           f"{BATCHES} all_are_cancelled"),
    Mutant("batches: errors tell the secrets of others", f"{ENGINE}/batcher.py", '[one.claim for one in members])\n                for place', '[members[places[0]].claim])\n                for place',
           f"{BATCHES} nobodys_secrets"),
    Mutant("batches: a timeout of its own for all", f"{ENGINE}/bench.py", '"timeout" in claim.options or "delivery" in claim.options', '"delivery" in claim.options',
           f"{BATCHES} of_its_own"),
    Mutant("batches: suspects together", f"{ENGINE}/bench.py", "return not claim.crashes and", "return", "tests/cluster/test_batches.py -k poison"),
    Mutant("batches: unknown fields pass", "src/hourhand/core/batch.py", "if not self.free_form and (unknown", "if False and (unknown", "tests/unit/test_batch.py -k against_its_type"),
    Mutant("batches: runs unlinked to their call", f"{ENGINE}/batcher.py", "tracing.begin(one, calling)", "tracing.begin(one)", f"{TRACES} of_a_batch"),
    Mutant("logs: handlers' lines name no run", f"{ENGINE}/executor.py", "        RUN.set(active.context)\n", "", "tests/cluster/test_logs.py -k every_line"),
    Mutant("logs: children's lines name no run", f"{ENGINE}/child.py", "    RUN.set(context)\n", "", "tests/cluster/test_logs.py -k every_line"),
    Mutant("api: others' figures", "src/hourhand/surfaces/statistics.py", "        if prefixes is not None:\n            return []", "        if False:\n            return []", f"{SCOPES} not_in_the_figures"),
    Mutant("runs page: a run on two pages", ADMIN_SQL, "AND run_id >= seq AND seq < $8::bigint", "AND run_id >= seq AND seq <= $8::bigint", f"{LISTS} whole_and_in_order"),
    Mutant("runs page: the last of a stretch left out", ADMIN_SQL, "WHERE run_id < $8::bigint AND run_id >= $9::bigint AND ($1::text[] IS NULL OR outcome", "WHERE run_id < $8::bigint AND run_id > $9::bigint AND ($1::text[] IS NULL OR outcome", f"{LISTS} whole_and_in_order"),
    Mutant("runs page: those that came back left out", ADMIN_SQL, "     WHERE run_id <> seq AND run_id < $8 AND run_id >= $9", "     WHERE run_id = seq AND run_id < $8 AND run_id >= $9", f"{LISTS} whole_and_in_order"),
    Mutant("runs page: beyond what was looked at", "src/hourhand/surfaces/run_search.py", "    return max(floors)", "    return min(one for one in floors if one) if any(floors) else 0", f"{LISTS} reads_no_more"),
    Mutant("runs page: a look without end", "src/hourhand/surfaces/run_search.py", "if wanted.narrow else 0", "if False else 0", f"{LISTS} reads_no_more"),
    Mutant("runs page: every run of the queues read", ADMIN_SQL, "       set_config('enable_bitmapscan', 'off', true), set_config('enable_sort', 'off', true);", "       set_config('enable_indexscan', 'off', true);", f"{LISTS} reads_no_more"),
    Mutant("runs page: what ends meanwhile is lost", "src/hourhand/surfaces/run_search.py", """    if wanted.live:
        found |= {row["run_id"]: row for row in await database.fetch("list_live", *arguments)}
    if wanted.ended:
""", """    if wanted.ended:
""", f"{LISTS} ends_while",
           also=(("src/hourhand/surfaces/run_search.py", "    return [found[number]", """    if wanted.live:
        found |= {row["run_id"]: row for row in await database.fetch("list_live", *arguments)}
    return [found[number]"""),)),
    Mutant("runs page: runs of others", ADMIN_SQL, "       AND ($12::integer[] IS NULL OR q.id = ANY ($12))\n", "", f"{LISTS} pages_through_that_part"),
    Mutant("runs page: jobs of others", "src/hourhand/surfaces/verbs.py", 'if row is not None and ACTOR.get().may_touch(row["queue"], row["name"]):', "if row is not None:", f"{LISTS} pages_through_that_part"),
    Mutant("dead letters: a batch at the same time as the one before", ADMIN_SQL, "($13::bigint + row_number() OVER", "(0 * $13::bigint + row_number() OVER", f"{LISTS} one_after_the_other"),
    Mutant("dead letters: at a rate in any order", ADMIN_SQL, "row_number() OVER (ORDER BY died_at, run_id)", "row_number() OVER (ORDER BY run_id)", f"{LISTS} one_after_the_other"),
    Mutant("dead letters: the blocked keep their turn", "src/hourhand/surfaces/dead_letters.py", "(float(rate), first, len(done))", "(float(rate), first, len(done) + len(blocked))", f"{LISTS} one_after_the_other"),
    Mutant("dead letters: a rush for what is past", "src/hourhand/surfaces/dead_letters.py", "max(start or present, present)", "start or present", f"{LISTS} start_that_has_passed"),
    Mutant("dead letters: each batch of a client by itself", "src/hourhand/surfaces/client/runs.py", '                pace["start"] = until + timedelta(seconds=1 / rate)\n', "                pass\n", f"{LISTS} rate_over_the_network"),
    Mutant("dead letters: one is found by reading all", "src/hourhand/surfaces/dead_letters.py", 'await database.fetch("plan_anew")\n            rows = await database.fetch("list_dead"', 'await database.fetch("plan_by_index")\n            rows = await database.fetch("list_dead"', f"{LISTS} dead_letters_reads"),
    Mutant("dead letters: a letter on two pages", LETTERS_SQL, "(died_at, run_id) < ($10, $11::bigint)", "died_at <= $10", f"{LISTS} dead_letters_are_whole"),
    Mutant("dead letters: the latest of others", LETTERS_SQL, "AND ($4::text IS NULL OR $4 = ANY (tags)) AND ($7::integer[] IS NULL OR lane / 4 = ANY ($7))\n      AND", "AND ($4::text IS NULL OR $4 = ANY (tags))\n      AND", f"{LISTS} latest_of_that_part"),
    Mutant("dead letters: groups left out", LETTERS_SQL, "WHERE (d.task, d.error) > (e.task, e.error) AND", "WHERE d.task > e.task AND", f"{LISTS} full_count"),
    Mutant("dead letters: what died after the question", f"{DASHBOARD}/dead_orders.py", 'return _with(form, before=before.isoformat()), Chosen([], {**which.filters, "before": before})', "return form, which", "tests/browser/test_dead.py -k after_a_question and not purged"),
    Mutant("dead letters: a group without a question", f"{DASHBOARD}/dead_orders.py", "if not which.run_ids and not form.confirmed:", "if False:", "tests/browser/test_dead.py -k replayed_after_a_question"),
    Mutant("dead letters: purged without a question", f"{DASHBOARD}/dead_orders.py", "    if not form.confirmed:\n", "    if False:\n", "tests/browser/test_dead.py -k says_how_many"),
    Mutant("dead letters: nothing said is everything", f"{DASHBOARD}/dead_orders.py", 'if not filters and form.get("all") != "yes":', "if False:", "tests/browser/test_dead.py -k says_what_is_meant"),
    Mutant("dead letters: purged by operators", f"{DASHBOARD}/dead_orders.py", '@router.post("/dead/purge", openapi_extra=roles("admin"))', '@router.post("/dead/purge", openapi_extra=roles("operator"))', "tests/browser/test_dead.py -k operator_replays"),
    Mutant("dead letters: edited by operators", f"{DASHBOARD}/dead.py", '/edit", openapi_extra=roles("admin"))', '/edit", openapi_extra=roles("operator"))', "tests/browser/test_dead.py -k operator_replays"),
    Mutant("dead letters: secrets shown", f"{DASHBOARD}/dead.py", "    shown = one.redacted(app.settings.secret_names)\n", "    shown = one\n", "tests/browser/test_dead.py -k secrets_stay"),
    Mutant("dead letters: secrets in messages", f"{DASHBOARD}/dead.py", "    shown = letter.redacted(app_of(request).settings.secret_names)\n", "    shown = letter\n", "tests/browser/test_dead.py -k message_tells"),
    Mutant("dead letters: what was written is lost", f"{DASHBOARD}/dead.py", "        return await _letter(request, one, text, str(error))", "        return await _letter(request, one, None, str(error))", "tests/browser/test_dead.py -k secrets_stay"),
    Mutant("run page: secrets shown", f"{DASHBOARD}/run.py", "    one = whole.redacted(app.settings.secret_names)\n", "    one = whole\n", "tests/browser/test_runs.py -k on_no_page"),
    Mutant("run page: stopped without a question", f"{DASHBOARD}/run.py", 'if one.state == "running" and not form.confirmed:', "if False:", "tests/browser/test_runs.py -k until_it_is_stopped"),
    Mutant("run page: not asked for again", f"{DASHBOARD}/static/hourhand.js", 'if (document.querySelector("[data-eager]")) soon();', "", "tests/browser/test_runs.py -k without_any_event"),
    Mutant("jobs page: others' queues", JOBS_PAGES, "      AND ($12::integer[] IS NULL OR lane / 4 = ANY ($12)) AND", "      AND", f"{PAGES_OF_JOBS} limited_key"),
    Mutant("jobs page: others' names", JOBS_PAGES, " AND ($4::text[] IS NULL OR name ^@ ANY ($4)) LIMIT $5", " LIMIT $5", f"{PAGES_OF_JOBS} limited_key"),
    Mutant("jobs page: a name that is not his in the address", "src/hourhand/surfaces/job_lists.py", 'elif sort == "name" and place is not None and self._actor.scoped:', "elif False:", f"{PAGES_OF_JOBS} limited_key"),
    Mutant("jobs page: shards merged too far", JOBS_PAGES, "WHERE e.id IS NULL OR (h.next_run_at, h.id) <= (e.next_run_at, e.id)", "WHERE true", f"{PAGES_OF_JOBS} once_and_in_order"),
    Mutant("jobs page: jobs of a schedule twice", JOBS_PAGES, "AND (s.place > 1 OR id > $3::bigint)", "", f"{PAGES_OF_JOBS} once_and_in_order"),
    Mutant("jobs page: looks until it has enough", "src/hourhand/surfaces/job_lists.py", "(looked >= _LEAST and Clock.monotonic() - begun > patience)", "False", f"{PAGES_OF_JOBS} says_how_far"),
    Mutant("job page: an account without end", "src/hourhand/surfaces/job_insight.py", "low = instants[-most] if cut else low", "pass", f"{ONE_JOB} account_of_late"),
    Mutant("job page: a calendar without end", JOBS_PAGES, "WHERE job_id = $1 AND scheduled_at >= $2 ORDER BY scheduled_at DESC LIMIT $4)\n        UNION", "WHERE job_id = $1 AND scheduled_at >= $2)\n        UNION", f"{ONE_JOB} very_many"),
    Mutant("job page: a long queue read through", JOBS_PAGES, "ORDER BY seq DESC LIMIT 5000) AS ready", "ORDER BY seq DESC) AS ready", f"{ONE_JOB} long_queue"),
    Mutant("job page: changes of another part", JOBS_PAGES, "  AND ($4::text[] IS NULL OR queue = ANY ($4)) AND", "  AND", f"{ONE_JOB} changes_are_those"),
    Mutant("job page: a preview that hides what is wrong", "src/hourhand/surfaces/job_insight.py", "changed(stored, self._restored(stored, options), self._app.registry)", "changed(stored, {}, self._app.registry)", f"{ONE_JOB} what_a_change_would_do"),
    Mutant("job page: changes by others overwritten", f"{DASHBOARD}/job_edit.py", "if version != str(view.version):", "if False:", "tests/browser/test_job_edit.py -k not_overwritten"),
    Mutant("job page: deleted without a word", f"{DASHBOARD}/job.py", "if not form.confirmed:", "if False:", "tests/browser/test_job.py -k asked_about"),
    Mutant("job page: operators delete", f"{DASHBOARD}/job.py", '@router.post("/jobs/{name}/delete", openapi_extra=roles("admin"))', '@router.post("/jobs/{name}/delete")', "tests/browser/test_job.py -k who_may_look"),
    Mutant("job page: secrets shown", f"{DASHBOARD}/job_parts.py", ".redacted(app.settings.secret_names)", "", "tests/browser/test_job_edit.py -k secrets_stay"),
    Mutant("limits: who is inside is not counted", RULES,
           "room := least(room, gate.slots - (SELECT count(*) FROM hourhand.slots s WHERE s.gate = gate.id));",
           "room := least(room, gate.slots);", "tests/cluster/test_limits.py -k are_exact"),
    Mutant("limits: several decide at once, and numbers are given twice", RULES,
           "    PERFORM pg_advisory_xact_lock('hourhand.gates'::regclass::oid::integer, 0);\n    present :=", "    present :=",
           "tests/cluster/test_limits.py -k are_exact", every=True,
           also=((RULES, "    PRIMARY KEY (gate, number)\n", "    CHECK (number > 0)\n"),)),
    Mutant("limits: a slot is kept for ever", RULES, "WHEN (OLD.stream IS NOT NULL)", "WHEN (false)",
           "tests/db/test_limits.py -k so_many_of_a_task"),
    Mutant("limits: managed queues are claimed from like others", QUEUE, "q.paused_at IS NULL AND NOT q.managed)",
           "q.paused_at IS NULL)", "tests/db/test_limits.py -k is_claimed_plainly"),
    Mutant("limits: a task's limit is not heeded in other queues", f"{ENGINE}/admitter.py",
           "elif claim.gates is None and claim.task in self.rules.tasks:", "elif False:", "tests/db/test_limits.py -k has_no_rules"),
    Mutant("limits: those on probation need no slot", QUEUE, "(q.paused_at IS NOT NULL OR q.managed))", "q.paused_at IS NOT NULL)",
           "tests/db/test_limits.py -k on_probation"),
    Mutant("limits: the next is not let in when one leaves", f"{ENGINE}/claimer.py", "            self._admitter.freed(gates)\n", "",
           "tests/db/test_limits.py -k no_word_is_needed"),
    Mutant("limits: nobody hears of a dead holder's slots", NODES,
           "        UNION ALL (SELECT 'g' FROM lost WHERE stream IS NOT NULL LIMIT 1)", "", "tests/db/test_limits.py -k dead_holder"),
    Mutant("limits: tokens are not taken", RULES, "tokens = hourhand.tokens(g, present) - taken", "tokens = hourhand.tokens(g, present)",
           "tests/db/test_limits.py -k bucket"),
    Mutant("limits: a bucket without a bottom", RULES, "SELECT least(g.burst, g.tokens + g.rate", "SELECT greatest(0, g.tokens + g.rate",
           "tests/cluster/test_limits.py -k rate_holds"),
    Mutant("limits: a turn does not end", RULES, "UPDATE hourhand.streams s SET turn = nextval('hourhand.turns') WHERE s.id = stream.id;",
           "NULL;", "tests/db/test_limits.py -k take_turns"),
    Mutant("limits: deadlines are forgotten", RULES, "ORDER BY p.due, p.seq LIMIT room", "ORDER BY p.seq LIMIT room",
           "tests/db/test_limits.py -k earliest"),
    Mutant("limits: those in line keep the old rules", RULES,
           "IF hourhand.shape(old.settings) IS DISTINCT FROM hourhand.shape(new.settings) THEN", "IF false THEN",
           "tests/db/test_limits.py -k new_limit"),
    Mutant("limits: what the code no longer says stays", f"{ENGINE}/admitter.py", "if rule or (scope, name) in before:", "if rule:",
           "tests/db/test_limits.py -k no_longer"),
    Mutant("limits: an urgent run waits behind the stock", f"{ENGINE}/claimer.py", "await self._deliver(few, first=True)",
           "await self._deliver(few)", "tests/db/test_limits.py -k urgent_run"),
    Mutant("limits: an urgent run waits until the stock is low", f"{ENGINE}/claimer.py",
           "return await self._claim_urgent() + apart > 0", "return apart > 0", "tests/db/test_limits.py -k urgent_run"),
    Mutant("limits: a share only of the whole", f"{ENGINE}/claimer.py", "((place + 0.5) / len(members), index, claim)",
           "(0.0, index, claim)", "tests/unit/test_limits.py -k share_of_any_part"),
    Mutant("limits: weights are not heeded", f"{ENGINE}/worker.py", "FairShare(options.weights, strict=options.strict)",
           "FairShare(strict=options.strict)", "tests/cluster/test_limits.py -k get_their_shares"),
    Mutant("limits: strict is fair", f"{ENGINE}/worker.py", "FairShare(options.weights, strict=options.strict)",
           "FairShare(options.weights)", "tests/cluster/test_limits.py -k strictly"),
    Mutant("depth: a full queue takes more", RULES, "    IF over <= 0 THEN", "    IF over <= 1000 THEN",
           "tests/db/test_depth.py -k refuses_by_every"),
    Mutant("depth: the plain way in does not ask", QUEUE,
           "WHERE NOT EXISTS (SELECT FROM hourhand.queues WHERE id = $1 / 4 AND max_depth IS NOT NULL)", "WHERE $1 > 0",
           "tests/db/test_depth.py -k refuses_by_every"),
    Mutant("depth: many come in unasked", "src/hourhand/storage/enqueue.py", 'if taken["bounded"] and not later:', "if False:",
           "tests/db/test_depth.py -k all_or_none"),
    Mutant("depth: the newest go", RULES, "ORDER BY lane DESC, seq LIMIT over),", "ORDER BY lane DESC, seq DESC LIMIT over),",
           "tests/db/test_depth.py -k oldest_go"),
    Mutant("depth: a chain breaks where its queue is full", RULES, "    PERFORM set_config('hourhand_wake.passes', 'on', true);\n", "",
           "tests/db/test_depth.py -k next_step"),
    Mutant("depth: a stream does not wait", "src/hourhand/storage/enqueue.py", "if Clock.monotonic() + pause > deadline:", "if True:",
           "tests/db/test_depth.py -k waits_for_room"),
    Mutant("holds: claimed by older rules", QUEUE, "          AND (SELECT version = $5 FROM hourhand.rulebook WHERE single)", "", f"{HOLDS} older_rules"),
    Mutant("holds: set aside, claimed by older rules", QUEUE, "          AND (SELECT version = $6 FROM hourhand.rulebook WHERE single)\n", "", f"{HOLDS} older_rules"),
    Mutant("holds: held runs claimed", QUEUE, " AND (crashes > 0) = $5 AND stream IS NULL AND hold IS NULL\n", " AND (crashes > 0) = $5 AND stream IS NULL\n", f"{HOLDS} older_rules"),
    Mutant("holds: rules do not change by them", RULES, "CREATE TRIGGER turn_page AFTER INSERT OR UPDATE OR DELETE ON hourhand.holds", "CREATE TRIGGER turn_page AFTER TRUNCATE ON hourhand.holds", f"{HOLDS} older_rules"),
    Mutant("holds: a release goes past a run that is put aside", QUEUE, "WHERE id = ANY ($4::integer[]) FOR KEY SHARE)", "WHERE id = ANY ($4::integer[]))", f"{HOLDS} just_put_aside"),
    Mutant("holds: a run set aside under a hold that is gone", QUEUE, "task, payload, key, tags, options, errors, kept.id\n", "task, payload, key, tags, options, errors, why.hold\n", f"{HOLDS} just_put_aside"),
    Mutant("holds: what is released goes to the end", ADMISSION, "    SELECT seq, run_id, job_id, scheduled_at, enqueued_at, expires_at, lane, attempt, crashes,\n           task, payload, key, tags, options, errors\n    FROM returned", "    SELECT nextval('hourhand.run_numbers'), run_id, job_id, scheduled_at, enqueued_at, expires_at, lane, attempt, crashes,\n           task, payload, key, tags, options, errors\n    FROM returned", f"{HOLDS} just_put_aside"),
    Mutant("holds: what a release left behind stays", f"{ENGINE}/maintainer.py", "        await self._return_released()\n", "", f"{HOLDS} left_behind"),
    Mutant("holds: a release that forgets runs on probation", ADMISSION, "ARRAY(SELECT ctid FROM free WHERE crashes > 0)", "ARRAY(SELECT ctid FROM free WHERE crashes > 99)", f"{HOLDS} left_behind"),
    Mutant("holds: others' runs are released too", ADMISSION, " AND NOT EXISTS (SELECT FROM hourhand.holds h WHERE h.id = held.hold) LIMIT $1)", " LIMIT $1)", f"{HOLDS} no_others"),
    Mutant("holds: released, and nothing returned", "src/hourhand/surfaces/holds.py", '        await self._in_parts(database, "return_released")\n', "", f"{HOLDS} just_put_aside"),
    Mutant("holds: a worker's stock goes on", f"{ENGINE}/claimer.py", "if changed and self._admitter.rules.holds:", "if False:", f"{HOLDS} waits_in_a_worker"),
    Mutant("holds: claimed and not put aside", f"{ENGINE}/admitter.py", "            if self.hold_on(claim) is not None:", "            if False:", f"{HOLDS} held_and_let_go"),
    Mutant("holds: those who are held take tokens", "src/hourhand/surfaces/holds.py", '            await self._in_parts(database, "hold_streams", number)\n', "            pass\n", f"{HOLDS} nobodys_token"),
    Mutant("holds: others' queues held", "src/hourhand/surfaces/holds.py", '        actor.need(queue, None, f"queue {queue!r}")\n', "", f"{HOLDS} whose_part"),
    Mutant("holds: secrets shown", "src/hourhand/surfaces/holds.py", "if field is not None and is_secret(field, self._settings().secret_names):", "if False:", f"{HOLDS} cannot_be_held"),
    Mutant("rules: an order that the code overrides", RULES, "GENERATED ALWAYS AS (declared || ordered) STORED", "GENERATED ALWAYS AS (ordered || declared) STORED", "tests/db/test_rules.py -k stands_above"),
    Mutant("rules: parts that were not given are lost", "src/hourhand/surfaces/limits.py", "before, {**before, **parts})", "before, parts)", "tests/db/test_rules.py -k not_given"),
    Mutant("rules: who waits his turn is called parked", "src/hourhand/storage/sql/admin.sql", "SELECT CASE WHEN stream IS NULL THEN 'parked' ELSE 'ready' END, run_id", "SELECT 'parked', run_id", "tests/db/test_rules.py -k says_for_what"),
    Mutant("rules: who waits his turn is counted as parked", STATISTICS, "coalesce(ready.runs, 0) + coalesce(streamed.runs, 0)", "coalesce(ready.runs, 0)", "tests/db/test_rules.py -k says_for_what"),
    Mutant("rules: who waits his turn is called unknown", "src/hourhand/storage/sql/admin.sql", "WHERE p.crashes = 0 AND p.stream IS NULL AND p.hold IS NULL GROUP BY", "WHERE p.crashes = 0 GROUP BY", "tests/db/test_rules.py -k says_for_what"),
    Mutant("rules: all that waits is read for a list", "src/hourhand/storage/sql/admin.sql", "WHERE stream IS NULL AND run_id < $8 AND", "WHERE coalesce(stream, 0) = 0 AND run_id < $8 AND", "tests/db/test_rules.py -k cost_no_more"),
]  # fmt: skip


def main() -> int:
    wanted = sys.argv[1:]
    console = Console()
    table = Table("mutant", "test", "", box=None)
    survivors = 0
    for mutant in MUTANTS:
        if wanted and not any(word in mutant.name for word in wanted):
            continue
        with tempfile.TemporaryDirectory(prefix="hourhand-mutant-") as directory:
            copy = Path(directory) / "project"
            ignored = shutil.ignore_patterns(".venv", ".git", ".*_cache", "__pycache__", ".hypothesis")
            shutil.copytree(PROJECT, copy, ignore=ignored)
            for name, old, new in ((mutant.file, mutant.old, mutant.new), *mutant.also):
                file = copy / name
                text = file.read_text()
                assert old in text, f"{mutant.name}: {name} no longer has the text it breaks"
                file.write_text(text.replace(old, new, -1 if mutant.every else 1))
            console.print(f"[dim]{mutant.name} …[/]")
            done = subprocess.run(
                [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *mutant.test.split(maxsplit=2)],
                cwd=copy, env={**os.environ, "PYTHONPATH": str(copy / "src"), "HOURHAND_VERIFY_SECONDS": str(mutant.seconds)}, capture_output=True, text=True, check=False,
            )  # fmt: skip
        # Exit code 1 is a failed test; anything else means the test did not run.
        caught = done.returncode == 1
        survivors += not caught
        verdict = "[green]caught[/]" if caught else f"[red]SURVIVED (pytest exit {done.returncode})[/]"
        console.print(f"  {verdict}")
        table.add_row(mutant.name, mutant.test.rpartition("/")[2], verdict)
    console.print(table)
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main())
