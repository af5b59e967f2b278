"""What a caller may ask of a segment that exists."""

from __future__ import annotations

from .capacity import Capacity
from .errors import SegmentIncompatible
from .header import Header

__all__ = ["require"]


def require(
    header: Header,
    name: str,
    block_size: int | None,
    model: str | None,
    exact_holes: bool | None = None,
    capacity: Capacity | None = None,
) -> None:
    """Check a segment that exists against what the caller wants; None and "" mean anything.

    The capacity is a resolved one; that of the segment may be larger.

    Raises
    ------
    SegmentIncompatible
    """
    for what, wanted, found in (
        ("block_size", block_size, header.block_size),
        ("model", model or None, header.model),
        ("exact_holes", exact_holes, header.exact_holes),
    ):
        if wanted is not None and wanted != found:
            raise SegmentIncompatible(
                f"segment {name!r} has {what}={found!r}, not {wanted!r}: use another one, or unlink it first"
            )
    small = header.capacity.fields_below(capacity) if capacity is not None else []
    if small:
        raise SegmentIncompatible(
            f"segment {name!r} exists with less room for {', '.join(small)}: {header.capacity}; "
            f"ask for less, or resize it"
        )
