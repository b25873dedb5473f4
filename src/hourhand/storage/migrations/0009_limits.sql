-- Fair and bounded. A queue that has rules is managed: its runs are not claimed out of `ready`. They are lined up in streams, which
-- wait in `parked`, and are admitted from there.
--
--   ready ──line up──▶ parked, in a stream ──admit──▶ running, with a slot of each of its gates
--
-- A stream is the runs of a task in a lane that have to pass the same gates, for the same fair key. A gate is one limit for one value of its key.
-- Whoever uses none of this meets one column more in `queues`, and a trigger that does not fire.

-- What is ruled about a queue or a task: by the code that declares it, and by people, whose word stands above it.
CREATE TABLE hourhand.rules (
    id       integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    scope    text NOT NULL CHECK (scope IN ('queue', 'task')),
    name     text NOT NULL,
    declared jsonb NOT NULL DEFAULT '{}',
    ordered  jsonb NOT NULL DEFAULT '{}',
    settings jsonb GENERATED ALWAYS AS (declared || ordered) STORED,
    UNIQUE (scope, name)
);

-- Runs that are held back, whatever queue they are in: those for which everything that is said here is true.
CREATE TABLE hourhand.holds (
    id      integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    queue   text,
    task    text,
    tag     text,
    path    text,
    value   text,
    reason  text,
    held_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    held_by text,
    CHECK (num_nonnulls(task, tag, path) > 0 AND (path IS NULL) = (value IS NULL))
);

CREATE UNIQUE INDEX holds_once ON hourhand.holds (
    coalesce(queue, ''), coalesce(task, ''), coalesce(tag, ''), coalesce(path, ''), coalesce(value, ''));

-- What claimers have to know before they claim. Who knows an older version gets nothing until it has looked.
CREATE TABLE hourhand.rulebook (
    version bigint NOT NULL,
    single  boolean PRIMARY KEY DEFAULT true CHECK (single)
);
INSERT INTO hourhand.rulebook (version) VALUES (1);

CREATE FUNCTION hourhand.turn_page() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    UPDATE hourhand.rulebook SET version = version + 1;
    PERFORM pg_notify('hourhand', 'q');
    RETURN NULL;
END $$;

CREATE TRIGGER turn_page AFTER INSERT OR UPDATE OR DELETE ON hourhand.rules
    FOR EACH STATEMENT EXECUTE FUNCTION hourhand.turn_page();
CREATE TRIGGER turn_page AFTER INSERT OR UPDATE OR DELETE ON hourhand.holds
    FOR EACH STATEMENT EXECUTE FUNCTION hourhand.turn_page();

ALTER TABLE hourhand.queues
    ADD COLUMN managed boolean NOT NULL DEFAULT false,
    ADD COLUMN max_depth integer,
    ADD COLUMN overflow text;

-- One limit for one value of its key. Its id is made of what it is, so that nobody has to ask for it.
CREATE TABLE hourhand.gates (
    id        bigint PRIMARY KEY,
    rule_id   integer NOT NULL,
    key       text NOT NULL,
    value     text NOT NULL,
    slots     integer,
    rate      double precision,  -- tokens a second
    burst     double precision,
    tokens    double precision NOT NULL DEFAULT 0,
    filled_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    opens_at  timestamptz  -- when there is a token for the first of those that wait here
) WITH (fillfactor = 50, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_scale_factor = 0.1);

CREATE INDEX gates_opening ON hourhand.gates (opens_at) WHERE opens_at IS NOT NULL;
CREATE INDEX gates_rule ON hourhand.gates (rule_id);

-- Who is inside. A number is given once, by its primary key: a limit of five has five numbers.
CREATE TABLE hourhand.slots (
    gate   bigint NOT NULL,
    number integer NOT NULL,
    run_id bigint NOT NULL,
    PRIMARY KEY (gate, number)
) WITH (fillfactor = 70, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_scale_factor = 0.1);

CREATE INDEX slots_run ON hourhand.slots (run_id);

CREATE SEQUENCE hourhand.turns;

-- `turn` is its place among the open streams of its lane: a turn taken puts it behind all others, or, by deadline, where its
-- next run's deadline puts it. One that found a gate closed waits there.
CREATE TABLE hourhand.streams (
    id          bigint PRIMARY KEY,
    lane        integer NOT NULL,
    task        text NOT NULL,
    gates       bigint[] NOT NULL,
    fair        text NOT NULL,
    by_deadline boolean NOT NULL,
    turn        bigint NOT NULL,
    waits_for   bigint
) WITH (fillfactor = 50, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_scale_factor = 0.1);

CREATE INDEX streams_open ON hourhand.streams (lane, turn, id) WHERE waits_for IS NULL;
CREATE INDEX streams_waiting ON hourhand.streams (waits_for, turn) WHERE waits_for IS NOT NULL;

ALTER TABLE hourhand.parked
    ADD COLUMN stream bigint,
    ADD COLUMN due    timestamptz NOT NULL DEFAULT '-infinity',  -- its deadline, where that decides
    ADD COLUMN hold   integer;

CREATE INDEX parked_stream ON hourhand.parked (stream, due, seq) WHERE stream IS NOT NULL;
CREATE INDEX parked_hold ON hourhand.parked (hold, run_id) WHERE hold IS NOT NULL;
CREATE INDEX parked_strange ON hourhand.parked (task, lane, seq) WHERE stream IS NULL AND hold IS NULL;
CREATE INDEX parked_lane ON hourhand.parked (lane, seq) WHERE stream IS NOT NULL;
CREATE INDEX parked_apart ON hourhand.parked (run_id) INCLUDE (lane) WHERE stream IS NULL;
CREATE INDEX parked_probation ON hourhand.parked (run_id) WHERE crashes > 0;

ALTER TABLE hourhand.running ADD COLUMN stream bigint;

-- However an admitted run leaves `running`, its slots are free in the same statement.
CREATE FUNCTION hourhand.free_slots() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    DELETE FROM hourhand.slots WHERE run_id = OLD.run_id;
    RETURN NULL;
END $$;

CREATE TRIGGER free_slots AFTER DELETE ON hourhand.running
    FOR EACH ROW WHEN (OLD.stream IS NOT NULL) EXECUTE FUNCTION hourhand.free_slots();

-- Whether a rule makes runs wait in streams, or only says how deep a queue may be.
CREATE FUNCTION hourhand.binds(settings jsonb) RETURNS boolean LANGUAGE sql IMMUTABLE AS $$
    SELECT coalesce(jsonb_array_length(nullif(settings->'limits', 'null')) > 0, false)
        OR settings->>'fair_key' IS NOT NULL OR settings->>'order' IS NOT DISTINCT FROM 'deadline'
$$;

-- What is declared or ordered (whichever is not null) comes into force. True: something has changed.
CREATE FUNCTION hourhand.set_rule(in_scope text, in_name text, now_declared jsonb, now_ordered jsonb) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    old hourhand.rules;
    new hourhand.rules;
BEGIN
    PERFORM pg_advisory_xact_lock('hourhand.rules'::regclass::oid::integer, 0);
    SELECT * INTO old FROM hourhand.rules WHERE scope = in_scope AND name = in_name;
    IF coalesce(now_declared, old.declared, '{}') = coalesce(old.declared, '{}')
            AND coalesce(now_ordered, old.ordered, '{}') = coalesce(old.ordered, '{}') THEN
        RETURN false;
    END IF;
    INSERT INTO hourhand.rules AS r (scope, name, declared, ordered)
    VALUES (in_scope, in_name, coalesce(now_declared, '{}'), coalesce(now_ordered, '{}'))
    ON CONFLICT (scope, name) DO UPDATE SET
        declared = coalesce(now_declared, r.declared), ordered = coalesce(now_ordered, r.ordered)
    RETURNING * INTO new;
    PERFORM pg_advisory_xact_lock('hourhand.gates'::regclass::oid::integer, 0);
    IF in_scope = 'queue' THEN
        PERFORM hourhand.queue_number(in_name);
        UPDATE hourhand.queues SET max_depth = (new.settings->>'max_depth')::integer, overflow = new.settings->>'overflow'
        WHERE name = in_name;
    END IF;
    UPDATE hourhand.queues q SET managed = hourhand.binds(new.settings)
        OR EXISTS (SELECT FROM hourhand.rules r WHERE r.scope = 'task' AND hourhand.binds(r.settings)) AND q.managed
    WHERE in_scope = 'queue' AND q.name = in_name;
    IF NOT EXISTS (SELECT FROM hourhand.rules r WHERE r.scope = 'task' AND hourhand.binds(r.settings)) THEN
        UPDATE hourhand.queues q SET managed = false
        WHERE managed AND NOT EXISTS (
            SELECT FROM hourhand.rules r WHERE r.scope = 'queue' AND r.name = q.name AND hourhand.binds(r.settings));
    END IF;
    PERFORM hourhand.dissolve(s.id) FROM hourhand.streams s JOIN hourhand.queues q ON q.id = s.lane / 4 WHERE NOT q.managed;
    -- What a gate lets through changes in its place; gates that the rule does not know any more let everything through.
    UPDATE hourhand.gates g SET slots = l.slots, rate = l.rate, burst = l.burst, opens_at = CASE WHEN g.opens_at IS NOT NULL THEN now() END
    FROM hourhand.gates o LEFT JOIN jsonb_to_recordset(coalesce(nullif(new.settings->'limits', 'null'), '[]'))
        AS l (key text, slots integer, rate double precision, burst double precision) ON l.key = o.key
    WHERE g.id = o.id AND g.rule_id = new.id;
    -- Other gates, other keys: those that wait are lined up anew.
    IF hourhand.shape(old.settings) IS DISTINCT FROM hourhand.shape(new.settings) THEN
        PERFORM hourhand.dissolve(id) FROM hourhand.streams WHERE CASE in_scope WHEN 'task' THEN task = in_name
            ELSE lane / 4 = (SELECT id FROM hourhand.queues WHERE name = in_name) END;
    END IF;
    RETURN true;
END $$;

CREATE FUNCTION hourhand.shape(settings jsonb) RETURNS text LANGUAGE sql IMMUTABLE AS $$
    SELECT concat_ws(' ', settings->>'fair_key', settings->>'order', (
        SELECT string_agg(one->>'key', ' ' ORDER BY one->>'key')
        FROM jsonb_array_elements(coalesce(nullif(settings->'limits', 'null'), '[]')) AS one))
$$;

-- The runs of a stream go back to their lane, at their old places, and are lined up anew. Those that somebody's open transaction
-- is about to drop are not waited for: if it does not, they are returned later.
CREATE FUNCTION hourhand.dissolve(old_stream bigint) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    told integer;
BEGIN
    DELETE FROM hourhand.streams WHERE id = old_stream;
    WITH gone AS (
        DELETE FROM hourhand.parked WHERE ctid = ANY (ARRAY(
            SELECT ctid FROM hourhand.parked WHERE stream = old_stream FOR UPDATE SKIP LOCKED))
        RETURNING *),
    back AS (
        INSERT INTO hourhand.ready (seq, run_id, job_id, scheduled_at, enqueued_at, expires_at, lane, attempt, crashes,
                                    task, payload, key, tags, options, errors)
        SELECT seq, run_id, job_id, scheduled_at, enqueued_at, expires_at, lane, attempt, crashes,
               task, payload, key, tags, options, errors FROM gone
        RETURNING lane, seq)
    SELECT count(pg_notify('hourhand', format('r:%s:%s', lane, low))) INTO told
    FROM (SELECT lane, min(seq) AS low FROM back GROUP BY lane) AS lanes;
END $$;

-- The place among streams that a deadline gives.
CREATE FUNCTION hourhand.turn_of(deadline timestamptz) RETURNS bigint LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE WHEN deadline = 'infinity' THEN 9223372036854775807 WHEN deadline = '-infinity' THEN 0
                ELSE (extract(epoch FROM deadline) * 1e6)::bigint END
$$;

-- What is in a gate's bucket. The smallest part of a token is forgiven: it comes of counting in fractions.
CREATE FUNCTION hourhand.tokens(g hourhand.gates, present timestamptz) RETURNS double precision LANGUAGE sql IMMUTABLE AS $$
    SELECT least(g.burst, g.tokens + g.rate * greatest(0, extract(epoch FROM present - g.filled_at)::double precision)) + 1e-6
$$;

-- How many more may pass a gate now.
CREATE FUNCTION hourhand.room(g hourhand.gates, present timestamptz) RETURNS bigint LANGUAGE sql STABLE AS $$
    SELECT floor(least(10000, g.slots - (SELECT count(*) FROM hourhand.slots s WHERE s.gate = g.id), hourhand.tokens(g, present)))::bigint
$$;

-- Streams that wait at gates which have room again take their place among the open ones, as many as there is room for; in which lanes
-- they are; and, last, in how many seconds a rate will let somebody through. Looked at are the gates that are named, those whose rate
-- gives a token by now, or all at which anybody waits.
CREATE FUNCTION hourhand.open_gates(named bigint[], sweep boolean) RETURNS TABLE (lane integer, next_in double precision) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    g hourhand.gates;
    closed bigint;
    present timestamptz;
    tokens double precision;
    opened bigint;
    opening timestamptz;
BEGIN
    PERFORM pg_advisory_xact_lock('hourhand.gates'::regclass::oid::integer, 0);
    present := clock_timestamp();
    FOR closed IN
        SELECT id FROM hourhand.gates WHERE opens_at <= present
        UNION SELECT unnest(named)
        UNION SELECT w.gate FROM (SELECT DISTINCT waits_for AS gate FROM hourhand.streams WHERE sweep AND waits_for IS NOT NULL) AS w
              LEFT JOIN hourhand.gates o ON o.id = w.gate
              LEFT JOIN (SELECT gate, count(*) AS taken FROM hourhand.slots WHERE sweep GROUP BY 1) AS inside ON inside.gate = w.gate
              WHERE coalesce(inside.taken < o.slots, true) AND (o.rate IS NULL OR hourhand.tokens(o, present) >= 1)
    LOOP
        SELECT * INTO g FROM hourhand.gates WHERE id = closed;
        RETURN QUERY SELECT one, NULL::double precision FROM hourhand.let_in(closed, hourhand.room(g, present)) AS one;
        GET DIAGNOSTICS opened = ROW_COUNT;
        -- For the next of those that still wait for a token; who waits for a slot is let in when one is given back.
        tokens := hourhand.tokens(g, present) - opened;
        opening := CASE WHEN tokens < 1 AND EXISTS (SELECT FROM hourhand.streams WHERE waits_for = closed)
                        THEN present + make_interval(secs => (1 - tokens) / g.rate) END;
        UPDATE hourhand.gates SET opens_at = opening WHERE id = closed AND opens_at IS DISTINCT FROM opening;
    END LOOP;
    RETURN QUERY SELECT NULL::integer, extract(epoch FROM min(opens_at) - clock_timestamp())::double precision
                 FROM hourhand.gates WHERE opens_at IS NOT NULL;
END $$;

-- So many of those that wait at a gate, and can pass: not those whose runs are gone, nor those of a paused queue. The former are
-- removed. In which lanes they are.
CREATE FUNCTION hourhand.let_in(at_gate bigint, many bigint) RETURNS SETOF integer LANGUAGE plpgsql AS $$
DECLARE
    s hourhand.streams;
BEGIN
    IF many < 1 THEN
        RETURN;
    END IF;
    FOR s IN SELECT * FROM hourhand.streams WHERE waits_for = at_gate ORDER BY turn LOOP
        IF NOT EXISTS (SELECT FROM hourhand.parked WHERE stream = s.id) THEN
            DELETE FROM hourhand.streams WHERE id = s.id;
        ELSIF EXISTS (SELECT FROM hourhand.queues WHERE id = s.lane / 4 AND paused_at IS NULL) THEN
            UPDATE hourhand.streams SET waits_for = NULL WHERE id = s.id;
            RETURN NEXT s.lane;
            many := many - 1;
            EXIT WHEN many < 1;
        END IF;
    END LOOP;
END $$;

-- A stream took nothing: whoever waits at another of its gates, at which there is room, comes in its place. How many of those are in
-- this lane; of the others their workers are told.
CREATE FUNCTION hourhand.pass_on(at_gates bigint[], but bigint, in_lane integer) RETURNS integer LANGUAGE plpgsql AS $$
DECLARE
    here integer := 0;
    other integer;
BEGIN
    FOR other IN
        SELECT hourhand.let_in(g.id, 1) FROM hourhand.gates g
        WHERE g.id = ANY (at_gates) AND g.id IS DISTINCT FROM but AND EXISTS (SELECT FROM hourhand.streams WHERE waits_for = g.id)
          AND hourhand.room(g, clock_timestamp()) > 0
    LOOP
        IF other = in_lane THEN
            here := here + 1;
        ELSE
            PERFORM pg_notify('hourhand', format('g:%s', other));
        END IF;
    END LOOP;
    RETURN here;
END $$;

-- Runs for a worker out of the streams of some lanes, at most so many of each lane, each with a slot of all of its gates. One at a
-- time decides, over the whole fleet: what it counts stays so until it has written. Its statements are planned once: planned for each
-- stream anew, as PostgreSQL would have it, a turn took three times as long.
CREATE FUNCTION hourhand.admit(worker integer, page bigint, in_lanes integer[], mosts integer[], known text[], suspects integer)
RETURNS TABLE (seq bigint, run_id bigint, token bigint, task text, payload jsonb, scheduled_at timestamptz, attempt smallint,
               crashes smallint, lane integer, job_id bigint, expires_at timestamptz, tags text[], options jsonb, errors jsonb, gates bigint[])
LANGUAGE plpgsql SET plan_cache_mode = force_generic_plan SET enable_seqscan = off AS $$
#variable_conflict use_column
DECLARE
    mark bigint;
    place integer;
    wanted integer;
    part integer;
    visits integer;
    room integer;
    taken integer;
    closed bigint;
    present timestamptz;
    stream hourhand.streams;
    gate hourhand.gates;
    tokens double precision;
    changes integer;
    opened integer;
    risky bigint[];
    after_turn bigint;
    after_id bigint;
    until bigint;
    first timestamptz;
BEGIN
    PERFORM pg_advisory_xact_lock('hourhand.gates'::regclass::oid::integer, 0);
    present := clock_timestamp();
    IF NOT EXISTS (SELECT FROM hourhand.nodes n WHERE n.id = worker AND n.died_at IS NULL)
            OR page <> (SELECT version FROM hourhand.rulebook) THEN
        RETURN;
    END IF;
    mark := nextval('hourhand.claim_tokens');
    -- Those on probation: no more than the worker can keep apart.
    risky := ARRAY(SELECT p.run_id FROM hourhand.parked p WHERE p.crashes > 0 AND p.stream IS NOT NULL AND p.lane = ANY (in_lanes)
                   AND p.task = ANY (known) ORDER BY p.run_id LIMIT suspects);
    FOR place IN 1 .. cardinality(in_lanes) LOOP
        wanted := mosts[place];
        CONTINUE WHEN EXISTS (SELECT FROM hourhand.queues q WHERE q.id = in_lanes[place] / 4 AND q.paused_at IS NOT NULL);
        -- A turn is the larger the fewer share: one stream gets everything, fifty get one each.
        SELECT greatest(1, wanted / greatest(1, count(*)))::integer INTO part FROM (
            SELECT FROM hourhand.streams s WHERE s.lane = in_lanes[place] AND s.waits_for IS NULL AND s.task = ANY (known) LIMIT wanted) AS open;
        visits := 0;
        changes := 0;
        opened := 0;
        after_turn := -1;
        after_id := -9223372036854775808;
        WHILE wanted > 0 AND visits < 500 + mosts[place] LOOP
            visits := visits + 1;
            SELECT s.* INTO stream FROM hourhand.streams s
            WHERE s.lane = in_lanes[place] AND s.waits_for IS NULL AND s.task = ANY (known) AND (s.turn, s.id) > (after_turn, after_id)
            ORDER BY s.turn, s.id LIMIT 1;
            IF NOT FOUND THEN
                EXIT WHEN opened = 0;
                -- Some have come in whose turn was before: once more from the beginning.
                opened := 0;
                after_turn := -1;
                after_id := -9223372036854775808;
                CONTINUE;
            END IF;
            after_turn := stream.turn;
            after_id := stream.id;
            IF (SELECT count(*) FROM hourhand.gates g WHERE g.id = ANY (stream.gates)) < cardinality(stream.gates) THEN
                -- A gate was cleared away just as these came to it: they line up anew.
                PERFORM hourhand.dissolve(stream.id);
                CONTINUE;
            END IF;
            room := CASE WHEN stream.by_deadline THEN wanted ELSE least(wanted, part) END;
            closed := NULL;
            FOR gate IN SELECT g.* FROM hourhand.gates g WHERE g.id = ANY (stream.gates) ORDER BY g.id LOOP
                IF gate.slots IS NOT NULL THEN
                    room := least(room, gate.slots - (SELECT count(*) FROM hourhand.slots s WHERE s.gate = gate.id));
                END IF;
                IF gate.rate IS NOT NULL THEN
                    tokens := hourhand.tokens(gate, present);
                    room := least(room, floor(tokens));
                    IF tokens < 1 THEN
                        UPDATE hourhand.gates g SET opens_at = present + make_interval(secs => (1 - tokens) / gate.rate) WHERE g.id = gate.id;
                    END IF;
                END IF;
                IF room < 1 THEN
                    closed := gate.id;
                    EXIT;
                END IF;
            END LOOP;
            IF closed IS NOT NULL THEN
                UPDATE hourhand.streams s SET waits_for = closed WHERE s.id = stream.id;
                opened := opened + hourhand.pass_on(stream.gates, closed, in_lanes[place]);
                changes := changes + 1;
                CONTINUE;
            END IF;
            -- By deadline: only as far as this stream's runs come before those of the next one.
            until := NULL;
            IF stream.by_deadline THEN
                SELECT s.turn INTO until FROM hourhand.streams s
                WHERE s.lane = in_lanes[place] AND s.waits_for IS NULL AND (s.turn, s.id) > (after_turn, after_id) ORDER BY s.turn, s.id LIMIT 1;
            END IF;
            RETURN QUERY
            WITH picked AS (
                DELETE FROM hourhand.parked WHERE ctid = ANY (ARRAY(
                    SELECT p.ctid FROM hourhand.parked p
                    WHERE p.stream = stream.id AND (until IS NULL OR hourhand.turn_of(p.due) <= until)
                      AND (p.expires_at IS NULL OR p.expires_at > present)
                      AND (p.crashes = 0 OR p.run_id = ANY (risky))
                    ORDER BY p.due, p.seq LIMIT room FOR UPDATE SKIP LOCKED))
                RETURNING *),
            placed AS (SELECT run_id, row_number() OVER (ORDER BY due, seq) AS place FROM picked),
            entered AS (
                INSERT INTO hourhand.slots (gate, number, run_id)
                SELECT free.gate, free.number, placed.run_id FROM placed JOIN (
                    SELECT g.id AS gate, n AS number, row_number() OVER (PARTITION BY g.id ORDER BY n) AS place
                    FROM hourhand.gates g CROSS JOIN LATERAL (
                        SELECT n FROM generate_series(1, g.slots) AS n
                        WHERE NOT EXISTS (SELECT FROM hourhand.slots s WHERE s.gate = g.id AND s.number = n) LIMIT room) AS numbers
                    WHERE g.id = ANY (stream.gates) AND g.slots IS NOT NULL) AS free ON free.place = placed.place
                RETURNING 1)
            INSERT INTO hourhand.running (worker_id, token, claimed_at, seq, run_id, job_id, scheduled_at, enqueued_at, expires_at,
                                          lane, attempt, crashes, task, payload, key, tags, options, errors, stream)
            SELECT worker, mark, present, seq, run_id, job_id, scheduled_at, enqueued_at, expires_at,
                   lane, attempt, crashes, task, payload, key, tags, options, errors, stream FROM picked
            RETURNING seq, run_id, token, task, payload, scheduled_at, attempt, crashes, lane, job_id, expires_at, tags, options, errors,
                      stream.gates;
            GET DIAGNOSTICS taken = ROW_COUNT;
            wanted := wanted - taken;
            UPDATE hourhand.gates g SET filled_at = present, tokens = hourhand.tokens(g, present) - taken
            WHERE taken > 0 AND g.id = ANY (stream.gates) AND g.rate IS NOT NULL;
            SELECT p.due INTO first FROM hourhand.parked p WHERE p.stream = stream.id ORDER BY p.due, p.seq LIMIT 1;
            changes := changes + taken;
            IF taken = 0 THEN
                opened := opened + hourhand.pass_on(stream.gates, NULL, in_lanes[place]);
            END IF;
            IF first IS NULL THEN
                changes := changes + 1;
                DELETE FROM hourhand.streams s WHERE s.id = stream.id;
            ELSIF stream.by_deadline THEN
                UPDATE hourhand.streams s SET turn = hourhand.turn_of(first) WHERE s.id = stream.id AND s.turn <> hourhand.turn_of(first);
            ELSIF taken > 0 THEN
                UPDATE hourhand.streams s SET turn = nextval('hourhand.turns') WHERE s.id = stream.id;
            END IF;
        END LOOP;
        -- Enough for one time; but nobody has seen what comes after.
        IF visits >= 500 + mosts[place] AND wanted > 0 AND changes > 0 THEN
            PERFORM pg_notify('hourhand', format('g:%s', in_lanes[place]));
        END IF;
    END LOOP;
END $$;

-- Gates at which nobody waits, inside which nobody is, and whose bucket is full again: not while anybody comes to one.
CREATE FUNCTION hourhand.tidy_gates(most integer) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    gone bigint;
BEGIN
    IF NOT pg_try_advisory_xact_lock('hourhand.gates'::regclass::oid::integer, 0) THEN
        RETURN 0;
    END IF;
    DELETE FROM hourhand.gates WHERE id = ANY (ARRAY(
        SELECT g.id FROM hourhand.gates g
        WHERE NOT EXISTS (SELECT FROM hourhand.slots s WHERE s.gate = g.id)
          AND g.id NOT IN (SELECT unnest(gates) FROM hourhand.streams)
          AND (g.rate IS NULL OR hourhand.tokens(g, clock_timestamp()) >= g.burst)
        LIMIT most));
    GET DIAGNOSTICS gone = ROW_COUNT;
    RETURN gone;
END $$;

-- Runs that wait in a queue, counted no further than is asked.
CREATE FUNCTION hourhand.depth(in_queue integer, most bigint) RETURNS bigint LANGUAGE sql STABLE AS $$
    SELECT count(*) FROM (
        SELECT FROM hourhand.ready WHERE lane BETWEEN in_queue * 4 AND in_queue * 4 + 3
        UNION ALL SELECT FROM hourhand.parked WHERE lane BETWEEN in_queue * 4 AND in_queue * 4 + 3 AND stream IS NOT NULL
        LIMIT most) AS waiting
$$;

-- Before runs come into a queue whose depth is limited: it is refused, or the oldest of the least urgent go. Runs that others are
-- about to commit are not counted: a queue may become deeper than said by what is under way at the same time.
CREATE FUNCTION hourhand.make_room(in_queue integer, many bigint) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    q hourhand.queues;
    over bigint;
    dropped bigint;
BEGIN
    SELECT * INTO q FROM hourhand.queues WHERE id = in_queue;
    IF q.max_depth IS NULL THEN
        RETURN;
    END IF;
    over := hourhand.depth(in_queue, q.max_depth + many) + many - q.max_depth;
    IF over <= 0 THEN
        RETURN;
    END IF;
    IF coalesce(q.overflow, 'reject') = 'drop_oldest' AND many <= q.max_depth THEN
        WITH oldest AS (
            SELECT * FROM (
                (SELECT lane, seq FROM hourhand.ready WHERE lane BETWEEN in_queue * 4 AND in_queue * 4 + 3 ORDER BY lane DESC, seq LIMIT over)
                UNION ALL
                (SELECT lane, seq FROM hourhand.parked
                 WHERE lane BETWEEN in_queue * 4 AND in_queue * 4 + 3 AND stream IS NOT NULL ORDER BY lane DESC, seq LIMIT over)) AS both_tables
            ORDER BY lane DESC, seq LIMIT over),
        from_ready AS (
            DELETE FROM hourhand.ready WHERE ctid = ANY (ARRAY(
                SELECT r.ctid FROM hourhand.ready r JOIN oldest o ON o.lane = r.lane AND o.seq = r.seq FOR UPDATE OF r SKIP LOCKED))
            RETURNING run_id, job_id, scheduled_at, enqueued_at, lane, attempt, task, payload, key, tags, options, errors),
        from_parked AS (
            DELETE FROM hourhand.parked WHERE ctid = ANY (ARRAY(
                SELECT p.ctid FROM hourhand.parked p JOIN oldest o ON o.lane = p.lane AND o.seq = p.seq WHERE p.stream IS NOT NULL
                FOR UPDATE OF p SKIP LOCKED))
            RETURNING run_id, job_id, scheduled_at, enqueued_at, lane, attempt, task, payload, key, tags, options, errors)
        INSERT INTO hourhand.runs (run_id, job_id, scheduled_at, enqueued_at, finished_at, lane, outcome, attempt, task, payload, key,
                                   tags, options, errors, reason)
        SELECT run_id, job_id, scheduled_at, enqueued_at, clock_timestamp(), lane, 'cancelled', attempt, task, payload, key,
               tags, options, errors, format('dropped: queue %s is full (max_depth %s), and newer runs came', q.name, q.max_depth)
        FROM (SELECT * FROM from_ready UNION ALL SELECT * FROM from_parked) AS gone;
        GET DIAGNOSTICS dropped = ROW_COUNT;
        PERFORM hourhand.tally(in_queue, 'cancelled', dropped);
        RETURN;
    END IF;
    RAISE EXCEPTION 'queue % is full: % wait in it, and max_depth is %', q.name, q.max_depth - many + over, q.max_depth
        USING ERRCODE = 'HH001', HINT = 'Try again later, let more workers serve it, or raise max_depth.';
END $$;

-- As before; a queue with a depth may refuse; and among the options `trace`, where in whose trace the run was ordered, and `after`, the
-- attempt that it follows in a chain.
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
        PERFORM hourhand.make_room(q.id, 1) FROM hourhand.queues q
        WHERE q.id = lane / 4 AND q.max_depth IS NOT NULL AND coalesce(current_setting('hourhand_wake.passes', true), '') <> 'on';
        INSERT INTO hourhand.ready (seq, run_id, scheduled_at, enqueued_at, expires_at, lane, task, payload, key, tags, options)
        VALUES (number, number, coalesce(due, present), CASE WHEN due IS NOT NULL THEN present END, dies, lane, task, payload, key, tags, options);
        IF wake THEN
            PERFORM hourhand.wake(lane, number);
        END IF;
    END IF;
END $$;

-- As before; the next step belongs to the same trace, and was promised with the first, however full its queue is.
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
    PERFORM set_config('hourhand_wake.passes', 'on', true);
    SELECT made.run_id INTO number FROM hourhand.enqueue(
        step->>'task', arguments, coalesce(step->>'queue', 'default'), coalesce(step->>'priority', 'normal'),
        delay => make_interval(secs => (step->>'delay')::float8),
        tags => (SELECT array_agg(tag) FROM jsonb_array_elements_text(step->'tags') AS tag), options => kept,
        measured => arguments ? '$sealed') AS made;
    PERFORM set_config('hourhand_wake.passes', '', true);
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

-- What keeps a run back that waits in `parked`, in words; NULL: neither its turn nor a hold.
CREATE FUNCTION hourhand.kept_back(in_stream bigint, in_hold integer) RETURNS text LANGUAGE sql STABLE AS $$
    SELECT CASE
        WHEN in_stream IS NOT NULL THEN coalesce((
            SELECT format('waits for the %s of %s %s: %s', CASE WHEN closed.by_rate THEN 'rate' ELSE 'limit' END, r.scope, r.name,
                          concat_ws(' for each ', CASE WHEN closed.by_rate THEN l.one->>'text' ELSE closed.slots || ' at once' END,
                                    nullif(closed.key, '')))
            FROM (SELECT g.*, g.slots IS NULL OR g.opens_at IS NOT NULL AS by_rate FROM hourhand.streams s
                  JOIN hourhand.gates g ON g.id = s.waits_for WHERE s.id = in_stream) AS closed
            JOIN hourhand.rules r ON r.id = closed.rule_id
            CROSS JOIN LATERAL jsonb_array_elements(coalesce(nullif(r.settings->'limits', 'null'), '[]')) AS l (one)
            WHERE l.one->>'key' = closed.key LIMIT 1), 'waits its turn')
        WHEN in_hold IS NOT NULL THEN coalesce((
            SELECT format('held back by hold %s', id) || coalesce(': ' || reason, '') FROM hourhand.holds WHERE id = in_hold),
            format('was held back by hold %s, which is released; it goes on in a moment', in_hold))
    END
$$;

-- As before; of a managed queue, those that wait in its streams as well.
CREATE OR REPLACE FUNCTION hourhand.waits(in_queue integer) RETURNS float8 LANGUAGE sql STABLE AS $$
    SELECT extract(epoch FROM clock_timestamp() - min(first))::float8 FROM (
        SELECT least((SELECT greatest(r.scheduled_at, r.enqueued_at) FROM hourhand.ready r
                      WHERE r.lane = in_queue * 4 + class AND r.attempt = 0 AND r.crashes = 0 ORDER BY r.seq LIMIT 1),
                     (SELECT greatest(p.scheduled_at, p.enqueued_at) FROM hourhand.parked p
                      WHERE p.lane = in_queue * 4 + class AND p.stream IS NOT NULL AND p.attempt = 0 AND p.crashes = 0
                      ORDER BY p.seq LIMIT 1)) AS first
        FROM generate_series(0, 3) AS class) AS heads
$$;
