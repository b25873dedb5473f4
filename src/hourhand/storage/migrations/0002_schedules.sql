-- The trigger layer: when and what are two tables. `schedules` says when, once for each distinct schedule of a
-- shard; `jobs` say what, and point at it. Firing moves the schedule's row and inserts the runs of all of its
-- jobs; `jobs` is never written by firing.

-- Who may fire a shard. Every change of hands raises the epoch, and a firing must show the epoch it was
-- planned under: an owner that was paused and replaced changes nothing when it wakes up. `tzdata` is the release
-- of the time zone database that the shard's next firings were computed with.
CREATE TABLE hourhand.shards (
    shard    smallint PRIMARY KEY,
    owner    integer,
    epoch    bigint NOT NULL DEFAULT 0,
    taken_at timestamptz,
    tzdata   text
) WITH (fillfactor = 20, autovacuum_vacuum_threshold = 500, autovacuum_vacuum_scale_factor = 0);

INSERT INTO hourhand.shards (shard) SELECT generate_series(0, 255);

-- `revision` changes whenever a job that is there already changes how it takes part (leaves, pauses, resumes). A firing
-- must show the revision it was planned under, so it sees such a change wholly or comes before it.
CREATE TABLE hourhand.schedules (
    id           bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    next_run_at  timestamptz,
    anchor       timestamptz,
    revision     integer NOT NULL DEFAULT 0,
    shard        smallint NOT NULL,
    kind         text NOT NULL,
    expression   text NOT NULL,
    timezone     text NOT NULL,
    dst          text NOT NULL
) WITH (fillfactor = 80, autovacuum_vacuum_threshold = 5000, autovacuum_vacuum_scale_factor = 0.02,
        autovacuum_vacuum_cost_delay = 1);

CREATE UNIQUE INDEX schedules_identity
    ON hourhand.schedules (shard, kind, expression, timezone, dst, coalesce(anchor, '-infinity'));
CREATE INDEX schedules_due ON hourhand.schedules (shard, next_run_at) WHERE next_run_at IS NOT NULL;
CREATE INDEX schedules_over ON hourhand.schedules (anchor) WHERE next_run_at IS NULL;

CREATE SEQUENCE hourhand.job_numbers;

-- A job takes part in the firings of its schedule from `active_since` on, until `paused_at`, between `start_at` and `end_at`.
CREATE TABLE hourhand.jobs (
    id            bigint PRIMARY KEY,
    schedule_id   bigint NOT NULL,
    active_since  timestamptz NOT NULL,
    paused_at     timestamptz,
    start_at      timestamptz,
    end_at        timestamptz,
    created_at    timestamptz NOT NULL DEFAULT clock_timestamp(),
    updated_at    timestamptz NOT NULL DEFAULT clock_timestamp(),
    lane          integer NOT NULL,
    version       integer NOT NULL DEFAULT 1,
    max_missed    integer NOT NULL DEFAULT 100,
    misfire_grace real NOT NULL DEFAULT 60,
    flexible      real NOT NULL DEFAULT 0,
    max_runs      integer,
    shard         smallint NOT NULL,
    name          text NOT NULL UNIQUE,
    task          text NOT NULL,
    payload       jsonb NOT NULL,
    missed_window text NOT NULL DEFAULT 'RUN_ONCE' CHECK (missed_window IN ('SKIP', 'RUN_ONCE', 'RUN_ALL')),
    overlap       text CHECK (overlap IN ('skip', 'queue', 'replace')),  -- null: allowed
    declared_by   text,
    tags          text[],
    options       jsonb
) WITH (autovacuum_analyze_scale_factor = 0.2);

CREATE INDEX jobs_schedule ON hourhand.jobs (schedule_id);
CREATE INDEX jobs_declared ON hourhand.jobs (declared_by) WHERE declared_by IS NOT NULL;

-- Rare state of single jobs, apart: the run that is going on, for jobs that do not allow two at once; how many
-- firings a job with `max_runs` has had.
CREATE TABLE hourhand.live (
    job_id bigint PRIMARY KEY,
    run_id bigint NOT NULL
) WITH (fillfactor = 70, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_scale_factor = 0.02);

CREATE TABLE hourhand.counters (
    job_id  bigint PRIMARY KEY,
    fired   integer NOT NULL,
    last_at timestamptz NOT NULL
) WITH (fillfactor = 70, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_scale_factor = 0.02);

-- The ledger: one row for each expected firing of a schedule, or for a range of them that was missed together.
-- The primary key is the second barrier against firing twice.
CREATE TABLE hourhand.firings (
    schedule_id  bigint NOT NULL,
    scheduled_at timestamptz NOT NULL,
    until        timestamptz NOT NULL,
    fired_at     timestamptz NOT NULL,
    epoch        bigint NOT NULL,
    count        integer NOT NULL,
    node         integer NOT NULL,
    runs         integer NOT NULL,
    late         boolean NOT NULL,
    PRIMARY KEY (schedule_id, scheduled_at)
) PARTITION BY RANGE (scheduled_at);

CREATE TABLE hourhand.firings_default PARTITION OF hourhand.firings DEFAULT;

SELECT hourhand.add_partition('firings', ((now() AT TIME ZONE 'UTC')::date + ahead)::date) FROM generate_series(-1, 3) AS ahead;

-- What was decided for one job differently from its schedule's firing, from an instant until another: skipped,
-- coalesced, finished, backfilled, moved. `run_id` is the run it is about: the one that was still going, or that came of it.
CREATE TABLE hourhand.decisions (
    job_id       bigint NOT NULL,
    scheduled_at timestamptz NOT NULL,
    until        timestamptz NOT NULL,
    decided_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
    run_id       bigint,
    count        integer NOT NULL,
    outcome      text NOT NULL,
    reason       text NOT NULL,
    PRIMARY KEY (job_id, scheduled_at, outcome)
);

CREATE INDEX decisions_age ON hourhand.decisions (decided_at);

-- What a job was before its last changes: what was expected of it then can still be told.
CREATE TABLE hourhand.spans (
    job_id      bigint NOT NULL,
    since       timestamptz NOT NULL,
    until       timestamptz NOT NULL,
    schedule_id bigint NOT NULL,
    paused      boolean NOT NULL,
    kind        text NOT NULL,
    expression  text NOT NULL,
    timezone    text NOT NULL,
    dst         text NOT NULL,
    anchor      timestamptz,
    start_at    timestamptz,
    end_at      timestamptz
);

CREATE INDEX spans_job ON hourhand.spans (job_id, until);
CREATE INDEX spans_age ON hourhand.spans (until);

-- Schedules that a job has left: collected when no other has come. Only added to, so that nobody waits for anybody here.
CREATE TABLE hourhand.loose (
    schedule_id bigint NOT NULL,
    since       timestamptz NOT NULL DEFAULT clock_timestamp()
);

CREATE INDEX loose_since ON hourhand.loose (since);

-- Which declarations an app's code has brought, and which of them hold.
CREATE TABLE hourhand.deployments (
    app         text NOT NULL,
    fingerprint text NOT NULL,
    first_seen  timestamptz NOT NULL DEFAULT clock_timestamp(),
    applied_at  timestamptz,
    complete    boolean NOT NULL DEFAULT true,  -- false: a name was taken; tried again until it is free
    lived       boolean NOT NULL DEFAULT false,  -- a process of it has been seen while it was in force
    PRIMARY KEY (app, fingerprint)
);

-- The row of a schedule in a shard, made on first use. A row that is there is only held against removal (KEY SHARE),
-- which does not keep it from being fired: the caller's transaction may stay open for long.
CREATE FUNCTION hourhand.schedule_number(
    in_shard smallint, kind text, expression text, timezone text, dst text, anchor timestamptz, next_run_at timestamptz
) RETURNS bigint LANGUAGE plpgsql AS $$
#variable_conflict use_variable
DECLARE
    number bigint;
BEGIN
    LOOP
        SELECT s.id INTO number FROM hourhand.schedules s
        WHERE s.shard = in_shard AND s.kind = kind AND s.expression = expression AND s.timezone = timezone AND s.dst = dst
          AND coalesce(s.anchor, '-infinity') = coalesce(anchor, '-infinity')
        FOR KEY SHARE;
        IF FOUND THEN
            RETURN number;
        END IF;
        INSERT INTO hourhand.schedules (shard, kind, expression, timezone, dst, anchor, next_run_at)
        VALUES (in_shard, kind, expression, timezone, dst, anchor, next_run_at)
        ON CONFLICT DO NOTHING RETURNING id INTO number;
        IF number IS NOT NULL THEN
            RETURN number;
        END IF;
    END LOOP;
END $$;

-- How far into its flexible window a job starts: always the same for a job, spread evenly over all of them.
CREATE FUNCTION hourhand.flexible_delay(job_id bigint, flexible real) RETURNS interval LANGUAGE sql IMMUTABLE AS $$
    SELECT make_interval(secs => flexible::float8 * ((hashint8(job_id) & 2147483647) / 2147483648.0::float8))
$$;
