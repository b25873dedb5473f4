"""Which node owns which shard: rendezvous hashing.

Every node computes the same answer from the same list of live nodes. When one comes or goes, only the shards it
gets or had change hands; all the others stay where they are.
"""

from __future__ import annotations

from collections.abc import Collection
from functools import lru_cache
from hashlib import blake2b

SHARDS = 256


@lru_cache(maxsize=262_144)
def _weight(shard: int, node: int) -> int:
    return int.from_bytes(blake2b(f"{shard}:{node}".encode(), digest_size=8).digest(), "big")


def owner(shard: int, nodes: Collection[int]) -> int | None:
    """The node with the highest weight for this shard; None when there is no node."""
    return max(nodes, key=lambda node: (_weight(shard, node), node), default=None)


def shards_of(node: int, nodes: Collection[int]) -> set[int]:
    """The shards that this node should own among these nodes."""
    return {shard for shard in range(SHARDS) if owner(shard, nodes) == node}
