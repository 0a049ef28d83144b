from __future__ import annotations

import socket
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wtransport.control.address import (
    TcpAddress,
    UnixAddress,
    address_of,
    is_loopback,
    is_wildcard,
    join_host_port,
    normalise,
    parse,
    resolve,
    route_host,
)
from wtransport.errors import ConfigError, ConnectError

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("url", "address", "normal"),
    [
        ("tcp://trainer-0:29600", TcpAddress("trainer-0", 29600), None),
        ("TCP://Trainer-0.Example.:1", TcpAddress("trainer-0.example", 1), "tcp://trainer-0.example:1"),
        ("tcp://my_host:0", TcpAddress("my_host", 0), None),
        ("tcp://10.0.0.1:65535", TcpAddress("10.0.0.1", 65535), None),
        ("tcp://1a.example:080", TcpAddress("1a.example", 80), "tcp://1a.example:80"),
        ("tcp://[::1]:5", TcpAddress("::1", 5), None),
        ("tcp://[0:0::0001]:5", TcpAddress("::1", 5), "tcp://[::1]:5"),
        ("tcp://[2001:DB8::A]:5", TcpAddress("2001:db8::a", 5), "tcp://[2001:db8::a]:5"),
        ("tcp://[fe80::1%eth0]:5", TcpAddress("fe80::1%eth0", 5), None),
        ("tcp://[fe80::1%25eth0]:5", TcpAddress("fe80::1%eth0", 5), "tcp://[fe80::1%eth0]:5"),
        ("tcp://[fe80::1%251]:5", TcpAddress("fe80::1%251", 5), None),
        ("tcp://[fe80::1%2]:5", TcpAddress("fe80::1%2", 5), None),
        ("unix:///run/w.sock", UnixAddress("/run/w.sock"), None),
        ("unix:////run//./w.sock", UnixAddress("/run/w.sock"), "unix:///run/w.sock"),
        ("unix://@job-1/control", UnixAddress("job-1/control", abstract=True), None),
    ],
)
def test_addresses_parse_and_print(url: str, address: object, normal: str | None) -> None:
    assert parse(url) == address
    assert str(parse(url)) == normalise(url) == (normal or url)
    assert parse(str(parse(url))) == address


@pytest.mark.parametrize(
    "url",
    [
        "",
        "tcp",
        "tcp:",
        "tcp:/",
        "tcp://",
        "tcp://host",
        "tcp://host:",
        "tcp://:80",
        "tcp://host:http",
        "tcp://host:65536",
        "tcp://host:-1",
        "tcp://host:+1",
        "tcp://host:1_0",
        "tcp://host:\u0661",
        "tcp://host:99999999999999999999",
        "tcp://host:80/",
        "tcp://host:80/path",
        "tcp://host:80?x=1",
        "tcp://host:80#x",
        "tcp://user@host:80",
        "tcp://user:pw@host:80",
        "tcp://ho st:80",
        " tcp://host:80",
        "tcp://host:80\n",
        "tcp://host\0:80",
        "tcp://-host:80",
        "tcp://host-:80",
        "tcp://a..b:80",
        "tcp://.:80",
        "tcp://" + "a" * 64 + ":80",
        "tcp://" + "a." * 130 + "b:80",
        "tcp://hôst:80",
        "tcp://*:80",
        "tcp://256.0.0.1:80",
        "tcp://010.0.0.1:80",
        "tcp://127.1:80",
        "tcp://2130706433:80",
        "tcp://0x7f.0.0.1:80",
        "tcp://0x7f000001:80",
        "tcp://1.2.3.4.5:80",
        "tcp://::1:80",
        "tcp://[::1]",
        "tcp://[::1]80",
        "tcp://[::1:80",
        "tcp://::1]:80",
        "tcp://[]:80",
        "tcp://[host]:80",
        "tcp://[127.0.0.1]:80",
        "tcp://[::g]:80",
        "tcp://[1:2:3:4:5:6:7:8:9]:80",
        "tcp://[fe80::1%]:80",
        "tcp://[fe80::1%eth 0]:80",
        "tcp://[fe80::1%a/b]:80",
        "tcp://[fe80::1%interface-name-too-long]:80",
        "tcp://[::1]:80:90",
        "http://host:80",
        "udp://host:80",
        "host:80",
        "://host:80",
        "unix://",
        "unix:///",
        "unix://relative/path",
        "unix://./path",
        "unix:/path",
        "unix:///folder/",
        "unix:///folder/.",
        "unix:///folder/..",
        "unix://@",
        "unix:///a\0b",
        "unix:///" + "x" * 107,
        "unix://@" + "x" * 108,
        "unix:///" + "é" * 60,
        None,
        80,
        b"tcp://host:80",
    ],
)
def test_nonsense_is_a_config_error(url: Any) -> None:
    with pytest.raises(ConfigError):
        parse(url)


@given(text=st.text())
def test_any_text_parses_or_is_a_config_error(text: str) -> None:
    for url in (text, f"tcp://{text}", f"unix://{text}", f"tcp://[{text}]:1", f"tcp://{text}:1"):
        try:
            assert parse(normalise(url)) == parse(url)
        except ConfigError:
            pass


def test_names_of_sockets_of_either_kind(tmp_path: Path) -> None:
    def bound(family: int, name: Any) -> str:
        with socket.socket(family) as sock:
            sock.bind(name)
            return str(address_of(family, sock.getsockname()))

    assert bound(socket.AF_INET, ("127.0.0.1", 0)).startswith("tcp://127.0.0.1:")
    assert bound(socket.AF_UNIX, str(tmp_path / "s")) == f"unix://{tmp_path}/s"
    assert bound(socket.AF_UNIX, "\0wtransport-name") == "unix://@wtransport-name"
    with socket.socket(socket.AF_UNIX) as unnamed, pytest.raises(ConfigError):
        address_of(socket.AF_UNIX, unnamed.getsockname())


def test_link_local_names_keep_their_zone() -> None:
    assert str(address_of(socket.AF_INET6, ("fe80::1", 5, 0, 1))) == f"tcp://[fe80::1%{socket.if_indextoname(1)}]:5"
    assert str(address_of(socket.AF_INET6, ("fe80::1", 5, 0, 99999))) == "tcp://[fe80::1%99999]:5"


def test_host_and_port_are_joined_with_brackets_where_needed() -> None:
    assert join_host_port("host", 1) == "host:1"
    assert join_host_port("::1", 1) == "[::1]:1"


def test_wildcards_are_told() -> None:
    assert is_wildcard(parse("tcp://0.0.0.0:1"))
    assert is_wildcard(parse("tcp://[::]:1"))
    assert not is_wildcard(parse("tcp://127.0.0.1:1"))
    assert not is_wildcard(parse("unix://@a"))


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("127.0.0.1", True),
        ("127.9.9.9", True),
        ("::1", True),
        ("::ffff:127.0.0.1", True),
        ("localhost", True),
        ("0.0.0.0", False),
        ("::", False),
        ("192.0.2.1", False),
        ("::ffff:192.0.2.1", False),
    ],
)
async def test_loopback_is_told_by_what_a_name_resolves_to(host: str, expected: bool) -> None:
    assert await is_loopback(host) is expected


async def test_every_address_of_a_name_is_tried_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def two(*args: Any, **kwargs: Any) -> list[Any]:
        found = [(socket.AF_INET6, 1, 6, "", ("::1", 5, 0, 0)), (socket.AF_INET, 1, 6, "", ("10.0.0.1", 5))]
        return found * 2

    monkeypatch.setattr(socket, "getaddrinfo", two)
    assert [str(target) for target in await resolve(parse("tcp://two:5"))] == ["tcp://[::1]:5", "tcp://10.0.0.1:5"]
    assert await is_loopback("two") is False


async def test_unknown_names_and_interfaces() -> None:
    with pytest.raises(ConnectError, match="does not resolve"):
        await resolve(parse("tcp://no-such-host.invalid:5"))
    with pytest.raises(ConfigError, match="no interface 'nosuch0'"):
        await resolve(parse("tcp://[fe80::1%nosuch0]:5"))


async def test_the_route_to_a_peer_names_our_side_of_it() -> None:
    assert await route_host("127.0.0.1") == "127.0.0.1"
    assert await route_host("localhost") in ("127.0.0.1", "::1")


async def test_the_route_over_ipv6(needs_ipv6: None) -> None:
    assert await route_host("::1") == "::1"


async def test_no_route_is_a_connect_error() -> None:
    with pytest.raises(ConnectError, match=r"no route leads to '255\.255\.255\.255'"):
        await route_host("255.255.255.255")
