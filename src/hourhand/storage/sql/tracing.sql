-- name: installation
-- What tells this installation from others that may report to the same place: database, schema, and when it was set up.
SELECT current_database() || ':' || 'hourhand' || ':' || extract(epoch FROM applied_at)::text
FROM hourhand.migrations ORDER BY version LIMIT 1;
