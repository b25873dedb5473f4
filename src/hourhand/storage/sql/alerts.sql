-- What is wrong, and who has been told.

-- name: take_duty
-- Node $2 has the duty $1 for $3 seconds if it is ours or free: its holder has ended, let it run out, or can do less of it ($4).
-- Most of the time this writes nothing: another one holds it, or we do and it is fresh.
WITH holder AS MATERIALIZED (
    SELECT d.node = $2 AS ours, d.until > clock_timestamp() + make_interval(secs => $3 / 2) AS fresh,
           d.until > clock_timestamp() AND d.rank >= $4 AND NOT EXISTS (
               SELECT FROM hourhand.nodes n WHERE n.id = d.node AND (n.stopped_at IS NOT NULL OR n.died_at IS NOT NULL)) AS alive
    FROM hourhand.duties d WHERE d.name = $1),
duty AS (
    INSERT INTO hourhand.duties AS d (name, node, until, rank)
    SELECT $1, $2, clock_timestamp() + make_interval(secs => $3), $4
    WHERE NOT EXISTS (SELECT FROM holder WHERE CASE WHEN ours THEN fresh ELSE alive END)
    ON CONFLICT (name) DO UPDATE SET node = excluded.node, until = excluded.until, rank = excluded.rank
    WHERE d.node = excluded.node OR d.until <= clock_timestamp() OR d.rank < excluded.rank
       OR EXISTS (SELECT FROM hourhand.nodes n WHERE n.id = d.node AND (n.stopped_at IS NOT NULL OR n.died_at IS NOT NULL))
    RETURNING true)
SELECT EXISTS (SELECT FROM duty) OR EXISTS (SELECT FROM holder WHERE ours AND fresh) AS held;

-- name: number_for_duties
-- For a process that is no node: the number of a node that there will never be.
SELECT nextval(pg_get_serial_sequence('hourhand.nodes', 'id'))::integer;

-- name: begin_look
-- What is open, with the time from before that was read: what a look that began then has found says nothing of what came later. With
-- the newest place in any queue. And with those of the kinds of rules ($1) that may find something: each asks for no less than its
-- rules do, by the longest of their windows or the lowest of their thresholds ($2), so that others need not be asked. (The ends of
-- indexes are asked for: of whether there is any, the planner may believe that a look at the table finds one soon.) One row at least.
WITH begun AS MATERIALIZED (
    SELECT statement_timestamp() AS at, (SELECT last_value FROM hourhand.run_numbers) AS seq, ARRAY(
        SELECT kind FROM unnest($1::text[], $2::float8[]) AS asked (kind, bound) WHERE CASE kind
            WHEN 'dead_growth' THEN (SELECT max(died_at) FROM hourhand.dead) > statement_timestamp() - make_interval(secs => bound)
            WHEN 'overdue' THEN EXISTS (
                SELECT FROM hourhand.shards s
                WHERE (SELECT min(c.next_run_at) FROM hourhand.schedules c WHERE c.shard = s.shard)
                    < statement_timestamp() - make_interval(secs => bound))
            WHEN 'catch_up' THEN greatest(
                (SELECT max(fired_at) FROM hourhand.firings WHERE late), (SELECT max(decided_at) FROM hourhand.decisions))
                > statement_timestamp() - make_interval(secs => bound)
            WHEN 'node_lost' THEN EXISTS (
                SELECT FROM hourhand.nodes
                WHERE stopped_at IS NULL AND coalesce(died_at, lease_until) > statement_timestamp() - make_interval(secs => bound)
                  AND (died_at IS NOT NULL OR lease_until < statement_timestamp() - interval '5 seconds'))
            WHEN 'clock_skew' THEN EXISTS (
                SELECT FROM hourhand.nodes
                WHERE stopped_at IS NULL AND died_at IS NULL AND lease_until > statement_timestamp() AND abs(skew) > bound)
            WHEN 'lateness' THEN (SELECT max(minute) FROM hourhand.statistics)
                >= date_trunc('minute', statement_timestamp() - make_interval(secs => bound))
            WHEN 'lost_runs' THEN (SELECT max(minute) FROM hourhand.statistics)
                >= date_trunc('minute', statement_timestamp() - make_interval(secs => bound))
            ELSE true END) AS kinds)
SELECT begun.*, i.rule, i.subject FROM begun LEFT JOIN hourhand.incidents i ON i.closed_at IS NULL;

-- name: begin_look_blindly
-- The same where one of these tables cannot be read: every kind may find something, and those that can look do.
SELECT begun.*, i.rule, i.subject
FROM (SELECT statement_timestamp() AS at, (SELECT last_value FROM hourhand.run_numbers) AS seq, $1::text[] AS kinds) AS begun
LEFT JOIN hourhand.incidents i ON i.closed_at IS NULL;

-- name: note_incidents
-- What was found by rule $1: subjects $7, with what is said of them ($8), how much it is ($9) and where to look ($10). What is new
-- is opened, at once or once it has been so for $6 seconds; those that this opened come back. Not what another has closed since
-- this look began ($11): he knows better.
WITH found AS MATERIALIZED (
    SELECT * FROM unnest($7::text[], $8::text[], $9::float8[], $10::text[]) AS given (subject, message, value, link)),
ripe AS (
    UPDATE hourhand.incidents i
    SET opened_at = clock_timestamp(), seen_at = clock_timestamp(), severity = $3, message = f.message, value = f.value, link = f.link,
        repeat = $4, hooks = $5
    FROM found f
    WHERE i.rule = $1 AND i.subject = f.subject AND i.closed_at IS NULL AND i.opened_at IS NULL
      AND i.since <= statement_timestamp() - make_interval(secs => $6)
    RETURNING i.id, i.subject),
seen AS (
    UPDATE hourhand.incidents i SET seen_at = clock_timestamp(), message = f.message, value = f.value, repeat = $4
    FROM found f
    WHERE i.rule = $1 AND i.subject = f.subject AND i.closed_at IS NULL
      AND (i.opened_at IS NOT NULL OR i.since > statement_timestamp() - make_interval(secs => $6))
    RETURNING i.id),
fresh AS (
    INSERT INTO hourhand.incidents (rule, kind, subject, severity, message, value, link, repeat, hooks, since, opened_at)
    SELECT $1, $2, f.subject, $3, f.message, f.value, f.link, $4, $5, statement_timestamp(),
           CASE WHEN $6::float8 = 0 THEN statement_timestamp() END
    FROM found f
    WHERE NOT EXISTS (SELECT FROM hourhand.incidents i WHERE i.rule = $1 AND i.subject = f.subject AND i.closed_at IS NULL)
      AND NOT EXISTS (SELECT FROM hourhand.incidents i
                      WHERE i.rule = $1 AND i.subject = f.subject AND i.closed_at >= $11::timestamptz)
    ON CONFLICT DO NOTHING
    RETURNING id, subject, opened_at)
SELECT id, subject FROM ripe UNION ALL SELECT id, subject FROM fresh WHERE opened_at IS NOT NULL;

-- name: end_incidents
-- It is not so any more: of rule $1, subjects $2, each with how it ended ($3), if nobody has seen it for $4 seconds, nor since this look
-- began ($5). What was never opened leaves no trace.
WITH unripe AS (
    DELETE FROM hourhand.incidents
    WHERE rule = $1 AND subject = ANY ($2::text[]) AND closed_at IS NULL AND opened_at IS NULL AND seen_at < $5::timestamptz)
UPDATE hourhand.incidents i SET closed_at = clock_timestamp(), ending = gone.ending
FROM unnest($2::text[], $3::text[]) AS gone (subject, ending)
WHERE i.rule = $1 AND i.subject = gone.subject AND i.closed_at IS NULL AND i.opened_at IS NOT NULL
  AND i.seen_at <= clock_timestamp() - make_interval(secs => $4)
  AND i.seen_at < $5::timestamptz
RETURNING i.id, i.subject, extract(epoch FROM i.closed_at - i.opened_at)::float8 AS seconds;

-- name: list_incidents
-- The newest first, of all or ($1) of those that are open; a page begins below incident $4.
SELECT i.id, i.rule, i.kind, i.subject, i.severity, i.message, i.value, i.link, i.since, i.opened_at, i.closed_at, i.ending,
       coalesce((SELECT json_agg(json_build_object(
                            'channel', n.channel, 'opened_at', n.opened_at, 'closed_at', n.closed_at, 'reminders', n.reminders,
                            'attempts', n.attempts, 'error', n.error) ORDER BY n.channel)
                 FROM hourhand.notices n WHERE n.incident = i.id), '[]')::text AS notices
FROM hourhand.incidents i
WHERE i.opened_at IS NOT NULL AND (NOT $1 OR i.closed_at IS NULL) AND ($2::text IS NULL OR i.rule = $2)
  AND ($3::timestamptz IS NULL OR i.closed_at IS NULL OR i.closed_at >= $3) AND ($4::bigint IS NULL OR i.id < $4)
ORDER BY i.id DESC LIMIT $5;

-- name: forget_incidents
WITH old AS (
    DELETE FROM hourhand.incidents WHERE ctid = ANY (ARRAY(
        SELECT ctid FROM hourhand.incidents WHERE closed_at < now() - make_interval(secs => $1) LIMIT $2))
    RETURNING 1)
SELECT count(*) FROM old;

-- name: add_notices
-- Which channels ($2, side by side with the rules $1) hear of what is open. What has just ended is among it, so that who was away
-- for a moment misses nothing.
INSERT INTO hourhand.notices (incident, channel)
SELECT i.id, heard.channel FROM unnest($1::text[], $2::text[]) AS heard (rule, channel)
JOIN hourhand.incidents i ON i.rule = heard.rule
WHERE i.opened_at IS NOT NULL AND (i.closed_at IS NULL OR i.closed_at > now() - interval '5 minutes')
ON CONFLICT DO NOTHING;

-- name: add_hook_notices
-- The same for functions of an app, whatever the rule, unless it names its channels and they are not among them.
INSERT INTO hourhand.notices (incident, channel)
SELECT i.id, hook FROM hourhand.incidents i CROSS JOIN unnest($1::text[]) AS hook
WHERE i.hooks AND i.opened_at IS NOT NULL AND (i.closed_at IS NULL OR i.closed_at > now() - interval '5 minutes')
ON CONFLICT DO NOTHING;

-- name: claim_notice
-- The next thing that channel $1 has not been told, for the caller alone for $2 seconds: that it is so, later that it is over.
WITH due AS (
    SELECT n.incident
    FROM hourhand.notices n JOIN hourhand.incidents i ON i.id = n.incident
    WHERE n.channel = $1 AND NOT n.done AND n.until <= clock_timestamp()
      AND (n.opened_at IS NULL OR i.closed_at IS NOT NULL OR n.told_at <= clock_timestamp() - make_interval(secs => i.repeat))
    ORDER BY n.incident LIMIT 1 FOR UPDATE OF n SKIP LOCKED)
UPDATE hourhand.notices n
SET until = clock_timestamp() + make_interval(secs => $2), token = nextval('hourhand.claim_tokens'), attempts = n.attempts + 1
FROM due JOIN hourhand.incidents i ON i.id = due.incident
WHERE n.incident = due.incident AND n.channel = $1
RETURNING n.incident, n.token, n.attempts, n.reminders,
          CASE WHEN n.opened_at IS NULL THEN 'opened' WHEN i.closed_at IS NOT NULL THEN 'closed' ELSE 'reminder' END AS state,
          i.rule, i.kind, i.subject, i.severity, i.message, i.value, i.link, i.opened_at AS since, i.closed_at AS until, i.ending;

-- name: notice_told
-- Channel $2 has been told of incident $1 what $4 says. No row back: another holds it now, and will tell it again.
UPDATE hourhand.notices
SET opened_at = coalesce(opened_at, clock_timestamp()), told_at = clock_timestamp(),
    closed_at = CASE WHEN $4 = 'closed' THEN clock_timestamp() END, done = $4 = 'closed',
    reminders = reminders + CASE WHEN $4 = 'reminder' THEN 1 ELSE 0 END, until = '-infinity', token = NULL, attempts = 0, error = NULL
WHERE incident = $1 AND channel = $2 AND token = $3
RETURNING incident;

-- name: notice_untold
-- It could not be delivered: again in $4 seconds, unless it has been over for a day.
UPDATE hourhand.notices n
SET until = clock_timestamp() + make_interval(secs => $4), token = NULL, error = $5,
    done = EXISTS (SELECT FROM hourhand.incidents i WHERE i.id = n.incident AND i.closed_at < clock_timestamp() - interval '24 hours')
WHERE n.incident = $1 AND n.channel = $2 AND n.token = $3
RETURNING done;

-- name: growing_dead
-- Dead letters of the last $1 seconds, by queue; the latest $2 are looked at.
SELECT q.name AS queue, count(*) AS letters, mode() WITHIN GROUP (ORDER BY d.task) AS task
FROM (SELECT lane / 4 AS queue, task FROM hourhand.dead
      WHERE died_at > (SELECT clock_timestamp()) - make_interval(secs => $1) ORDER BY died_at DESC LIMIT $2) AS d
JOIN hourhand.queues q ON q.id = d.queue
GROUP BY q.name;

-- name: waiting_runs
-- What waits at the head of each queue and since when it is due: ready (also in the streams of a managed queue), or delayed and not
-- promoted, or set apart because no worker knows its task; what is held back is meant to wait. The place (`seq`) of a ready one tells better since when it is ready: see the caller.
WITH RECURSIVE apart AS (
    (SELECT task, lane, seq, parked_at FROM hourhand.parked WHERE stream IS NULL AND hold IS NULL ORDER BY task, lane, seq LIMIT 1)
    UNION ALL
    SELECT next.* FROM apart CROSS JOIN LATERAL (
        SELECT task, lane, seq, parked_at FROM hourhand.parked p
        WHERE (p.task, p.lane) > (apart.task, apart.lane) AND p.stream IS NULL AND p.hold IS NULL ORDER BY task, lane, seq LIMIT 1) AS next)
SELECT q.name AS queue, q.paused_at IS NOT NULL AS paused, head.state, head.task, head.seq, head.since
FROM hourhand.queues q CROSS JOIN LATERAL (
    SELECT 'ready' AS state, r.task, r.seq, r.since FROM generate_series(0, 3) AS class CROSS JOIN LATERAL (
        SELECT task, seq, greatest(scheduled_at, enqueued_at) AS since FROM hourhand.ready
        WHERE lane = q.id * 4 + class ORDER BY seq LIMIT 1) AS r
    UNION ALL
    SELECT 'ready', p.task, p.seq, p.since FROM generate_series(0, 3) AS class CROSS JOIN LATERAL (
        SELECT task, seq, greatest(scheduled_at, enqueued_at) AS since FROM hourhand.parked
        WHERE lane = q.id * 4 + class AND stream IS NOT NULL ORDER BY seq LIMIT 1) AS p
    UNION ALL
    SELECT 'parked', task, NULL, parked_at FROM apart WHERE lane / 4 = q.id) AS head
UNION ALL
SELECT q.name, q.paused_at IS NOT NULL, 'delayed', d.task, NULL, d.due_at
FROM (SELECT lane / 4 AS queue, task, due_at FROM hourhand.delayed
      WHERE due_at < (SELECT clock_timestamp()) - interval '5 seconds' ORDER BY due_at LIMIT 1000) AS d
JOIN hourhand.queues q ON q.id = d.queue;

-- name: late_starts
-- First starts of the last $1 seconds, by queue and by how late they were.
SELECT q.name AS queue, coalesce(hourhand.sum_each(s.lateness), '{}') AS lateness, max(s.latest)::float8 AS latest
FROM hourhand.statistics s JOIN hourhand.queues q ON q.id = s.queue
WHERE s.minute >= date_trunc('minute', clock_timestamp() - make_interval(secs => $1))
GROUP BY q.name;

-- name: overdue_schedules
-- Schedules that should have been fired $1 seconds ago; counted up to a thousand.
SELECT count(*) AS schedules, extract(epoch FROM clock_timestamp() - min(next_run_at))::float8 AS seconds,
       EXISTS (SELECT FROM hourhand.nodes n
               WHERE n.kind = 'scheduler' AND n.stopped_at IS NULL AND n.died_at IS NULL AND n.lease_until > clock_timestamp()) AS alive
FROM (SELECT late.next_run_at FROM hourhand.shards s CROSS JOIN LATERAL (
          SELECT next_run_at FROM hourhand.schedules c
          WHERE c.shard = s.shard AND c.next_run_at < (SELECT clock_timestamp()) - make_interval(secs => $1) ORDER BY next_run_at LIMIT 1000) AS late
      LIMIT 1000) AS overdue;

-- name: caught_up
-- What was made up for in the last $1 seconds: runs of firings that came late, and firings that were left out. Each row counts for
-- one at least, so that $2 of them are enough to know.
SELECT coalesce((SELECT sum(runs) FROM (
           SELECT f.runs FROM hourhand.firings f
           WHERE f.late AND f.runs > 0 AND f.fired_at > (SELECT clock_timestamp()) - make_interval(secs => $1) LIMIT $2) AS late), 0)::bigint AS runs,
       coalesce((SELECT sum(count) FROM (
           SELECT d.count FROM hourhand.decisions d
           WHERE d.decided_at > (SELECT clock_timestamp()) - make_interval(secs => $1) AND d.outcome IN ('coalesced', 'skipped')
             AND d.reason LIKE 'missed %' LIMIT $2) AS omitted), 0)::bigint AS left_out;

-- name: lost_nodes
-- Nodes that died within the last $1 seconds, or whose lease has run out without anybody saying so, until as many of their kind
-- have been alive again as before. Before is some seconds earlier: who restarts a process does so before its death is noticed.
-- For half a minute each counts as lost, so that one that is replaced at once is told of too.
WITH nodes AS MATERIALIZED (
    SELECT n.id, n.kind, n.name, n.started_at, n.stopped_at,
           coalesce(n.died_at, CASE WHEN n.stopped_at IS NULL AND n.lease_until < clock_timestamp() - interval '5 seconds'
                                    THEN n.lease_until END) AS died_at
    FROM hourhand.nodes n
    WHERE coalesce(n.stopped_at, n.died_at, n.lease_until) > clock_timestamp() - make_interval(secs => $1)),
changes AS (
    SELECT kind, started_at AS at, 1 AS change FROM nodes
    UNION ALL SELECT kind, coalesce(died_at, stopped_at), -1 FROM nodes WHERE coalesce(died_at, stopped_at) IS NOT NULL),
fleet AS MATERIALIZED (SELECT kind, at, sum(change) OVER (PARTITION BY kind ORDER BY at) AS alive FROM changes),
lost AS (
    SELECT d.id, d.kind, d.name, d.died_at,
           coalesce((SELECT f.alive FROM fleet f WHERE f.kind = d.kind AND f.at <= d.died_at - interval '20 seconds'
                     ORDER BY f.at DESC LIMIT 1), 0) AS before
    FROM nodes d WHERE d.died_at IS NOT NULL AND d.stopped_at IS NULL ORDER BY d.died_at DESC LIMIT 200)
SELECT lost.*, (SELECT count(*) FROM nodes n WHERE n.kind = lost.kind AND n.stopped_at IS NULL AND n.died_at IS NULL) AS alive
FROM lost
WHERE died_at > clock_timestamp() - interval '30 seconds'
   OR NOT EXISTS (SELECT FROM fleet f WHERE f.kind = lost.kind AND f.at >= lost.died_at AND f.alive >= lost.before);

-- name: skewed_nodes
SELECT id, kind, name, skew FROM hourhand.nodes
WHERE stopped_at IS NULL AND died_at IS NULL AND lease_until > clock_timestamp() AND abs(skew) > $1
ORDER BY abs(skew) DESC LIMIT 1000;

-- name: lost_by_queue
SELECT q.name AS queue, sum(s.lost)::bigint AS runs FROM hourhand.statistics s JOIN hourhand.queues q ON q.id = s.queue
WHERE s.minute >= date_trunc('minute', clock_timestamp() - make_interval(secs => $1)) AND s.lost > 0 GROUP BY q.name;

-- name: names_of_jobs
-- The $2 names after $1, in order: the last of them, how many there are, and those that fit $3 and not $4.
WITH page AS MATERIALIZED (SELECT name FROM hourhand.jobs WHERE name > $1 ORDER BY name LIMIT $2)
SELECT (SELECT name FROM page ORDER BY name DESC LIMIT 1) AS last, (SELECT count(*) FROM page) AS looked,
       ARRAY(SELECT name FROM page WHERE name ~ $3 AND ($4::text IS NULL OR name !~ $4)) AS names;

-- name: unknown_jobs
SELECT name FROM unnest($1::text[]) AS given (name)
WHERE NOT EXISTS (SELECT FROM hourhand.jobs j WHERE j.name = given.name) ORDER BY name;

-- name: silent_jobs
-- Of these jobs ($1), those that should have succeeded within $2 seconds and have not: counted from when they were added, began to
-- apply, or were resumed. Not those that are paused or have nothing ahead of them. A success is looked for among the runs of twice
-- the time and a day, which spares looking into all partitions: of instants before that hardly one has succeeded within it.
SELECT j.name,
       (SELECT max(r.finished_at) FROM hourhand.runs r
        WHERE r.job_id = j.id AND r.scheduled_at > now() - make_interval(secs => 2 * $2 + 86400) AND r.outcome = 'succeeded') AS succeeded_at
FROM hourhand.jobs j JOIN hourhand.schedules s ON s.id = j.schedule_id
CROSS JOIN LATERAL (
    SELECT greatest(j.created_at, j.start_at, CASE WHEN s.kind = 'once' THEN s.anchor END,
                    CASE WHEN j.active_since > now() - make_interval(secs => $2) THEN (
                        SELECT max(p.until) FROM hourhand.spans p
                        WHERE p.job_id = j.id AND p.paused AND p.until > now() - make_interval(secs => $2)) END) AS since) AS base
WHERE j.name = ANY ($1::text[]) AND j.paused_at IS NULL AND s.next_run_at IS NOT NULL
  AND (j.end_at IS NULL OR j.end_at > s.next_run_at) AND base.since <= now() - make_interval(secs => $2)
  AND NOT EXISTS (SELECT FROM hourhand.runs r
                  WHERE r.job_id = j.id AND r.scheduled_at > now() - make_interval(secs => 2 * $2 + 86400)
                    AND r.outcome = 'succeeded' AND r.finished_at > now() - make_interval(secs => $2) OFFSET 0)
  AND NOT EXISTS (SELECT FROM hourhand.counters c WHERE c.job_id = j.id AND c.fired >= j.max_runs)
ORDER BY j.name;

-- name: jobs_that_spoke
-- What has become of these jobs.
SELECT j.name, j.paused_at IS NOT NULL AS paused,
       (SELECT max(r.finished_at) FROM hourhand.runs r
        WHERE r.job_id = j.id AND r.scheduled_at > now() - make_interval(secs => 2 * $2 + 86400) AND r.outcome = 'succeeded') AS succeeded_at
FROM hourhand.jobs j WHERE j.name = ANY ($1::text[]);
