-- Who is alive, and what happens to the runs of who is not.

-- name: register_node
INSERT INTO hourhand.nodes (kind, name, lease_until, session, info)
VALUES ($1, $2, clock_timestamp() + make_interval(secs => $3), $4, $5::text::jsonb)
RETURNING id;

-- name: lock_node
-- Held by the session for as long as the process lives: the kernel closes a killed
-- process's socket, and PostgreSQL frees the lock with it.
SELECT pg_try_advisory_lock('hourhand.nodes'::regclass::oid::integer, $1);

-- name: heartbeat
-- Renew the lease. No row back: this node was declared dead and must stop what it does. Cancelled runs are looked up one by
-- one: beside a long transaction there are millions of dead rows under a worker's name, and a lease does not wait for a walk over them.
UPDATE hourhand.nodes SET lease_until = clock_timestamp() + make_interval(secs => $2), session = $3, skew = $4
WHERE id = $1 AND died_at IS NULL
RETURNING extract(epoch FROM clock_timestamp())::float8 AS now,
          ARRAY(SELECT c.run_id FROM hourhand.cancels c
                CROSS JOIN LATERAL (SELECT FROM hourhand.running r
                                    WHERE r.worker_id = $1 AND r.run_id = c.run_id LIMIT 1) AS ours) AS cancels;

-- name: stop_node
UPDATE hourhand.nodes SET stopped_at = clock_timestamp() WHERE id = $1 AND stopped_at IS NULL;

-- name: tick
-- From every node, once a second or somewhat less often: hold the duties $1, each for so many seconds ($3), as node $2, where they are
-- free, ours, or their holder is gone or can do less of them ($4). The first is the maintainer's; who holds it hears what there is to
-- do (with $5, whether runs are held back). Suspects are nodes that look dead: the lease ran out, or the session lock is gone. Who
-- does not hold it hears whether it is next in line: no other live node is older.
WITH locks AS MATERIALIZED (
    SELECT l.objid::bigint AS node FROM pg_locks l
    WHERE l.locktype = 'advisory' AND l.classid = 'hourhand.nodes'::regclass AND l.objsubid = 2 AND l.granted
      AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())),
asked AS MATERIALIZED (
    SELECT a.*, d.node AS holder, d.node = $2 AS ours, d.until > clock_timestamp() + make_interval(secs => a.seconds / 2) AS fresh,
           d.until > clock_timestamp() AND d.rank >= a.rank AND NOT EXISTS (
               SELECT FROM hourhand.nodes n
               WHERE n.id = d.node AND (n.stopped_at IS NOT NULL OR n.died_at IS NOT NULL
                                        OR n.session AND n.id NOT IN (SELECT node FROM locks))) AS alive
    FROM unnest($1::text[], $3::float8[], $4::smallint[]) AS a (name, seconds, rank) LEFT JOIN hourhand.duties d ON d.name = a.name),
taken AS (
    -- Most ticks write nothing: another one holds it, or we do and it is fresh. (In one order, whoever writes several.)
    INSERT INTO hourhand.duties AS d (name, node, until, rank)
    SELECT name, $2, clock_timestamp() + make_interval(secs => seconds), rank FROM asked
    WHERE CASE WHEN ours THEN fresh ELSE alive END IS NOT TRUE ORDER BY name
    ON CONFLICT (name) DO UPDATE SET node = excluded.node, until = excluded.until, rank = excluded.rank
    WHERE d.node = excluded.node OR d.until <= clock_timestamp() OR d.rank < excluded.rank
       OR EXISTS (SELECT FROM hourhand.nodes n
                  WHERE n.id = d.node AND (n.stopped_at IS NOT NULL OR n.died_at IS NOT NULL
                                           OR n.session AND n.id NOT IN (SELECT node FROM locks)))
    RETURNING name),
mine AS MATERIALIZED (
    SELECT granted, ($1::text[])[1] = ANY (granted) AS held
    FROM (SELECT ARRAY(SELECT name FROM taken UNION ALL SELECT name FROM asked WHERE ours AND fresh) AS granted) AS ours)
-- Only who holds it looks: beside a long transaction there are dead rows to walk over.
SELECT held, granted,
       NOT held AND NOT EXISTS (
           SELECT FROM hourhand.nodes n
           WHERE NOT n.settled AND n.id < $2 AND n.stopped_at IS NULL AND n.died_at IS NULL AND n.lease_until > clock_timestamp()
             AND n.id IS DISTINCT FROM (SELECT holder FROM asked WHERE name = ($1::text[])[1])) AS next,
       CASE WHEN held THEN (SELECT extract(epoch FROM min(due_at) - clock_timestamp())::float8
                            FROM hourhand.delayed WHERE due_at < 'infinity') END AS next_in,
       held AND (EXISTS (SELECT FROM hourhand.ready WHERE expires_at <= now())
                 OR EXISTS (SELECT FROM hourhand.delayed WHERE expires_at <= now())
                 OR EXISTS (SELECT FROM hourhand.parked WHERE expires_at <= now())) AS expired,
       held AND $5::boolean AND EXISTS (SELECT FROM hourhand.parked WHERE hold IS NOT NULL) AS held_back,
       held AND EXISTS (SELECT FROM hourhand.nodes n
                        CROSS JOIN LATERAL (SELECT FROM hourhand.running r WHERE r.worker_id = n.id LIMIT 1) AS held
                        WHERE NOT n.settled AND (n.died_at IS NOT NULL OR n.stopped_at IS NOT NULL)) AS orphans,
       ARRAY(SELECT n.id FROM hourhand.nodes n
             WHERE n.stopped_at IS NULL AND n.died_at IS NULL AND n.lease_until < clock_timestamp()) AS silent,
       ARRAY(SELECT n.id FROM hourhand.nodes n
             WHERE n.stopped_at IS NULL AND n.died_at IS NULL AND n.session AND n.id NOT IN (SELECT node FROM locks)) AS unlocked
FROM mine;

-- name: drop_duty
DELETE FROM hourhand.duties WHERE name = $1 AND node = $2;

-- name: declare_dead
-- Checked again as it is written: a lease renewed or a lock taken meanwhile saves the node.
UPDATE hourhand.nodes n SET died_at = clock_timestamp()
WHERE n.id = $1 AND n.stopped_at IS NULL AND n.died_at IS NULL
  AND (n.lease_until < clock_timestamp() OR n.session AND NOT EXISTS (
      SELECT FROM pg_locks l
      WHERE l.locktype = 'advisory' AND l.classid = 'hourhand.nodes'::regclass AND l.objid = n.id::oid AND l.objsubid = 2
        AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())))
RETURNING id;

-- name: recover
-- The runs of nodes that ended: set apart, to be run on probation. A crash charges nobody an attempt:
-- most of these runs had nothing to do with it, and one that had will be charged when it kills its own child
-- process. What was held by $1 dead workers in a row is too suspicious to go on with. An at-most-once run that had begun is
-- lost: nobody knows how far it came, and it must not begin again. A run that was asked to stop ends as cancelled. Nodes are looked at until they are settled, so that a claim which a dying
-- worker's connection committed after its death was declared is found too.
WITH lost AS (
    DELETE FROM hourhand.running WHERE ctid = ANY (ARRAY(
        SELECT held.ctid FROM hourhand.nodes n
        CROSS JOIN LATERAL (SELECT ctid FROM hourhand.running r WHERE r.worker_id = n.id ORDER BY r.run_id LIMIT 5000
                            FOR UPDATE SKIP LOCKED) AS held
        WHERE NOT n.settled AND (n.died_at IS NOT NULL OR n.stopped_at IS NOT NULL)))
    RETURNING *),
judged AS (
    SELECT lost.*, c.reason, CASE WHEN lost.begun_at IS NOT NULL THEN 'lost' WHEN c.run_id IS NOT NULL THEN 'cancelled'
                                  WHEN lost.crashes + 1 >= $1 THEN 'dead' ELSE 'probation' END AS verdict
    FROM lost LEFT JOIN hourhand.cancels c ON c.run_id = lost.run_id),
stopped AS (
    INSERT INTO hourhand.runs (run_id, job_id, scheduled_at, enqueued_at, started_at, finished_at, worker_id, lane, outcome, attempt,
                               task, payload, key, tags, options, errors, reason)
    SELECT run_id, job_id, scheduled_at, enqueued_at, begun_at, clock_timestamp(), worker_id, lane, verdict::hourhand.outcome,
           CASE WHEN begun_at IS NULL THEN attempt ELSE attempt + 1 END, task, payload, key, tags, options, errors,
           CASE verdict WHEN 'cancelled' THEN coalesce(reason, 'cancelled')
                        ELSE 'its worker died after it had begun; how far it came is not known' END
    FROM judged WHERE verdict IN ('cancelled', 'lost')
    RETURNING run_id, outcome, lane),
buried AS (
    INSERT INTO hourhand.dead (died_at, worker_id, run_id, job_id, scheduled_at, enqueued_at, lane, attempt, task,
                               payload, key, tags, options, errors, reason)
    SELECT clock_timestamp(), worker_id, run_id, job_id, scheduled_at, enqueued_at, lane, attempt, task,
           payload, key, tags, options, errors, format('%s workers in a row died while they held it', $1)
    FROM judged WHERE verdict = 'dead'
    RETURNING run_id, lane),
counted AS (
    SELECT count(hourhand.tally(queue, outcome, runs)) FROM (
        SELECT lane / 4 AS queue, outcome::text, count(*) AS runs FROM stopped GROUP BY 1, 2
        UNION ALL SELECT lane / 4, 'dead', count(*) FROM buried GROUP BY 1) AS queues),
apart AS (
    INSERT INTO hourhand.parked (seq, run_id, job_id, scheduled_at, enqueued_at, expires_at, lane, attempt, crashes,
                                 task, payload, key, tags, options, errors)
    SELECT seq, run_id, job_id, scheduled_at, enqueued_at, expires_at, lane, attempt, crashes + 1,
           task, payload, key, tags, options, errors
    FROM judged WHERE verdict = 'probation'
    RETURNING run_id, task),
told AS (
    SELECT count(pg_notify('hourhand', word)) FROM (
        SELECT DISTINCT 'p:' || task AS word FROM apart
        UNION ALL (SELECT 'g' FROM lost WHERE stream IS NOT NULL LIMIT 1)) AS words)
SELECT (SELECT count(*) FROM apart) AS recovered, (SELECT count(*) FROM stopped WHERE outcome = 'cancelled') AS cancelled,
       (SELECT count(*) FROM buried) AS buried, (SELECT count(*) FROM stopped WHERE outcome = 'lost') AS lost FROM told, counted;

-- name: promote
-- Due runs into their lanes, at a new place, those on probation apart; and when the next one is due.
WITH due AS (
    DELETE FROM hourhand.delayed WHERE ctid = ANY (ARRAY(
        SELECT ctid FROM hourhand.delayed WHERE due_at <= now() ORDER BY due_at LIMIT $1 FOR UPDATE SKIP LOCKED))
    RETURNING *),
moved AS (
    INSERT INTO hourhand.ready (seq, run_id, job_id, scheduled_at, enqueued_at, expires_at, lane, attempt, crashes,
                                task, payload, key, tags, options, errors)
    SELECT nextval('hourhand.run_numbers'), run_id, job_id, scheduled_at, enqueued_at, expires_at, lane, attempt, crashes,
           task, payload, key, tags, options, errors
    FROM (SELECT * FROM due WHERE crashes = 0 ORDER BY due_at, run_id) AS due
    RETURNING lane, seq),
apart AS (
    INSERT INTO hourhand.parked (seq, run_id, job_id, scheduled_at, enqueued_at, expires_at, lane, attempt, crashes,
                                 task, payload, key, tags, options, errors)
    SELECT nextval('hourhand.run_numbers'), run_id, job_id, scheduled_at, enqueued_at, expires_at, lane, attempt, crashes,
           task, payload, key, tags, options, errors
    FROM due WHERE crashes > 0
    RETURNING task),
told AS (
    SELECT count(pg_notify('hourhand', word)) FROM (
        SELECT format('r:%s:%s', lane, min(seq)) AS word FROM moved GROUP BY lane
        UNION ALL SELECT DISTINCT 'p:' || task FROM apart) AS words)
SELECT (SELECT count(*) FROM due) AS moved,
       (SELECT extract(epoch FROM min(due_at) - clock_timestamp())::float8 FROM hourhand.delayed
        WHERE due_at > now() AND due_at < 'infinity') AS next_in
FROM told;

-- name: expire
-- Runs whose time to start ran out before a worker came.
WITH late_ready AS (
    DELETE FROM hourhand.ready WHERE ctid = ANY (ARRAY(
        SELECT ctid FROM hourhand.ready WHERE expires_at <= now() LIMIT $1 FOR UPDATE SKIP LOCKED))
    RETURNING run_id, job_id, scheduled_at, enqueued_at, lane, attempt, task, payload, key, tags, options, errors, expires_at),
late_delayed AS (
    DELETE FROM hourhand.delayed WHERE ctid = ANY (ARRAY(
        SELECT ctid FROM hourhand.delayed WHERE expires_at <= now() LIMIT $1 FOR UPDATE SKIP LOCKED))
    RETURNING run_id, job_id, scheduled_at, enqueued_at, lane, attempt, task, payload, key, tags, options, errors, expires_at),
late_parked AS (
    DELETE FROM hourhand.parked WHERE ctid = ANY (ARRAY(
        SELECT ctid FROM hourhand.parked WHERE expires_at <= now() LIMIT $1 FOR UPDATE SKIP LOCKED))
    RETURNING run_id, job_id, scheduled_at, enqueued_at, lane, attempt, task, payload, key, tags, options, errors, expires_at),
ended AS (
    INSERT INTO hourhand.runs (run_id, job_id, scheduled_at, enqueued_at, finished_at, lane, outcome, attempt, task, payload, key,
                               tags, options, errors, reason)
    SELECT run_id, job_id, scheduled_at, enqueued_at, clock_timestamp(), lane, 'expired', attempt, task, payload, key,
           tags, options, errors,
           format('expired at %s before %s', expires_at, CASE WHEN attempt > 0 THEN 'its next attempt' ELSE 'a worker could start it' END)
    FROM (SELECT * FROM late_ready UNION ALL SELECT * FROM late_delayed UNION ALL SELECT * FROM late_parked) AS late
    RETURNING run_id, lane)
SELECT run_id FROM ended, (
    SELECT count(hourhand.tally(queue, 'expired', runs)) FROM (SELECT lane / 4 AS queue, count(*) AS runs FROM ended GROUP BY 1) AS queues) AS counted;

-- name: tidy
-- What nobody needs any more: keys that ran out, requests and reports of runs that ended,
-- nodes long gone.
WITH old_keys AS (
    DELETE FROM hourhand.keys WHERE ctid = ANY (ARRAY(
        SELECT ctid FROM hourhand.keys WHERE expires_at < now() AND expires_at < 'infinity' LIMIT 10000 FOR UPDATE SKIP LOCKED))
    RETURNING 1),
old_cancels AS (
    -- Not before the run has ended: on its way back from a worker it may be out of `running` for a while.
    DELETE FROM hourhand.cancels c WHERE requested_at < now() - interval '1 minute'
        AND ((SELECT true FROM hourhand.runs r WHERE r.run_id = c.run_id LIMIT 1)
             OR (SELECT true FROM hourhand.dead d WHERE d.run_id = c.run_id LIMIT 1) OR requested_at < now() - interval '30 days')
    RETURNING 1),
old_progress AS (
    DELETE FROM hourhand.progress p WHERE reported_at < now() - interval '1 minute'
        AND NOT EXISTS (SELECT FROM hourhand.running r WHERE r.run_id = p.run_id) RETURNING 1),
old_steps AS (
    -- A dead letter keeps its steps: replayed, it does not repeat them.
    DELETE FROM hourhand.steps WHERE ctid = ANY (ARRAY(
        SELECT s.ctid FROM hourhand.steps s WHERE made_at < now() - interval '1 minute'
            AND (SELECT true FROM hourhand.runs r WHERE r.run_id = s.run_id LIMIT 1) LIMIT 10000))
    RETURNING 1),
old_sessions AS (
    DELETE FROM hourhand.sessions WHERE expires_at < now() RETURNING 1),
old_requests AS (
    -- As long as a client may still repeat one.
    DELETE FROM hourhand.requests WHERE ctid = ANY (ARRAY(
        SELECT ctid FROM hourhand.requests WHERE made_at < now() - interval '24 hours' LIMIT 10000))
    RETURNING 1),
settled AS (
    UPDATE hourhand.nodes n SET settled = true
    WHERE NOT settled AND coalesce(stopped_at, died_at) < now() - interval '1 hour'
      AND NOT EXISTS (SELECT FROM hourhand.running r WHERE r.worker_id = n.id) RETURNING 1),
old_nodes AS (
    DELETE FROM hourhand.nodes WHERE settled AND coalesce(stopped_at, died_at) < now() - interval '30 days' RETURNING 1)
SELECT (SELECT count(*) FROM old_keys) AS keys, (SELECT count(*) FROM old_cancels) AS cancels,
       (SELECT count(*) FROM old_progress) AS progress, (SELECT count(*) FROM old_nodes) AS nodes;

-- name: add_partitions
SELECT hourhand.add_partition(parent, ((now() AT TIME ZONE 'UTC')::date + ahead)::date)
FROM unnest(ARRAY['runs', 'firings', 'lines']) AS parent, generate_series(0, 3) AS ahead;

-- name: old_partitions
SELECT hourhand.old_partitions(parent, now() - make_interval(secs => $1)) FROM unnest(ARRAY['runs', 'firings', 'lines']) AS parent;

-- name: drop_partition
SELECT hourhand.drop_partition($1);

-- name: forget
-- What is older than is kept and lies in no day's partition: a run for a day long past (a backfill) counts by its end.
WITH old_runs AS (
    DELETE FROM hourhand.runs_default WHERE ctid = ANY (ARRAY(
        SELECT ctid FROM hourhand.runs_default WHERE finished_at < now() - make_interval(secs => $1) LIMIT $2))
    RETURNING 1),
old_firings AS (
    DELETE FROM hourhand.firings_default WHERE ctid = ANY (ARRAY(
        SELECT ctid FROM hourhand.firings_default WHERE fired_at < now() - make_interval(secs => $1) LIMIT $2))
    RETURNING 1),
old_decisions AS (
    DELETE FROM hourhand.decisions WHERE ctid = ANY (ARRAY(
        SELECT ctid FROM hourhand.decisions WHERE decided_at < now() - make_interval(secs => $1) LIMIT $2))
    RETURNING 1),
old_spans AS (
    DELETE FROM hourhand.spans WHERE ctid = ANY (ARRAY(
        SELECT ctid FROM hourhand.spans WHERE until < now() - make_interval(secs => $1) LIMIT $2))
    RETURNING 1),
old_effects AS (
    DELETE FROM hourhand.effects WHERE ctid = ANY (ARRAY(
        SELECT ctid FROM hourhand.effects WHERE made_at < now() - make_interval(secs => $1) LIMIT $2))
    RETURNING 1),
old_lines AS (
    DELETE FROM hourhand.lines_default WHERE ctid = ANY (ARRAY(
        SELECT ctid FROM hourhand.lines_default WHERE at < now() - make_interval(secs => $1) LIMIT $2))
    RETURNING 1)
SELECT (SELECT count(*) FROM old_runs) + (SELECT count(*) FROM old_firings) + (SELECT count(*) FROM old_decisions)
     + (SELECT count(*) FROM old_spans) + (SELECT count(*) FROM old_effects) + (SELECT count(*) FROM old_lines) AS rows;

-- name: collect_jobs
-- One-off jobs whose instant was $1 seconds ago, and whose runs have all ended; at most $2.
WITH candidates AS MATERIALIZED (
    SELECT EXISTS (SELECT FROM hourhand.schedules
                   WHERE next_run_at IS NULL AND kind = 'once' AND anchor < now() - make_interval(secs => $1)) AS there),
busy AS MATERIALIZED (
    SELECT live.job_id FROM candidates CROSS JOIN LATERAL (
        SELECT job_id FROM hourhand.ready UNION ALL SELECT job_id FROM hourhand.delayed
        UNION ALL SELECT job_id FROM hourhand.parked UNION ALL SELECT job_id FROM hourhand.running) AS live
    WHERE candidates.there AND live.job_id IS NOT NULL),
over AS MATERIALIZED (
    SELECT j.id FROM (
        SELECT id FROM hourhand.schedules
        WHERE next_run_at IS NULL AND kind = 'once' AND anchor < now() - make_interval(secs => $1) ORDER BY anchor) AS s
    CROSS JOIN LATERAL (SELECT id FROM hourhand.jobs WHERE schedule_id = s.id AND paused_at IS NULL OFFSET 0) AS j
    WHERE j.id NOT IN (SELECT job_id FROM busy) LIMIT $2),
gone AS (
    DELETE FROM hourhand.jobs WHERE ctid = ANY (ARRAY(
        SELECT j.ctid FROM over AS idle
        CROSS JOIN LATERAL (SELECT ctid FROM hourhand.jobs WHERE id = idle.id LIMIT 1 FOR UPDATE SKIP LOCKED) AS j))
    RETURNING id, schedule_id),
uncounted AS (
    DELETE FROM hourhand.counters WHERE job_id IN (SELECT id FROM gone) RETURNING 1),
left_behind AS (
    INSERT INTO hourhand.loose (schedule_id) SELECT DISTINCT schedule_id FROM gone RETURNING 1)
SELECT count(*) FROM gone;

-- name: collect_schedules
SELECT hourhand.collect_schedules($1);
