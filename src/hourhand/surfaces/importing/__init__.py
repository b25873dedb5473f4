"""Schedules of other systems, translated into jobs. One module for each source, each a pure function from what was read."""
