-- Who may do what, who did what, and what runs say: keys, sessions, the audit log, remembered requests, log lines.

-- API keys. The secret itself is never stored: it has 256 random bits, so its plain SHA-256 is as good as it.
CREATE TABLE hourhand.api_keys (
    id         text PRIMARY KEY,
    name       text NOT NULL,
    hash       bytea NOT NULL,
    role       text NOT NULL CHECK (role IN ('viewer', 'operator', 'admin')),
    queues     text[],
    prefixes   text[],
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    created_by text NOT NULL,
    expires_at timestamptz,
    revoked_at timestamptz,
    used_at    timestamptz
);

-- Browsers that a key has opened. The cookie is kept as a hash, like a key.
CREATE TABLE hourhand.sessions (
    hash       bytea PRIMARY KEY,
    key_id     text NOT NULL REFERENCES hourhand.api_keys (id) ON DELETE CASCADE,
    csrf       text NOT NULL,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    expires_at timestamptz NOT NULL
);

CREATE INDEX sessions_age ON hourhand.sessions (expires_at);

-- Every change that somebody ordered, in the transaction of the change itself.
CREATE TABLE hourhand.audit (
    id      bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at      timestamptz NOT NULL DEFAULT clock_timestamp(),
    actor   text NOT NULL,
    via     text NOT NULL,
    action  text NOT NULL,
    subject text,
    name    text,
    queue   text,
    before  jsonb,
    after   jsonb
);

CREATE INDEX audit_subject ON hourhand.audit (subject, id);
CREATE INDEX audit_actor ON hourhand.audit (actor, id);

CREATE FUNCTION hourhand.refuse_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'the audit log can only be added to' USING ERRCODE = 'insufficient_privilege';
END $$;

CREATE TRIGGER append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON hourhand.audit
    FOR EACH STATEMENT EXECUTE FUNCTION hourhand.refuse_change();

-- Requests that came with an Idempotency-Key, and what they were answered: written in the transaction of their effect.
CREATE TABLE hourhand.requests (
    actor       text NOT NULL,
    key         text NOT NULL,
    fingerprint bytea NOT NULL,
    status      integer,
    headers     jsonb,
    body        bytea,
    made_at     timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (actor, key)
);

CREATE INDEX requests_age ON hourhand.requests (made_at);

-- What runs say while they go on, line by line; a bounded number for each.
CREATE TABLE hourhand.lines (
    run_id       bigint NOT NULL,
    scheduled_at timestamptz NOT NULL,
    number       integer NOT NULL,
    at           timestamptz NOT NULL,
    attempt      smallint NOT NULL,
    level        text NOT NULL,
    text         text NOT NULL,
    fields       jsonb
) PARTITION BY RANGE (scheduled_at);

-- Unique, so that two workers that number on from the same line notice each other.
CREATE UNIQUE INDEX lines_run ON hourhand.lines (run_id, number, scheduled_at);

CREATE TABLE hourhand.lines_default PARTITION OF hourhand.lines DEFAULT;

SELECT hourhand.add_partition('lines', ((now() AT TIME ZONE 'UTC')::date + ahead)::date) FROM generate_series(-1, 3) AS ahead;

-- As before, and `retry` and `secret` among the options.
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
                              WHERE name NOT IN ('max_attempts', 'timeout', 'unique_for', 'then', 'delivery', 'retry', 'secret') LIMIT 1));
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

-- As before. A sealed step was measured before it was sealed, and what the database adds to it stands beside the seal.
CREATE OR REPLACE FUNCTION hourhand.go_on() RETURNS trigger LANGUAGE plpgsql AS $$
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
        tags => (SELECT array_agg(tag) FROM jsonb_array_elements_text(step->'tags') AS tag), options => step->'options',
        measured => arguments ? '$sealed');
    RETURN NULL;
EXCEPTION WHEN data_exception OR program_limit_exceeded OR integrity_constraint_violation THEN
    GET STACKED DIAGNOSTICS trouble = MESSAGE_TEXT;
    INSERT INTO hourhand.dead (died_at, run_id, scheduled_at, lane, attempt, task, payload, options, reason)
    VALUES (clock_timestamp(), nextval('hourhand.run_numbers'), clock_timestamp(), NEW.lane, 0, step->>'task', arguments,
            step->'options', format('could not be enqueued after run %s: %s', NEW.run_id, trouble));
    RETURN NULL;
END $$;
