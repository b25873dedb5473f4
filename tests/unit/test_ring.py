"""Rendezvous hashing: agreed, balanced, and stable when nodes come and go."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from hourhand.core.ring import SHARDS, owner, shards_of

nodes = st.sets(st.integers(1, 10_000), min_size=1, max_size=12)


@given(nodes=nodes)
def test_every_shard_has_exactly_one_owner(nodes: set[int]) -> None:
    owned = [shards_of(node, nodes) for node in nodes]
    assert sum(len(one) for one in owned) == SHARDS
    assert set().union(*owned) == set(range(SHARDS))


@given(nodes=nodes, gone=st.data())
def test_losing_a_node_moves_only_its_shards(nodes: set[int], gone: st.DataObject) -> None:
    victim = gone.draw(st.sampled_from(sorted(nodes)))
    rest = nodes - {victim}
    for shard in range(SHARDS):
        before = owner(shard, nodes)
        if before != victim and rest:
            assert owner(shard, rest) == before


@given(nodes=nodes, newcomer=st.integers(10_001, 20_000))
def test_a_newcomer_takes_only_for_itself(nodes: set[int], newcomer: int) -> None:
    for shard in range(SHARDS):
        assert owner(shard, nodes | {newcomer}) in (newcomer, owner(shard, nodes))


def test_the_order_of_the_list_does_not_matter() -> None:
    assert [owner(shard, [1, 2, 3]) for shard in range(SHARDS)] == [owner(shard, [3, 1, 2]) for shard in range(SHARDS)]


def test_shares_are_even_enough() -> None:
    shares = [len(shards_of(node, range(1, 5))) for node in range(1, 5)]
    assert min(shares) > 40
    assert max(shares) < 90


def test_no_node_no_owner() -> None:
    assert owner(1, []) is None
