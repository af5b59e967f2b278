"""Live spaces: a child that comes into, or leaves, a space that readers can reach.

The entry and the space's count change under the lock byte of the count word, noted in the lane's record
before: whoever recovers a dead holder settles the section from the entry alone (M14), and two lanes never
insert one key twice (M3). The table itself is in children.py.
"""

from __future__ import annotations

from shmtrie.atomics import cas64, ld64, pause, pl64, st64, st64r
from shmtrie.kernels.build import inl, jit
from shmtrie.kernels.children import child_find, child_hash, child_tag, free_word
from shmtrie.kernels.context import (
    BUSY,
    C_BASE,
    C_BUSY_LANE,
    C_BUSY_NODE,
    C_FULL_TABLE,
    C_LANE,
    C_RECORD,
    C_SEED,
    FULL,
    OK,
    RETRY,
    TABLE_CHILDREN,
    get,
    put,
)
from shmtrie.kernels.hooks import Site, at
from shmtrie.kernels.lists import log_undo, pop_undo
from shmtrie.kernels.protocol import bump_generation, node_at
from shmtrie.layout import (
    L_SPACE,
    L_SPACE_CHANGE,
    L_SPACE_COUNT,
    L_SPACE_ENTRY,
    L_SPACE_VALUE,
    LOG_CHILD,
    M31,
    M32,
    N_COUNT,
    N_START,
    NO_SPACE,
)

LOCK_TRIES = 64


@inl
def _note(ctx, space, word, word_at, entry, change):
    """Note a section under a space lock in the record; the change is what makes it valid: it comes last."""
    r = get(ctx, C_RECORD)
    st64r(r + L_SPACE_CHANGE, 0)
    st64(r + L_SPACE, space)
    st64(r + L_SPACE_COUNT, word)
    st64(r + L_SPACE_ENTRY, word_at - get(ctx, C_BASE))
    st64(r + L_SPACE_VALUE, entry)
    st64r(r + L_SPACE_CHANGE, change)


@inl
def space_unlock(ctx, space, count):
    """Store the new count and open the lock in one word, then forget the note."""
    st64r(node_at(ctx, space) + N_COUNT, count)
    at(ctx, Site.SPACE_UNLOCKED)
    st64r(get(ctx, C_RECORD) + L_SPACE_CHANGE, 0)


@inl
def _busy_space(ctx, word, space):
    put(ctx, C_BUSY_LANE, ((word >> 32) & 0xFF) - 1)
    put(ctx, C_BUSY_NODE, space)
    return BUSY


@jit
def child_insert(ctx, space, depth, local, node):
    """Enter a child into a live space; OK, RETRY (the key has come in meanwhile), BUSY or FULL.

    Notes
    -----
    The caller holds the gate of the space's node, so the space keeps its owner. Crash: see `settle_space`;
    after it the child is in, and the LOG_CHILD undo entry takes it out again unless the transaction was
    committed.
    """
    h = child_hash(get(ctx, C_SEED), space, local)
    entry = child_tag(h) | node
    count_at = node_at(ctx, space) + N_COUNT
    me = (get(ctx, C_LANE) + 1) << 32
    word = 0
    for _ in range(LOCK_TRIES):
        word = ld64(count_at)
        if (word >> 32) != 0:
            pause()
            continue
        word_at = free_word(ctx, h)
        if word_at == 0:
            put(ctx, C_FULL_TABLE, TABLE_CHILDREN)
            return FULL
        if log_undo(ctx, LOG_CHILD, word_at, space, entry) != OK:
            return FULL
        _note(ctx, space, word, word_at, entry, 1)
        if cas64(count_at, word, word | me) == 0:
            st64r(get(ctx, C_RECORD) + L_SPACE_CHANGE, 0)
            pop_undo(ctx)
            continue
        at(ctx, Site.SPACE_LOCKED)
        status = RETRY
        if child_find(ctx, space, depth, local) == 0:
            status = OK if cas64(word_at, 0, entry) != 0 else BUSY
        if status == OK:
            at(ctx, Site.CHILD_ENTERED)
            space_unlock(ctx, space, word + 1)
            return OK
        space_unlock(ctx, space, word)
        pop_undo(ctx)
        if status == RETRY:
            return RETRY
        # BUSY: another space's key took the bucket word; choose again
    return _busy_space(ctx, word, space)


@inl
def end_life(a):
    """The node hangs nowhere, then its generation is over: in this order, for readers with a stale entry
    (M16).
    """
    st64r(a + N_START, NO_SPACE << 32)
    bump_generation(a)


@jit
def child_lock(ctx, space, word_at, entry):
    """Lock a live space in order to take the child with this entry out: OK or BUSY.

    Notes
    -----
    The section is ended by `child_unlink`. Crash in between: `settle_space` opens the lock with the old
    count.
    """
    count_at = node_at(ctx, space) + N_COUNT
    me = (get(ctx, C_LANE) + 1) << 32
    word = 0
    for _ in range(LOCK_TRIES):
        word = ld64(count_at)
        if (word >> 32) != 0:
            pause()
            continue
        _note(ctx, space, word, word_at, entry, -1)
        if cas64(count_at, word, word | me) != 0:
            at(ctx, Site.SPACE_LOCKED)
            return OK
        st64r(get(ctx, C_RECORD) + L_SPACE_CHANGE, 0)
    return _busy_space(ctx, word, space)


@jit
def child_unlink(ctx, space, word_at, entry):
    """End a child's life under the lock that `child_lock` took: entry out, hanging space NONE, generation
    bump, count.

    Notes
    -----
    Done by the holder of the lock, or by who recovers it; when the lock is no longer the lane's, it has
    been done.
    """
    count_at = node_at(ctx, space) + N_COUNT
    if (ld64(count_at) >> 32) != get(ctx, C_LANE) + 1:
        return
    cas64(word_at, entry, 0)
    at(ctx, Site.CHILD_REMOVED)
    end_life(node_at(ctx, entry & M32))
    at(ctx, Site.NODE_ENDED)
    space_unlock(ctx, space, max((pl64(get(ctx, C_RECORD) + L_SPACE_COUNT) & M31) - 1, 0))
