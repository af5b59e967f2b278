"""What runs the rewritten kernels: the loops that the product has in its handles, as generators.

Where the handles wait, a process here pauses a few times and then gives up, as they do in the end.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from shmtrie.contexts import Context, WriterContext, signed
from shmtrie.kernels import context as c
from shmtrie.layout import L_OP, LANE_BYTES, R_BLOCKS, RANK_STATE_BYTES
from tests.interleave.memory import Memory
from tests.interleave.process import MARK, Run
from tests.interleave.transform import LOAD, PAUSE, STORE, Program

if TYPE_CHECKING:
    from tests.interleave.model import World

TRIES = 2
Step = tuple[tuple[Any, ...], tuple[int, ...] | None]  # an operation, and what `apply_event` takes


class Drivers:
    """Makes the generators of one program."""

    def __init__(self, program: Program, world: World) -> None:
        self._program, self._world = program, world
        self.batch, self.adopt, self.find = program["batch"], program["adopt"], program["find"]
        self.recovery, self.registry = program["recover"], program["registry"]

    def _load(self, m: Memory, address: int, what: str) -> Run:
        return (yield (LOAD, address, 0, 0, what)) if address in self._program.shared else m[address]

    def _store(self, m: Memory, address: int, value: int, what: str) -> Run:
        if address in self._program.shared:
            yield (STORE, address, value, 0, what)
        else:
            m.put(address, value)

    # -- readers ----------------------------------------------------------------------------------
    def ask(self, m: Memory, context: Context, query: int, n: int) -> Run:
        """One query: (scores, did it give up)."""
        k = yield from self.find.find(m, context.address, query, n, 0, 0)
        records, depths = context.get(c.C_OUT_RECORDS), context.get(c.C_OUT_DEPTHS)
        found = {}
        for i in range(k):
            raw = struct.pack("<qq", m[records + i * 16], m[records + i * 16 + 8])
            worker, dp_rank, _ = struct.unpack("<QII", raw)
            found[worker, dp_rank] = m[(depths + i * 4) & -8] >> (32 * (i & 1)) & 0xFFFF_FFFF
        return found, m[context.address + 8 * c.C_GIVEUPS] != 0

    # -- lanes ------------------------------------------------------------------------------------
    def apply(self, m: Memory, context: WriterContext, lane: int, steps: Sequence[Step]) -> Run:
        """Apply operations one after the other."""
        for op, arguments in steps:
            if arguments is None:
                status = yield from self._remove_worker(m, context, lane, op[1])
            else:
                status = yield from self.batch.apply_event(m, context.address, *arguments)
            yield (MARK, status)
        return None

    def _remove_worker(self, m: Memory, context: WriterContext, lane: int, worker: int) -> Run:
        """RankRegistry.remove_worker; the registry's lock is ours."""
        world, ctx = self._world, context.address
        records = world.segment.view("rank_records")["worker_id"]
        states = world.segment.view("rank_states")["state"]
        slots = [int(k) for k in range(len(records)) if int(records[k]) == worker and int(states[k]) & 0xFF]
        for slot in slots:
            yield from self.registry.registry_mark(m, ctx, slot)
        counters = world.segment.section_address("lanes") + L_OP
        for other in range(len(world.writers)):
            if other == lane:
                continue
            at = counters + other * LANE_BYTES
            before = yield from self._load(m, at, "others_quiet")
            for _ in range(TRIES):
                if before & 1 == 0 or (yield from self._load(m, at, "others_quiet")) != before:
                    break
                yield (PAUSE, 0, 0, 0, "others_quiet")
            else:
                return c.BUSY
        for slot in slots:
            node = 1
            for _ in range(TRIES):
                status, node = yield from self.batch.sweep_slot(m, ctx, slot, node)
                if status == c.OK:
                    break
                yield (PAUSE, 0, 0, 0, "sweep")
            else:
                return c.BUSY
            yield from self.registry.registry_free(m, ctx, slot)
        return c.OK

    def recover(self, m: Memory, context: WriterContext, lane: int, steps: Sequence[Step]) -> Run:
        """Recover a dead lane; with steps, go on in its seat with the ranks of these."""
        for _ in range(TRIES):
            if (yield from self.recovery.recover(m, context.address)) == c.OK:
                break
            yield (PAUSE, 0, 0, 0, "recover")
        else:
            return c.BUSY
        known = set[Any]()
        for op, arguments in steps:
            if op[1] not in known:
                known.add(op[1])
                yield from self._adopt(m, context, lane, op[1])
            status = yield from self.batch.apply_event(m, context.address, *(arguments or ()))
            yield (MARK, status)
        return c.OK

    def _adopt(self, m: Memory, context: WriterContext, lane: int, rank: tuple[int, int]) -> Run:
        """RankRegistry._adopt of a rank that the lane had before."""
        ctx, states = context.address, context.get(c.C_STATES)
        slot, generation = self._world.slot(rank)
        counted: tuple[int, ...] = ()
        for _ in range(8):
            before, counted = counted, (yield from self.adopt.covered_blocks(m, ctx, slot))
            if counted == before:
                break
        at = states + slot * RANK_STATE_BYTES + R_BLOCKS
        yield from self._store(m, at, counted[0] + counted[1], "_adopt")
        mine = context.get(c.C_MINE) + slot * 4
        m.put32(mine, c.ALL_ONES)
        yield from self.adopt.adopt_slot(m, ctx, slot)
        yield from self.registry.rank_map_put(m, ctx, signed(rank[0]), rank[1], slot, generation)
