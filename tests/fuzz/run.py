"""The fuzz: images, damage by seed, everything done to it, in child processes that may crash or hang.

A case is a seed: image, damage and plan follow from it. A child does one case after the other on the same
mapping, the bytes put back in between; the parent learns from shared memory where a child was that died, and
goes on behind it in a new one. ``python -m tests.fuzz.run`` reads a line of JSON and answers with another.
"""

from __future__ import annotations

import faulthandler
import gc
import json
import mmap
import os
import signal
import sys
import time
import traceback
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import suppress
from random import Random
from typing import Any, NamedTuple

import numpy as np

from shmtrie import addresses
from shmtrie.kernels.build import ensure, registered
from shmtrie.layout import PAGE
from shmtrie.segment import Segment
from shmtrie.shmfile import segment_path
from tests.backends import segment_name
from tests.fuzz import damage as d
from tests.fuzz import images
from tests.fuzz.guards import GuardedSegment, Guards, install
from tests.fuzz.named import NAMED
from tests.fuzz.operations import STEPS, Play, Unexpected

BATCH = 400  # cases of one child
SHARES = {"small": 74, "holes": 20, "long": 6}  # of the kinds of images
BY_NAME, PLANS = 1 << 40, 1_000  # seeds from there on are those of named damage, so many each


class Failure(NamedTuple):
    """What went wrong in a case."""

    seed: int
    kind: str  # "crash", "hang", "outside" or "error"
    step: str
    what: str
    damage: list[str]


class Case(NamedTuple):
    """What follows from a seed."""

    kind: str
    image: images.Image
    damage: list[d.Damage]


class Fuzz:
    """Segments and images; made once, before children are forked."""

    def __init__(self) -> None:
        ensure()
        for made in registered().values():
            made.compile()
        self.guards = Guards()
        GuardedSegment.guards = self.guards
        self.images = images.make_all(segment_name)
        self.names = {kind: segment_name(f"fuzz-{kind}") for kind in self.images}
        self.targets: dict[str, list[d.Target]] = {}
        self._note = np.frombuffer(mmap.mmap(-1, mmap.PAGESIZE), np.int64)  # seed, step
        self._steps: list[str] = []
        try:
            for kind, some in self.images.items():
                with open(segment_path(self.names[kind]), "xb") as file:
                    file.write(some[0].content)
                self.targets[kind] = []
                with GuardedSegment.attach(self.names[kind], read_only=False) as segment:
                    for image in some:
                        segment.mapping[:] = image.content
                        self.targets[kind].append(d.Target(segment))
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Remove the segments."""
        for name in self.names.values():
            with suppress(Exception):
                Segment.unlink(name)

    def case(self, seed: int) -> Case:
        """Image and damage of a seed; from `BY_NAME` on of the plan of a named one."""
        if seed >= BY_NAME:
            name, image = list(NAMED.items())[(seed - BY_NAME) // PLANS]
            kind = "long" if image.image == "long" else "small"
            k = [x.name for x in self.images[kind]].index(image.image)
            found = image.damage(self.targets[kind][k])
            return Case(kind, self.images[kind][k], [found[0]._replace(what=name), *found[1:]])
        random = Random(seed)
        kind = random.choices(list(SHARES), list(SHARES.values()))[0]
        k = random.randrange(len(self.images[kind]))
        return Case(kind, self.images[kind][k], d.damages(self.targets[kind][k], random))

    def named(self, name: str, plans: int) -> range:
        """The seeds of so many plans for a named damage."""
        first = BY_NAME + list(NAMED).index(name) * PLANS
        return range(first, first + plans)

    def seeds(self, first: int, flips: int) -> range:
        """As many seeds from the first on as damage so many words."""
        seed, n = first, 0
        while n < flips:
            n += len(self.case(seed).damage)
            seed += 1
        return range(first, seed)

    # ------------------------------------------------------------------------------------------ one case
    def play(self, seed: int, segments: dict[str, Any], keep: Sequence[int] | None = None) -> Failure | None:
        """Do a case in this process, with a part of its damage if `keep` says so."""
        case = self.case(seed)
        chosen = case.damage if keep is None else [case.damage[k] for k in keep]
        segment, reader = segments[case.kind]
        segment.mapping[:] = case.image.content
        self._note[0], self._note[1] = seed, 0
        random = Random(seed ^ 0x5DEECE66D)
        texts = [case.image.name, *(x.what for x in chosen)]
        step = "attach"

        def tell(name: str) -> None:
            nonlocal step
            found = self.guards.found()
            if found:
                raise Outside(found)
            step = name
            self._note[1] = STEPS.index(name)

        play = Play(segment, reader, case.kind, random, tell)
        try:
            play.run(lambda: d.apply(segment, chosen))
            tell("end")
        except Outside as error:
            return Failure(seed, "outside", step, "; ".join(error.args[0][:3]), texts)
        except Unexpected as error:
            what = traceback.format_exception(error.__cause__)[-1].strip()
            where = traceback.extract_tb(error.__cause__.__traceback__)[-1] if error.__cause__ else None
            found = self.guards.found()
            if found:
                return Failure(seed, "outside", step, "; ".join(found[:3]), texts)
            return Failure(
                seed, "error", step, f"{what} at {where and where.name}:{where and where.lineno}", texts
            )
        finally:
            play.end()
            segment.mapping[:PAGE] = case.image.content[:PAGE]  # as another kind may be attached next
            play.index._segment = None  # type: ignore[assignment]
            del play
        return None

    def _child(self, seeds: Iterable[int], pipe: int, keep: Sequence[int] | None) -> None:
        install(self.guards)
        segments = {}
        gc.disable()
        mapped = None
        for n, seed in enumerate(seeds):
            kind = self.case(seed).kind
            if kind != mapped:  # one segment has the windows at a time
                segments = {kind: tuple(GuardedSegment.attach(self.names[kind], ro) for ro in (False, True))}
                mapped = kind
            failure = self.play(seed, segments, keep)
            if n % 16 == 15 or failure:
                gc.collect()
            self.guards.reset()
            if failure:
                os.write(pipe, (json.dumps(failure._asdict()) + "\n").encode())

    # ------------------------------------------------------------------------------------------ many
    def run(self, seeds: Sequence[int], keep: Sequence[int] | None = None) -> list[Failure]:
        """Do the cases of all seeds in children, one after the other."""
        failures: list[Failure] = []
        at = 0
        while at < len(seeds):
            some = seeds[at : at + BATCH]
            self._note[0], self._note[1] = -1, 0
            for kind, some_images in self.images.items():  # a damaged header cannot be attached
                with open(segment_path(self.names[kind]), "r+b") as file:
                    file.write(some_images[0].content[:PAGE])
            read, write = os.pipe()
            pid = os.fork()
            if pid == 0:
                code = 3
                try:
                    os.close(read)
                    faulthandler.disable()
                    sys.stdout.flush()
                    self._child(some, write, keep)
                    code = 0
                except BaseException:
                    traceback.print_exc()
                finally:
                    os._exit(code)
            os.close(write)
            with os.fdopen(read) as pipe:
                for line in pipe:
                    failures.append(Failure(**json.loads(line)))
            _, status = os.waitpid(pid, 0)
            if status == 0:
                at += len(some)
                continue
            seed = int(self._note[0])
            if not os.WIFSIGNALED(status) or seed < 0:
                raise RuntimeError(f"a child ended with status {status} before its first case or by itself")
            number = os.WTERMSIG(status)
            kind = "hang" if number in (signal.SIGPROF, signal.SIGALRM) else "crash"
            case = self.case(seed)
            what = signal.Signals(number).name
            found = self.guards.found() if addresses.CHECKED else []
            failures.append(
                Failure(
                    seed,
                    kind,
                    STEPS[int(self._note[1])],
                    "; ".join([what, *found[:3]]),
                    [case.image.name, *(x.what for x in case.damage)],
                )
            )
            at += some.index(seed) + 1
        return failures

    def shrink(self, failure: Failure) -> Failure:
        """The same failure with as little damage as does it."""
        n = len(self.case(failure.seed).damage) if failure.seed < BY_NAME else 0
        for k in range(n):
            again = self.run([failure.seed], [k]) if n > 1 else []
            if again:
                return again[0]
        return failure


class Outside(Exception):
    """The checked build has seen an access outside."""


def main() -> None:
    """Serve requests: {"first": seed, "flips": n}, {"seeds": [...]} or {"named": name, "plans": n}, each with
    "shown": how many failures to shrink.
    """
    fuzz = Fuzz()
    try:
        for line in sys.stdin:
            asked = json.loads(line)
            if "named" in asked:
                seeds = fuzz.named(asked["named"], asked["plans"])
            else:
                seeds = asked.get("seeds") or fuzz.seeds(asked["first"], asked["flips"])
            begin = time.monotonic()
            failures = fuzz.run(seeds)
            answer = {
                "cases": len(seeds),
                "flips": sum(len(fuzz.case(seed).damage) for seed in seeds),
                "next": seeds[-1] + 1,
                "seconds": round(time.monotonic() - begin, 1),
                "kinds": Counter(f.kind for f in failures),
                "failures": [fuzz.shrink(f)._asdict() for f in failures[: asked.get("shown", 20)]],
            }
            print(json.dumps(answer), flush=True)
    finally:
        fuzz.close()


if __name__ == "__main__":
    main()
