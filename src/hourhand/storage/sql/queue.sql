-- The queue's transitions. Rows are picked by ctid out of a sub-select that PostgreSQL runs
-- once: as a join, the planner may put the locking sub-select on the inner side and run it
-- for every row.

-- name: enqueue
-- One run; the function holds every rule, so that all languages share them.
SELECT run_id, duplicate, lane FROM hourhand.enqueue(
    $1::text, $2::text::jsonb, $3::text, $4::text, $5::interval, $6::timestamptz, $7::interval, $8::timestamptz, $9::text, $10::text[],
    $11::text::jsonb, $12::boolean, true);

-- name: enqueue_plain
-- One run with nothing special about it but its trace, if it has one; which is most of them: what the function would insert.
-- Nothing where the queue's depth is limited: then the function decides.
INSERT INTO hourhand.ready (seq, run_id, scheduled_at, lane, task, payload, options)
SELECT number, number, clock_timestamp(), $1, $2, $3::text::jsonb, $4::text::jsonb FROM nextval('hourhand.run_numbers') AS number
WHERE NOT EXISTS (SELECT FROM hourhand.queues WHERE id = $1 / 4 AND max_depth IS NOT NULL)
RETURNING run_id;

-- name: enqueue_told
-- The same, and the word that wakes a worker for it, neither of which waits for the disk; the statement does.
CALL hourhand.enqueue_told($1, $2, $3, $4, NULL);

-- name: may_tell
-- Or its rights were taken away, as some do with all functions.
SELECT bool_and(has_function_privilege(oid, 'EXECUTE')) FROM pg_proc
WHERE proname = 'pg_logical_emit_message' OR oid = to_regprocedure('hourhand.enqueue_told(integer, text, text, text, bigint)');

-- name: enqueue_plains
-- As `enqueue_plain`, for those that came while the statement before was under way; in the order they came.
INSERT INTO hourhand.ready (seq, run_id, scheduled_at, lane, task, payload, options)
SELECT number, number, clock_timestamp(), lane, task, payload::jsonb, options::jsonb
FROM (SELECT nextval('hourhand.run_numbers') AS number, lane, task, payload, options
      FROM unnest($1::integer[], $2::text[], $3::text[], $4::text[]) AS given (lane, task, payload, options)
      WHERE NOT EXISTS (SELECT FROM unnest($1) AS one JOIN hourhand.queues q ON q.id = one / 4 WHERE q.max_depth IS NOT NULL)) AS numbered
RETURNING run_id;

-- name: make_room
SELECT hourhand.make_room($1, $2);

-- name: queue_number
SELECT hourhand.queue_number($1);

-- name: make_queues
SELECT hourhand.queue_number(name) FROM unnest($1::text[]) AS name;

-- name: reserve_runs
-- Numbers for a COPY into lane $2; nearly always one unbroken range, then the list is not sent.
WITH taken AS MATERIALIZED (SELECT nextval('hourhand.run_numbers') AS number FROM generate_series(1, $1::integer))
SELECT min(number) AS first, clock_timestamp() AS present,
       CASE WHEN max(number) - min(number) + 1 <> count(*) THEN array_agg(number ORDER BY number) END AS numbers,
       (SELECT max_depth FROM hourhand.queues WHERE id = $2 / 4) IS NOT NULL AS bounded
FROM taken;

-- name: notify
-- Outside the enqueuing transaction: a transaction that only notifies writes nothing to
-- disk, so the database-wide lock that NOTIFY takes at commit is never held over an fsync.
SELECT pg_notify('hourhand', word) FROM unnest($1::text[]) AS word;

-- name: claim
-- Take runs for worker $4: from each lane of $1, from place $2 on, at most $3; nothing for a worker that was
-- declared dead or knows an older version of the rules than there is ($5), nothing from a paused queue or a managed one.
WITH picked AS (
    DELETE FROM hourhand.ready WHERE ctid = ANY (ARRAY(
        SELECT head.ctid FROM unnest($1::integer[], $2::bigint[], $3::integer[]) AS wanted (lane, low, most)
        CROSS JOIN LATERAL (
            SELECT r.ctid FROM hourhand.ready r
            WHERE r.lane = wanted.lane AND r.seq >= wanted.low
              AND (SELECT true FROM hourhand.queues q WHERE q.id = wanted.lane / 4 AND q.paused_at IS NULL AND NOT q.managed)
            ORDER BY r.seq LIMIT wanted.most FOR UPDATE SKIP LOCKED) AS head
        WHERE (SELECT true FROM hourhand.nodes n WHERE n.id = $4 AND n.died_at IS NULL)
          AND (SELECT version = $5 FROM hourhand.rulebook WHERE single)))
    RETURNING *)
INSERT INTO hourhand.running (worker_id, token, claimed_at, seq, run_id, job_id, scheduled_at, enqueued_at, expires_at,
                              lane, attempt, crashes, task, payload, key, tags, options, errors)
SELECT $4, (SELECT nextval('hourhand.claim_tokens')), now(), seq, run_id, job_id, scheduled_at, enqueued_at, expires_at,
       lane, attempt, crashes, task, payload, key, tags, options, errors
FROM picked
RETURNING seq, run_id, token, task, payload, date_part('epoch', scheduled_at) AS scheduled, attempt, crashes, lane, job_id, expires_at,
          tags, options, errors;

-- name: claim_parked
-- Runs that other workers did not know, for one that does; or ($5) runs on probation, which no healthy one shares a claim with.
-- The same is refused as by claim; $6 is the version of the rules. (First the tasks of which there are any: a worker knows many.
-- The order of an index is asked for so that it is this index, whatever is believed of the table.)
WITH lanes AS MATERIALIZED (
    SELECT lane FROM unnest($2::integer[]) AS wanted (lane)
    WHERE (SELECT true FROM hourhand.queues q WHERE q.id = lane / 4 AND q.paused_at IS NULL AND NOT q.managed)
      AND (SELECT true FROM hourhand.nodes n WHERE n.id = $4 AND n.died_at IS NULL)
      AND (SELECT version = $6 FROM hourhand.rulebook WHERE single)),
picked AS (
    DELETE FROM hourhand.parked WHERE ctid = ANY (ARRAY(
        SELECT head.ctid FROM unnest($1::text[]) AS mine (task)
        CROSS JOIN LATERAL (
            SELECT p.task FROM hourhand.parked p WHERE p.task = mine.task AND p.stream IS NULL AND p.hold IS NULL
            ORDER BY p.lane, p.seq LIMIT 1) AS found
        CROSS JOIN lanes
        CROSS JOIN LATERAL (
            SELECT p.ctid FROM hourhand.parked p
            WHERE p.task = found.task AND p.lane = lanes.lane AND p.stream IS NULL AND p.hold IS NULL AND p.crashes = 0
            ORDER BY p.seq LIMIT $3 FOR UPDATE SKIP LOCKED) AS head
        WHERE NOT $5 LIMIT $3)
      || ARRAY(
        SELECT p.ctid FROM hourhand.parked p
        WHERE $5 AND p.crashes > 0 AND p.task = ANY ($1::text[]) AND p.lane = ANY (ARRAY(SELECT lane FROM lanes))
          AND num_nonnulls(p.stream, p.hold) = 0
        ORDER BY p.run_id LIMIT $3 FOR UPDATE SKIP LOCKED))
    RETURNING *)
INSERT INTO hourhand.running (worker_id, token, claimed_at, seq, run_id, job_id, scheduled_at, enqueued_at, expires_at,
                              lane, attempt, crashes, task, payload, key, tags, options, errors)
SELECT $4, (SELECT nextval('hourhand.claim_tokens')), now(), seq, run_id, job_id, scheduled_at, enqueued_at, expires_at,
       lane, attempt, crashes, task, payload, key, tags, options, errors
FROM picked
RETURNING seq, run_id, token, task, payload, date_part('epoch', scheduled_at) AS scheduled, attempt, crashes, lane, job_id, expires_at,
          tags, options, errors;

-- name: survey
-- What a worker asks every few seconds: the queues, which lanes hold work (the first place from the mark in $2 on, times four, and
-- the class) or open streams, whether anything it knows is parked, and the version of the rules. (Each is a look at one place of an
-- index, however much waits there; but where dead rows cannot be removed, a look from the start walks over all of them.)
WITH strange AS MATERIALIZED (
    SELECT mine.task FROM unnest($1::text[]) AS mine (task) CROSS JOIN LATERAL (
        SELECT FROM hourhand.parked p WHERE p.task = mine.task AND p.stream IS NULL AND p.hold IS NULL
        ORDER BY p.lane, p.seq LIMIT 1) AS found),
risky AS MATERIALIZED (
    SELECT p.lane / 4 AS queue FROM hourhand.parked p
    WHERE p.crashes > 0 AND p.task = ANY ($1::text[]) AND num_nonnulls(p.stream, p.hold) = 0 ORDER BY p.run_id)
SELECT q.id, q.name, q.paused_at IS NOT NULL AS paused, q.managed,
       ARRAY(SELECT head.seq * 4 + class FROM generate_series(0, 3) AS class CROSS JOIN LATERAL (
             SELECT r.seq FROM hourhand.ready r
             WHERE r.lane = q.id * 4 + class AND r.seq >= coalesce(($2::bigint[])[q.id * 4 + class + 1], 0)
             ORDER BY r.seq LIMIT 1) AS head) AS waiting,
       ARRAY(SELECT class FROM generate_series(0, 3) AS class
             WHERE (SELECT true FROM hourhand.streams s WHERE s.lane = q.id * 4 + class AND s.waits_for IS NULL
                    ORDER BY s.turn LIMIT 1)) AS open,
       coalesce((SELECT true FROM strange CROSS JOIN generate_series(0, 3) AS class CROSS JOIN LATERAL (
            SELECT FROM hourhand.parked p WHERE p.task = strange.task AND p.lane = q.id * 4 + class AND p.stream IS NULL
                AND p.hold IS NULL AND p.crashes = 0 ORDER BY p.seq LIMIT 1) AS found LIMIT 1), false) AS parked,
       q.id IN (SELECT queue FROM risky) AS probation, (SELECT version FROM hourhand.rulebook) AS version
FROM hourhand.queues q;

-- name: finish
-- Runs that ended, into history. Rows whose claim was lost are simply not there: how many were written is all that is asked. Of one
-- that another follows, $10 says which trace that belongs to.
WITH ended AS (
    DELETE FROM hourhand.running WHERE ctid = ANY (ARRAY(
        SELECT held.ctid FROM unnest($2::bigint[], $3::bigint[]) AS mine (run_id, token)
        CROSS JOIN LATERAL (SELECT ctid FROM hourhand.running
                            WHERE worker_id = $1 AND run_id = mine.run_id AND token = mine.token LIMIT 1) AS held))
    RETURNING run_id, job_id, scheduled_at, enqueued_at, worker_id, lane, attempt, task, payload, key, tags, options, errors)
INSERT INTO hourhand.runs (run_id, job_id, scheduled_at, enqueued_at, started_at, finished_at, worker_id, lane, outcome,
                           attempt, task, payload, key, tags, options, errors, result, reason)
SELECT e.run_id, job_id, scheduled_at, enqueued_at, to_timestamp(f.started), to_timestamp(f.finished), worker_id, lane,
       coalesce(f.outcome, 'succeeded')::hourhand.outcome,
       CASE WHEN f.started IS NULL THEN attempt ELSE attempt + 1 END,
       task, payload, key, tags, CASE WHEN f.onward IS NULL THEN options ELSE options || f.onward::jsonb END,
       coalesce(f.errors::jsonb, e.errors), f.result::jsonb,
       CASE WHEN f.outcome = 'cancelled'
            THEN coalesce((SELECT c.reason FROM hourhand.cancels c WHERE c.run_id = e.run_id), f.reason)
            ELSE f.reason END
FROM ended e JOIN unnest($2::bigint[], $4::float8[], $5::float8[], $6::text[], $7::text[], $8::text[], $9::text[], $10::text[])
    AS f (run_id, started, finished, outcome, result, errors, reason, onward) ON f.run_id = e.run_id;

-- name: finish_plain
-- The same for those that succeeded, and have nothing more to say than when: most of them. (By subscripts, which are a step each in
-- arrays of numbers without NULL: several arrays that are unnested are as many tables first.)
WITH ended AS (
    DELETE FROM hourhand.running WHERE ctid = ANY (ARRAY(
        SELECT held.ctid
        FROM (SELECT ($2)[i] AS run_id, ($3::bigint[])[i] AS token FROM generate_subscripts($2::bigint[], 1) AS i) AS mine
        CROSS JOIN LATERAL (SELECT ctid FROM hourhand.running
                            WHERE worker_id = $1 AND run_id = mine.run_id AND token = mine.token LIMIT 1) AS held))
    RETURNING run_id, job_id, scheduled_at, enqueued_at, worker_id, lane, attempt, task, payload, key, tags, options, errors)
INSERT INTO hourhand.runs (run_id, job_id, scheduled_at, enqueued_at, started_at, finished_at, worker_id, lane, outcome,
                           attempt, task, payload, key, tags, options, errors)
SELECT run_id, job_id, scheduled_at, enqueued_at, to_timestamp(($4::float8[])[i]), to_timestamp(($5::float8[])[i]), worker_id, lane,
       'succeeded', attempt + 1, task, payload, key, tags, options, errors
FROM ended JOIN generate_subscripts($2, 1) AS i ON run_id = ($2)[i];

-- name: retry
-- Failed attempts that are to be tried again after $4 seconds. One that was asked to stop
-- meanwhile ends here instead.
WITH failed AS (
    DELETE FROM hourhand.running WHERE ctid = ANY (ARRAY(
        SELECT held.ctid FROM unnest($2::bigint[], $3::bigint[]) AS mine (run_id, token)
        CROSS JOIN LATERAL (SELECT ctid FROM hourhand.running
                            WHERE worker_id = $1 AND run_id = mine.run_id AND token = mine.token LIMIT 1) AS held))
    RETURNING *),
judged AS (
    SELECT failed.*, given.delay, given.started, given.errors AS all_errors, c.run_id IS NOT NULL AS cancelled, c.reason
    FROM failed JOIN unnest($2::bigint[], $4::float8[], $5::float8[], $6::text[]) AS given (run_id, delay, started, errors)
        ON given.run_id = failed.run_id
    LEFT JOIN hourhand.cancels c ON c.run_id = failed.run_id),
stopped AS (
    INSERT INTO hourhand.runs (run_id, job_id, scheduled_at, enqueued_at, started_at, finished_at, worker_id, lane, outcome,
                               attempt, task, payload, key, tags, options, errors, reason)
    SELECT run_id, job_id, scheduled_at, enqueued_at, to_timestamp(started), clock_timestamp(), worker_id, lane, 'cancelled',
           attempt + 1, task, payload, key, tags, options, all_errors::jsonb, coalesce(reason, 'cancelled')
    FROM judged WHERE cancelled
    RETURNING run_id),
again AS (
    INSERT INTO hourhand.delayed (due_at, run_id, job_id, scheduled_at, enqueued_at, expires_at, lane, attempt, crashes,
                                  task, payload, key, tags, options, errors)
    SELECT clock_timestamp() + make_interval(secs => delay), run_id, job_id, scheduled_at, enqueued_at, expires_at, lane,
           attempt + 1, crashes, task, payload, key, tags, options, all_errors::jsonb
    FROM judged WHERE NOT cancelled
    RETURNING run_id)
SELECT run_id FROM stopped UNION ALL SELECT run_id FROM again;

-- name: bury
-- Runs that give up, whole, into the dead letters.
WITH failed AS (
    DELETE FROM hourhand.running WHERE ctid = ANY (ARRAY(
        SELECT held.ctid FROM unnest($2::bigint[], $3::bigint[]) AS mine (run_id, token)
        CROSS JOIN LATERAL (SELECT ctid FROM hourhand.running
                            WHERE worker_id = $1 AND run_id = mine.run_id AND token = mine.token LIMIT 1) AS held))
    RETURNING *)
INSERT INTO hourhand.dead (died_at, started_at, worker_id, run_id, job_id, scheduled_at, enqueued_at, lane, attempt, task,
                           payload, key, tags, options, errors, reason)
SELECT clock_timestamp(), to_timestamp(g.started), worker_id, f.run_id, job_id, scheduled_at, enqueued_at, lane,
       CASE WHEN g.started IS NULL THEN attempt ELSE attempt + 1 END,
       task, payload, key, tags, options, coalesce(g.errors::jsonb, f.errors), g.reason
FROM failed f JOIN unnest($2::bigint[], $4::float8[], $5::text[], $6::text[]) AS g (run_id, started, errors, reason)
    ON g.run_id = f.run_id
RETURNING run_id;

-- name: hand_back
-- Claimed but not finished: to its old place in the lane, no attempt charged; one on probation stays apart. One that was
-- asked to stop meanwhile ends here.
WITH returned AS (
    DELETE FROM hourhand.running WHERE ctid = ANY (ARRAY(
        SELECT held.ctid FROM unnest($2::bigint[], $3::bigint[]) AS mine (run_id, token)
        CROSS JOIN LATERAL (SELECT ctid FROM hourhand.running
                            WHERE worker_id = $1 AND run_id = mine.run_id AND token = mine.token LIMIT 1) AS held))
    RETURNING *),
stopped AS (
    INSERT INTO hourhand.runs (run_id, job_id, scheduled_at, enqueued_at, finished_at, worker_id, lane, outcome, attempt,
                               task, payload, key, tags, options, errors, reason)
    SELECT r.run_id, job_id, scheduled_at, enqueued_at, clock_timestamp(), worker_id, lane, 'cancelled', attempt,
           task, payload, key, tags, options, errors, coalesce(c.reason, 'cancelled')
    FROM returned r JOIN hourhand.cancels c ON c.run_id = r.run_id
    RETURNING run_id),
back AS (
    INSERT INTO hourhand.ready (seq, run_id, job_id, scheduled_at, enqueued_at, expires_at, lane, attempt, crashes,
                                task, payload, key, tags, options, errors)
    SELECT seq, run_id, job_id, scheduled_at, enqueued_at, expires_at, lane, attempt, crashes,
           task, payload, key, tags, options, errors
    FROM returned WHERE crashes = 0 AND run_id NOT IN (SELECT run_id FROM hourhand.cancels)
    RETURNING run_id, lane, seq),
apart AS (
    INSERT INTO hourhand.parked (seq, run_id, job_id, scheduled_at, enqueued_at, expires_at, lane, attempt, crashes,
                                 task, payload, key, tags, options, errors)
    SELECT seq, run_id, job_id, scheduled_at, enqueued_at, expires_at, lane, attempt, crashes,
           task, payload, key, tags, options, errors
    FROM returned WHERE crashes > 0 AND run_id NOT IN (SELECT run_id FROM hourhand.cancels)
    RETURNING run_id, task),
told AS (
    SELECT count(pg_notify('hourhand', word)) FROM (
        SELECT format('r:%s:%s', lane, min(seq)) AS word FROM back GROUP BY lane
        UNION ALL SELECT DISTINCT 'p:' || task FROM apart) AS words)
SELECT run_id FROM (SELECT run_id FROM back UNION ALL SELECT run_id FROM apart) AS returned, told
UNION ALL SELECT run_id FROM stopped;

-- name: strays
-- Rows that a claim took whose answer never arrived: ours by name, but not among the runs $2 we know. (As a sub-select these are
-- looked up in a hash; as an array, one by one.)
SELECT run_id, token FROM hourhand.running WHERE worker_id = $1 AND run_id NOT IN (SELECT unnest($2::bigint[]));

-- name: overloaded
-- Live workers other than $1 that hold more runs than they have slots, $2 at most, whichever.
SELECT n.id FROM hourhand.nodes n
WHERE NOT n.settled AND n.kind = 'worker' AND n.id <> $1
  AND n.died_at IS NULL AND n.stopped_at IS NULL AND n.lease_until > clock_timestamp()
  AND EXISTS (SELECT FROM hourhand.running r WHERE r.worker_id = n.id OFFSET (n.info->>'concurrency')::integer)
ORDER BY random() LIMIT $2;

-- name: give
-- Claimed and not begun: from worker $1 to worker $2, at most $3 of them, under a new token and with no attempt charged. Only
-- to one that is alive and stays so until this commits (its end waits for the row's lock), and only what it serves; not from a
-- paused queue, and not what was asked to stop. Says of each run whether it moved or stayed; of one that was lost, nothing.
WITH thief AS MATERIALIZED (
    SELECT info->'tasks' AS tasks, nullif(info->'queues', 'null') AS queues FROM hourhand.nodes
    WHERE id = $2::integer AND died_at IS NULL AND stopped_at IS NULL AND lease_until > clock_timestamp() FOR SHARE),
held AS MATERIALIZED (
    SELECT r.ctid AS place, r.run_id, r.crashes = 0 AND r.begun_at IS NULL AND r.stream IS NULL
               AND NOT EXISTS (SELECT FROM hourhand.cancels c WHERE c.run_id = r.run_id)
               AND EXISTS (SELECT FROM thief t CROSS JOIN hourhand.queues q
                           WHERE q.id = r.lane / 4 AND q.paused_at IS NULL AND t.tasks ? r.task
                             AND (t.queues IS NULL OR t.queues ? q.name)) AS fit
    FROM unnest($4::bigint[], $5::bigint[]) AS mine (run_id, token)
    CROSS JOIN LATERAL (SELECT ctid, * FROM hourhand.running
                        WHERE worker_id = $1 AND run_id = mine.run_id AND token = mine.token LIMIT 1) AS r),
chosen AS MATERIALIZED (
    SELECT place, run_id FROM held WHERE fit LIMIT $3),
taken AS (
    DELETE FROM hourhand.running WHERE ctid = ANY (ARRAY(SELECT place FROM chosen)) RETURNING *),
given AS (
    INSERT INTO hourhand.running (worker_id, token, claimed_at, seq, run_id, job_id, scheduled_at, enqueued_at, expires_at,
                                  lane, attempt, crashes, task, payload, key, tags, options, errors)
    SELECT $2, (SELECT nextval('hourhand.claim_tokens')), now(), seq, run_id, job_id, scheduled_at, enqueued_at, expires_at,
           lane, attempt, crashes, task, payload, key, tags, options, errors
    FROM taken
    RETURNING run_id, token),
told AS (
    SELECT count(pg_notify('hourhand', format('t:%s:%s', $2, token))) FROM (SELECT DISTINCT token FROM given) AS tokens)
SELECT run_id, true AS moved FROM given, told
UNION ALL SELECT run_id, false FROM held WHERE run_id <> ALL (ARRAY(SELECT run_id FROM chosen));

-- name: gifts
-- What is under the name of worker $1, which is alive, and not among the runs $2 that it knows: as a claim would have brought it.
SELECT r.seq, r.run_id, r.token, r.task, r.payload, date_part('epoch', r.scheduled_at) AS scheduled, r.attempt, r.crashes, r.lane,
       r.job_id, r.expires_at, r.tags, r.options, r.errors, (SELECT q.name FROM hourhand.queues q WHERE q.id = r.lane / 4) AS queue
FROM hourhand.running r
WHERE r.worker_id = $1 AND r.run_id NOT IN (SELECT unnest($2::bigint[])) AND r.begun_at IS NULL AND r.stream IS NULL
  AND (SELECT true FROM hourhand.nodes n WHERE n.id = $1 AND n.died_at IS NULL AND n.stopped_at IS NULL)
ORDER BY r.run_id;

-- name: park
-- Claimed by a worker that does not have the task's code: set aside for one that does. Or claimed although it is held back ($4 says
-- by which hold): until that is released, which waits for us or has gone before.
WITH kept AS MATERIALIZED (
    SELECT id FROM hourhand.holds WHERE id = ANY ($4::integer[]) FOR KEY SHARE),
returned AS (
    DELETE FROM hourhand.running WHERE ctid = ANY (ARRAY(
        SELECT held.ctid FROM unnest($2::bigint[], $3::bigint[]) AS mine (run_id, token)
        CROSS JOIN LATERAL (SELECT ctid FROM hourhand.running
                            WHERE worker_id = $1 AND run_id = mine.run_id AND token = mine.token LIMIT 1) AS held))
    RETURNING *),
stopped AS (
    INSERT INTO hourhand.runs (run_id, job_id, scheduled_at, enqueued_at, finished_at, worker_id, lane, outcome, attempt,
                               task, payload, key, tags, options, errors, reason)
    SELECT r.run_id, job_id, scheduled_at, enqueued_at, clock_timestamp(), worker_id, lane, 'cancelled', attempt,
           task, payload, key, tags, options, errors, coalesce(c.reason, 'cancelled')
    FROM returned r JOIN hourhand.cancels c ON c.run_id = r.run_id
    RETURNING run_id),
aside AS (
    INSERT INTO hourhand.parked (seq, run_id, job_id, scheduled_at, enqueued_at, expires_at, lane, attempt, crashes,
                                 task, payload, key, tags, options, errors, hold)
    SELECT seq, r.run_id, job_id, scheduled_at, enqueued_at, expires_at, lane, attempt, crashes,
           task, payload, key, tags, options, errors, kept.id
    FROM returned r JOIN unnest($2::bigint[], $4::integer[]) AS why (run_id, hold) ON why.run_id = r.run_id
    LEFT JOIN kept ON kept.id = why.hold
    WHERE r.run_id NOT IN (SELECT run_id FROM hourhand.cancels)
    RETURNING run_id, task, hold),
told AS (
    SELECT count(pg_notify('hourhand', 'p:' || task)) FROM (SELECT DISTINCT task FROM aside WHERE hold IS NULL) AS tasks)
SELECT run_id FROM aside, told UNION ALL SELECT run_id FROM stopped;

-- name: begin_runs
-- At-most-once runs are on record as begun before their handlers start. No row back: the claim is lost, and the handler must
-- not start.
UPDATE hourhand.running SET begun_at = clock_timestamp() WHERE ctid = ANY (ARRAY(
    SELECT held.ctid FROM unnest($2::bigint[], $3::bigint[]) AS mine (run_id, token)
    CROSS JOIN LATERAL (SELECT ctid FROM hourhand.running
                        WHERE worker_id = $1 AND run_id = mine.run_id AND token = mine.token LIMIT 1) AS held))
RETURNING run_id;

-- name: known_effects
-- Which of these exactly-once tokens have had their effect.
SELECT encode(token, 'hex') AS token, result FROM hourhand.effects WHERE token = ANY ($1::bytea[]);

-- name: finish_once
-- The end of an exactly-once run, in the transaction of its own writes: its claim must still hold ($1, $2, $3), and its token
-- ($4) must be new. The caller commits if both are so, and rolls everything back if not. $8: as with finish.
WITH ended AS (
    DELETE FROM hourhand.running WHERE worker_id = $1::integer AND run_id = $2::bigint AND token = $3::bigint RETURNING *),
effect AS (
    INSERT INTO hourhand.effects (token, run_id, result)
    SELECT decode($4::text, 'hex'), run_id, $6::text::jsonb FROM ended
    ON CONFLICT DO NOTHING RETURNING run_id),
written AS (
    INSERT INTO hourhand.runs (run_id, job_id, scheduled_at, enqueued_at, started_at, finished_at, worker_id, lane, outcome,
                               attempt, task, payload, key, tags, options, errors, result, reason)
    SELECT run_id, job_id, scheduled_at, enqueued_at, to_timestamp($5::float8), clock_timestamp(), worker_id, lane, 'succeeded',
           attempt + 1, task, payload, key, tags,
           CASE WHEN $8::text IS NULL THEN options ELSE options || $8::text::jsonb END, errors, $6::text::jsonb, $7::text
    FROM ended WHERE run_id IN (SELECT run_id FROM effect)
    RETURNING run_id)
SELECT (SELECT count(*) FROM ended) AS held, (SELECT count(*) FROM effect) AS fresh, (SELECT count(*) FROM written) AS written;

-- name: find_step
SELECT result FROM hourhand.steps WHERE run_id = $1 AND name = $2;

-- name: keep_step
-- The result of a step, if the claim under which it was made still holds. Should a zombie have been quicker, its result stands:
-- the step was done.
WITH held AS (
    SELECT run_id FROM hourhand.running WHERE worker_id = $1 AND run_id = $2 AND token = $3 FOR SHARE),
kept AS (
    INSERT INTO hourhand.steps (run_id, name, result) SELECT run_id, $4, $5::text::jsonb FROM held
    ON CONFLICT DO NOTHING RETURNING result)
SELECT (SELECT count(*) FROM held) AS held,
       coalesce((SELECT result FROM kept), (SELECT result FROM hourhand.steps WHERE run_id = $2 AND name = $4)) AS result;

-- name: report_tasks
-- How long a worker's runs took since it last said so: their number, mean and variance, merged into what is known. The
-- weight is capped, so that what is known stays young.
INSERT INTO hourhand.tasks AS t (name, timeout, weight, mean, variance)
SELECT name, timeout, weight, mean, variance
FROM unnest($1::text[], $2::float8[], $3::float8[], $4::float8[], $5::float8[]) AS given (name, timeout, weight, mean, variance)
ORDER BY name
ON CONFLICT (name) DO UPDATE SET
    timeout = excluded.timeout, reported_at = clock_timestamp(), weight = least(1000, t.weight + excluded.weight),
    mean = CASE WHEN excluded.weight = 0 THEN t.mean
                ELSE t.mean + (excluded.mean - t.mean) * excluded.weight / (t.weight + excluded.weight) END,
    variance = CASE WHEN excluded.weight = 0 THEN t.variance
                    ELSE (t.variance * t.weight + excluded.variance * excluded.weight
                          + (excluded.mean - t.mean) ^ 2 * t.weight * excluded.weight / (t.weight + excluded.weight))
                         / (t.weight + excluded.weight) END;

-- name: report_progress
INSERT INTO hourhand.progress AS p (run_id, data)
SELECT * FROM unnest($1::bigint[], $2::text[]::jsonb[]) AS given (run_id, data) ORDER BY run_id
ON CONFLICT (run_id) DO UPDATE SET data = p.data || excluded.data, reported_at = excluded.reported_at;

-- name: keep_lines
-- What runs said, numbered on from their last line, whichever worker's and attempt's that was; up to $8 lines of each, and one
-- that says that there was more. Two workers that write lines of the same run collide on a number, and one of them asks again.
-- $9: what was perhaps written before is looked for by its instant.
WITH given AS MATERIALIZED (
    SELECT * FROM unnest($1::bigint[], $2::timestamptz[], $3::timestamptz[], $4::smallint[], $5::text[], $6::text[], $7::text[])
        WITH ORDINALITY AS one (run_id, scheduled_at, at, attempt, level, text, fields, place)),
before AS MATERIALIZED (
    SELECT run_id,
           coalesce((SELECT l.number FROM hourhand.lines l WHERE l.run_id = r.run_id AND l.scheduled_at = r.scheduled_at
                     ORDER BY l.number DESC LIMIT 1), 0) AS last,
           CASE WHEN $9::boolean THEN ARRAY(SELECT l.at FROM hourhand.lines l
                                            WHERE l.run_id = r.run_id AND l.scheduled_at = r.scheduled_at)
                ELSE '{}' END AS written
    FROM (SELECT DISTINCT run_id, scheduled_at FROM given) AS r),
numbered AS (
    SELECT given.*, before.last + row_number() OVER (PARTITION BY given.run_id ORDER BY given.place) AS number
    FROM given JOIN before ON before.run_id = given.run_id WHERE given.at <> ALL (before.written))
INSERT INTO hourhand.lines (run_id, scheduled_at, number, at, attempt, level, text, fields)
SELECT run_id, scheduled_at, number, at, attempt, CASE WHEN number > $8::integer THEN 'warning' ELSE level END,
       CASE WHEN number > $8 THEN 'further lines are not kept' ELSE text END, CASE WHEN number <= $8 THEN fields::jsonb END
FROM numbered WHERE number <= $8 + 1 ORDER BY run_id, number;
