-- Who may do what, and who did what: keys, sessions, the audit log, requests that are remembered.

-- name: add_key
INSERT INTO hourhand.api_keys (id, name, hash, role, queues, prefixes, created_by, expires_at)
VALUES ($1, $2, $3, $4, $5, $6, $7, coalesce($8::timestamptz, clock_timestamp() + $9::interval)) RETURNING *;

-- name: list_keys
SELECT *, clock_timestamp() AS present FROM hourhand.api_keys WHERE $1 OR revoked_at IS NULL ORDER BY created_at, id;

-- name: find_key
SELECT *, clock_timestamp() AS present FROM hourhand.api_keys WHERE id = $1;

-- name: revoke_key
UPDATE hourhand.api_keys SET revoked_at = coalesce(revoked_at, clock_timestamp()) WHERE id = $1 RETURNING *;

-- name: put_environment_key
-- The sessions that another key of the environment has opened end with it.
WITH ended AS (
    DELETE FROM hourhand.sessions s USING hourhand.api_keys k WHERE k.id = $1 AND s.key_id = k.id AND k.hash <> $3)
INSERT INTO hourhand.api_keys (id, name, hash, role, created_by) VALUES ($1, $2, $3, 'admin', 'the environment')
ON CONFLICT (id) DO UPDATE SET hash = excluded.hash, revoked_at = NULL;

-- name: keys_used
-- Kept roughly, so that a busy key does not write a row for each request.
UPDATE hourhand.api_keys SET used_at = clock_timestamp()
WHERE id = ANY ($1::text[]) AND (used_at IS NULL OR used_at < clock_timestamp() - interval '1 minute');

-- name: any_key
-- Whether a key has ever been made: a revoked or expired one still says that this is no playground.
SELECT EXISTS (SELECT FROM hourhand.api_keys);

-- name: open_session
INSERT INTO hourhand.sessions (hash, key_id, csrf, expires_at)
SELECT $1, id, $3, least(expires_at, clock_timestamp() + $4::interval) FROM hourhand.api_keys WHERE id = $2 RETURNING expires_at;

-- name: find_session
SELECT s.key_id, s.csrf FROM hourhand.sessions s WHERE s.hash = $1 AND s.expires_at > clock_timestamp();

-- name: close_session
DELETE FROM hourhand.sessions WHERE hash = $1 RETURNING key_id;

-- name: record_change
-- In the transaction of the change. Whoever follows the events hears of it when it commits.
WITH given AS (
    SELECT $1::text AS actor, $2::text AS via, $3::text AS action, $4::text AS subject, $5::text AS name, $6::text AS queue,
           $7::text::jsonb AS before, $8::text::jsonb AS after),
made AS (
    INSERT INTO hourhand.audit (actor, via, action, subject, name, queue, before, after) SELECT * FROM given RETURNING *)
SELECT id, pg_notify('hourhand' || '_events', json_build_object(
    'type', 'change', 'id', id, 'at', at, 'actor', actor, 'action', action, 'subject', subject, 'name', name, 'queue', queue)::text)
FROM made;

-- name: record_changes
-- Many changes of one hand, given as a list of objects.
WITH made AS (
    INSERT INTO hourhand.audit (actor, via, action, subject, name, queue, before, after)
    SELECT $1::text, $2::text, one.action, one.subject, one.name, one.queue, one.before, one.after
    FROM jsonb_to_recordset($3::text::jsonb) AS one (action text, subject text, name text, queue text, before jsonb, after jsonb)
    RETURNING id, at, actor)
SELECT count(*), pg_notify('hourhand' || '_events', json_build_object(
    'type', 'change', 'id', max(id), 'at', max(at), 'actor', max(actor), 'action', 'jobs.add', 'count', count(*))::text)
FROM made;

-- name: list_changes
-- The newest first; a page begins below number $7. $8 and $9 are what the caller may see; what is about keys is for those who
-- may see everything.
SELECT id, at, actor, via, action, subject, name, queue, before, after FROM hourhand.audit
WHERE ($1::text IS NULL OR actor = $1) AND ($2::text IS NULL OR action = $2 OR action ^@ ($2 || '.'))
  AND ($3::text IS NULL OR subject = $3 OR name = $3) AND ($4::timestamptz IS NULL OR at >= $4)
  AND ($5::timestamptz IS NULL OR at < $5) AND ($7::bigint IS NULL OR id < $7)
  AND ($10 OR NOT action ^@ 'key.') AND ($8::text[] IS NULL OR queue = ANY ($8)) AND ($9::text[] IS NULL OR name ^@ ANY ($9))
  AND (action NOT LIKE 'key.%' OR coalesce($8, $9) IS NULL)
ORDER BY id DESC LIMIT $6;

-- name: remember_request
-- Whoever comes second with the same key waits here until the first one has committed or given up.
INSERT INTO hourhand.requests (actor, key, fingerprint) VALUES ($1, $2, $3) ON CONFLICT DO NOTHING RETURNING key;

-- name: remembered_request
SELECT fingerprint, status, headers, body FROM hourhand.requests WHERE actor = $1 AND key = $2;

-- name: answer_request
UPDATE hourhand.requests SET status = $3, headers = $4::text::jsonb, body = $5 WHERE actor = $1 AND key = $2 RETURNING key;

-- name: say_event
SELECT pg_notify('hourhand' || '_events', $1);

-- name: list_shards
SELECT s.shard, s.owner AS node, n.name AS node_name, s.epoch, s.taken_at,
       (SELECT count(*) FROM hourhand.schedules c WHERE c.shard = s.shard AND c.next_run_at IS NOT NULL) AS schedules,
       (SELECT min(c.next_run_at) FROM hourhand.schedules c WHERE c.shard = s.shard) AS next_run_at
FROM hourhand.shards s LEFT JOIN hourhand.nodes n ON n.id = s.owner ORDER BY s.shard;
