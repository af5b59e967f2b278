"""The table of ``scripts/mutants.py``: a safety mechanism of the kernels each, taken out or weakened, and the
tests that fail without it.
"""

from __future__ import annotations

from scripts.mutant import CLEAR, CONTROLS, MOMENT, READERS, REMOVALS, STORES, Mutant

_NO_TAIL_BUMP = "    st64r(a + N_TAIL, new)\n    at(ctx, Site.TAIL_PUBLISHED)\n"
_LINK = (
    "        log_redo(ctx, LOG_CAS64, a + N_SUFFIX, link, "
    "suffix | (lshr(ld64(b + N_VERSION), 32) << 32)) != OK\n"
)
_LINK_AFTER = "        or " + _LINK.lstrip()
_TAIL = "log_redo(ctx, LOG_CAS64, a + N_TAIL, tail, depth | INTERNAL | (space << 32)) != OK\n"
_BUMP_LOGGED = "        or log_redo(ctx, LOG_BUMP, a, 0, 0) != OK\n"

MUTANTS = (
    # -- publications and versions
    Mutant(
        # one of the two would do: the reader looks at the tail as well
        "bumps of a dropped tail and of the next one",
        "kernels/edges.py",
        ((_NO_TAIL_BUMP + "    bump(a)\n", _NO_TAIL_BUMP),),
        (MOMENT + "[another tail of the same length]",),
        also=(
            (
                "kernels/reclaim.py",
                "    log_redo(ctx, LOG_BUMP, a, 0, 0)\n    edge = ld64",
                "    edge = ld64",
            ),
        ),
    ),
    Mutant(
        "bump after another form",
        "kernels/forms.py",
        (("    at(ctx, Site.HEAD_PUBLISHED)\n    bump(a)\n", "    at(ctx, Site.HEAD_PUBLISHED)\n"),),
        (MOMENT,),
    ),
    Mutant(
        "bumps of a split",
        "kernels/split.py",
        (
            (
                _BUMP_LOGGED + "        or log_redo(ctx, LOG_CAS64, owner_at",
                "        or log_redo(ctx, LOG_CAS64, owner_at",
            ),
            (
                _BUMP_LOGGED.replace("        or", "            or") + "            or free_later",
                "            or free_later",
            ),
        ),
        (READERS + "[split and use of the old extent]",),
    ),
    Mutant(
        "bump after the shorter edge of a split",
        "kernels/split.py",
        (
            (
                _BUMP_LOGGED.replace("        or", "            or") + "            or free_later",
                "            or free_later",
            ),
        ),
        (CONTROLS + "test_a_reader_that_begins_in_the_middle_of_a_split",),
    ),
    Mutant(
        "suffix link before the tail",
        "kernels/split.py",
        ((_LINK + "        or " + _TAIL, _TAIL.replace("log_redo", "        log_redo", 1) + _LINK_AFTER),),
        (
            REMOVALS + "test_r9_a_split_and_a_removal_of_what_it_moves",
            STORES + "test_r3_suffix_reuse_and_a_diverging_split",
        ),
    ),
    # -- plans and gates
    Mutant(
        "a plan is checked under the gate",
        "kernels/prepare.py",
        (("        if (flags & VERIFIED) == 0 and (\n", "        if flags < 0 and (\n"),),
        (
            STORES + "test_r4_a_plan_from_before_a_split",
            STORES + "test_r6_the_leaf_grows_and_a_deeper_child_begins_alike",
        ),
    ),
    Mutant(
        "a planned split is checked under the gate",
        "kernels/prepare.py",
        (
            (
                "ld64(a + N_VERSION) != row_get(ctx, last, T_VERSION)"
                " or ld64(a + N_TAIL) != row_get(ctx, last, T_TAIL):",
                "ld64(a + N_VERSION) < 0:",
            ),
        ),
        (
            CONTROLS + "test_a_planned_split_of_what_has_been_split",
            CONTROLS + "test_a_planned_split_of_a_node_that_is_another_one",
        ),
    ),
    Mutant(
        "an owner waits for those who share the gate",
        "kernels/protocol.py",
        (("            if others == 0:\n", "            if others >= 0:\n"),),
        (STORES + "test_r8_a_promotion_and_a_split",),
    ),
    Mutant(
        "an own word is entered by CAS",
        "kernels/coverage.py",
        (("    if cas64(word_at, 0, w) != 0:\n", "    if cas64(word_at, ld64(word_at), w) != 0:\n"),),
        (STORES + "test_r20_words_of_one_node_in_every_form",),
    ),
    Mutant(
        "a child is looked for under the space lock",
        "kernels/spaces.py",
        (("        if child_find(ctx, space, depth, local) == 0:\n", "        if depth >= 0:\n"),),
        (STORES + "test_r7_one_child_key",),
    ),
    # -- places
    Mutant(
        "a place is looked up again",
        "kernels/places.py",
        (
            (
                "    for _ in range(READS):\n        depth = (ld64(node_at(ctx, stale)",
                "    for _ in range(1):\n        depth = (ld64(node_at(ctx, stale)",
            ),
        ),
        (
            REMOVALS + "test_a_removal_finds_what_a_split_takes_away",
            REMOVALS + "test_a_parent_that_a_split_takes_away_is_found",
        ),
    ),
    Mutant(
        "a dead node has no places",
        "kernels/places.py",
        (("    return lshr(ld64a(a + N_START), 32) == NO_SPACE\n", "    return ld64a(a + N_START) == -1\n"),),
        ("concurrency/test_found.py", REMOVALS + "test_r16_a_parent_whose_node_is_gone"),
    ),
    Mutant(
        "the parent is judged again",
        "kernels/cuts.py",
        (
            (
                "            if is_above(ctx, node, depth, parent, above_depth) != 0:\n",
                "            if is_above(ctx, node, depth, parent, above_depth) < 0:\n",
            ),
        ),
        (CONTROLS + "test_a_moved_hash_above_a_parent_that_is_not_gated",),
    ),
    # -- removal and reclaim
    Mutant(
        "a sweep reads the chain behind the cut",
        "kernels/remove.py",
        (
            (
                "            low = own_word(ctx, b, slot)\n            at(ctx, Site.SWEEP_CUT)\n",
                "            low = own_word(ctx, b, slot)\n"
                "            beyond = reached_suffix(ctx, b, low)\n"
                "            at(ctx, Site.SWEEP_CUT)\n",
            ),
            ("            link = reached_suffix(ctx, b, low)\n", "            link = beyond\n"),
        ),
        (CLEAR + "test_r21_a_clear_reaches_suffixes", CLEAR + "test_r21_a_clear_and_two_splits_of_one_node"),
    ),
    Mutant(
        "a sweep follows suffixes",
        "kernels/remove.py",
        (("        while link != 0 and hops < HOPS:\n", "        while link != 0 and hops < 1:\n"),),
        (
            CLEAR + "test_r21_a_clear_reaches_suffixes",
            CONTROLS + "test_a_clear_follows_suffixes_that_are_new",
        ),
    ),
    Mutant(
        "a sweep follows suffixes with new ids",
        "kernels/remove.py",
        (
            (
                "        while link != 0 and hops < HOPS:\n",
                "        while link != 0 and link < high and hops < HOPS:\n",
            ),
        ),
        (CONTROLS + "test_a_clear_follows_suffixes_that_are_new",),
    ),
    Mutant(
        "who lets a gate go tests the node",
        "kernels/transaction.py",
        (("        if needs_test(ctx, node) != 0:\n", "        if needs_test(ctx, node) < 0:\n"),),
        (
            REMOVALS + "test_r17_a_removal_after_a_split_and_the_end_of_its_children",
            REMOVALS + "test_two_last_holders_leave_at_once",
        ),
    ),
    Mutant(
        "the parent of a reclaimed node is tried next",
        "kernels/transaction.py",
        (("            if owner != 0:\n", "            if owner < 0:\n"),),
        (REMOVALS + "test_a_chain_of_empty_parents_goes_upward",),
    ),
    Mutant(
        "a life that ends has another generation",
        "kernels/spaces.py",
        (
            (
                "    st64r(a + N_START, NO_SPACE << 32)\n    bump_generation(a)\n",
                "    st64r(a + N_START, NO_SPACE << 32)\n",
            ),
        ),
        (MOMENT + "[another child of the same id]",),
    ),
    Mutant(
        "an operation looks at its slot",
        "kernels/batch.py",
        (
            (
                "        (state & 0xFF) != SLOT_ACTIVE\n"
                "        or slot_generation(state) != generation\n"
                "        or slot_owner(state)",
                "        state < 0\n"
                "        and slot_generation(state) != generation\n"
                "        and slot_owner(state)",
            ),
        ),
        (
            CLEAR + "test_a_removal_beside_its_ranks_own_lane",
            CLEAR + "test_r26_a_slot_that_goes_to_another_rank",
        ),
    ),
    Mutant(
        "a removal waits for the other lanes",
        "ranks.py",
        (("        while waiting:\n", "        while waiting is None:\n"),),
        (
            CLEAR + "test_r26_a_slot_that_goes_to_another_rank",
            CLEAR + "test_a_removal_beside_its_ranks_own_lane",
        ),
    ),
    Mutant(
        "a lane forgets slots that others have",
        "kernels/registry.py",
        (("    if epoch == get(ctx, C_EPOCH_SEEN):\n", "    if epoch >= 0:\n"),),
        (CONTROLS + "test_a_slot_that_another_lane_has_by_now",),
    ),
    Mutant(
        "a commit makes a rank known",
        "kernels/prepare.py",
        (("    if ld32(known_at) == 0 and log_redo", "    if ld32(known_at) < 0 and log_redo"),),
        (REMOVALS + "test_r27_the_last_node_goes_and_comes",),
    ),
    # -- readers
    Mutant(
        "a reader looks at the version again",
        "kernels/walk.py",
        (
            (
                "                ld64(a + N_VERSION) != version\n                or ld64(a + N_TAIL)",
                "                ld64(a + N_TAIL)",
            ),
        ),
        (READERS, MOMENT),
    ),
    Mutant(
        "a reader looks at the parent again",
        "kernels/walk.py",
        (
            (
                "                or ld64(a + N_TAIL) != tail\n"
                "                or ld64(parent + N_TAIL) != parent_tail\n"
                "                or lshr(ld64(parent + N_VERSION), 32) != parent_generation\n",
                "                or ld64(a + N_TAIL) != tail\n",
            ),
            # ... and when a node was torn, before it is read again
            (
                "            elif (\n                ld64(parent + N_TAIL) != parent_tail\n",
                "            elif start < 0 and (\n                ld64(parent + N_TAIL) != parent_tail\n",
            ),
        ),
        (MOMENT + "[another parent in the same place]",),
    ),
    Mutant(
        "no verdict on words that are torn",
        "kernels/walk.py",
        (
            (
                "                if ld64(a + N_VERSION) != version:\n                    torn = 1\n",
                "                if version == -1:\n                    torn = 1\n",
            ),
        ),
        (
            READERS,
            MOMENT,
        ),
    ),
    Mutant(
        "a query hides ranks that are removed",
        "kernels/find.py",
        (
            (
                "    if ld64(get(ctx, C_HEADER_EPOCH)) != epoch or (epoch & 0xFFFF) != 0:\n",
                "    if epoch == -1:\n",
            ),
        ),
        (CLEAR + "test_a_removal_beside_its_ranks_own_lane",),
    ),
    Mutant(
        "a query tests slots when one was assigned meanwhile",
        "kernels/find.py",
        (("    if ld64(get(ctx, C_HEADER_EPOCH)) != epoch or (epoch", "    if (epoch"),),
        (READERS + "[removal of a worker]",),
    ),
    Mutant(
        "a query leaves out slots that are younger than itself",
        "kernels/find.py",
        (("SLOT_ACTIVE and age < (1 << 31)\n", "SLOT_ACTIVE and age >= 0\n"),),
        (READERS + "[removal of a worker]",),
    ),
)
