"""shmtrie: which inference worker holds which KV-cache blocks, in one compressed trie in shared memory.

Several writer processes apply the engines' KV events; any number of router processes ask
`Index.find_matches` on the same memory, lock-free. The names below are the public interface; they are
loaded when they are first used, so that importing the package costs nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .arguments import hash_array as hash_array
    from .capacity import Capacity as Capacity
    from .errors import BlockNotFound as BlockNotFound
    from .errors import Busy as Busy
    from .errors import CapacityExceeded as CapacityExceeded
    from .errors import EventStatus as EventStatus
    from .errors import ForkedHandle as ForkedHandle
    from .errors import InvalidBlockSequence as InvalidBlockSequence
    from .errors import LaneLost as LaneLost
    from .errors import LaneUnavailable as LaneUnavailable
    from .errors import ParentBlockNotFound as ParentBlockNotFound
    from .errors import RankOwnedElsewhere as RankOwnedElsewhere
    from .errors import SegmentCorrupt as SegmentCorrupt
    from .errors import SegmentExists as SegmentExists
    from .errors import SegmentIncompatible as SegmentIncompatible
    from .errors import SegmentNoSpace as SegmentNoSpace
    from .errors import SegmentNotFound as SegmentNotFound
    from .errors import SegmentPermission as SegmentPermission
    from .errors import SegmentRetired as SegmentRetired
    from .errors import ShmtrieError as ShmtrieError
    from .errors import StaleHandle as StaleHandle
    from .events import EventBatch as EventBatch
    from .events import KvCacheEvent as KvCacheEvent
    from .events import KvCacheRemoveData as KvCacheRemoveData
    from .events import KvCacheStoreData as KvCacheStoreData
    from .events import KvCacheStoredBlockData as KvCacheStoredBlockData
    from .events import RouterEvent as RouterEvent
    from .index import Index as Index
    from .indexer import Indexer as Indexer
    from .radix_tree import RadixTree as RadixTree
    from .scores import BatchScores as BatchScores
    from .scores import Match as Match
    from .scores import OverlapScores as OverlapScores
    from .scores import WorkerInfo as WorkerInfo
    from .scores import WorkerWithDpRank as WorkerWithDpRank
    from .stats import IndexStats as IndexStats
    from .verify import VerifyReport as VerifyReport
    from .writer import Writer as Writer

__version__ = "0.1.0"

_HOME = {
    "arguments": ("hash_array",),
    "capacity": ("Capacity",),
    "errors": (
        "BlockNotFound",
        "Busy",
        "CapacityExceeded",
        "EventStatus",
        "ForkedHandle",
        "InvalidBlockSequence",
        "LaneLost",
        "LaneUnavailable",
        "ParentBlockNotFound",
        "RankOwnedElsewhere",
        "SegmentCorrupt",
        "SegmentExists",
        "SegmentIncompatible",
        "SegmentNoSpace",
        "SegmentNotFound",
        "SegmentPermission",
        "SegmentRetired",
        "ShmtrieError",
        "StaleHandle",
    ),
    "events": (
        "EventBatch",
        "KvCacheEvent",
        "KvCacheRemoveData",
        "KvCacheStoreData",
        "KvCacheStoredBlockData",
        "RouterEvent",
    ),
    "index": ("Index",),
    "indexer": ("Indexer",),
    "radix_tree": ("RadixTree",),
    "scores": ("BatchScores", "Match", "OverlapScores", "WorkerInfo", "WorkerWithDpRank"),
    "stats": ("IndexStats",),
    "verify": ("VerifyReport",),
    "writer": ("Writer",),
}
_MODULE = {name: module for module, names in _HOME.items() for name in names}
__all__ = [*sorted(_MODULE), "__version__"]


def __getattr__(name: str) -> Any:
    module = _MODULE.get(name)
    if module is None:
        raise AttributeError(f"module 'shmtrie' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"shmtrie.{module}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
