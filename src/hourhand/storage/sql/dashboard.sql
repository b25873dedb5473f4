-- What the dashboard's overview and fleet pages ask. Nothing here counts what may be long.

-- name: recent_nodes
-- Who is alive, and who ended within the last $1 seconds.
SELECT n.id, n.kind, n.name, n.started_at, n.lease_until, n.session, n.skew, n.info, n.stopped_at, n.died_at,
       extract(epoch FROM n.lease_until - clock_timestamp())::float8 AS lease_left,
       (SELECT count(*) FROM (SELECT FROM hourhand.running r WHERE r.worker_id = n.id LIMIT 10000) AS held) AS running,
       (SELECT count(*) FROM hourhand.shards s WHERE s.owner = n.id) AS shards,
       CASE WHEN n.died_at IS NOT NULL THEN 'died' WHEN n.stopped_at IS NOT NULL THEN 'stopped'
            WHEN n.lease_until < clock_timestamp() THEN 'silent' ELSE 'alive' END AS state
FROM hourhand.nodes n
WHERE n.stopped_at IS NULL AND n.died_at IS NULL OR coalesce(n.died_at, n.stopped_at) > clock_timestamp() - make_interval(secs => $1)
ORDER BY n.stopped_at IS NOT NULL OR n.died_at IS NOT NULL, n.kind DESC, n.id DESC LIMIT 1000;

-- name: shard_owners
SELECT s.shard, s.owner, s.epoch, s.taken_at, n.name AS node_name,
       (SELECT min(c.next_run_at) FROM hourhand.schedules c WHERE c.shard = s.shard) AS next_run_at
FROM hourhand.shards s LEFT JOIN hourhand.nodes n ON n.id = s.owner ORDER BY s.shard;

-- name: parked_names
-- Tasks that no worker knows, each with a queue in which that is so and since when; the index is skipped through.
WITH RECURSIVE tasks AS (
    (SELECT task FROM hourhand.parked WHERE stream IS NULL AND hold IS NULL ORDER BY task LIMIT 1)
    UNION ALL
    SELECT (SELECT p.task FROM hourhand.parked p WHERE p.task > tasks.task AND p.stream IS NULL AND p.hold IS NULL ORDER BY p.task LIMIT 1)
    FROM tasks WHERE tasks.task IS NOT NULL)
SELECT tasks.task, one.queue, one.parked_at FROM tasks CROSS JOIN LATERAL (
    SELECT q.name AS queue, p.parked_at FROM hourhand.parked p JOIN hourhand.queues q ON q.id = p.lane / 4
    WHERE p.task = tasks.task AND p.crashes = 0 AND p.stream IS NULL AND p.hold IS NULL ORDER BY p.lane, p.seq LIMIT 1) AS one
WHERE tasks.task IS NOT NULL LIMIT 20;

-- name: task_figures
-- What tasks usually take, as their workers last said.
SELECT name, timeout, mean, sqrt(variance) AS deviation, weight, reported_at FROM hourhand.tasks ORDER BY name LIMIT 500;

-- name: unowned_shards
-- Those that nobody alive fires.
SELECT count(*) FROM hourhand.shards s
LEFT JOIN hourhand.nodes n ON n.id = s.owner AND n.stopped_at IS NULL AND n.died_at IS NULL WHERE n.id IS NULL;

-- name: forecast_groups
-- Jobs of the shards from $1 up to $2 that fire between $4 and $3, those that fire alike together.
SELECT s.kind, CASE s.kind WHEN 'once' THEN '' ELSE s.expression END AS expression, s.timezone, s.dst,
       min(s.next_run_at) AS next_at, count(*)::integer AS jobs, j.flexible,
       CASE WHEN j.start_at > $4 THEN j.start_at END AS start_at, CASE WHEN j.end_at < $3 THEN j.end_at END AS end_at
FROM hourhand.schedules s JOIN hourhand.jobs j ON j.schedule_id = s.id
WHERE s.shard >= $1 AND s.shard < $2 AND s.next_run_at < $3 AND j.paused_at IS NULL
  AND (j.start_at IS NULL OR j.start_at < $3) AND (j.end_at IS NULL OR j.end_at > s.next_run_at)
GROUP BY s.kind, 2, s.timezone, s.dst, CASE s.kind WHEN 'cron' THEN NULL ELSE date_trunc('second', s.next_run_at) END, j.flexible, 8, 9;

-- name: statistics_by_queue
-- The last $1 seconds in steps of $2 seconds, for each of queues $3.
SELECT queue, date_bin(make_interval(secs => $2), minute, '2001-01-01Z') AS at, sum(succeeded) AS succeeded, sum(failed + dead + lost) AS failed
FROM hourhand.statistics WHERE minute >= now() - make_interval(secs => $1) AND queue = ANY ($3::integer[]) GROUP BY 1, 2;
