-- How often a run has its effect: at most once, exactly once, and steps that are not repeated; and what is known of tasks.

-- For an at-most-once run, when it has begun, on record before its handler starts. Rows of `running` are otherwise never updated,
-- so that a transition may take them by ctid. Recovery that has seen the row without this finds a newer row in its place, leaves
-- that alone, and meets it at its next look.
ALTER TABLE hourhand.running ADD COLUMN begun_at timestamptz;

-- `parked` also holds runs on probation from now on, whose worker died (crashes > 0), to be claimed apart from the healthy ones.

CREATE INDEX runs_lost ON hourhand.runs (finished_at) WHERE outcome = 'lost';

-- What exactly-once runs have done: written in the transaction of the run's own writes and its end, so the token is here
-- if and only if they are.
CREATE TABLE hourhand.effects (
    token   bytea PRIMARY KEY,
    run_id  bigint NOT NULL,
    made_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    result  jsonb
);

CREATE INDEX effects_age ON hourhand.effects (made_at);

-- The results of steps (`ctx.once`) that a retry of the run is not to repeat.
CREATE TABLE hourhand.steps (
    run_id  bigint NOT NULL,
    name    text NOT NULL,
    made_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    result  jsonb,
    PRIMARY KEY (run_id, name)
);

-- What workers say about the tasks they know: the timeout, and how long runs usually take (seconds; decayed, so that
-- old times are forgotten).
CREATE TABLE hourhand.tasks (
    name        text PRIMARY KEY,
    timeout     double precision,
    weight      double precision NOT NULL DEFAULT 0,
    mean        double precision NOT NULL DEFAULT 0,
    variance    double precision NOT NULL DEFAULT 0,
    reported_at timestamptz NOT NULL DEFAULT clock_timestamp()
) WITH (fillfactor = 50, autovacuum_vacuum_threshold = 200, autovacuum_vacuum_scale_factor = 0);

-- As before, and `delivery` among the options.
CREATE OR REPLACE FUNCTION hourhand.enqueue(
    task text,
    payload jsonb DEFAULT '{}',
    queue text DEFAULT 'default',
    priority text DEFAULT 'normal',
    delay interval DEFAULT NULL,
    at timestamptz DEFAULT NULL,
    expires interval DEFAULT NULL,
    expires_at timestamptz DEFAULT NULL,
    key text DEFAULT NULL,
    tags text[] DEFAULT NULL,
    options jsonb DEFAULT NULL,
    wake boolean DEFAULT true,
    measured boolean DEFAULT false,
    OUT run_id bigint,
    OUT duplicate boolean,
    OUT lane integer
) LANGUAGE plpgsql AS $$
#variable_conflict use_variable
DECLARE
    class integer := array_position(ARRAY['high', 'normal', 'low'], priority) - 1;
    present timestamptz := clock_timestamp();
    due timestamptz := coalesce(at, present + delay);
    dies timestamptz := coalesce(expires_at, present + expires);
    number bigint := nextval('hourhand.run_numbers');
    bad text;
BEGIN
    IF class IS NULL THEN
        RAISE EXCEPTION 'priority must be high, normal or low, not %', coalesce(quote_literal(priority), 'null')
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF task IS NULL OR task !~ '^[A-Za-z0-9][A-Za-z0-9_.:-]{0,99}$' THEN
        RAISE EXCEPTION '% cannot be the name of a task', coalesce(quote_literal(task), 'null')
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF payload IS NULL OR jsonb_typeof(payload) <> 'object' THEN
        RAISE EXCEPTION 'the payload of task % must be a JSON object', task
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF coalesce(due, present) NOT BETWEEN '0001-01-02Z' AND '9999-01-01Z'
            OR coalesce(dies, present) NOT BETWEEN '0001-01-02Z' AND '9999-01-01Z' THEN
        RAISE EXCEPTION 'at and expires must be instants between the years 1 and 9999' USING ERRCODE = 'datetime_field_overflow';
    END IF;
    -- Who sent JSON text has measured that; here it can only be measured as PostgreSQL would write it, which is longer.
    IF NOT measured AND pg_column_size(payload) > 1048576 AND octet_length(payload::text) > 1048576 THEN
        RAISE EXCEPTION 'the payload of task % is over 1 MiB', task USING ERRCODE = 'program_limit_exceeded';
    END IF;
    IF options IS NOT NULL THEN
        -- Workers and the key's trigger take these at their word.
        IF jsonb_typeof(options) <> 'object' THEN
            RAISE EXCEPTION 'options must be a JSON object' USING ERRCODE = 'invalid_parameter_value';
        END IF;
        SELECT format('%s must be a number from %s to %s, not %s', name, least, most, options->name) INTO bad
        FROM (VALUES ('max_attempts', 1, 10000), ('timeout', 0, 9999999999), ('unique_for', 0, 9999999999)) AS known (name, least, most)
        WHERE options ? name AND NOT CASE WHEN jsonb_typeof(options->name) = 'number'
                                          THEN (options->name)::numeric BETWEEN least AND most ELSE false END;
        bad := coalesce(bad, (SELECT format('%s is not known', name) FROM jsonb_object_keys(options) AS name
                              WHERE name NOT IN ('max_attempts', 'timeout', 'unique_for', 'then', 'delivery') LIMIT 1));
        IF options ? 'delivery' AND coalesce(options->>'delivery', '') NOT IN ('at_least_once', 'at_most_once', 'exactly_once') THEN
            bad := 'delivery must be at_least_once, at_most_once or exactly_once';
        END IF;
        IF bad IS NULL AND options ? 'then' AND (jsonb_typeof(options->'then') <> 'object'
                OR coalesce(options->'then'->>'task', '') !~ '^[A-Za-z0-9][A-Za-z0-9_.:-]{0,99}$') THEN
            bad := 'then must be an object that names a task';
        END IF;
        IF bad IS NOT NULL THEN
            RAISE EXCEPTION 'the option %', bad USING ERRCODE = 'invalid_parameter_value';
        END IF;
    END IF;
    lane := hourhand.queue_number(queue) * 4 + class;
    run_id := number;
    duplicate := false;
    IF key IS NOT NULL THEN
        -- A rival that has not committed yet is waited for. A holder is only looked at, never locked:
        -- this transaction may stay open for long, and the holder's end has to free the key.
        FOR tries IN 1..100 LOOP
            INSERT INTO hourhand.keys AS k (task, key, run_id) VALUES (task, key, number)
            ON CONFLICT ON CONSTRAINT keys_pkey DO NOTHING RETURNING k.run_id INTO run_id;
            EXIT WHEN FOUND;
            SELECT k.run_id INTO run_id FROM hourhand.keys k
            WHERE k.task = enqueue.task AND k.key = enqueue.key AND k.expires_at > present;
            EXIT WHEN FOUND;
            UPDATE hourhand.keys k SET run_id = number, expires_at = 'infinity'
            WHERE k.task = enqueue.task AND k.key = enqueue.key AND k.expires_at <= present RETURNING k.run_id INTO run_id;
            EXIT WHEN FOUND;
        END LOOP;
        IF run_id IS NULL THEN
            RAISE EXCEPTION 'the key % keeps changing hands; try again', key USING ERRCODE = 'serialization_failure';
        END IF;
        duplicate := run_id <> number;
        IF duplicate THEN
            RETURN;
        END IF;
    END IF;
    IF due > present THEN
        INSERT INTO hourhand.delayed (due_at, run_id, scheduled_at, enqueued_at, expires_at, lane, task, payload, key, tags, options)
        VALUES (due, number, due, present, dies, lane, task, payload, key, tags, options);
        IF due < present + interval '2 seconds' THEN
            PERFORM pg_notify('hourhand', 'd');
        END IF;
    ELSE
        INSERT INTO hourhand.ready (seq, run_id, scheduled_at, enqueued_at, expires_at, lane, task, payload, key, tags, options)
        VALUES (number, number, coalesce(due, present), CASE WHEN due IS NOT NULL THEN present END, dies, lane, task, payload, key, tags, options);
        IF wake THEN
            PERFORM hourhand.wake(lane, number);
        END IF;
    END IF;
END $$;

-- As before, but what is due at the very boundary belongs to the new terms.
CREATE OR REPLACE FUNCTION hourhand.leave_span(old hourhand.jobs, plan hourhand.schedules, stays boolean, due timestamptz[])
RETURNS timestamptz LANGUAGE plpgsql AS $$
DECLARE
    pending timestamptz;
    boundary timestamptz;
BEGIN
    UPDATE hourhand.schedules SET revision = revision + 1 WHERE id = old.schedule_id RETURNING next_run_at INTO pending;
    boundary := greatest(clock_timestamp(), old.active_since, old.paused_at);
    IF pending <= boundary AND stays THEN
        -- Due and not fired yet: it will be, under the new terms.
        boundary := greatest(pending, old.active_since);
    ELSIF pending <= boundary THEN
        -- Due, not fired yet, and its schedule is about to lose this job: the job has it now.
        PERFORM hourhand.make_up(old, ARRAY(
            SELECT DISTINCT at FROM unnest(due || pending) AS at
            WHERE at >= pending AND at < boundary AND old.active_since <= at AND (old.paused_at IS NULL OR old.paused_at > at)
              AND (old.start_at IS NULL OR old.start_at <= at) AND (old.end_at IS NULL OR old.end_at > at)),
            old.missed_window, old.misfire_grace, 'missed before its schedule was changed');
    END IF;
    INSERT INTO hourhand.spans (job_id, since, until, schedule_id, paused, kind, expression, timezone, dst, anchor, start_at, end_at)
    SELECT old.id, part.since, part.until, old.schedule_id, part.paused,
           plan.kind, plan.expression, plan.timezone, plan.dst, plan.anchor, old.start_at, old.end_at
    FROM (VALUES (old.active_since, coalesce(old.paused_at, boundary), false), (old.paused_at, boundary, true)) AS part (since, until, paused)
    WHERE part.since < part.until;
    IF NOT stays THEN
        INSERT INTO hourhand.loose (schedule_id) VALUES (old.schedule_id);
    END IF;
    RETURN boundary;
END $$;

-- A run that succeeded without being started has found its effect on record: the step after it came with that.
DROP TRIGGER go_on ON hourhand.runs;
CREATE TRIGGER go_on AFTER INSERT ON hourhand.runs
    FOR EACH ROW WHEN (NEW.options ? 'then' AND NEW.outcome = 'succeeded' AND NEW.started_at IS NOT NULL) EXECUTE FUNCTION hourhand.go_on();
