"""The models, and what is taken out of the kernels to see that each of them finds something."""

from __future__ import annotations

from typing import NamedTuple

from scripts import mutations, mutations_deaths
from shmtrie.kernels import context as c
from shmtrie.kernels.extents import CLASS_WORDS
from shmtrie.layout import CLASS_SIZES, M32, N_COVERAGE, NODE_BYTES, SPAN_BYTES, SPAN_CONVERTING, SPAN_LINES
from tests.interleave.model import Model, World
from tests.interleave.transform import Edit


def known(name: str) -> tuple[Edit, ...]:
    """The edits of a mutant of ``scripts/mutants.py``."""
    table = (*mutations.MUTANTS, *mutations_deaths.MUTANTS)
    (mutant,) = [mutant for mutant in table if mutant.name == name]
    return (*((mutant.file, old, new) for old, new in mutant.edits), *mutant.also)


class Case(NamedTuple):
    """A model and its negative controls: what is taken out, by name."""

    model: Model
    controls: dict[str, tuple[Edit, ...]]


_LOOK = (
    "                or ld64(parent + N_TAIL) != parent_tail\n"
    "                or lshr(ld64(parent + N_VERSION), 32) != parent_generation\n"
)
_PUBLISHED = "    at(ctx, Site.TAIL_PUBLISHED)\n    bump(a)\n"
_MOVED = "        at(ctx, Site.EDGE_PUBLISHED)\n        bump(a)\n"
NO_TAIL_BUMP: Edit = ("kernels/edges.py", _PUBLISHED, "    at(ctx, Site.TAIL_PUBLISHED)\n")
NO_EDGE_BUMP: Edit = ("kernels/edges.py", _MOVED, "        at(ctx, Site.EDGE_PUBLISHED)\n")
NO_PARENT_LOOK: Edit = (
    "kernels/walk.py",
    _LOOK + "            ):\n                torn = 1\n            next",
    "            ):\n                torn = 1\n            next",
)
_UNLINK = "    log_redo(ctx, LOG_UNLINK, word_at, entry, space)\n"
_FREE = "    log_redo(ctx, LOG_FREE, claim_at, claim, 0)\n"
FREED_FIRST: tuple[Edit, ...] = (
    ("kernels/reclaim.py", _UNLINK + "    free_later", "    free_later"),
    ("kernels/reclaim.py", _FREE, _FREE + _UNLINK),
)
NO_PUSH: Edit = (
    "kernels/protocol.py",
    "        and64(a, ~OWNER_MASK)\n        push_todo(ctx, node)\n",
    "        and64(a, ~OWNER_MASK)\n",
)
_DROPPED = "    st64r(r + L_NUNDO, 0)\n    st64r(r + L_NREDO, 0)\n    st64r(r + L_REDO_AT, 0)\n"
UNDO_DROPPED_LATE: tuple[Edit, ...] = (
    ("kernels/transaction.py", _DROPPED, _DROPPED.partition("\n")[2]),
    (
        "kernels/transaction.py",
        "    redo_all(ctx)\n    _set_phase(ctx, PHASE_UNDO)\n",
        "    redo_all(ctx)\n    _set_phase(ctx, PHASE_UNDO)\n    st64r(get(ctx, C_RECORD) + L_NUNDO, 0)\n",
    ),
)
_POP = "        n -= 1\n        st64r(r + L_NUNDO, n)\n"
POPPED_FIRST: tuple[Edit, ...] = (
    ("kernels/transaction.py", _POP, ""),
    (
        "kernels/transaction.py",
        "        if e != 0:\n            word = ld64(e)\n",
        _POP + "        if e != 0:\n            word = ld64(e)\n",
    ),
)
NO_LOOK_OF_CLAIMER: Edit = (
    "kernels/spans.py",
    "    if ld64(word_at) != word:",
    "    if ld64(word_at) == -1:",
)
NO_LOOK_OF_TURNER: Edit = ("kernels/spans.py", "    if claimed != 0:\n", "    if claimed < 0:\n")
COPIES_ALL: Edit = (
    "kernels/forms.py",
    "        if (w & M12) > cut and slot_is_active(ctx, lshr(w, COV_SLOT)):\n",
    "        if (w & M12) > cut:\n",
)
NO_FENCE_OF_UNLINK: Edit = (
    "kernels/transaction.py",
    "            fence_full()\n            owner = space_owner(ctx, new)\n",
    "            owner = space_owner(ctx, new)\n",
)
MARKED_LATE: tuple[Edit, ...] = (
    (
        "kernels/registry.py",
        "    st64s(state_at(ctx, slot), (state & ~0xFF) | SLOT_DYING)\n",
        "    st64(state_at(ctx, slot), (state & ~0xFF) | SLOT_DYING)\n",
    ),
    (
        "kernels/registry.py",
        "    st64s(epoch_at, (epoch << EPOCH) | dying)\n",
        "    st64(epoch_at, (epoch << EPOCH) | dying)\n",
    ),
    (
        "kernels/registry.py",
        "    # the caller looks at the operation counters next, by plain loads\n    fence_full()\n",
        "",
    ),
)
ANY_GENERATION: Edit = (
    "kernels/children.py",
    "    return node if lshr(ld64a(node_at(ctx, node) + N_VERSION), 32) == lshr(link, 32) else 0\n",
    "    return node\n",
)
DEAD_HASHES: Edit = (
    "kernels/places.py",
    "        if is_dead(a):\n            return GONE, 0\n        begin, end",
    "        begin, end",
)
#: Taken out alone they change nothing that a model shows. The bumps of an extension stand in for one another,
#: and so do the chain of a sweep and a split's look at the slots: without both of a pair its model fails. The
#: look at a link's generation bounds the work, see `CYCLE`. Of the look at dead nodes in `hash_at` the models
#: say nothing: none of them fails without `is_dead` altogether (tests/concurrency/test_found.py does).
ALONE: dict[str, tuple[Edit, ...]] = {
    "the bump of a longer tail": (NO_TAIL_BUMP,),
    "the bump of a moved edge": (NO_EDGE_BUMP,),
    "a split leaves out slots that are dying": (COPIES_ALL,),
    "a suffix link looks at the generation": (ANY_GENERATION,),
    "no hash of a dead node": (DEAD_HASHES,),
}
#: Suffix links of earlier lives lead in a circle: node 1 -> x -> g -> x; g was a suffix of node 1 and is
#: [21-24] now, whose suffix was x before. An entry of the lookup that no rank needs sends the store there.
CYCLE = Model(
    "S 4 1-6; S 1 1-4; S 1 1-4 + 9; W 4; S 2 21-26; S 5 21-26; S 2 21-24 + 29; R 2 21-26 @ 5,6;"
    "R 5 21-26 @ 5,6; S 2 1,2,8",
    ("A S 1 1-5 + 7",),
)


def _hint(world: World) -> None:
    """Lane B has seen the line of node 1's coverage list free: it is the first that it tries."""
    (node,) = [k for k in range(1, 30) if world.word(k * NODE_BYTES + N_COVERAGE, "nodes")]
    line = world.word(node * NODE_BYTES + N_COVERAGE, "nodes") & M32
    world.push_hint(1, 1, line)


def _cursor(world: World) -> None:
    """Lane B looks for spans at the one that lane A has hints of."""
    context = world.writers[1]._work.context
    context.words[c.C_SPAN_CURSOR] = 1
    hints = context.get(c.C_LINE_HINTS)
    for index in range(3, 5):
        world.clear_hints(1, index)
    assert hints and CLASS_WORDS


def _same_extent(world: World) -> None:
    """Lanes A and B try the same extent of two lines first."""
    n = world.segment.section_count("spans")
    (span,) = [k for k in range(n) if world.word(k * SPAN_BYTES, "spans") % (1 << SPAN_CONVERTING) == 2]
    for lane in range(2):
        world.push_hint(lane, list(CLASS_SIZES).index(2), 1 + span * SPAN_LINES)


_PAIR = "S 1 1-4; S 2 1-4"
_TRIO = _PAIR + "; S 3 1-4"
_INNER = _TRIO + "; S 3 1-4 + 9; S 2 1-4 + 8"  # [1-4] with two children
_LIST = "; ".join(f"S {rank} 1-4" for rank in range(1, 23, 3))  # the list of words is full

CASES: dict[str, Case] = {
    "append / reader": Case(
        Model("S 1 1-2; S 4 1-4", ("A R 4 1-4 @ 3,4; S 1 1-2 + 8,9", "? 1-4"), bound=None),
        {"bumps of a dropped tail and of the next one": known("bumps of a dropped tail and of the next one")},
    ),
    "longer edge, old extent in use again / reader": Case(
        Model(_PAIR + "; S 3 11-14", ("A S 1 1-4 + 5,6; S 1 21-24", "? 1-6")),
        {"both bumps of an extension": (NO_TAIL_BUMP, NO_EDGE_BUMP)},
    ),
    "another form / reader": Case(
        Model(_LIST, ("A S 25 1-4; S 28 51-54", "? 1-4")), {"bump": known("bump after another form")}
    ),
    "store over several nodes / reader": Case(
        Model("S 2 1-6; S 3 1-3,9; S 3 1-3,9 + 8", ("A S 1 1-6", "? 1-6"), bound=None),
        {"deepest first": known("own words are set deepest first")},
    ),
    "split / reader": Case(
        Model("S 1 1-6; S 2 1-6", ("A S 1 1-3 + 9; S 4 31-34", "? 1-6")), {"bumps": known("bumps of a split")}
    ),
    "unlink, id in use again / reader": Case(
        Model("S 3 1,2; S 3 1,4; S 6 1", ("C R 3 1,2 @ 2; S 6 1,5", "? 1,2"), bound=None),
        {
            "generation": known("a life that ends has another generation"),
            "version": known("a reader looks at the version again"),
        },
    ),
    "parent in use again / reader": Case(
        Model(
            "S 1 1,2,4; S 4 1,2,3",
            (
                "A R 4 1,2,3; R 1 1,2,4; S 1 7,8,5; S 1 7,8,3; R 1 7,8,3; R 1 7,8,5; S 1 7,8,5; S 1 7,8,3",
                "? 1-3",
            ),
        ),
        {"look at the parent": (NO_PARENT_LOOK,)},
    ),
    "reclaim, list in use again / reader": Case(
        Model(
            "; ".join(f"S {r} 11-14" for r in (1, 4, 7, 10))
            + "; "
            + "; ".join(f"R {r} 11-14" for r in (4, 7, 10)),
            ("A R 1 11-14", f"B X 2 . + {(1 << 32) + (1 << 31) + 4}:77", "? 11-14"),
            prepare=_hint,
        ),
        {"the end of a life before the free": FREED_FIRST},
    ),
    "gate: own word / growth": Case(
        Model(_INNER, ("A R 1 1-4 @ 3,4", "B S 5 1-4")),
        {"drain": known("an owner waits for those who share the gate")},
    ),
    "child insert / child insert": Case(
        Model(_TRIO + "; S 3 1-4 + 5; S 2 1-4 + 6", ("A S 1 1-4 + 7", "B S 2 1-4 + 7"), bound=1),
        {"look under the lock": known("a child is looked for under the space lock")},
    ),
    "split / removal": Case(
        Model("S 1 1-6; S 2 1-6", ("A S 1 1-3 + 9", "B R 2 1-6 @ 5,6")),
        {"link before the tail": known("suffix link before the tail")},
    ),
    "split / clear": Case(
        Model("S 1 1-6; S 2 1-6", ("A C 1", "B S 2 1-3 + 9")),
        {
            "chain behind the cut": known("a sweep reads the chain behind the cut"),
            "chain": known("a sweep follows suffixes"),
        },
    ),
    "last one out": Case(
        Model(
            "S 1 1-4; S 2 1-4; S 1 1-4 + 5; S 2 1-4 + 6; R 2 1-4,6 @ 5; R 1 1-4",
            ("A R 1 1-5 @ 5; S 1 1,2,9", "B R 2 1-4"),
        ),
        {
            "push on withdrawal": (NO_PUSH,),
            "test at the release": known("who lets a gate go tests the node"),
        },
    ),
    "span: claim / turn": Case(
        Model(
            "S 1 31-38; S 2 31-38; R 1 31-38; R 2 31-38; S 3 11; S 2 12",
            ("A S 1 41-48", "B S 2 51-62"),
            prepare=_cursor,
            bound=1,
        ),
        {"look of the claimer": (NO_LOOK_OF_CLAIMER,), "look of the turner": (NO_LOOK_OF_TURNER,)},
    ),
    "removal of a worker / store": Case(
        Model(_PAIR, ("A S 1 1-4 + 5,6", "B W 1")),
        {"look at the slot": known("an operation looks at its slot")},
    ),
    # the suffix gets an id that the sweep is past
    "removal of a worker / split": Case(
        Model("S 1 21; S 1 1-6; S 2 1-6; S 3 1-6; R 1 21", ("A S 1 1-3 + 9", "B W 3")),
        {"chain, or slots that are dying": (COPIES_ALL, *known("a sweep follows suffixes"))},
    ),
    "removal of a worker / store, store buffers": Case(
        Model("S 1 1-4", ("A S 1 7,8", "B W 1"), tso=True), {"stores of the mark": MARKED_LATE}
    ),
    "last child / split, store buffers": Case(
        Model(
            "S 1 1-6; S 3 1-6; S 1 1-6 + 7; S 3 1-6 + 8; S 2 1-3; R 3 1-6,8; R 1 1-6",
            ("A R 1 1-7 @ 7", "B S 2 1-3 + 9"),
            tso=True,
            bound=1,
        ),
        {"fence of the unlinker": (NO_FENCE_OF_UNLINK,)},
    ),
    "death and recovery": Case(
        Model(_PAIR, ("A S 1 1-2 + 5,6", "!A"), deaths=1), {"undo list dropped late": UNDO_DROPPED_LATE}
    ),
    "death / reader": Case(
        Model(_PAIR, ("A S 1 1-2 + 5,6", "!A", "? 1,2,5,6"), deaths=1, bound=0),
        {"undo list dropped late": UNDO_DROPPED_LATE},
    ),
    "gate and death": Case(
        Model(_PAIR, ("A S 1 1-4 + 5,6", "!A", "B S 2 1-2 + 7"), deaths=1, bound=0),
        {"undo list dropped late": UNDO_DROPPED_LATE},
    ),
    "taken back, extent in use again / reader": Case(
        Model(
            _PAIR + "; S 3 11-18; R 3 11-18",
            ("A S 1 1-4 + 5,6", "!A", "!!A", "B S 5 51-58", "? 1-4"),
            deaths=2,
            bound=0,
            dying=("edges", "transaction"),
            prepare=_same_extent,
        ),
        {"newest first": known("newest first is taken back")},
    ),
    "two recoverers": Case(
        Model(_INNER, ("A S 1 1-4 + 5,6", "!A", "!!A"), deaths=2, bound=0),
        {
            "entry, then its end": POPPED_FIRST,
            "settled by the entry": known("a space lock is settled by the entry"),
        },
    ),
    "join and recover": Case(
        Model(
            _INNER,
            ("A S 1 1-4 + 5,6", "+A S 1 1-4 + 7", "B S 2 1-4 + 5,6"),
            deaths=1,
            bound=0,
            dying=("spaces", "transaction"),
        ),
        {
            "settled by the entry": known("a space lock is settled by the entry"),
        },
    ),
}
