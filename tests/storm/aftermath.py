"""What the logs of an act say: states of each rank over time, and whether all answers are allowed.

An operation that a death cut is sent again by the writer's next process, after a look at what has become of
it. A store is there by then as a whole or not at all, so it counts as two operations: the one that was cut,
which left the state that the look shows and ended with the look, and the one sent again. Where the look
cannot tell, and for what may be there in part (removals), it is one operation from its first begin to its
last end.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from shmtrie.errors import EventStatus
from tests.concurrency.judge import Calls, History, Verdict, View, judge, scores_of
from tests.differential import Mismatch, expect
from tests.reference import OK, Op, Oracle, Rank
from tests.storm.journal import Rows
from tests.storm.parts import (
    ABOUT,
    ANSWER,
    BEGIN,
    BUSY_TIMES,
    COUNT,
    END,
    FIRST,
    GAVE_UP,
    INVOKE,
    KIND,
    OUTCOMES,
    QUERY,
    RESUMED,
    RETURN,
    STATUSES,
    Part,
)

State = tuple[list[int], list[int]]  # by query: bits of held blocks, reachable prefix


@dataclass
class Fate:
    """What became of an operation: begin, end, outcome (None: not told), looks after deaths in it."""

    begin: int = 0
    end: int = 0
    outcome: str | None = None
    looks: list[int] = field(default_factory=list)
    skipped: bool = False  # it changes nothing, and was not sent again


@dataclass
class Tally:
    """What has been counted in an act."""

    ops: int = 0
    calls: int = 0
    busy: int = 0
    finds: int = 0
    cut: Counter[str] = field(default_factory=Counter)
    came: Counter[str] = field(default_factory=Counter)  # what the look at a cut store showed
    outcomes: Counter[tuple[str, str]] = field(default_factory=Counter)
    verdict: Verdict = field(default_factory=Verdict)
    find_ns: list[np.ndarray] = field(default_factory=list)


class Aftermath:
    """Logs of one act beside the oracle, which follows them.

    Parameters
    ----------
    oracle : Oracle
        As the act began; as it ended, after `judge`.
    parts : list of Part
        Of the act.
    queries : list of list of int
        What was asked.
    ranks : iterable of Rank
        Whoever may be in an answer.
    """

    def __init__(
        self,
        oracle: Oracle,
        parts: Sequence[Part],
        queries: list[list[int]],
        ranks: set[Rank],
    ) -> None:
        self.oracle, self.parts, self.queries = oracle, parts, queries
        self._view = View(oracle, queries)
        self.tally = Tally()
        self.as_assumed = True
        self.problems: list[str] = []
        self._states = {rank: self._view.state(rank) for rank in ranks}
        self.histories = {rank: History.of(*state) for rank, state in self._states.items()}
        self.told: dict[Rank, list[tuple[Op, Fate]]] = {rank: [] for rank in ranks}

    # -- operations -------------------------------------------------------------------------------

    def follow(self) -> None:
        """Apply to the oracle what the writers did."""
        for part in self.parts:
            if part.role == "writer":
                looks = part.calls.rows()
                for i, fate in enumerate(self._fates(part)):
                    if fate.outcome is not None and fate.outcome != part.plan[i].outcome:
                        self.as_assumed = False
                    self._one(part, part.plan[i].op, fate, looks)

    def _fates(self, part: Part) -> list[Fate]:
        """What became of each operation that was begun, from the attempts at it."""
        rows, fates = part.ops.rows().tolist(), list[Fate]()
        self.tally.busy += sum(row[BUSY_TIMES] for row in rows)
        for number, row in enumerate(rows):
            first, count = row[FIRST], row[COUNT]
            if first == len(fates):
                fates += [Fate() for _ in range(count)]
            expect(first + count == len(fates), part, "sent", first, "to", first + count, "out of turn")
            statuses = part.ops.text(row[STATUSES]) if row[STATUSES] >= 0 else b""
            open_ = [i for i in range(first, first + count) if not fates[i].end]
            if row[KIND] == RESUMED:
                self._resumed(
                    part, fates, open_, [i for i in open_ if statuses[i - first]], number, row[INVOKE]
                )
                continue
            self.tally.calls += 1
            for i in open_:
                fates[i].begin = fates[i].begin or row[INVOKE]
                if row[RETURN]:
                    fates[i].end, fates[i].outcome = row[RETURN], OUTCOMES[EventStatus(statuses[i - first])]
        left = [i for i, fate in enumerate(fates) if not fate.end]
        expect(not left, part, "left operations open:", left)
        return fates

    def _resumed(
        self, part: Part, fates: list[Fate], open_: list[int], done: list[int], row: int, when: int
    ) -> None:
        """A call was cut: of each rank's operations the first that is not known as applied may be."""
        for i in done:
            fates[i].end, fates[i].skipped = when, not part.plan[i].changes
        first = dict[object, int]()
        for i in open_:
            if i not in done:
                if first.setdefault(part.plan[i].op[1], i) == i:
                    fates[i].looks.append(row)
                else:
                    fates[i].begin = 0

    def _one(self, part: Part, op: Op, fate: Fate, looks: Rows) -> None:
        oracle, tally = self.oracle, self.tally
        allowed, is_open = oracle.outcomes(op), False
        if fate.outcome is None:  # refused or applied before a later one of its rank, in a call that was cut
            # Of several it may be any that changes nothing, as a removal from a rank that may be unknown.
            certain = len(allowed) == 1 or OK not in allowed or op[0] == "remove"
            expect(certain, op, "may have come to several things:", sorted(allowed))
            is_open = len(allowed) > 1 and OK in allowed
            fate.outcome = min(allowed)
        expect(fate.outcome in allowed, op, "answered", fate.outcome, "- allowed:", sorted(allowed))
        tally.ops += 1
        tally.outcomes[op[0], fate.outcome] += 1
        tally.cut[op[0]] += len(fate.looks)
        ranks = [r for r in self.histories if r[0] == op[1]] if op[0] == "remove_worker" else [op[1]]
        ranks = [r for r in ranks if r in self.histories]
        if not is_open:
            oracle.apply(op, fate.outcome)
        for rank in ranks:
            before = self._states[rank]
            after = self._states[rank] = self._view.state(rank)
            self.told[rank].append((op, fate))
            begin = fate.begin
            if fate.skipped:
                continue
            if fate.looks:
                begin = self._decide(part, op, rank, before, after, fate, looks)
            self.histories[rank].add(begin, fate.end, *after)

    def _decide(
        self, part: Part, op: Op, rank: Rank, before: State, after: State, fate: Fate, looks: Rows
    ) -> int:
        """What the looks at a cut operation show; begin of what is left undecided."""
        decided, begin = "", fate.begin
        for resumption in fate.looks:
            mine = looks[looks[:, ABOUT] == resumption]
            if not len(mine):
                continue  # died before it could look
            is_before = is_after = is_between = True
            for row in mine[mine[:, GAVE_UP] == 0].tolist():
                score = scores_of(part.calls.text(row[ANSWER])).get(rank, 0)
                (low, high), (low_then, high_then) = (
                    (state[1][row[QUERY]], _prefix(state[0][row[QUERY]])) for state in (before, after)
                )
                is_before &= low <= score <= high
                is_after &= low_then <= score <= high_then
                is_between &= min(low, low_then) <= score <= max(high, high_then)
            if op[0] != "store":
                if not is_between:
                    self.problems.append(
                        f"{part}: rank {rank} after a death in {fate}: {op}: more or less than a part"
                    )
                continue
            if is_before and is_after:
                self.tally.came["cannot be told"] += 1
                continue
            shown = "none of it" if is_before else "all of it" if is_after else "a part of it"
            self.tally.came[shown] += 1
            if shown == "a part of it" or (decided == "all of it" and shown != decided):
                self.problems.append(
                    f"{part}: {shown} is there, {decided or 'nothing'} was before: {fate}: {op}"
                )
            decided = shown
            end = int(mine[0, BEGIN])
            self.histories[rank].add(begin, end, *(before if is_before else after))
            begin = end
        return begin

    # -- answers ----------------------------------------------------------------------------------

    def judge(self, leaf_first: bool) -> None:
        """All finds, those of writers too.

        Raises
        ------
        Mismatch
            With what the ranks went through at the time.
        """
        for part in self.parts:
            rows = part.calls.rows()
            if not len(rows):
                continue
            names, answer = np.unique(rows[:, ANSWER], return_inverse=True)
            answers = [scores_of(part.calls.text(int(name))) for name in names]
            columns = (np.ascontiguousarray(rows[:, i]) for i in (BEGIN, END, QUERY))
            calls = Calls(*columns, answer, rows[:, GAVE_UP] != 0, answers)
            self.tally.finds += len(calls)
            if part.role == "reader":
                self.tally.find_ns.append(calls.end - calls.begin)
            strangers = {rank for found in answers for rank in found} - self.histories.keys()
            if strangers:
                self.problems.append(f"ranks that do not exist: {sorted(strangers)}")
            for rank, history in self.histories.items():
                verdict = judge(rank, history, calls, leaf_first)
                self.tally.verdict.add(verdict)
                for text in verdict.wrong[:2]:
                    self.problems.append(f"{text}, asked by {part}\n{self._around(rank, text)}")
        if self.problems:
            raise Mismatch(f"{len(self.problems)} problems:\n" + "\n".join(self.problems[:5]))

    def _around(self, rank: Rank, text: str) -> str:
        """The last operations of a rank before a time that a text names."""
        when = int(text.partition("began at ")[2].partition(" ")[0])
        told = self.told[rank]
        near = sum(fate.begin <= when + 1_000_000 for _, fate in told)
        return "\n".join(f"    {fate}: {_short(op)}" for op, fate in told[max(0, near - 6) : near + 2])


def _short(op: Op) -> str:
    """An operation for messages."""
    if op[0] == "store" and len(op[3]) > 4:
        return f"{op[:3]} + {op[3][:2]} .. {op[3][-1:]}, {len(op[3])} blocks"
    return str(op)


def _prefix(bits: int) -> int:
    """Number of ones at the low end."""
    return (~bits & (bits + 1)).bit_length() - 1
