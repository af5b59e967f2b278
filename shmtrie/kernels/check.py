"""The kernel part of `verify`: one read-only pass over a segment, bounded whatever is in it.

Work is bounded because every slot, entry, span and claim is looked at once, and an extent is read for its
first user only. Every number is compared with the size of its section before it becomes an address.
"""

from __future__ import annotations

from shmtrie.kernels.build import entry
from shmtrie.kernels.check_extents import check_spans
from shmtrie.kernels.check_nodes import check_nodes
from shmtrie.kernels.check_records import read_records
from shmtrie.kernels.check_table import check_entries, read_slots
from shmtrie.kernels.check_words import K_FOUND
from shmtrie.kernels.context import get


@entry("int64(int64, int64)")
def check_segment(ctx, chk):
    """Check everything but the rank states; the number of findings written.

    Parameters
    ----------
    ctx : int64
        Address of a reader context.
    chk : int64
        Address of the check's array (check_words), its areas zeroed.
    """
    read_records(ctx, chk)
    read_slots(ctx, chk)
    check_entries(ctx, chk)
    check_nodes(ctx, chk)
    check_spans(ctx, chk)
    return get(chk, K_FOUND)
