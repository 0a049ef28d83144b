"""Which NCCL and which UCX this process would use: found by looking, never by loading."""

from __future__ import annotations

import ctypes.util
import importlib.util
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Final

from wtransport.cli.doctor_check import Check

if TYPE_CHECKING:
    from collections.abc import Sequence

NCCL_WHEELS: Final = ("nvidia-nccl-cu13", "nvidia-nccl-cu12")
UCX_WHEELS: Final = ("libucx-cu13", "libucx-cu12", "libucx")


def loaded_libraries() -> list[Path]:
    """Shared objects mapped into this process (those that came with torch, once it is imported)."""
    try:
        lines = Path("/proc/self/maps").read_text().splitlines()
    except OSError:
        return []
    fields = (line.split(maxsplit=5) for line in lines)
    return sorted({Path(item[5]) for item in fields if len(item) == 6 and ".so" in item[5]})


def installed(distributions: Sequence[str]) -> dict[str, str]:
    """Version of each of *distributions* that is installed."""
    found = {}
    for name in distributions:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


# As long as no backend of these names is registered.
_NO_BACKEND: Final = "nothing is missing: no backend of this release uses it"


def check_nccl(loaded: Sequence[Path]) -> list[Check]:
    """The NCCL torch has loaded, else a system's or a wheel's; two wheels at once are a known trap."""
    wheels = installed(NCCL_WHEELS)
    listed = ", ".join(f"{name} {version}" for name, version in wheels.items())
    mapped = [path for path in loaded if path.name.startswith("libnccl.so")]
    # A wheel of CUDA torch is linked with the one it depends on; some builds contain NCCL.
    if mapped:
        check = Check.ok("nccl", f"torch's own: {mapped[0]}" + (f" ({listed})" if listed else ""))
    elif wheels:
        check = Check.ok("nccl", f"wheel: {listed}")
    elif system := ctypes.util.find_library("nccl"):
        check = Check.ok("nccl", f"system: {system}")
    else:
        return [Check.unavailable("nccl", "no libnccl found", _NO_BACKEND)]
    if len(wheels) > 1:
        hint = "keep the one torch requires: both side by side break `import torch`"
        return [check, Check.warning("nccl wheels", listed, hint)]
    return [check]


def check_ucx(loaded: Sequence[Path]) -> list[Check]:
    """The libucp that would be used: loaded already, the system's, or a wheel's."""
    mapped = [path for path in loaded if path.name.startswith("libucp.so")]
    if mapped:
        return [Check.ok("ucx", f"already loaded: {mapped[0]}")]
    if system := ctypes.util.find_library("ucp"):
        return [Check.ok("ucx", f"system: {system}")]
    wheels = installed(UCX_WHEELS)
    if wheels:
        name, version = next(iter(wheels.items()))
        library = _wheel_library("libucx", "libucp.so*")
        if library is None:
            return [Check.unavailable("ucx", f"{name} {version} holds no libucp", f"reinstall {name}")]
        return [Check.ok("ucx", f"wheel: {name} {version}, {library}")]
    return [Check.unavailable("ucx", "no libucp found", _NO_BACKEND)]


def _wheel_library(package: str, pattern: str) -> Path | None:
    try:
        spec = importlib.util.find_spec(package)
    except (ImportError, ValueError):
        return None
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        found = sorted(Path(folder).glob(f"**/{pattern}"))
        if found:
            return found[0]
    return None
