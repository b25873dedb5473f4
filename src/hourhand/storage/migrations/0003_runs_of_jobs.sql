-- What is special about the runs of jobs: two at once, one after another, chains.

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

-- Everything of a job that its schedule had before this run makes room for it: what has not started ends at once, what is
-- going on is asked to stop; when it has, end_live starts this one.
CREATE FUNCTION hourhand.replace_runs(in_job bigint, number bigint, previous bigint, at timestamptz) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    why text := format('replaced by the firing of %s', to_char(at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS"Z"'));
BEGIN
    PERFORM hourhand.cancel_pending(d.run_id, why) FROM hourhand.delayed d
    WHERE d.job_id = in_job AND d.due_at = 'infinity' AND d.run_id <> number AND NOT d.options ? 'by_hand';
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
    INSERT INTO hourhand.dead (died_at, run_id, scheduled_at, lane, attempt, task, payload, options, reason)
    VALUES (clock_timestamp(), nextval('hourhand.run_numbers'), clock_timestamp(), NEW.lane, 0, step->>'task', arguments,
            step->'options', format('could not be enqueued after run %s: %s', NEW.run_id, trouble));
    RETURN NULL;
END $$;

CREATE TRIGGER go_on AFTER INSERT ON hourhand.runs
    FOR EACH ROW WHEN (NEW.options ? 'then' AND NEW.outcome = 'succeeded') EXECUTE FUNCTION hourhand.go_on();
