"""A writer process with the kernels of the test build, which dies or stops at a point of its next store.

``python -m tests.system.doomed SEGMENT WORKER``: takes a lane, stores two blocks, says its lane. Each line
``SITE ACTION`` that it reads arms a point; then it stores two more, below the root.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from types import TracebackType

from tests.system.children import wait_until

ROOT = Path(__file__).resolve().parents[2]


class Doomed:
    """The other side of such a process; killed and reaped at the end, whatever state it is in.

    Attributes
    ----------
    lane : int
    """

    def __init__(self, segment: str, worker: int) -> None:
        self.worker = worker
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.system.doomed", segment, str(worker)],
            cwd=ROOT,
            env=os.environ | {"SHMTRIE_TEST_BUILD": "1"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.lane = int(self._line())

    def _line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def _say(self, what: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(what + "\n")
        self.process.stdin.flush()

    def die_at(self, site: str) -> None:
        """Store, and be killed at a point of it."""
        self._say(f"{site} KILL")
        assert self.process.wait(60) == -signal.SIGKILL

    def stop_at(self, site: str) -> None:
        """Store, and be stopped at a point of it."""
        self._say(f"{site} PAUSE")
        assert self._line() == "paused"
        os.kill(self.process.pid, signal.SIGSTOP)
        stat = Path(f"/proc/{self.process.pid}/stat")
        wait_until(lambda: stat.read_text().rpartition(")")[2].split()[0] == "T", "stop")

    def resume(self) -> str:
        """Go on; what has become of the store."""
        os.kill(self.process.pid, signal.SIGCONT)
        self._say("go")
        return self._line()

    def __enter__(self) -> Doomed:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.process.kill()
        self.process.communicate(timeout=60)


def main(segment: str, worker: int) -> None:
    """The process itself."""
    import threading

    from shmtrie.errors import ShmtrieError
    from shmtrie.index import Index
    from shmtrie.kernels import hooks
    from tests.hooks import HookControl

    control = HookControl()
    first = 100 * worker
    with Index.attach(segment, read_only=False) as index, index.writer(patience=5.0) as writer:
        writer.store(worker, None, [1, first], [1, first])
        control.install(writer._work.context.words)
        print(writer.lane, flush=True)
        for turn, line in enumerate(sys.stdin, 1):
            site, action = line.split()
            control.arm(getattr(hooks, action), hooks.Site[site])
            said = ["ok"]

            def store(turn: int = turn, said: list[str] = said) -> None:
                try:
                    blocks = [first + 10 * turn, first + 10 * turn + 1]
                    writer.store(worker, None, blocks, blocks)
                except ShmtrieError as error:
                    said[0] = type(error).__name__

            thread = threading.Thread(target=store)
            thread.start()
            if action == "PAUSE":
                control.wait_paused(60)
                print("paused", flush=True)
                sys.stdin.readline()
                control.release()
            thread.join(60)
            print(said[0], flush=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
