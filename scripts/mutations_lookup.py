"""Mechanisms of the lane's private lookups, for ``mutants.py``."""

from __future__ import annotations

from scripts.mutant import LOOKUP, Mutant

MUTANTS = (
    Mutant(
        "an entry far from its line is looked at",
        "kernels/lookup.py",
        (("        if away == AWAY:\n", "        if away < 0:\n"),),
        (LOOKUP + "test_entries_far_from_their_line",),
    ),
    Mutant(
        "a rank that leaves leaves entries behind",
        "contexts.py",
        (("        self.words[c.C_STALE] += 1  # entries", "        self.words[c.C_STALE] += 0  # entries"),),
        (LOOKUP + "test_growth_after_a_rank_has_left",),
    ),
    Mutant(
        "aliases of a rank that leaves are not moved",
        "kernels/alias_lookup.py",
        ((" or ld32(get(ctx, C_MINE) + slot * 4) == 0:", " or ld32(get(ctx, C_MINE) + slot * 4) < 0:"),),
        (LOOKUP + "test_growth_of_aliases_after_a_rank_has_left",),
    ),
    Mutant(
        "a plan has room for its aliases",
        "kernels/alias_room.py",
        (("    if n == 0 or _alias_needs", "    if n >= 0 or _alias_needs"),),
        (LOOKUP + "test_a_rename_enters_all_that_the_rank_covers",),
    ),
    Mutant(
        "entries of a line are carried where they fit",
        "kernels/lookup.py",
        (("    if used + n > 8:\n", "    if used + n > 16:\n"),),
        (LOOKUP + "test_entries_far_from_their_line",),
    ),
    Mutant(
        "what a store cuts off is not entered",
        "kernels/store.py",
        (("        if get(ctx, C_N_CUTS) != 0:  # one", "        if get(ctx, C_N_CUTS) < 0:  # one"),),
        (LOOKUP + "test_a_hash_that_moves_within_its_node_leaves_no_entry",),
    ),
)
