"""Named points in the kernels at which a test can pause, kill or abandon the process.

A kernel calls ``at(ctx, Site.X)`` after a store that another process can see. In the product `at` is empty
and leaves nothing in the machine code. In the test build (``SHMTRIE_TEST_BUILD=1`` when the package is
imported; a cache of its own) it counts the hit in a control array and does what the array says. The array is
shared memory of the test, its address is word ``C_HOOK`` of the context; 0 there means no control.

Control array, int64 words (`tests/hooks.py` is the other side of it)::

    W_SITE       armed site, or ANY_SITE
    W_COUNTDOWN  matching hits left; the hit that makes it 0 acts; <= 0 is disarmed
    W_ACTION     NONE, PAUSE, KILL, ABANDON
    W_STATE      IDLE, PAUSED, RELEASED, EXPIRED, ABANDONED: what has come of the action
    W_GO         nonzero lets a paused process go on
    W_HITS       hits of all sites
    W_LAST       site of the last hit
    W_COUNTS     hits by site, from here
"""

from __future__ import annotations

from enum import IntEnum

from numba import types

from shmtrie.atomics import add64, ld64, ld64a, pl64, st64, st64r
from shmtrie.kernels.build import TEST_BUILD, inl, jit
from shmtrie.kernels.context import C_HOOK


class Site(IntEnum):
    """The points, in no order that matters; values are below `MAX_SITES` and never used twice."""

    UNDO_LOGGED = 1
    GATE_SHARED = 2
    GATE_OWNED = 3
    GATE_EXCLUSIVE = 4
    NODE_CLAIMED = 5
    NODE_MADE = 6
    LINES_CLAIMED = 7
    SPAN_TURNING = 8
    SPACE_LOCKED = 9
    CHILD_ENTERED = 10
    CHILD_REMOVED = 11
    NODE_ENDED = 12
    SPACE_UNLOCKED = 13
    WORD_ENTERED = 14
    HEAD_PUBLISHED = 15
    EDGE_PUBLISHED = 16
    TAIL_PUBLISHED = 17
    VERSION_BUMPED = 18
    STORE_PLANNED = 19
    STORE_PREPARED = 20
    REDO_SET = 21
    REDO_DONE = 22
    REDO_BEFORE_FREE = 23
    UNDO_DONE = 24
    RELEASE_SET = 25
    GATE_DROPPED = 26
    OPERATION_BEGUN = 27
    OPERATION_ENDED = 28
    SPLIT_PREPARED = 29
    SPLIT_DONE = 30
    REMOVE_GATED = 31
    WORD_CUT = 32
    TAIL_CUT = 33
    RECLAIM_GATED = 34
    ALIAS_LINKED = 35
    SWEEP_NODE = 36
    SLOT_MARKED = 37
    READER_NODE = 38
    READER_CHECK = 39
    SPACE_SETTLED = 40
    READER_LOADED = 41
    PLACE_FOUND = 42
    SWEEP_CUT = 43
    REMOVE_PLANNED = 44


MAX_SITES = 248
W_SITE, W_COUNTDOWN, W_ACTION, W_STATE, W_GO, W_HITS, W_LAST = range(7)
W_COUNTS = 8
CONTROL_WORDS = W_COUNTS + MAX_SITES

ANY_SITE = -1
NONE, PAUSE, KILL, ABANDON = range(4)
IDLE, PAUSED, RELEASED, EXPIRED, ABANDONED = range(5)

#: A paused process looks at W_GO at these intervals and at most so often (a minute or two), so that a test
#: that died leaves nobody behind. It sleeps in between: the processes that race with it need the core.
PAUSE_US = 50
PAUSE_LOOKS = 1_200_000


class HookAbandon(Exception):
    """An operation was left where it stood, as by a crash, in a process that lives on."""


_SIGKILL = 9
_getpid = types.ExternalFunction("getpid", types.int32())
_kill = types.ExternalFunction("kill", types.int32(types.int32, types.int32))
_usleep = types.ExternalFunction("usleep", types.int32(types.uint32))


if TEST_BUILD:

    @jit
    def _act(control, action):
        if action == KILL:
            _kill(_getpid(), _SIGKILL)
        elif action == PAUSE:
            st64r(control + 8 * W_STATE, PAUSED)
            state = EXPIRED
            for _ in range(PAUSE_LOOKS):
                if ld64a(control + 8 * W_GO) != 0:
                    state = RELEASED
                    break
                _usleep(PAUSE_US)
            st64r(control + 8 * W_STATE, state)
        elif action == ABANDON:
            st64r(control + 8 * W_STATE, ABANDONED)
            raise HookAbandon

    @jit
    def at(ctx, site):
        control = pl64(ctx + 8 * C_HOOK)
        if control == 0:
            return
        site = types.int64(site)
        add64(control + 8 * W_HITS, 1)
        add64(control + 8 * (W_COUNTS + site), 1)
        st64(control + 8 * W_LAST, site)
        armed = ld64(control + 8 * W_SITE)
        if (armed == site or armed == ANY_SITE) and ld64a(control + 8 * W_COUNTDOWN) > 0:
            if add64(control + 8 * W_COUNTDOWN, -1) == 1:
                _act(control, ld64(control + 8 * W_ACTION))

else:

    @inl
    def at(ctx, site):
        return
