"""More of the table of ``scripts/mutants.py``: what deaths need, and what exact holes need."""

from __future__ import annotations

from scripts.mutant import CONTROLS, DEATHS, HOLES, LAPSE, Mutant

MUTANTS = (
    # -- commits and roll back
    Mutant(
        "own words are set deepest first",
        "kernels/prepare.py",
        (
            (
                "    k = get(ctx, C_N_TOUCHED) - 1\n    while k >= 0:\n",
                "    k = 0\n    while k < get(ctx, C_N_TOUCHED):\n",
            ),
            ("        k -= 1\n", "        k += 1\n"),
        ),
        (CONTROLS + "test_a_store_over_several_nodes_comes_as_a_whole",),
    ),
    Mutant(
        "the turn of several spans is taken back",
        "kernels/spans.py",
        (("turn_span(ctx, first + turned, SPAN_TAIL, 1)", "turn_span(ctx, first + turned, SPAN_TAIL, 0)"),),
        ("crash/test_sweep.py::test_deaths_where_arrays_are_extents_of_several_spans",),
    ),
    Mutant(
        "newest first is taken back",
        "kernels/transaction.py",
        (
            (
                "    n = listed(r, UNDO, pl64(r + L_NUNDO))\n    while n > 0:\n",
                "    n = listed(r, UNDO, pl64(r + L_NUNDO))\n    total = n\n    while n > 0:\n",
            ),
            ("        e = undo_entry(ctx, r, n - 1)\n", "        e = undo_entry(ctx, r, total - n)\n"),
        ),
        ("interleave/test_interleave.py::test_nothing_is_wrong[taken back, extent in use again / reader]",),
    ),
    # -- recovery
    Mutant(
        "a suffix without a parent is not counted",
        "kernels/adopt.py",
        (("if low != 0 and (space == 0 or space_owner(ctx, space) != 0):", "if low != 0:"),),
        (LAPSE + "[blocks beside a split that stopped]",),
    ),
    Mutant(
        "the hashes of a rank go behind its word",
        "kernels/remove.py",
        (
            (
                "        log_word(ctx, slot, word_at, wide, low, new)\n",
                "        if new == 0 and (low & COV_ALIAS) != 0:\n"
                "            alias_drop(ctx, a, slot)\n"
                "        log_word(ctx, slot, word_at, wide, low, new)\n",
            ),
        ),
        (LAPSE + "[details while an alias goes]",),
    ),
    Mutant(
        "who is in the way of an operation stays named",
        "kernels/reclaim.py",
        (("    put(ctx, C_BUSY_LANE, lane)\n", ""),),
        (LAPSE + "[busy names who is in the way]",),
    ),
    Mutant(
        "tails that others have made since are theirs",
        "kernels/spans.py",
        (
            (
                "    while n < spans and (ld64(span_word_at(ctx, span + n)) & 0xFFFF) == SPAN_TAIL:\n",
                "    while n < spans:\n",
            ),
        ),
        (LAPSE + "[an extent of three spans]",),
    ),
    Mutant(
        "old slots are dated anew",
        "kernels/registry.py",
        (("    if (epoch & REDATED) == 0:\n", "    if epoch < 0:\n"),),
        (LAPSE + "[slots older than an age can be]",),
    ),
    Mutant(
        "dead lanes are looked for before a table is full",
        "lanework.py",
        (("= 1 - self._recovery.recover_dead()", "= 1"),),
        (LAPSE + "[what a dead lane has reserved]",),
    ),
    Mutant(
        "a recovered lane's list is taken over",
        "recovery.py",
        (("batch.take_todo(self._heir.address, context.address)\n", "pass\n"),),
        (LAPSE + "[the list of a dead lane]",),
    ),
    Mutant(
        "a space lock is settled by the entry",
        "kernels/recover.py",
        (("            n += 1 if is_in else 0\n", "            n += 1\n"),),
        (DEATHS + "[another child]", DEATHS + "[new chain]"),
    ),
    # -- exact holes
    Mutant(
        "a run ends where the rank begins",
        "kernels/holes.py",
        (("lo - start > word_begin(low):", "lo > start:"),),
        (HOLES + "test_a_hash_that_has_left_an_alias_extent",),
    ),
    Mutant(
        "a word that begins behind the end covers nothing",
        "kernels/prepare.py",
        (("            if begin >= have:\n", "            if begin < 0:\n"),),
        ("unit/test_differential.py::test_streams", "concurrency/test_random.py"),
    ),
    Mutant(
        "an empty node is one that nobody covers from its beginning",
        "kernels/coverage.py",
        (
            (
                "            w = ld64(a + N_INLINE + k * 8)\n            if word_begin(w) < length:\n",
                "            w = ld64(a + N_INLINE + k * 8)\n            if length > 0:\n",
            ),
        ),
        (HOLES + "test_a_block_in_the_middle", "unit/test_differential.py::test_streams"),
    ),
    Mutant(
        "a place that others of the lane do not cover is forgotten",
        "kernels/resolve.py",
        (
            (
                "            if cov_mine_covers(ctx, a, slot, p) == 0:\n",
                "            if cov_mine_covers(ctx, a, slot, p) < 0:\n",
            ),
        ),
        ("system/test_holes.py",),
    ),
)
