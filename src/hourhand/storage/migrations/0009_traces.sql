-- Traces: which one a run belongs to travels with it, from step to step of a chain.

-- As before, and `trace` among the options: where in whose trace the run was ordered; and `after`: the attempt that it follows, in a
-- chain.
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
                              WHERE name NOT IN ('max_attempts', 'timeout', 'unique_for', 'then', 'delivery', 'retry', 'secret', 'trace', 'after')
                              LIMIT 1));
        IF options ? 'delivery' AND coalesce(options->>'delivery', '') NOT IN ('at_least_once', 'at_most_once', 'exactly_once') THEN
            bad := 'delivery must be at_least_once, at_most_once or exactly_once';
        END IF;
        IF bad IS NULL AND options ? 'secret' AND jsonb_typeof(options->'secret') <> 'array' THEN
            bad := 'secret must be a list of the names of fields';
        END IF;
        IF bad IS NULL AND options ? 'retry' AND (jsonb_typeof(options->'retry') <> 'object'
                OR coalesce(options->'retry'->>'backoff', 'exponential') NOT IN ('exponential', 'fixed')) THEN
            bad := 'retry must be an object with backoff (exponential or fixed), base and cap';
        END IF;
        bad := coalesce(bad, (
            SELECT format('%s must be a W3C traceparent, such as 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01', name)
            FROM jsonb_each(options) AS one (name, given)
            WHERE name IN ('trace', 'after') AND (jsonb_typeof(given) <> 'string' OR length(given #>> '{}') > 600
                OR given #>> '{}' !~ '^00-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}( [ -~]+)?$') LIMIT 1));
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

-- As before, and the next step belongs to the same trace.
CREATE OR REPLACE FUNCTION hourhand.go_on() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    step jsonb := NEW.options->'then';
    arguments jsonb := coalesce(step->'payload', '{}');
    kept jsonb := step->'options';
    number bigint;
    trouble text;
BEGIN
    IF NEW.options ?| ARRAY['trace', 'after'] THEN
        kept := coalesce(kept, '{}')
            || (SELECT jsonb_object_agg(name, given) FROM jsonb_each(NEW.options) AS one (name, given) WHERE name IN ('trace', 'after'));
    END IF;
    IF step->>'result' IS NOT NULL THEN
        arguments := arguments || jsonb_build_object(step->>'result', NEW.result);
    END IF;
    SELECT made.run_id INTO number FROM hourhand.enqueue(
        step->>'task', arguments, coalesce(step->>'queue', 'default'), coalesce(step->>'priority', 'normal'),
        delay => make_interval(secs => (step->>'delay')::float8),
        tags => (SELECT array_agg(tag) FROM jsonb_array_elements_text(step->'tags') AS tag), options => kept,
        measured => arguments ? '$sealed') AS made;
    INSERT INTO hourhand.follows (run_id, next_id) VALUES (NEW.run_id, number) ON CONFLICT DO NOTHING;
    RETURN NULL;
EXCEPTION WHEN data_exception OR program_limit_exceeded OR integrity_constraint_violation THEN
    GET STACKED DIAGNOSTICS trouble = MESSAGE_TEXT;
    number := nextval('hourhand.run_numbers');
    INSERT INTO hourhand.dead (died_at, run_id, scheduled_at, lane, attempt, task, payload, options, reason)
    VALUES (clock_timestamp(), number, clock_timestamp(), NEW.lane, 0, step->>'task', arguments,
            kept, format('could not be enqueued after run %s: %s', NEW.run_id, trouble));
    INSERT INTO hourhand.follows (run_id, next_id) VALUES (NEW.run_id, number) ON CONFLICT DO NOTHING;
    RETURN NULL;
END $$;
