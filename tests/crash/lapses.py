"""Deaths and stops that need more than one lane in the right place: each was found by reading, and is one
call of ``run`` (in a process of the test build).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from numba import njit

import shmtrie.ranks
from shmtrie.capacity import Capacity
from shmtrie.index import Index
from shmtrie.kernels import adopt, hooks
from shmtrie.kernels.context import C_CLAIMS, C_HOOK, C_LANE
from shmtrie.kernels.extents import claim_lines, free_claim
from shmtrie.kernels.hooks import HookAbandon, Site
from shmtrie.kernels.spans import turn_span
from shmtrie.kernels.transaction import begin, commit, finish, release
from shmtrie.layout import LANE_FREE, SPAN_LINES, SPAN_TAIL, SPAN_TURN
from shmtrie.writer import Writer
from tests.backends import segment_name
from tests.differential import expect
from tests.hooks import HookControl, die
from tests.system.index_tools import claimed, details, scores

_controls: list[HookControl] = []  # a context keeps the address


def leave(writer: Writer, site: Site, call: Callable[[], Any], countdown: int = 1) -> None:
    """Let a writer stop for ever at a point of a call."""
    control = HookControl()
    _controls.append(control)
    control.install(writer._work.context.words)
    control.arm(hooks.ABANDON, site, countdown)
    try:
        call()
    except HookAbandon:
        writer._work.context.words[C_HOOK] = 0
    else:
        raise AssertionError(f"never came by {site!r}")


@contextmanager
def opened(capacity: Capacity | None = None) -> Iterator[Index]:
    """A small index."""
    name = segment_name("lapse")
    with Index.create(name, capacity or Capacity(blocks=4_000, workers=16, lanes=4)) as index:
        try:
            yield index
        finally:
            Index.unlink(name)


def a_node_with_children(writer: Writer) -> None:
    """[1, 2, 3] of rank 1 with [4] below; nobody else has anything."""
    writer.store(1, None, [1, 2, 3], [101, 102, 103])
    writer.store(1, 103, [4], [104])
    writer.store(2, None, [1, 2, 3, 9], [101, 102, 103, 109])
    writer.remove(2, [109, 103, 102, 101])


def details_while_an_alias_goes() -> None:
    """The last hash is the rank's own as long as the rank counts."""
    for countdown in range(1, 5):
        with opened() as index, index.writer() as writer:
            writer.store(1, None, [1, 2, 3], [101, 102, 103])
            writer.store(2, None, [1, 2, 3], [201, 202, 203])
            try:
                leave(writer, Site.REDO_DONE, lambda w=writer: w.remove(2, [201]), countdown)  # type: ignore[misc]
            except AssertionError:
                expect(countdown > 2, "too few steps")
                return
            found = details(index, [1, 2, 3])
            expect(found in ({(1, 0): (3, 103)}, {(1, 0): (3, 103), (2, 0): (3, 203)}), countdown, found)
            die(writer)


def busy_names_who_is_in_the_way() -> None:
    """A node that waits for a stopped lane does not hide the dead lane that an event meets."""
    with opened() as index, index.writer() as stopped, index.writer(0.3) as alive, index.writer() as dead:
        a_node_with_children(alive)
        dead.store(5, None, [50, 51, 52], [501, 502, 503])
        leave(stopped, Site.WORD_ENTERED, lambda: stopped.store(7, None, [1, 2, 3], [101, 102, 103]))
        alive.remove(1, [101])
        alive.remove(1, [104])
        leave(dead, Site.GATE_EXCLUSIVE, lambda: dead.store(5, 503, [53], [504]))
        die(dead)
        alive.store(1, None, [50, 51, 52], [501, 502, 503])
        expect(scores(index, [50, 51, 52]) == {(1, 0): 3, (5, 0): 3}, "not stored")
        die(stopped)


def blocks_beside_a_split_that_stopped() -> None:
    """A rank that is taken over is counted once, though the suffix is there already."""
    for site in (Site.NODE_MADE, Site.SPLIT_PREPARED, Site.REDO_SET):
        with opened() as index, index.writer() as first, index.writer() as dead, index.writer() as next_:
            first.store(1, None, [1, 2, 3, 4, 5, 6], [101, 102, 103, 104, 105, 106])
            leave(dead, site, lambda d=dead: d.store(2, None, [1, 2, 3, 9], [101, 102, 103, 109]))  # type: ignore[misc]
            first.release(1)
            next_.store(1, None, [70], [170])
            expect(next(w.blocks for w in index.workers()) == 7, site, index.workers())
            lane = die(dead)
            next_._work.recover_lane(lane)
            report = index.verify()
            expect(next(w.blocks for w in index.workers()) == 7 and report.ok, site, report)


def what_a_dead_lane_has_reserved() -> None:
    """A full table is no answer while dead lanes hold a part of it."""
    capacity = Capacity(blocks=60_000, workers=16, lanes=4, nodes=1_000, extents=16 * 1024)
    some, others = np.arange(1, 50_001), np.arange(100_000, 120_000)
    with opened(capacity) as index, index.writer() as alive, index.writer() as dead:
        leave(dead, Site.STORE_PREPARED, lambda: dead.store(1, None, some, some))
        die(dead)
        alive.store(2, None, others, others)
        expect(alive.lane >= 0 and scores(index, others) == {(2, 0): len(others)}, "not stored")


def verify_beside_a_replaced_extent() -> None:
    """Dead between a new extent and the end of the old one: nothing is lost, and verify says so."""
    many = list(range(1, 14))
    for site, before, call in (
        (Site.EDGE_PUBLISHED, 1, lambda w: w.store(1, 104, many, many)),
        (Site.HEAD_PUBLISHED, 3, lambda w: w.store(4, None, [1, 2, 3, 4], [101, 102, 103, 104])),
        (Site.HEAD_PUBLISHED, 8, lambda w: w.store(9, None, [1, 2, 3, 4], [101, 102, 103, 104])),
    ):
        with opened() as index, index.writer() as dead:
            for rank in range(1, before + 1):
                dead.store(rank, None, [1, 2, 3, 4], [101, 102, 103, 104])
            leave(dead, site, lambda d=dead, c=call: c(d))  # type: ignore[misc]
            die(dead)
            report = index.verify()
            expect(report.ok, site, before, report)
    with opened() as index, index.writer() as dead:  # the directory of aliases grows
        dead.store(1, None, [1, 2], [1, 2])
        for rank in range(2, 10):
            dead.store(rank, None, [1, 2], [100 * rank, 100 * rank + 1])
        leave(dead, Site.ALIAS_LINKED, lambda: dead.store(10, None, [1, 2], [1_000, 1_001]))
        die(dead)
        report = index.verify()
        expect(report.ok, report)


def verify_beside_a_claim_that_was_not_made() -> None:
    """Dead between the note of a claim and the claim; another lane has what it wanted to take."""
    for countdown in range(1, 4):
        with opened() as index, index.writer() as alive, index.writer() as dead:
            dead.store(2, None, [9], [9])
            leave(dead, Site.UNDO_LOGGED, lambda d=dead: d.store(1, None, [1, 2], [1, 2]), countdown)  # type: ignore[misc]
            die(dead)
            for k in range(40):
                alive.store(3, None, [100 + k], [200 + k])
            report = index.verify()
            expect(report.ok, countdown, report)


def an_adoption_that_is_interrupted() -> None:
    """Others of the lane do not rely on entries that it has not made."""
    real, calls = adopt.adopt_slot, [0]

    def once(*arguments: Any) -> Any:
        calls[0] += 1
        if calls[0] == 1:
            raise KeyboardInterrupt
        return real(*arguments)

    with opened() as index, index.writer() as first, index.writer() as second:
        first.store(2, None, [1, 2, 3], [101, 102, 103])
        first.release(2)
        shmtrie.ranks.adopt.adopt_slot = once  # type: ignore[assignment]
        try:
            second.remove(2, [999])
        except KeyboardInterrupt:
            pass
        finally:
            shmtrie.ranks.adopt.adopt_slot = real
        second.store(1, None, [1, 2, 3], [101, 102, 103])
        second.remove(1, [101, 102, 103])
        expect(scores(index, [1, 2, 3]) == {(2, 0): 3}, scores(index, [1, 2, 3]))
        second.remove(2, [103])
        expect(scores(index, [1, 2, 3]) == {(2, 0): 2}, scores(index, [1, 2, 3]))


def a_node_that_a_dead_lane_keeps() -> None:
    """It is reclaimed although no event meets its gate."""
    with opened() as index, index.writer() as alive, index.writer() as dead:
        a_node_with_children(alive)
        leave(dead, Site.WORD_ENTERED, lambda: dead.store(7, None, [1, 2, 3], [101, 102, 103]))
        lane = die(dead)
        alive.remove(1, [101])
        alive.remove(1, [104])
        alive.close()
        expect(claimed(index) == (0, 0, 0), claimed(index))
        expect(int(index.segment.view("lanes")["state"][lane]) == LANE_FREE, "not recovered")


def the_list_of_a_dead_lane() -> None:
    """Who recovers a lane does what that had to leave."""
    with opened() as index, index.writer() as alive, index.writer() as stopped, index.writer() as dead:
        a_node_with_children(dead)
        leave(stopped, Site.WORD_ENTERED, lambda: stopped.store(7, None, [1, 2, 3], [101, 102, 103]))
        dead.remove(1, [101])
        dead.remove(1, [104])
        lane = die(dead)
        expect(int(index.segment.view("lanes")["n_todo"][lane]) > 0, "nothing was left")
        expect(alive._work.recover_lane(lane), "not recovered")
        expect(int(index.segment.view("lanes")["n_todo"][lane]) == 0, "left to the seat's next holder")
        die(stopped)
        alive.close()
        expect(claimed(index) == (0, 0, 0), claimed(index))


def slots_older_than_an_age_can_be() -> None:
    """Half of all epochs pass; the ranks that were there do not vanish."""
    with opened() as index, index.writer() as writer:
        writer.store(1, None, [1, 2, 3], [101, 102, 103])
        for _ in range(4):
            epoch = int(index.segment.header["epoch"]) >> 16
            # registrations and refusals, up to the next look at old slots
            index.segment.header["epoch"] = np.uint64(((epoch + (1 << 29)) | 0xFFFFF) << 16)
            writer.store(9, None, [77], [177])
            leave(writer, Site.SLOT_MARKED, lambda: writer.remove_worker(9))
            expect(
                scores(index, [1, 2, 3]) == {(1, 0): 3}, "while a slot is DYING:", scores(index, [1, 2, 3])
            )
            writer.remove_worker(9)


def an_extent_of_three_spans() -> None:
    """Dead in the middle of letting its spans go: those that others have taken since stay theirs."""

    @njit
    def take(ctx, lines):  # type: ignore[no-untyped-def]
        begin(ctx)
        line = claim_lines(ctx, lines)
        commit(ctx)
        release(ctx)
        finish(ctx)
        return line

    @njit
    def give(ctx, address, value):  # type: ignore[no-untyped-def]
        begin(ctx)
        free_claim(ctx, address, value)
        commit(ctx)
        release(ctx)
        finish(ctx)

    @njit
    def turn(ctx, span, size):  # type: ignore[no-untyped-def]
        begin(ctx)
        turn_span(ctx, span, size, 0)
        commit(ctx)
        release(ctx)
        finish(ctx)

    capacity = Capacity(blocks=2_000, workers=16, lanes=4, extents=16 * SPAN_LINES)
    with opened(capacity) as index, index.writer() as alive, index.writer() as dead:
        context, other = alive._work.context, dead._work.context
        spans, claims = index.segment.view("spans"), index.segment.view("line_claims")
        first = take(context.address, 3 * SPAN_LINES)
        give(context.address, context.get(C_CLAIMS) + first * 4, int(claims[first - 1]))
        span = (first - 1) // SPAN_LINES
        leave(dead, Site.SPAN_TURNING, lambda: turn(other.address, span, 4))
        for k in (2, 1):  # what comes next; the death is right behind it
            expect(int(spans["word"][span + k]) & 0xFFFF == SPAN_TAIL, "no tail")
            spans["word"][span + k] = np.uint64(
                ((int(spans["word"][span + k]) >> SPAN_TURN) + 1) << SPAN_TURN
            )
        die(dead)
        mine = take(context.address, 2 * SPAN_LINES)
        alive._work.recover_lane(other.get(C_LANE))
        for _ in range(14 * SPAN_LINES // 4):
            line = take(context.address, 4)
            if line == 0:
                break
            expect(not mine <= line < mine + 2 * SPAN_LINES, "an extent in another's")


LAPSES: dict[str, Callable[[], None]] = {
    f.__name__.replace("_", " "): f
    for f in (
        details_while_an_alias_goes,
        busy_names_who_is_in_the_way,
        blocks_beside_a_split_that_stopped,
        what_a_dead_lane_has_reserved,
        verify_beside_a_replaced_extent,
        verify_beside_a_claim_that_was_not_made,
        an_adoption_that_is_interrupted,
        a_node_that_a_dead_lane_keeps,
        the_list_of_a_dead_lane,
        slots_older_than_an_age_can_be,
        an_extent_of_three_spans,
    )
}
