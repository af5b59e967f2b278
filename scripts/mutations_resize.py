"""More of the table of ``scripts/mutants.py``: what a resize needs."""

from __future__ import annotations

from scripts.mutant import RESIZE, Mutant

STILL = RESIZE + "test_nothing_moves_under_a_resizer"

MUTANTS = (
    # -- a resizer copies what stands still
    Mutant(
        "the look at `retired` of an event",
        "kernels/batch.py",
        (("    if is_retired(ctx):\n        finish(ctx)\n        return RETIRED\n", ""),),
        (STILL,),
    ),
    Mutant(
        "that of a sweep",
        "kernels/batch.py",
        (("    if is_retired(ctx):\n        finish(ctx)\n        return RETIRED, first\n", ""),),
        (STILL,),
    ),
    Mutant(
        "that of what was left for later",
        "kernels/batch.py",
        (("    if not is_retired(ctx):\n        work_todo(ctx)\n", "    work_todo(ctx)\n"),),
        (STILL,),
    ),
    Mutant(
        "that of a recovery",
        "kernels/recover.py",
        (("    if not is_retired(ctx):  #", "    if True:  #"),),
        (STILL,),
    ),
    Mutant(
        "that of a registration",
        "ranks.py",
        (
            (
                "                return EventStatus.SEGMENT_RETIRED\n            slot = self._find(rank)\n",
                "                pass\n            slot = self._find(rank)\n",
            ),
        ),
        (STILL,),
    ),
    Mutant(
        "that of a removal of a worker",
        "ranks.py",
        (
            (
                '            if self._segment.header["retired"]:\n                raise SegmentRetired(',
                "            if False:\n                raise SegmentRetired(",
            ),
        ),
        (STILL,),
    ),
    Mutant(
        "the wait for operations under way",
        "resize.py",
        (("        _come_to_rest(segment, patience)\n", ""),),
        (RESIZE + "test_beside_a_stopped_writer",),
    ),
    Mutant(
        "the lock without which a mark is void",
        "succession.py",
        (
            (
                "        if not file.try_lock(LOCK_SUCCESSION):\n            return False\n        # under",
                "        # under",
            ),
        ),
        (RESIZE + "test_a_stopped_resizer",),
    ),
)
