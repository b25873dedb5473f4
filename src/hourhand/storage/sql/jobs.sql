-- Jobs: adding and changing them, looking at them, and what is on record of them.

-- name: put_job
SELECT job_id, outcome FROM hourhand.put_job($1::text::jsonb, $2::boolean, $3::integer);

-- name: reserve_schedule
SELECT hourhand.reserve_schedule($1::text::jsonb, $2::bigint);

-- name: find_job
-- One job, by name or by number, as JSON: every driver carries that alike.
SELECT row_to_json(found)::text FROM (
    SELECT j.*, s.kind, s.expression, s.timezone, s.dst, s.anchor, s.next_run_at, q.name AS queue, c.fired, c.last_at,
           clock_timestamp() AS present
    FROM hourhand.jobs j JOIN hourhand.schedules s ON s.id = j.schedule_id JOIN hourhand.queues q ON q.id = j.lane / 4
    LEFT JOIN hourhand.counters c ON c.job_id = j.id
    WHERE j.id = coalesce((SELECT i.id FROM hourhand.jobs i WHERE i.id = $2::bigint),
                          (SELECT n.id FROM hourhand.jobs n WHERE n.name = $1::text))) AS found;

-- name: job_name
SELECT name FROM hourhand.jobs WHERE id = $1;

-- name: lock_job
-- Nobody else changes it until this transaction ends.
SELECT version FROM hourhand.jobs WHERE id = $1::bigint FOR UPDATE;

-- name: find_jobs
SELECT row_to_json(found)::text FROM (
    SELECT j.*, s.kind, s.expression, s.timezone, s.dst, s.anchor, s.next_run_at, q.name AS queue, c.fired, c.last_at,
           clock_timestamp() AS present
    FROM hourhand.jobs j JOIN hourhand.schedules s ON s.id = j.schedule_id JOIN hourhand.queues q ON q.id = j.lane / 4
    LEFT JOIN hourhand.counters c ON c.job_id = j.id
    WHERE j.name = ANY ($1::text[])) AS found;

-- name: list_jobs
SELECT row_to_json(found)::text FROM (
    SELECT j.*, s.kind, s.expression, s.timezone, s.dst, s.anchor, s.next_run_at, q.name AS queue, c.fired, c.last_at,
           clock_timestamp() AS present
    FROM hourhand.jobs j JOIN hourhand.schedules s ON s.id = j.schedule_id JOIN hourhand.queues q ON q.id = j.lane / 4
    LEFT JOIN hourhand.counters c ON c.job_id = j.id
    WHERE ($1::text IS NULL OR j.name > $1) AND ($2::text IS NULL OR j.task = $2) AND ($3::integer IS NULL OR j.lane / 4 = $3)
      AND ($4::text IS NULL OR $4 = ANY (j.tags)) AND ($5::text IS NULL OR strpos(lower(j.name), lower($5)) > 0)
      AND ($6::text IS NULL OR $6 = CASE WHEN j.paused_at IS NOT NULL THEN 'paused'
                                         WHEN s.next_run_at IS NULL OR j.end_at <= s.next_run_at OR c.fired >= j.max_runs THEN 'finished'
                                         ELSE 'active' END)
      AND ($8::text[] IS NULL OR q.name = ANY ($8)) AND ($9::text[] IS NULL OR j.name ^@ ANY ($9))
    ORDER BY j.name LIMIT $7) AS found;

-- name: pause_job
SELECT hourhand.pause_job($1::bigint);

-- name: resume_job
SELECT resumed, started, left_out FROM hourhand.resume_job($1::bigint, $2::timestamptz[], $3::text);

-- name: delete_job
SELECT hourhand.delete_job($1::bigint);

-- name: trigger_job
SELECT run_id, outcome FROM hourhand.trigger_job($1::bigint, $2::text::jsonb, $3::boolean);

-- name: backfill_job
SELECT run_id, at FROM hourhand.backfill_job($1::bigint, $2::timestamptz[], $3::float8, $4::integer, $5::boolean);

-- name: backfilled
-- What was asked for afterwards, in a period.
SELECT d.scheduled_at, d.run_id FROM hourhand.decisions d
WHERE d.job_id = $1 AND d.outcome = 'backfilled' AND d.scheduled_at >= $2 AND d.scheduled_at < $3 ORDER BY d.scheduled_at;

-- name: pending_backfill
-- Runs of a period that were asked for afterwards and have not started.
SELECT run_id FROM hourhand.ready WHERE job_id = $1 AND scheduled_at >= $2 AND scheduled_at < $3 AND options->>'by_hand' = 'backfilled'
UNION ALL
SELECT run_id FROM hourhand.delayed WHERE job_id = $1 AND scheduled_at >= $2 AND scheduled_at < $3 AND options->>'by_hand' = 'backfilled'
UNION ALL
SELECT run_id FROM hourhand.parked WHERE job_id = $1 AND scheduled_at >= $2 AND scheduled_at < $3 AND options->>'by_hand' = 'backfilled';

-- name: forget_backfill
-- A backfill that was called off may be asked for again.
DELETE FROM hourhand.decisions WHERE job_id = $1 AND outcome = 'backfilled' AND run_id = ANY ($2::bigint[]);

-- name: settled_instants
-- For which instants of a period a job has a run that succeeded, or that still may.
SELECT scheduled_at FROM hourhand.runs WHERE job_id = $1 AND scheduled_at >= $2 AND scheduled_at < $3 AND outcome = 'succeeded'
UNION SELECT scheduled_at FROM hourhand.ready WHERE job_id = $1 AND scheduled_at >= $2 AND scheduled_at < $3 AND options->>'by_hand' IS NULL
UNION SELECT scheduled_at FROM hourhand.delayed WHERE job_id = $1 AND scheduled_at >= $2 AND scheduled_at < $3 AND options->>'by_hand' IS NULL
UNION SELECT scheduled_at FROM hourhand.parked WHERE job_id = $1 AND scheduled_at >= $2 AND scheduled_at < $3 AND options->>'by_hand' IS NULL
UNION SELECT scheduled_at FROM hourhand.running WHERE job_id = $1 AND scheduled_at >= $2 AND scheduled_at < $3 AND options->>'by_hand' IS NULL;

-- name: ended_runs
-- Of these runs, for these instants, how many have ended, and how; only those of job $3, unless it is NULL.
SELECT count(*) FILTER (WHERE how = 'succeeded') AS succeeded, count(*) AS ended FROM (
    SELECT h.outcome::text AS how FROM unnest($1::bigint[], $2::timestamptz[]) AS mine (run_id, at)
    CROSS JOIN LATERAL (SELECT outcome FROM hourhand.runs WHERE run_id = mine.run_id AND scheduled_at = mine.at
                          AND ($3::bigint IS NULL OR job_id = $3) LIMIT 1) AS h
    UNION ALL SELECT 'dead' FROM hourhand.dead WHERE run_id = ANY ($1) AND ($3::bigint IS NULL OR job_id = $3)) AS ends;

-- name: reserve_jobs
-- Numbers for a COPY, and the shard that each belongs to.
SELECT number, (hashint8(number) & 255)::smallint AS shard
FROM (SELECT nextval('hourhand.job_numbers') AS number FROM generate_series(1, $1::integer)) AS taken;

-- name: taken_names
SELECT name FROM hourhand.jobs WHERE name = ANY ($1::text[]);

-- name: queues_of_jobs
SELECT j.name, q.name AS queue FROM hourhand.jobs j JOIN hourhand.queues q ON q.id = j.lane / 4 WHERE j.name = ANY ($1::text[]);

-- name: make_schedules
-- Rows for schedules that may be there already, in the order given: sorted, so that two who do this at once do not wait
-- for each other in a ring.
INSERT INTO hourhand.schedules (shard, kind, expression, timezone, dst, anchor, next_run_at)
SELECT * FROM unnest($1::smallint[], $2::text[], $3::text[], $4::text[], $5::text[], $6::timestamptz[], $7::timestamptz[])
    AS given (shard, kind, expression, timezone, dst, anchor, next_run_at)
ON CONFLICT DO NOTHING
RETURNING id;

-- name: schedule_numbers
-- Held against removal until the jobs that point at them are in.
SELECT s.id FROM unnest($1::smallint[], $2::text[], $3::text[], $4::text[], $5::text[], $6::timestamptz[])
    WITH ORDINALITY AS given (shard, kind, expression, timezone, dst, anchor, place)
CROSS JOIN LATERAL (
    SELECT id FROM hourhand.schedules s
    WHERE s.shard = given.shard AND s.kind = given.kind AND s.expression = given.expression AND s.timezone = given.timezone
      AND s.dst = given.dst AND coalesce(s.anchor, '-infinity') = coalesce(given.anchor, '-infinity') LIMIT 1 FOR KEY SHARE) AS s
ORDER BY given.place;

-- name: mark_loose
INSERT INTO hourhand.loose (schedule_id) SELECT * FROM unnest($1::bigint[]);

-- name: late_jobs
-- Jobs that came by COPY to a schedule whose instant is fired by now: they start by themselves.
SELECT count(one.run_id) FROM unnest($1::bigint[]) AS fresh (id)
CROSS JOIN LATERAL (SELECT * FROM hourhand.jobs WHERE id = fresh.id LIMIT 1) AS j
CROSS JOIN LATERAL (SELECT anchor FROM hourhand.schedules WHERE id = j.schedule_id AND next_run_at IS NULL LIMIT 1) AS s
CROSS JOIN LATERAL hourhand.fire_one(j.id, s.anchor, s.anchor, j.lane, j.task, j.payload, j.tags, j.options, j.overlap, j.max_runs) AS one;

-- name: bump_schedules
UPDATE hourhand.schedules SET revision = revision + 1 WHERE id = ANY ($1::bigint[]);

-- name: job_runs
-- A job's latest runs: those that have not ended first, then by the index of the history.
SELECT * FROM (
    (SELECT 'ready' AS state, run_id, job_id, task, lane, attempt, scheduled_at, NULL::timestamptz AS due_at,
            NULL::timestamptz AS started_at, NULL::timestamptz AS finished_at, NULL::integer AS node, key, tags, NULL::text AS reason
     FROM hourhand.ready WHERE job_id = $1 AND ($3::timestamptz IS NULL OR (scheduled_at, run_id) < ($3, $4::bigint)) ORDER BY scheduled_at DESC, run_id DESC LIMIT $2)
    UNION ALL
    (SELECT 'delayed', run_id, job_id, task, lane, attempt, scheduled_at, nullif(due_at, 'infinity'), NULL, NULL, NULL, key, tags,
            CASE WHEN due_at = 'infinity' THEN 'waits for the run before it to end' END
     FROM hourhand.delayed WHERE job_id = $1 AND ($3::timestamptz IS NULL OR (scheduled_at, run_id) < ($3, $4::bigint)) ORDER BY scheduled_at DESC, run_id DESC LIMIT $2)
    UNION ALL
    (SELECT CASE WHEN stream IS NULL THEN 'parked' ELSE 'ready' END, run_id, job_id, task, lane, attempt, scheduled_at, NULL, NULL, NULL, NULL,
            key, tags, coalesce(hourhand.kept_back(stream, hold), CASE WHEN crashes > 0 THEN 'on probation: its worker died' ELSE 'no worker knows this task' END)
     FROM hourhand.parked WHERE job_id = $1 AND ($3::timestamptz IS NULL OR (scheduled_at, run_id) < ($3, $4::bigint)) ORDER BY scheduled_at DESC, run_id DESC LIMIT $2)
    UNION ALL
    (SELECT 'running', run_id, job_id, task, lane, attempt + 1, scheduled_at, NULL, claimed_at, NULL, worker_id, key, tags, NULL
     FROM hourhand.running WHERE job_id = $1 AND ($3::timestamptz IS NULL OR (scheduled_at, run_id) < ($3, $4::bigint)) ORDER BY scheduled_at DESC, run_id DESC LIMIT $2)
    UNION ALL
    (SELECT 'dead', run_id, job_id, task, lane, attempt, scheduled_at, NULL, started_at, died_at, worker_id, key, tags, reason
     FROM hourhand.dead WHERE job_id = $1 AND ($3::timestamptz IS NULL OR (scheduled_at, run_id) < ($3, $4::bigint)) ORDER BY scheduled_at DESC, run_id DESC LIMIT $2)
    UNION ALL
    (SELECT outcome::text, run_id, job_id, task, lane, attempt, scheduled_at, NULL, started_at, finished_at, worker_id, key, tags, reason
     FROM hourhand.runs WHERE job_id = $1 AND ($3::timestamptz IS NULL OR (scheduled_at, run_id) < ($3, $4::bigint)) ORDER BY scheduled_at DESC, run_id DESC LIMIT $2)
) AS found
ORDER BY scheduled_at DESC, run_id DESC LIMIT $2;

-- name: job_spans
-- What a job was, before its last changes, in a period.
SELECT since, until, schedule_id, paused, kind, expression, timezone, dst, anchor, start_at, end_at FROM hourhand.spans
WHERE job_id = $1 AND until > $2 AND since < $3 ORDER BY since;

-- name: job_traces
-- Every run of a job in a period; for those that wait in a lane, how many stand before them (counted up to a thousand).
SELECT run_id, scheduled_at, outcome::text AS state, started_at, finished_at, worker_id AS node, reason, NULL::timestamptz AS due_at, NULL::bigint AS ahead,
       options->>'by_hand' AS by_hand
FROM hourhand.runs WHERE job_id = $1 AND scheduled_at >= $2 AND scheduled_at < $3
UNION ALL
SELECT run_id, scheduled_at, 'dead', started_at, died_at, worker_id, reason, NULL, NULL, options->>'by_hand'
FROM hourhand.dead WHERE job_id = $1 AND scheduled_at >= $2 AND scheduled_at < $3
UNION ALL
SELECT run_id, scheduled_at, 'running', claimed_at, NULL, worker_id, NULL, NULL, NULL, options->>'by_hand'
FROM hourhand.running WHERE job_id = $1 AND scheduled_at >= $2 AND scheduled_at < $3
UNION ALL
SELECT run_id, scheduled_at, CASE WHEN stream IS NULL THEN 'parked' ELSE 'ready' END, NULL, NULL, NULL,
       coalesce(hourhand.kept_back(stream, hold), CASE WHEN crashes > 0 THEN 'on probation: its worker died' ELSE 'no worker knows its task' END), NULL,
       CASE WHEN stream IS NOT NULL THEN (
           SELECT count(*) FROM (SELECT FROM hourhand.parked a WHERE a.stream = p.stream AND (a.due, a.seq) < (p.due, p.seq) LIMIT 1000) AS before_it) END,
       options->>'by_hand'
FROM hourhand.parked p WHERE job_id = $1 AND scheduled_at >= $2 AND scheduled_at < $3
UNION ALL
SELECT run_id, scheduled_at, 'delayed', NULL, NULL, NULL, CASE WHEN due_at = 'infinity' THEN 'waits for the run before it to end' END,
       nullif(due_at, 'infinity'), NULL, options->>'by_hand'
FROM hourhand.delayed WHERE job_id = $1 AND scheduled_at >= $2 AND scheduled_at < $3
UNION ALL
SELECT run_id, scheduled_at, 'ready', NULL, NULL, NULL, NULL, NULL,
       (SELECT count(*) FROM (SELECT FROM hourhand.ready a WHERE a.lane = r.lane AND a.seq < r.seq LIMIT 1000) AS before_it), options->>'by_hand'
FROM hourhand.ready r WHERE job_id = $1 AND scheduled_at >= $2 AND scheduled_at < $3;

-- name: first_known
-- The first instant from $2 on for which something of a job is on record.
SELECT least(
    (SELECT min(scheduled_at) FROM hourhand.runs WHERE job_id = $1 AND scheduled_at >= $2),
    (SELECT min(scheduled_at) FROM hourhand.dead WHERE job_id = $1 AND scheduled_at >= $2),
    (SELECT min(scheduled_at) FROM hourhand.running WHERE job_id = $1 AND scheduled_at >= $2),
    (SELECT min(scheduled_at) FROM hourhand.delayed WHERE job_id = $1 AND scheduled_at >= $2),
    (SELECT min(scheduled_at) FROM hourhand.parked WHERE job_id = $1 AND scheduled_at >= $2),
    (SELECT min(scheduled_at) FROM hourhand.ready WHERE job_id = $1 AND scheduled_at >= $2),
    (SELECT min(scheduled_at) FROM hourhand.decisions WHERE job_id = $1 AND scheduled_at >= $2 AND outcome IN ('skipped', 'coalesced')));

-- name: job_decisions
SELECT scheduled_at, until, decided_at, run_id, count, outcome, reason FROM hourhand.decisions
WHERE job_id = $1 AND until >= $2 AND scheduled_at < $3 ORDER BY scheduled_at;

-- name: ledger
-- The firings of these schedules in a period, and the last one before it, which may reach into it. Whose the firing before was
-- tells why one came late.
SELECT f.schedule_id, f.scheduled_at, f.until, f.fired_at, f.epoch, f.count, f.node, f.runs, f.late, n.name AS node_name
FROM (SELECT * FROM hourhand.firings WHERE schedule_id = ANY ($1::bigint[]) AND scheduled_at >= $2 AND scheduled_at < $3
      UNION ALL
      SELECT last.* FROM unnest($1::bigint[]) AS mine (id)
      CROSS JOIN LATERAL (SELECT * FROM hourhand.firings WHERE schedule_id = mine.id AND scheduled_at < $2
                          ORDER BY scheduled_at DESC LIMIT 1) AS last) AS f
LEFT JOIN hourhand.nodes n ON n.id = f.node
ORDER BY f.schedule_id, f.scheduled_at;

-- name: schedulers_alive
SELECT count(*) FROM hourhand.nodes
WHERE kind = 'scheduler' AND stopped_at IS NULL AND died_at IS NULL AND lease_until > clock_timestamp();

-- name: node_ends
-- When these nodes ended, if they have.
SELECT id, name, stopped_at, died_at FROM hourhand.nodes WHERE id = ANY ($1::integer[]);

-- name: oldest_history
-- The first day whose runs are all still there.
SELECT min(to_date(right(c.relname, 8), 'YYYYMMDD'))::timestamp AT TIME ZONE 'UTC' FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
WHERE i.inhparent = 'hourhand.runs'::regclass AND c.relname ~ '_\d{8}$';

-- name: deployment
-- Which declarations of an app hold, whether processes of that version live or ever have, and whether these ($2) held before.
WITH current AS MATERIALIZED (
    SELECT d.fingerprint, d.complete, d.lived FROM hourhand.deployments d WHERE d.app = $1 AND d.applied_at IS NOT NULL
    ORDER BY d.applied_at DESC LIMIT 1)
SELECT coalesce((SELECT fingerprint FROM current), '') AS current,
       EXISTS (SELECT FROM hourhand.deployments d WHERE d.app = $1 AND d.fingerprint = $2 AND d.applied_at IS NOT NULL) AS seen,
       EXISTS (SELECT FROM current WHERE complete) AS complete,
       EXISTS (SELECT FROM current WHERE lived) AS lived,
       EXISTS (SELECT FROM hourhand.nodes n
               WHERE n.stopped_at IS NULL AND n.died_at IS NULL AND n.lease_until > clock_timestamp()
                 AND n.info->>'app' = $1 AND n.info->>'declarations' = (SELECT fingerprint FROM current)) AS lives;

-- name: deployment_lives
UPDATE hourhand.deployments SET lived = true WHERE app = $1 AND fingerprint = $2 AND NOT lived;

-- name: lock_deployment
SELECT pg_advisory_xact_lock(hashtext('hourhand.deployments'), hashtext($1));

-- name: record_deployment
INSERT INTO hourhand.deployments AS d (app, fingerprint, applied_at, complete) VALUES ($1, $2, clock_timestamp(), $3)
ON CONFLICT (app, fingerprint) DO UPDATE SET applied_at = clock_timestamp(), complete = excluded.complete, lived = false;

-- name: undeclared_jobs
SELECT id, name FROM hourhand.jobs WHERE declared_by = $1 AND name <> ALL ($2::text[]) ORDER BY name;
