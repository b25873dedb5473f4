"""Schedules as code: files that say which jobs an owner has, compared with those there are, and brought into force.

A walk through it: `sources` (which files) → `documents` (text, with line numbers) → `reading` (checked jobs) → `plan` (what to do,
by `comparing`) → `applying` (done, through the plain verbs of `app.jobs`). `exporting` goes the other way.
"""
