"""The wheel that a plain ``pip wheel .`` builds: what it is called, what it holds, and that it works where it is installed."""

from __future__ import annotations

import faulthandler
import os
import re
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

from tests.helpers.tree import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

_BUILD_LIMIT_S = 800


def _run(*command: str | Path, **options: object) -> str:
    """Run a command to its end; fail with everything it said."""
    outcome = subprocess.run(  # type: ignore[call-overload]
        command, capture_output=True, text=True, timeout=_BUILD_LIMIT_S, **options
    )
    assert outcome.returncode == 0, f"{command}\n{outcome.stdout}\n{outcome.stderr}"
    return str(outcome.stdout)


@pytest.fixture(scope="module")
def bare_path(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A search path with every program of this machine except CMake and ninja."""
    folder = tmp_path_factory.mktemp("bin")
    for program in (path for entry in os.get_exec_path() if Path(entry).is_dir() for path in Path(entry).iterdir()):
        link = folder / program.name
        if not re.match(r"cmake|ctest|cpack|ninja|samu", program.name) and not link.exists():
            link.symlink_to(program)
    return str(folder)


@pytest.fixture(scope="module")
def wheel(bare_path: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel built as pip builds it: in isolation, from a copy of the tree, where neither CMake nor ninja is installed."""
    # A build outlasts the time after which a test's stacks are dumped.
    faulthandler.cancel_dump_traceback_later()
    source = tmp_path_factory.mktemp("source")
    names = ("csrc", "wtransport", "pyproject.toml", "README.md", "LICENSE")
    _run("cp", "-r", *(ROOT / name for name in names if (ROOT / name).exists()), source)
    target = tmp_path_factory.mktemp("wheel")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "wheel", "--no-deps"]
    _run(*pip, "--wheel-dir", target, source, cwd=source, env=os.environ | {"PATH": bare_path})
    (built,) = target.glob("wtransport-*.whl")
    return built


@pytest.fixture(scope="module")
def names(wheel: Path) -> list[str]:
    """Paths inside the wheel."""
    with zipfile.ZipFile(wheel) as archive:
        return archive.namelist()


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that holds the installed wheel and nothing else."""
    target = tmp_path_factory.mktemp("installed")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--no-deps"]
    _run(*pip, "--no-index", "--target", target, wheel)
    return target


def test_wheel_serves_every_later_python(wheel: Path) -> None:
    assert re.fullmatch(r"wtransport-[\d.]+-cp311-abi3-\w*linux\w*\.whl", wheel.name)


def test_wheel_holds_what_users_need(names: list[str]) -> None:
    assert {"wtransport/__init__.py", "wtransport/py.typed", "wtransport/_native.pyi"} <= set(names)
    assert [name for name in names if re.fullmatch(r"wtransport/_native\S*\.so", name)]
    assert any(name.startswith("wtransport/testing/") for name in names)


def test_wheel_holds_every_module_of_the_tree(names: list[str]) -> None:
    tree = {str(path.relative_to(ROOT)) for path in (ROOT / "wtransport").rglob("*.py")}
    assert tree - set(names) == set()


def test_wheel_holds_nothing_else(names: list[str]) -> None:
    metadata = re.compile(r"wtransport-[\d.]+\.dist-info/")
    assert [name for name in names if not name.startswith("wtransport/") and not metadata.match(name)] == []
    assert [name for name in names if name.endswith((".cpp", ".h", ".o", ".a", ".pyc"))] == []
    assert [name for name in names if re.search(r"(^|/)(tests?|conftest)[/.]", name)] == []


def test_native_module_links_no_library_of_others(installed: Path) -> None:
    (module,) = (installed / "wtransport").glob("_native*.so")
    linked = _run("ldd", module)
    foreign = ("torch", "c10", "cuda", "nccl", "libuc", "ibverbs", "libpython")
    assert [line for line in linked.splitlines() if any(name in line for name in foreign)] == []


def test_installed_wheel_works(installed: Path, tmp_path: Path) -> None:
    """Import it in a process that sees the dependencies of this environment but not this tree."""
    script = (
        "import sys, sysconfig; sys.path[:0] = sys.argv[1:]\n"
        "import wtransport, wtransport._native as native\n"
        "engine = native.Engine(1); engine.close()\n"
        "print(wtransport.__file__); print(native.__file__)\n"
    )
    site = sysconfig.get_paths()["purelib"]
    # -S leaves out the .pth files, and with them the editable install of this tree.
    printed = _run(
        *(sys.executable, "-S", "-c", script, str(installed), site),
        cwd=tmp_path,
        env={key: value for key, value in os.environ.items() if key != "PYTHONPATH"},
    )
    assert [Path(line).parent for line in printed.splitlines()] == [installed / "wtransport"] * 2


def test_installed_command_answers(installed: Path, tmp_path: Path) -> None:
    site = sysconfig.get_paths()["purelib"]
    script = "import runpy, sys; sys.path[:0] = sys.argv[1:3]; del sys.argv[1:3]\nrunpy.run_module('wtransport', run_name='__main__')"
    help_text = _run(*(sys.executable, "-S", "-c", script, str(installed), site, "--help"), cwd=tmp_path)
    assert "doctor" in help_text
    assert "demo" in help_text
