"""``import wtransport`` changes nothing in the process that imports it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.helpers.scripts import Outcome

_VENDOR_LIBRARIES = ("libcuda", "libcudart", "libnccl", "libucp", "libuct", "libucs", "libibverbs")


def _import_and_compare() -> None:
    import json
    import os
    import signal
    import sys
    import threading
    import warnings

    # What the library depends on is loaded before the first look: it answers for itself.
    import msgpack
    import numpy
    import torch

    def look() -> dict[str, object]:
        return {
            "environment": dict(os.environ),
            "descriptors": {
                fd: os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd") if os.path.exists(f"/proc/self/fd/{fd}")
            },
            "threads": len(os.listdir("/proc/self/task")),
            "python threads": threading.active_count(),
            "signal handlers": [str(signal.getsignal(number)) for number in signal.valid_signals()],
            "folder": os.getcwd(),
            "warning filters": len(warnings.filters),
            "hooks": [repr(sys.excepthook), repr(threading.excepthook), repr(sys.unraisablehook)],
            "torch threads": torch.get_num_threads(),
            "default dtype": str(torch.get_default_dtype()),
            "cuda": torch.cuda.is_initialized(),
        }

    def libraries() -> set[str]:
        with open("/proc/self/maps") as maps:
            return {line.split()[-1] for line in maps if ".so" in line}

    before, libraries_before = look(), libraries()
    import wtransport

    after = look()
    seen = {
        "imported": [msgpack.__name__, numpy.__name__, wtransport.__name__],
        "changed": {key: [old, after[key]] for key, old in before.items() if old != after[key]},
        "cuda": after["cuda"],
        "modules": sorted(sys.modules),
        "loaded": sorted(libraries() - libraries_before),
    }
    print(json.dumps(seen))


def _seen(run_python: Callable[..., Outcome]) -> dict[str, object]:
    outcome = run_python(_import_and_compare)
    assert outcome.returncode == 0, outcome.stderr
    seen: dict[str, object] = json.loads(outcome.stdout)
    return seen


def test_import_changes_nothing(run_python: Callable[..., Outcome]) -> None:
    seen = _seen(run_python)
    assert seen["changed"] == {}
    assert seen["cuda"] is False


def test_import_loads_no_vendor_library(run_python: Callable[..., Outcome]) -> None:
    loaded = _seen(run_python)["loaded"]
    assert isinstance(loaded, list)
    assert [path for path in loaded if any(name in path for name in _VENDOR_LIBRARIES)] == []


def test_import_loads_neither_command_line_nor_tests(run_python: Callable[..., Outcome]) -> None:
    modules = _seen(run_python)["modules"]
    assert isinstance(modules, list)
    unwanted = {"typer", "click", "pytest", "hypothesis", "ray", "uvloop", "prometheus_client"}
    assert unwanted & set(modules) == set()
    parts = {".".join(name.split(".")[:2]) for name in modules}
    assert {"wtransport.cli", "wtransport.testing"} & parts == set()


def test_import_is_silent(run_python: Callable[..., Outcome]) -> None:
    script = "import torch, warnings; warnings.simplefilter('error'); import wtransport"
    outcome = run_python(script)
    assert (outcome.returncode, outcome.stdout, outcome.stderr) == (0, "", "")
