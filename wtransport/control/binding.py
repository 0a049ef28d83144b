"""Binding: a url to listening sockets, refusing what would let strangers in."""

from __future__ import annotations

import asyncio
import errno
import socket
import threading
from pathlib import Path
from typing import TYPE_CHECKING

from wtransport.control.address import (
    Target,
    TcpAddress,
    UnixAddress,
    address_of,
    is_loopback_ip,
    resolve,
)
from wtransport.control.unix_path import BoundPath, bind_path
from wtransport.errors import BusyError, ConfigError, DeadlineError, exhausted

if TYPE_CHECKING:
    from wtransport.control.address import Address
    from wtransport.control.secret import Secret

_LOCK_PAUSE_S = 0.01
# A free port of one address may be taken on another of the same name: then all is tried again.
_PORT_TRIES = 16
_IN_USE_HINT = "let the system choose: port 0, then advertise the bound address"


async def bind_tcp(address: TcpAddress, secret: Secret | None, backlog: int, timeout_s: float) -> list[socket.socket]:
    """Listen on every address that the host name has on this machine, all with one port.

    Raises:
        ConfigError: If the host is not of this machine, does not resolve, or is reachable from
            other hosts while there is no secret of the job.
        BusyError: If the port is taken.
        DeadlineError: If the name was not resolved in time.
    """
    try:
        async with asyncio.timeout(timeout_s):
            targets = await resolve(address)
    except TimeoutError as error:
        raise DeadlineError(f"{address.host!r} was not resolved in {timeout_s:g} s") from error
    except ConnectionError as error:
        raise ConfigError(f"cannot listen on {address}: {error}") from error
    for target in targets:
        check_reach(address_of(target.family, target.sockaddr), secret)
    tries = _PORT_TRIES if address.port == 0 else 1
    while True:
        tries -= 1
        try:
            return _bind_all(address, targets, backlog)
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise exhausted(error, f"listen on {address}") or ConfigError(f"cannot listen on {address}: {error.strerror}") from error
            if not tries:
                raise BusyError(f"{address} is in use", hint=_IN_USE_HINT) from error


def bind_abstract(address: UnixAddress, backlog: int) -> socket.socket:
    """Listen on an abstract name.

    Raises:
        BusyError: If the name is taken.
        ConfigError: If this system refuses it.
    """
    try:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    except OSError as error:
        raise exhausted(error, f"listen on {address}") or ConfigError(f"cannot listen on {address}: {error.strerror}") from error
    try:
        sock.setblocking(False)
        sock.bind(address.sockaddr)
        sock.listen(backlog)
    except OSError as error:
        sock.close()
        if error.errno == errno.EADDRINUSE:
            raise BusyError(f"another process listens on {address}") from error
        raise ConfigError(f"cannot listen on {address}: {error.strerror}") from error
    return sock


async def bind_unix(address: UnixAddress, backlog: int, timeout_s: float) -> BoundPath:
    """Listen on a path; see `bind_path`.

    Raises:
        BusyError: If somebody listens there, or holds the folder's lock until the deadline.
        ConfigError: If the path cannot be used.
    """
    loop = asyncio.get_running_loop()
    ends_s = loop.time() + timeout_s
    while loop.time() < ends_s:
        bound = loop.run_in_executor(None, bind_path, Path(address.name), backlog)
        try:
            if (made := await asyncio.shield(bound)) is not None:
                return made
        except asyncio.CancelledError:
            bound.add_done_callback(_undo)
            raise
        await asyncio.sleep(_LOCK_PAUSE_S)
    raise BusyError(f"the folder of {address} was locked by others for {timeout_s:g} s")


def check_reach(address: Address, secret: Secret | None) -> None:
    """Refuse an address that other hosts can reach unless they must know the job's secret.

    Raises:
        ConfigError: If it is not loopback and there is no secret of scope ``job``.
    """
    if isinstance(address, UnixAddress) or (secret is not None and secret.scope == "job"):
        return
    if not is_loopback_ip(address.host):
        raise ConfigError(
            f"{address} can be reached from other hosts and the job has no secret",
            hint="give every member of the job the same secret, or listen on loopback",
        )


def _bind_all(address: TcpAddress, targets: list[Target], backlog: int) -> list[socket.socket]:
    bound: list[socket.socket] = []
    port, missing = address.port, None
    try:
        for target in targets:
            sock = socket.socket(target.family, socket.SOCK_STREAM)
            bound.append(sock)
            sock.setblocking(False)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if target.family == socket.AF_INET6:
                # ``[::]`` means every address of this host, those of IPv4 included.
                sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
            try:
                sock.bind(target.with_port(port))
            except OSError as error:
                if error.errno != errno.EADDRNOTAVAIL:
                    raise
                missing = error
                bound.pop().close()
                continue
            sock.listen(backlog)
            port = sock.getsockname()[1]
        if not bound and missing is not None:
            raise missing
    except BaseException:
        for sock in bound:
            sock.close()
        raise
    return bound


def _undo(bound: asyncio.Future[BoundPath | None]) -> None:
    if bound.cancelled() or bound.exception() is not None:
        return
    if (made := bound.result()) is not None:
        # The one who waited was cancelled, and removing a file may block. Not the loop's own threads: where the loop is
        # ending they take no more work.
        threading.Thread(target=_discard, args=(made,), name="wtransport-unbind").start()


def _discard(made: BoundPath) -> None:
    made.unlink()
    made.sock.close()
