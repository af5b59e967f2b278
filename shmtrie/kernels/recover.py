"""Recovery: finish or take back what a dead lane had begun. The caller holds the dead lane's lock and works
as that lane.

UNDO goes back, REDO goes on, RELEASE is ended; no gate is needed that the dead lane did not hold. Every
step may be repeated, so a recoverer may die as well.
"""

from __future__ import annotations

from shmtrie.atomics import ld64, pl64, st64r
from shmtrie.kernels.build import entry, jit
from shmtrie.kernels.context import C_BASE, C_LANE, C_N_NODES, C_OPERATION, C_RECORD, OK, get, put
from shmtrie.kernels.hooks import Site, at
from shmtrie.kernels.lists import is_child_word
from shmtrie.kernels.protocol import count, node_at
from shmtrie.kernels.reclaim import work_todo
from shmtrie.kernels.spaces import space_unlock
from shmtrie.kernels.transaction import finish, is_retired, redo_all, release, undo_all
from shmtrie.layout import (
    COUNTERS,
    L_OP,
    L_PHASE,
    L_SPACE,
    L_SPACE_CHANGE,
    L_SPACE_COUNT,
    L_SPACE_ENTRY,
    L_SPACE_VALUE,
    M31,
    N_COUNT,
    PHASE_IDLE,
    PHASE_REDO,
    PHASE_UNDO,
)

RECOVERIES, TRIES = COUNTERS.index("recoveries"), COUNTERS.index("recovery_tries")


@jit
def settle_space(ctx):
    """Open a space lock that the dead lane held: the entry alone says whether the count has to change (M14).

    A removal whose commit was made is left to the redo list, which ends the section.
    """
    r = get(ctx, C_RECORD)
    change = pl64(r + L_SPACE_CHANGE)
    if change == 0:
        return
    space = pl64(r + L_SPACE)
    is_held = 0 <= space < get(ctx, C_N_NODES)
    if is_held and (ld64(node_at(ctx, space) + N_COUNT) >> 32) == get(ctx, C_LANE) + 1:
        if change < 0 and (pl64(r + L_PHASE) & 0xFF) == PHASE_REDO:
            return
        entry_at = get(ctx, C_BASE) + pl64(r + L_SPACE_ENTRY)
        is_in = is_child_word(ctx, entry_at) and ld64(entry_at) == pl64(r + L_SPACE_VALUE)
        n = pl64(r + L_SPACE_COUNT)
        if change > 0:
            n += 1 if is_in else 0
        else:
            n -= 0 if is_in else 1
        space_unlock(ctx, space, n & M31)
    st64r(r + L_SPACE_CHANGE, 0)
    at(ctx, Site.SPACE_SETTLED)


@entry("int64(int64)")
def recover(ctx):
    """Bring the record of the lane to IDLE; OK, or BUSY when a space lock is held by somebody else (call
    again).
    """
    r = get(ctx, C_RECORD)
    word = pl64(r + L_PHASE)
    phase = word & 0xFF
    if phase == PHASE_IDLE and (pl64(r + L_OP) & 1) == 0:
        return OK
    count(ctx, TRIES, 1)
    put(ctx, C_OPERATION, word >> 8)
    settle_space(ctx)
    if phase == PHASE_UNDO:
        status = undo_all(ctx)
        if status != OK:
            return status
    elif phase == PHASE_REDO:
        redo_all(ctx)
    release(ctx)
    if not is_retired(ctx):  # a resizer copies what lies there
        work_todo(ctx)
    count(ctx, RECOVERIES, 1)
    if (pl64(r + L_OP) & 1) != 0:
        finish(ctx)
    else:
        st64r(r + L_PHASE, PHASE_IDLE)
    return OK
