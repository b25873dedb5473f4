-- Alerts: what is wrong, since when and until when, and who has been told of it.

-- One row for each incident. The index below lets one be open for a rule and what it is about: that is what makes it open once,
-- whoever looks. `opened_at` is null while it has not been so for as long as the rule wants.
CREATE TABLE hourhand.incidents (
    id        bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    rule      text NOT NULL,
    kind      text NOT NULL,
    subject   text NOT NULL,
    severity  text NOT NULL,
    message   text NOT NULL,
    value     double precision,
    link      text,
    repeat    double precision,  -- seconds after which it is told again
    hooks     boolean NOT NULL,  -- whether functions of apps hear of it
    since     timestamptz NOT NULL DEFAULT clock_timestamp(),
    seen_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
    opened_at timestamptz,
    closed_at timestamptz,
    ending    text
) WITH (fillfactor = 70, autovacuum_vacuum_threshold = 200, autovacuum_vacuum_scale_factor = 0.05);

CREATE UNIQUE INDEX incidents_open ON hourhand.incidents (rule, subject) WHERE closed_at IS NULL;
CREATE INDEX incidents_closed ON hourhand.incidents (closed_at) WHERE closed_at IS NOT NULL;

-- Who is to be told of an incident, and what he has been told. Whoever tells it holds the row until `until`, by a token that no
-- other has; the same column puts off what could not be delivered.
CREATE TABLE hourhand.notices (
    incident  bigint NOT NULL REFERENCES hourhand.incidents (id) ON DELETE CASCADE,
    channel   text NOT NULL,
    opened_at timestamptz,  -- when the channel had it
    told_at   timestamptz,  -- the last word it had of it, reminders included
    closed_at timestamptz,
    reminders integer NOT NULL DEFAULT 0,
    until     timestamptz NOT NULL DEFAULT '-infinity',
    token     bigint,
    attempts  integer NOT NULL DEFAULT 0,  -- for what it is to be told next
    error     text,
    done      boolean NOT NULL DEFAULT false,
    PRIMARY KEY (incident, channel)
) WITH (fillfactor = 70, autovacuum_vacuum_threshold = 200, autovacuum_vacuum_scale_factor = 0.05);

CREATE INDEX notices_pending ON hourhand.notices (channel, incident) WHERE NOT done;

-- Of two that can do a duty, the one that can do it better has it.
ALTER TABLE hourhand.duties ADD COLUMN rank smallint NOT NULL DEFAULT 0;

-- Firings that came late are few, and found by when they were made up for.
CREATE INDEX firings_late ON hourhand.firings (fired_at) WHERE late;
