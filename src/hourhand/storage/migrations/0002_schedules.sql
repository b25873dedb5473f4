-- The trigger layer: when and what are two tables. `schedules` says when, once for each distinct schedule of a
-- shard; `jobs` say what, and point at it. Firing moves the schedule's row and inserts the runs of all of its
-- jobs; `jobs` is never written by firing.

-- Who may fire a shard. Every change of hands raises the epoch, and a firing must show the epoch it was
-- planned under: an owner that was paused and replaced changes nothing when it wakes up.
CREATE TABLE hourhand.shards (
    shard    smallint PRIMARY KEY,
    owner    integer,
    epoch    bigint NOT NULL DEFAULT 0,
    taken_at timestamptz
) WITH (fillfactor = 20, autovacuum_vacuum_threshold = 500, autovacuum_vacuum_scale_factor = 0);

INSERT INTO hourhand.shards (shard) SELECT generate_series(0, 255);

CREATE TABLE hourhand.schedules (
    id           bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    shard        smallint NOT NULL,
    kind         text NOT NULL,
    expression   text NOT NULL,
    timezone     text NOT NULL,
    dst          text NOT NULL,
    anchor       timestamptz,
    next_run_at  timestamptz,
    unused_since timestamptz
) WITH (fillfactor = 80, autovacuum_vacuum_threshold = 5000, autovacuum_vacuum_scale_factor = 0.02,
        autovacuum_vacuum_cost_delay = 1);

CREATE UNIQUE INDEX schedules_identity
    ON hourhand.schedules (shard, kind, expression, timezone, dst, coalesce(anchor, '-infinity'));
CREATE INDEX schedules_due ON hourhand.schedules (shard, next_run_at) WHERE next_run_at IS NOT NULL;

CREATE SEQUENCE hourhand.job_numbers;

CREATE TABLE hourhand.jobs (
    id            bigint PRIMARY KEY,
    schedule_id   bigint NOT NULL,
    lane          integer NOT NULL,
    shard         smallint NOT NULL,
    max_missed    integer NOT NULL DEFAULT 100,
    misfire_grace real NOT NULL DEFAULT 60,
    active_since  timestamptz NOT NULL,
    start_at      timestamptz,
    end_at        timestamptz,
    created_at    timestamptz NOT NULL DEFAULT clock_timestamp(),
    updated_at    timestamptz NOT NULL DEFAULT clock_timestamp(),
    version       integer NOT NULL DEFAULT 1,
    name          text NOT NULL UNIQUE,
    task          text NOT NULL,
    payload       jsonb NOT NULL,
    state         text NOT NULL DEFAULT 'active' CHECK (state IN ('active', 'paused', 'finished')),
    missed_window text NOT NULL DEFAULT 'RUN_ONCE' CHECK (missed_window IN ('SKIP', 'RUN_ONCE', 'RUN_ALL')),
    tags          text[],
    options       jsonb
);

CREATE INDEX jobs_schedule ON hourhand.jobs (schedule_id);

-- The ledger: one row for each expected firing of a schedule, or for a range of them that was missed together.
-- The primary key is the second barrier against firing twice.
CREATE TABLE hourhand.firings (
    schedule_id  bigint NOT NULL,
    scheduled_at timestamptz NOT NULL,
    until        timestamptz NOT NULL,
    count        integer NOT NULL,
    fired_at     timestamptz NOT NULL,
    epoch        bigint NOT NULL,
    node         integer NOT NULL,
    runs         integer NOT NULL,
    outcome      text NOT NULL,
    PRIMARY KEY (schedule_id, scheduled_at)
) PARTITION BY RANGE (scheduled_at);

CREATE TABLE hourhand.firings_default PARTITION OF hourhand.firings DEFAULT;

-- What was decided for one job differently from its schedule's firing: skipped, coalesced.
CREATE TABLE hourhand.decisions (
    job_id       bigint NOT NULL,
    scheduled_at timestamptz NOT NULL,
    until        timestamptz NOT NULL,
    count        integer NOT NULL,
    decided_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
    outcome      text NOT NULL,
    reason       text NOT NULL,
    PRIMARY KEY (job_id, scheduled_at, outcome)
);

-- The row of a schedule in a shard, made on first use. A row that is there is only held against removal (KEY SHARE),
-- which does not keep it from being fired: the caller's transaction may stay open for long.
CREATE FUNCTION hourhand.schedule_number(
    in_shard smallint, kind text, expression text, timezone text, dst text, anchor timestamptz, next_run_at timestamptz
) RETURNS bigint LANGUAGE plpgsql AS $$
#variable_conflict use_variable
DECLARE
    number bigint;
    unused timestamptz;
BEGIN
    LOOP
        SELECT s.id, s.unused_since INTO number, unused FROM hourhand.schedules s
        WHERE s.shard = in_shard AND s.kind = kind AND s.expression = expression AND s.timezone = timezone AND s.dst = dst
          AND coalesce(s.anchor, '-infinity') = coalesce(anchor, '-infinity')
        FOR KEY SHARE;
        IF FOUND THEN
            IF unused IS NOT NULL THEN
                UPDATE hourhand.schedules s SET unused_since = NULL WHERE s.id = number;
            END IF;
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

-- Add a job, or change it. The same definition again changes nothing; another one under the same name is a
-- conflict unless `replace` is set. A job whose schedule stays the same keeps its pending firing.
CREATE FUNCTION hourhand.put_job(
    name text, task text, payload jsonb, lane integer,
    kind text, expression text, timezone text, dst text, anchor timestamptz, anchor_given boolean, next_run_at timestamptz,
    settings jsonb, tags text[], options jsonb, replace boolean,
    OUT job_id bigint, OUT outcome text, OUT next_at timestamptz
) LANGUAGE plpgsql AS $$
#variable_conflict use_variable
DECLARE
    old hourhand.jobs;
    plan hourhand.schedules;
    fresh hourhand.jobs;
    same_schedule boolean := false;
BEGIN
    -- One at a time for a name: two that add it at once must not both find it missing.
    PERFORM pg_advisory_xact_lock(hashtext('hourhand'), hashtext(name));
    SELECT * INTO old FROM hourhand.jobs j WHERE j.name = name;
    IF old.id IS NOT NULL THEN
        SELECT * INTO plan FROM hourhand.schedules s WHERE s.id = old.schedule_id;
        same_schedule := plan.kind = kind AND plan.expression = expression AND plan.timezone = timezone AND plan.dst = dst
            AND (plan.anchor IS NOT DISTINCT FROM anchor OR kind = 'every' AND NOT anchor_given);
    END IF;
    fresh := old;
    fresh.name := name;
    fresh.task := task;
    fresh.payload := payload;
    fresh.lane := lane;
    fresh.tags := tags;
    fresh.options := options;
    fresh.missed_window := settings->>'missed_window';
    fresh.max_missed := (settings->>'max_missed')::integer;
    fresh.misfire_grace := (settings->>'misfire_grace')::real;
    fresh.start_at := (settings->>'start_at')::timestamptz;
    fresh.end_at := (settings->>'end_at')::timestamptz;
    IF old.id IS NOT NULL AND same_schedule AND fresh IS NOT DISTINCT FROM old THEN
        job_id := old.id; outcome := 'unchanged'; next_at := plan.next_run_at;
        RETURN;
    END IF;
    IF old.id IS NOT NULL AND NOT replace THEN
        job_id := old.id; outcome := 'conflict'; next_at := plan.next_run_at;
        RETURN;
    END IF;
    IF old.id IS NULL THEN
        fresh.id := nextval('hourhand.job_numbers');
        fresh.shard := hashint8(fresh.id) & 255;
        fresh.state := 'active';
        fresh.version := 0;
        fresh.created_at := clock_timestamp();
    END IF;
    IF NOT same_schedule THEN
        fresh.schedule_id := hourhand.schedule_number(fresh.shard, kind, expression, timezone, dst, anchor, next_run_at);
        fresh.active_since := clock_timestamp();
    END IF;
    fresh.version := fresh.version + 1;
    fresh.updated_at := clock_timestamp();
    DELETE FROM hourhand.jobs j WHERE j.id = old.id;
    INSERT INTO hourhand.jobs SELECT fresh.*;
    SELECT s.next_run_at INTO next_at FROM hourhand.schedules s WHERE s.id = fresh.schedule_id;
    IF next_at IS NOT NULL THEN
        PERFORM pg_notify('hourhand', format('s:%s:%s:%s', fresh.shard, fresh.schedule_id, extract(epoch FROM next_at)));
    END IF;
    job_id := fresh.id;
    outcome := CASE WHEN old.id IS NULL THEN 'added' ELSE 'replaced' END;
END $$;
