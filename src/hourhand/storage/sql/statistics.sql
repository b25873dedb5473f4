-- What happened, in numbers: told by the nodes, merged by the maintainer, read by whoever looks.

-- name: add_statistics
-- What node $1 has seen since it last said so.
INSERT INTO hourhand.statistics AS s (minute, queue, node, succeeded, failed, dead, cancelled, skipped, expired, lost, fired, missed,
                                      seconds, latest, lateness)
SELECT date_trunc('minute', clock_timestamp()), queue, $1, coalesce(succeeded, 0), coalesce(failed, 0), coalesce(dead, 0),
       coalesce(cancelled, 0), coalesce(skipped, 0), coalesce(expired, 0), coalesce(lost, 0), coalesce(fired, 0), coalesce(missed, 0),
       coalesce(seconds, 0), coalesce(latest, 0), coalesce(lateness, '{}')
FROM jsonb_to_recordset($2::text::jsonb) AS given (
    queue integer, succeeded integer, failed integer, dead integer, cancelled integer, skipped integer, expired integer, lost integer,
    fired integer, missed integer, seconds float8, latest real, lateness integer[])
ON CONFLICT (minute, queue, node) DO UPDATE SET
    succeeded = s.succeeded + excluded.succeeded, failed = s.failed + excluded.failed, dead = s.dead + excluded.dead,
    cancelled = s.cancelled + excluded.cancelled, skipped = s.skipped + excluded.skipped, expired = s.expired + excluded.expired,
    lost = s.lost + excluded.lost, fired = s.fired + excluded.fired, missed = s.missed + excluded.missed,
    seconds = s.seconds + excluded.seconds, latest = greatest(s.latest, excluded.latest),
    lateness = coalesce(hourhand.add_each(s.lateness, excluded.lateness), '{}');

-- name: merge_statistics
-- Minutes that are over, of all nodes into one row; what is older than three hours into tens of minutes, than two days into hours.
WITH old AS (
    DELETE FROM hourhand.statistics
    WHERE node <> 0 AND minute < now() - interval '5 minutes' OR minute < now() - interval '3 hours' AND minute <> hourhand.slot(minute)
    RETURNING *, hourhand.slot(minute) AS slot)
INSERT INTO hourhand.statistics AS s (minute, queue, node, succeeded, failed, dead, cancelled, skipped, expired, lost, fired, missed,
                                      seconds, latest, lateness)
SELECT slot, queue, 0, sum(succeeded), sum(failed), sum(dead), sum(cancelled), sum(skipped), sum(expired), sum(lost), sum(fired),
       sum(missed), sum(seconds), max(latest), coalesce(hourhand.sum_each(lateness), '{}')
FROM old GROUP BY slot, queue
ON CONFLICT (minute, queue, node) DO UPDATE SET
    succeeded = s.succeeded + excluded.succeeded, failed = s.failed + excluded.failed, dead = s.dead + excluded.dead,
    cancelled = s.cancelled + excluded.cancelled, skipped = s.skipped + excluded.skipped, expired = s.expired + excluded.expired,
    lost = s.lost + excluded.lost, fired = s.fired + excluded.fired, missed = s.missed + excluded.missed,
    seconds = s.seconds + excluded.seconds, latest = greatest(s.latest, excluded.latest),
    lateness = coalesce(hourhand.add_each(s.lateness, excluded.lateness), '{}');

-- name: take_sample
-- How full the queues are ($1), of which the row of this minute is written anew each time; and how many jobs there are ($2).
WITH counted AS (
    INSERT INTO hourhand.totals (name, value, taken_at)
    SELECT name, value, clock_timestamp() FROM (
        SELECT 'jobs' AS name, (SELECT count(*) FROM hourhand.jobs) AS value
        UNION ALL SELECT 'paused_jobs', (SELECT count(*) FROM hourhand.jobs WHERE paused_at IS NOT NULL)
        UNION ALL SELECT 'schedules', (SELECT count(*) FROM hourhand.schedules WHERE next_run_at IS NOT NULL)
        UNION ALL SELECT 'held_runs', (SELECT count(*) FROM hourhand.parked WHERE hold IS NOT NULL)) AS counted
    WHERE $2::boolean
    ON CONFLICT (name) DO UPDATE SET value = excluded.value, taken_at = excluded.taken_at),
ready AS (SELECT lane / 4 AS queue, count(*) AS runs FROM hourhand.ready GROUP BY 1),
delayed AS (SELECT lane / 4 AS queue, count(*) AS runs FROM hourhand.delayed GROUP BY 1),
parked AS (SELECT lane / 4 AS queue, count(*) AS runs FROM hourhand.parked WHERE stream IS NULL GROUP BY 1),
streamed AS (SELECT lane / 4 AS queue, count(*) AS runs FROM hourhand.parked WHERE stream IS NOT NULL GROUP BY 1),
running AS (SELECT lane / 4 AS queue, count(*) AS runs FROM hourhand.running GROUP BY 1),
dead AS (SELECT lane / 4 AS queue, count(*) AS runs FROM hourhand.dead GROUP BY 1)
INSERT INTO hourhand.samples (minute, queue, taken_at, ready, delayed, parked, running, dead, oldest)
SELECT date_trunc('minute', clock_timestamp()), q.id, clock_timestamp(), coalesce(ready.runs, 0) + coalesce(streamed.runs, 0), coalesce(delayed.runs, 0),
       coalesce(parked.runs, 0), coalesce(running.runs, 0), coalesce(dead.runs, 0),
       hourhand.waits(q.id)
FROM hourhand.queues q
LEFT JOIN ready ON ready.queue = q.id LEFT JOIN delayed ON delayed.queue = q.id LEFT JOIN parked ON parked.queue = q.id
LEFT JOIN streamed ON streamed.queue = q.id LEFT JOIN running ON running.queue = q.id LEFT JOIN dead ON dead.queue = q.id
WHERE $1::boolean
ON CONFLICT (minute, queue) DO UPDATE SET
    taken_at = excluded.taken_at, ready = excluded.ready, delayed = excluded.delayed, parked = excluded.parked,
    running = excluded.running, dead = excluded.dead, oldest = excluded.oldest;

-- name: thin_samples
-- As above: the fullest minute stands for the others.
WITH old AS (
    DELETE FROM hourhand.samples WHERE minute < now() - interval '3 hours' AND minute <> hourhand.slot(minute) RETURNING *)
INSERT INTO hourhand.samples AS s (minute, queue, taken_at, ready, delayed, parked, running, dead, oldest)
SELECT hourhand.slot(minute), queue, max(taken_at), max(ready), max(delayed), max(parked), max(running), max(dead), max(oldest)
FROM old GROUP BY 1, 2
ON CONFLICT (minute, queue) DO UPDATE SET
    taken_at = greatest(s.taken_at, excluded.taken_at), ready = greatest(s.ready, excluded.ready),
    delayed = greatest(s.delayed, excluded.delayed), parked = greatest(s.parked, excluded.parked),
    running = greatest(s.running, excluded.running), dead = greatest(s.dead, excluded.dead), oldest = greatest(s.oldest, excluded.oldest);

-- name: statistics_over
-- The last $1 seconds in steps of $2 seconds, of queues $3; firings are under queue 0.
SELECT date_bin(make_interval(secs => $2), minute, '2001-01-01Z') AS at, sum(succeeded) AS succeeded, sum(failed) AS failed,
       sum(dead) AS dead, sum(cancelled) AS cancelled, sum(skipped) AS skipped, sum(expired) AS expired, sum(lost) AS lost,
       sum(fired) AS fired, sum(missed) AS missed, sum(seconds) AS seconds, max(latest) AS latest,
       ARRAY[sum(coalesce(lateness[1], 0)), sum(coalesce(lateness[2], 0)), sum(coalesce(lateness[3], 0)),
       sum(coalesce(lateness[4], 0)), sum(coalesce(lateness[5], 0)), sum(coalesce(lateness[6], 0)),
       sum(coalesce(lateness[7], 0)), sum(coalesce(lateness[8], 0)), sum(coalesce(lateness[9], 0)),
       sum(coalesce(lateness[10], 0)), sum(coalesce(lateness[11], 0)), sum(coalesce(lateness[12], 0)),
       sum(coalesce(lateness[13], 0)), sum(coalesce(lateness[14], 0)), sum(coalesce(lateness[15], 0)),
       sum(coalesce(lateness[16], 0))]::integer[] AS lateness
FROM hourhand.statistics
WHERE minute >= now() - make_interval(secs => $1) AND ($3::integer[] IS NULL OR queue = ANY ($3))
GROUP BY 1 ORDER BY 1;

-- name: queue_rates
-- What each queue has had in the last $1 seconds.
SELECT queue, sum(succeeded) AS succeeded, sum(failed) AS failed, sum(dead) AS dead, sum(cancelled + skipped + expired) AS stopped,
       sum(lost) AS lost, sum(seconds) AS seconds, max(latest) AS latest
FROM hourhand.statistics WHERE minute >= now() - make_interval(secs => $1) GROUP BY queue;

-- name: samples_over
-- As above: the fullest moment of each step, over all of these queues together.
SELECT date_bin(make_interval(secs => $2), minute, '2001-01-01Z') AS at, max(ready) AS ready, max(delayed) AS delayed,
       max(parked) AS parked, max(running) AS running, max(dead) AS dead, max(oldest) AS oldest
FROM (SELECT minute, sum(ready) AS ready, sum(delayed) AS delayed, sum(parked) AS parked, sum(running) AS running, sum(dead) AS dead,
             max(oldest) AS oldest
      FROM hourhand.samples
      WHERE minute >= now() - make_interval(secs => $1) AND ($3::integer[] IS NULL OR queue = ANY ($3)) GROUP BY minute) AS minutes
GROUP BY 1 ORDER BY 1;

-- name: latest_samples
-- Each queue as it was found last, and for how long its head has been due now.
SELECT q.id, q.name, q.paused_at, coalesce(s.ready, 0) AS ready, coalesce(s.delayed, 0) AS delayed, coalesce(s.parked, 0) AS parked,
       coalesce(s.running, 0) AS running, coalesce(s.dead, 0) AS dead, s.taken_at,
       extract(epoch FROM clock_timestamp() - s.taken_at)::float8 AS age,
       hourhand.waits(q.id) AS oldest_seconds
FROM hourhand.queues q
LEFT JOIN hourhand.samples s ON s.queue = q.id AND s.minute = (SELECT max(minute) FROM hourhand.samples)
WHERE $1::integer[] IS NULL OR q.id = ANY ($1)
ORDER BY q.name;

-- name: totals
SELECT name, value, taken_at FROM hourhand.totals;

-- name: forget_statistics
WITH old_statistics AS (
    DELETE FROM hourhand.statistics WHERE minute < now() - make_interval(secs => $1) RETURNING 1),
old_samples AS (
    DELETE FROM hourhand.samples WHERE minute < now() - make_interval(secs => $1) RETURNING 1),
old_follows AS (
    DELETE FROM hourhand.follows WHERE ctid = ANY (ARRAY(
        SELECT ctid FROM hourhand.follows WHERE made_at < now() - make_interval(secs => $1) LIMIT $2))
    RETURNING 1)
SELECT (SELECT count(*) FROM old_statistics) + (SELECT count(*) FROM old_samples) + (SELECT count(*) FROM old_follows) AS rows;

-- name: fleet_size
SELECT kind, state, count(*) AS nodes FROM (
    SELECT n.kind, CASE WHEN n.died_at IS NOT NULL THEN 'dead' WHEN n.lease_until < clock_timestamp() THEN 'late' ELSE 'alive' END AS state
    FROM hourhand.nodes n
    WHERE n.stopped_at IS NULL AND (n.died_at IS NULL OR n.died_at > clock_timestamp() - interval '1 hour')) AS there
GROUP BY kind, state;

-- name: fleet
-- The newest $1 nodes that are there.
SELECT n.id, n.kind, n.name, n.skew, extract(epoch FROM n.lease_until - clock_timestamp())::float8 AS lease_left,
       CASE WHEN n.lease_until < clock_timestamp() THEN 'late' ELSE 'alive' END AS state
FROM hourhand.nodes n WHERE n.stopped_at IS NULL AND n.died_at IS NULL ORDER BY n.id DESC LIMIT $1;

-- name: firing_state
-- Shards that no living scheduler has, for how long the most overdue schedule has been due, and what came too late within the hour.
SELECT (SELECT coalesce(sum(missed), 0) FROM hourhand.statistics WHERE queue = 0 AND minute >= now() - interval '1 hour') AS missed,
       (SELECT count(*) FROM hourhand.shards s WHERE NOT EXISTS (
            SELECT FROM hourhand.nodes n
            WHERE n.id = s.owner AND n.stopped_at IS NULL AND n.died_at IS NULL AND n.lease_until > clock_timestamp())) AS unowned,
       coalesce((SELECT extract(epoch FROM clock_timestamp() - min(first.next_run_at))::float8
                 FROM hourhand.shards s CROSS JOIN LATERAL (
                     SELECT next_run_at FROM hourhand.schedules c WHERE c.shard = s.shard AND c.next_run_at < (SELECT clock_timestamp())
                     ORDER BY next_run_at LIMIT 1) AS first), 0) AS overdue;
