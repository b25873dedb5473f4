-- Queues with rules: lining up, admitting, holding back.

-- name: line_up
-- Runs of managed lanes ($1), from place $2 on, at most $3 of each, out of `ready` into their streams, by the rules of version $4,
-- which nobody changes meanwhile; under the lock of admission, since both take many streams in orders of their own.
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
    SELECT m.*, coalesce(g.gates, '{}') AS gates, coalesce(f.fair, '') AS fair, coalesce(f.by_deadline, false) AS by_deadline,
           CASE WHEN f.by_deadline THEN coalesce(m.expires_at, 'infinity') ELSE '-infinity' END AS due
    FROM moved m
    LEFT JOIN (SELECT seq, array_agg(gate ORDER BY gate) AS gates FROM asked GROUP BY seq) AS g ON g.seq = m.seq
    LEFT JOIN (SELECT seq, bool_or(settings->>'order' = 'deadline') AS by_deadline,
                      string_agg(coalesce(payload #>> string_to_array(settings->>'fair_key', '.'), ''), ' ' ORDER BY scope)
                          FILTER (WHERE settings->>'fair_key' IS NOT NULL) AS fair
               FROM ruled GROUP BY seq) AS f ON f.seq = m.seq),
streamed AS MATERIALIZED (
    SELECT *, hashtextextended(format('%s %s %s %s', lane, gates, by_deadline, fair), 0) AS stream FROM placed),
made_streams AS (
    INSERT INTO hourhand.streams AS s (id, lane, gates, fair, by_deadline, turn)
    SELECT stream, lane, gates, left(fair, 200), by_deadline, CASE WHEN by_deadline THEN hourhand.turn_of(due) ELSE nextval('hourhand.turns') END
    FROM (SELECT DISTINCT ON (stream) * FROM streamed ORDER BY stream, due) AS one
    ON CONFLICT (id) DO UPDATE SET turn = CASE WHEN s.by_deadline THEN least(s.turn, excluded.turn) ELSE s.turn END),
waiting AS (
    INSERT INTO hourhand.parked (seq, run_id, job_id, scheduled_at, enqueued_at, expires_at, lane, attempt, crashes,
                                 task, payload, key, tags, options, errors, stream, due)
    SELECT seq, run_id, job_id, scheduled_at, enqueued_at, expires_at, lane, attempt, crashes,
           task, payload, key, tags, options, errors, stream, due
    FROM streamed
    RETURNING lane, seq)
SELECT lane, count(*) AS runs, max(seq) AS last FROM waiting GROUP BY lane;

-- name: return_parked
-- What was set aside in a queue that is managed now takes the way of all others there.
WITH gone AS (
    DELETE FROM hourhand.parked WHERE ctid = ANY (ARRAY(
        SELECT p.ctid FROM hourhand.parked p
        WHERE p.stream IS NULL AND p.hold IS NULL AND p.lane / 4 = ANY ($1::integer[]) AND p.task = ANY ($2::text[])
          AND (SELECT q.managed FROM hourhand.queues q WHERE q.id = p.lane / 4)
        LIMIT $3 FOR UPDATE SKIP LOCKED))
    RETURNING *)
INSERT INTO hourhand.ready (seq, run_id, job_id, scheduled_at, enqueued_at, expires_at, lane, attempt, crashes,
                            task, payload, key, tags, options, errors)
SELECT seq, run_id, job_id, scheduled_at, enqueued_at, expires_at, lane, attempt, crashes,
       task, payload, key, tags, options, errors
FROM gone
RETURNING lane, seq;

-- name: admit
SELECT * FROM hourhand.admit($1, $2, $3, $4, $5);

-- name: open_gates
SELECT DISTINCT hourhand.open_gates($1, $2) AS lane;

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
DELETE FROM hourhand.gates WHERE id = ANY (ARRAY(
    SELECT g.id FROM hourhand.gates g
    WHERE NOT EXISTS (SELECT FROM hourhand.slots s WHERE s.gate = g.id)
      AND NOT EXISTS (SELECT FROM hourhand.streams s WHERE g.id = ANY (s.gates))
      AND (g.rate IS NULL OR g.tokens + g.rate * extract(epoch FROM clock_timestamp() - g.filled_at) >= g.burst)
    LIMIT $1));
