"""`recover`: dead lanes are settled, their ranks go on elsewhere, living and stopped ones are left alone."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import pytest

from shmtrie import cli
from shmtrie.capacity import Capacity
from shmtrie.errors import RankOwnedElsewhere
from shmtrie.index import Index
from shmtrie.lanes import registry_lock
from shmtrie.layout import PHASE_IDLE, SLOT_ACTIVE, SLOT_DYING
from tests.hooks import die
from tests.system.children import CLONE_NEWPID, Child, unshare
from tests.system.doomed import ROOT, Doomed
from tests.system.index_tools import assert_valid, open_index, scores


@pytest.fixture
def index() -> Iterator[Index]:
    """A small index that ends valid."""
    with open_index(Capacity(blocks=2_000, workers=8, lanes=6)) as made:
        yield made
        assert_valid(made)


def writes(index: Index, worker: int) -> Callable[[Connection], None]:
    """Body of a writer that stores for a rank, and waits to be killed."""

    def body(connection: Connection) -> None:
        with Index.attach(index.name, read_only=False) as own, own.writer() as writer:
            writer.store(worker, None, [1, 2, worker], [1, 2, worker])
            connection.send(writer.lane)
            connection.recv()
            writer.store(worker, worker, [7], [worker + 1_000])
            connection.send("stored")
            connection.recv()

    return body


def owners(index: Index) -> dict[int, int]:
    """The lane of each worker's rank."""
    return {info.worker.worker_id: info.lane for info in index.workers()}


def test_nothing_to_do(index: Index) -> None:
    report = index.recover()
    assert report.ok and report.lanes == [] and report.unsettled == [] and not report.resize_cleared
    with index.writer() as writer:
        writer.store(1, None, [1], [1])
        (outcome,) = index.recover().lanes
        assert (outcome.lane, outcome.state, outcome.pid) == (writer.lane, "alive", os.getpid())
        writer.store(1, 1, [2], [2])


def test_killed_writers(index: Index) -> None:
    """Their ranks stay, and are the next lane's that has an event of them."""
    with Child(writes(index, 10)) as one, Child(writes(index, 20)) as two, Child(writes(index, 30)) as three:
        lanes = [child.hear() for child in (one, two, three)]
        one.kill()
        three.kill()
        report = index.recover()
        assert report.ok
        assert {x.lane: (x.state, x.ranks, x.pid) for x in report.lanes} == {
            lanes[0]: ("recovered", 1, one.pid),
            lanes[1]: ("alive", 0, two.pid),
            lanes[2]: ("recovered", 1, three.pid),
        }
        assert owners(index) == {10: -1, 20: lanes[1], 30: -1}
        assert scores(index, [1, 2, 10]) == {(10, 0): 3, (20, 0): 2, (30, 0): 2}
        assert [x.state for x in index.recover().lanes] == ["alive"]  # and nothing to do the second time
        with index.writer() as writer:
            writer.store(10, 10, [11], [11])
            with pytest.raises(RankOwnedElsewhere):
                writer.store(20, 20, [11], [11])
            two.say()
            assert two.hear() == "stored"
            assert scores(index, [1, 2, 10, 11]) == {(10, 0): 4, (20, 0): 2, (30, 0): 2}


SITES = ["OPERATION_BEGUN", "LINES_CLAIMED", "SPACE_LOCKED", "CHILD_ENTERED", "STORE_PREPARED", "REDO_SET"]


@pytest.mark.parametrize("site", [*SITES, "RELEASE_SET"])
def test_killed_in_the_middle_of_a_store(index: Index, site: str) -> None:
    """The record is at rest afterwards: the store is there as a whole, or not at all."""
    with Doomed(index.name, 3) as doomed:
        doomed.die_at(site)
    record = index.segment.view("lanes")[doomed.lane]
    assert int(record["op_counter"]) & 1 and int(record["phase"]) & 0xFF != PHASE_IDLE
    report = index.recover()
    assert report.ok and [(x.lane, x.state, x.ranks) for x in report.lanes] == [(doomed.lane, "recovered", 1)]
    assert not int(record["op_counter"]) & 1 and int(record["phase"]) & 0xFF == PHASE_IDLE
    assert not index.verify().unsettled
    done = site in ("REDO_SET", "RELEASE_SET")
    assert scores(index, [310, 311]) == ({(3, 0): 2} if done else {})
    assert scores(index, [1, 300]) == {(3, 0): 2}
    with index.writer() as writer:
        writer.clear(3)
    assert index.verify().counts["extents"] == 0


def test_stopped_writer_is_left_alone(index: Index) -> None:
    with Doomed(index.name, 3) as doomed:
        doomed.stop_at("STORE_PREPARED")
        before = index.segment.view("lanes")[doomed.lane].tobytes()
        report = index.recover(patience=0.05)
        assert report.ok
        assert [(x.lane, x.state, x.ranks) for x in report.lanes] == [(doomed.lane, "stopped", 0)]
        assert "stopped" in report.lanes[0].what and str(doomed.process.pid) in report.lanes[0].what
        assert index.segment.view("lanes")[doomed.lane].tobytes() == before
        assert doomed.resume() == "ok"
        assert scores(index, [310, 311]) == {(3, 0): 2}


def test_dead_lane_that_waits_for_a_stopped_one(index: Index, capsys: pytest.CaptureFixture[str]) -> None:
    """What cannot be settled is said, with the reason; later it can."""
    with Doomed(index.name, 3) as stopped, Doomed(index.name, 4) as dead:
        dead.die_at("STORE_PREPARED")  # its child of the root has to be taken out again
        stopped.stop_at("SPACE_LOCKED")  # that of the root
        report = index.recover(patience=0.05)
        states = {x.lane: x.state for x in report.lanes}
        assert not report.ok and states == {stopped.lane: "stopped", dead.lane: "unsettled"}
        (why,) = report.unsettled
        assert f"lane {dead.lane} " in why and f"process {stopped.process.pid}, stopped" in why
        assert cli.main(["recover", index.name, "--patience", "0.05"]) == cli.EXIT_UNSETTLED
        assert why in capsys.readouterr().out
        assert stopped.resume() == "ok"
        assert index.recover().ok and cli.main(["recover", index.name]) == 0
        assert scores(index, [310, 311]) == {(3, 0): 2} and scores(index, [410]) == {}


def test_slots_of_removed_workers_are_freed(index: Index) -> None:
    with index.writer() as writer:
        for worker in (1, 2, 3):
            writer.store(worker, None, [worker, 5], [worker, 5])
    states = index.segment.view("rank_states")
    states["state"][1] += SLOT_DYING - SLOT_ACTIVE  # as a removal leaves it next to a stopped lane
    index.segment.header["epoch"] += (1 << 16) + 1
    states["known"][2] = 0  # as a death before the first commit leaves it
    report = index.recover()
    assert report.ok and report.slots_freed == 2
    assert scores(index, [2, 5]) == scores(index, [3, 5]) == {} and owners(index) == {1: -1}
    assert index.verify().counts["nodes"] == 1


def test_a_registry_that_is_held(index: Index) -> None:
    with index.writer() as writer:
        writer.store(1, None, [1], [1])
    index.segment.view("rank_states")["state"][0] += SLOT_DYING - SLOT_ACTIVE
    index.segment.header["epoch"] += (1 << 16) + 1
    with registry_lock(index.segment, 3, 1.0):
        report = index.recover(patience=0.01)
        assert not report.ok and "1 slots" in report.unsettled[0] and "registered" in report.unsettled[0]
    assert index.recover().slots_freed == 1


# ------------------------------------------------------------------------------------------------ namespaces
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, for a pid namespace")
@pytest.mark.parametrize("writer_inside", [False, True])
def test_other_pid_namespace(index: Index, writer_inside: bool) -> None:
    """Whoever is inside of a namespace of its own: a lock tells what a pid cannot."""

    def recovered(_: Connection) -> list[tuple[str, int]]:
        with Index.attach(index.name, read_only=False) as own:
            return [(x.state, x.ranks) for x in own.recover().lanes]

    def inside(body: Callable[[Connection], Any], kill: bool) -> Callable[[Connection], Any]:
        def outer(connection: Connection) -> Any:
            if not unshare(CLONE_NEWPID):
                return None
            with Child(body) as inner:
                said = inner.hear()
                if kill:
                    inner.kill()
            return said

        return outer

    with Child(inside(writes(index, 10), kill=True) if writer_inside else writes(index, 10)) as writer:
        if writer.hear() is None:
            pytest.skip("not allowed to unshare")
        if not writer_inside:
            os.kill(writer.pid, signal.SIGSTOP)  # alive for all who ask the lock
            with Child(inside(recovered, kill=False)) as child:
                assert child.hear() == [("alive", 0)]
            writer.kill()
    with Child(recovered if writer_inside else inside(recovered, kill=False)) as child:
        assert child.hear() == [("recovered", 1)]
    with index.writer() as heir:
        heir.store(10, 10, [11], [11])
    assert scores(index, [1, 2, 10, 11]) == {(10, 0): 4}


# ------------------------------------------------------------------------------------------------ command
def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "shmtrie.cli", *arguments]


@pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("unshare") is None, reason="needs root, for a pid namespace"
)
def test_command_in_another_pid_namespace(index: Index) -> None:
    if subprocess.run(["unshare", "--pid", "--fork", "true"]).returncode != 0:
        pytest.skip("not allowed to unshare")
    dead = index.writer()
    dead.store(1, None, [1, 2], [1, 2])
    die(dead)
    with index.writer() as alive:
        done = subprocess.run(
            ["unshare", "--pid", "--fork", *command("recover", index.name, "--json")],
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert done.returncode == 0, done.stderr
        answer = json.loads(done.stdout)
        assert answer["ok"] and answer["unsettled"] == []
        # it took the dead one's seat, and recovered it
        assert [(x["lane"], x["state"]) for x in answer["lanes"]] == [(alive.lane, "alive")]
        lane = die(alive)
        done = subprocess.run(
            ["unshare", "--pid", "--fork", *command("recover", index.name, "--json")],
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=120,
        )
        (outcome,) = json.loads(done.stdout)["lanes"]
        assert (outcome["lane"], outcome["state"]) == (lane, "recovered")


def test_command(index: Index, capsys: pytest.CaptureFixture[str]) -> None:
    writer = index.writer()
    writer.store(1, None, [1, 2], [1, 2])
    die(writer)
    assert cli.main(["recover", index.name]) == 0
    shown = capsys.readouterr().out
    assert "1 lanes recovered" in shown and "recovered" in shown.splitlines()[-1]
    assert cli.main(["recover", index.name, "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer == {
        "name": index.name,
        "ok": True,
        "lanes": [],
        "slots_freed": 0,
        "resize_cleared": False,
        "unsettled": [],
    }
    assert cli.main(["recover", index.name + "-none"]) == cli.EXIT_ERROR
    assert np.count_nonzero(index.segment.view("lanes")["state"]) == 0
