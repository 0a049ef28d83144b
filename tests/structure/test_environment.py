"""Only config.py reads the environment; nothing writes to it."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING

from tests.helpers.tree import ROOT, files, module, place

if TYPE_CHECKING:
    from pathlib import Path

_NAMES = {"environ", "environb", "getenv", "getenvb", "putenv", "unsetenv"}


def _uses(path: Path) -> list[str]:
    found = []
    for node in ast.walk(module(path)):
        match node:
            case ast.Attribute(value=ast.Name(id="os"), attr=name) if name in _NAMES:
                found.append(place(path, node.lineno))
            case ast.ImportFrom(module="os", names=names) if _NAMES & {item.name for item in names}:
                found.append(place(path, node.lineno))
            # typer reads a variable by this argument.
            case ast.keyword(arg="envvar"):
                found.append(place(path, node.value.lineno))
    return found


def test_only_config_reads_the_environment() -> None:
    sources = files("wtransport")
    config = ROOT / "wtransport" / "config.py"
    assert config in sources
    assert [use for path in sources if path != config for use in _uses(path)] == []


def test_config_never_writes_the_environment() -> None:
    written = [
        place(config, node.lineno)
        for config in [ROOT / "wtransport" / "config.py"]
        for node in ast.walk(module(config))
        if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store | ast.Del) and ast.unparse(node.value) == "os.environ"
    ]
    assert written == []


def test_native_code_reads_no_environment() -> None:
    pattern = re.compile(r"\b(secure_)?getenv\b|\benviron\b|\b(set|put|unset)env\b")
    found = [
        place(path, number)
        for path in files("csrc", suffixes=(".cpp", ".h", ".inc"))
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if pattern.search(line)
    ]
    assert found == []
