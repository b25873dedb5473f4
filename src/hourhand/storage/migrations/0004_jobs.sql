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
        fresh.id := coalesce((given->>'id')::bigint, nextval('hourhand.job_numbers'));
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
