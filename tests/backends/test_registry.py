from __future__ import annotations

from importlib.metadata import EntryPoint
from typing import TYPE_CHECKING

import pytest

from wtransport.backends.base import Capabilities, Unavailable
from wtransport.backends.registry import BUILT_IN, GROUP, BackendRegistry
from wtransport.backends.tcp.backend import TcpBackend
from wtransport.config import TransportConfig
from wtransport.errors import ConfigError, UnsupportedError
from wtransport.recorder.format import FlightBackend
from wtransport.testing.conformance.pair import open_driver

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.helpers.scripts import Outcome

CONFIG = TransportConfig()


class MineBackend(TcpBackend):
    """A third party's backend."""

    name = "mine"


def entry(name: str, value: str) -> EntryPoint:
    return EntryPoint(name, value, GROUP)


def test_built_in_names() -> None:
    assert BackendRegistry(()).names == tuple(sorted(BUILT_IN))
    for name in BUILT_IN:
        assert BackendRegistry(()).load(name).name == name


def test_unknown_name_says_what_there_is() -> None:
    with pytest.raises(ConfigError, match="no backend 'rdma'") as caught:
        BackendRegistry(()).load("rdma")
    assert str(caught.value).endswith("available: inproc, shm, tcp")


async def test_entry_point() -> None:
    registry = BackendRegistry([entry("mine", f"{__name__}:MineBackend")])
    assert "mine" in registry.names
    async with open_driver(CONFIG) as driver:
        assert registry.create("mine", driver, CONFIG).name == "mine"


def test_one_name_twice() -> None:
    with pytest.raises(ConfigError, match="two backends are called 'mine': a:A and b:B"):
        BackendRegistry([entry("mine", "a:A"), entry("mine", "b:B")])
    with pytest.raises(ConfigError, match="two backends are called 'tcp'"):
        BackendRegistry([entry("tcp", "a:A")])
    # The same distribution found twice on the path is no clash.
    BackendRegistry([entry("mine", "a:A"), entry("mine", "a:A")])


@pytest.mark.parametrize(
    ("target", "error"),
    [
        ("no_such_module:A", UnsupportedError),
        ("wtransport.backends.tcp.backend:Nothing", ConfigError),
        ("wtransport.backends.tcp.backend:dial", ConfigError),
        ("wtransport.backends.tcp.backend:TcpBackend", ConfigError),
    ],
)
def test_broken_entry_point_fails_when_it_is_used(target: str, error: type[Exception]) -> None:
    registry = BackendRegistry([entry("mine", target)])
    with pytest.raises(error):
        registry.load("mine")


async def test_probe_asks_all_of_them() -> None:
    registry = BackendRegistry([entry("mine", "no_such_module:A")])
    async with open_driver(CONFIG) as driver:
        found = registry.probe(driver, CONFIG)
    assert set(found) == {*BUILT_IN, "mine"}
    assert isinstance(found["mine"], Unavailable)
    for name in BUILT_IN:
        capabilities = found[name]
        assert isinstance(capabilities, Capabilities)
        assert capabilities.name == name
        assert capabilities.one_sided


def _modules_after_looking_up_names() -> None:
    import sys

    from wtransport.backends.registry import BackendRegistry

    BackendRegistry()
    print(sorted(name for name in sys.modules if name.startswith("wtransport.backends.")))


def test_nothing_is_imported_before_it_is_asked_for(run_python: Callable[..., Outcome]) -> None:
    ended = run_python(_modules_after_looking_up_names)
    assert ended.returncode == 0, ended.stderr
    for name in BUILT_IN:
        assert f"wtransport.backends.{name}" not in ended.stdout


def test_the_flight_recorder_knows_every_backend_built_in() -> None:
    assert {name.upper() for name in BUILT_IN} <= set(FlightBackend.__members__)
