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
SELECT CASE WHEN stream IS NULL THEN 'parked' ELSE 'ready' END, run_id, job_id, task, lane, attempt, scheduled_at, enqueued_at, NULL, NULL, NULL,
       expires_at, NULL, key, tags, payload, options, errors, NULL, NULL,
       CASE WHEN stream IS NOT NULL OR hold IS NOT NULL THEN hourhand.kept_back(stream, hold)
            WHEN crashes > 0 THEN 'on probation: its worker died'
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

-- name: list_live
-- The newest runs that have not ended, or gave up, and match: with numbers from $9 up to but not $8. In `ready` those at their
-- first place are found lane by lane, the others by the partial index. $12 and $13 are what the caller may see: queues, and
-- beginnings of jobs' names.
SELECT found.*, errors->-1->>'type' AS error FROM (
    (SELECT 'ready' AS state, r.run_id, r.job_id, r.task, r.lane, r.attempt, r.scheduled_at, NULL::timestamptz AS due_at,
            NULL::timestamptz AS started_at, NULL::timestamptz AS finished_at, NULL::integer AS node, r.key, r.tags, NULL::text AS reason, r.errors
     FROM hourhand.queues q CROSS JOIN generate_series(0, 3) AS class
     CROSS JOIN LATERAL (
         SELECT * FROM hourhand.ready
         WHERE lane = q.id * 4 + class AND run_id >= seq AND seq < $8::bigint AND seq >= $9::bigint
           AND ($2::text IS NULL OR task = $2) AND ($4::text IS NULL OR $4 = ANY (tags)) AND ($5::text IS NULL OR key = $5) AND scheduled_at >= $6
           AND ($10::bigint IS NULL OR job_id = $10)
           AND ($13::text[] IS NULL OR EXISTS (SELECT FROM hourhand.jobs j WHERE j.id = job_id AND j.name ^@ ANY ($13)))
         ORDER BY seq DESC LIMIT $7) AS r
     WHERE ($1::text[] IS NULL OR 'ready' = ANY ($1)) AND $11::integer IS NULL AND ($3::integer IS NULL OR q.id = $3)
       AND ($12::integer[] IS NULL OR q.id = ANY ($12))
     ORDER BY r.run_id DESC LIMIT $7)
    UNION ALL
    (SELECT 'ready', run_id, job_id, task, lane, attempt, scheduled_at, NULL, NULL, NULL, NULL, key, tags, NULL, errors
     FROM hourhand.ready
     WHERE run_id <> seq AND run_id < $8 AND run_id >= $9 AND ($1::text[] IS NULL OR 'ready' = ANY ($1)) AND $11::integer IS NULL
       AND ($2::text IS NULL OR task = $2) AND ($3::integer IS NULL OR lane / 4 = $3) AND ($4::text IS NULL OR $4 = ANY (tags))
       AND ($5::text IS NULL OR key = $5) AND scheduled_at >= $6 AND ($10::bigint IS NULL OR job_id = $10)
       AND ($12::integer[] IS NULL OR lane / 4 = ANY ($12))
       AND ($13::text[] IS NULL OR EXISTS (SELECT FROM hourhand.jobs j WHERE j.id = job_id AND j.name ^@ ANY ($13)))
     ORDER BY run_id DESC LIMIT $7)
    UNION ALL
    (SELECT 'running', run_id, job_id, task, lane, attempt + 1, scheduled_at, NULL, claimed_at, NULL, worker_id, key, tags, NULL, errors
     FROM hourhand.running
     WHERE run_id < $8 AND run_id >= $9 AND ($1::text[] IS NULL OR 'running' = ANY ($1)) AND ($11::integer IS NULL OR worker_id = $11)
       AND ($2::text IS NULL OR task = $2) AND ($3::integer IS NULL OR lane / 4 = $3) AND ($4::text IS NULL OR $4 = ANY (tags))
       AND ($5::text IS NULL OR key = $5) AND scheduled_at >= $6 AND ($10::bigint IS NULL OR job_id = $10)
       AND ($12::integer[] IS NULL OR lane / 4 = ANY ($12))
       AND ($13::text[] IS NULL OR EXISTS (SELECT FROM hourhand.jobs j WHERE j.id = job_id AND j.name ^@ ANY ($13)))
     ORDER BY run_id DESC LIMIT $7)
    UNION ALL
    (SELECT 'parked', run_id, job_id, task, lane, attempt, scheduled_at, NULL, NULL, NULL, NULL, key, tags,
            CASE WHEN hold IS NOT NULL THEN hourhand.kept_back(NULL, hold) WHEN crashes > 0 THEN 'on probation: its worker died'
                 ELSE 'no worker knows this task' END, errors
     FROM hourhand.parked
     WHERE stream IS NULL AND run_id < $8 AND run_id >= $9 AND ($1::text[] IS NULL OR 'parked' = ANY ($1))
       AND $11::integer IS NULL AND ($2::text IS NULL OR task = $2) AND ($3::integer IS NULL OR lane / 4 = $3)
       AND ($4::text IS NULL OR $4 = ANY (tags)) AND ($5::text IS NULL OR key = $5) AND scheduled_at >= $6
       AND ($10::bigint IS NULL OR job_id = $10) AND ($12::integer[] IS NULL OR lane / 4 = ANY ($12))
       AND ($13::text[] IS NULL OR EXISTS (SELECT FROM hourhand.jobs j WHERE j.id = job_id AND j.name ^@ ANY ($13)))
     ORDER BY run_id DESC LIMIT $7)
    UNION ALL
    (SELECT 'ready', run_id, job_id, task, lane, attempt, scheduled_at, NULL, NULL, NULL, NULL, key, tags, hourhand.kept_back(stream, NULL), errors
     FROM hourhand.parked
     WHERE stream IS NOT NULL AND run_id < $8 AND run_id >= $9 AND ($1::text[] IS NULL OR 'ready' = ANY ($1))
       AND $11::integer IS NULL AND ($2::text IS NULL OR task = $2) AND ($3::integer IS NULL OR lane / 4 = $3)
       AND ($4::text IS NULL OR $4 = ANY (tags)) AND ($5::text IS NULL OR key = $5) AND scheduled_at >= $6
       AND ($10::bigint IS NULL OR job_id = $10) AND ($12::integer[] IS NULL OR lane / 4 = ANY ($12))
       AND ($13::text[] IS NULL OR EXISTS (SELECT FROM hourhand.jobs j WHERE j.id = job_id AND j.name ^@ ANY ($13)))
     ORDER BY run_id DESC LIMIT $7)
    UNION ALL
    (SELECT * FROM (
         SELECT 'delayed'::text AS state, run_id, job_id, task, lane, attempt, scheduled_at, nullif(due_at, 'infinity') AS due_at,
                NULL::timestamptz AS started_at, NULL::timestamptz AS finished_at, NULL::integer AS node, key, tags,
                CASE WHEN due_at = 'infinity' THEN 'waits for the run before it to end' END, errors
         FROM hourhand.delayed
         UNION ALL
         SELECT 'dead', run_id, job_id, task, lane, attempt, scheduled_at, NULL, started_at, died_at, worker_id, key, tags, reason, errors
         FROM hourhand.dead) AS other
     WHERE run_id < $8 AND run_id >= $9 AND ($1::text[] IS NULL OR state = ANY ($1)) AND ($11::integer IS NULL OR node = $11)
       AND ($2::text IS NULL OR task = $2) AND ($3::integer IS NULL OR lane / 4 = $3) AND ($4::text IS NULL OR $4 = ANY (tags))
       AND ($5::text IS NULL OR key = $5) AND scheduled_at >= $6 AND ($10::bigint IS NULL OR job_id = $10)
       AND ($12::integer[] IS NULL OR lane / 4 = ANY ($12))
       AND ($13::text[] IS NULL OR EXISTS (SELECT FROM hourhand.jobs j WHERE j.id = job_id AND j.name ^@ ANY ($13)))
     ORDER BY run_id DESC LIMIT $7)
) AS found
ORDER BY run_id DESC LIMIT $7;

-- name: list_history
-- The same for runs that ended, read backwards by their numbers.
SELECT found.*, errors->-1->>'type' AS error FROM (
    SELECT outcome::text AS state, run_id, job_id, task, lane, attempt, scheduled_at, NULL::timestamptz AS due_at, started_at, finished_at,
           worker_id AS node, key, tags, reason, errors
    FROM hourhand.runs
    WHERE run_id < $8::bigint AND run_id >= $9::bigint AND ($1::text[] IS NULL OR outcome::text = ANY ($1)) AND ($11::integer IS NULL OR worker_id = $11)
      AND ($2::text IS NULL OR task = $2) AND ($3::integer IS NULL OR lane / 4 = $3) AND ($4::text IS NULL OR $4 = ANY (tags))
      AND ($5::text IS NULL OR key = $5) AND scheduled_at >= $6 AND ($10::bigint IS NULL OR job_id = $10)
      AND ($12::integer[] IS NULL OR lane / 4 = ANY ($12))
      AND ($13::text[] IS NULL OR EXISTS (SELECT FROM hourhand.jobs j WHERE j.id = job_id AND j.name ^@ ANY ($13)))
    ORDER BY run_id DESC LIMIT $7) AS found
ORDER BY run_id DESC;

-- name: list_history_of_job
-- The same for a job that has had few: all of them are found by the job's index, and sorted.
SELECT found.*, errors->-1->>'type' AS error FROM (
    SELECT * FROM (
        SELECT outcome::text AS state, run_id, job_id, task, lane, attempt, scheduled_at, NULL::timestamptz AS due_at, started_at, finished_at,
               worker_id AS node, key, tags, reason, errors
        FROM hourhand.runs WHERE job_id = $10::bigint AND scheduled_at >= $6 OFFSET 0) AS mine
    WHERE run_id < $8::bigint AND run_id >= $9::bigint AND ($1::text[] IS NULL OR state = ANY ($1)) AND ($11::integer IS NULL OR node = $11)
      AND ($2::text IS NULL OR task = $2) AND ($3::integer IS NULL OR lane / 4 = $3) AND ($4::text IS NULL OR $4 = ANY (tags))
      AND ($5::text IS NULL OR key = $5) AND ($12::integer[] IS NULL OR lane / 4 = ANY ($12))
      AND ($13::text[] IS NULL OR EXISTS (SELECT FROM hourhand.jobs j WHERE j.id = job_id AND j.name ^@ ANY ($13)))
    ORDER BY run_id DESC LIMIT $7) AS found
ORDER BY run_id DESC;

-- name: list_trouble
-- The same for outcomes that are rare: each is found by the index of what went wrong.
SELECT found.*, errors->-1->>'type' AS error FROM (
    SELECT outcome::text AS state, run_id, job_id, task, lane, attempt, scheduled_at, NULL::timestamptz AS due_at, started_at, finished_at,
           worker_id AS node, key, tags, reason, errors
    FROM unnest($1::text[]) AS wanted (outcome_name)
    CROSS JOIN LATERAL (
        SELECT * FROM hourhand.runs
        WHERE outcome = outcome_name::hourhand.outcome AND outcome <> 'succeeded' AND run_id < $8::bigint AND run_id >= $9::bigint
          AND ($11::integer IS NULL OR worker_id = $11) AND ($2::text IS NULL OR task = $2) AND ($3::integer IS NULL OR lane / 4 = $3)
          AND ($4::text IS NULL OR $4 = ANY (tags)) AND ($5::text IS NULL OR key = $5) AND scheduled_at >= $6
          AND ($10::bigint IS NULL OR job_id = $10) AND ($12::integer[] IS NULL OR lane / 4 = ANY ($12))
          AND ($13::text[] IS NULL OR EXISTS (SELECT FROM hourhand.jobs j WHERE j.id = job_id AND j.name ^@ ANY ($13)))
        ORDER BY run_id DESC LIMIT $7) AS of_it
    ORDER BY run_id DESC LIMIT $7) AS found
ORDER BY run_id DESC;

-- name: floor_of_live
-- How far down a look for something rare may go: the number that is the $2nd from the top below $1, in the table (of those with
-- states $3) where that comes first. NULL: to the end. Read from the indexes alone.
-- The lanes of `ready` share what may be looked at there.
WITH lanes AS MATERIALIZED (
    SELECT q.id * 4 + class AS lane FROM hourhand.queues q CROSS JOIN generate_series(0, 2) AS class
    CROSS JOIN LATERAL (SELECT FROM hourhand.ready WHERE lane = q.id * 4 + class AND seq < $1::bigint ORDER BY seq DESC LIMIT 1) AS filled
    WHERE 'ready' = ANY ($3::text[]))
SELECT max(number) FROM (
    (SELECT r.seq AS number FROM lanes CROSS JOIN LATERAL (
         SELECT seq FROM hourhand.ready WHERE ready.lane = lanes.lane AND seq < $1::bigint ORDER BY seq DESC
         OFFSET greatest(least(1000, $2::bigint), $2 / (SELECT count(*) FROM lanes)) - 1 LIMIT 1) AS r)
    UNION ALL
    (SELECT run_id FROM hourhand.ready
     WHERE run_id <> seq AND run_id < $1 AND 'ready' = ANY ($3::text[]) ORDER BY run_id DESC OFFSET $2 - 1 LIMIT 1)
    UNION ALL
    (SELECT run_id FROM hourhand.delayed
     WHERE run_id < $1 AND 'delayed' = ANY ($3::text[]) ORDER BY run_id DESC OFFSET $2 - 1 LIMIT 1)
    UNION ALL
    (SELECT run_id FROM hourhand.parked
     WHERE run_id < $1 AND stream IS NULL AND 'parked' = ANY ($3::text[]) ORDER BY run_id DESC OFFSET $2 - 1 LIMIT 1)
    UNION ALL
    (SELECT run_id FROM hourhand.parked
     WHERE run_id < $1 AND stream IS NOT NULL AND 'ready' = ANY ($3::text[]) ORDER BY run_id DESC OFFSET $2 - 1 LIMIT 1)
    UNION ALL
    (SELECT run_id FROM hourhand.dead
     WHERE run_id < $1 AND 'dead' = ANY ($3::text[]) ORDER BY run_id DESC OFFSET $2 - 1 LIMIT 1)) AS floors;

-- name: floor_of_history
-- The same in the history, of the days since $3.
SELECT run_id FROM hourhand.runs WHERE run_id < $1::bigint AND scheduled_at >= $3 ORDER BY run_id DESC OFFSET $2::bigint - 1 LIMIT 1;

-- name: floor_of_trouble
SELECT max(run_id) FROM unnest($3::text[]) AS wanted (outcome_name)
CROSS JOIN LATERAL (
    SELECT run_id FROM hourhand.runs WHERE outcome = outcome_name::hourhand.outcome AND outcome <> 'succeeded' AND run_id < $1::bigint
    ORDER BY run_id DESC OFFSET $2::bigint - 1 LIMIT 1) AS of_it;

-- name: instant_near
-- For when the run with number $1, or the next that ended, was.
SELECT scheduled_at FROM hourhand.runs WHERE run_id >= $1::bigint ORDER BY run_id LIMIT 1;

-- name: plan_anew
-- For the rest of the transaction: a plan for each question, since what is asked for differs much.
SELECT set_config('plan_cache_mode', 'force_custom_plan', true);

-- name: plan_by_index
-- The same, and in the order of the indexes.
SELECT set_config('plan_cache_mode', 'force_custom_plan', true), set_config('enable_seqscan', 'off', true),
       set_config('enable_bitmapscan', 'off', true), set_config('enable_sort', 'off', true);

-- name: has_few_runs
-- Whether a job has had at most $3 since $2.
SELECT count(*) <= $3::bigint FROM (SELECT FROM hourhand.runs WHERE job_id = $1 AND scheduled_at >= $2 LIMIT $3 + 1) AS counted;

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
  AND ($4::text IS NULL OR $4 = ANY (tags)) AND ($5::text IS NULL OR error = $5)
  AND ($6::timestamptz IS NULL OR died_at >= $6) AND ($7::timestamptz IS NULL OR died_at < $7)
  AND ($8::integer[] IS NULL OR lane / 4 = ANY ($8))
  AND ($9::text[] IS NULL OR EXISTS (SELECT FROM hourhand.jobs j WHERE j.id = job_id AND j.name ^@ ANY ($9)))
  AND ($11::timestamptz IS NULL OR (died_at, run_id) < ($11, $12::bigint))
ORDER BY died_at DESC, run_id DESC LIMIT $10;

-- name: count_dead
SELECT count(*) FROM hourhand.dead
WHERE ($1::bigint[] IS NULL OR run_id = ANY ($1)) AND ($2::text IS NULL OR task = $2) AND ($3::integer IS NULL OR lane / 4 = $3)
  AND ($4::text IS NULL OR $4 = ANY (tags)) AND ($5::text IS NULL OR error = $5)
  AND ($6::timestamptz IS NULL OR died_at >= $6) AND ($7::timestamptz IS NULL OR died_at < $7)
  AND ($8::integer[] IS NULL OR lane / 4 = ANY ($8))
  AND ($9::text[] IS NULL OR EXISTS (SELECT FROM hourhand.jobs j WHERE j.id = job_id AND j.name ^@ ANY ($9)));

-- name: edit_dead
UPDATE hourhand.dead SET payload = $2::text::jsonb WHERE run_id = $1 RETURNING run_id;

-- name: replay_dead
-- Back into the lane with fresh attempts, under the same id, the oldest first. A keyed run takes its key again; if another
-- run holds it, the dead one stays where it is. With a rate ($11 a second) they become due one after the other, the first
-- of all at $12, of which $13 have gone before.
WITH wanted AS MATERIALIZED (
    SELECT d.run_id, d.task, d.key FROM hourhand.dead d
    WHERE ($1::bigint[] IS NULL OR run_id = ANY ($1)) AND ($2::text IS NULL OR task = $2) AND ($3::integer IS NULL OR lane / 4 = $3)
      AND ($4::text IS NULL OR $4 = ANY (tags)) AND ($5::text IS NULL OR error = $5)
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
    FROM (SELECT * FROM revived WHERE $11::float8 IS NULL ORDER BY died_at, run_id) AS revived
    RETURNING run_id, lane, seq),
spread AS (
    INSERT INTO hourhand.delayed (due_at, run_id, job_id, scheduled_at, enqueued_at, lane, attempt, crashes, task, payload, key, tags,
                                  options, errors)
    SELECT $12::timestamptz + make_interval(secs => ($13::bigint + row_number() OVER (ORDER BY died_at, run_id) - 1) / $11),
           run_id, job_id, scheduled_at, enqueued_at, lane, 0, 0, task, payload, key, tags, options, errors
    FROM revived WHERE $11 IS NOT NULL
    RETURNING run_id, due_at),
told AS (
    SELECT count(pg_notify('hourhand', word)) FROM (
        SELECT format('r:%s:%s', lane, min(seq)) AS word FROM back GROUP BY lane
        UNION ALL SELECT 'd' FROM spread HAVING min(due_at) < clock_timestamp() + interval '2 seconds') AS words)
SELECT w.run_id, b.run_id IS NOT NULL OR s.run_id IS NOT NULL AS replayed, s.due_at
FROM told CROSS JOIN wanted w LEFT JOIN back b ON b.run_id = w.run_id LEFT JOIN spread s ON s.run_id = w.run_id ORDER BY w.run_id;

-- name: purge_dead
-- Out of the dead letters. The outcome and the errors stay in history; the payload goes.
WITH purged AS (
    DELETE FROM hourhand.dead WHERE ctid = ANY (ARRAY(
        SELECT ctid FROM hourhand.dead
        WHERE ($1::bigint[] IS NULL OR run_id = ANY ($1)) AND ($2::text IS NULL OR task = $2) AND ($3::integer IS NULL OR lane / 4 = $3)
          AND ($4::text IS NULL OR $4 = ANY (tags)) AND ($5::text IS NULL OR error = $5)
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
    SELECT task, payload, lane, tags, options - '{unique_for,overlap,after}'::text[] AS options FROM hourhand.runs WHERE run_id = $1 AND payload IS NOT NULL),
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
parked AS (SELECT lane / 4 AS queue, count(*) AS runs FROM hourhand.parked WHERE stream IS NULL GROUP BY 1),
streamed AS (SELECT lane / 4 AS queue, count(*) AS runs FROM hourhand.parked WHERE stream IS NOT NULL GROUP BY 1),
running AS (SELECT lane / 4 AS queue, count(*) AS runs FROM hourhand.running GROUP BY 1),
dead AS (SELECT lane / 4 AS queue, count(*) AS runs FROM hourhand.dead GROUP BY 1)
SELECT q.id, q.name, q.paused_at, coalesce(ready.runs, 0) + coalesce(streamed.runs, 0) AS ready, coalesce(delayed.runs, 0) AS delayed,
       coalesce(parked.runs, 0) AS parked, coalesce(running.runs, 0) AS running, coalesce(dead.runs, 0) AS dead,
       hourhand.waits(q.id) AS oldest_seconds
FROM hourhand.queues q
LEFT JOIN ready ON ready.queue = q.id LEFT JOIN delayed ON delayed.queue = q.id LEFT JOIN parked ON parked.queue = q.id
LEFT JOIN streamed ON streamed.queue = q.id LEFT JOIN running ON running.queue = q.id LEFT JOIN dead ON dead.queue = q.id
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
FROM hourhand.parked p JOIN hourhand.queues q ON q.id = p.lane / 4
WHERE p.crashes = 0 AND p.stream IS NULL AND p.hold IS NULL GROUP BY p.task, q.name ORDER BY p.task, q.name;

-- name: stuck_runs
-- Runs whose worker lives, but which go on although their timeout is over, or for ten times as long as runs of their task
-- take at most (as a rule: the mean and three deviations, of twenty or more). Below a minute nothing is called stuck.
SELECT * FROM (
    SELECT r.run_id, r.task, r.worker_id AS node, extract(epoch FROM clock_timestamp() - coalesce(r.begun_at, r.claimed_at))::float8 AS seconds,
           coalesce((r.options->>'timeout')::float8, t.timeout) AS timeout,
           CASE WHEN t.weight >= 20 THEN t.mean + 3 * sqrt(t.variance) END AS usual,
           r.job_id, r.attempt, (SELECT name FROM hourhand.queues q WHERE q.id = r.lane / 4) AS queue
    FROM hourhand.nodes n
    JOIN hourhand.running r ON r.worker_id = n.id
    LEFT JOIN hourhand.tasks t ON t.name = r.task
    WHERE n.stopped_at IS NULL AND n.died_at IS NULL AND n.lease_until > clock_timestamp()) AS going
WHERE seconds > least(timeout + 60, CASE WHEN usual IS NOT NULL THEN greatest(60, 10 * usual) END)
ORDER BY seconds DESC LIMIT $1;

-- name: lost_runs
-- At-most-once runs that were cut off within the last $1 seconds, the latest first; at most $2.
SELECT run_id, task, reason, finished_at FROM hourhand.runs
WHERE outcome = 'lost' AND finished_at > (SELECT clock_timestamp()) - make_interval(secs => $1) ORDER BY finished_at DESC LIMIT $2;

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
               WHERE c.shard = s.shard AND c.next_run_at < (SELECT clock_timestamp()) - make_interval(secs => $1)
               ORDER BY next_run_at LIMIT 1000) AS late
           LIMIT 1000) AS overdue) AS overdue;
