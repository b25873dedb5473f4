-- Among millions of schedules a vacuum reads every entry of three indexes; with two in a hundred fired it was at it for more than a
-- third of each minute, beside mountains too. Until then their dead rows hurt little: a firing finds its row by its number.
ALTER TABLE hourhand.schedules SET (autovacuum_vacuum_scale_factor = 0.2);
