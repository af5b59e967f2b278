"""Starts the processes of a storm, and kills, stops and restarts them at random moments."""

from __future__ import annotations

import os
import random
import signal
import time
from collections import Counter
from dataclasses import dataclass, field

from shmtrie.index import Index
from tests.differential import Mismatch, expect
from tests.hooks import wait_until
from tests.storm.parts import (
    AT_OPENING,
    AT_OPERATION,
    AT_RECOVERY,
    BEAT,
    CLOSE,
    COMMAND,
    FAILED,
    FIRST,
    FUSE_AT,
    FUSE_END,
    FUSE_PART,
    FUSE_SIGNAL,
    FUSE_SKIPS,
    IDLE,
    LANE,
    NOWHERE,
    OPEN,
    STATE,
    Part,
    Scene,
)
from tests.storm.players import fork

HANG = float(os.environ.get("SHMTRIE_STORM_HANG", "30"))  # seconds without anything done
FUSE_LIMIT = 0.05  # seconds until somebody who was to be killed at some point is killed anyway
#: Where the next blow goes, and how often of a hundred times.
BLOWS = {
    "in an operation": 46,
    "in operations of two": 8,  # at once
    "in a recovery": 14,  # by the next process of one that was killed
    "while it starts": 8,  # attaches, takes a lane and ranks over
    "any time": 8,
    "a reader": 8,
    "stop": 8,  # half of them in an operation, for a while; then it goes on, or is killed as it is
}
_now = time.monotonic_ns


class Hang(Mismatch):
    """A process has come on with nothing for too long."""


@dataclass
class Death:
    """One kill of a writer that had a lane."""

    part: str
    lane: int
    at: int
    how: str
    phase: int = -1  # of the operation that it left open; -1: none


@dataclass
class Deeds:
    """What a keeper did."""

    kills: Counter[str] = field(default_factory=Counter)
    starts: int = 0
    stops: int = 0
    deaths: list[Death] = field(default_factory=list)


class Keeper:
    """The processes of one act.

    Parameters
    ----------
    index : Index
        Of this process.
    parts : list of Part
        Who takes part.
    scene : Scene
        Of the act.
    rng : Random
        Of all choices; the moments are the machine's.
    """

    def __init__(self, index: Index, parts: list[Part], scene: Scene, rng: random.Random) -> None:
        self._lanes = index.segment.view("lanes")
        self.parts, self.scene, self.rng, self.deeds = parts, scene, rng, Deeds()
        self._pids: dict[int, int] = {}  # by position in `parts`
        self._due: dict[int, int] = {}  # who is dead, and when to start it again
        self._stopped: dict[int, tuple[int, bool]] = {}  # until when; whether it is killed then
        self._beats: dict[int, tuple[int, float]] = {}

    # -- one process ------------------------------------------------------------------------------

    def start(self, i: int) -> None:
        """Start a part's next process."""
        self._due.pop(i, None)
        self._pids[i] = fork(self.parts[i], self.scene)
        self._beats.pop(i, None)
        self.deeds.starts += 1

    def pid(self, i: int) -> int:
        """Of a part's process."""
        return self._pids[i]

    def kill(self, how: str, *victims: int) -> None:
        """SIGKILL at once, and wait until they are gone."""
        deaths = []
        for i in victims:
            words = self.parts[i].words
            at = words[FUSE_END] or _now()
            os.kill(self._pids[i], signal.SIGKILL)
            words[FUSE_END] = 0
            self.deeds.kills[how] += 1
            deaths.append(Death(str(self.parts[i]), words[LANE], at, how))
        self.deeds.deaths += deaths
        for i, death in zip(victims, deaths, strict=True):
            os.waitpid(self._pids.pop(i), 0)
            if death.lane >= 0:  # nobody has had the time to recover it
                phase, odd = (int(self._lanes[name][death.lane]) for name in ("phase", "op_counter"))
                death.phase = phase & 0xFF if odd & 1 or phase & 0xFF else -1
            self._stopped.pop(i, None)
            self._check_failed(i)
            wait = self.rng.choice((0.0, 0.0, 0.0, self.rng.uniform(0.001, 0.02)))
            self._due[i] = _now() + int(wait * 1e9)

    def _check_failed(self, i: int) -> None:
        part = self.parts[i]
        if part.words[STATE] == FAILED:
            texts = [part.failures.text(int(name)).decode() for name in part.failures.rows()[:, 0]]
            raise Mismatch(f"{part} failed:\n" + "\n".join(texts))

    def _reap(self) -> None:
        for i, pid in list(self._pids.items()):
            done, status = os.waitpid(pid, os.WNOHANG)
            if done:
                del self._pids[i]
                self._stopped.pop(i, None)
                self._check_failed(i)
                code = os.waitstatus_to_exitcode(status)
                expect(code == 0, self.parts[i], "ended with code", code)
                if self.parts[i].words[COMMAND] != CLOSE:
                    self._due[i] = _now()

    def _watch(self) -> None:
        for i, pid in self._pids.items():
            beat, (before, since) = self.parts[i].words[BEAT], self._beats.get(i, (-1, 0.0))
            if beat != before or i in self._stopped:
                self._beats[i] = (beat, time.monotonic())
                continue
            idle = time.monotonic() - since
            if idle > 0.5:
                # A fuse that was lit just before its process was stopped, and let go on, has stopped it anew.
                os.kill(pid, signal.SIGCONT)
            if idle > HANG:
                os.kill(pid, signal.SIGUSR1)  # its stacks go to stderr
                time.sleep(0.5)
                raise Hang(
                    f"{self.parts[i]} (process {pid}) has done nothing for {HANG:g} s; {self._where(i)}"
                )

    def _where(self, i: int) -> str:
        part = self.parts[i]
        last = part.ops.rows()[-1:].tolist()
        what = part.plan[last[0][FIRST]] if last and part.plan else None
        with open(f"/proc/{self._pids[i]}/stat") as file:
            state = file.read().rpartition(")")[2].split()[0]
        where = f"process {state}, state {part.words[STATE]}, lane {part.words[LANE]}"
        return f"{where}, last attempt {last} at {what}"

    # -- the storm --------------------------------------------------------------------------------

    def rage(self, kills: int) -> None:
        """Everybody at work until so many have been killed, or all plans are done."""
        for i in range(len(self.parts)):
            self.start(i)
        blows, weights = zip(*BLOWS.items(), strict=True)
        writers = [i for i, part in enumerate(self.parts) if part.role == "writer"]
        while self.deeds.kills.total() < kills:
            self._housekeeping()
            if all(self.parts[i].words[STATE] == IDLE for i in writers):
                return
            self._strike(self.rng.choices(blows, weights)[0])
            time.sleep(min(0.004, self.rng.expovariate(1000)))

    def _housekeeping(self) -> None:
        self._reap()
        now = _now()
        for i in [i for i, at in self._due.items() if at <= now]:
            self.start(i)
        for i in [i for i, (until, _) in self._stopped.items() if until <= now]:
            self._go_on(i)
        self._watch()

    def _strike(self, how: str) -> None:
        role = "reader" if how == "a reader" else "writer"
        wanted = 1 + (how == "in operations of two")
        victims = [i for i in self._pids if self.parts[i].role == role and self._is_open(i)]
        if len(victims) < wanted:
            time.sleep(0.0005)
            return
        victims = self.rng.sample(victims, wanted)
        if how == "stop":
            self._stop(victims[0])
        elif how in ("a reader", "any time"):
            time.sleep(self.rng.uniform(0, 0.002))
            self.kill(how, *victims)
        elif how == "while it starts" or how == "in a recovery":
            self._lit_kill("in an operation", AT_OPERATION, *victims)
            if how == "in a recovery":
                self._light(victims[0], AT_RECOVERY, signal.SIGKILL)
            else:
                self._light(victims[0], AT_OPENING, signal.SIGKILL)
            self.start(victims[0])
            self._await_kill(how, *victims)
        else:
            self._lit_kill(how, AT_OPERATION, *victims)

    def _is_open(self, i: int) -> bool:
        return i not in self._stopped and self.parts[i].words[STATE] == OPEN

    def _light(self, i: int, where: int, signo: signal.Signals) -> None:
        """Have it killed or stopped a moment after it comes by."""
        words = self.parts[i].words
        words[FUSE_END] = 0
        words[FUSE_SIGNAL] = signo
        words[FUSE_PART] = self.rng.randrange(1_000_000)
        words[FUSE_SKIPS] = self.rng.randint(0, 4) if where == AT_OPERATION else 0
        words[FUSE_AT] = where

    def _lit_kill(self, how: str, where: int, *victims: int) -> None:
        for i in victims:
            self._light(i, where, signal.SIGKILL)
        self._await_kill(how, *victims)

    def _await_kill(self, how: str, *victims: int) -> None:
        """Until their fuses have burnt; who has not come by after a while is killed where it is."""
        pids = [self._pids[i] for i in victims]
        deadline = time.monotonic() + FUSE_LIMIT
        while time.monotonic() < deadline:
            if all(has_ended(pid) for pid in pids):
                break
            time.sleep(0.0001)
        for i in victims:
            self.parts[i].words[FUSE_AT] = NOWHERE
            if self.parts[i].words[FUSE_END] == 0 and how != "any time":
                how = "any time"
        self.kill(how, *victims)

    def _stop(self, i: int) -> None:
        seconds = self.rng.choice((0.005, 0.02, 0.02, 0.15)) * self.rng.random()
        if self.rng.random() < 0.5:
            self._light(i, AT_OPERATION, signal.SIGSTOP)
            deadline = time.monotonic() + FUSE_LIMIT
            while not _has_stopped(self._pids[i]) and time.monotonic() < deadline:
                time.sleep(0.0001)
            self.parts[i].words[FUSE_AT] = NOWHERE
        os.kill(self._pids[i], signal.SIGSTOP)
        self._stopped[i] = _now() + int(seconds * 1e9), self.rng.random() < 0.3
        self.deeds.stops += 1

    def _go_on(self, i: int) -> None:
        _, kill = self._stopped[i]
        if kill:
            self.kill("stopped", i)
            return
        del self._stopped[i]
        os.kill(self._pids[i], signal.SIGCONT)

    # -- its end ----------------------------------------------------------------------------------

    def kill_all(self) -> None:
        """Everybody dies at once."""
        self.kill("all at once", *self._pids)

    def calm(self) -> None:
        """Everybody ends what was begun and closes."""
        for i in list(self._stopped):
            self._stopped[i] = (0, False)
            self._go_on(i)
        for i, part in enumerate(self.parts):
            part.words[COMMAND] = CLOSE
            if part.role == "writer" and i not in self._pids:
                self.start(i)
        self._due.clear()
        self.wait()

    def wait(self) -> None:
        """Until everybody has ended."""

        def ended() -> bool:
            self._reap()
            self._watch()
            return not self._pids

        wait_until(ended, HANG * 2, "end of all processes")

    def abandon(self) -> None:
        """Kill whoever is left, after a failure."""
        for pid in self._pids.values():
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        self._pids.clear()


def has_ended(pid: int) -> bool:
    """Whether a child has ended; it is not reaped."""
    return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def _has_stopped(pid: int) -> bool:
    """Whether a child has been stopped since this was asked last."""
    return os.waitid(os.P_PID, pid, os.WSTOPPED | os.WNOHANG) is not None
