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
-- coalesced, triggered, backfilled, moved. `run_id` is the run it is about: the one that was still going, or that came of it.
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

-- One firing of one job that minds overlap or counts its runs, or that is started by hand. Locks are taken job by job, in
-- the order of the callers; who ends a run takes the same lock (end_live), and holds one at a time.
CREATE FUNCTION hourhand.fire_one(
    job_id bigint, at timestamptz, due timestamptz, lane integer, task text, payload jsonb, tags text[], options jsonb,
    overlap text, max_runs integer, OUT run_id bigint, OUT outcome text
) LANGUAGE plpgsql AS $$
#variable_conflict use_variable
DECLARE
    number bigint := nextval('hourhand.run_numbers');
    present timestamptz := clock_timestamp();
    previous bigint;
BEGIN
    IF max_runs IS NOT NULL THEN
        INSERT INTO hourhand.counters AS c (job_id, fired, last_at) VALUES (job_id, 0, at) ON CONFLICT DO NOTHING;
        PERFORM FROM hourhand.counters c WHERE c.job_id = job_id AND c.fired < max_runs FOR UPDATE;
        IF NOT FOUND THEN
            outcome := 'finished';
            RETURN;
        END IF;
    END IF;
    outcome := 'started';
    IF overlap IS NOT NULL THEN
        options := coalesce(options, '{}') || '{"overlap": true}';
        LOOP
            INSERT INTO hourhand.live (job_id, run_id) VALUES (job_id, number) ON CONFLICT DO NOTHING;
            EXIT WHEN FOUND;
            SELECT l.run_id INTO previous FROM hourhand.live l WHERE l.job_id = job_id FOR UPDATE;
            CONTINUE WHEN NOT FOUND;
            IF overlap = 'skip' THEN
                outcome := 'skipped';
                INSERT INTO hourhand.decisions (job_id, scheduled_at, until, run_id, count, outcome, reason)
                VALUES (job_id, at, at, previous, 1, 'skipped', 'the run before it had not ended') ON CONFLICT DO NOTHING;
                RETURN;
            END IF;
            outcome := 'held';
            due := 'infinity';
            EXIT;
        END LOOP;
    END IF;
    IF due > present THEN
        INSERT INTO hourhand.delayed (due_at, run_id, job_id, scheduled_at, enqueued_at, lane, task, payload, tags, options)
        VALUES (due, number, job_id, at, present, lane, task, payload, tags, options);
        IF due < present + interval '2 seconds' THEN
            PERFORM pg_notify('hourhand', 'd');
        END IF;
    ELSE
        INSERT INTO hourhand.ready (seq, run_id, job_id, scheduled_at, enqueued_at, lane, task, payload, tags, options)
        VALUES (number, number, job_id, at, present, lane, task, payload, tags, options);
        PERFORM hourhand.wake(lane, number);
    END IF;
    IF max_runs IS NOT NULL THEN
        UPDATE hourhand.counters c SET fired = c.fired + 1, last_at = at WHERE c.job_id = job_id;
    END IF;
    IF outcome = 'held' AND overlap = 'replace' THEN
        PERFORM hourhand.replace_runs(job_id, number, previous, at);
    END IF;
    run_id := number;
END $$;

-- Everything of a job that came before this run makes room for it: what has not started ends at once, what is
-- going on is asked to stop; when it has, end_live starts this one.
CREATE FUNCTION hourhand.replace_runs(in_job bigint, number bigint, previous bigint, at timestamptz) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    why text := format('replaced by the firing of %s', to_char(at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS"Z"'));
BEGIN
    PERFORM hourhand.cancel_pending(d.run_id, why) FROM hourhand.delayed d
    WHERE d.job_id = in_job AND d.due_at = 'infinity' AND d.run_id <> number;
    IF NOT hourhand.cancel_pending(previous, why) THEN
        PERFORM hourhand.ask_to_stop(previous, why);
    END IF;
END $$;

-- A run that has not started ends at once. False: it is not waiting anywhere.
CREATE FUNCTION hourhand.cancel_pending(number bigint, why text) RETURNS boolean LANGUAGE plpgsql AS $$
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
    FROM (SELECT * FROM from_ready UNION ALL SELECT * FROM from_delayed UNION ALL SELECT * FROM from_parked) AS stopped;
    RETURN FOUND;
END $$;

-- A run that is being executed is asked to stop; its worker hears at once, or at its next heartbeat. False: nobody has it.
CREATE FUNCTION hourhand.ask_to_stop(number bigint, why text) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO hourhand.cancels (run_id, reason)
    SELECT r.run_id, why FROM hourhand.nodes n
    CROSS JOIN LATERAL (SELECT run_id FROM hourhand.running WHERE worker_id = n.id AND run_id = number LIMIT 1) AS r
    ON CONFLICT (run_id) DO UPDATE SET reason = excluded.reason;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    PERFORM pg_notify('hourhand', 'c:' || number);
    RETURN true;
END $$;

-- However a run ends that others of its job wait for, the next of them starts in the same transaction.
CREATE FUNCTION hourhand.end_live() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    number bigint;
BEGIN
    PERFORM FROM hourhand.live WHERE job_id = NEW.job_id AND run_id = NEW.run_id FOR UPDATE;
    IF NOT FOUND THEN
        RETURN NULL;
    END IF;
    -- A statement of its own: it sees what was added by whoever held the lock before.
    SELECT run_id INTO number FROM hourhand.delayed WHERE job_id = NEW.job_id AND due_at = 'infinity'
    ORDER BY run_id LIMIT 1 FOR UPDATE SKIP LOCKED;
    IF number IS NULL THEN
        DELETE FROM hourhand.live WHERE job_id = NEW.job_id;
        RETURN NULL;
    END IF;
    UPDATE hourhand.live SET run_id = number WHERE job_id = NEW.job_id;
    WITH next AS (
        DELETE FROM hourhand.delayed WHERE run_id = number RETURNING *),
    begun AS (
        INSERT INTO hourhand.ready (seq, run_id, job_id, scheduled_at, enqueued_at, expires_at, lane, attempt, crashes,
                                    task, payload, key, tags, options, errors)
        SELECT nextval('hourhand.run_numbers'), run_id, job_id, scheduled_at, enqueued_at, expires_at, lane, attempt, crashes,
               task, payload, key, tags, options, errors
        FROM next
        RETURNING lane, seq)
    SELECT seq INTO number FROM begun, LATERAL hourhand.wake(lane, seq);
    RETURN NULL;
END $$;

CREATE TRIGGER end_live AFTER INSERT ON hourhand.runs
    FOR EACH ROW WHEN (NEW.options ? 'overlap') EXECUTE FUNCTION hourhand.end_live();
CREATE TRIGGER end_live AFTER INSERT ON hourhand.dead
    FOR EACH ROW WHEN (NEW.options ? 'overlap') EXECUTE FUNCTION hourhand.end_live();

-- The next step of a chain, in the same transaction as the success of the one before. What cannot be enqueued
-- becomes a dead letter: the success stands, and nothing is lost.
CREATE FUNCTION hourhand.go_on() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    step jsonb := NEW.options->'then';
    arguments jsonb := coalesce(step->'payload', '{}');
    trouble text;
BEGIN
    IF step->>'result' IS NOT NULL THEN
        arguments := arguments || jsonb_build_object(step->>'result', NEW.result);
    END IF;
    PERFORM hourhand.enqueue(
        step->>'task', arguments, coalesce(step->>'queue', 'default'), coalesce(step->>'priority', 'normal'),
        delay => make_interval(secs => (step->>'delay')::float8),
        tags => (SELECT array_agg(tag) FROM jsonb_array_elements_text(step->'tags') AS tag), options => step->'options');
    RETURN NULL;
EXCEPTION WHEN data_exception OR program_limit_exceeded OR integrity_constraint_violation THEN
    GET STACKED DIAGNOSTICS trouble = MESSAGE_TEXT;
    INSERT INTO hourhand.dead (died_at, run_id, scheduled_at, lane, attempt, task, payload, reason)
    VALUES (clock_timestamp(), nextval('hourhand.run_numbers'), clock_timestamp(), NEW.lane, 0, step->>'task', arguments,
            format('could not be enqueued after run %s: %s', NEW.run_id, trouble));
    RETURN NULL;
END $$;

CREATE TRIGGER go_on AFTER INSERT ON hourhand.runs
    FOR EACH ROW WHEN (NEW.options ? 'then' AND NEW.outcome = 'succeeded') EXECUTE FUNCTION hourhand.go_on();

-- Add a job, or change it. The same definition again changes nothing; another one under the same name is a
-- conflict unless `replace` is set. A job whose schedule stays the same keeps its pending firing; one that changes it
-- has the firing that is due at this moment, if there is one, before it leaves.
CREATE FUNCTION hourhand.put_job(
    definition jsonb, replace boolean DEFAULT false, expected integer DEFAULT NULL,
    OUT job_id bigint, OUT outcome text, OUT next_at timestamptz
) LANGUAGE plpgsql AS $$
#variable_conflict use_variable
DECLARE
    given jsonb := definition;
    kind text := given->>'kind';
    anchor timestamptz := (given->>'anchor')::timestamptz;
    old hourhand.jobs;
    plan hourhand.schedules;
    fresh hourhand.jobs;
    same_schedule boolean := false;
    boundary timestamptz;
BEGIN
    SELECT * INTO old FROM hourhand.jobs j WHERE j.name = given->>'name' FOR UPDATE;
    IF old.id IS NOT NULL THEN
        SELECT * INTO plan FROM hourhand.schedules s WHERE s.id = old.schedule_id;
        same_schedule := plan.kind = kind AND plan.expression = given->>'expression' AND plan.timezone = given->>'timezone'
            AND plan.dst = given->>'dst'
            AND (plan.anchor IS NOT DISTINCT FROM anchor
                 OR NOT (given->>'anchored')::boolean AND (kind = 'every' OR kind = 'once' AND plan.next_run_at IS NOT NULL));
    END IF;
    fresh := old;
    fresh.name := given->>'name';
    fresh.task := given->>'task';
    fresh.payload := given->'payload';
    fresh.lane := (given->>'lane')::integer;
    fresh.tags := (SELECT array_agg(tag) FROM jsonb_array_elements_text(nullif(given->'tags', 'null')) AS tag);
    fresh.options := nullif(given->'options', 'null');
    fresh.missed_window := given->>'missed_window';
    fresh.max_missed := (given->>'max_missed')::integer;
    fresh.misfire_grace := (given->>'misfire_grace')::real;
    fresh.overlap := given->>'overlap';
    fresh.flexible := (given->>'flexible')::real;
    fresh.max_runs := (given->>'max_runs')::integer;
    fresh.start_at := (given->>'start_at')::timestamptz;
    fresh.end_at := (given->>'end_at')::timestamptz;
    fresh.declared_by := given->>'declared_by';
    IF old.id IS NOT NULL AND same_schedule AND fresh IS NOT DISTINCT FROM old THEN
        job_id := old.id; outcome := 'unchanged'; next_at := plan.next_run_at;
        RETURN;
    END IF;
    IF old.id IS NOT NULL AND (NOT replace OR old.version <> expected) THEN
        job_id := old.id; outcome := CASE WHEN replace THEN 'changed' ELSE 'conflict' END; next_at := plan.next_run_at;
        RETURN;
    END IF;
    IF old.id IS NULL THEN
        IF expected IS NOT NULL THEN
            outcome := 'changed';
            RETURN;
        END IF;
        fresh.id := nextval('hourhand.job_numbers');
        fresh.shard := hashint8(fresh.id) & 255;
        fresh.version := 0;
        fresh.created_at := clock_timestamp();
        fresh.active_since := clock_timestamp();
    ELSIF NOT same_schedule OR (fresh.start_at, fresh.end_at) IS DISTINCT FROM (old.start_at, old.end_at) THEN
        boundary := hourhand.leave_span(old, plan, same_schedule);
        fresh.active_since := boundary;
        IF old.paused_at IS NOT NULL THEN
            fresh.paused_at := boundary;
        END IF;
    END IF;
    IF NOT same_schedule THEN
        fresh.schedule_id := hourhand.schedule_number(
            fresh.shard, kind, given->>'expression', given->>'timezone', given->>'dst', anchor, (given->>'next_run_at')::timestamptz);
        IF kind = 'once' AND fresh.paused_at IS NULL THEN
            fresh.active_since := least(fresh.active_since, anchor);
        END IF;
    END IF;
    fresh.version := fresh.version + 1;
    fresh.updated_at := clock_timestamp();
    IF old.id IS NULL THEN
        INSERT INTO hourhand.jobs SELECT fresh.* ON CONFLICT DO NOTHING;
        IF NOT FOUND THEN
            -- Somebody has added it at the same moment: then it is there now, and this is a second time.
            SELECT again.job_id, again.outcome, again.next_at INTO job_id, outcome, next_at
            FROM hourhand.put_job(definition, replace, expected) AS again;
            RETURN;
        END IF;
    ELSE
        UPDATE hourhand.jobs j SET
            (schedule_id, active_since, paused_at, start_at, end_at, updated_at, lane, version, max_missed, misfire_grace, flexible,
             max_runs, task, payload, missed_window, overlap, declared_by, tags, options)
            = (SELECT fresh.schedule_id, fresh.active_since, fresh.paused_at, fresh.start_at, fresh.end_at, fresh.updated_at,
                      fresh.lane, fresh.version, fresh.max_missed, fresh.misfire_grace, fresh.flexible, fresh.max_runs, fresh.task,
                      fresh.payload, fresh.missed_window, fresh.overlap, fresh.declared_by, fresh.tags, fresh.options)
        WHERE j.id = old.id;
    END IF;
    IF old.max_runs IS DISTINCT FROM fresh.max_runs AND fresh.max_runs IS NULL THEN
        DELETE FROM hourhand.counters c WHERE c.job_id = fresh.id;
    END IF;
    IF kind = 'once' AND NOT same_schedule AND anchor < clock_timestamp() + interval '3 seconds' THEN
        -- It may be fired at this very moment, without this job: then the job comes too late for it and starts by itself.
        UPDATE hourhand.schedules s SET revision = s.revision + 1 WHERE s.id = fresh.schedule_id RETURNING s.next_run_at INTO next_at;
        IF next_at IS NULL AND fresh.paused_at IS NULL THEN
            PERFORM hourhand.fire_one(fresh.id, anchor, anchor, fresh.lane, fresh.task, fresh.payload, fresh.tags, fresh.options,
                                      fresh.overlap, fresh.max_runs);
        END IF;
    END IF;
    SELECT s.next_run_at INTO next_at FROM hourhand.schedules s WHERE s.id = fresh.schedule_id;
    IF next_at IS NOT NULL THEN
        PERFORM pg_notify('hourhand', format('s:%s:%s:%s', fresh.shard, fresh.schedule_id, extract(epoch FROM next_at)));
    END IF;
    job_id := fresh.id;
    outcome := CASE WHEN old.id IS NULL THEN 'added' ELSE 'replaced' END;
END $$;

-- A job changes how it takes part in its schedule, at the instant this returns: everything before it is settled under the
-- old terms, everything from it on is not. Firing and this exclude each other by the schedule's row and its revision.
CREATE FUNCTION hourhand.leave_span(old hourhand.jobs, plan hourhand.schedules, stays boolean) RETURNS timestamptz LANGUAGE plpgsql AS $$
DECLARE
    pending timestamptz;
    boundary timestamptz;
BEGIN
    UPDATE hourhand.schedules SET revision = revision + 1 WHERE id = old.schedule_id RETURNING next_run_at INTO pending;
    boundary := greatest(clock_timestamp(), old.active_since, old.paused_at);
    IF pending <= boundary AND old.active_since <= pending AND (old.paused_at IS NULL OR old.paused_at > pending)
            AND (old.start_at IS NULL OR old.start_at <= pending) AND (old.end_at IS NULL OR old.end_at > pending) THEN
        IF stays THEN
            boundary := pending;
        ELSE
            -- Due, not fired yet, and its schedule is about to lose this job: it has its firing now.
            PERFORM hourhand.fire_one(old.id, pending, pending + hourhand.flexible_delay(old.id, old.flexible), old.lane, old.task,
                                      old.payload, old.tags, old.options, old.overlap, old.max_runs);
            IF boundary > pending + interval '1 second' THEN
                INSERT INTO hourhand.decisions (job_id, scheduled_at, until, count, outcome, reason)
                VALUES (old.id, pending + interval '1 microsecond', boundary, 0, 'coalesced',
                        'the schedule was changed before these could be fired; the first of them ran for all')
                ON CONFLICT DO NOTHING;
            END IF;
        END IF;
    END IF;
    IF coalesce(old.paused_at, boundary) > old.active_since THEN
        INSERT INTO hourhand.spans (job_id, since, until, schedule_id, paused, kind, expression, timezone, dst, anchor, start_at, end_at)
        VALUES (old.id, old.active_since, coalesce(old.paused_at, boundary), old.schedule_id, false,
                plan.kind, plan.expression, plan.timezone, plan.dst, plan.anchor, old.start_at, old.end_at);
    END IF;
    IF old.paused_at < boundary THEN
        INSERT INTO hourhand.spans (job_id, since, until, schedule_id, paused, kind, expression, timezone, dst, anchor, start_at, end_at)
        VALUES (old.id, old.paused_at, boundary, old.schedule_id, true,
                plan.kind, plan.expression, plan.timezone, plan.dst, plan.anchor, old.start_at, old.end_at);
    END IF;
    IF NOT stays THEN
        INSERT INTO hourhand.loose (schedule_id) VALUES (old.schedule_id);
    END IF;
    RETURN boundary;
END $$;

-- From now on the job takes no part; a firing that is due at this moment is still its own.
CREATE FUNCTION hourhand.pause_job(number bigint) RETURNS timestamptz LANGUAGE plpgsql AS $$
DECLARE
    old hourhand.jobs;
    boundary timestamptz;
BEGIN
    SELECT * INTO old FROM hourhand.jobs WHERE id = number FOR UPDATE;
    IF old.id IS NULL OR old.paused_at IS NOT NULL THEN
        RETURN old.paused_at;
    END IF;
    UPDATE hourhand.schedules SET revision = revision + 1 WHERE id = old.schedule_id;
    boundary := greatest(clock_timestamp(), old.active_since);
    UPDATE hourhand.jobs SET paused_at = boundary, updated_at = clock_timestamp(), version = version + 1 WHERE id = number;
    RETURN boundary;
END $$;

-- The job takes part again. What it missed meanwhile (`instants`, a list that may run on beyond the present) is treated
-- by its policy, or by the one given.
CREATE FUNCTION hourhand.resume_job(
    number bigint, instants timestamptz[], policy text, OUT resumed boolean, OUT started integer, OUT left_out integer
) LANGUAGE plpgsql AS $$
DECLARE
    old hourhand.jobs;
    plan hourhand.schedules;
    boundary timestamptz;
    missed timestamptz[];
    chosen timestamptz[];
    wanted text;
    one timestamptz;
BEGIN
    SELECT * INTO old FROM hourhand.jobs WHERE id = number FOR UPDATE;
    resumed := old.paused_at IS NOT NULL; started := 0; left_out := 0;
    IF NOT coalesce(resumed, false) THEN
        RETURN;
    END IF;
    UPDATE hourhand.schedules SET revision = revision + 1 WHERE id = old.schedule_id RETURNING * INTO plan;
    IF plan.next_run_at <= old.paused_at THEN
        -- Nobody has fired it since before the pause: whoever does will judge the whole time by the policy.
        UPDATE hourhand.jobs SET paused_at = NULL, updated_at = clock_timestamp(), version = version + 1 WHERE id = number;
        RETURN;
    END IF;
    -- What is due and not fired yet will be, with this job in it.
    boundary := least(clock_timestamp(), plan.next_run_at);
    INSERT INTO hourhand.spans (job_id, since, until, schedule_id, paused, kind, expression, timezone, dst, anchor, start_at, end_at)
    SELECT old.id, part.since, part.until, old.schedule_id, part.paused,
           plan.kind, plan.expression, plan.timezone, plan.dst, plan.anchor, old.start_at, old.end_at
    FROM (VALUES (old.active_since, old.paused_at, false), (old.paused_at, boundary, true)) AS part (since, until, paused)
    WHERE part.since < part.until;
    UPDATE hourhand.jobs SET paused_at = NULL, active_since = boundary, updated_at = clock_timestamp(), version = version + 1
    WHERE id = number;
    wanted := coalesce(policy, old.missed_window);
    missed := ARRAY(SELECT at FROM unnest(instants) AS at
                    WHERE at >= old.paused_at AND at < boundary
                      AND (old.start_at IS NULL OR old.start_at <= at) AND (old.end_at IS NULL OR old.end_at > at) ORDER BY at DESC);
    chosen := missed[1 : CASE wanted WHEN 'RUN_ONCE' THEN 1 WHEN 'RUN_ALL' THEN old.max_missed ELSE 0 END];
    FOREACH one IN ARRAY ARRAY(SELECT at FROM unnest(chosen) AS at ORDER BY at) LOOP
        PERFORM hourhand.fire_one(old.id, one, one + hourhand.flexible_delay(old.id, old.flexible), old.lane, old.task, old.payload,
                                  old.tags, old.options, old.overlap, old.max_runs);
    END LOOP;
    started := cardinality(chosen);
    left_out := cardinality(missed) - started;
    IF left_out > 0 THEN
        INSERT INTO hourhand.decisions (job_id, scheduled_at, until, count, outcome, reason)
        VALUES (old.id, missed[cardinality(missed)], missed[started + 1], left_out,
                CASE wanted WHEN 'RUN_ONCE' THEN 'coalesced' ELSE 'skipped' END,
                'the job was paused' || CASE wanted WHEN 'RUN_ONCE' THEN '; the last of them ran for all when it was resumed'
                                                    WHEN 'RUN_ALL' THEN format(', and these are beyond max_missed of %s', old.max_missed)
                                                    ELSE '' END)
        ON CONFLICT DO NOTHING;
    END IF;
    PERFORM pg_notify('hourhand', format('s:%s:%s:%s', old.shard, old.schedule_id, extract(epoch FROM plan.next_run_at)))
    WHERE plan.next_run_at IS NOT NULL;
END $$;

-- The job is gone; its runs and what is on record of it stay.
CREATE FUNCTION hourhand.delete_job(number bigint) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    schedule bigint;
BEGIN
    DELETE FROM hourhand.jobs WHERE id = number RETURNING schedule_id INTO schedule;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    DELETE FROM hourhand.counters WHERE job_id = number;
    INSERT INTO hourhand.loose (schedule_id) VALUES (schedule);
    RETURN true;
END $$;

-- Schedules that no job points at any more. First the marks are taken, so that a job which leaves meanwhile leaves a new
-- one; then the schedule's row is locked, which whoever adds a job holds on to; then a fresh look finds every job that
-- came before.
CREATE FUNCTION hourhand.collect_schedules(most integer) RETURNS integer LANGUAGE plpgsql AS $$
DECLARE
    one bigint;
    removed integer := 0;
BEGIN
    FOR one IN
        WITH taken AS (
            DELETE FROM hourhand.loose WHERE ctid = ANY (ARRAY(
                SELECT ctid FROM hourhand.loose WHERE since < clock_timestamp() - interval '1 minute' ORDER BY since LIMIT most
                FOR UPDATE SKIP LOCKED))
            RETURNING schedule_id)
        SELECT DISTINCT schedule_id FROM taken
    LOOP
        PERFORM FROM hourhand.schedules WHERE id = one FOR UPDATE SKIP LOCKED;
        IF FOUND AND NOT EXISTS (SELECT FROM hourhand.jobs WHERE schedule_id = one) THEN
            DELETE FROM hourhand.schedules WHERE id = one;
            removed := removed + 1;
        ELSIF EXISTS (SELECT FROM hourhand.schedules s WHERE s.id = one)
                AND NOT EXISTS (SELECT FROM hourhand.jobs WHERE schedule_id = one) THEN
            INSERT INTO hourhand.loose (schedule_id) VALUES (one);
        END IF;
    END LOOP;
    RETURN removed;
END $$;

-- A run of a job here and now, by hand: the schedule is not touched, `max_runs` does not count it. `forced`, it starts even
-- if another run of a job that minds overlap is still going.
CREATE FUNCTION hourhand.trigger_job(number bigint, arguments jsonb, forced boolean, OUT run_id bigint, OUT outcome text)
LANGUAGE plpgsql AS $$
#variable_conflict use_variable
DECLARE
    job hourhand.jobs;
    present timestamptz := clock_timestamp();
BEGIN
    SELECT * INTO job FROM hourhand.jobs j WHERE j.id = number;
    IF job.id IS NULL THEN
        RETURN;
    END IF;
    SELECT one.run_id, one.outcome INTO run_id, outcome
    FROM hourhand.fire_one(job.id, present, present, job.lane, job.task, coalesce(arguments, job.payload), job.tags,
                           coalesce(job.options, '{}') || '{"by_hand": "triggered"}', CASE WHEN NOT forced THEN job.overlap END, NULL) AS one;
    INSERT INTO hourhand.decisions (job_id, scheduled_at, until, run_id, count, outcome, reason)
    VALUES (job.id, present, present, run_id, 1, 'triggered', 'started by hand') ON CONFLICT DO NOTHING;
END $$;

-- Runs for instants of the past, on request; for each instant once, unless `again`. Runs of a job that minds overlap
-- queue up behind each other; of others, `rate` a second start, `begun` of the whole having gone before.
CREATE FUNCTION hourhand.backfill_job(number bigint, instants timestamptz[], rate double precision, begun integer, again boolean)
RETURNS TABLE (run_id bigint, at timestamptz) LANGUAGE plpgsql AS $$
#variable_conflict use_variable
DECLARE
    job hourhand.jobs;
    present timestamptz := clock_timestamp();
    turn integer := begun;
BEGIN
    SELECT * INTO job FROM hourhand.jobs j WHERE j.id = number;
    IF job.id IS NULL THEN
        RETURN;
    END IF;
    FOREACH at IN ARRAY instants LOOP
        INSERT INTO hourhand.decisions AS d (job_id, scheduled_at, until, count, outcome, reason)
        VALUES (number, at, at, 1, 'backfilled', 'asked for afterwards')
        ON CONFLICT (job_id, scheduled_at, outcome) DO UPDATE SET decided_at = clock_timestamp() WHERE again;
        CONTINUE WHEN NOT FOUND;
        SELECT one.run_id INTO run_id
        FROM hourhand.fire_one(number, at, present + make_interval(secs => turn / rate), job.lane, job.task, job.payload, job.tags,
                               coalesce(job.options, '{}') || '{"by_hand": "backfilled"}', CASE WHEN job.overlap IS NOT NULL THEN 'queue' END, NULL) AS one;
        UPDATE hourhand.decisions d SET run_id = run_id WHERE d.job_id = number AND d.scheduled_at = at AND d.outcome = 'backfilled';
        turn := turn + 1;
        RETURN NEXT;
    END LOOP;
END $$;
