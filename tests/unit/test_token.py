"""The execution token: an idempotency key for the outside."""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime, timedelta, timezone

from hypothesis import given
from hypothesis import strategies as st

from hourhand.core.token import execution_token

AT = datetime(2030, 1, 31, 12, 0, tzinfo=UTC)


def test_it_is_what_the_documentation_says_so_that_others_can_compute_it() -> None:
    assert execution_token("j_1f", AT) == hashlib.sha256(b"j_1f2030-01-31T12:00:00.000000Z").hexdigest()


@given(st.integers(-14 * 60, 14 * 60))
def test_the_same_instant_in_any_zone_gives_the_same_token(minutes: int) -> None:
    elsewhere = AT.astimezone(timezone(timedelta(minutes=minutes)))
    assert execution_token("j_1f", elsewhere) == execution_token("j_1f", AT)


def test_another_firing_or_another_job_gives_another_token() -> None:
    tokens = {
        execution_token("j_1f", AT),
        execution_token("j_1g", AT),
        execution_token("r_1f", AT),
        execution_token("j_1f", AT + timedelta(microseconds=1)),
        execution_token("j_1f", AT + timedelta(days=1)),
    }
    assert len(tokens) == 5
