"""ai-dynamo-runtime's RadixTree (the `bench` extra): a Rust tree behind a Python binding."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from shmtrie.event_types import encode_event

from .indexes import BenchIndex, Pairs, local_lists, router_event
from .workload import CLEAR, REMOVE, STORE, Workload


class _Outer(msgspec.Struct):
    event: msgspec.Raw


_outer = msgspec.json.Decoder(_Outer)


def available() -> bool:
    """Whether it is installed."""
    try:
        import dynamo.llm
    except ImportError:
        return False
    return hasattr(dynamo.llm, "RadixTree")


class Dynamo(BenchIndex):
    """`find_matches` alone: its result still holds the scores as a native object."""

    name = "dynamo RadixTree"
    handles_seeds = False  # it refuses stores where engines name one block differently, and logs each

    def __init__(self, workload: Workload) -> None:
        from dynamo.llm import RadixTree

        self._tree = RadixTree()
        self.find = self._find()

    def _find(self) -> Callable[[Any], Any]:
        return self._tree.find_matches  # type: ignore[no-any-return]

    queries = staticmethod(local_lists)

    @staticmethod
    def events(workload: Workload) -> list[tuple[int, tuple[Any, ...]]]:
        made = []
        for op in workload.events.tolist():
            event = router_event(workload, op)
            inner = bytes(_outer.decode(encode_event(event)).event)
            made.append((int(workload.kind[op]), (event.worker_id, inner)))
        return made

    def bind(self) -> dict[int, Callable[..., Any]]:
        apply = self._tree.apply_event
        return {STORE: apply, REMOVE: apply, CLEAR: apply}

    @staticmethod
    def pairs(found: Any) -> Pairs:
        return DynamoScores.pairs(found.scores)

    def settle(self) -> None:
        self._tree.find_matches([1])


class DynamoScores(Dynamo):
    """With the scores turned into a Python dict."""

    name = "dynamo RadixTree .scores"

    def _find(self) -> Callable[[Any], Any]:
        find = self._tree.find_matches
        return lambda query: find(query).scores

    @staticmethod
    def pairs(found: Any) -> Pairs:
        return [worker for worker, _ in found], list(found.values())
