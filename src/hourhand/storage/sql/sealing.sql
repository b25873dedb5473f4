-- Encrypted payloads: which key each is sealed with, and sealing them anew. What is being executed is left alone: rows of
-- `running` are never updated.
--
-- Each table is walked by its key, a window at a time, so that no statement takes long however much there is, and what
-- cannot be opened is met once. A row that somebody has locked is left for the next walk.

-- name: count_seals
-- How many payloads, those of chains' later steps included, each key has sealed; without a key: they are plain.
SELECT place, kid, count(*) AS payloads FROM (
    SELECT 'jobs' AS place, payload, options FROM hourhand.jobs
    UNION ALL SELECT 'delayed', payload, options FROM hourhand.delayed
    UNION ALL SELECT 'parked', payload, options FROM hourhand.parked
    UNION ALL SELECT 'ready', payload, options FROM hourhand.ready
    UNION ALL SELECT 'running', payload, options FROM hourhand.running
    UNION ALL SELECT 'dead', payload, options FROM hourhand.dead
    UNION ALL SELECT 'history', payload, options FROM hourhand.runs WHERE $1) AS stored
CROSS JOIN LATERAL (
    SELECT payload->'$sealed'->>'kid' AS kid WHERE payload IS NOT NULL
    UNION ALL SELECT step->'$sealed'->>'kid' FROM jsonb_path_query(options, '$.**.then.payload') AS step) AS seals
GROUP BY place, kid ORDER BY place, kid NULLS FIRST;

-- name: jobs_window
SELECT max(id) FROM (SELECT id FROM hourhand.jobs WHERE id > $1 ORDER BY id LIMIT $2) AS part;

-- name: unsealed_jobs
SELECT id, task, payload, options FROM hourhand.jobs
WHERE id > $1 AND id <= $2 AND (payload->'$sealed'->>'kid' IS DISTINCT FROM $3 OR jsonb_path_exists(
    options, '$.**.then.payload ? (!exists(@."$sealed") || @."$sealed".kid != $kid)', jsonb_build_object('kid', $3::text)))
ORDER BY id FOR UPDATE SKIP LOCKED;

-- name: reseal_jobs
-- The definition stays the same, so the version does.
UPDATE hourhand.jobs AS stored SET payload = given.payload::jsonb, options = coalesce(given.options::jsonb, stored.options)
FROM unnest($1::bigint[], $2::text[], $3::text[]) AS given (id, payload, options) WHERE stored.id = given.id;

-- name: delayed_window
SELECT max(run_id) FROM (SELECT run_id FROM hourhand.delayed WHERE run_id > $1 ORDER BY run_id LIMIT $2) AS part;

-- name: unsealed_delayed
SELECT run_id, task, payload, options FROM hourhand.delayed
WHERE run_id > $1 AND run_id <= $2 AND (payload->'$sealed'->>'kid' IS DISTINCT FROM $3 OR jsonb_path_exists(
    options, '$.**.then.payload ? (!exists(@."$sealed") || @."$sealed".kid != $kid)', jsonb_build_object('kid', $3::text)))
ORDER BY run_id FOR UPDATE SKIP LOCKED;

-- name: reseal_delayed
UPDATE hourhand.delayed AS stored SET payload = given.payload::jsonb, options = coalesce(given.options::jsonb, stored.options)
FROM unnest($1::bigint[], $2::text[], $3::text[]) AS given (id, payload, options) WHERE stored.run_id = given.id;

-- name: parked_window
SELECT max(run_id) FROM (SELECT run_id FROM hourhand.parked WHERE run_id > $1 ORDER BY run_id LIMIT $2) AS part;

-- name: unsealed_parked
SELECT run_id, task, payload, options FROM hourhand.parked
WHERE run_id > $1 AND run_id <= $2 AND (payload->'$sealed'->>'kid' IS DISTINCT FROM $3 OR jsonb_path_exists(
    options, '$.**.then.payload ? (!exists(@."$sealed") || @."$sealed".kid != $kid)', jsonb_build_object('kid', $3::text)))
ORDER BY run_id FOR UPDATE SKIP LOCKED;

-- name: reseal_parked
UPDATE hourhand.parked AS stored SET payload = given.payload::jsonb, options = coalesce(given.options::jsonb, stored.options)
FROM unnest($1::bigint[], $2::text[], $3::text[]) AS given (id, payload, options) WHERE stored.run_id = given.id;

-- name: ready_lanes
SELECT q.id * 4 + class AS lane FROM hourhand.queues q CROSS JOIN generate_series(0, 3) AS class
WHERE EXISTS (SELECT FROM hourhand.ready r WHERE r.lane = q.id * 4 + class) ORDER BY 1;

-- name: ready_window
-- Of one lane ($3), since its key is the place in it.
SELECT max(seq) FROM (SELECT seq FROM hourhand.ready WHERE lane = $3 AND seq > $1 ORDER BY seq LIMIT $2) AS part;

-- name: unsealed_ready
SELECT seq, task, payload, options FROM hourhand.ready
WHERE lane = $4 AND seq > $1 AND seq <= $2 AND (payload->'$sealed'->>'kid' IS DISTINCT FROM $3 OR jsonb_path_exists(
    options, '$.**.then.payload ? (!exists(@."$sealed") || @."$sealed".kid != $kid)', jsonb_build_object('kid', $3::text)))
ORDER BY seq FOR UPDATE SKIP LOCKED;

-- name: reseal_ready
UPDATE hourhand.ready AS stored SET payload = given.payload::jsonb, options = coalesce(given.options::jsonb, stored.options)
FROM unnest($1::bigint[], $2::text[], $3::text[]) AS given (id, payload, options) WHERE stored.lane = $4 AND stored.seq = given.id;

-- name: dead_window
SELECT max(run_id) FROM (SELECT run_id FROM hourhand.dead WHERE run_id > $1 ORDER BY run_id LIMIT $2) AS part;

-- name: unsealed_dead
SELECT run_id, task, payload, options FROM hourhand.dead
WHERE run_id > $1 AND run_id <= $2 AND (payload->'$sealed'->>'kid' IS DISTINCT FROM $3 OR jsonb_path_exists(
    options, '$.**.then.payload ? (!exists(@."$sealed") || @."$sealed".kid != $kid)', jsonb_build_object('kid', $3::text)))
ORDER BY run_id FOR UPDATE SKIP LOCKED;

-- name: reseal_dead
UPDATE hourhand.dead AS stored SET payload = given.payload::jsonb, options = coalesce(given.options::jsonb, stored.options)
FROM unnest($1::bigint[], $2::text[], $3::text[]) AS given (id, payload, options) WHERE stored.run_id = given.id;

-- name: history_window
SELECT max(run_id) FROM (SELECT run_id FROM hourhand.runs WHERE run_id > $1 ORDER BY run_id LIMIT $2) AS part;

-- name: unsealed_history
-- What was purged has no payload any more, but may have a chain.
SELECT run_id, task, payload, options FROM hourhand.runs
WHERE run_id > $1 AND run_id <= $2
  AND (payload IS NOT NULL AND payload->'$sealed'->>'kid' IS DISTINCT FROM $3 OR jsonb_path_exists(
    options, '$.**.then.payload ? (!exists(@."$sealed") || @."$sealed".kid != $kid)', jsonb_build_object('kid', $3::text)))
ORDER BY run_id FOR UPDATE SKIP LOCKED;

-- name: reseal_history
UPDATE hourhand.runs AS stored SET payload = given.payload::jsonb, options = coalesce(given.options::jsonb, stored.options)
FROM unnest($1::bigint[], $2::text[], $3::text[]) AS given (id, payload, options) WHERE stored.run_id = given.id;
