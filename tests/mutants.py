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

MUTANTS = [
    Mutant("no claim token in any transition", QUEUE, " AND token = mine.token", "",
           "tests/cluster/test_crash.py -k zombies_outcome", every=True),
    Mutant("no lease check", NODES, "n.lease_until < clock_timestamp()) AS silent", "false) AS silent",
           "tests/cluster/test_crash.py -k paused_past_its_lease"),
    Mutant("heartbeat of the dead accepted", NODES, "WHERE id = $1 AND died_at IS NULL\nRETURNING", "WHERE id = $1\nRETURNING",
           "tests/cluster/test_crash.py -k paused_past_its_lease"),
    Mutant("claims of the dead accepted", QUEUE, "n.id = $4 AND n.died_at IS NULL)))", "n.id = $4)))",
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
    Mutant("no unique key", DELIVERY, "duplicate := run_id <> number;", "duplicate := false; run_id := number;",
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
    Mutant("http: jobs are not vetted", "src/hourhand/surfaces/jobs.py", "        if definition is not None and definition.vet is not None and not mentions(payload):", "        if False:", f"{HTTP_TEST} -k looked_up_when"),
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
    Mutant("api: open below the open path", f"{REST}/gate.py", '        if scope["path"] in FREE:\n', '        if scope["path"].startswith(FREE):\n', f"{SECURITY} every_route_is_closed"),
    Mutant("api: open to options", f"{REST}/gate.py", '        if scope["path"] in FREE:\n', '        if scope["path"] in FREE or scope["method"] == "OPTIONS":\n', f"{SECURITY} every_route_is_closed"),
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
    Mutant("api: no token of the session", f"{REST}/gate.py", "if not _equal(given, session.csrf):", "if False:", f"{SECURITY} session_of_a_browser"),
    Mutant("api: sessions do not end", "src/hourhand/storage/sql/access.sql", "DELETE FROM hourhand.sessions WHERE hash = $1 RETURNING", "DELETE FROM hourhand.sessions WHERE hash = $1 AND false RETURNING", f"{SECURITY} session_of_a_browser"),
    Mutant("api: sessions outlive their key", f"{REST}/keyring.py", 'if view is not None and view.state == "active":', "if view is not None:", f"{SECURITY} ends_with_its_key"),
    Mutant("api: sessions outlive their time", "src/hourhand/storage/sql/access.sql", " AND s.expires_at > clock_timestamp()", "", f"{SECURITY} ends_with_its_key"),
    Mutant("api: sessions last longer than their key", "src/hourhand/storage/sql/access.sql", "least(expires_at, clock_timestamp() + $4::interval)", "clock_timestamp() + $4::interval", f"{SECURITY} no_longer_than"),
    Mutant("api: sessions of a key that was replaced", "src/hourhand/storage/sql/access.sql", "AND k.hash <> $3)", "AND k.hash <> $3 AND false)", f"{SECURITY} environments_key"),
    Mutant("api: streams outlive their key", f"{REST}/events.py", "if not await request.app.state.still_valid(request):", "if False:", f"{SECURITY} streams_end"),
    Mutant("api: for every site", f"{REST}/gate.py", '    "X-Frame-Options": "DENY",\n', '    "X-Frame-Options": "DENY",\n    "Access-Control-Allow-Origin": "*",\n', f"{SECURITY} say_nothing"),
    Mutant("api: what serves it", f"{REST}/server.py", "server_header=False", "server_header=True", f"{SECURITY} say_nothing"),
    Mutant("api: others' jobs", "src/hourhand/surfaces/jobs.py", "if not ACTOR.get().may_touch(stored.definition.queue, stored.definition.name):", "if False:", f"{SCOPES} others_are_not"),
    Mutant("api: others' runs", "src/hourhand/surfaces/verbs.py", "if not actor.may_touch(run.queue, job):", "if False:", f"{SCOPES} others_are_not"),
    Mutant("api: others' jobs in lists", "src/hourhand/storage/sql/jobs.sql", "OR q.name = ANY ($8)) AND ($9::text[] IS NULL OR j.name ^@ ANY ($9))", "OR true) AND ($9::text[] IS NULL OR true)", f"{SCOPES} lists_and_counts"),
    Mutant("api: others' runs in lists", "src/hourhand/surfaces/verbs.py", "return numbers, None if actor.prefixes is None else list(actor.prefixes)", "return None, None", f"{SCOPES} lists_and_counts"),
    Mutant("api: others' dead letters replayed and purged", "src/hourhand/surfaces/verbs.py", "return numbers, None if actor.prefixes is None else list(actor.prefixes)", "return None, None", f"{SCOPES} only_ones_own_is_meant"),
    Mutant("api: others' queues in lists", "src/hourhand/surfaces/verbs.py", 'if actor.may_touch(row["name"], None)', "if True", f"{SCOPES} lists_and_counts"),
    Mutant("api: whether there is such a queue", "src/hourhand/surfaces/verbs.py", "if number is None or (actor.queues is not None and name not in actor.queues):", "if number is None:", f"{SCOPES} lists_and_counts"),
    Mutant("api: jobs anywhere", "src/hourhand/surfaces/jobs.py", '        self._actor.need(job.queue, job.name, f"job {job.name!r} in queue {job.queue!r}")\n        if', "        if", f"{SCOPES} made_or_moved"),
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
    Mutant("api: nothing before it", "src/hourhand/surfaces/jobs.py", "subject=job.job_id, name=job.name, queue=job.queue, before=was, after=now)", "subject=job.job_id, name=job.name, queue=job.queue, after=now)", f"{AUDIT} leaves_one_entry"),
    Mutant("api: the record can be changed", "src/hourhand/storage/migrations/0006_surfaces.sql", "BEFORE UPDATE OR DELETE OR TRUNCATE ON", "BEFORE DELETE OR TRUNCATE ON", f"{AUDIT} only_be_added"),
    Mutant("api: the record can be emptied", "src/hourhand/storage/migrations/0006_surfaces.sql", "BEFORE UPDATE OR DELETE OR TRUNCATE ON", "BEFORE UPDATE OR DELETE ON", f"{AUDIT} only_be_added"),
    Mutant("api: secrets of jobs shown", f"{REST}/jobs.py", "wire.job_to_wire(view.redacted(app_of(request).settings.secret_names))", "wire.job_to_wire(view)", f"{AUDIT} shown_nowhere"),
    Mutant("api: secrets of runs shown", f"{REST}/runs.py", "wire.run_to_wire(view.redacted(app_of(request).settings.secret_names))", "wire.run_to_wire(view)", f"{AUDIT} shown_nowhere"),
    Mutant("api: secrets on record", "src/hourhand/surfaces/auditing.py", "payload_for_record(view.redacted(names).payload, sealer)", "payload_for_record(view.payload, sealer)", f"{AUDIT} shown_nowhere"),
    Mutant("api: a secret shown on demand", "src/hourhand/surfaces/jobs.py", '            made["secret"] = (*marks, *made["secret"])\n', "            pass\n", f"{AUDIT} saying_that_it_is_none"),
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
    Mutant("api: everybody waits for a proof", "src/hourhand/surfaces/jobs.py", "found = await asyncio.to_thread(list, islice(lines, most + 1))", "found = list(islice(lines, most + 1))", f"{LIMITS} keep_nobody"),
    Mutant("api: everybody waits for a preview", f"{REST}/fleet.py", "await asyncio.to_thread(list, islice(one.firings(start), count))", "list(islice(one.firings(start), count))", f"{LIMITS} keep_nobody"),
    Mutant("api: steps unread", "src/hourhand/surfaces/wire.py", "        encode_untyped(task, payload)\n", "", f"{LIMITS} json_or_the_database"),
    Mutant("api: zones from anywhere", "src/hourhand/core/zones.py", "    if name not in zone_names():", "    if False:", f"{LIMITS} zone_that_is_none"),
    Mutant("api: instants from anywhere", f"{REST}/fleet.py", "    check(after=after)\n", "", f"{LIMITS} question_out_of"),
    Mutant("api: not what the document says", f"{REST}/access.py", '"role": actor.role,', '"roles": [actor.role],', "tests/db/test_api_schema.py -k generated"),
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
