"""One example for each operation: what is sent, and what comes back."""

from __future__ import annotations

from typing import Any

_RUN_LISTED: dict[str, Any] = {
    "run_id": "r_2k7", "status": "succeeded", "task": "send-weekly-report", "queue": "default", "priority": "normal", "attempt": 1,
    "scheduled_at": "2027-03-01T14:00:00Z", "job_id": "j_3x", "due_at": None, "started_at": "2027-03-01T14:00:00.012Z",
    "finished_at": "2027-03-01T14:00:01.204Z", "node": 7, "key": None, "tags": [], "reason": None,
}  # fmt: skip
_RUN: dict[str, Any] = {
    **_RUN_LISTED, "enqueued_at": None, "expires_at": None, "payload": {"report_type": "weekly"}, "options": None, "errors": [],
    "result": {"sent": 12}, "progress": None,
}  # fmt: skip
_LETTER: dict[str, Any] = {
    **_RUN, "status": "dead", "attempt": 4, "result": None, "reason": "gave up after 4 of 4 attempts: ConnectionError",
    "errors": [{"attempt": 4, "at": "2027-03-01T14:03:10Z", "node": "web-1:4711", "type": "ConnectionError", "message": "no route"}],
}  # fmt: skip
_JOB_SENT: dict[str, Any] = {
    "name": "send-weekly-report", "schedule": "0 9 * * 1", "timezone": "America/New_York", "payload": {"report_type": "weekly"},
    "idempotency_key_template": "report-{{week}}", "max_retries": 3, "retry_backoff": "exponential", "missed_window": "RUN_ONCE",
    "timeout_seconds": 120,
}  # fmt: skip
_JOB: dict[str, Any] = {
    "job_id": "j_3x", "name": "send-weekly-report", "state": "active", "task": "send-weekly-report", "schedule": "0 9 * * 1",
    "timezone": "America/New_York", "in_words": "At 09:00 on Monday", "next_run_at": "2027-03-08T14:00:00Z", "queue": "default",
    "priority": "normal", "payload": {"report_type": "weekly"}, "dst": "shift", "anchor": None, "missed_window": "RUN_ONCE",
    "max_missed": 100, "misfire_grace_seconds": 60.0, "overlap": "allow", "flexible_window_seconds": 0.0, "start_at": None,
    "end_at": None, "max_runs": None, "fired": None, "max_retries": 3, "retry_backoff": "exponential", "retry_base_seconds": None,
    "retry_cap_seconds": None, "timeout_seconds": 120.0, "delivery": None, "idempotency_key_template": "report-{{week}}",
    "tags": [], "then": [], "secret": [], "declared_by": None, "created_at": "2027-02-24T10:11:12Z", "updated_at": "2027-02-24T10:11:12Z",
    "active_since": "2027-02-24T10:11:12Z", "paused_at": None, "version": 1, "shard": 17,
}  # fmt: skip
_PAUSED = {**_JOB, "state": "paused", "paused_at": "2027-03-02T08:00:00Z", "next_run_at": None, "version": 2}
_PERIOD = {"since": "2021-02-01T00:00:00Z", "until": "2021-03-01T00:00:00Z"}
_KEY: dict[str, Any] = {
    "key_id": "k3zq7o2mdw5tn4xa", "name": "reporting", "role": "operator", "state": "active", "queues": ["billing"], "prefixes": None,
    "created_at": "2027-03-01T10:00:00Z", "created_by": "key:ops", "expires_at": "2099-03-01T00:00:00Z", "revoked_at": None,
    "used_at": None,
}  # fmt: skip
_NODE: dict[str, Any] = {
    "node": 7, "kind": "worker", "name": "web-1:4711", "state": "alive", "started_at": "2027-03-01T08:00:00Z",
    "lease_until": "2027-03-01T14:00:15Z", "session": True, "skew": 0.002, "running": 3, "shards": 0,
    "info": {"queues": None, "concurrency": 50, "tasks": ["send-weekly-report"]}, "stopped_at": None, "died_at": None,
}  # fmt: skip

_RULING: dict[str, Any] = {
    "scope": "queue", "name": "billing", "in_words": ["10 at once", "100/minute, bursts of 100", "2 at once for each customer_id"],
    "declared": ["20 at once"], "declared_by": "shop.jobs", "ordered": ["10 at once", "100/minute, bursts of 100", "2 at once for each customer_id"],
    "rule": {"limits": [{"key": "", "slots": 10, "rate": 1.6666666666666667, "burst": 100.0, "text": "100/minute"}, {"key": "customer_id", "slots": 2}]},
    "slots": 10, "in_use": 10, "waiting": 214,
}  # fmt: skip
_HOLD: dict[str, Any] = {
    "id": 3, "queue": None, "task": None, "tag": None, "field": "customer_id", "value": "42", "reason": "their server is down",
    "held_at": "2027-03-01T14:00:00Z", "held_by": "key:ops", "runs": 17,
}  # fmt: skip

REQUESTS: dict[str, Any] = {
    "add_job": _JOB_SENT,
    "add_jobs": [_JOB_SENT, {"name": "send-daily-report", "task": "send-weekly-report", "schedule": "0 9 * * *"}],
    "update_job": {"schedule": "30 9 * * 1", "timeout_seconds": 300},
    "put_job": {name: value for name, value in _JOB_SENT.items() if name != "name"},
    "resume_job": {"missed": "SKIP"},
    "trigger_job": {"payload": {"report_type": "daily"}},
    "backfill_job": {**_PERIOD, "rate": 5},
    "backfill_progress": {"runs": [{"run_id": "r_2k9", "scheduled_at": "2021-02-01T14:00:00Z"}]},
    "cancel_backfill": _PERIOD,
    "enqueue": {"task": "send-invoice", "payload": {"invoice_id": 7}, "queue": "billing", "key": "invoice-7"},
    "enqueue_batch": [{"task": "send-invoice", "payload": {"invoice_id": number}} for number in (7, 8)],
    "cancel_run": {"reason": "wrong customer"},
    "edit_dead": {"payload": {"invoice_id": 8}},
    "replay_dead": {"task": "send-invoice", "error": "ConnectionError"},
    "purge_dead": {"before": "2027-01-01T00:00:00Z"},
    "set_limit": {"concurrency": [{"slots": 10}, {"slots": 2, "key": "customer_id"}], "rate": "100/minute"},
    "add_hold": {"field": "customer_id", "value": 42, "reason": "their server is down"},
    "create_key": {"name": "reporting", "role": "operator", "queues": ["billing"], "expires_at": "2099-03-01T00:00:00Z"},
}

PARAMETERS: dict[str, dict[str, Any]] = {
    "preview_schedule": {"schedule": "0 9 * * 1", "timezone": "America/New_York"},
    "prove_job": _PERIOD,
}

ANSWERS: dict[str, Any] = {
    "list_jobs": [_JOB],
    "add_job": {**_JOB, "outcome": "added"},
    "add_jobs": {"added": 9_998, "replaced": 0, "unchanged": 2},
    "show_job": _JOB,
    "update_job": {**_JOB, "schedule": "30 9 * * 1", "version": 2, "outcome": "replaced"},
    "put_job": {**_JOB, "outcome": "unchanged"},
    "pause_job": _PAUSED,
    "resume_job": {"job": {**_JOB, "version": 3}, "started": 0, "left_out": 1},
    "trigger_job": {"run_id": "r_2k8", "outcome": "started"},
    "backfill_job": {
        "job": "send-weekly-report", "dry_run": False, "instants": ["2021-02-01T14:00:00Z"], "ran_already": 3, "asked_already": 0,
        "runs": [{"run_id": "r_2k9", "scheduled_at": "2021-02-01T14:00:00Z"}],
    },
    "backfill_progress": {"ended": 1, "succeeded": 1},
    "cancel_backfill": {"called_off": 1},
    "job_runs": [_RUN_LISTED],
    "next_firings": ["2027-03-08T14:00:00Z", "2027-03-15T13:00:00Z"],
    "why": [
        {"scheduled_at": "2027-03-01T14:00:00Z", "outcome": "succeeded", "reason": "ran on time", "run_id": "r_2k7",
         "fired_at": "2027-03-01T14:00:00.004Z", "late_seconds": 0.012, "node": "web-1:4711", "by_hand": None},
    ],
    "prove_job": {"expected": 4, "due": 0, "unexplained": [], "doubles": [], "clean": True},
    "list_runs": [_RUN_LISTED],
    "enqueue": {"run_id": "r_2ka", "duplicate": False},
    "enqueue_batch": {"run_ids": ["r_2ka", "r_2kb"]},
    "show_run": _RUN,
    "cancel_run": {"run_id": "r_2ka", "outcome": "cancelled"},
    "retry_run": {"run_id": "r_2ka", "again_as": "r_2kb"},
    "run_logs": [{"number": 1, "at": "2027-03-01T14:00:00.300Z", "attempt": 1, "level": "info", "text": "sending", "fields": {"to": 12}}],
    "list_dead": [_LETTER],
    "count_dead": {"count": 3},
    "show_dead": _LETTER,
    "edit_dead": {**_LETTER, "payload": {"invoice_id": 8}},
    "replay_dead": {"replayed": ["r_2ka"], "blocked": []},
    "purge_dead": {"purged": 12},
    "list_queues": [
        {"name": "default", "paused_at": None, "ready": 4, "delayed": 1, "parked": 0, "running": 3, "dead": 0, "oldest_seconds": 0.3}
    ],
    "statistics": {
        "period": "1h", "step": 60,
        "moments": [
            {"at": "2027-03-01T14:00:00Z", "succeeded": 1204, "failed": 3, "dead": 0, "cancelled": 1, "skipped": 0, "expired": 0, "lost": 0,
             "fired": 60, "missed": 0, "seconds": 210.4, "lateness_p50": 0.012, "lateness_p99": 0.09, "lateness_max": 0.31, "ready": 14,
             "delayed": 2, "parked": 0, "running": 5, "dead_letters": 0, "oldest_seconds": 0.2},
        ],
    },
    "queue_figures": [
        {"name": "default", "paused_at": None, "ready": 4, "delayed": 1, "parked": 0, "running": 3, "dead": 0, "oldest_seconds": 0.3,
         "taken_at": "2027-03-01T13:59:56Z", "ended_per_second": 20.1, "failed_per_second": 0.1, "lateness_max": 0.3, "busy": 2.4},
    ],
    "totals": {"jobs": 1204, "paused_jobs": 3, "schedules": 310},
    "pause_queue": {"name": "billing", "paused_at": "2027-03-01T14:00:00Z"},
    "resume_queue": {"name": "billing", "paused_at": None},
    "list_limits": [_RULING],
    "set_limit": _RULING,
    "clear_limit": {**_RULING, "in_words": ["20 at once"], "ordered": [], "rule": {"limits": [{"key": "", "slots": 20}]}, "slots": 20},
    "list_holds": [_HOLD],
    "add_hold": {**_HOLD, "runs": 0},
    "release_hold": _HOLD,
    "list_nodes": [_NODE],
    "list_shards": [
        {"shard": 17, "node": 3, "node_name": "web-1:4700", "epoch": 5, "taken_at": "2027-03-01T08:00:01Z", "schedules": 40,
         "next_run_at": "2027-03-08T14:00:00Z"},
    ],
    "preview_schedule": {
        "schedule": "0 9 * * 1", "timezone": "America/New_York", "in_words": "At 09:00 on Monday",
        "firings": ["2027-03-08T14:00:00Z", "2027-03-15T13:00:00Z"],
    },
    "list_alerts": [
        {"id": 12, "rule": "nightly", "kind": "job_silent", "subject": "nightly-backup", "severity": "critical", "state": "open",
         "message": "job nightly-backup has not succeeded within 26 h; the last time was 2027-02-28 02:04:11 UTC", "value": 93600.0,
         "link": None, "since": "2027-03-01T04:04:12Z", "opened_at": "2027-03-01T04:04:12Z", "closed_at": None, "ending": None,
         "told": [{"channel": "ops", "opened_at": "2027-03-01T04:04:13Z", "closed_at": None, "reminders": 0, "attempts": 0, "error": None}]},
    ],
    "alert_rules": [
        {"name": "nightly", "kind": "job_silent", "enabled": True, "severity": "critical",
         "in_words": "a job does not succeed for 26 h (jobs nightly-*)", "threshold": 93600.0, "window": None, "held_for": 0.0,
         "clear": 0.0, "repeat": None, "channels": ["ops"]},
    ],
    "test_alerts": [
        {"channel": "ops", "kind": "slack", "address": "https://hooks.slack.com/…", "delivered": True, "error": None, "seconds": 0.21},
    ],
    "list_keys": [_KEY],
    "create_key": {**_KEY, "secret": "hh_k3zq7o2mdw5tn4xa_..."},
    "revoke_key": {**_KEY, "state": "revoked", "revoked_at": "2027-03-02T00:00:00Z"},
    "list_audit": [
        {"id": 41, "at": "2027-03-01T14:00:00Z", "actor": "key:ops", "via": "api", "action": "job.update", "subject": "j_3x",
         "name": "send-weekly-report", "queue": "default", "before": {"timeout": 120.0}, "after": {"timeout": 300.0}},
    ],
    "whoami": {"name": "key:reporting", "role": "operator", "queues": ["billing"], "prefixes": None},
    "open_session": {"csrf_token": "s1Jp...", "expires_at": "2027-03-02T02:00:00Z"},
    "healthz": {"status": "ok"},
    "readyz": {"status": "ok"},
    "metrics": "# HELP hourhand_probation_runs Runs whose worker died, waiting or running apart\n",
    "events": 'event: change\ndata: {"type":"change","action":"job.pause","subject":"j_3x"}\n\n',
}  # fmt: skip
