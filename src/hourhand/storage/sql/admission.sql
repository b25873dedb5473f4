-- Queues with rules: lining up, admitting, holding back; and what people order about them.

-- name: line_up
-- Runs of managed lanes ($1), from place $2 on, at most $3 of each, out of `ready` into their streams, by the rules of version $4,
-- which nobody changes meanwhile; those that are held back stay apart; under the lock of admission, since both take many streams in orders of their own.
WITH page AS MATERIALIZED (
    SELECT pg_advisory_xact_lock('hourhand.gates'::regclass::oid::integer, 0)
    FROM (SELECT version FROM hourhand.rulebook WHERE version = $4 FOR SHARE) AS book),
moved AS MATERIALIZED (
    DELETE FROM hourhand.ready WHERE ctid = ANY (ARRAY(
        SELECT head.ctid FROM unnest($1::integer[], $2::bigint[]) AS wanted (lane, low)
        CROSS JOIN LATERAL (
            SELECT r.ctid FROM hourhand.ready r
            WHERE r.lane = wanted.lane AND r.seq >= wanted.low
              AND (SELECT q.managed FROM hourhand.queues q WHERE q.id = wanted.lane / 4)
            ORDER BY r.seq LIMIT $3 FOR UPDATE SKIP LOCKED) AS head
        WHERE EXISTS (SELECT FROM page)))
    RETURNING *),
ruled AS MATERIALIZED (
    SELECT m.seq, r.id AS rule_id, r.scope, r.settings, m.payload
    FROM moved m JOIN hourhand.queues q ON q.id = m.lane / 4
    JOIN hourhand.rules r ON (r.scope = 'task' AND r.name = m.task) OR (r.scope = 'queue' AND r.name = q.name)),
asked AS MATERIALIZED (
    SELECT one.*, hashtextextended(format('%s %s %s', rule_id, key, value), 0) AS gate FROM (
        SELECT r.seq, r.rule_id, l.key, l.slots, l.rate, l.burst,
               CASE WHEN l.key = '' THEN '' ELSE coalesce(r.payload #>> string_to_array(l.key, '.'), '') END AS value
        FROM ruled r CROSS JOIN LATERAL jsonb_to_recordset(coalesce(nullif(r.settings->'limits', 'null'), '[]'))
            AS l (key text, slots integer, rate float8, burst float8)) AS one),
made_gates AS (
    INSERT INTO hourhand.gates (id, rule_id, key, value, slots, rate, burst, tokens)
    SELECT DISTINCT ON (gate) gate, rule_id, key, left(value, 200), slots, rate, burst, coalesce(burst, 0) FROM asked ORDER BY gate
    ON CONFLICT (id) DO NOTHING),
placed AS MATERIALIZED (
    SELECT m.*, h.id AS hold, coalesce(g.gates, '{}') AS gates, coalesce(f.fair, '') AS fair, coalesce(f.by_deadline, false) AS by_deadline,
           CASE WHEN f.by_deadline THEN coalesce(m.expires_at, 'infinity') ELSE '-infinity' END AS due
    FROM moved m
    LEFT JOIN (SELECT seq, array_agg(gate ORDER BY gate) AS gates FROM asked GROUP BY seq) AS g ON g.seq = m.seq
    LEFT JOIN (SELECT seq, bool_or(settings->>'order' = 'deadline') AS by_deadline,
                      string_agg(coalesce(payload #>> string_to_array(settings->>'fair_key', '.'), ''), ' ' ORDER BY scope)
                          FILTER (WHERE settings->>'fair_key' IS NOT NULL) AS fair
               FROM ruled GROUP BY seq) AS f ON f.seq = m.seq
    LEFT JOIN LATERAL (
        SELECT id FROM hourhand.holds h
        WHERE (h.task IS NULL OR h.task = m.task) AND (h.tag IS NULL OR h.tag = ANY (m.tags))
          AND (h.queue IS NULL OR h.queue = (SELECT q.name FROM hourhand.queues q WHERE q.id = m.lane / 4))
          AND (h.path IS NULL OR m.payload #>> string_to_array(h.path, '.') = h.value)
        LIMIT 1) AS h ON true),
streamed AS MATERIALIZED (
    SELECT *, hashtextextended(format('%s %s %s %s %s', lane, task, gates, by_deadline, fair), 0) AS stream FROM placed),
made_streams AS (
    INSERT INTO hourhand.streams AS s (id, lane, task, gates, fair, by_deadline, turn)
    SELECT stream, lane, task, gates, left(fair, 200), by_deadline, CASE WHEN by_deadline THEN hourhand.turn_of(due) ELSE nextval('hourhand.turns') END
    FROM (SELECT DISTINCT ON (stream) * FROM streamed WHERE hold IS NULL ORDER BY stream, due) AS one
    ON CONFLICT (id) DO UPDATE SET turn = CASE WHEN s.by_deadline THEN least(s.turn, excluded.turn) ELSE s.turn END),
waiting AS (
    INSERT INTO hourhand.parked (seq, run_id, job_id, scheduled_at, enqueued_at, expires_at, lane, attempt, crashes,
                                 task, payload, key, tags, options, errors, stream, due, hold)
    SELECT seq, run_id, job_id, scheduled_at, enqueued_at, expires_at, lane, attempt, crashes,
           task, payload, key, tags, options, errors, CASE WHEN hold IS NULL THEN stream END, due, hold
    FROM streamed
    RETURNING lane, seq)
SELECT lane, count(*) AS runs, max(seq) AS last FROM waiting GROUP BY lane;

-- name: return_parked
-- What was set aside in a queue that is managed now takes the way of all others there.
WITH gone AS (
    DELETE FROM hourhand.parked WHERE ctid = ANY (ARRAY(
        SELECT head.ctid FROM unnest($2::text[]) AS mine (task)
        CROSS JOIN (SELECT queue FROM unnest($1::integer[]) AS wanted (queue)
                    WHERE (SELECT q.managed FROM hourhand.queues q WHERE q.id = wanted.queue)) AS ruled
        CROSS JOIN generate_series(0, 3) AS class
        CROSS JOIN LATERAL (
            SELECT p.ctid FROM hourhand.parked p
            WHERE p.task = mine.task AND p.lane = ruled.queue * 4 + class AND p.stream IS NULL AND p.hold IS NULL
            ORDER BY p.seq LIMIT $3 FOR UPDATE SKIP LOCKED) AS head
        LIMIT $3))
    RETURNING *)
INSERT INTO hourhand.ready (seq, run_id, job_id, scheduled_at, enqueued_at, expires_at, lane, attempt, crashes,
                            task, payload, key, tags, options, errors)
SELECT seq, run_id, job_id, scheduled_at, enqueued_at, expires_at, lane, attempt, crashes,
       task, payload, key, tags, options, errors
FROM gone
RETURNING lane, seq;

-- name: return_streamless
-- Runs whose stream was dissolved while somebody else had them in hand, and who were left behind there: back to their lanes.
WITH gone AS (
    DELETE FROM hourhand.parked WHERE ctid = ANY (ARRAY(
        SELECT p.ctid FROM hourhand.parked p
        WHERE p.stream IS NOT NULL AND NOT EXISTS (SELECT FROM hourhand.streams s WHERE s.id = p.stream)
        LIMIT $1 FOR UPDATE OF p SKIP LOCKED))
    RETURNING *),
back AS (
    INSERT INTO hourhand.ready (seq, run_id, job_id, scheduled_at, enqueued_at, expires_at, lane, attempt, crashes,
                                task, payload, key, tags, options, errors)
    SELECT seq, run_id, job_id, scheduled_at, enqueued_at, expires_at, lane, attempt, crashes,
           task, payload, key, tags, options, errors
    FROM gone
    RETURNING lane, seq)
SELECT count(pg_notify('hourhand', format('r:%s:%s', lane, low))) FROM (SELECT lane, min(seq) AS low FROM back GROUP BY lane) AS lanes;

-- name: admit
SELECT seq, run_id, token, task, payload, date_part('epoch', scheduled_at) AS scheduled, attempt, crashes, lane, job_id, expires_at, tags,
       options, errors, gates
FROM hourhand.admit($1, $2, $3, $4, $5, $6);

-- name: open_gates
SELECT lane, next_in FROM hourhand.open_gates($1, $2);

-- name: next_opening
-- In how many seconds a rate lets somebody through.
SELECT extract(epoch FROM min(opens_at) - clock_timestamp())::float8 FROM hourhand.gates WHERE opens_at IS NOT NULL;

-- name: read_rules
-- All that a claimer has to know, as of one version.
SELECT (SELECT version FROM hourhand.rulebook) AS version,
       (SELECT coalesce(jsonb_agg(name), '[]') FROM hourhand.rules WHERE scope = 'task' AND hourhand.binds(settings)) AS tasks,
       (SELECT coalesce(jsonb_agg(to_jsonb(h) - 'held_at'), '[]') FROM hourhand.holds h) AS holds;

-- name: declared_rules
SELECT scope, name FROM hourhand.rules WHERE declared->>'app' = $1;

-- name: declare_rule
SELECT hourhand.set_rule($1, $2, $3::text::jsonb, NULL);

-- name: order_rule
SELECT hourhand.set_rule($1, $2, NULL, $3::text::jsonb);

-- name: manage_queues
-- Queues in which runs of tasks with rules were met.
UPDATE hourhand.queues SET managed = true WHERE name = ANY ($1::text[]) AND NOT managed RETURNING pg_notify('hourhand', 'q');

-- name: tidy_gates
-- Gates at which nobody waits, inside which nobody is, and whose bucket is full again.
SELECT hourhand.tidy_gates($1);

-- name: find_hold
-- The one that says just this.
SELECT id FROM hourhand.holds
WHERE queue IS NOT DISTINCT FROM $1::text AND task IS NOT DISTINCT FROM $2::text AND tag IS NOT DISTINCT FROM $3::text
  AND path IS NOT DISTINCT FROM $4::text AND value IS NOT DISTINCT FROM $5::text;

-- name: add_hold
-- No row back: somebody else has just said the same.
INSERT INTO hourhand.holds (queue, task, tag, path, value, reason, held_by) VALUES ($1, $2, $3, $4, $5, $6, $7)
ON CONFLICT DO NOTHING RETURNING id;

-- name: list_holds
-- One ($1) or all, each with the runs that it holds back.
SELECT h.id, h.queue, h.task, h.tag, h.path AS field, h.value, h.reason, h.held_at, h.held_by,
       (SELECT count(*) FROM hourhand.parked p WHERE p.hold = h.id) AS runs
FROM hourhand.holds h WHERE $1::integer IS NULL OR h.id = $1 ORDER BY h.id;

-- name: remove_hold
-- Waits for whoever is putting runs aside because of it; whoever comes later finds it gone.
DELETE FROM hourhand.holds WHERE id = $1 RETURNING id;

-- name: count_held
SELECT count(*) FROM hourhand.parked WHERE hold = $1;

-- name: hold_streams
-- Runs that wait in streams and that hold $2 covers, at most $1, out of their line: admitted, they would take the place and the
-- tokens of others before they are put aside. Encrypted ones are, since what they carry is not to be seen here.
WITH said AS MATERIALIZED (SELECT * FROM hourhand.holds WHERE id = $2 FOR KEY SHARE),
covered AS (
    UPDATE hourhand.parked SET stream = NULL, hold = $2, parked_at = clock_timestamp() WHERE ctid = ANY (ARRAY(
        SELECT p.ctid FROM said h JOIN hourhand.parked p ON (h.task IS NULL OR p.task = h.task)
        WHERE p.stream IS NOT NULL AND (h.tag IS NULL OR h.tag = ANY (p.tags))
          AND (h.queue IS NULL OR p.lane / 4 = (SELECT q.id FROM hourhand.queues q WHERE q.name = h.queue))
          AND (h.path IS NULL OR p.payload #>> string_to_array(h.path, '.') = h.value)
        LIMIT $1 FOR UPDATE OF p SKIP LOCKED))
    RETURNING 1)
SELECT count(*) FROM covered;

-- name: return_released
-- Runs of holds that are gone, at most $1, back to their old places; one on probation stays apart.
WITH RECURSIVE held AS (
    (SELECT hold FROM hourhand.parked WHERE hold IS NOT NULL ORDER BY hold LIMIT 1)
    UNION ALL
    SELECT (SELECT p.hold FROM hourhand.parked p WHERE p.hold > held.hold ORDER BY p.hold LIMIT 1) FROM held WHERE held.hold IS NOT NULL),
free AS MATERIALIZED (
    SELECT p.ctid, p.crashes FROM held CROSS JOIN LATERAL (
        SELECT ctid, crashes FROM hourhand.parked WHERE hold = held.hold ORDER BY run_id LIMIT $1 FOR UPDATE SKIP LOCKED) AS p
    WHERE held.hold IS NOT NULL AND NOT EXISTS (SELECT FROM hourhand.holds h WHERE h.id = held.hold) LIMIT $1),
returned AS (
    DELETE FROM hourhand.parked WHERE ctid = ANY (ARRAY(SELECT ctid FROM free WHERE crashes = 0)) RETURNING *),
back AS (
    INSERT INTO hourhand.ready (seq, run_id, job_id, scheduled_at, enqueued_at, expires_at, lane, attempt, crashes,
                                task, payload, key, tags, options, errors)
    SELECT seq, run_id, job_id, scheduled_at, enqueued_at, expires_at, lane, attempt, crashes,
           task, payload, key, tags, options, errors
    FROM returned
    RETURNING lane, seq),
apart AS (
    UPDATE hourhand.parked SET hold = NULL WHERE ctid = ANY (ARRAY(SELECT ctid FROM free WHERE crashes > 0)) RETURNING task),
told AS (
    SELECT count(pg_notify('hourhand', word)) FROM (
        SELECT format('r:%s:%s', lane, min(seq)) AS word FROM back GROUP BY lane
        UNION ALL SELECT DISTINCT 'p:' || task FROM apart) AS words)
SELECT (SELECT count(*) FROM back) + (SELECT count(*) FROM apart) AS runs FROM told;

-- name: lock_rules
SELECT pg_advisory_xact_lock('hourhand.rules'::regclass::oid::integer, 0);

-- name: find_rule
SELECT declared, ordered, settings FROM hourhand.rules WHERE scope = $1 AND name = $2;

-- name: list_rules
-- What is ruled, by whom, how many runs are inside, and how many wait at its gates. Of a limit without a key the slots are those it
-- has; where all have keys, those of all values that are about.
WITH inside AS MATERIALIZED (SELECT gate, count(*) AS runs FROM hourhand.slots GROUP BY gate),
limited AS MATERIALIZED (
    SELECT g.rule_id, g.key = '' AS whole, sum(g.slots) AS slots, coalesce(sum(i.runs), 0) AS in_use
    FROM hourhand.gates g LEFT JOIN inside i ON i.gate = g.id WHERE g.slots IS NOT NULL GROUP BY 1, 2),
waiting AS MATERIALIZED (
    SELECT g.rule_id, count(*) AS runs FROM hourhand.streams s JOIN hourhand.gates g ON g.id = s.waits_for
    JOIN hourhand.parked p ON p.stream = s.id WHERE s.waits_for IS NOT NULL AND $1::boolean GROUP BY 1)
SELECT r.scope, r.name, r.declared, r.ordered, r.settings,
       coalesce(ruled.slots, l.slots)::bigint AS slots, coalesce(l.in_use, 0)::bigint AS in_use, coalesce(w.runs, 0) AS waiting
FROM hourhand.rules r
LEFT JOIN LATERAL (
    SELECT bool_or(one->>'key' = '') AS whole, max((one->>'slots')::bigint) FILTER (WHERE one->>'key' = '') AS slots
    FROM jsonb_array_elements(coalesce(nullif(r.settings->'limits', 'null'), '[]')) AS one WHERE one->>'slots' IS NOT NULL) AS ruled ON true
LEFT JOIN limited l ON l.rule_id = r.id AND l.whole = ruled.whole
LEFT JOIN waiting w ON w.rule_id = r.id
WHERE r.declared <> '{}' OR r.ordered <> '{}'
ORDER BY r.scope, r.name;
