-- What people ask and order: looking, cancelling, replaying, pausing.

-- name: find_run
-- One run, wherever it is. Each branch is served by an index: `ready` by its lanes and, for runs
-- that came back, its partial index; `running` by the nodes that could hold it.
SELECT 'ready' AS state, r.run_id, r.job_id, r.task, r.lane, r.attempt, r.scheduled_at, r.enqueued_at, NULL::timestamptz AS due_at,
       NULL::timestamptz AS started_at, NULL::timestamptz AS finished_at, r.expires_at, NULL::integer AS node, r.key, r.tags,
       r.payload, r.options, r.errors, NULL::jsonb AS result, NULL::jsonb AS progress, NULL::text AS reason
FROM hourhand.queues q CROSS JOIN generate_series(0, 3) AS class
CROSS JOIN LATERAL (SELECT * FROM hourhand.ready WHERE lane = q.id * 4 + class AND seq = $1 AND run_id = $1 LIMIT 1) AS r
UNION ALL
SELECT 'ready', run_id, job_id, task, lane, attempt, scheduled_at, enqueued_at, NULL, NULL, NULL, expires_at, NULL, key, tags,
       payload, options, errors, NULL, NULL, NULL
FROM hourhand.ready WHERE run_id = $1 AND run_id <> seq
UNION ALL
SELECT 'delayed', run_id, job_id, task, lane, attempt, scheduled_at, enqueued_at, nullif(due_at, 'infinity'), NULL, NULL, expires_at,
       NULL, key, tags, payload, options, errors, NULL, NULL, CASE WHEN due_at = 'infinity' THEN 'waits for the run before it to end' END
FROM hourhand.delayed WHERE run_id = $1
UNION ALL
SELECT 'parked', run_id, job_id, task, lane, attempt, scheduled_at, enqueued_at, NULL, NULL, NULL, expires_at, NULL, key, tags,
       payload, options, errors, NULL, NULL,
       CASE WHEN crashes > 0 THEN 'on probation: its worker died'
            WHEN task = 'command' THEN 'no worker that serves its queue starts programs: HOURHAND_ALLOW_COMMANDS has to name them'
            ELSE 'no worker that serves its queue knows this task' END
FROM hourhand.parked WHERE run_id = $1
UNION ALL
SELECT 'running', r.run_id, r.job_id, r.task, r.lane, r.attempt + 1, r.scheduled_at, r.enqueued_at, NULL, r.claimed_at, NULL, r.expires_at,
       r.worker_id, r.key, r.tags, r.payload, r.options, r.errors, NULL,
       (SELECT data FROM hourhand.progress p WHERE p.run_id = r.run_id),
       (SELECT 'asked to stop' || coalesce(': ' || c.reason, '') FROM hourhand.cancels c WHERE c.run_id = r.run_id)
FROM hourhand.nodes n
CROSS JOIN LATERAL (SELECT * FROM hourhand.running WHERE worker_id = n.id AND run_id = $1 LIMIT 1) AS r
UNION ALL
SELECT 'dead', run_id, job_id, task, lane, attempt, scheduled_at, enqueued_at, NULL, started_at, died_at, NULL, worker_id, key, tags,
       payload, options, errors, NULL, NULL, reason
FROM hourhand.dead WHERE run_id = $1
UNION ALL
SELECT outcome::text, run_id, job_id, task, lane, attempt, scheduled_at, enqueued_at, NULL, started_at, finished_at, NULL, worker_id, key, tags,
       payload, options, errors, result, NULL, reason
FROM hourhand.runs WHERE run_id = $1;

-- name: list_runs
-- The newest runs that match, over all states; history is read a few days back at a time by `since`. A page begins below run $8;
-- $9 and $10 are what the caller may see: queues, and beginnings of jobs' names.
SELECT * FROM (
    (SELECT 'ready' AS state, run_id, job_id, task, lane, attempt, scheduled_at, NULL::timestamptz AS due_at, NULL::timestamptz AS started_at,
            NULL::timestamptz AS finished_at, NULL::integer AS node, key, tags, NULL::text AS reason
     FROM hourhand.ready
     WHERE ($1::text[] IS NULL OR 'ready' = ANY ($1)) AND ($2::text IS NULL OR task = $2) AND ($3::integer IS NULL OR lane / 4 = $3)
       AND ($4::text IS NULL OR $4 = ANY (tags)) AND ($5::text IS NULL OR key = $5) AND scheduled_at >= $6 AND ($8::bigint IS NULL OR run_id < $8)
       AND ($9::integer[] IS NULL OR lane / 4 = ANY ($9))
       AND ($10::text[] IS NULL OR EXISTS (SELECT FROM hourhand.jobs j WHERE j.id = job_id AND j.name ^@ ANY ($10)))
     ORDER BY run_id DESC LIMIT $7)
    UNION ALL
    (SELECT 'delayed', run_id, job_id, task, lane, attempt, scheduled_at, nullif(due_at, 'infinity'), NULL, NULL, NULL, key, tags,
            CASE WHEN due_at = 'infinity' THEN 'waits for the run before it to end' END
     FROM hourhand.delayed
     WHERE ($1::text[] IS NULL OR 'delayed' = ANY ($1)) AND ($2::text IS NULL OR task = $2) AND ($3::integer IS NULL OR lane / 4 = $3)
       AND ($4::text IS NULL OR $4 = ANY (tags)) AND ($5::text IS NULL OR key = $5) AND scheduled_at >= $6 AND ($8::bigint IS NULL OR run_id < $8)
       AND ($9::integer[] IS NULL OR lane / 4 = ANY ($9))
       AND ($10::text[] IS NULL OR EXISTS (SELECT FROM hourhand.jobs j WHERE j.id = job_id AND j.name ^@ ANY ($10)))
     ORDER BY run_id DESC LIMIT $7)
    UNION ALL
    (SELECT 'parked', run_id, job_id, task, lane, attempt, scheduled_at, NULL, NULL, NULL, NULL, key, tags,
            CASE WHEN crashes > 0 THEN 'on probation: its worker died' ELSE 'no worker knows this task' END
     FROM hourhand.parked
     WHERE ($1::text[] IS NULL OR 'parked' = ANY ($1)) AND ($2::text IS NULL OR task = $2) AND ($3::integer IS NULL OR lane / 4 = $3)
       AND ($4::text IS NULL OR $4 = ANY (tags)) AND ($5::text IS NULL OR key = $5) AND scheduled_at >= $6 AND ($8::bigint IS NULL OR run_id < $8)
       AND ($9::integer[] IS NULL OR lane / 4 = ANY ($9))
       AND ($10::text[] IS NULL OR EXISTS (SELECT FROM hourhand.jobs j WHERE j.id = job_id AND j.name ^@ ANY ($10)))
     ORDER BY run_id DESC LIMIT $7)
    UNION ALL
    (SELECT 'running', run_id, job_id, task, lane, attempt + 1, scheduled_at, NULL, claimed_at, NULL, worker_id, key, tags, NULL
     FROM hourhand.running
     WHERE ($1::text[] IS NULL OR 'running' = ANY ($1)) AND ($2::text IS NULL OR task = $2) AND ($3::integer IS NULL OR lane / 4 = $3)
       AND ($4::text IS NULL OR $4 = ANY (tags)) AND ($5::text IS NULL OR key = $5) AND scheduled_at >= $6 AND ($8::bigint IS NULL OR run_id < $8)
       AND ($9::integer[] IS NULL OR lane / 4 = ANY ($9))
       AND ($10::text[] IS NULL OR EXISTS (SELECT FROM hourhand.jobs j WHERE j.id = job_id AND j.name ^@ ANY ($10)))
     ORDER BY run_id DESC LIMIT $7)
    UNION ALL
    (SELECT 'dead', run_id, job_id, task, lane, attempt, scheduled_at, NULL, started_at, died_at, worker_id, key, tags, reason
     FROM hourhand.dead
     WHERE ($1::text[] IS NULL OR 'dead' = ANY ($1)) AND ($2::text IS NULL OR task = $2) AND ($3::integer IS NULL OR lane / 4 = $3)
       AND ($4::text IS NULL OR $4 = ANY (tags)) AND ($5::text IS NULL OR key = $5) AND scheduled_at >= $6 AND ($8::bigint IS NULL OR run_id < $8)
       AND ($9::integer[] IS NULL OR lane / 4 = ANY ($9))
       AND ($10::text[] IS NULL OR EXISTS (SELECT FROM hourhand.jobs j WHERE j.id = job_id AND j.name ^@ ANY ($10)))
     ORDER BY run_id DESC LIMIT $7)
    UNION ALL
    (SELECT outcome::text, run_id, job_id, task, lane, attempt, scheduled_at, NULL, started_at, finished_at, worker_id, key, tags, reason
     FROM hourhand.runs
     WHERE ($1::text[] IS NULL OR $1 && '{succeeded,dead,cancelled,skipped,expired,lost}') AND ($1::text[] IS NULL OR outcome::text = ANY ($1)) AND ($2::text IS NULL OR task = $2) AND ($3::integer IS NULL OR lane / 4 = $3)
       AND ($4::text IS NULL OR $4 = ANY (tags)) AND ($5::text IS NULL OR key = $5) AND scheduled_at >= $6 AND ($8::bigint IS NULL OR run_id < $8)
       AND ($9::integer[] IS NULL OR lane / 4 = ANY ($9))
       AND ($10::text[] IS NULL OR EXISTS (SELECT FROM hourhand.jobs j WHERE j.id = job_id AND j.name ^@ ANY ($10)))
     ORDER BY run_id DESC LIMIT $7)
) AS found
ORDER BY run_id DESC LIMIT $7;

-- name: list_lines
-- What run $1, which is for the instant $2, said after its line $3.
SELECT number, at, attempt, level, text, fields FROM hourhand.lines
WHERE run_id = $1 AND scheduled_at = $2 AND number > $3 ORDER BY number LIMIT $4;

-- name: cancel_pending
SELECT hourhand.cancel_pending($1, $2);

-- name: cancel_running
SELECT hourhand.ask_to_stop($1, $2);

-- name: list_dead
SELECT run_id, job_id, task, lane, attempt, scheduled_at, enqueued_at, started_at, died_at AS finished_at, worker_id AS node, key, tags,
       payload, options, errors, reason
FROM hourhand.dead
WHERE ($1::bigint[] IS NULL OR run_id = ANY ($1)) AND ($2::text IS NULL OR task = $2) AND ($3::integer IS NULL OR lane / 4 = $3)
  AND ($4::text IS NULL OR $4 = ANY (tags)) AND ($5::text IS NULL OR errors->-1->>'type' = $5)
  AND ($6::timestamptz IS NULL OR died_at >= $6) AND ($7::timestamptz IS NULL OR died_at < $7)
  AND ($8::integer[] IS NULL OR lane / 4 = ANY ($8))
  AND ($9::text[] IS NULL OR EXISTS (SELECT FROM hourhand.jobs j WHERE j.id = job_id AND j.name ^@ ANY ($9)))
  AND ($11::timestamptz IS NULL OR (died_at, run_id) < ($11, $12::bigint))
ORDER BY died_at DESC, run_id DESC LIMIT $10;

-- name: count_dead
SELECT count(*) FROM hourhand.dead
WHERE ($1::bigint[] IS NULL OR run_id = ANY ($1)) AND ($2::text IS NULL OR task = $2) AND ($3::integer IS NULL OR lane / 4 = $3)
  AND ($4::text IS NULL OR $4 = ANY (tags)) AND ($5::text IS NULL OR errors->-1->>'type' = $5)
  AND ($6::timestamptz IS NULL OR died_at >= $6) AND ($7::timestamptz IS NULL OR died_at < $7)
  AND ($8::integer[] IS NULL OR lane / 4 = ANY ($8))
  AND ($9::text[] IS NULL OR EXISTS (SELECT FROM hourhand.jobs j WHERE j.id = job_id AND j.name ^@ ANY ($9)));

-- name: edit_dead
UPDATE hourhand.dead SET payload = $2::text::jsonb WHERE run_id = $1 RETURNING run_id;

-- name: replay_dead
-- Back into the lane with fresh attempts, under the same id. A keyed run takes its key again;
-- if another run holds it, the dead one stays where it is.
WITH wanted AS MATERIALIZED (
    SELECT d.run_id, d.task, d.key FROM hourhand.dead d
    WHERE ($1::bigint[] IS NULL OR run_id = ANY ($1)) AND ($2::text IS NULL OR task = $2) AND ($3::integer IS NULL OR lane / 4 = $3)
      AND ($4::text IS NULL OR $4 = ANY (tags)) AND ($5::text IS NULL OR errors->-1->>'type' = $5)
      AND ($6::timestamptz IS NULL OR died_at >= $6) AND ($7::timestamptz IS NULL OR died_at < $7)
  AND ($8::integer[] IS NULL OR lane / 4 = ANY ($8))
  AND ($9::text[] IS NULL OR EXISTS (SELECT FROM hourhand.jobs j WHERE j.id = job_id AND j.name ^@ ANY ($9)))
    ORDER BY died_at, run_id LIMIT $10 FOR UPDATE SKIP LOCKED),
keyed AS (
    INSERT INTO hourhand.keys AS k (task, key, run_id)
    SELECT DISTINCT ON (task, key) task, key, run_id FROM wanted WHERE key IS NOT NULL ORDER BY task, key, run_id
    ON CONFLICT (task, key) DO UPDATE SET run_id = excluded.run_id, expires_at = 'infinity'
    WHERE k.run_id = excluded.run_id OR k.expires_at <= clock_timestamp()
    RETURNING run_id),
forgiven AS (
    DELETE FROM hourhand.cancels WHERE run_id IN (SELECT run_id FROM wanted)),
revived AS (
    DELETE FROM hourhand.dead d USING wanted w
    WHERE d.run_id = w.run_id AND (w.key IS NULL OR w.run_id IN (SELECT run_id FROM keyed))
    RETURNING d.*),
back AS (
    INSERT INTO hourhand.ready (seq, run_id, job_id, scheduled_at, enqueued_at, lane, attempt, crashes, task, payload, key, tags,
                                options, errors)
    SELECT nextval('hourhand.run_numbers'), run_id, job_id, scheduled_at, enqueued_at, lane, 0, 0, task, payload, key, tags,
           options, errors
    FROM (SELECT * FROM revived ORDER BY died_at, run_id) AS revived
    RETURNING run_id, lane, seq),
told AS (
    SELECT count(pg_notify('hourhand', format('r:%s:%s', lane, first)))
    FROM (SELECT lane, min(seq) AS first FROM back GROUP BY lane) AS lanes)
SELECT w.run_id, w.run_id IN (SELECT run_id FROM back) AS replayed FROM wanted w, told ORDER BY w.run_id;

-- name: purge_dead
-- Out of the dead letters. The outcome and the errors stay in history; the payload goes.
WITH purged AS (
    DELETE FROM hourhand.dead WHERE ctid = ANY (ARRAY(
        SELECT ctid FROM hourhand.dead
        WHERE ($1::bigint[] IS NULL OR run_id = ANY ($1)) AND ($2::text IS NULL OR task = $2) AND ($3::integer IS NULL OR lane / 4 = $3)
          AND ($4::text IS NULL OR $4 = ANY (tags)) AND ($5::text IS NULL OR errors->-1->>'type' = $5)
          AND ($6::timestamptz IS NULL OR died_at >= $6) AND ($7::timestamptz IS NULL OR died_at < $7)
  AND ($8::integer[] IS NULL OR lane / 4 = ANY ($8))
  AND ($9::text[] IS NULL OR EXISTS (SELECT FROM hourhand.jobs j WHERE j.id = job_id AND j.name ^@ ANY ($9)))
        ORDER BY died_at LIMIT $10 FOR UPDATE SKIP LOCKED))
    RETURNING *)
INSERT INTO hourhand.runs (run_id, job_id, scheduled_at, enqueued_at, started_at, finished_at, worker_id, lane, outcome, attempt,
                           task, key, tags, options, errors, reason)
SELECT run_id, job_id, scheduled_at, enqueued_at, started_at, died_at, worker_id, lane, 'dead', attempt,
       task, key, tags, options, errors, coalesce(reason || '; ', '') || 'purged from the dead letters'
FROM purged
RETURNING run_id;

-- name: repeat_run
-- A new run like one that ended, with the same payload and options.
WITH old AS (
    SELECT task, payload, lane, tags, options - '{unique_for,overlap}'::text[] AS options FROM hourhand.runs WHERE run_id = $1 AND payload IS NOT NULL),
fresh AS (
    INSERT INTO hourhand.ready (seq, run_id, scheduled_at, lane, task, payload, tags, options)
    SELECT number, number, clock_timestamp(), lane, task, payload, tags, nullif(options, '{}')
    FROM old CROSS JOIN LATERAL (SELECT nextval('hourhand.run_numbers') AS number OFFSET 0) AS numbers
    RETURNING run_id, lane, seq)
SELECT run_id, hourhand.wake(lane, seq) FROM fresh;

-- name: hurry_run
-- A delayed run becomes due now.
UPDATE hourhand.delayed SET due_at = clock_timestamp() WHERE run_id = $1 AND due_at < 'infinity' RETURNING run_id, pg_notify('hourhand', 'd');

-- name: list_queues
WITH ready AS (SELECT lane / 4 AS queue, count(*) AS runs FROM hourhand.ready GROUP BY 1),
delayed AS (SELECT lane / 4 AS queue, count(*) AS runs FROM hourhand.delayed GROUP BY 1),
parked AS (SELECT lane / 4 AS queue, count(*) AS runs FROM hourhand.parked GROUP BY 1),
running AS (SELECT lane / 4 AS queue, count(*) AS runs FROM hourhand.running GROUP BY 1),
dead AS (SELECT lane / 4 AS queue, count(*) AS runs FROM hourhand.dead GROUP BY 1)
SELECT q.id, q.name, q.paused_at, coalesce(ready.runs, 0) AS ready, coalesce(delayed.runs, 0) AS delayed,
       coalesce(parked.runs, 0) AS parked, coalesce(running.runs, 0) AS running, coalesce(dead.runs, 0) AS dead,
       (SELECT extract(epoch FROM clock_timestamp() - min(first))::float8 FROM (
           SELECT (SELECT scheduled_at FROM hourhand.ready r WHERE r.lane = q.id * 4 + class ORDER BY seq LIMIT 1) AS first
           FROM generate_series(0, 3) AS class) AS heads) AS oldest_seconds
FROM hourhand.queues q
LEFT JOIN ready ON ready.queue = q.id LEFT JOIN delayed ON delayed.queue = q.id LEFT JOIN parked ON parked.queue = q.id
LEFT JOIN running ON running.queue = q.id LEFT JOIN dead ON dead.queue = q.id
ORDER BY q.name;

-- name: queue_by_name
SELECT id FROM hourhand.queues WHERE name = $1;

-- name: queue_names
SELECT id, name FROM hourhand.queues;

-- name: lock_queue
-- Since when it is paused; nobody else changes that until this transaction ends.
SELECT paused_at FROM hourhand.queues WHERE name = $1 FOR UPDATE;

-- name: pause_queue
UPDATE hourhand.queues SET paused_at = coalesce(paused_at, clock_timestamp()) WHERE name = $1
RETURNING paused_at, pg_notify('hourhand', 'q');

-- name: resume_queue
UPDATE hourhand.queues SET paused_at = NULL WHERE name = $1 RETURNING name, pg_notify('hourhand', 'q');

-- name: list_nodes
SELECT n.id, n.kind, n.name, n.started_at, n.lease_until, n.session, n.skew, n.info, n.stopped_at, n.died_at,
       (SELECT count(*) FROM hourhand.running r WHERE r.worker_id = n.id) AS running,
       (SELECT count(*) FROM hourhand.shards s WHERE s.owner = n.id) AS shards,
       CASE WHEN n.died_at IS NOT NULL THEN 'dead' WHEN n.stopped_at IS NOT NULL THEN 'stopped'
            WHEN n.lease_until < clock_timestamp() THEN 'late' ELSE 'alive' END AS state
FROM hourhand.nodes n
WHERE $1 OR n.stopped_at IS NULL AND n.died_at IS NULL
ORDER BY n.id DESC LIMIT 200;

-- name: parked_tasks
SELECT p.task, q.name AS queue, count(*) AS runs, min(p.parked_at) AS since
FROM hourhand.parked p JOIN hourhand.queues q ON q.id = p.lane / 4 WHERE p.crashes = 0 GROUP BY p.task, q.name ORDER BY p.task, q.name;

-- name: stuck_runs
-- Runs whose worker lives, but which go on although their timeout is over, or for ten times as long as runs of their task
-- take at most (as a rule: the mean and three deviations, of twenty or more). Below a minute nothing is called stuck.
SELECT * FROM (
    SELECT r.run_id, r.task, r.worker_id AS node, extract(epoch FROM clock_timestamp() - coalesce(r.begun_at, r.claimed_at))::float8 AS seconds,
           coalesce((r.options->>'timeout')::float8, t.timeout) AS timeout,
           CASE WHEN t.weight >= 20 THEN t.mean + 3 * sqrt(t.variance) END AS usual
    FROM hourhand.nodes n
    JOIN hourhand.running r ON r.worker_id = n.id
    LEFT JOIN hourhand.tasks t ON t.name = r.task
    WHERE n.stopped_at IS NULL AND n.died_at IS NULL AND n.lease_until > clock_timestamp()) AS going
WHERE seconds > least(timeout + 60, CASE WHEN usual IS NOT NULL THEN greatest(60, 10 * usual) END)
ORDER BY seconds DESC LIMIT $1;

-- name: lost_runs
-- At-most-once runs that were cut off within the last $1 seconds, the latest first; at most $2.
SELECT run_id, task, reason, finished_at FROM hourhand.runs
WHERE outcome = 'lost' AND finished_at > clock_timestamp() - make_interval(secs => $1) ORDER BY finished_at DESC LIMIT $2;

-- name: runs_on_probation
SELECT (SELECT count(*) FROM hourhand.parked WHERE crashes > 0) + (SELECT count(*) FROM hourhand.running WHERE crashes > 0);

-- name: isolation
SELECT current_setting('transaction_isolation');

-- name: present
SELECT clock_timestamp();

-- name: server_facts
-- An ordinary user sees little of others' sessions in pg_stat_activity; their number is no secret.
SELECT current_setting('server_version') AS version, current_setting('server_version_num')::integer AS version_number,
       extract(epoch FROM clock_timestamp())::float8 AS now, pg_backend_pid() AS backend,
       current_setting('max_connections')::integer AS max_connections,
       (SELECT sum(numbackends)::integer FROM pg_stat_database) AS connections,
       pg_has_role('pg_read_all_stats', 'USAGE') AS sees_all,
       current_setting('fsync') AS fsync, current_setting('synchronous_commit') AS synchronous_commit;

-- name: long_transactions
-- Transactions that keep vacuum from removing dead rows.
SELECT pid, coalesce(application_name, '') AS application, state, extract(epoch FROM clock_timestamp() - xact_start)::float8 AS seconds,
       left(query, 80) AS query
FROM pg_stat_activity
WHERE xact_start < clock_timestamp() - make_interval(secs => $1) AND backend_type = 'client backend' AND pid <> pg_backend_pid()
  AND (backend_xmin IS NOT NULL OR backend_xid IS NOT NULL)
ORDER BY xact_start LIMIT 20;

-- name: default_partition_rows
-- Of late: runs for days long past, as a backfill makes them, belong there.
SELECT count(*) FROM (SELECT FROM hourhand.runs_default WHERE scheduled_at > now() - interval '7 days' LIMIT 1000) AS strays;

-- name: trigger_facts
-- Whether anything is to be fired, and whether it is: schedules that are overdue are counted up to a thousand.
SELECT EXISTS (SELECT FROM hourhand.jobs) AS jobs,
       (SELECT count(*) FROM hourhand.shards WHERE owner IS NULL) AS unowned,
       (SELECT count(*) FROM (
           SELECT FROM hourhand.shards s CROSS JOIN LATERAL (
               SELECT FROM hourhand.schedules c
               WHERE c.shard = s.shard AND c.next_run_at < clock_timestamp() - make_interval(secs => $1) LIMIT 1000) AS late
           LIMIT 1000) AS overdue) AS overdue;
