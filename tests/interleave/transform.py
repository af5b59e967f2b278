"""The kernels' own source files as Python generators.

Every module of ``shmtrie/kernels`` is parsed and rewritten: an access to a word that several processes touch
becomes a ``yield`` of what is to be done with it, a call of a function that may yield becomes ``yield from``,
and all other words are read and written in the memory of the process that runs. Arithmetic that may leave 64
bits is brought back to int64, as numba has it. What is compiled for the product and what is explored here is
one text; a negative control is an edit of that text.

A yielded operation is ``(kind, word, x, y, site)``: the kind is one of those below, the word an address that
is a multiple of 8, `site` indexes ``Program.sites``.
"""

from __future__ import annotations

import ast
import copy
import functools
import importlib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np

from shmtrie.kernels import cache
from tests.interleave.memory import HELPERS, vector_operations

(LOAD, STORE, CAS, ADD, AND, FENCE, PAUSE, STORE32, CAS32, SWAP) = range(10)
KINDS = ("load", "store", "cas", "add", "and", "fence", "pause", "store32", "cas32", "swap")
#: Kinds that change a word.
CHANGES = frozenset((STORE, CAS, ADD, AND, STORE32, CAS32, SWAP))

PACKAGE = Path(cache.__file__).resolve().parents[1]
REAL = {"build", "cache", "cachelock", "hooks", "context"}  # modules that stay as they are

_LOADS = {"ld64", "ld64a", "ld64s", "pl64"}
_STORES = {"st64": STORE, "st64r": STORE, "st64s": SWAP}
_CHANGES = {"cas64": CAS, "add64": ADD, "and64": AND, "cas32": CAS32, "st32": STORE32}
_METHODS = {STORE: "put", SWAP: "put", CAS: "cas", ADD: "add", AND: "and_", STORE32: "put32", CAS32: "cas32"}
_NOTHING = {"fence_acquire", "fence_release", "at", "prefetch", "prefetch_child", "lookup_prefetch"}
_NOTHING |= {"alias_prefetch", "entry_prefetch", "_look_ahead"}
_YIELDING = _LOADS | {*_STORES, *_CHANGES, "ld32", "fence_full", "pause"}
#: Functions that touch private memory only, or counters that nothing depends on.
_PRIVATE = {"scratch_get", "scratch_put", "count"}
_BYTES = {"pl8", "ps8"}
_M64, _TOP = (1 << 64) - 1, 1 << 63

Edit = tuple[str, str, str]  # file below shmtrie/, old text, new text


def _parse(text: str) -> Any:
    return ast.parse(text, mode="eval").body


class _Rewriter(ast.NodeTransformer):
    """One module: its functions, given which imported names may yield."""

    def __init__(self, module: str, real: Any, yielding: set[str], known: set[str]) -> None:
        self.module, self.real = module, real
        self.yielding, self.known = yielding, known
        self._private, self._n = False, 0

    # -- helpers ----------------------------------------------------------------------------------
    def _site(self, node: ast.AST) -> ast.Constant:
        return ast.Constant(f"{self.module}.py:{node.lineno} {ast.unparse(node)}")  # type: ignore[attr-defined]

    def _temporary(self) -> str:
        self._n += 1
        return f"_t{self._n}"

    def _number(self, node: ast.AST) -> int | None:
        if isinstance(node, ast.Constant) and isinstance(node.value, int):
            return node.value
        if isinstance(node, ast.Name) and isinstance(
            value := getattr(self.real, node.id, None), int | np.integer
        ):
            return int(value)
        return None

    def _operation(self, kind: int, *parts: Any) -> ast.Yield:
        """(yield (kind, word, x, y, site))"""
        *values, site = parts
        values += [ast.Constant(0)] * (3 - len(values))
        return ast.Yield(ast.Tuple([ast.Constant(kind), *values, site], ast.Load()))

    # -- nodes ------------------------------------------------------------------------------------
    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.FunctionDef:
        self._private = node.name in _PRIVATE
        node.decorator_list = []
        node.args.args.insert(0, ast.arg("_m"))
        self.generic_visit(node)
        if node.name in self.yielding:  # a generator, also if all that yields was dropped
            node.body += ast.parse("if 0: yield").body
        return node

    def visit_BinOp(self, node: ast.BinOp) -> ast.AST:
        small = any(
            (number := self._number(side)) is not None and abs(number) < 1 << 20
            for side in (node.left, node.right)
        )
        shift = isinstance(node.op, ast.LShift) and (
            self._number(node.left) is None or self._number(node.right) is None
        )
        self.generic_visit(node)
        if (isinstance(node.op, ast.Mult) and not small) or shift:
            wrapped = _parse(f"((x + {_TOP}) & {_M64}) - {_TOP}")
            wrapped.left.left.left = node
            return wrapped
        return node

    def visit_Call(self, node: ast.Call) -> Any:
        if not isinstance(node.func, ast.Name):
            raise NotImplementedError(ast.unparse(node))
        name, site = node.func.id, node
        if name in _NOTHING:
            return ast.Constant(None)
        original = copy.copy(node)
        original.args = copy.deepcopy(node.args)
        self.generic_visit(node)
        args = node.args
        if name in ("get", "put"):
            return self._context(name, args)
        if name == "lshr":
            made = _parse(f"(x & {_M64}) >> n")
            made.left.left, made.right = args
            return made
        if name in ("ctz", "mulhi", "ones"):
            node.func = ast.Name(f"_{name}", ast.Load())
            return node
        if name == "ps64":
            return ast.Call(_parse("_m.keep"), args, [])
        if name in _LOADS or name == "ld32":
            return self._load(name, args[0], self._site(original))
        if name in _STORES or name in _CHANGES:
            return self._change(name, args, self._site(original))
        if name == "fence_full":
            made = _parse("y if _tso else None")
            made.body = self._operation(FENCE, self._site(original))
            return made
        if name == "pause":
            return self._operation(PAUSE, self._site(original))
        if name in self.known:
            node.args = [ast.Name("_m", ast.Load()), *args]
            return ast.YieldFrom(node) if name in self.yielding else node
        assert name in {"min", "max", "range", "abs", "len", "HookAbandon"}, (self.module, ast.unparse(site))
        return node

    def _context(self, name: str, args: list[Any]) -> Any:
        """A word of the context: private memory at a fixed place."""
        index = self._number(args[1])
        at = _parse(f"c + {index * 8}" if index is not None else "c + k * 8")
        at.left = args[0]
        if index is None:
            at.right.left = args[1]
        if name == "get":
            return ast.Subscript(_parse("_m"), at, ast.Load())
        return ast.Call(_parse("_m.keep"), [at, args[2]], [])

    def _load(self, name: str, address: Any, site: ast.Constant) -> Any:
        if self._private:
            return ast.Subscript(_parse("_m"), address, ast.Load())
        t = self._temporary()
        if name != "ld32":
            made = _parse(f"y if ({t} := x) in _S else _m[{t}]")
            made.test.left.value = address
            made.body = self._operation(LOAD, _parse(t), site)
            return made
        w = self._temporary()
        made = _parse(f"_half(y if ({w} := ({t} := x) & -8) in _S else _m[{w}], {t})")
        choice = made.args[0]
        choice.test.left.value.left.value = address
        choice.body = self._operation(LOAD, _parse(w), site)
        return made

    def _change(self, name: str, args: list[Any], site: ast.Constant) -> Any:
        if self._private:
            return ast.Call(_parse("_m.keep"), args, [])
        kind = _STORES.get(name, _CHANGES.get(name, -1))
        t = self._temporary()
        made = _parse(
            f"y if ({t} := x){' & -8' if name.endswith('32') else ''} in _S else _m.{_METHODS[kind]}({t})"
        )
        left = made.test.left
        (left.left if name.endswith("32") else left).value = args[0]
        made.body = self._operation(kind, _parse(t), *copy.deepcopy(args[1:]), site)
        made.orelse.args += args[1:]
        return made


class Module(NamedTuple):
    """A rewritten module: code, and which of its functions may yield."""

    code: Any
    functions: frozenset[str]
    yielding: frozenset[str]
    imports: tuple[tuple[str, str], ...]


@functools.cache
def _rewritten(name: str, text: str) -> Module:
    tree = ast.parse(text)
    imports: list[tuple[str, str]] = []
    known, yielding = set[str](), set[str]()
    body: list[ast.stmt] = []
    for statement in tree.body:
        if not isinstance(statement, ast.Import | ast.ImportFrom):
            body.append(statement)
        elif isinstance(statement, ast.ImportFrom) and (statement.module or "").startswith("shmtrie."):
            assert statement.module is not None
            imports += [(statement.module, alias.name) for alias in statement.names]
    for module, imported in imports:
        short = module.rpartition(".")[2]
        if module == "shmtrie.vectors":
            known.add(imported)
            yielding.add(imported)
        elif module.startswith("shmtrie.kernels.") and short not in REAL:
            other = load_module(short)
            if imported in other.functions:
                known.add(imported)
                if imported in other.yielding:
                    yielding.add(imported)
    calls = {
        node.name: {
            c.func.id for c in ast.walk(node) if isinstance(c, ast.Call) and isinstance(c.func, ast.Name)
        }
        for node in body
        if isinstance(node, ast.FunctionDef)
    }
    # packed events are read by bytes: only what is below them is explored
    body = [node for node in body if not (isinstance(node, ast.FunctionDef) and calls[node.name] & _BYTES)]
    own = {node.name for node in body if isinstance(node, ast.FunctionDef)}
    known |= own
    more = True
    while more:
        more = False
        for function, called in calls.items():
            if (
                function in own
                and function not in yielding
                and function not in _PRIVATE
                and called & (yielding | _YIELDING)
            ):
                yielding.add(function)
                more = True
    rewriter = _Rewriter(name, importlib.import_module(f"shmtrie.kernels.{name}"), yielding, known)
    tree.body = [rewriter.visit(node) if isinstance(node, ast.FunctionDef) else node for node in body]
    code = compile(ast.fix_missing_locations(tree), f"<{name}>", "exec")
    return Module(code, frozenset(own), frozenset(yielding), tuple(imports))


def load_module(name: str, edits: Iterable[tuple[str, str]] = ()) -> Module:
    """A module rewritten from its source, or from an edited one."""
    text = (PACKAGE / "kernels" / f"{name}.py").read_text()
    for old, new in edits:
        assert text.count(old) == 1, f"{name}.py has this {text.count(old)} times, not once:\n{old}"
        text = text.replace(old, new)
    return _rewritten(name, text)


class Program:
    """The kernels as generators, linked.

    Parameters
    ----------
    shared : set of int
        Addresses (multiples of 8) of the words whose accesses are yielded.
    edits : iterable of Edit
        Changes of the source, for a negative control.
    constants : mapping of str to int
        Module constants to set, as bounds of loops; each has to exist.
    tso : bool
        Whether fences are yielded.
    """

    def __init__(
        self,
        shared: set[int],
        edits: Iterable[Edit] = (),
        constants: Mapping[str, int] | None = None,
        tso: bool = False,
    ) -> None:
        self.shared = shared
        self._edits = tuple(edits)
        self._constants, self._set = dict(constants or {}), set[str]()
        self._spaces: dict[str, dict[str, Any]] = {}
        self._globals = {"_S": shared, "_tso": tso, **HELPERS}
        self._vectors = vector_operations(shared)

    def __getitem__(self, module: str) -> Any:
        """The functions of a module as attributes."""
        return SimpleNamespace(**self._space(module))

    def unset(self) -> set[str]:
        """Constants that no module that was loaded has."""
        return self._constants.keys() - self._set

    def _space(self, name: str) -> dict[str, Any]:
        if name in self._spaces:
            return self._spaces[name]
        edits = [(old, new) for file, old, new in self._edits if file == f"kernels/{name}.py"]
        module = load_module(name, edits)
        space: dict[str, Any] = {"__name__": name, "np": np, **self._globals}
        for source, imported in module.imports:
            short = source.rpartition(".")[2]
            if source == "shmtrie.vectors":
                space[imported] = self._vectors[imported]
            elif source.startswith("shmtrie.kernels.") and short not in REAL:
                space[imported] = self._space(short)[imported]
            else:
                space[imported] = _plain(getattr(importlib.import_module(source), imported))
        exec(module.code, space)
        for key in self._constants.keys() & space.keys():
            space[key] = self._constants[key]
            self._set.add(key)
        for key, value in list(space.items()):
            space[key] = _plain(value)
        self._spaces[name] = space
        return space


def _plain(value: Any) -> Any:
    """numpy numbers and arrays as Python ones, enums as ints."""
    if isinstance(value, np.ndarray):
        return value.tolist()
    return int(value) if isinstance(value, np.integer) else value


Kernel = Callable[..., Any]
