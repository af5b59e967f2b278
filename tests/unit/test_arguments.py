"""arguments.py: what indexes take for hashes, ranks and offsets, and every wrong argument."""

from __future__ import annotations

import ctypes
from array import array
from collections import deque
from typing import Any

import numpy as np
import pytest

from shmtrie.events import (
    as_rank,
    as_ranks,
    as_u64,
    as_worker_id,
    hash_array,
    offset_array,
)
from shmtrie.scores import WORKER_DTYPE

TOP = (1 << 64) - 1
HALF = 1 << 63


class Index:
    def __index__(self) -> int:
        return 5


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (0, 0),
        (TOP, TOP),
        (-1, TOP),
        (-HALF, HALF),
        (np.uint64(TOP), TOP),
        (np.int64(-1), TOP),
        (np.int8(-1), TOP),
        (Index(), 5),
        (np.array(7), 7),
    ],
)
def test_as_u64(value: Any, expected: int) -> None:
    result = as_u64(value)
    assert type(result) is int
    assert result == expected


@pytest.mark.parametrize("value", [True, np.True_, 1.0, np.float64(1), "1", b"1", None, [1], (1,)])
def test_as_u64_wants_integers(value: Any) -> None:
    with pytest.raises(TypeError):
        as_u64(value)


@pytest.mark.parametrize("value", [TOP + 1, -HALF - 1, 1 << 200])
def test_as_u64_wants_64_bits(value: int) -> None:
    with pytest.raises(ValueError):
        as_u64(value)


def test_as_rank() -> None:
    assert as_rank(7) == (7, 0)
    assert as_rank((TOP, (1 << 32) - 1)) == (TOP, (1 << 32) - 1)
    assert as_rank(np.uint64(3)) == (3, 0)
    wrong_types: list[Any] = [None, "1", 1.0, True, [1, 2], (1, "0"), (1.5, 0)]
    for value in wrong_types:
        with pytest.raises(TypeError):
            as_rank(value)
    wrong_values: list[Any] = [-1, TOP + 1, (1, -1), (1, 1 << 32), (-1, 0), (1,), (1, 2, 3), ()]
    for value in wrong_values:
        with pytest.raises(ValueError):
            as_rank(value)


def test_as_worker_id_and_as_ranks() -> None:
    assert as_worker_id(TOP) == TOP
    with pytest.raises(TypeError):
        as_worker_id((1, 0))
    with pytest.raises(ValueError):
        as_worker_id(-1)
    assert as_ranks([1, (2, 3)]) == [(1, 0), (2, 3)]
    assert as_ranks(np.array([(2, 3)], WORKER_DTYPE)) == [(2, 3)]
    assert as_ranks(np.array([4, 5])) == [(4, 0), (5, 0)]
    for value in (7, None, "ab", [None]):
        with pytest.raises(TypeError):
            as_ranks(value)


WANTED = [0, 1, TOP, HALF]
U64 = np.array(WANTED, np.uint64)


def unaligned() -> np.ndarray[Any, Any]:
    return np.frombuffer(b"x" + U64.tobytes(), np.uint64, 4, 1)


def backwards() -> memoryview:
    return memoryview(array("Q", WANTED[::-1]))[::-1]


@pytest.mark.parametrize(
    "values",
    [
        U64,
        U64.view(np.int64),
        U64.astype(">u8"),
        U64.view(np.int64).astype(">i8"),
        np.repeat(U64, 3)[::3],
        U64[::-1].copy()[::-1],
        np.stack([U64, U64], axis=1)[:, 1],
        unaligned(),
        np.array(WANTED, object),
        WANTED,
        tuple(WANTED),
        deque(WANTED),
        [0, 1, -1, -HALF],
        [np.uint64(0), Index().__index__() - 4, np.int64(-1), HALF],
        array("Q", WANTED),
        array("q", [0, 1, -1, -HALF]),
        U64.data,
        backwards(),
        (ctypes.c_uint64 * 4)(*WANTED),
    ],
)
def test_hash_array_takes_every_shape_of_64_bit_ints(values: Any) -> None:
    result = hash_array(values)
    assert result.dtype == np.uint64
    assert result.dtype.isnative
    assert result.flags.c_contiguous
    assert result.flags.aligned
    assert result.tolist() == WANTED


@pytest.mark.parametrize(
    "values", [[], (), range(0), np.empty(0, np.uint64), np.empty(0, np.int64), array("Q")]
)
def test_hash_array_may_be_empty(values: Any) -> None:
    result = hash_array(values)
    assert result.dtype == np.uint64
    assert result.shape == (0,)


def test_hash_array_other_sequences_and_read_only() -> None:
    assert hash_array(range(3, 6)).tolist() == [3, 4, 5]
    fixed = U64.copy()
    fixed.flags.writeable = False
    assert hash_array(fixed) is fixed


@pytest.mark.parametrize(
    "values",
    [
        None,
        5,
        1.5,
        "12",
        b"12345678",
        bytearray(8),
        {1, 2},
        {1: 2},
        iter([1]),
        [1.0],
        [1, "2"],
        [None],
        [True],
        (1, np.True_),
        [[1, 2]],
        [1, -1, True],
        np.array([1.0]),
        np.array([True]),
        np.array([1], np.int32),
        np.array([1], np.uint16),
        np.array(["1"]),
        np.array([1 + 0j]),
        np.array([None]),
        np.array([1], "M8[s]"),
        array("I", [1]),
        array("d", [1.0]),
        memoryview(b"12345678"),
    ],
)
def test_hash_array_wants_integers_of_8_bytes(values: Any) -> None:
    with pytest.raises(TypeError):
        hash_array(values)


@pytest.mark.parametrize(
    "values",
    [
        [TOP + 1],
        [0, -HALF - 1],
        np.array([TOP + 1], object),
        np.zeros((2, 2), np.uint64),
        np.uint64(5),
        np.array(5, np.uint64),
        memoryview(bytes(32)).cast("Q", (2, 2)),
    ],
)
def test_hash_array_wants_one_dimension_and_64_bits(values: Any) -> None:
    with pytest.raises(ValueError):
        hash_array(values)


def test_offset_array() -> None:
    assert offset_array([0, 2, 2, 5], 5).tolist() == [0, 2, 2, 5]
    assert offset_array(np.array([1, 3])[::1], 9).dtype == np.int64
    wrong: list[Any] = [[], [0, 3, 2], [-1, 2], [0, 6], [1 << 63, 1], [TOP, 0]]
    for values in wrong:
        with pytest.raises(ValueError):
            offset_array(values, 5)
    wrong = [[0.0, 1.0], "01", None, np.array([0, 1], np.int32)]
    for values in wrong:
        with pytest.raises(TypeError):
            offset_array(values, 5)
