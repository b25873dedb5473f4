-- The queue: a run's state is the table it is in.
--
--   delayed ──due──▶ ready ──claim──▶ running ──▶ runs (history)
--      ▲               ▲                 │
--      │               └── hand back ────┤
--      └───────── retry ─────────────────┼──▶ dead ──replay──▶ ready
--                  parked ◀── unknown ───┘
--
-- Each arrow is one statement that deletes the row here and inserts it there, so
-- a run is never in two states, and never in none.

-- A queue is a name; claims go by its number. A lane is queue × priority:
-- lane = queue * 4 + (0 high, 1 normal, 2 low).
CREATE TABLE hourhand.queues (
    id        integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name      text NOT NULL UNIQUE CHECK (name ~ '^[A-Za-z0-9][A-Za-z0-9_.:-]{0,99}$'),
    paused_at timestamptz
);

-- One row for each incarnation of a process; the id is never used again.
-- `session` says that the process also holds the advisory lock
-- (hourhand.nodes, id) for as long as it lives.
CREATE TABLE hourhand.nodes (
    id          integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    kind        text NOT NULL,
    name        text NOT NULL,
    started_at  timestamptz NOT NULL DEFAULT clock_timestamp(),
    lease_until timestamptz NOT NULL,
    session     boolean NOT NULL,
    skew        double precision,
    info        jsonb NOT NULL DEFAULT '{}',
    stopped_at  timestamptz,
    died_at     timestamptz,
    settled     boolean NOT NULL DEFAULT false  -- ended long ago, and nothing is left of it in `running`
) WITH (fillfactor = 50, autovacuum_vacuum_threshold = 200, autovacuum_vacuum_scale_factor = 0);

CREATE INDEX nodes_unsettled ON hourhand.nodes (id) WHERE NOT settled;

-- Duties that one node holds at a time (the maintainer). Eager to change hands:
-- everything a holder does is safe to do twice at once.
CREATE TABLE hourhand.duties (
    name  text PRIMARY KEY,
    node  integer NOT NULL,
    until timestamptz NOT NULL
) WITH (fillfactor = 50, autovacuum_vacuum_threshold = 200, autovacuum_vacuum_scale_factor = 0);

CREATE SEQUENCE hourhand.run_numbers;
CREATE SEQUENCE hourhand.claim_tokens;

-- Runs that can be claimed now. `seq` is the place in the lane; it equals `run_id`
-- until the run comes back from `delayed`, so the partial index is all that looking
-- up by id needs besides the primary key.
CREATE TABLE hourhand.ready (
    seq          bigint NOT NULL,
    run_id       bigint NOT NULL,
    job_id       bigint,
    scheduled_at timestamptz NOT NULL,
    enqueued_at  timestamptz,
    expires_at   timestamptz,
    lane         integer NOT NULL,
    attempt      smallint NOT NULL DEFAULT 0,
    crashes      smallint NOT NULL DEFAULT 0,
    task         text NOT NULL,
    payload      jsonb NOT NULL,
    key          text,
    tags         text[],
    options      jsonb,
    errors       jsonb,
    PRIMARY KEY (lane, seq)
) WITH (fillfactor = 100, autovacuum_vacuum_threshold = 5000, autovacuum_vacuum_scale_factor = 0.02,
        autovacuum_vacuum_insert_threshold = -1, autovacuum_vacuum_cost_delay = 1,
        autovacuum_analyze_threshold = 50000, autovacuum_analyze_scale_factor = 0.5);

CREATE INDEX ready_run ON hourhand.ready (run_id) WHERE run_id <> seq;
CREATE INDEX ready_expiry ON hourhand.ready (expires_at) WHERE expires_at IS NOT NULL;

-- Runs due later: delays and retries. Promoted with a new place in their lane. One that waits for another run of its job
-- to end is due at infinity.
CREATE TABLE hourhand.delayed (
    due_at       timestamptz NOT NULL,
    run_id       bigint PRIMARY KEY,
    job_id       bigint,
    scheduled_at timestamptz NOT NULL,
    enqueued_at  timestamptz,
    expires_at   timestamptz,
    lane         integer NOT NULL,
    attempt      smallint NOT NULL DEFAULT 0,
    crashes      smallint NOT NULL DEFAULT 0,
    task         text NOT NULL,
    payload      jsonb NOT NULL,
    key          text,
    tags         text[],
    options      jsonb,
    errors       jsonb
) WITH (autovacuum_vacuum_threshold = 5000, autovacuum_vacuum_scale_factor = 0.02,
        autovacuum_vacuum_cost_delay = 1);

CREATE INDEX delayed_due ON hourhand.delayed (due_at);
CREATE INDEX delayed_held ON hourhand.delayed (job_id, run_id) WHERE due_at = 'infinity';
CREATE INDEX delayed_expiry ON hourhand.delayed (expires_at) WHERE expires_at IS NOT NULL;

-- Runs that met a worker without their task's code: off everybody's claim path,
-- taken by the next worker that has it.
CREATE TABLE hourhand.parked (
    parked_at    timestamptz NOT NULL DEFAULT now(),
    seq          bigint NOT NULL,
    run_id       bigint PRIMARY KEY,
    job_id       bigint,
    scheduled_at timestamptz NOT NULL,
    enqueued_at  timestamptz,
    expires_at   timestamptz,
    lane         integer NOT NULL,
    attempt      smallint NOT NULL DEFAULT 0,
    crashes      smallint NOT NULL DEFAULT 0,
    task         text NOT NULL,
    payload      jsonb NOT NULL,
    key          text,
    tags         text[],
    options      jsonb,
    errors       jsonb
) WITH (autovacuum_vacuum_threshold = 5000, autovacuum_vacuum_scale_factor = 0.02);

CREATE INDEX parked_task ON hourhand.parked (task, lane, seq);
CREATE INDEX parked_expiry ON hourhand.parked (expires_at) WHERE expires_at IS NOT NULL;

-- Claimed runs. (worker_id, run_id, token) is what every later write must match. Rows
-- come and go but are never updated: what changes during a run lives in side tables,
-- so a transition may take its rows by ctid.
CREATE TABLE hourhand.running (
    worker_id    integer NOT NULL,
    token        bigint NOT NULL,
    claimed_at   timestamptz NOT NULL,
    seq          bigint NOT NULL,
    run_id       bigint NOT NULL,
    job_id       bigint,
    scheduled_at timestamptz NOT NULL,
    enqueued_at  timestamptz,
    expires_at   timestamptz,
    lane         integer NOT NULL,
    attempt      smallint NOT NULL,
    crashes      smallint NOT NULL,
    task         text NOT NULL,
    payload      jsonb NOT NULL,
    key          text,
    tags         text[],
    options      jsonb,
    errors       jsonb,
    PRIMARY KEY (worker_id, run_id)
) WITH (fillfactor = 90, autovacuum_vacuum_threshold = 5000, autovacuum_vacuum_scale_factor = 0.02,
        autovacuum_vacuum_insert_threshold = -1, autovacuum_vacuum_cost_delay = 1,
        autovacuum_analyze_threshold = 50000, autovacuum_analyze_scale_factor = 0.5);

CREATE TYPE hourhand.outcome AS ENUM ('succeeded', 'dead', 'cancelled', 'skipped', 'expired', 'lost');

-- History, append-only. A run's scheduled_at never changes, so the primary key lets
-- a run end once. Days without a partition land in the default one; the janitor sorts
-- them out.
CREATE TABLE hourhand.runs (
    run_id       bigint NOT NULL,
    job_id       bigint,
    scheduled_at timestamptz NOT NULL,
    enqueued_at  timestamptz,
    started_at   timestamptz,
    finished_at  timestamptz NOT NULL,
    worker_id    integer,
    lane         integer NOT NULL,
    outcome      hourhand.outcome NOT NULL,
    attempt      smallint NOT NULL,
    task         text NOT NULL,
    payload      jsonb,
    key          text,
    tags         text[],
    options      jsonb,
    errors       jsonb,
    result       jsonb,
    reason       text,
    PRIMARY KEY (run_id, scheduled_at)
) PARTITION BY RANGE (scheduled_at);

CREATE INDEX runs_job ON hourhand.runs (job_id, scheduled_at DESC) WHERE job_id IS NOT NULL;

CREATE TABLE hourhand.runs_default PARTITION OF hourhand.runs DEFAULT;

-- Runs that gave up, whole, until replayed or purged.
CREATE TABLE hourhand.dead (
    died_at      timestamptz NOT NULL,
    started_at   timestamptz,
    worker_id    integer,
    run_id       bigint PRIMARY KEY,
    job_id       bigint,
    scheduled_at timestamptz NOT NULL,
    enqueued_at  timestamptz,
    lane         integer NOT NULL,
    attempt      smallint NOT NULL,
    task         text NOT NULL,
    payload      jsonb NOT NULL,
    key          text,
    tags         text[],
    options      jsonb,
    errors       jsonb,
    reason       text
);

CREATE INDEX dead_died ON hourhand.dead (died_at);
CREATE INDEX dead_task ON hourhand.dead (task, died_at);
CREATE INDEX dead_job ON hourhand.dead (job_id, scheduled_at) WHERE job_id IS NOT NULL;

-- key= is unique for its task while the run is live (expires_at is infinity), and
-- for unique_for after it.
CREATE TABLE hourhand.keys (
    task       text NOT NULL,
    key        text NOT NULL,
    run_id     bigint NOT NULL,
    expires_at timestamptz NOT NULL DEFAULT 'infinity',
    PRIMARY KEY (task, key)
) WITH (fillfactor = 80, autovacuum_vacuum_threshold = 5000, autovacuum_vacuum_scale_factor = 0.02);

CREATE INDEX keys_expiry ON hourhand.keys (expires_at) WHERE expires_at < 'infinity';

-- A running run that was asked to stop. The worker honours it; if the worker dies first,
-- recovery does.
CREATE TABLE hourhand.cancels (
    run_id       bigint PRIMARY KEY,
    requested_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    reason       text
);

-- The latest word of running runs that report their progress.
CREATE TABLE hourhand.progress (
    run_id      bigint PRIMARY KEY,
    reported_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    data        jsonb NOT NULL
) WITH (fillfactor = 50, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_scale_factor = 0);

-- However a keyed run ends, its key is freed in the same statement.
CREATE FUNCTION hourhand.free_key() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    kept_for interval := make_interval(secs => (NEW.options->>'unique_for')::double precision);
BEGIN
    IF kept_for IS NULL THEN
        DELETE FROM hourhand.keys WHERE task = NEW.task AND key = NEW.key AND run_id = NEW.run_id;
    ELSE
        UPDATE hourhand.keys SET expires_at = clock_timestamp() + kept_for
        WHERE task = NEW.task AND key = NEW.key AND run_id = NEW.run_id AND expires_at = 'infinity';
    END IF;
    RETURN NULL;
END $$;

CREATE TRIGGER free_key AFTER INSERT ON hourhand.runs
    FOR EACH ROW WHEN (NEW.key IS NOT NULL) EXECUTE FUNCTION hourhand.free_key();
CREATE TRIGGER free_key AFTER INSERT ON hourhand.dead
    FOR EACH ROW WHEN (NEW.key IS NOT NULL) EXECUTE FUNCTION hourhand.free_key();

-- The number of a queue, made on first use. Whoever makes it in a transaction keeps others from using
-- the same new name until that transaction ends; so the clients make queues outside of their callers'
-- transactions, and other languages can call this function beforehand.
CREATE FUNCTION hourhand.queue_number(wanted text) RETURNS integer LANGUAGE plpgsql AS $$
DECLARE
    number integer;
BEGIN
    SELECT id INTO number FROM hourhand.queues WHERE name = wanted;
    WHILE number IS NULL LOOP
        INSERT INTO hourhand.queues (name) VALUES (wanted) ON CONFLICT DO NOTHING RETURNING id INTO number;
        IF number IS NULL THEN
            SELECT id INTO number FROM hourhand.queues WHERE name = wanted;
        ELSE
            PERFORM pg_notify('hourhand', 'q');
        END IF;
    END LOOP;
    RETURN number;
END $$;

SELECT hourhand.queue_number('default');

-- Wake the workers, once per lane and transaction: the first place a transaction takes
-- in a lane is its lowest, so later runs of the same transaction need no further word.
CREATE FUNCTION hourhand.wake(lane integer, seq bigint) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    told text := coalesce(current_setting('hourhand_wake.lanes', true), '');
    mine text := format(',%s:%s,', 'hourhand', lane);
BEGIN
    IF position(mine IN told) = 0 THEN
        PERFORM pg_notify('hourhand', format('r:%s:%s', lane, seq));
        PERFORM set_config('hourhand_wake.lanes', told || mine, true);
    END IF;
END $$;

-- Enqueue one run, from any language, inside whatever transaction the caller is in:
--   SELECT * FROM hourhand.enqueue('send_invoice', '{"invoice_id": 7}', queue => 'billing');
-- A key that is taken returns the run that holds it, and duplicate = true.
CREATE FUNCTION hourhand.enqueue(
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
                              WHERE name NOT IN ('max_attempts', 'timeout', 'unique_for', 'then') LIMIT 1));
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

-- A day's partition of a table that has one for each day (by `scheduled_at`). Rows of that day which came before it
-- are moved in. Somebody's long look at the history must not make the queue wait behind this: it gives up after a second.
CREATE FUNCTION hourhand.add_partition(parent text, day date) RETURNS boolean LANGUAGE plpgsql SET lock_timeout = '1s' AS $$
DECLARE
    part text := format('%s_%s', parent, to_char(day, 'YYYYMMDD'));
    first timestamptz := day::timestamp AT TIME ZONE 'UTC';
    beyond timestamptz := (day + 1)::timestamp AT TIME ZONE 'UTC';
BEGIN
    IF to_regclass(format('hourhand.%I', part)) IS NOT NULL THEN
        RETURN false;
    END IF;
    EXECUTE format('CREATE TABLE hourhand.%I (LIKE hourhand.%I INCLUDING ALL)', part, parent);
    EXECUTE format('ALTER TABLE hourhand.%I SET (autovacuum_vacuum_insert_scale_factor = 0.5, autovacuum_analyze_scale_factor = 0.5)', part);
    EXECUTE format('WITH moved AS (DELETE FROM hourhand.%I WHERE scheduled_at >= %L AND scheduled_at < %L RETURNING *)
                    INSERT INTO hourhand.%I SELECT * FROM moved', parent || '_default', first, beyond, part);
    EXECUTE format('ALTER TABLE hourhand.%I ATTACH PARTITION hourhand.%I FOR VALUES FROM (%L) TO (%L)', parent, part, first, beyond);
    RETURN true;
END $$;

-- The partitions that lie wholly before an instant, oldest first.
CREATE FUNCTION hourhand.old_partitions(parent text, before timestamptz) RETURNS SETOF text LANGUAGE sql STABLE AS $$
    SELECT c.relname FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
    WHERE i.inhparent = format('hourhand.%I', parent)::regclass AND c.relname ~ ('^' || parent || '_\d{8}$')
      AND (to_date(right(c.relname, 8), 'YYYYMMDD') + 1)::timestamp AT TIME ZONE 'UTC' <= before
    ORDER BY c.relname
$$;

-- Gone for good. Dropping needs its parent for itself for a moment: who reads or writes just now is not made to wait
-- long behind it, and it is tried again later.
CREATE FUNCTION hourhand.drop_partition(part text) RETURNS void LANGUAGE plpgsql SET lock_timeout = '200ms' AS $$
BEGIN
    EXECUTE format('DROP TABLE IF EXISTS hourhand.%I', part);
END $$;

SELECT hourhand.add_partition('runs', ((now() AT TIME ZONE 'UTC')::date + ahead)::date) FROM generate_series(-1, 3) AS ahead;
