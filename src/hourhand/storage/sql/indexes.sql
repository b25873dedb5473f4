-- Indexes that have outgrown what is in them.

-- name: begin_rebuilding
-- Whether nobody else does it; until this connection ends, which gives a rebuild $1 seconds.
SELECT pg_try_advisory_lock('hourhand.ready'::regclass::oid::integer, 0), set_config('statement_timeout', $1 || 's', false);

-- name: horizon
-- The number of the next transaction, and how far behind it the oldest is of those that keep dead rows from being removed: open
-- (which all roles may see, unlike since when), prepared, or a standby's. Vacuum itself does not.
SELECT present::text::bigint AS next, coalesce(max(age) - age(present::xid), 0) AS behind
FROM pg_snapshot_xmax(pg_current_snapshot()) AS present LEFT JOIN (
      SELECT greatest(age(backend_xmin), age(backend_xid)) AS age FROM pg_stat_activity
      WHERE (datname = current_database() OR datname IS NULL) AND pid <> pg_backend_pid() AND backend_type <> 'autovacuum worker'
      UNION ALL SELECT age(transaction) FROM pg_prepared_xacts WHERE database = current_database()
      UNION ALL SELECT age(xmin) FROM pg_replication_slots) AS open ON true
GROUP BY present;

-- name: outgrown_indexes
-- Of the tables that runs pass through, those that take more than $1 bytes and 200 for each row; and what a rebuild that was cut
-- off has left. (In none of these does anybody insert with ON CONFLICT, which a unique index that is being rebuilt can make fail.)
-- Nothing that is not ours, and nothing of a table that somebody is vacuuming or rebuilding: he would be stopped, or in the way.
SELECT i.relname AS name, x.indisvalid AS valid, pg_relation_size(i.oid) AS bytes,
       format('%s INDEX CONCURRENTLY %I.%I', CASE WHEN x.indisvalid THEN 'REINDEX' ELSE 'DROP' END, 'hourhand', i.relname) AS command
FROM pg_index x JOIN pg_class i ON i.oid = x.indexrelid JOIN pg_class t ON t.oid = x.indrelid
WHERE t.oid = ANY (ARRAY['hourhand.ready', 'hourhand.delayed', 'hourhand.running', 'hourhand.parked']::regclass[])
  AND pg_has_role(t.relowner, 'USAGE')
  AND CASE WHEN x.indisvalid
      THEN pg_relation_size(i.oid) > $1::bigint + 200 * greatest(t.reltuples, pg_stat_get_live_tuples(t.oid))
      ELSE i.relname ~ '_cc(new|old)\d*$' END
  AND NOT EXISTS (SELECT FROM pg_locks WHERE relation = t.oid AND mode = 'ShareUpdateExclusiveLock'
                  AND database = (SELECT oid FROM pg_database WHERE datname = current_database()))
ORDER BY x.indisvalid, bytes;

-- name: index_size
-- 0: it is gone.
SELECT coalesce(sum(pg_relation_size(oid)), 0)::bigint FROM pg_class WHERE relnamespace = 'hourhand'::regnamespace AND relname = $1;
