"""Not run: read by the type checker. What `Client` answers is what `AsyncClient` answers when it is awaited."""

from __future__ import annotations

from collections.abc import Generator
from datetime import datetime
from typing import Any, assert_type

from hourhand.client import Actor, AsyncClient, BlockingHandle, Client, Preview, RunHandle
from hourhand.core.account import Line
from hourhand.core.limits import Limit
from hourhand.surfaces.access import CreatedKey, KeyView
from hourhand.surfaces.alerts import AlertView, ChannelTrial, RuleView
from hourhand.surfaces.auditing import Change
from hourhand.surfaces.dead_letters import Replayed
from hourhand.surfaces.holds import HoldView
from hourhand.surfaces.limits import LimitView
from hourhand.surfaces.past import Backfill
from hourhand.surfaces.statistics import QueueFigures, Trend
from hourhand.surfaces.views import (
    Audit,
    BulkAdded,
    EnqueuedRuns,
    JobView,
    LineView,
    NodeView,
    QueueView,
    Resumed,
    RunView,
    ShardView,
    Triggered,
)


async def awaited(client: AsyncClient, now: datetime) -> None:
    assert_type(await client.jobs.add("weekly", schedule="0 9 * * 1"), JobView)
    assert_type(await client.jobs.list(limit=5), list[JobView])
    assert_type(await client.jobs.backfill("weekly", now, now), Backfill)
    assert_type(await client.runs.show("r_1"), RunView)
    assert_type(await client.dead.replay("r_1", task="mail"), Replayed)
    assert_type(await client.enqueue("mail", {"to": "you"}, queue="post"), RunHandle)
    async for event in client.events(types=["change"]):
        assert_type(event, dict[str, Any])


def waited_for(client: Client, now: datetime) -> None:
    assert_type(client.jobs.add("weekly", schedule="0 9 * * 1", payload={"days": 7}), JobView)
    assert_type(client.jobs.update("weekly", version=1, timeout=5), JobView)
    assert_type(client.jobs.delete("weekly", version=1), None)
    assert_type(client.jobs.add_many([{"name": "a", "schedule": "0 9 * * 1"}], replace=True), BulkAdded)
    assert_type(client.jobs.show("weekly"), JobView)
    assert_type(client.jobs.list(state="active", limit=5), list[JobView])
    assert_type(client.jobs.next("weekly", 3), list[datetime])
    assert_type(client.jobs.runs("weekly", limit=3), list[RunView])
    assert_type(client.jobs.pause("weekly"), JobView)
    assert_type(client.jobs.resume("weekly", missed="SKIP"), Resumed)
    assert_type(client.jobs.trigger("weekly", payload={}, force=True), Triggered)
    assert_type(client.jobs.backfill("weekly", now, now, dry_run=True), Backfill)
    assert_type(client.jobs.follow(client.jobs.backfill("weekly", now, now)), Generator[Backfill, None, None])
    assert_type(client.jobs.cancel_backfill("weekly", now, now), int)
    assert_type(client.jobs.why("weekly", at=now), list[Line])
    assert_type(client.jobs.audit("weekly", now, now), Audit)
    assert_type(client.runs.show(7), RunView)
    assert_type(client.runs.list(state=["ready"], limit=5), list[RunView])
    assert_type(client.runs.cancel("r_1", "wrong"), str)
    assert_type(client.runs.retry("r_1"), str)
    assert_type(client.runs.logs("r_1", after=3), list[LineView])
    assert_type(client.dead.list("r_1", limit=3, task="mail"), list[RunView])
    assert_type(client.dead.count(task="mail"), int)
    assert_type(client.dead.show("r_1"), RunView)
    assert_type(client.dead.edit("r_1", {"to": "me"}), RunView)
    assert_type(client.dead.replay("r_1", limit=3), Replayed)
    assert_type(client.dead.purge(task="mail"), int)
    assert_type(client.queues.list(), list[QueueView])
    assert_type(client.queues.exists("post"), bool)
    assert_type(client.queues.pause("post"), datetime)
    assert_type(client.queues.resume("post"), None)
    assert_type(client.limits.list(), list[LimitView])
    assert_type(client.limits.set("queue", "post", concurrency=[Limit(5)], rate="5/s", order=None), LimitView)
    assert_type(client.limits.clear("task", "mail"), LimitView)
    assert_type(client.holds.add(field="customer", value=42, reason="slow"), HoldView)
    assert_type(client.holds.list(), list[HoldView])
    assert_type(client.holds.release(3), HoldView)
    assert_type(client.nodes.list(gone=True), list[NodeView])
    assert_type(client.shards.list(), list[ShardView])
    assert_type(client.statistics.over("24h", queue="default"), Trend)
    assert_type(client.statistics.queues(), list[QueueFigures])
    assert_type(client.statistics.totals(), dict[str, int])
    assert_type(client.alerts.list(open=False, rule="r", since=now, below=7, limit=5), list[AlertView])
    assert_type(client.alerts.rules(), list[RuleView])
    assert_type(client.alerts.test("ops"), list[ChannelTrial])
    assert_type(client.keys.create("me", role="viewer"), CreatedKey)
    assert_type(client.keys.list(revoked=True), list[KeyView])
    assert_type(client.keys.revoke("k"), KeyView)
    assert_type(client.audit.list(actor="me", limit=3), list[Change])
    handle = client.enqueue("mail", {"to": "you"}, queue="post")
    assert_type(handle, BlockingHandle)
    assert_type(handle.wait(5), RunView)
    assert_type(client.enqueue_many("mail", [{"to": "you"}], queue="post"), EnqueuedRuns)
    assert_type(client.preview("0 9 * * 1", count=3), Preview)
    assert_type(client.events(types=["change"]), Generator[dict[str, Any], None, None])
    assert_type(client.whoami(), Actor)
    assert_type(client.health(), dict[str, Any])


def refused(client: Client) -> None:
    """Each of these lines is an error; one that was not would be reported, as the remark would be unused."""
    client.jobs.show()  # type: ignore[call-arg]
    client.jobs.show(7)  # type: ignore[arg-type]
    client.jobs.list(limt=5)  # type: ignore[call-arg]
    client.runs.cancel("r_1", why="wrong")  # type: ignore[call-arg]
    client.enqueue(7)  # type: ignore[arg-type]
