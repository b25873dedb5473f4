-- What the pages on runs and dead letters ask.

-- name: job_number
-- A job by number or by name, and whose it is.
SELECT j.id, j.name, q.name AS queue FROM hourhand.jobs j JOIN hourhand.queues q ON q.id = j.lane / 4
WHERE j.id = coalesce((SELECT i.id FROM hourhand.jobs i WHERE i.id = $2::bigint), (SELECT n.id FROM hourhand.jobs n WHERE n.name = $1::text));

-- name: job_names
SELECT id, name FROM hourhand.jobs WHERE id = ANY ($1::bigint[]);

-- name: chain_of
-- The runs of a chain, in order: back from run $1 to the first, and on to the last. Places of those before it are negative.
WITH RECURSIVE before AS (
    SELECT f.run_id, -1 AS place FROM hourhand.follows f WHERE f.next_id = $1
    UNION ALL
    SELECT f.run_id, b.place - 1 FROM before b JOIN hourhand.follows f ON f.next_id = b.run_id WHERE b.place > -100),
after AS (
    SELECT f.next_id AS run_id, 1 AS place FROM hourhand.follows f WHERE f.run_id = $1
    UNION ALL
    SELECT f.next_id, a.place + 1 FROM after a JOIN hourhand.follows f ON f.run_id = a.run_id WHERE a.place < 100)
SELECT run_id, place FROM before UNION ALL SELECT $1::bigint, 0 UNION ALL SELECT run_id, place FROM after ORDER BY place;

-- name: find_states
-- Where these runs are by now, in short.
SELECT 'ready' AS state, r.run_id, r.job_id, r.task, r.lane
FROM hourhand.queues q CROSS JOIN generate_series(0, 2) AS class CROSS JOIN unnest($1::bigint[]) AS mine (run_id)
CROSS JOIN LATERAL (SELECT * FROM hourhand.ready WHERE lane = q.id * 4 + class AND seq = mine.run_id AND run_id = seq LIMIT 1) AS r
UNION ALL
SELECT 'ready', run_id, job_id, task, lane FROM hourhand.ready WHERE run_id = ANY ($1) AND run_id <> seq
UNION ALL
SELECT 'delayed', run_id, job_id, task, lane FROM hourhand.delayed WHERE run_id = ANY ($1)
UNION ALL
SELECT CASE WHEN stream IS NULL THEN 'parked' ELSE 'ready' END, run_id, job_id, task, lane FROM hourhand.parked WHERE run_id = ANY ($1)
UNION ALL
SELECT 'running', r.run_id, r.job_id, r.task, r.lane FROM hourhand.nodes n CROSS JOIN unnest($1::bigint[]) AS mine (run_id)
CROSS JOIN LATERAL (SELECT * FROM hourhand.running WHERE worker_id = n.id AND run_id = mine.run_id LIMIT 1) AS r
WHERE NOT n.settled
UNION ALL
SELECT 'dead', run_id, job_id, task, lane FROM hourhand.dead WHERE run_id = ANY ($1)
UNION ALL
SELECT outcome::text, run_id, job_id, task, lane FROM hourhand.runs WHERE run_id = ANY ($1);

-- name: last_line
-- How many lines run $1, which is for the instant $2, has said.
SELECT number FROM hourhand.lines WHERE run_id = $1 AND scheduled_at = $2 ORDER BY number DESC LIMIT 1;

-- name: steps_done
-- The steps of a run that a retry would not repeat, and when they were made.
SELECT name, made_at FROM hourhand.steps WHERE run_id = $1 ORDER BY made_at, name LIMIT 200;

-- name: run_before
-- The run of a job that goes on, for which another waits.
SELECT run_id FROM hourhand.live WHERE job_id = $1;

-- name: serving
-- Live workers that take from queue $1: how many, how many of them have the code of task $2.
SELECT count(*) AS workers, count(*) FILTER (WHERE info->'tasks' ? $2::text) AS knowing
FROM hourhand.nodes
WHERE kind = 'worker' AND stopped_at IS NULL AND died_at IS NULL AND lease_until > clock_timestamp()
  AND (info->'queues' IS NULL OR jsonb_typeof(info->'queues') <> 'array' OR info->'queues' ? $1::text);

-- name: head_of_queue
-- Since when queue $1 is paused, and for how long the first of its runs has been due.
SELECT q.paused_at, hourhand.waits(q.id) AS oldest_seconds FROM hourhand.queues q WHERE q.name = $1;

-- name: dead_groups
-- The tasks of dead letters and the types of their last errors: from one to the next in the index, $1 at most, with task $2 and
-- error $3; and when the latest of each died, since $4 and before $5.
WITH RECURSIVE each AS (
    (SELECT task, error, 1 AS place FROM hourhand.dead WHERE $2::text IS NULL OR task = $2 ORDER BY task, error LIMIT 1)
    UNION ALL
    SELECT next.task, next.error, e.place + 1 FROM each e CROSS JOIN LATERAL (
        SELECT d.task, d.error FROM hourhand.dead d
        WHERE (d.task, d.error) > (e.task, e.error) AND ($2::text IS NULL OR d.task = $2) ORDER BY d.task, d.error LIMIT 1) AS next
    WHERE e.place < $1::integer)
SELECT e.task, e.error, latest.died_at AS newest, (SELECT max(place) FROM each) = $1 AS cut
FROM each e CROSS JOIN LATERAL (
    SELECT died_at FROM hourhand.dead d WHERE d.task = e.task AND d.error = e.error AND ($5::timestamptz IS NULL OR d.died_at < $5)
    ORDER BY d.died_at DESC LIMIT 1) AS latest
WHERE ($3::text IS NULL OR e.error = $3) AND ($4::timestamptz IS NULL OR latest.died_at >= $4);

-- name: count_groups
-- How many letters each of these groups has (tasks $1, errors $2) that match: queue $3, tag $4, died since $5 and before $6, in what
-- the caller may see ($7, $8); and the latest of them. Of each group the last $9 are looked at.
SELECT g.task, g.error, l.letters, l.looked = $9::bigint AS more, l.newest, latest.run_id AS latest,
       CASE WHEN l.letters = l.looked THEN (
           SELECT d.died_at FROM hourhand.dead d WHERE d.task = g.task AND d.error = g.error AND ($5::timestamptz IS NULL OR d.died_at >= $5)
           ORDER BY d.died_at LIMIT 1) ELSE l.oldest END AS oldest
FROM unnest($1::text[], $2::text[]) WITH ORDINALITY AS g (task, error, place)
CROSS JOIN LATERAL (
    SELECT count(*) AS looked, count(*) FILTER (WHERE fits) AS letters, max(died_at) FILTER (WHERE fits) AS newest,
           min(died_at) FILTER (WHERE fits) AS oldest
    FROM (SELECT died_at, ($3::integer IS NULL OR lane / 4 = $3) AND ($4::text IS NULL OR $4 = ANY (tags))
                 AND ($7::integer[] IS NULL OR lane / 4 = ANY ($7))
                 AND ($8::text[] IS NULL OR EXISTS (SELECT FROM hourhand.jobs j WHERE j.id = job_id AND j.name ^@ ANY ($8))) AS fits
          FROM hourhand.dead d
          WHERE d.task = g.task AND d.error = g.error AND ($5::timestamptz IS NULL OR d.died_at >= $5) AND ($6::timestamptz IS NULL OR d.died_at < $6)
          ORDER BY d.died_at DESC LIMIT $9) AS seen) AS l
LEFT JOIN LATERAL (
    SELECT d.run_id FROM hourhand.dead d
    WHERE l.letters > 0 AND d.task = g.task AND d.error = g.error AND d.died_at <= l.newest
      AND ($3::integer IS NULL OR lane / 4 = $3) AND ($4::text IS NULL OR $4 = ANY (tags)) AND ($7::integer[] IS NULL OR lane / 4 = ANY ($7))
      AND ($8::text[] IS NULL OR EXISTS (SELECT FROM hourhand.jobs j WHERE j.id = job_id AND j.name ^@ ANY ($8)))
    ORDER BY d.died_at DESC LIMIT 1) AS latest ON true
ORDER BY g.place;

-- name: find_letters
-- The latest letters that match (task $1, queue $2, tag $3, error $4, died since $5 and before $6, in what the caller may see),
-- below the place ($10, $11): $9 at most, of the $12 that are looked at. A task and an error together are found by the index.
WITH looked AS MATERIALIZED (
    SELECT run_id, died_at, ($1::text IS NULL OR task = $1) AND ($2::integer IS NULL OR lane / 4 = $2) AND ($3::text IS NULL OR $3 = ANY (tags))
           AND ($4::text IS NULL OR error = $4) AND ($7::integer[] IS NULL OR lane / 4 = ANY ($7))
           AND ($8::text[] IS NULL OR EXISTS (SELECT FROM hourhand.jobs j WHERE j.id = job_id AND j.name ^@ ANY ($8))) AS fits
    FROM hourhand.dead
    WHERE ($1::text IS NULL OR $4::text IS NULL OR (task = $1 AND error = $4))
      AND ($5::timestamptz IS NULL OR died_at >= $5) AND ($6::timestamptz IS NULL OR died_at < $6)
      AND ($10::timestamptz IS NULL OR (died_at, run_id) < ($10, $11::bigint))
    ORDER BY died_at DESC, run_id DESC LIMIT $12),
ends AS (
    SELECT (SELECT count(*) FROM looked) AS looked, last.died_at AS last_at, last.run_id AS last_id
    FROM (SELECT died_at, run_id FROM looked ORDER BY died_at, run_id LIMIT 1) AS last)
SELECT ends.*, chosen.run_id FROM ends LEFT JOIN (
    SELECT run_id, died_at FROM looked WHERE fits ORDER BY died_at DESC, run_id DESC LIMIT $9) AS chosen ON true
ORDER BY chosen.died_at DESC, chosen.run_id DESC;

-- name: short_letters
-- For a list: with the last error only, and without a payload that is long.
SELECT run_id, job_id, task, lane, attempt, scheduled_at, enqueued_at, started_at, died_at AS finished_at, worker_id AS node, key, tags, options,
       CASE WHEN pg_column_size(payload) <= 20000 THEN payload END AS payload, CASE WHEN errors IS NOT NULL THEN jsonb_build_array(errors->-1) END AS errors, reason
FROM hourhand.dead WHERE run_id = ANY ($1::bigint[]);

-- name: count_dead_up_to
SELECT count(*) FROM (
    SELECT FROM hourhand.dead
    WHERE ($1::bigint[] IS NULL OR run_id = ANY ($1)) AND ($2::text IS NULL OR task = $2) AND ($3::integer IS NULL OR lane / 4 = $3)
      AND ($4::text IS NULL OR $4 = ANY (tags)) AND ($5::text IS NULL OR error = $5)
      AND ($6::timestamptz IS NULL OR died_at >= $6) AND ($7::timestamptz IS NULL OR died_at < $7)
      AND ($8::integer[] IS NULL OR lane / 4 = ANY ($8))
      AND ($9::text[] IS NULL OR EXISTS (SELECT FROM hourhand.jobs j WHERE j.id = job_id AND j.name ^@ ANY ($9)))
    LIMIT $10) AS counted;
