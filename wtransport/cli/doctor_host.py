"""What the host allows: shared memory, limits, processes, network."""

from __future__ import annotations

import contextlib
import fcntl
import ipaddress
import mmap
import os
import resource
import socket
import struct
from pathlib import Path
from typing import Final

from wtransport.cli.doctor_check import Check

_MIB: Final = 1 << 20
_SIOCGIFADDR: Final = 0x8915
_SEALS: Final = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL


def check_memory() -> list[Check]:
    """Sealed memfds passed between processes, ``/dev/shm``, and the cgroup's memory limit."""
    return [check_shm(), check_dev_shm(Path("/dev/shm")), check_cgroup(Path("/"))]


def check_limits() -> list[Check]:
    """Locked memory, ptrace scope, pidfds."""
    soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    scope = Path("/proc/sys/kernel/yama/ptrace_scope")
    return [check_memlock(soft), check_ptrace_scope(scope), check_pidfd()]


def check_network() -> list[Check]:
    """Interfaces with addresses, and a connection over each loopback."""
    return [
        check_interfaces(interfaces()),
        check_loopback(socket.AF_INET, "127.0.0.1"),
        check_loopback(socket.AF_INET6, "::1"),
    ]


def check_shm() -> Check:
    """Make, seal, map, write and pass 1 MiB of shared memory, as the shm backend does."""
    try:
        with contextlib.ExitStack() as stack:
            fd = os.memfd_create("wtransport-doctor", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
            stack.callback(os.close, fd)
            os.ftruncate(fd, _MIB)
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _SEALS)
            if fcntl.fcntl(fd, fcntl.F_GET_SEALS) & _SEALS != _SEALS:
                return Check.unavailable("shm", "the kernel does not keep a memfd's seals")
            written = stack.enter_context(mmap.mmap(fd, _MIB))
            written[-8:] = b"wtdoctor"
            left, right = socket.socketpair()
            stack.enter_context(left)
            stack.enter_context(right)
            for end in (left, right):
                end.settimeout(5)
            socket.send_fds(left, [b"x"], [fd])
            _, passed, _, _ = socket.recv_fds(right, 1, 1)
            for received in passed:
                stack.callback(os.close, received)
            read = stack.enter_context(mmap.mmap(passed[0], _MIB, prot=mmap.PROT_READ))
            if read[-8:] != b"wtdoctor":
                return Check.unavailable("shm", "a passed memfd shows other bytes")
    except (OSError, IndexError) as error:
        return Check.unavailable("shm", f"a sealed memfd cannot be made and passed: {error}")
    return Check.ok("shm", "a sealed memfd of 1 MiB was made, mapped, and passed over a socket")


def check_dev_shm(folder: Path) -> Check:
    """Size of ``/dev/shm``: NCCL and UCX use it, this library's own shared memory does not."""
    try:
        info = os.statvfs(folder)
    except OSError as error:
        return Check.warning("/dev/shm", f"{error.strerror}", "NCCL and UCX on one host need it")
    size, free = info.f_blocks * info.f_frsize, info.f_bavail * info.f_frsize
    reason = f"{_size(size)}, {_size(free)} free"
    if free < 512 * _MIB:
        return Check.warning("/dev/shm", reason, "NCCL needs more: docker run --shm-size=8g")
    return Check.ok("/dev/shm", reason)


def check_cgroup(root: Path) -> Check:
    """The tightest memory limit over this process's cgroups; shared memory counts against it."""
    limits = [limit for limit in cgroup_limits(root) if limit is not None]
    if not limits:
        return Check.ok("cgroup memory", "no limit")
    reason = f"limit {_size(min(limits))}"
    if min(limits) < 4 << 30:
        hint = "shared memory counts: two slots of the weights for each generator in it"
        return Check.warning("cgroup memory", reason, hint)
    return Check.ok("cgroup memory", reason)


def cgroup_limits(root: Path) -> list[int | None]:
    """Memory limits in bytes of this process's cgroup and those above it (v2, then v1); None: unlimited."""
    limits: list[int | None] = []
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return limits
    for line in lines:
        _, controllers, name = line.split(":", 2)
        if controllers and "memory" not in controllers.split(","):
            continue
        base = root / "sys/fs/cgroup" / ("memory" if controllers else "")
        leaf = "memory.limit_in_bytes" if controllers else "memory.max"
        group = Path(name.lstrip("/"))
        for folder in (group, *group.parents):
            with contextlib.suppress(OSError, ValueError):
                text = (base / folder / leaf).read_text().strip()
                # v1 says "no limit" with a number near 2**63.
                limits.append(None if text == "max" or int(text) >= 1 << 60 else int(text))
    return limits


def check_memlock(limit: int) -> Check:
    """Whether memory can be locked, which RDMA registration needs."""
    if limit == resource.RLIM_INFINITY:
        return Check.ok("memlock", "unlimited")
    return Check.warning("memlock", _size(limit), "RDMA registration needs more: ulimit -l unlimited")


def check_ptrace_scope(path: Path) -> Check:
    """Whether processes of one user may read each other's memory, which UCX uses on one host."""
    try:
        scope = int(path.read_text())
    except (OSError, ValueError):
        return Check.ok("ptrace scope", "not restricted (no Yama)")
    if scope == 0:
        return Check.ok("ptrace scope", "0: processes of one user may read each other's memory")
    hint = "UCX cannot copy directly between processes here; shm does not need it"
    return Check.warning("ptrace scope", f"{scope}", hint)


def check_pidfd() -> Check:
    """Whether the death of a process on this host is seen at once."""
    try:
        os.close(os.pidfd_open(os.getpid()))
    except OSError as error:
        hint = "a dead member on this host is found by its silence only; pidfds need Linux 5.3"
        return Check.warning("pidfd", f"pidfd_open: {error.strerror}", hint)
    return Check.ok("pidfd", "the end of a process is seen, also while a child holds its sockets")


def interfaces() -> dict[str, list[str]]:
    """Addresses of each network interface: the primary IPv4 one, and every IPv6 one."""
    found: dict[str, list[str]] = {}
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            found[name] = []
            request = struct.pack("256s", name.encode()[:15])
            with contextlib.suppress(OSError):
                answer = fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, request)
                found[name].append(socket.inet_ntoa(answer[20:24]))
    with contextlib.suppress(OSError):
        for line in Path("/proc/net/if_inet6").read_text().splitlines():
            digits, _, _, _, _, name = line.split()
            found.setdefault(name, []).append(str(ipaddress.IPv6Address(int(digits, 16))))
    return found


def check_interfaces(found: dict[str, list[str]]) -> Check:
    """Whether there is an address other hosts could reach."""
    used = {name: addresses for name, addresses in found.items() if addresses}
    reason = "; ".join(f"{name} {', '.join(addresses)}" for name, addresses in used.items())
    beyond = [
        address
        for addresses in used.values()
        for address in map(ipaddress.ip_address, addresses)
        if not address.is_loopback and not address.is_link_local
    ]
    if not beyond:
        return Check.warning("network", reason or "no interface has an address", "only members on this host can join")
    return Check.ok("network", reason)


def check_loopback(family: socket.AddressFamily, host: str) -> Check:
    """Connect over loopback and move a byte."""
    name = f"tcp {host}"
    try:
        with socket.socket(family, socket.SOCK_STREAM) as listener:
            listener.bind((host, 0))
            listener.listen(1)
            listener.settimeout(5)
            with socket.create_connection(listener.getsockname()[:2], timeout=5) as client:
                server, _ = listener.accept()
                with server:
                    client.sendall(b"x")
                    server.settimeout(5)
                    if server.recv(1) != b"x":
                        return Check.unavailable(name, "the connection closed at once")
    except OSError as error:
        if family == socket.AF_INET6:
            return Check.warning(name, f"{error}", "IPv6 addresses cannot be used here")
        return Check.unavailable(name, f"{error}", "is the loopback interface up?")
    return Check.ok(name, "connected")


def gpu_models(folder: Path) -> list[str]:
    """Model of every NVIDIA GPU the driver lists (for all processes, whatever is visible to this one)."""
    models = []
    for path in sorted(folder.glob("*/information")):
        with contextlib.suppress(OSError):
            for line in path.read_text().splitlines():
                key, _, value = line.partition(":")
                if key.strip() == "Model":
                    models.append(value.strip())
    return models


def _size(nbytes: int) -> str:
    value = nbytes / _MIB
    return f"{value:.0f} MiB" if value < 1024 else f"{value / 1024:.1f} GiB"
