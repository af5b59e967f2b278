"""A simulated inference engine: a bounded prefix cache and the events that it reports.

The cache is kept per node, as a bit mask of its places, in one order from least to most recently used.
Using a path touches it from the tail to the root, so a block is always older than its prefix and the
oldest block is always a leaf: evictions are tail-first by construction, as in engines that free a
request's blocks in reverse order.
"""

from __future__ import annotations

import random
from collections import OrderedDict, deque
from typing import Final

from .blocks import PlannedRequest
from .eventlog import EventLog

__all__ = ["Engine"]

_REMEMBERED_REQUESTS: Final = 64


class Engine:
    """One worker's cache.

    Parameters
    ----------
    worker : int
        Its worker id in events.
    capacity : int
        Blocks that the cache holds at most, >= 1. Of a longer request only so many are cached.
    cut : int
        Index blocks per trace block.
    log : EventLog, optional
        Where events go. None: the cache is simulated silently (baselines).
    """

    def __init__(self, worker: int, capacity: int, cut: int, log: EventLog | None = None) -> None:
        if capacity < 1:
            raise ValueError(f"a cache needs at least one block, got {capacity}")
        self.worker = worker
        self.capacity = capacity
        self.used = 0
        self._cut = cut
        self._full = (1 << cut) - 1
        self._log = log
        # Node -> mask of its places that are cached, oldest first.
        self._held: OrderedDict[int, int] = OrderedDict()
        self._recent: deque[PlannedRequest] = deque(maxlen=_REMEMBERED_REQUESTS)

    def cached_prefix(self, request: PlannedRequest) -> int:
        """Return how many blocks of the prompt, from the root, need no prefill."""
        hit = 0
        for node in request.nodes:
            mask = self._held.get(node, 0)
            if mask != self._full:
                hit += ((~mask) & (mask + 1)).bit_length() - 1  # ones at the low end
                break
            hit += self._cut
        return min(hit, request.prompt_blocks)

    def serve(self, request: PlannedRequest) -> int:
        """Run a request: prefill what is missing, append the answer, evict what no longer fits.

        Parameters
        ----------
        request : PlannedRequest
            The request.

        Returns
        -------
        int
            Blocks of the prompt that were cached already.

        Notes
        -----
        Reports the removals that make room, then one store for the prefill, then per answer block one
        store with the removal that it needs.
        """
        hit = self.cached_prefix(request)
        prompt = min(request.prompt_blocks, self.capacity)
        total = min(request.total_blocks, self.capacity)
        if prompt < request.prompt_blocks:
            total = prompt  # the answer would hang behind blocks that are not cached
        self._touch(request.nodes, prompt, total)
        self._evict()
        if hit < prompt and self._log is not None:
            places = self._places(request.nodes, hit, prompt)
            parent = self._place(request.nodes, hit - 1) if hit else None
            self._log.store(self.worker, parent, places)
        for block in range(prompt, total):
            self._append(request.nodes, block)
        self._recent.append(request)
        return hit

    def evict_inside(self, rng: random.Random) -> bool:
        """Drop one block from the middle of a chain, leaving what is behind it (engines with other policies).

        Parameters
        ----------
        rng : random.Random
            Picks a remembered request and a block of it that is not its last.

        Returns
        -------
        bool
            Whether the picked block was cached, so whether anything happened.
        """
        if not self._recent:
            return False
        request = self._recent[rng.randrange(len(self._recent))]
        if request.prompt_blocks < 2:
            return False
        node, within = divmod(rng.randrange(request.prompt_blocks - 1), self._cut)
        node = request.nodes[node]
        mask = self._held.get(node, 0)
        if not mask >> within & 1:
            return False
        self._keep(node, mask ^ (1 << within))
        self.used -= 1
        if self._log is not None:
            self._log.remove(self.worker, [node * self._cut + within])
        return True

    def restart(self, announce: bool) -> None:
        """Lose the whole cache.

        Parameters
        ----------
        announce : bool
            Whether the engine itself says so (AllBlocksCleared); otherwise it vanished, is removed as
            worker, and registers anew with its next event.
        """
        self._held.clear()
        self._recent.clear()
        self.used = 0
        if self._log is not None:
            if announce:
                self._log.clear(self.worker)
            else:
                self._log.remove_worker(self.worker)

    def held_places(self) -> set[int]:
        """Return all cached places; slow, for tests."""
        cut = self._cut
        return {n * cut + i for n, mask in self._held.items() for i in range(cut) if mask >> i & 1}

    # --- inside -------------------------------------------------------------------------------------

    def _place(self, nodes: list[int], block: int) -> int:
        node, within = divmod(block, self._cut)
        return nodes[node] * self._cut + within

    def _places(self, nodes: list[int], start: int, stop: int) -> list[int]:
        """Places of the blocks start ... stop - 1 of a path."""
        if self._cut == 1:
            return nodes[start:stop]
        places: list[int] = []
        for i in range(start // self._cut, -(-stop // self._cut)):
            first = i * self._cut
            base = nodes[i] * self._cut - first
            places.extend(range(base + max(start, first), base + min(stop, first + self._cut)))
        return places

    def _touch(self, nodes: list[int], prompt: int, total: int) -> None:
        """Cache the prompt and make the whole path the youngest, tail first.

        Nodes of the answer get their place in the order now, still empty: entered as they fill, they would
        be younger than their prefix.
        """
        held, cut = self._held, self._cut
        for i in range(-(-total // cut) - 1, -1, -1):
            mask = held.pop(nodes[i], 0)
            rest = prompt - i * cut
            if rest > 0:
                wanted = self._full if rest >= cut else (1 << rest) - 1
                self.used += (wanted & ~mask).bit_count()
                mask |= wanted
            held[nodes[i]] = mask

    def _append(self, nodes: list[int], block: int) -> None:
        node, within = divmod(block, self._cut)
        node, bit = nodes[node], 1 << within
        mask = self._held[node]
        if mask & bit:
            return  # an equal request was answered here before, and the answer is still cached
        self._held[node] = mask | bit
        self.used += 1
        self._evict()
        if self._log is not None:
            parent = self._place(nodes, block - 1) if block else None
            self._log.store(self.worker, parent, [node * self._cut + within])

    def _evict(self) -> None:
        """Drop the oldest blocks until the rest fits; one removal per node, deepest block first.

        The request being served is never touched: its path is the youngest part of the order and fits, and
        blocks that lie behind it in its last node go first.
        """
        cut = self._cut
        while self.used > self.capacity:
            node, mask = next(iter(self._held.items()))
            excess = self.used - self.capacity
            dropped: list[int] = []
            while mask and len(dropped) < excess:
                within = mask.bit_length() - 1
                mask ^= 1 << within
                dropped.append(node * cut + within)
            self._keep(node, mask)
            self.used -= len(dropped)
            if dropped and self._log is not None:
                self._log.remove(self.worker, dropped)

    def _keep(self, node: int, mask: int) -> None:
        """Set a node's mask without changing its age; an empty node goes."""
        if mask:
            self._held[node] = mask
        else:
            del self._held[node]
