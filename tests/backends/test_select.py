"""Which backend a link gets, and what is said about the others."""

from __future__ import annotations

import dataclasses

import pytest

from wtransport.backends.base import Capabilities, Unavailable
from wtransport.backends.hostfacts import HostFacts
from wtransport.backends.select import choose
from wtransport.errors import ProtocolError, UnsupportedError

HERE = HostFacts("boot-1", 1, 2, 1000, "1:10:99", "here")
BESIDE = dataclasses.replace(HERE, process="1:11:99")
ELSEWHERE = HostFacts("boot-2", 1, 2, 1000, "1:10:99", "there")
CPU = ("cpu", "cpu")


def everything(**others: Capabilities | Unavailable) -> dict[str, Capabilities | Unavailable]:
    found: dict[str, Capabilities | Unavailable] = {
        name: Capabilities(name, True, name != "shm", name != "tcp", "") for name in ("inproc", "shm", "tcp")
    }
    return found | others


@pytest.mark.parametrize(
    ("remote", "backend", "reason"),
    [
        (HERE, "shm", "both ends are in one process"),
        (BESIDE, "shm", "both ends are on one host"),
        (ELSEWHERE, "tcp", "the ends are on two hosts"),
        (dataclasses.replace(BESIDE, uid=7), "tcp", "both ends are on one host"),
        (dataclasses.replace(BESIDE, net_namespace=9), "tcp", "both ends are on one host"),
        (dataclasses.replace(BESIDE, pid_namespace=9), "shm", "both ends are on one host"),
    ],
)
def test_automatic_choice(remote: HostFacts, backend: str, reason: str) -> None:
    choice = choose(HERE, remote, CPU, everything())
    assert (choice.backend, choice.reason) == (backend, reason)
    assert choose(remote, HERE, CPU, everything()).backend == backend


def test_what_was_passed_over_is_told() -> None:
    assert choose(HERE, ELSEWHERE, CPU, everything()).rejected == (("shm", "the ends are on two hosts"),)
    other = choose(HERE, dataclasses.replace(BESIDE, uid=7), CPU, everything())
    assert other.rejected == (("shm", "the ends belong to two users (uid 1000 and 7)"),)
    barred = everything(shm=Unavailable("memfds are barred"))
    assert choose(HERE, BESIDE, CPU, barred).rejected == (("shm", "memfds are barred"),)


def test_device_memory_is_staged() -> None:
    choice = choose(HERE, BESIDE, ("cuda", "cpu"), everything())
    assert choice.staged
    assert choice.reason.endswith("staged through host memory")
    assert not choose(HERE, BESIDE, CPU, everything()).staged


def test_asked_for() -> None:
    assert choose(HERE, HERE, CPU, everything(), "inproc").backend == "inproc"
    assert choose(HERE, BESIDE, CPU, everything(), "tcp").backend == "tcp"
    mine = everything(mine=Capabilities("mine", True, True, False, ""))
    assert choose(HERE, ELSEWHERE, CPU, mine, "mine").reason == "asked for; the ends are on two hosts"


@pytest.mark.parametrize(
    ("remote", "requested", "reason"),
    [
        (BESIDE, "inproc", "two processes"),
        (ELSEWHERE, "shm", "two hosts"),
        (BESIDE, "ucx", "no such backend at both ends"),
        (BESIDE, "mine", "not built"),
    ],
)
def test_asked_for_in_vain(remote: HostFacts, requested: str, reason: str) -> None:
    with pytest.raises(UnsupportedError, match=reason) as caught:
        choose(HERE, remote, CPU, everything(mine=Unavailable("not built")), requested)
    assert "tcp" in str(caught.value.hint)


def test_nothing_left() -> None:
    with pytest.raises(UnsupportedError, match="shm: the ends are on two hosts; tcp: no sockets"):
        choose(HERE, ELSEWHERE, CPU, everything(tcp=Unavailable("no sockets")))


def test_unknown_machines_are_never_the_same() -> None:
    lost = dataclasses.replace(HERE, boot_id="unknown-1")
    assert choose(lost, lost, CPU, everything()).backend == "tcp"


def test_facts_of_this_process() -> None:
    facts = HostFacts.collect()
    assert facts == HostFacts.collect()
    assert facts.known
    assert HostFacts.from_wire(facts.to_wire()) == facts


@pytest.mark.parametrize(
    "change", [{"boot_id": ""}, {"boot_id": "x" * 129}, {"uid": -1}, {"uid": True}, {"uid": "0"}, {"net_namespace": 2**63}, {"more": 1}]
)
def test_facts_that_are_none(change: dict[str, object]) -> None:
    with pytest.raises(ProtocolError):
        HostFacts.from_wire(HERE.to_wire() | change)
    with pytest.raises(ProtocolError):
        HostFacts.from_wire([])
