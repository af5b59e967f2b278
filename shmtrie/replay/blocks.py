"""From trace blocks to index blocks: places, local hashes, external hashes.

Every prefix of 512-token trace blocks gets a dense number, its *node*. Cut into `cut` index blocks, node n
holds the *places* n * cut ... n * cut + cut - 1. A place is a position in the tree of all prompts and names
its whole prefix; both hashes are bijections of dense numbers, so different blocks never share one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from .trace import TRACE_BLOCK_TOKENS, TraceRequest

__all__ = ["BlockMap", "PlannedRequest", "Workload", "plan"]

# Any two different odd constants: they keep local and external hashes apart.
_LOCAL_SALT: Final = np.uint64(0x9E3779B97F4A7C15)
_EXTERNAL_SALT: Final = np.uint64(0xD1B54A32D192ED03)


class PlannedRequest(NamedTuple):
    """A request in terms of places.

    Parameters
    ----------
    number : int
        Position in the trace.
    time : float
        Arrival, milliseconds.
    nodes : list of int
        The nodes of prompt and answer from the root, ceil(total_blocks / cut) of them.
    prompt_blocks : int
        Full index blocks of the prompt: what is looked up and prefilled.
    total_blocks : int
        The same with the answer: decode appends blocks prompt_blocks ... total_blocks - 1.
    """

    number: int
    time: float
    nodes: list[int]
    prompt_blocks: int
    total_blocks: int


class BlockMap:
    """The hashes of places.

    Parameters
    ----------
    cut : int
        Index blocks in one trace block.
    labels : ndarray of int64, shape (n_nodes,)
        Per node a number of the tokens in it; nodes with equal tokens share it.
    """

    def __init__(self, cut: int, labels: npt.NDArray[np.int64]) -> None:
        self.cut = cut
        self._labels = labels

    def places(self, nodes: Sequence[int], blocks: int) -> npt.NDArray[np.int64]:
        """Return the first `blocks` places of a path: ndarray of int64, shape (blocks,)."""
        path = np.asarray(nodes[: -(-blocks // self.cut)], np.int64)
        return (path[:, None] * self.cut + np.arange(self.cut)).ravel()[:blocks]

    def local(self, places: npt.NDArray[np.int64]) -> npt.NDArray[np.uint64]:
        """Hash the tokens of each place: ndarray of uint64, the shape of `places`."""
        nodes, within = np.divmod(places, self.cut)
        return mix64((self._labels[nodes] * self.cut + within).astype(np.uint64) + _LOCAL_SALT)

    @staticmethod
    def external(places: npt.NDArray[np.int64]) -> npt.NDArray[np.uint64]:
        """Hash each place with its whole prefix: ndarray of uint64, the shape of `places`."""
        return mix64(places.astype(np.uint64) + _EXTERNAL_SALT)


class Workload(NamedTuple):
    """A trace cut into index blocks.

    Parameters
    ----------
    requests : list of PlannedRequest
        In trace order.
    blocks : BlockMap
        Hashes of the places that the requests name.
    unique_blocks : int
        Different places in all prompts and answers.
    linked : int
        Requests whose answer is part of a later request's prompt.
    """

    requests: list[PlannedRequest]
    blocks: BlockMap
    unique_blocks: int
    linked: int


def mix64(values: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Scramble 64-bit numbers, one to one (the finalizer of splitmix64)."""
    z = values
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


class _Tree:
    """Numbers the nodes: (parent node, trace id) -> node; the same for token labels."""

    def __init__(self) -> None:
        self._nodes: dict[tuple[int, int | None], int] = {}
        self._tokens: dict[int, int] = {}
        self._next_label = 0
        self.labels: list[int] = []

    def path(self, ids: Sequence[int], length: int) -> list[int]:
        """Walk `length` blocks along `ids`, then along what only answers fill; make what is missing."""
        path: list[int] = []
        at = -1
        for i in range(length):
            key = (at, ids[i] if i < len(ids) else None)
            node = self._nodes.get(key)
            if node is None:
                node = self._nodes[key] = len(self.labels)
                self.labels.append(self._label(key[1]))
            path.append(node)
            at = node
        return path

    def _label(self, trace_id: int | None) -> int:
        known = None if trace_id is None else self._tokens.get(trace_id)
        if known is not None:
            return known
        label = self._next_label
        self._next_label += 1
        if trace_id is not None:
            self._tokens[trace_id] = label
        return label


def plan(trace: Sequence[TraceRequest], block_tokens: int = TRACE_BLOCK_TOKENS) -> Workload:
    """Cut a trace into index blocks of `block_tokens` tokens and link answers to the turns that follow.

    Parameters
    ----------
    trace : sequence of TraceRequest
        In time order.
    block_tokens : int
        Tokens in an index block; divides 512.

    Returns
    -------
    Workload
        Only full blocks count, as engines cache only those. Where a later prompt goes on behind the last
        full block that a request was the first to have, and is long enough to hold the request's answer, it
        is taken as the next turn of the conversation and the answer gets that prompt's blocks. Any other
        answer gets blocks of its own; equal prompts then get equal answers.

    Raises
    ------
    ValueError
        If `block_tokens` does not divide 512.
    """
    if block_tokens < 1 or TRACE_BLOCK_TOKENS % block_tokens:
        raise ValueError(f"block_tokens must divide {TRACE_BLOCK_TOKENS}, got {block_tokens}")
    cut = TRACE_BLOCK_TOKENS // block_tokens
    tree = _Tree()
    planned: list[PlannedRequest] = []
    next_turn: dict[int, int] = {}
    # Last full node of a prompt -> the request that was the first to have it, while no later one followed.
    waiting: dict[int, int] = {}
    for number, request in enumerate(trace):
        prompt = min(request.input_length // block_tokens, len(request.hash_ids) * cut)
        known_tokens = min(request.input_length, len(request.hash_ids) * TRACE_BLOCK_TOKENS)
        total = max(prompt, (known_tokens + request.output_length) // block_tokens)
        seen = len(tree.labels)
        nodes = tree.path(request.hash_ids, -(-total // cut))
        full = prompt // cut
        for node in nodes[:full]:
            earlier = waiting.get(node)
            if earlier is not None and planned[earlier].total_blocks <= prompt:
                next_turn[earlier] = number
                del waiting[node]
        if full and nodes[full - 1] >= seen:
            waiting[nodes[full - 1]] = number
        planned.append(PlannedRequest(number, request.timestamp, nodes, prompt, total))
    # Backwards, so that a turn whose own tail was renamed hands the new names on.
    for number in sorted(next_turn, reverse=True):
        mine, later = planned[number], planned[next_turn[number]]
        full = mine.prompt_blocks // cut
        planned[number] = mine._replace(nodes=mine.nodes[:full] + later.nodes[full : len(mine.nodes)])
    unique = _unique_blocks(planned, cut, len(tree.labels))
    labels = np.array(tree.labels, np.int64)
    return Workload(planned, BlockMap(cut, labels), unique, len(next_turn))


def _unique_blocks(planned: Sequence[PlannedRequest], cut: int, n_nodes: int) -> int:
    """Count the places that occur: per node, the longest part of it that a request uses."""
    used = np.zeros(n_nodes, np.int64)
    for request in planned:
        if request.nodes:
            used[request.nodes[:-1]] = cut
            last = request.nodes[-1]
            used[last] = max(int(used[last]), request.total_blocks - (len(request.nodes) - 1) * cut)
    return int(used.sum())
