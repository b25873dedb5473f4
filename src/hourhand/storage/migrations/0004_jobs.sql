-- Adding, changing, holding, starting and collecting jobs.

-- Add a job, or change it. The same definition again changes nothing; another one under the same name is a
-- conflict unless `replace` is set. A job whose schedule stays the same keeps its pending firing; one that changes it
-- has the firing that is due at this moment, if there is one, before it leaves. `apart` gives a one-off a schedule of its own:
-- in a transaction that may commit after its instant, it must not share one that is fired meanwhile.
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
        same_schedule := plan.kind = kind AND (kind = 'once' OR plan.expression = given->>'expression')
            AND plan.timezone = given->>'timezone'
            AND plan.dst = given->>'dst'
            AND (plan.anchor IS NOT DISTINCT FROM anchor
                 OR NOT (given->>'anchored')::boolean
                    AND (kind = 'every' OR kind = 'once' AND plan.next_run_at IS NOT NULL AND NOT replace));
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
        fresh.id := coalesce((given->>'id')::bigint, nextval('hourhand.job_numbers'));
        fresh.shard := hashint8(fresh.id) & 255;
        fresh.version := 0;
        fresh.created_at := clock_timestamp();
        fresh.active_since := clock_timestamp();
    ELSIF NOT same_schedule
            OR old.paused_at IS NULL AND (fresh.start_at, fresh.end_at) IS DISTINCT FROM (old.start_at, old.end_at) THEN
        boundary := hourhand.leave_span(old, plan, same_schedule, ARRAY(
            SELECT at::timestamptz FROM jsonb_array_elements_text(nullif(given->'due', 'null')) AS at));
        fresh.active_since := boundary;
        IF old.paused_at IS NOT NULL THEN
            fresh.paused_at := boundary;
        END IF;
    END IF;
    IF NOT same_schedule THEN
        fresh.schedule_id := hourhand.schedule_number(
            fresh.shard, kind, CASE WHEN (given->>'apart')::boolean THEN format('once %s', fresh.id) ELSE given->>'expression' END,
            given->>'timezone', given->>'dst', anchor, (given->>'next_run_at')::timestamptz);
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
    IF old.max_runs IS DISTINCT FROM fresh.max_runs THEN
        -- What it did not take part in because it had had all of its runs stays on record.
        INSERT INTO hourhand.decisions (job_id, scheduled_at, until, count, outcome, reason)
        SELECT c.job_id, c.last_at + interval '1 microsecond', clock_timestamp(), 0, 'finished', 'the job had had all of its max_runs'
        FROM hourhand.counters c WHERE c.job_id = fresh.id AND c.fired >= old.max_runs ON CONFLICT DO NOTHING;
        DELETE FROM hourhand.counters c WHERE c.job_id = fresh.id AND fresh.max_runs IS NULL;
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

-- Before a transaction of the caller's, which may stay open for long: a job's number and its schedule's row, so that nobody
-- who wants the same schedule waits for that transaction. If nothing comes of it, the row is collected.
CREATE FUNCTION hourhand.reserve_schedule(given jsonb, number bigint) RETURNS bigint LANGUAGE plpgsql AS $$
BEGIN
    number := coalesce(number, nextval('hourhand.job_numbers'));
    INSERT INTO hourhand.loose (schedule_id) VALUES (hourhand.schedule_number(
        (hashint8(number) & 255)::smallint, given->>'kind', given->>'expression', given->>'timezone', given->>'dst',
        (given->>'anchor')::timestamptz, (given->>'next_run_at')::timestamptz));
    RETURN number;
END $$;

-- What a job has missed, made up for: what is within the grace runs; of what is older, the policy decides, and what is left
-- out is on record. Many are spread over time, as the scheduler does it.
CREATE FUNCTION hourhand.make_up(
    job hourhand.jobs, instants timestamptz[], policy text, grace double precision, why text, OUT started integer, OUT left_out integer
) LANGUAGE plpgsql AS $$
DECLARE
    oldest timestamptz := clock_timestamp() - make_interval(secs => grace);
    missed timestamptz[] := ARRAY(SELECT at FROM unnest(instants) AS at WHERE at < oldest ORDER BY at DESC);
    chosen timestamptz[] := missed[1 : CASE policy WHEN 'RUN_ONCE' THEN 1 WHEN 'RUN_ALL' THEN job.max_missed ELSE 0 END];
    one timestamptz;
BEGIN
    started := 0;
    left_out := cardinality(missed) - cardinality(chosen);
    FOR one IN SELECT at FROM unnest(chosen || ARRAY(SELECT at FROM unnest(instants) AS at WHERE at >= oldest)) AS at ORDER BY at LOOP
        PERFORM hourhand.fire_one(
            job.id, one, CASE policy WHEN 'RUN_ALL' THEN clock_timestamp() + make_interval(secs => started / 10.0)
                                     ELSE one + hourhand.flexible_delay(job.id, job.flexible) END,
            job.lane, job.task, job.payload, job.tags, job.options, job.overlap, job.max_runs);
        started := started + 1;
    END LOOP;
    IF left_out > 0 THEN
        INSERT INTO hourhand.decisions (job_id, scheduled_at, until, count, outcome, reason)
        VALUES (job.id, missed[cardinality(missed)], missed[cardinality(chosen) + 1], left_out,
                CASE policy WHEN 'RUN_ONCE' THEN 'coalesced' ELSE 'skipped' END,
                why || CASE policy WHEN 'RUN_ONCE' THEN '; the last of them ran for all'
                                   WHEN 'RUN_ALL' THEN format(', and these are beyond max_missed of %s', job.max_missed) ELSE '' END)
        ON CONFLICT DO NOTHING;
    END IF;
END $$;

-- A job changes how it takes part in its schedule, at the instant this returns: everything before it is settled under the
-- old terms, everything from it on is not. Firing and this exclude each other by the schedule's row and its revision. `due`
-- lists what its schedule has had since it was last fired; it may run on beyond the present.
CREATE FUNCTION hourhand.leave_span(old hourhand.jobs, plan hourhand.schedules, stays boolean, due timestamptz[])
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
            WHERE at BETWEEN pending AND boundary AND old.active_since <= at AND (old.paused_at IS NULL OR old.paused_at > at)
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

-- The job takes part again, from now on. What it missed meanwhile (`instants`: what its schedule has had since the pause, or
-- since it was last fired if that is longer ago; the list may run on beyond the present) is treated by its policy, or by
-- the one given; what was due before the pause and not fired yet, as always.
CREATE FUNCTION hourhand.resume_job(
    number bigint, instants timestamptz[], policy text, OUT resumed boolean, OUT started integer, OUT left_out integer
) LANGUAGE plpgsql AS $$
DECLARE
    old hourhand.jobs;
    plan hourhand.schedules;
    boundary timestamptz;
    mine timestamptz[];
    before record;
    during record;
BEGIN
    SELECT * INTO old FROM hourhand.jobs WHERE id = number FOR UPDATE;
    resumed := old.paused_at IS NOT NULL; started := 0; left_out := 0;
    IF NOT coalesce(resumed, false) THEN
        RETURN;
    END IF;
    UPDATE hourhand.schedules SET revision = revision + 1 WHERE id = old.schedule_id RETURNING * INTO plan;
    boundary := greatest(clock_timestamp(), old.paused_at);
    INSERT INTO hourhand.spans (job_id, since, until, schedule_id, paused, kind, expression, timezone, dst, anchor, start_at, end_at)
    SELECT old.id, part.since, part.until, old.schedule_id, part.paused,
           plan.kind, plan.expression, plan.timezone, plan.dst, plan.anchor, old.start_at, old.end_at
    FROM (VALUES (old.active_since, old.paused_at, false), (old.paused_at, boundary, true)) AS part (since, until, paused)
    WHERE part.since < part.until;
    UPDATE hourhand.jobs SET paused_at = NULL, active_since = boundary, updated_at = clock_timestamp(), version = version + 1
    WHERE id = number;
    mine := ARRAY(SELECT at FROM unnest(instants) AS at
                  WHERE at >= old.active_since AND at < boundary
                    AND (old.start_at IS NULL OR old.start_at <= at) AND (old.end_at IS NULL OR old.end_at > at));
    before := hourhand.make_up(old, ARRAY(SELECT at FROM unnest(mine) AS at WHERE at >= plan.next_run_at AND at < old.paused_at),
                               old.missed_window, old.misfire_grace, 'missed while no scheduler fired it');
    during := hourhand.make_up(old, ARRAY(SELECT at FROM unnest(mine) AS at WHERE at >= old.paused_at),
                               coalesce(policy, old.missed_window), 0, 'the job was paused');
    started := before.started + during.started;
    left_out := before.left_out + during.left_out;
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
