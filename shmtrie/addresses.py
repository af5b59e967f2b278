"""Where an address becomes a pointer: the one place that all loads, stores and vector accesses go through.

In the product, and in the test build, that is a cast and nothing else. In the *checked* build
(``SHMTRIE_TEST_BUILD=checked`` when the package is imported; a test build with a cache of its own) every
address is first compared with a table of what may be accessed. One that lies outside is recorded, with the
function of the kernels that used it, and replaced by that of a private sink: the process lives to tell.

The table is memory of the test, int64 words (`tests/fuzz/guards.py` is the other side of it)::

    A_FOUND      accesses outside so far
    A_SINK       a line that such an access gets instead
    A_WINDOWS    where the windows begin, each `WINDOW` bytes of address space; 0: nothing is checked
    A_N_WINDOWS
    A_ARENA      where private areas lie, and how many bytes they may take
    A_ARENA_BYTES
    A_PAGES      address of (lowest, highest + 1) by page of the arena
    A_LIMITS     (lowest, highest + 1) by window, from here
    A_RECORDS    (address, bytes, name of the function) of the first ones, from here

Other addresses (arguments, results) may be anywhere where a process has memory.
"""

from __future__ import annotations

import ctypes
import os
from typing import Any

import llvmlite.binding as llvm
from llvmlite import ir

#: True in the checked build.
CHECKED = os.environ.get("SHMTRIE_TEST_BUILD", "") == "checked"

WINDOW_SHIFT = 40  # more than a 32-bit node or line number can reach
MAX_WINDOWS = 32
MAX_RECORDS = 16
(A_FOUND, A_SINK, A_WINDOWS, A_N_WINDOWS, A_ARENA, A_ARENA_BYTES, A_PAGES) = range(7)
A_LIMITS = 8
A_RECORDS = A_LIMITS + 2 * MAX_WINDOWS
TABLE_WORDS = A_RECORDS + 3 * MAX_RECORDS

_NAME = "shmtrie_checked_address"
_PAGE_SHIFT = 12
_USER_END = 1 << 47  # no process has memory there
_i8, _i64 = ir.IntType(8), ir.IntType(64)
_text = _i8.as_pointer()
_type = ir.FunctionType(_i64, [_i64, _i64, _text])

if CHECKED:

    def pointer(b: Any, address: Any, type_: Any) -> Any:
        """The address as a pointer to a value of the type, checked."""
        function = b.module.globals.get(_NAME) or ir.Function(b.module, _type, _NAME)
        n_bytes = ir.Constant(_i64, _size(type_))
        return b.inttoptr(b.call(function, [address, n_bytes, _name_of(b)]), type_.as_pointer())

else:

    def pointer(b: Any, address: Any, type_: Any) -> Any:
        """The address as a pointer to a value of the type."""
        return b.inttoptr(address, type_.as_pointer())


def _size(type_: Any) -> int:
    if isinstance(type_, ir.VectorType):
        return int(type_.count) * _size(type_.element)
    return int(type_.width) // 8


def _name_of(b: Any) -> Any:
    """The name of the function that is being generated, as a constant."""
    content = bytearray(b.function.name.encode()[:200] + b"\0")
    name = f".name.{b.function.name}"
    text = b.module.globals.get(name)
    if text is None:
        text = ir.GlobalVariable(b.module, ir.ArrayType(_i8, len(content)), name)
        text.initializer = ir.Constant(text.type.pointee, content)
        text.global_constant, text.linkage = True, "internal"
    return b.bitcast(text, _text)


# ------------------------------------------------------------------------------------------------ the check
def _check_function(table: int) -> Any:
    """A module with the function that compares an address with the table at a fixed place."""
    module = ir.Module("shmtrie_checked")
    function = ir.Function(module, _type, _NAME)
    address, n_bytes, name = function.args
    b = ir.IRBuilder(function.append_basic_block())

    def number(n: int) -> Any:
        return ir.Constant(_i64, n)

    def load(at: Any) -> Any:
        return b.load(b.inttoptr(at, _i64.as_pointer()))

    def store(value: Any, at: Any) -> None:
        b.store(value, b.inttoptr(at, _i64.as_pointer()))

    def word(k: int) -> Any:
        return load(number(table + 8 * k))

    bad = function.append_basic_block("bad")

    def within(first: Any, size: Any, limits: Any, shift: int) -> None:
        """If the address lies in [first, first + size): it has to lie in the limits of its part."""
        at = b.sub(address, first)
        inside, after = function.append_basic_block(), function.append_basic_block()
        b.cbranch(b.icmp_unsigned("<", at, size), inside, after)
        b.position_at_end(inside)
        row = b.add(limits, b.mul(b.lshr(at, number(shift)), number(16)))
        low, high = load(row), load(b.add(row, number(8)))
        good = b.and_(
            b.icmp_unsigned(">=", address, low), b.icmp_unsigned("<=", b.add(address, n_bytes), high)
        )
        fine = function.append_basic_block()
        b.cbranch(good, fine, bad)
        b.position_at_end(fine)
        b.ret(address)
        b.position_at_end(after)

    windows = word(A_WINDOWS)
    unchecked, checked = function.append_basic_block(), function.append_basic_block()
    b.cbranch(b.icmp_unsigned("==", windows, number(0)), unchecked, checked)
    b.position_at_end(unchecked)
    b.ret(address)
    b.position_at_end(checked)
    within(
        windows, b.shl(word(A_N_WINDOWS), number(WINDOW_SHIFT)), number(table + 8 * A_LIMITS), WINDOW_SHIFT
    )
    within(word(A_ARENA), word(A_ARENA_BYTES), word(A_PAGES), _PAGE_SHIFT)
    elsewhere = function.append_basic_block()
    possible = b.icmp_unsigned("<", b.sub(address, number(1 << 16)), number(_USER_END - (1 << 17)))
    b.cbranch(possible, elsewhere, bad)
    b.position_at_end(elsewhere)
    b.ret(address)

    b.position_at_end(bad)
    found = word(A_FOUND)
    store(b.add(found, number(1)), number(table + 8 * A_FOUND))
    keep, done = function.append_basic_block(), function.append_basic_block()
    b.cbranch(b.icmp_unsigned("<", found, number(MAX_RECORDS)), keep, done)
    b.position_at_end(keep)
    row = b.add(number(table + 8 * A_RECORDS), b.mul(found, number(24)))
    store(address, row)
    store(n_bytes, b.add(row, number(8)))
    store(b.ptrtoint(name, _i64), b.add(row, number(16)))
    b.branch(done)
    b.position_at_end(done)
    b.ret(word(A_SINK))
    return module


if CHECKED:
    #: The table of this process.
    table = (ctypes.c_int64 * TABLE_WORDS)()

    def _install() -> Any:
        llvm.initialize_native_target()
        llvm.initialize_native_asmprinter()
        machine = llvm.Target.from_default_triple().create_target_machine(opt=2)
        engine = llvm.create_mcjit_compiler(
            llvm.parse_assembly(str(_check_function(ctypes.addressof(table)))), machine
        )
        engine.finalize_object()
        llvm.add_symbol(_NAME, engine.get_function_address(_NAME))
        return engine

    _engine = _install()  # keeps the machine code
