"""Addresses of control listeners: ``tcp://host:port``, ``unix:///path``, ``unix://@abstract-name``."""

from __future__ import annotations

import asyncio
import ipaddress
import re
import socket
import struct
from dataclasses import dataclass
from typing import TypeAlias, cast

from wtransport.errors import ConfigError, ConnectError

# sun_path has 108 bytes: a path ends with a zero byte, an abstract name begins with one.
_UNIX_CAP_NBYTES = 107
_LABEL = re.compile(r"(?!-)[a-z0-9_-]{1,63}(?<!-)")
_NUMBER = re.compile(r"[0-9]+|0x[0-9a-f]*")
_PORT = re.compile(r"[0-9]{1,5}")
_ZONE = re.compile(r"[A-Za-z0-9._~-]{1,15}")
_DISCARD_PORT = 9
_PEERCRED = struct.Struct("3i")

SockAddr: TypeAlias = "tuple[str, int] | tuple[str, int, int, int] | str"


@dataclass(frozen=True)
class TcpAddress:
    """A host (a name, an IPv4 or an IPv6 address, ``fe80::1%eth0`` with a zone) and a port."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"tcp://{join_host_port(self.host, self.port)}"


@dataclass(frozen=True)
class UnixAddress:
    """A path, or (``abstract``) a name that stands in no file system."""

    name: str
    abstract: bool = False

    def __str__(self) -> str:
        return f"unix://@{self.name}" if self.abstract else f"unix://{self.name}"

    @property
    def sockaddr(self) -> str:
        """What ``bind`` and ``connect`` take."""
        return f"\0{self.name}" if self.abstract else self.name


Address: TypeAlias = TcpAddress | UnixAddress


@dataclass(frozen=True)
class Target:
    """One address to bind or to dial, after resolution; prints as a person would write it."""

    family: socket.AddressFamily
    sockaddr: SockAddr

    def __str__(self) -> str:
        return str(address_of(self.family, self.sockaddr))

    def with_port(self, port: int) -> SockAddr:
        """What ``bind`` and ``connect`` take for another port of the same host."""
        if isinstance(self.sockaddr, str):
            return self.sockaddr
        host, _, *scope = self.sockaddr
        return cast("SockAddr", (host, port, *scope))


def parse(url: str) -> Address:
    """Parse and normalise a url: names in lower case, addresses in their shortest form.

    Port 0 is let through: it is meant for listening.

    Raises:
        ConfigError: If it is not one of the three forms.
    """
    if not isinstance(url, str):
        raise ConfigError(f"an address must be a str, not {type(url).__name__}")
    if any(letter.isspace() or not letter.isprintable() for letter in url):
        raise _bad(url, "it contains white space or control characters")
    scheme, separator, rest = url.partition("://")
    if not separator:
        raise _bad(url, "it has no scheme")
    if scheme.lower() == "tcp":
        return _parse_tcp(url, rest)
    if scheme.lower() == "unix":
        return _parse_unix(url, rest)
    raise _bad(url, f"the scheme {scheme!r} is not known")


def normalise(url: str) -> str:
    """Parse *url* and format it again: equal addresses become equal strings.

    Raises:
        ConfigError: If it is no address.
    """
    return str(parse(url))


def join_host_port(host: str, port: int) -> str:
    """Write ``host:port``, with brackets around an IPv6 address."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def address_of(family: int, sockaddr: SockAddr | bytes) -> Address:
    """Turn what a socket says about itself (``getsockname``) into an address.

    Raises:
        ConfigError: If the socket is neither TCP nor a named Unix socket.
    """
    if family == socket.AF_UNIX:
        if isinstance(sockaddr, bytes) and sockaddr[:1] == b"\0":
            return UnixAddress(sockaddr[1:].decode(errors="replace"), abstract=True)
        if isinstance(sockaddr, str) and sockaddr:
            return UnixAddress(sockaddr.removeprefix("\0"), abstract=sockaddr[0] == "\0")
        raise ConfigError("the Unix socket is not bound to a path or name")
    if family in (socket.AF_INET, socket.AF_INET6) and isinstance(sockaddr, tuple):
        host = _shortest(sockaddr[0])
        # getsockname gives a link-local address's zone in its fourth field, as an index.
        if len(sockaddr) == 4 and sockaddr[3] and "%" not in host:
            host = f"{host}%{_zone_name(sockaddr[3])}"
        return TcpAddress(host, sockaddr[1])
    raise ConfigError(f"a socket of family {family} is neither TCP nor a Unix socket")


def peer_name(sock: socket.socket) -> str:
    """Name the other end of a connected socket for people: its address, or its process on this host.

    Raises:
        OSError: If it is not connected any more.
    """
    if sock.family == socket.AF_UNIX:
        raw = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEERCRED.size)
        pid, uid, _gid = _PEERCRED.unpack(raw)
        return f"unix pid {pid} uid {uid}"
    return str(address_of(sock.family, sock.getpeername()))


def is_loopback_ip(host: str) -> bool:
    """Whether an IP address (not a name) is one of this host's own loopback addresses."""
    address = ipaddress.ip_address(host)
    mapped = getattr(address, "ipv4_mapped", None)
    return bool((mapped or address).is_loopback)


def is_wildcard(address: Address) -> bool:
    """Whether it says "every interface": good to listen on, never to dial or advertise."""
    return isinstance(address, TcpAddress) and address.host in ("0.0.0.0", "::", "::ffff:0.0.0.0")


async def is_loopback(host: str) -> bool:
    """Whether every address of *host*, a name or an IP address, is a loopback address.

    Raises:
        ConnectError: If the name does not resolve now.
    """
    targets = await resolve(TcpAddress(host, 0))
    return all(is_loopback_ip(target.sockaddr[0]) for target in targets)


async def resolve(address: Address) -> list[Target]:
    """Every address to try, in the resolver's order; only the resolver bounds it: add a timeout.

    Raises:
        ConnectError: If the name does not resolve now; it may later.
        ConfigError: If a zone names no interface.
    """
    if isinstance(address, UnixAddress):
        return [Target(socket.AF_UNIX, address.sockaddr)]
    if (target := _literal(address)) is not None:
        return [target]
    try:
        found = await asyncio.get_running_loop().getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise ConnectError(f"the name {address.host!r} does not resolve: {error}") from error
    targets = [Target(family, cast("SockAddr", sockaddr)) for family, _, _, _, sockaddr in found]
    if not targets:
        raise ConnectError(f"the name {address.host!r} has no IPv4 or IPv6 address")
    return list(dict.fromkeys(targets))


async def route_host(towards: str) -> str:
    """Return the local IP address from which *towards* (a host name or address) is reached.

    Asks the routing table through a connected UDP socket; no packet is sent.

    Raises:
        ConnectError: If the name does not resolve or no route leads there.
    """
    cause: OSError | None = None
    for target in await resolve(TcpAddress(towards, _DISCARD_PORT)):
        with socket.socket(target.family, socket.SOCK_DGRAM) as probe:
            probe.setblocking(False)
            try:
                probe.connect(target.sockaddr)
                local = address_of(target.family, probe.getsockname())
            except OSError as error:
                cause = error
                continue
        if isinstance(local, TcpAddress):
            return local.host
    raise ConnectError(f"no route leads to {towards!r}: {cause}") from cause


def _parse_tcp(url: str, rest: str) -> TcpAddress:
    if rest.startswith("["):
        host, bracket, tail = rest[1:].partition("]")
        if not bracket or not tail.startswith(":"):
            raise _bad(url, "an IPv6 address is written [address]:port")
        return TcpAddress(_ipv6(url, host), _port(url, tail[1:]))
    host, colon, port = rest.rpartition(":")
    if not colon:
        raise _bad(url, "the port is missing")
    if ":" in host:
        raise _bad(url, "an IPv6 address stands in brackets: tcp://[::1]:29600")
    return TcpAddress(_host(url, host), _port(url, port))


def _port(url: str, text: str) -> int:
    if not _PORT.fullmatch(text) or int(text) > 0xFFFF:
        raise _bad(url, f"{text!r} is no port (0..65535)")
    return int(text)


def _host(url: str, text: str) -> str:
    host = text.lower().removesuffix(".")
    labels = host.split(".")
    # What ends in a number is an IPv4 address or nothing: resolvers read 010.1 or 0x7f.1 as one.
    if _NUMBER.fullmatch(labels[-1]):
        try:
            return str(ipaddress.IPv4Address(host))
        except ValueError as error:
            raise _bad(url, f"{text!r} is no IPv4 address") from error
    if len(host) > 253 or not all(_LABEL.fullmatch(label) for label in labels):
        raise _bad(url, f"{text!r} is no host name or IPv4 address")
    return host


def _ipv6(url: str, text: str) -> str:
    literal, percent, zone = text.partition("%")
    # In a url the sign may be written %25; before digits it is taken as it stands (interface 25).
    if zone.startswith("25") and zone[2:3].isalpha():
        zone = zone[2:]
    if percent and not _ZONE.fullmatch(zone):
        raise _bad(url, f"{zone!r} is no interface")
    try:
        return f"{ipaddress.IPv6Address(literal)}{percent}{zone}"
    except ValueError as error:
        raise _bad(url, f"{text!r} is no IPv6 address") from error


def _parse_unix(url: str, rest: str) -> UnixAddress:
    abstract = rest.startswith("@")
    name = rest[1:] if abstract else re.sub(r"/(\./|/)+", "/", rest)
    if not abstract and not name.startswith("/"):
        raise _bad(url, "a path is absolute: unix:///path, or unix://@name for an abstract name")
    if not name or (not abstract and name.endswith(("/", "/.", "/.."))):
        raise _bad(url, "the socket has no name")
    if len(name.encode()) > _UNIX_CAP_NBYTES:
        raise _bad(url, f"a Unix socket's name has at most {_UNIX_CAP_NBYTES} bytes")
    return UnixAddress(name, abstract)


def _literal(address: TcpAddress) -> Target | None:
    literal, _, zone = address.host.partition("%")
    try:
        version = ipaddress.ip_address(literal).version
    except ValueError:
        return None
    if version == 4:
        return Target(socket.AF_INET, (literal, address.port))
    try:
        scope = 0 if not zone else int(zone) if zone.isdigit() else socket.if_nametoindex(zone)
    except OSError as error:
        raise ConfigError(f"this host has no interface {zone!r} ({address})") from error
    return Target(socket.AF_INET6, (literal, address.port, 0, scope))


def _shortest(host: str) -> str:
    literal, percent, zone = host.partition("%")
    return f"{ipaddress.ip_address(literal)}{percent}{zone}"


def _zone_name(index: int) -> str:
    try:
        return socket.if_indextoname(index)
    except OSError:
        return str(index)


def _bad(url: str, reason: str) -> ConfigError:
    return ConfigError(
        f"{url[:200]!r} is no address: {reason}",
        hint="write tcp://host:port, tcp://[ipv6]:port, unix:///path or unix://@name",
    )
