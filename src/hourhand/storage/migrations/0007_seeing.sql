-- What can be seen at a glance: kept as it happens, so that nobody has to count when somebody looks.

CREATE FUNCTION hourhand.add_each(one integer[], other integer[]) RETURNS integer[] LANGUAGE sql IMMUTABLE AS $$
    SELECT array_agg(coalesce(a, 0) + coalesce(b, 0) ORDER BY place) FROM unnest(one, other) WITH ORDINALITY AS each (a, b, place)
$$;

CREATE AGGREGATE hourhand.sum_each(integer[]) (sfunc = hourhand.add_each, stype = integer[], initcond = '{}');

-- What a minute is kept under: itself, later its ten minutes, later its hour.
CREATE FUNCTION hourhand.slot(minute timestamptz) RETURNS timestamptz LANGUAGE sql STABLE AS $$
    SELECT CASE WHEN minute < now() - interval '2 days' THEN date_trunc('hour', minute)
                WHEN minute < now() - interval '3 hours' THEN date_bin('10 minutes', minute, '2001-01-01Z') ELSE minute END
$$;

-- What happened in each minute, by queue; firings under queue 0. Every node adds to rows of its own, so nobody waits for
-- anybody; minutes that are over are merged (into node 0), then into tens of minutes and into hours. What a process had not told when it
-- was killed, a few seconds' worth, is missing here; the history is exact.
CREATE TABLE hourhand.statistics (
    minute    timestamptz NOT NULL,
    queue     integer NOT NULL,
    node      integer NOT NULL,
    succeeded integer NOT NULL DEFAULT 0,
    failed    integer NOT NULL DEFAULT 0,  -- attempts that are followed by another
    dead      integer NOT NULL DEFAULT 0,
    cancelled integer NOT NULL DEFAULT 0,
    skipped   integer NOT NULL DEFAULT 0,
    expired   integer NOT NULL DEFAULT 0,
    lost      integer NOT NULL DEFAULT 0,
    fired     integer NOT NULL DEFAULT 0,
    missed    integer NOT NULL DEFAULT 0,
    seconds   double precision NOT NULL DEFAULT 0,  -- spent in handlers
    latest    real NOT NULL DEFAULT 0,  -- the worst wait of a run for its first start
    lateness  integer[] NOT NULL DEFAULT '{}',  -- first starts, by how late they were
    PRIMARY KEY (minute, queue, node)
) WITH (fillfactor = 70, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_scale_factor = 0.02);

-- For how many seconds the first run of a queue has waited since it was due and there: one that was ordered for an instant long past
-- (a backfill) has waited since it was ordered. Runs that are tried again say nothing about the queue.
CREATE FUNCTION hourhand.waits(in_queue integer) RETURNS float8 LANGUAGE sql STABLE AS $$
    SELECT extract(epoch FROM clock_timestamp() - min(first))::float8 FROM (
        SELECT (SELECT greatest(r.scheduled_at, r.enqueued_at) FROM hourhand.ready r
                WHERE r.lane = in_queue * 4 + class AND r.attempt = 0 AND r.crashes = 0 ORDER BY r.seq LIMIT 1) AS first
        FROM generate_series(0, 3) AS class) AS heads
$$;

-- How full each queue was, minute by minute, as the maintainer found it; later, the fullest of each ten, and of each hour.
CREATE TABLE hourhand.samples (
    minute   timestamptz NOT NULL,
    queue    integer NOT NULL,
    taken_at timestamptz NOT NULL,
    ready    integer NOT NULL,
    delayed  integer NOT NULL,
    parked   integer NOT NULL,
    running  integer NOT NULL,
    dead     integer NOT NULL,
    oldest   real,  -- seconds for which the head of the queue has been due
    PRIMARY KEY (minute, queue)
) WITH (fillfactor = 70, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_scale_factor = 0.02);

-- Numbers that take long to count, as they were a moment ago.
CREATE TABLE hourhand.totals (
    name     text PRIMARY KEY,
    value    bigint NOT NULL,
    taken_at timestamptz NOT NULL
) WITH (fillfactor = 50, autovacuum_vacuum_threshold = 200, autovacuum_vacuum_scale_factor = 0);

-- Runs that the database ends by itself, with no worker to count them. The row is this session's own.
CREATE FUNCTION hourhand.tally(in_queue integer, outcome text, many bigint) RETURNS void LANGUAGE sql AS $$
    INSERT INTO hourhand.statistics AS s (minute, queue, node, dead, cancelled, expired, lost)
    VALUES (date_trunc('minute', clock_timestamp()), in_queue, -pg_backend_pid(), CASE outcome WHEN 'dead' THEN many ELSE 0 END,
            CASE outcome WHEN 'cancelled' THEN many ELSE 0 END, CASE outcome WHEN 'expired' THEN many ELSE 0 END,
            CASE outcome WHEN 'lost' THEN many ELSE 0 END)
    ON CONFLICT (minute, queue, node) DO UPDATE SET
        dead = s.dead + excluded.dead, cancelled = s.cancelled + excluded.cancelled, expired = s.expired + excluded.expired,
        lost = s.lost + excluded.lost
$$;

-- As before, and counted.
CREATE OR REPLACE FUNCTION hourhand.cancel_pending(number bigint, why text) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    in_lane integer;
BEGIN
    WITH from_ready AS (
        DELETE FROM hourhand.ready WHERE ctid = ANY (ARRAY(
            SELECT r.ctid FROM hourhand.queues q CROSS JOIN generate_series(0, 3) AS class
            CROSS JOIN LATERAL (SELECT ctid FROM hourhand.ready
                                WHERE lane = q.id * 4 + class AND seq = number AND run_id = number LIMIT 1) AS r
            UNION ALL
            SELECT ctid FROM hourhand.ready WHERE run_id = number AND run_id <> seq))
        RETURNING run_id, job_id, scheduled_at, enqueued_at, lane, attempt, task, payload, key, tags, options, errors),
    from_delayed AS (
        DELETE FROM hourhand.delayed WHERE run_id = number
        RETURNING run_id, job_id, scheduled_at, enqueued_at, lane, attempt, task, payload, key, tags, options, errors),
    from_parked AS (
        DELETE FROM hourhand.parked WHERE run_id = number
        RETURNING run_id, job_id, scheduled_at, enqueued_at, lane, attempt, task, payload, key, tags, options, errors)
    INSERT INTO hourhand.runs (run_id, job_id, scheduled_at, enqueued_at, finished_at, lane, outcome, attempt, task, payload, key,
                               tags, options, errors, reason)
    SELECT run_id, job_id, scheduled_at, enqueued_at, clock_timestamp(), lane, 'cancelled', attempt, task, payload, key,
           tags, options, errors, coalesce(why, 'cancelled')
    FROM (SELECT * FROM from_ready UNION ALL SELECT * FROM from_delayed UNION ALL SELECT * FROM from_parked) AS stopped
    RETURNING lane INTO in_lane;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    PERFORM hourhand.tally(in_lane / 4, 'cancelled', 1);
    RETURN true;
END $$;

-- Which run of a chain came after which.
CREATE TABLE hourhand.follows (
    run_id  bigint PRIMARY KEY,
    next_id bigint NOT NULL,
    made_at timestamptz NOT NULL DEFAULT clock_timestamp()
);

CREATE INDEX follows_next ON hourhand.follows (next_id);
CREATE INDEX follows_age ON hourhand.follows (made_at);

-- Dead letters are looked at by task and error.
ALTER TABLE hourhand.dead ADD COLUMN error text GENERATED ALWAYS AS (coalesce(errors->-1->>'type', '')) STORED;
CREATE INDEX dead_group ON hourhand.dead (task, error, died_at);
DROP INDEX hourhand.dead_task;

-- What went wrong is found among millions that went well.
CREATE INDEX runs_trouble ON hourhand.runs (outcome, run_id) WHERE outcome <> 'succeeded';

CREATE INDEX jobs_paused ON hourhand.jobs (id) WHERE paused_at IS NOT NULL;
