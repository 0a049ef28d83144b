"""Hosts of one network: links that are cut, packets that vanish, are lost, late or few, in one direction or both."""

from __future__ import annotations

import signal
import time
from typing import TYPE_CHECKING, Any

import pytest

from tests.integration.conftest import outcome, reaches
from wtransport.testing.cluster.cluster import Cluster, Process, until
from wtransport.testing.cluster.network import Host, Network, Shape

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from wtransport.testing.cluster.zygote import Zygote

BIG = {"numel": 1 << 20}  # 16 MiB
PORT = 29600


@pytest.fixture(scope="module")
def why_not() -> str | None:
    return Network.unavailable()


@pytest.fixture
def network(why_not: str | None) -> Iterator[Network]:
    if why_not is not None:
        pytest.skip(why_not)
    with Network() as made:
        yield made


class Lan:
    """A job on hosts of its own: the coordinator, the trainer, and generators ``a`` and ``b``."""

    def __init__(self, network: Network, cluster: Cluster, **bind: Any) -> None:
        self.hosts = {name: network.host() for name in ("coordinator", "trainer", "a", "b")}
        self.cluster = cluster
        self.coordinator = cluster.serve(self.hosts["coordinator"])
        self.trainer = cluster.member("trainer", host=self.hosts["trainer"])
        self.generators = {name: self.generator(name, **bind) for name in "ab"}
        reaches(self.trainer, "a", "b")
        receipt = self.trainer.call("put", version=1, **bind)
        assert {outcome(receipt, name) for name in "ab"} == {"delivered"}

    def generator(self, name: str, **bind: Any) -> Process:
        return self.cluster.member("generator", name=name, host=self.hosts[name], bind=bind)

    def healthy(self, version: int, **bind: Any) -> None:
        """Both hold the next version, whatever happened before; nobody went backwards."""
        reaches(self.trainer, "a", "b")
        receipt = self.trainer.call("put", version=version, **bind)
        assert {outcome(receipt, name) for name in "ab"} == {"delivered"}, receipt
        for generator in self.generators.values():
            assert generator.call("get", version=version)["values"] == [float(version)]

    def kinds(self, name: str) -> list[str]:
        return [event["kind"] for event in self.trainer.call("events") if event["member"] == name]


@pytest.fixture
def lan(network: Network, zygote: Zygote, tmp_path: Path) -> Iterator[Callable[..., Lan]]:
    config = {"secret": "of the job", "recorder_dir": str(tmp_path / "rings"), "stall_timeout_s": 10.0, "copy_threads": 1}
    with Cluster(f"tcp://10.77.0.1:{PORT}", config=config, zygote=zygote) as cluster:
        yield lambda **bind: Lan(network, cluster, **bind)


def sever(host: Host, how: str) -> None:
    """End what that host has with all others."""
    if how == "cut":
        host.cut()
    else:
        host.blackhole(sends=how != "deaf", receives=how != "mute")


def mend(host: Host, how: str) -> None:
    """Undo it."""
    if how == "cut":
        host.cut(joined=True)
    else:
        host.restore()


@pytest.mark.parametrize("how", ["cut", "blackhole", "deaf", "mute"])
def test_a_generator_that_is_cut_off_in_the_middle_of_a_put(lan: Callable[..., Lan], how: str) -> None:
    """The link is down; packets vanish both ways; it hears nothing; nothing it says is heard. It is lost, and comes back by itself."""
    job = lan(**BIG)
    host = job.hosts["b"]
    job.hosts["trainer"].shape(Shape(rate_nbytes_s=8e6), to=host)  # the put is under way when the link goes
    putting = job.trainer.start("put", version=2, **BIG)
    assert job.generators["a"].call("get", version=2)["values"] == [2.0]
    assert not job.trainer.done(putting)
    sever(host, how)
    receipt = job.trainer.result(putting, 9.0)  # by its silence, before the stall time
    assert outcome(receipt, "a") == "delivered"
    lost = receipt["outcomes"]["b"]
    assert lost["outcome"] == "lost", receipt
    assert (lost["fields"]["peer"], lost["fields"]["version"]) == ("b", 2)
    until(lambda: "lost" in job.kinds("b"), what="the event")
    assert job.generators["b"].call("get", version=1, timeout_s=1.0)["values"] == [1.0]  # what it has, it serves
    assert outcome(job.trainer.call("put", version=3, **BIG), "a") == "delivered"
    mend(host, how)
    assert job.generators["b"].call("get", version=3)["values"] == [3.0]
    job.healthy(4, **BIG)
    assert "lost" not in job.kinds("a")


@pytest.mark.parametrize("how", ["cut", "blackhole"])
def test_only_the_way_between_trainer_and_generator_is_cut(lan: Callable[..., Lan], how: str) -> None:
    """Both are members still, for the coordinator hears them: the put says so, and the generator pulls from the other."""
    job = lan()
    trainer, generator = job.hosts["trainer"], job.hosts["b"]
    trainer.shape(Shape(drop=True), to=generator)
    if how == "blackhole":
        generator.shape(Shape(drop=True), to=trainer)
    receipt = job.trainer.call("put", version=2)
    assert outcome(receipt, "a") == "delivered"
    assert outcome(receipt, "b") in ("lost", "behind"), receipt
    assert job.generators["b"].call("get", version=2)["values"] == [2.0]
    assert "lost" not in job.kinds("b")
    generator.restore()
    job.healthy(3)


def test_the_coordinator_is_cut_off(lan: Callable[..., Lan]) -> None:
    """Members keep what they hold; a put waits for it, and goes through once it is back."""
    job = lan()
    job.hosts["coordinator"].blackhole()
    until(lambda: "coordinator lost" in job.kinds(""), what="the event")
    assert [item.call("get")["values"] for item in job.generators.values()] == [[1.0], [1.0]]
    putting = job.trainer.start("put", version=2)
    job.hosts["coordinator"].restore()
    job.trainer.result(putting)
    for generator in job.generators.values():
        assert generator.call("get", version=2)["values"] == [2.0]
    job.healthy(3)


def test_a_host_that_vanished_leaves_connections_half_open(lan: Callable[..., Lan]) -> None:
    """No FIN and no reset ever comes from the process that was there; another takes its place under its name."""
    job = lan()
    job.hosts["b"].blackhole()
    job.generators["b"].kill()
    until(lambda: "lost" in job.kinds("b"), what="the event")
    assert outcome(job.trainer.call("put", version=2), "a") == "delivered"
    job.hosts["b"].restore()
    job.generators["b"] = job.generator("b")
    assert job.generators["b"].call("get", version=2)["values"] == [2.0]
    job.healthy(3)


def test_a_stopped_generator_on_a_mended_link_is_fenced_first(lan: Callable[..., Lan]) -> None:
    """Its packets come late, under an incarnation that is gone: they are refused, and it joins anew."""
    job = lan()
    before = {item["name"]: item["incarnation"] for item in job.trainer.call("members")}["b"]
    job.generators["b"].signal(signal.SIGSTOP)
    job.hosts["b"].blackhole()
    until(lambda: "lost" in job.kinds("b"), what="the event")
    job.trainer.call("put", version=2)
    job.hosts["b"].restore()
    job.generators["b"].signal(signal.SIGCONT)
    assert job.generators["b"].call("get", version=2)["values"] == [2.0]
    job.healthy(3)
    assert {item["name"]: item["incarnation"] for item in job.trainer.call("members")}["b"] != before


def test_one_packet_in_a_hundred_is_lost(lan: Callable[..., Lan]) -> None:
    job = lan(numel=1 << 14)
    for host in job.hosts.values():
        host.shape(Shape(loss=0.01))
    counted = job.trainer.call("put_many", first=2, last=40, numel=1 << 14)
    assert not counted["lost"], counted
    assert "lost" not in job.kinds("a") + job.kinds("b")
    for host in job.hosts.values():
        host.restore()
    job.healthy(41, numel=1 << 14)


def test_packets_take_200_ms(lan: Callable[..., Lan]) -> None:
    job = lan()
    for host in job.hosts.values():
        host.shape(Shape(delay_s=0.2))
    for version in (2, 3, 4):
        receipt = job.trainer.call("put", version=version)
        assert outcome(receipt, "a") in ("delivered", "overtaken"), receipt
    assert job.generators["b"].call("get", version=4)["values"] == [4.0]
    late = job.cluster.member("generator", name="late", host=job.hosts["b"])
    assert late.call("get", version=4)["values"] == [4.0]
    assert not [kind for name in ("a", "b", "late") for kind in job.kinds(name) if kind == "lost"]


def test_one_member_has_a_megabyte_a_second(lan: Callable[..., Lan]) -> None:
    """It takes four seconds for what the other has at once; it moves, so that it is neither lost nor behind."""
    job = lan(numel=1 << 18)
    job.hosts["trainer"].shape(Shape(rate_nbytes_s=1e6), to=job.hosts["b"])
    putting = job.trainer.start("put", version=2, numel=1 << 18)
    assert job.generators["a"].call("get", version=2)["values"] == [2.0]
    assert not job.trainer.done(putting)
    time.sleep(1.0)
    assert not job.trainer.done(putting)
    receipt = job.trainer.result(putting)
    assert {outcome(receipt, name) for name in "ab"} == {"delivered"}, receipt
    assert job.generators["b"].call("get", version=2)["values"] == [2.0]
    assert "lost" not in job.kinds("b")
