"""What the library itself needs: Python, torch, the native core, and the files it keeps.

Every function here looks and returns findings; none changes anything, none raises.
"""

from __future__ import annotations

import importlib
import os
import platform
import re
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from wtransport.cli import doctor_host, doctor_vendors
from wtransport.cli.doctor_check import Check
from wtransport.config import TransportConfig, secret_path, state_dir
from wtransport.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

PYTHON_LOWEST: Final = (3, 11)
TORCH_RANGE: Final = ((2, 6), (2, 15))
TRUSTED_NETWORK: Final = "NCCL and UCX payloads are neither encrypted nor authenticated: use these backends on a trusted network only."

_CHECKS: Final[Sequence[Callable[[], Sequence[Check]]]] = (
    lambda: [check_python(sys.version_info[:3])],
    lambda: check_torch(),
    lambda: [check_native()],
    doctor_host.check_memory,
    doctor_host.check_limits,
    doctor_host.check_network,
    lambda: doctor_vendors.check_nccl(doctor_vendors.loaded_libraries()),
    lambda: doctor_vendors.check_ucx(doctor_vendors.loaded_libraries()),
    lambda: check_files(),
)


def run_checks() -> list[Check]:
    """All findings about this machine and installation, in the order of the report."""
    return [check for look in _CHECKS for check in look()]


def check_python(version: tuple[int, int, int]) -> Check:
    """Whether Python is new enough."""
    text = ".".join(map(str, version))
    reason = f"{platform.python_implementation()} {text} on {platform.system()} {platform.machine()}"
    if version < PYTHON_LOWEST:
        needed = ".".join(map(str, PYTHON_LOWEST))
        return Check.unavailable("python", reason, f"needs {needed} or newer", required=True)
    return Check.ok("python", reason, required=True)


def check_torch() -> list[Check]:
    """Torch's version and build, and the CUDA devices it would see; CUDA is not initialised."""
    try:
        torch: Any = importlib.import_module("torch")
    except (ImportError, OSError) as error:
        return [Check.unavailable("torch", str(error), "pip install torch", required=True)]
    cuda = torch.version.cuda
    build = f"built for CUDA {cuda}" if cuda else "CPU build"
    return [check_torch_version(str(torch.__version__), build), _check_cuda(torch)]


def check_torch_version(version: str, build: str) -> Check:
    """Whether a torch of *version* is in the range this library is tested with."""
    reason = f"{version}, {build}"
    found = re.match(r"(\d+)\.(\d+)", version)
    lowest, highest = (".".join(map(str, end)) for end in TORCH_RANGE)
    number = (int(found[1]), int(found[2])) if found else (0, 0)
    if number < TORCH_RANGE[0]:
        hint = f"needs torch {lowest} or newer"
        return Check.unavailable("torch", reason, hint, required=True)
    if number > TORCH_RANGE[1]:
        return Check.warning("torch", reason, f"tested with torch {lowest} to {highest}")
    return Check.ok("torch", reason, required=True)


def _check_cuda(torch: Any) -> Check:
    if not torch.version.cuda:
        return Check.unavailable("cuda", "torch is a CPU build", "weights in GPU memory need a CUDA build of torch")
    try:
        count = int(torch.cuda.device_count())
    except RuntimeError as error:
        return Check.unavailable("cuda", str(error).partition("\n")[0])
    if not count:
        return Check.unavailable("cuda", "no device is visible", "look at nvidia-smi")
    models = doctor_host.gpu_models(Path("/proc/driver/nvidia/gpus"))
    names = f": {', '.join(sorted(set(models)))}" if models else ""
    return Check.ok("cuda", f"{count} device{'s' if count > 1 else ''}{names}")


def check_native() -> Check:
    """Whether the native core loads, and which copy kernels it chose."""
    try:
        native: Any = importlib.import_module("wtransport._native")
    except ImportError as error:
        hint = "install the package: pip install wtransport (a source tree: make setup)"
        return Check.unavailable("native core", str(error), hint, required=True)
    chosen = getattr(native, "kernels", None)
    reason = f"copy kernels {chosen()}" if callable(chosen) else "loaded"
    return Check.ok("native core", reason, required=True)


def check_files() -> list[Check]:
    """The settings from the environment, the state directory and the per-user secret."""
    try:
        config = TransportConfig.from_env()
    except ConfigError as error:
        return [Check.unavailable("settings", str(error)), check_secret(secret_path())]
    return [
        Check.ok("settings", "the environment's settings are valid"),
        check_state_dir(state_dir(config)),
        check_secret(secret_path()),
    ]


def check_state_dir(folder: Path) -> Check:
    """Whether flight rings can be made in *folder*, which need not exist yet."""
    hint = "set WTRANSPORT_RECORDER_DIR to a folder of yours"
    existing = folder
    while not existing.exists() and existing != existing.parent:
        existing = existing.parent
    if not existing.is_dir():
        return Check.unavailable("state directory", f"{existing} is not a folder", hint)
    try:
        with tempfile.NamedTemporaryFile(dir=existing):
            free = os.statvfs(existing)
    except OSError as error:
        return Check.unavailable("state directory", f"{folder}: {error.strerror}", hint)
    free_mib = free.f_bavail * free.f_frsize >> 20
    if free_mib < 64:
        return Check.warning("state directory", f"{folder}: {free_mib} MiB free", "free some space")
    later = "" if folder == existing else ", made on first use"
    return Check.ok("state directory", f"{folder}{later}")


def check_secret(path: Path) -> Check:
    """Whether the per-user secret is this user's alone."""
    try:
        info = path.lstat()
    except FileNotFoundError:
        return Check.ok("user secret", f"{path}, made on first use")
    except OSError as error:
        return Check.unavailable("user secret", f"{path}: {error.strerror}")
    if info.st_uid != os.getuid():
        hint = "remove it, or set WTRANSPORT_SECRET"
        return Check.unavailable("user secret", f"{path} belongs to user {info.st_uid}", hint)
    if info.st_mode & 0o077:
        mode = f"{info.st_mode & 0o777:04o}"
        hint = f"chmod 600 {path}; others may have read it: removing it makes a new one"
        return Check.unavailable("user secret", f"{path} is open to others (mode {mode})", hint)
    return Check.ok("user secret", f"{path}, mode 0600")
