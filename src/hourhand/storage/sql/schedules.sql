-- The trigger layer's statements: who owns which shard, what is due, and firing it.

-- name: survey_shards
-- The schedulers that live, and who owns what. A scheduler whose session lock is gone does not live, whatever
-- its lease says: taking over from it is fenced, so haste does no harm.
WITH locks AS MATERIALIZED (
    SELECT l.objid::bigint AS node FROM pg_locks l
    WHERE l.locktype = 'advisory' AND l.classid = 'hourhand.nodes'::regclass AND l.objsubid = 2 AND l.granted
      AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database()))
SELECT ARRAY(SELECT n.id FROM hourhand.nodes n
             WHERE n.kind = 'scheduler' AND n.stopped_at IS NULL AND n.died_at IS NULL AND n.lease_until > clock_timestamp()
               AND (NOT n.session OR n.id IN (SELECT node FROM locks)) ORDER BY n.id) AS live,
       ARRAY(SELECT owner FROM hourhand.shards ORDER BY shard) AS owners,
       ARRAY(SELECT epoch FROM hourhand.shards ORDER BY shard) AS epochs,
       ARRAY(SELECT coalesce(tzdata, '') FROM hourhand.shards ORDER BY shard) AS tzdata;

-- name: take_shards
-- Shards that nobody owns, or whose owner is not among the live $3 any more. Not for a node that was itself declared dead.
UPDATE hourhand.shards SET owner = $1, epoch = epoch + 1, taken_at = clock_timestamp()
WHERE shard = ANY ($2::smallint[]) AND (owner IS NULL OR owner <> ALL ($3::integer[]))
  AND EXISTS (SELECT FROM hourhand.nodes n WHERE n.id = $1 AND n.died_at IS NULL AND n.stopped_at IS NULL)
RETURNING shard, epoch;

-- name: release_shards
-- Handed over in order: free at once for who should have them.
WITH released AS (
    UPDATE hourhand.shards SET owner = NULL, epoch = epoch + 1
    WHERE owner = $1 AND shard = ANY ($2::smallint[])
    RETURNING shard)
SELECT shard, pg_notify('hourhand', 'o') FROM released;

-- name: near_schedules
-- Hints for the wheel: what these shards have within the horizon. (The clock is read once: an index is of no use for what may
-- change from row to row.)
SELECT s.id, s.shard, extract(epoch FROM s.next_run_at)::float8 AS due
FROM unnest($1::smallint[]) AS mine (shard)
CROSS JOIN LATERAL (SELECT id, shard, next_run_at FROM hourhand.schedules
                    WHERE shard = mine.shard AND next_run_at <= (SELECT clock_timestamp()) + make_interval(secs => $2)
                    ORDER BY next_run_at OFFSET 0) AS s;

-- name: hinted_schedules
-- The wheel only hints; the table knows what each schedule is and when it is due, and the clock is its own.
-- It also says how many jobs each has, counted up to $2, and how much lateness the strictest of them puts up with: 0 of one
-- that is not late and would be asked for long. (Whether it is armed is asked outside, lest the index of those be taken for the
-- one to look in.)
SELECT s.id, s.shard, s.kind, s.expression, s.timezone, s.dst, s.anchor, s.next_run_at, s.revision, clock_timestamp() AS present,
       CASE WHEN s.next_run_at < clock_timestamp() - interval '1 second' OR counted.jobs BETWEEN 1 AND 100
            THEN (SELECT min(misfire_grace) FROM hourhand.jobs j WHERE j.schedule_id = s.id) ELSE 0 END AS patience,
       counted.jobs
FROM unnest($1::bigint[]) AS hint (id)
CROSS JOIN LATERAL (SELECT * FROM hourhand.schedules WHERE id = hint.id LIMIT 1) AS s
CROSS JOIN LATERAL (
    SELECT count(*) AS jobs FROM (SELECT FROM hourhand.jobs j WHERE j.schedule_id = s.id LIMIT $2) AS first_ones) AS counted
WHERE s.next_run_at IS NOT NULL;

-- name: fire
-- Node $1 fires schedules ($4), due at $5, to be due again at $6, planned under the revisions $7, in shards $2 held under the
-- epochs $3. One statement: the shards' rows are locked against a change of hands and their epochs compared; a schedule moves
-- only from the very instant it was planned for, and only if the database's clock says it is due and, of one that is late, that
-- each of its jobs puts up with it (else it is for `fire_late`); the ledger and the runs follow from what moved.
-- (Rows are picked by ctid, and compared in ways that no index is of use for, so that the planner never reads the whole table
-- for them, however small it takes it to be; one that was changed meanwhile is compared again in its new version.)
WITH fence AS (
    SELECT s.shard, s.epoch FROM hourhand.shards s JOIN unnest($2::smallint[], $3::bigint[]) AS held (shard, epoch)
        ON held.shard = s.shard AND held.epoch = s.epoch
    WHERE s.owner = $1 FOR SHARE OF s),
picked AS MATERIALIZED (
    SELECT planned.*, fence.epoch, found.place
    FROM unnest($4::bigint[], $5::timestamptz[], $6::timestamptz[], $7::integer[]) AS planned (id, due_at, next_at, revision)
    CROSS JOIN LATERAL (SELECT ctid AS place, shard FROM hourhand.schedules WHERE id = planned.id LIMIT 1) AS found
    JOIN fence ON fence.shard = found.shard
    WHERE planned.due_at > statement_timestamp() - interval '1 second' OR NOT EXISTS (
        SELECT FROM hourhand.jobs j WHERE j.schedule_id = planned.id
          AND planned.due_at < statement_timestamp() - make_interval(secs => j.misfire_grace))),
moved AS (
    UPDATE hourhand.schedules s SET next_run_at = planned.next_at
    FROM picked AS planned
    WHERE s.ctid = ANY (ARRAY(SELECT place FROM picked)) AND s.id + 0 = planned.id AND s.revision = planned.revision
      AND coalesce(s.next_run_at, 'infinity') = planned.due_at AND planned.due_at <= clock_timestamp()
    RETURNING s.id, planned.due_at, planned.epoch),
chosen AS MATERIALIZED (
    SELECT m.id AS schedule_id, m.due_at, j.*
    FROM moved m CROSS JOIN LATERAL (
        SELECT id AS job_id, lane, task, payload, tags, options, overlap, max_runs, flexible,
               overlap IS NOT NULL OR max_runs IS NOT NULL AS special
        FROM hourhand.jobs
        WHERE schedule_id = m.id AND active_since <= m.due_at AND (paused_at IS NULL OR paused_at > m.due_at)
          AND (start_at IS NULL OR start_at <= m.due_at) AND (end_at IS NULL OR end_at > m.due_at) OFFSET 0) AS j),
started AS (
    INSERT INTO hourhand.ready (seq, run_id, job_id, scheduled_at, enqueued_at, lane, task, payload, tags, options)
    SELECT number, number, job_id, due_at, clock_timestamp(), lane, task, payload, tags, options
    FROM (SELECT nextval('hourhand.run_numbers') AS number, * FROM chosen WHERE NOT special AND flexible = 0) AS numbered
    RETURNING lane, seq),
spread AS (
    INSERT INTO hourhand.delayed (due_at, run_id, job_id, scheduled_at, enqueued_at, lane, task, payload, tags, options)
    SELECT due_at + hourhand.flexible_delay(job_id, flexible), nextval('hourhand.run_numbers'), job_id, due_at, clock_timestamp(),
           lane, task, payload, tags, options
    FROM chosen WHERE NOT special AND flexible > 0
    RETURNING run_id),
single AS MATERIALIZED (
    SELECT c.schedule_id, one.run_id
    FROM (SELECT * FROM chosen WHERE special ORDER BY job_id) AS c
    CROSS JOIN LATERAL hourhand.fire_one(c.job_id, c.due_at, c.due_at + hourhand.flexible_delay(c.job_id, c.flexible), c.lane, c.task,
                                         c.payload, c.tags, c.options, c.overlap, c.max_runs) AS one),
made AS (
    SELECT schedule_id, sum(runs) AS runs FROM (
        SELECT schedule_id, count(*) AS runs FROM chosen WHERE NOT special GROUP BY schedule_id
        UNION ALL SELECT schedule_id, count(run_id) FROM single GROUP BY schedule_id) AS parts
    GROUP BY schedule_id),
ledger AS (
    INSERT INTO hourhand.firings (schedule_id, scheduled_at, until, fired_at, epoch, count, node, runs, late)
    SELECT m.id, m.due_at, m.due_at, clock_timestamp(), m.epoch, 1, $1, coalesce(made.runs, 0), false
    FROM moved m LEFT JOIN made ON made.schedule_id = m.id
    RETURNING schedule_id, runs),
told AS (
    SELECT count(pg_notify('hourhand', word)) FROM (
        SELECT format('r:%s:%s', lane, min(seq)) AS word FROM started GROUP BY lane
        UNION ALL SELECT 'd' WHERE EXISTS (SELECT FROM spread)) AS words)
SELECT ledger.schedule_id, ledger.runs FROM ledger, told;

-- name: fire_late
-- Schedules ($4) that move from $5 to $6, under the revisions $7, past the instants $9 (each of the schedule $8), which came
-- while nobody fired them. For each job, what is within its grace fires as if nothing had been; of what is older, its
-- policy decides: nothing (SKIP), the last one (RUN_ONCE), or the latest `max_missed` (RUN_ALL, spread over time: $10
-- a second for each schedule). What is left out is on record, once, with from, to and count.
WITH fence AS (
    SELECT s.shard, s.epoch FROM hourhand.shards s JOIN unnest($2::smallint[], $3::bigint[]) AS held (shard, epoch)
        ON held.shard = s.shard AND held.epoch = s.epoch
    WHERE s.owner = $1 FOR SHARE OF s),
picked AS MATERIALIZED (
    SELECT planned.*, fence.epoch, found.place
    FROM unnest($4::bigint[], $5::timestamptz[], $6::timestamptz[], $7::integer[]) AS planned (id, due_at, next_at, revision)
    CROSS JOIN LATERAL (SELECT ctid AS place, shard FROM hourhand.schedules WHERE id = planned.id LIMIT 1) AS found
    JOIN fence ON fence.shard = found.shard),
moved AS (
    UPDATE hourhand.schedules s SET next_run_at = planned.next_at
    FROM picked AS planned
    WHERE s.ctid = ANY (ARRAY(SELECT place FROM picked)) AND s.id + 0 = planned.id AND s.revision = planned.revision
      AND coalesce(s.next_run_at, 'infinity') = planned.due_at AND planned.due_at <= clock_timestamp()
    RETURNING s.id, planned.due_at, planned.epoch),
instants AS MATERIALIZED (
    SELECT m.id AS schedule_id, m.due_at, m.epoch, given.at
    FROM moved m JOIN (SELECT DISTINCT * FROM unnest($8::bigint[], $9::timestamptz[]) AS twice (schedule_id, at)) AS given
        ON given.schedule_id = m.id),
judged AS MATERIALIZED (
    SELECT j.*, instants.schedule_id, instants.at, instants.at < statement_timestamp() - make_interval(secs => j.misfire_grace) AS missed,
           row_number() OVER (PARTITION BY j.job_id, instants.at < statement_timestamp() - make_interval(secs => j.misfire_grace)
                              ORDER BY instants.at DESC) AS place
    FROM instants CROSS JOIN LATERAL (
        SELECT id AS job_id, name, lane, task, payload, tags, options, missed_window, max_missed, misfire_grace, active_since,
               paused_at, start_at, end_at, overlap, max_runs, flexible, overlap IS NOT NULL OR max_runs IS NOT NULL AS special
        FROM hourhand.jobs WHERE schedule_id = instants.schedule_id OFFSET 0) AS j
    WHERE j.active_since <= instants.at AND (j.paused_at IS NULL OR j.paused_at > instants.at)
      AND (j.start_at IS NULL OR j.start_at <= instants.at) AND (j.end_at IS NULL OR j.end_at > instants.at)),
chosen AS MATERIALIZED (
    SELECT *, missed AND missed_window = 'RUN_ALL' AS drained FROM judged
    WHERE NOT missed OR place <= CASE missed_window WHEN 'RUN_ONCE' THEN 1 WHEN 'RUN_ALL' THEN max_missed ELSE 0 END),
started AS (
    INSERT INTO hourhand.ready (seq, run_id, job_id, scheduled_at, enqueued_at, lane, task, payload, tags, options)
    SELECT number, number, job_id, at, clock_timestamp(), lane, task, payload, tags, options
    FROM (SELECT nextval('hourhand.run_numbers') AS number, ordered.*
          FROM (SELECT * FROM chosen WHERE NOT special AND NOT drained AND flexible = 0 ORDER BY at, job_id) AS ordered) AS numbered
    RETURNING lane, seq),
spread AS (
    INSERT INTO hourhand.delayed (due_at, run_id, job_id, scheduled_at, enqueued_at, lane, task, payload, tags, options)
    SELECT CASE WHEN drained THEN clock_timestamp() + make_interval(secs => turn / $10::float8)
                ELSE at + hourhand.flexible_delay(job_id, flexible) END,
           nextval('hourhand.run_numbers'), job_id, at, clock_timestamp(), lane, task, payload, tags, options
    FROM (SELECT row_number() OVER (PARTITION BY schedule_id, drained ORDER BY at, job_id) - 1 AS turn, *
          FROM chosen WHERE NOT special AND (drained OR flexible > 0)) AS queue
    RETURNING run_id),
single AS MATERIALIZED (
    SELECT c.schedule_id, one.run_id
    FROM (SELECT * FROM chosen WHERE special ORDER BY job_id, at) AS c
    CROSS JOIN LATERAL hourhand.fire_one(c.job_id, c.at, c.at + hourhand.flexible_delay(c.job_id, c.flexible), c.lane, c.task,
                                         c.payload, c.tags, c.options, c.overlap, c.max_runs) AS one),
left_out AS (
    INSERT INTO hourhand.decisions (job_id, scheduled_at, until, count, outcome, reason)
    SELECT job_id, min(at), max(at), count(*), CASE missed_window WHEN 'RUN_ONCE' THEN 'coalesced' ELSE 'skipped' END,
           CASE missed_window WHEN 'RUN_ONCE' THEN 'missed while no scheduler fired it; the last of them ran for all'
                              WHEN 'SKIP' THEN 'missed while no scheduler fired it'
                              ELSE format('missed while no scheduler fired it, beyond max_missed of %s', max(max_missed)) END
    FROM judged WHERE missed AND place > CASE missed_window WHEN 'RUN_ONCE' THEN 1 WHEN 'RUN_ALL' THEN max_missed ELSE 0 END
    GROUP BY job_id, missed_window
    ON CONFLICT DO NOTHING RETURNING job_id),
made AS MATERIALIZED (
    SELECT schedule_id, sum(runs) AS runs FROM (
        SELECT schedule_id, count(*) AS runs FROM chosen WHERE NOT special GROUP BY schedule_id
        UNION ALL SELECT schedule_id, count(run_id) FROM single GROUP BY schedule_id) AS parts
    GROUP BY schedule_id),
ledger AS (
    INSERT INTO hourhand.firings (schedule_id, scheduled_at, until, fired_at, epoch, count, node, runs, late)
    SELECT all_.schedule_id, all_.due_at, all_.until, clock_timestamp(), all_.epoch, all_.instants, $1, coalesce(made.runs, 0), true
    FROM (SELECT schedule_id, due_at, epoch, max(at) AS until, count(*) AS instants FROM instants GROUP BY 1, 2, 3) AS all_
    LEFT JOIN made ON made.schedule_id = all_.schedule_id
    RETURNING schedule_id, runs),
left_behind AS (SELECT count(*) AS jobs FROM left_out),
too_late AS MATERIALIZED (
    SELECT schedule_id, count(*) AS missed, count(*) FILTER (WHERE missed_window = 'RUN_ONCE' AND place > 1) AS coalesced,
           count(*) FILTER (WHERE missed_window = 'SKIP' OR missed_window = 'RUN_ALL' AND place > max_missed) AS skipped
    FROM judged WHERE missed GROUP BY schedule_id),
told AS (
    SELECT count(pg_notify('hourhand', word)) FROM (
        SELECT format('r:%s:%s', lane, min(seq)) AS word FROM started GROUP BY lane
        UNION ALL SELECT 'd' WHERE EXISTS (SELECT FROM spread)) AS words)
SELECT ledger.schedule_id, ledger.runs, left_behind.jobs AS left_out,
       CASE WHEN $11 THEN ARRAY(SELECT DISTINCT name FROM judged WHERE judged.schedule_id = ledger.schedule_id ORDER BY name LIMIT 5) END AS jobs,
       coalesce(too_late.missed, 0) AS missed, coalesce(too_late.coalesced, 0) AS coalesced, coalesce(too_late.skipped, 0) AS skipped
FROM ledger LEFT JOIN too_late ON too_late.schedule_id = ledger.schedule_id, told, left_behind;

-- name: zoned_schedules
-- The cron schedules of a shard that go by a zone's clock and were still ahead when it was taken, and since when
-- nothing of them was fired: new rules may have an instant between then and now.
SELECT s.id, s.kind, s.expression, s.timezone, s.dst, s.anchor, s.next_run_at,
       coalesce((SELECT f.until FROM hourhand.firings f WHERE f.schedule_id = s.id ORDER BY f.scheduled_at DESC LIMIT 1),
                (SELECT min(j.active_since) FROM hourhand.jobs j WHERE j.schedule_id = s.id), clock_timestamp()) AS since
FROM hourhand.schedules s
WHERE s.shard = $1 AND s.kind = 'cron' AND s.timezone <> 'UTC'
  AND s.next_run_at > (SELECT taken_at FROM hourhand.shards WHERE shard = $1);

-- name: move_schedules
-- New time zone rules: schedules $4 of shard $2 (held under the epoch $3 by node $1) move from $5 to $6. On record for each
-- of their jobs. What somebody is changing stays as it is: nobody waits for him.
WITH fence AS (
    SELECT s.shard FROM hourhand.shards s WHERE s.shard = $2 AND s.epoch = $3 AND s.owner = $1 FOR SHARE OF s),
picked AS MATERIALIZED (
    SELECT planned.*, found.place
    FROM unnest($4::bigint[], $5::timestamptz[], $6::timestamptz[]) AS planned (id, before_, after_)
    CROSS JOIN LATERAL (
        SELECT ctid AS place, shard FROM hourhand.schedules WHERE id = planned.id LIMIT 1 FOR NO KEY UPDATE SKIP LOCKED) AS found
    JOIN fence ON fence.shard = found.shard),
moved AS (
    UPDATE hourhand.schedules s SET next_run_at = planned.after_
    FROM picked AS planned
    WHERE s.ctid = ANY (ARRAY(SELECT place FROM picked)) AND s.id + 0 = planned.id
      AND coalesce(s.next_run_at, 'infinity') = planned.before_
    RETURNING s.id, planned.before_, planned.after_),
noted AS (
    INSERT INTO hourhand.decisions (job_id, scheduled_at, until, count, outcome, reason)
    SELECT j.id, m.before_, m.before_, 0, 'moved',
           format('the rules of its time zone changed (%s): the next firing is at %s instead', $7::text,
                  to_char(m.after_ AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS"Z"'))
    FROM moved m CROSS JOIN LATERAL (SELECT id FROM hourhand.jobs WHERE schedule_id = m.id OFFSET 0) AS j
    ON CONFLICT DO NOTHING RETURNING job_id)
SELECT m.id, j.name, m.before_, m.after_ FROM moved m
LEFT JOIN LATERAL (SELECT name FROM hourhand.jobs WHERE schedule_id = m.id OFFSET 0) AS j ON true
WHERE (SELECT count(*) FROM noted) >= 0 ORDER BY j.name;

-- name: set_tzdata
UPDATE hourhand.shards SET tzdata = $4 WHERE shard = $2 AND epoch = $3 AND owner = $1;
