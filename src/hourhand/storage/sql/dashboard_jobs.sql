-- What the dashboard's pages on jobs read. Each statement looks at a bounded number of rows, however many there are.

-- name: look_through_names
-- The next $2 jobs by name after $1, from the index alone: up to $5 whose name has $3 in it, and begins as the caller's jobs do
-- ($4). `last` is where to go on; NULL: there is no more.
WITH looked AS MATERIALIZED (SELECT name FROM hourhand.jobs WHERE name > $1 ORDER BY name LIMIT $2)
SELECT ARRAY(SELECT name FROM looked WHERE strpos(lower(name), lower($3)) > 0 AND ($4::text[] IS NULL OR name ^@ ANY ($4)) LIMIT $5) AS names,
       (SELECT name FROM looked OFFSET $2 - 1 LIMIT 1) AS last, (SELECT count(*) FROM looked) AS looked;

-- name: look_through_jobs
-- The next $4 jobs in an order $1 after a name $2 or a number $3, and up to $5 of them that match: in their order, with their
-- numbers and their schedules'. `schedules` goes through the jobs of each of $6 in turn, of the first after number $3.
-- `paused name` sorts, so it is for a few thousand; all others follow an index. What is asked for: a part of the name $7, a task
-- $8, a queue $9, a tag $10, a state $11; what the caller may see: queues $12, beginnings of names $13.
WITH looked AS MATERIALIZED (
    (SELECT id, name, schedule_id, task, lane, tags, paused_at, end_at, max_runs FROM hourhand.jobs
     WHERE $1::text = 'name' AND name > $2::text ORDER BY name LIMIT $4)
    UNION ALL
    (SELECT id, name, schedule_id, task, lane, tags, paused_at, end_at, max_runs FROM hourhand.jobs
     WHERE $1::text = 'newest' AND id < $3::bigint ORDER BY id DESC LIMIT $4)
    UNION ALL
    (SELECT id, name, schedule_id, task, lane, tags, paused_at, end_at, max_runs FROM hourhand.jobs
     WHERE $1::text = 'paused newest' AND id < $3::bigint AND paused_at IS NOT NULL ORDER BY id DESC LIMIT $4)
    UNION ALL
    (SELECT id, name, schedule_id, task, lane, tags, paused_at, end_at, max_runs FROM (
        SELECT * FROM hourhand.jobs WHERE $1::text = 'paused name' AND paused_at IS NOT NULL ORDER BY id LIMIT 100000) AS paused
     WHERE name > $2::text ORDER BY name LIMIT $4)
    UNION ALL
    (SELECT j.* FROM unnest($6::bigint[]) WITH ORDINALITY AS s (id, place) CROSS JOIN LATERAL (
        SELECT id, name, schedule_id, task, lane, tags, paused_at, end_at, max_runs FROM hourhand.jobs
        WHERE $1::text = 'schedules' AND schedule_id = s.id AND (s.place > 1 OR id > $3::bigint) ORDER BY id LIMIT $4) AS j
     ORDER BY s.place, j.id LIMIT $4)),
found AS MATERIALIZED (
    SELECT id, name, schedule_id FROM looked l
    WHERE ($7::text IS NULL OR strpos(lower(name), lower($7)) > 0) AND ($8::text IS NULL OR task = $8)
      AND ($9::integer IS NULL OR lane / 4 = $9) AND ($10::text IS NULL OR $10 = ANY (tags))
      AND ($12::integer[] IS NULL OR lane / 4 = ANY ($12)) AND ($13::text[] IS NULL OR name ^@ ANY ($13))
      AND ($11::text IS NULL OR $11 = CASE WHEN paused_at IS NOT NULL THEN 'paused' ELSE (
          SELECT CASE WHEN s.next_run_at IS NULL OR l.end_at <= s.next_run_at OR c.fired >= l.max_runs THEN 'finished' ELSE 'active' END
          FROM hourhand.schedules s LEFT JOIN hourhand.counters c ON c.job_id = l.id WHERE s.id = l.schedule_id) END)
    LIMIT $5)
SELECT ARRAY(SELECT name FROM found) AS names, ARRAY(SELECT id FROM found) AS ids, ARRAY(SELECT schedule_id FROM found) AS schedules,
       last.name AS last, last.id AS last_id, last.schedule_id AS last_schedule, (SELECT count(*) FROM looked) AS looked
FROM (SELECT) AS one LEFT JOIN LATERAL (SELECT name, id, schedule_id FROM looked OFFSET $4 - 1 LIMIT 1) AS last ON true;

-- name: paused_jobs
-- How many there are, counted up to $1.
SELECT count(*) FROM (SELECT FROM hourhand.jobs WHERE paused_at IS NOT NULL LIMIT $1) AS paused;

-- name: next_schedules
-- The schedules that fire next, from instant $1 and number $2 on, over all shards: $3 of each shard are looked at, which is
-- all there is up to where the first of these ends. `more`: beyond that there are others.
WITH heads AS MATERIALIZED (
    SELECT s.id, s.next_run_at, s.place FROM generate_series(0, 255) AS shards (shard) CROSS JOIN LATERAL (
        SELECT id, next_run_at, row_number() OVER (ORDER BY next_run_at, id) AS place FROM (
            SELECT id, next_run_at FROM hourhand.schedules
            WHERE schedules.shard = shards.shard::smallint AND next_run_at >= $1::timestamptz AND (next_run_at > $1 OR id >= $2::bigint)
            ORDER BY next_run_at, id LIMIT $3) AS first) AS s),
edge AS MATERIALIZED (SELECT next_run_at, id FROM heads WHERE place = $3 ORDER BY next_run_at, id LIMIT 1)
SELECT h.id, h.next_run_at, e.id IS NOT NULL AS more FROM heads h LEFT JOIN edge e ON true
WHERE e.id IS NULL OR (h.next_run_at, h.id) <= (e.next_run_at, e.id) ORDER BY h.next_run_at, h.id;

-- name: last_outcomes
-- The last $2 ends of each of these jobs, for instants from $3 on and before $4: runs, dead letters, and what was left out.
SELECT mine.id AS job_id, ends.* FROM unnest($1::bigint[]) AS mine (id) CROSS JOIN LATERAL (
    SELECT * FROM (
        (SELECT run_id, scheduled_at, outcome::text AS state, finished_at AS at FROM hourhand.runs
         WHERE job_id = mine.id AND scheduled_at >= $3::timestamptz AND scheduled_at < $4::timestamptz ORDER BY scheduled_at DESC LIMIT $2)
        UNION ALL
        (SELECT run_id, scheduled_at, 'dead', died_at FROM hourhand.dead
         WHERE job_id = mine.id AND scheduled_at >= $3 AND scheduled_at < $4 ORDER BY scheduled_at DESC LIMIT $2)
        UNION ALL
        (SELECT NULL, scheduled_at, 'skipped', decided_at FROM hourhand.decisions
         WHERE job_id = mine.id AND outcome IN ('skipped', 'coalesced') AND scheduled_at >= $3 AND scheduled_at < $4
         ORDER BY scheduled_at DESC LIMIT $2)
    ) AS each ORDER BY scheduled_at DESC LIMIT $2) AS ends;

-- name: number_of_job
SELECT id FROM hourhand.jobs WHERE name = $1;

-- name: job_latest_runs
-- A job's latest runs: of those that ended, $2; of those that have not, what is going on, and what stands among the newest of
-- its lane ($3), the first that are due, and those that are set apart, so that a long queue costs no more than a short one.
SELECT * FROM (
    (SELECT outcome::text AS state, run_id, job_id, task, lane, attempt, scheduled_at, NULL::timestamptz AS due_at, started_at, finished_at,
            worker_id AS node, key, tags, reason
     FROM hourhand.runs WHERE job_id = $1 ORDER BY scheduled_at DESC LIMIT $2)
    UNION ALL
    (SELECT 'dead', run_id, job_id, task, lane, attempt, scheduled_at, NULL, started_at, died_at, worker_id, key, tags, reason
     FROM hourhand.dead WHERE job_id = $1 ORDER BY scheduled_at DESC LIMIT $2)
    UNION ALL
    (SELECT 'running', run_id, job_id, task, lane, attempt + 1, scheduled_at, NULL, claimed_at, NULL, worker_id, key, tags, NULL
     FROM (SELECT * FROM hourhand.running LIMIT 20000) AS running WHERE job_id = $1 LIMIT $2)
    UNION ALL
    (SELECT 'ready', run_id, job_id, task, lane, attempt, scheduled_at, NULL, NULL, NULL, NULL, key, tags, NULL
     FROM (SELECT * FROM hourhand.ready WHERE lane = $3 ORDER BY seq DESC LIMIT 5000) AS ready WHERE job_id = $1 LIMIT $2)
    UNION ALL
    (SELECT 'delayed', run_id, job_id, task, lane, attempt, scheduled_at, due_at, NULL, NULL, NULL, key, tags, NULL
     FROM (SELECT * FROM hourhand.delayed ORDER BY due_at LIMIT 5000) AS delayed WHERE job_id = $1 AND due_at < 'infinity' LIMIT $2)
    UNION ALL
    (SELECT 'delayed', run_id, job_id, task, lane, attempt, scheduled_at, NULL, NULL, NULL, NULL, key, tags, 'waits for the run before it to end'
     FROM hourhand.delayed WHERE job_id = $1 AND due_at = 'infinity' ORDER BY run_id DESC LIMIT $2)
    UNION ALL
    (SELECT CASE WHEN stream IS NULL THEN 'parked' ELSE 'ready' END, run_id, job_id, task, lane, attempt, scheduled_at, NULL, NULL, NULL, NULL,
            key, tags, coalesce(hourhand.kept_back(stream, hold), CASE WHEN crashes > 0 THEN 'on probation: its worker died' ELSE 'no worker knows this task' END)
     FROM (SELECT * FROM hourhand.parked ORDER BY run_id DESC LIMIT 5000) AS parked WHERE job_id = $1 LIMIT $2)
) AS latest
ORDER BY scheduled_at DESC, run_id DESC LIMIT $2;

-- name: job_pace
-- The instant of the run that stands at place $3 from the newest, from instant $2 on. NULL: there are fewer.
SELECT scheduled_at FROM hourhand.runs WHERE job_id = $1 AND scheduled_at >= $2 ORDER BY scheduled_at DESC OFFSET $3 LIMIT 1;

-- name: job_calendar
-- What became of a job's runs, in steps of $3 seconds from instant $2 on; of very many, of the newest $4. A run is late that
-- its schedule asked for and that was fired, or started its only attempt, more than $5 seconds after its instant.
SELECT date_bin(make_interval(secs => $3), scheduled_at, '2001-01-01Z') AS at, state::text, count(*) AS runs,
       count(*) FILTER (WHERE state = 'succeeded' AND attempt > 1) AS retried, count(*) FILTER (WHERE late > make_interval(secs => $5)) AS late,
       max(late) AS latest, min(scheduled_at) AS first
FROM (
    SELECT scheduled_at, state, attempt,
           CASE WHEN options ? 'by_hand' THEN NULL ELSE greatest(enqueued_at, CASE WHEN attempt = 1 THEN started_at END) - scheduled_at END AS late
    FROM (
        (SELECT scheduled_at, outcome AS state, attempt, enqueued_at, started_at, options
         FROM hourhand.runs WHERE job_id = $1 AND scheduled_at >= $2 ORDER BY scheduled_at DESC LIMIT $4)
        UNION ALL
        (SELECT scheduled_at, 'dead'::hourhand.outcome, attempt, enqueued_at, started_at, options
         FROM hourhand.dead WHERE job_id = $1 AND scheduled_at >= $2 ORDER BY scheduled_at DESC LIMIT $4)) AS ended) AS runs
GROUP BY 1, runs.state;

-- name: job_left_out
-- The latest firings that a job did not have, from instant $2 on, one by one or from one instant until another.
SELECT scheduled_at, until, count, reason FROM hourhand.decisions
WHERE job_id = $1 AND scheduled_at >= $2 AND outcome IN ('skipped', 'coalesced') ORDER BY scheduled_at DESC LIMIT $3;

-- name: job_pauses
-- When a job was paused, of late; the last pause may go on.
SELECT since, until FROM hourhand.spans WHERE job_id = $1 AND until > $2 AND paused ORDER BY until DESC LIMIT $3;

-- name: job_changes
-- Who changed a job, the newest first; a page begins below number $3. $4 and $5 are what the caller may see.
SELECT id, at, actor, via, action, subject, name, queue, before, after FROM hourhand.audit
WHERE subject = $1 AND ($3::bigint IS NULL OR id < $3)
  AND ($4::text[] IS NULL OR queue = ANY ($4)) AND ($5::text[] IS NULL OR name ^@ ANY ($5))
ORDER BY id DESC LIMIT $2;

-- name: waiting_bytes
-- How much has to be read to look for a job among the runs that wait.
SELECT pg_relation_size('hourhand.ready') + pg_relation_size('hourhand.delayed') + pg_relation_size('hourhand.parked');
