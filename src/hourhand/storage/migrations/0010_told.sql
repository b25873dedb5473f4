-- One plain run, and the word that wakes a worker for it, at once: neither waits for the disk, only the caller does.
--
-- NOTIFY takes a lock of the whole database when its transaction commits, and keeps it until that is over: so the run and the word
-- commit without a wait. The transaction after them does wait for its own commit, and the log is written in order: when it is on
-- disk, so is the run. (It must write something: one that wrote nothing is not waited for, even if it has a number.) Whoever claims
-- the run meanwhile waits for that just the same, before anything starts.
--
-- Others' transactions may keep NOTIFY's lock while they wait for the disk: then this one fails soon, and nothing is put in.
--
-- `number` stays NULL where the queue's depth is limited: then hourhand.enqueue() decides.
CREATE PROCEDURE hourhand.enqueue_told(in_lane integer, in_task text, in_payload text, in_options text, INOUT number bigint)
LANGUAGE plpgsql AS $$
BEGIN
    IF EXISTS (SELECT FROM hourhand.queues WHERE id = in_lane / 4 AND max_depth IS NOT NULL) THEN
        RETURN;
    END IF;
    number := nextval('hourhand.run_numbers');
    PERFORM set_config('synchronous_commit', 'off', true), set_config('lock_timeout', '10ms', true);
    INSERT INTO hourhand.ready (seq, run_id, scheduled_at, lane, task, payload, options)
    VALUES (number, number, clock_timestamp(), in_lane, in_task, in_payload::jsonb, in_options::jsonb);
    PERFORM pg_notify('hourhand', format('r:%s:%s', in_lane, number));
    COMMIT;
    PERFORM pg_logical_emit_message(true, 'hourhand', '');
END $$;
