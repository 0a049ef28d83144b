"""No module-level state: two transports in one process share nothing that changes."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from tests.helpers.tree import files, module, place

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_MUTABLE = (ast.List, ast.Dict, ast.Set, ast.ListComp, ast.DictComp, ast.SetComp)
_MAKERS = {"list", "dict", "set", "deque", "defaultdict", "OrderedDict", "Counter", "bytearray"}
_MUTATORS = {
    *("append", "extend", "insert", "add", "update", "setdefault"),
    *("pop", "popitem", "remove", "discard", "clear", "appendleft", "popleft"),
}


def _is_mutable(value: ast.expr | None) -> bool:
    match value:
        case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name)):
            return name in _MAKERS
        case _:
            return isinstance(value, _MUTABLE)


def _assigned(tree: ast.Module) -> Iterator[tuple[str, ast.stmt, ast.expr | None]]:
    for node in tree.body:
        if isinstance(node, ast.Assign):
            for target in node.targets:
                if isinstance(target, ast.Name):
                    yield target.id, node, node.value
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            yield node.target.id, node, node.value


def _is_constant(name: str) -> bool:
    return name.isupper() or (name.startswith("__") and name.endswith("__"))


def _changed_names(tree: ast.Module) -> Iterator[tuple[str, int]]:
    """Names a function of the module changes in place: ``X[k] = v``, ``X.append(v)``, ``del X[k]``."""
    for function in ast.walk(tree):
        if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        for node in ast.walk(function):
            match node:
                case ast.Subscript(value=ast.Name(id=name), ctx=ast.Store() | ast.Del()):
                    yield name, node.lineno
                case ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr=attr)):
                    if attr in _MUTATORS:
                        yield name, node.lineno


def _sources() -> list[Path]:
    found = files("wtransport")
    assert found
    return found


def test_mutable_values_of_modules_are_constants_by_name() -> None:
    found = [
        f"{place(path, node.lineno)} {name}"
        for path in _sources()
        for name, node, value in _assigned(module(path))
        if _is_mutable(value) and not _is_constant(name)
    ]
    assert found == []


def test_constants_of_modules_are_never_changed() -> None:
    found = []
    for path in _sources():
        constants = {name for name, _, value in _assigned(module(path)) if _is_mutable(value)}
        found += [f"{place(path, line)} {name}" for name, line in _changed_names(module(path)) if name in constants]
    assert found == []


def test_no_global_statement() -> None:
    found = [place(path, node.lineno) for path in _sources() for node in ast.walk(module(path)) if isinstance(node, ast.Global)]
    assert found == []
