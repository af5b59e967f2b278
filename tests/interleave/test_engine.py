"""The explorer itself: rewritten kernels do what the compiled ones do, and it finds what there is to find."""

from __future__ import annotations

import ast
import ctypes
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from shmtrie.kernels import batch
from tests.interleave.explore import Explorer
from tests.interleave.memory import Image, StrayAccess, vector_operations
from tests.interleave.model import Model, open_world
from tests.interleave.process import Process, Run, Tree
from tests.interleave.schedule import longer, shorter
from tests.interleave.transform import ADD, FENCE, LOAD, PACKAGE, STORE, SWAP, Program

_MANY = "; ".join(f"S {rank} 1-4" for rank in range(1, 16))
#: What there is before, and the operation.
SAME = {
    "append": ("S 1 1-4; S 2 1-4", "S 1 1-4 + 5-20"),
    "new path": ("S 2 7", "S 1 1-5"),
    "split": ("S 1 1-6; S 2 1-6; S 2 1-6 + 7", "S 1 1-3 + 9"),
    "child": ("S 1 1-4; S 2 1-4; S 2 1-4 + 5; S 3 1-4; S 3 1-4 + 6", "S 1 1-4 + 7"),
    "words become a list": ("S 2 1-4; S 3 1-4; S 5 1-4", "S 1 1-4"),
    "words become an array": (_MANY, "S 16 1-4"),
    "split of an array": (_MANY + "; S 16 1-4", "S 16 1,2,9"),
    "own hashes": ("X 2 . + 1:801,2:802", "X 1 . + 1:901,2:902,3:903"),
    "split of own hashes": ("X 2 . + 1:801,2:802,3:803; X 1 . + 1:901,2:902,3:903", "X 1 #901 + 9:909"),
    "moved hash": ("X 1 . + 1:901,2:902; X 2 . + 1:901", "X 1 . + 7:902,8:908"),
    "removal of a tail": ("S 1 1-40; S 2 1-3", "R 1 1-40 @ 4-40"),
    "removal upward": ("S 1 1-3; S 2 1-3; S 1 1-3 + 4; S 2 1-3 + 5; R 2 1-3,5", "R 1 1-4"),
    "clear": ("S 1 1-6; S 2 1-6; S 2 1-3,9; S 1 7-9", "C 1"),
    "refused": ("S 1 1-4", "S 1 1-4 + 1,1"),
}


@pytest.mark.parametrize("name", SAME)
def test_rewritten_kernels_do_what_the_compiled_ones_do(name: str) -> None:
    """Word for word: the segment, the lane's tables, its scratch."""
    setup, script = SAME[name]
    with open_world(Model(setup, ("A " + script,))) as world:
        plan = world.processes()
        base = world.image()
        (process,) = plan(Program(set()))
        tree = Tree(process, base, lambda address, write: None)
        assert tree.root.op is None, "nothing is shared, so nothing is yielded"
        written = dict(tree.root.writes)
        assert written
        arguments = world.arguments(world.scripts[0][0])
        status = batch.apply_event(world.address(0), *arguments)
        assert tree.root.done == (status,)
        after = base.again()
        where = {arguments[5], arguments[6]}
        for address in after.differences(base) | written.keys():
            wanted = ctypes.c_int64.from_address(address).value
            got = written.get(address, base.word(address))
            assert got == wanted, f"{world.describe(address)}: {got:#x}, compiled {wanted:#x} ({where})"


def test_every_vector_operation_is_there() -> None:
    """And the names that the kernels know them by."""
    tree = ast.parse((PACKAGE / "vectors.py").read_text())
    names = {node.name for node in tree.body if isinstance(node, ast.FunctionDef) and node.decorator_list}
    assert names and names == vector_operations(set()).keys()


def test_a_stray_access_is_found() -> None:
    """Nothing outside of the regions can be read."""
    area = (ctypes.c_int64 * 4)()
    image = Image([(ctypes.addressof(area), 32)])
    assert image.word(ctypes.addressof(area) + 24) == 0
    for address in (ctypes.addressof(area) + 32, ctypes.addressof(area) - 8, ctypes.addressof(area) + 4, 0):
        with pytest.raises(StrayAccess):
            image.word(address)


def test_schedules_are_written_shortly() -> None:
    """And read again."""
    assert shorter("A A A B A2! X") == "A*3 B A2! X"
    assert longer("A*3 B A2! X") == ["A", "A", "A", "B", "A2!", "X"]


# -- litmus tests ---------------------------------------------------------------------------------
Body = Callable[[int, int], Run]


def outcomes(
    bodies: Sequence[Body],
    bound: int | None = None,
    tso: bool = False,
    deaths: int = 0,
    after: int | None = None,
) -> set[tuple[Any, ...]]:
    """What the processes return, and two words x and y at the end, over all schedules."""
    area = (ctypes.c_int64 * 2)()
    x = ctypes.addressof(area)
    found = set[tuple[Any, ...]]()

    def finish(done: list[Any], dead: int, content: dict[int, int]) -> None:
        found.add((*(d[-1] if d else None for d in done), content.get(x, 0), content.get(x + 8, 0)))

    def make(shared: set[int]) -> list[Process]:
        def start(body: Body) -> Callable[[Any], Run]:
            def run(m: Any) -> Run:
                result = yield from body(x, x + 8)
                yield (99, result)

            return run

        last = len(bodies) - 1
        return [
            Process("ABC"[k], start(body), after if k == last else None, mortal=deaths > 0 and k == 0)
            for k, body in enumerate(bodies)
        ]

    image = Image([(x, 16)])
    explorer = Explorer(image, make, (x, x + 16), lambda *_: None, finish, bound, deaths, tso)
    explorer.look_around(2)
    report = explorer.run()
    assert report.violation is None
    return found


def add_one(x: int, y: int) -> Run:
    """Not atomically."""
    value = yield (LOAD, x, 0, 0, "load")
    yield (STORE, x, value + 1, 0, "store")


def add_one_atomically(x: int, y: int) -> Run:
    """In one operation."""
    yield (ADD, x, 1, 0, "add")


def mine_then_yours(kind: int, fence: bool = False) -> list[Body]:
    """Each sets its own word, then reads the other's."""

    def one(x: int, y: int) -> Run:
        yield (kind, x, 1, 0, "mine")
        if fence:
            yield (FENCE, 0, 0, 0, "fence")
        return (yield (LOAD, y, 0, 0, "yours"))

    return [one, lambda x, y: one(y, x)]


def message() -> list[Body]:
    """A value, then a flag; the other reads the flag, then the value."""

    def write(x: int, y: int) -> Run:
        yield (STORE, x, 7, 0, "value")
        yield (STORE, y, 1, 0, "flag")

    def read(x: int, y: int) -> Run:
        flag = yield (LOAD, y, 0, 0, "flag")
        return flag, (yield (LOAD, x, 0, 0, "value"))

    return [write, read]


def test_a_lost_update_takes_one_preemption() -> None:
    """And is found with it, not without."""
    assert {end[2] for end in outcomes([add_one, add_one], bound=0)} == {2}
    assert {end[2] for end in outcomes([add_one, add_one], bound=1)} == {1, 2}
    assert {end[2] for end in outcomes([add_one_atomically] * 2)} == {2}


def test_store_buffers() -> None:
    """A load may overtake a store of its process, unless there is a fence, or the store is an exchange."""
    assert (0, 0) not in {end[:2] for end in outcomes(mine_then_yours(STORE))}
    assert (0, 0) in {end[:2] for end in outcomes(mine_then_yours(STORE), tso=True)}
    assert (0, 0) not in {end[:2] for end in outcomes(mine_then_yours(STORE, fence=True), tso=True)}
    assert (0, 0) not in {end[:2] for end in outcomes(mine_then_yours(SWAP), tso=True)}


def test_stores_stay_in_order() -> None:
    """Who sees the flag sees the value."""
    for tso in (False, True):
        seen = {end[1] for end in outcomes(message(), tso=tso)}
        assert seen == {(0, 0), (0, 7), (1, 7)}


def test_deaths() -> None:
    """Between any two operations, and the recoverer begins only then."""

    def two(x: int, y: int) -> Run:
        yield (STORE, x, 1, 0, "x")
        yield (STORE, y, 1, 0, "y")

    def recoverer(x: int, y: int) -> Run:
        return (yield (LOAD, x, 0, 0, "x")), (yield (LOAD, y, 0, 0, "y"))

    for tso in (False, True):
        ends = outcomes([two, recoverer], tso=tso, deaths=1, after=0)
        assert {end[1] for end in ends} == {None, (1, 0)}
