"""The options of a replay, and what follows from them for the size of the segment."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from .blocks import Workload
from .trace import TRACE_BLOCK_TOKENS

__all__ = ["ReplayConfig", "SegmentPlan", "plan_segment"]

CACHE_TOKENS: Final = 1024 * TRACE_BLOCK_TOKENS
"""Default size of an engine's cache, in tokens."""
_MAX_WORKERS: Final = 65_535
_MAX_LANES: Final = 48
_LANE_BLOCKS: Final = 24 * 4096  # 24 spans of 64 KiB, 16 bytes a block


@dataclass(frozen=True)
class ReplayConfig:
    """Options of a replay.

    Parameters
    ----------
    workers : int
        Simulated engines.
    writers, routers : int
        Processes that apply events, and that ask and decide.
    block_tokens : int
        Tokens of an index block: 512 or a divisor of it.
    cache_blocks : int, optional
        Index blocks that an engine caches; default 524,288 tokens' worth.
    restarts : int
        How often an engine loses its cache in the course of the run, in turn by AllBlocksCleared and by
        being removed and registering anew.
    mid_evictions : bool
        Whether engines also evict from the middle of chains; the check then uses bounds.
    seed : int
        Of everything drawn.
    check : bool
        Compare every answer with the model.
    exact_holes : bool
        Make the index with exact_holes.
    window : int
        Requests in a round.
    in_process : bool
        Use a `RadixTree` in this process instead of a segment and child processes.

    Raises
    ------
    ValueError
        If a value makes no sense; names the option.
    """

    workers: int = 64
    writers: int = 2
    routers: int = 2
    block_tokens: int = TRACE_BLOCK_TOKENS
    cache_blocks: int | None = None
    restarts: int = 0
    mid_evictions: bool = False
    seed: int = 0
    check: bool = False
    exact_holes: bool = False
    window: int = 64
    in_process: bool = False

    def __post_init__(self) -> None:
        limits = {"workers": (1, _MAX_WORKERS), "writers": (1, _MAX_LANES), "routers": (1, 1024)}
        limits |= {"restarts": (0, 1 << 30), "window": (1, 1 << 20)}
        for name, (low, high) in limits.items():
            if not low <= getattr(self, name) <= high:
                raise ValueError(f"{name} must be in [{low}, {high}], got {getattr(self, name)}")
        if self.block_tokens < 1 or TRACE_BLOCK_TOKENS % self.block_tokens:
            raise ValueError(f"block_tokens must divide {TRACE_BLOCK_TOKENS}, got {self.block_tokens}")
        if self.cache_blocks is not None and self.cache_blocks < 1:
            raise ValueError(f"cache_blocks must be >= 1, got {self.cache_blocks}")

    @property
    def engine_blocks(self) -> int:
        """Index blocks that an engine caches."""
        return CACHE_TOKENS // self.block_tokens if self.cache_blocks is None else self.cache_blocks


@dataclass(frozen=True)
class SegmentPlan:
    """Capacity of the segment of a run."""

    blocks: int
    nodes: int
    workers: int
    lanes: int


def plan_segment(workload: Workload, config: ReplayConfig) -> SegmentPlan:
    """Compute a capacity that the run cannot exceed, from the trace and the caches.

    Parameters
    ----------
    workload : Workload
        The trace.
    config : ReplayConfig
        The options.

    Returns
    -------
    SegmentPlan
        Blocks: what all prompts and answers or all caches together hold, whichever is less, and room for
        edges that are hardly filled. Nodes: a request branches off once and splits once, its store and its
        answer go into one node each; a hole splits twice more.
    """
    blocks = min(workload.unique_blocks, config.workers * config.engine_blocks)
    per_request = 8 if config.mid_evictions else 4
    nodes = 1024 + max(min(blocks, per_request * len(workload.requests)), blocks // 8)
    # A node takes a whole number of lines of four blocks, however few it has, and its edge grows in steps;
    # a hot node lists its holders, four or more to a line. Every writer begins spans of its own, one for each
    # size of extent that it needs.
    room = blocks + blocks // 2 + 8 * nodes + 16 * config.workers + _LANE_BLOCKS * config.writers
    return SegmentPlan(room, nodes, config.workers + config.writers + 8, config.writers)
