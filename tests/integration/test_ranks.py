"""Several trainer ranks that put parts of one version, and groups of generators that are shown the same versions."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import pytest

from tests.integration.conftest import outcome, reaches
from wtransport.testing.cluster.cluster import PeerError, Process, until

if TYPE_CHECKING:
    from collections.abc import Callable

NAMES = [f"layer.{index}" for index in range(4)]


def ranks(member: Callable[..., Process], config: dict[str, Any] | None = None, **arguments: Any) -> list[Process]:
    return [member("trainer", rank=rank, world_size=2, config=config, **arguments) for rank in range(2)]


def put(trainers: list[Process], version: int, names: list[list[str]], **arguments: Any) -> list[dict[str, Any]]:
    """Put one version from every rank at once."""
    started = [trainer.start("put", version=version, names=part, **arguments) for trainer, part in zip(trainers, names, strict=True)]
    return [trainer.result(number) for trainer, number in zip(trainers, started, strict=True)]


@pytest.mark.parametrize("backend", ["shm", "tcp"])
@pytest.mark.parametrize("names", [[NAMES[:1], NAMES[1:]], [NAMES, NAMES]], ids=["disjoint", "replicated"])
def test_two_ranks_put_one_version(member: Callable[..., Process], backend: str, names: list[list[str]]) -> None:
    trainers = ranks(member, backend=backend)
    generators = {name: member("generator", name=name, backend=backend) for name in ("a", "b")}
    for trainer in trainers:
        reaches(trainer, *generators)
    for version in range(1, 4):
        for receipt in put(trainers, version, names):
            assert {outcome(receipt, name) for name in generators} == {"delivered"}, receipt
        for generator in generators.values():
            got = generator.call("get", version=version)
            assert got["version"] == version
            assert got["values"] == [float(version)]
    late = member("generator", name="late", backend=backend)
    assert late.call("get", version=3)["values"] == [3.0]


def test_ranks_that_are_out_of_step_wait_for_each_other(member: Callable[..., Process]) -> None:
    trainers = ranks(member)
    generator = member("generator", name="gen")
    for trainer in trainers:
        reaches(trainer, "gen")
    first = trainers[0].start("put", version=1, names=NAMES[:2])
    time.sleep(0.5)  # nothing can be awaited here: that nothing happens is the point
    assert not trainers[0].done(first)
    receipt = trainers[1].call("put", version=1, names=NAMES[2:])
    assert outcome(receipt, "gen") == outcome(trainers[0].result(first), "gen") == "delivered"
    assert generator.call("get", version=1)["values"] == [1.0]


def test_a_rank_that_never_puts_is_named_at_the_deadline(member: Callable[..., Process]) -> None:
    trainers = ranks(member, config={"stall_timeout_s": 2.0})
    generator = member("generator", name="gen")
    for trainer in trainers:
        reaches(trainer, "gen")
    for receipt in put(trainers, 1, [NAMES[:2], NAMES[2:]]):
        assert outcome(receipt, "gen") == "delivered"
    receipt = trainers[0].call("put", version=2, names=NAMES[:2])
    lost = receipt["outcomes"]["gen"]
    assert lost["outcome"] == "lost", receipt
    assert lost["code"] == "deadline"
    assert "[1]" in lost["cause"]
    assert lost["fields"]["version"] == 2
    assert generator.call("get")["values"] == [1.0]
    for receipt in put(trainers, 3, [NAMES[:2], NAMES[2:]]):
        assert outcome(receipt, "gen") == "delivered", receipt
    assert generator.call("get", version=3)["values"] == [3.0]


def test_ranks_that_disagree_on_the_world_are_refused_by_name(member: Callable[..., Process]) -> None:
    member("trainer", rank=0, world_size=2, name="first")
    with pytest.raises(PeerError, match=r"second says world_size=3.*first \(trainer rank 0 of 2\) is alive") as caught:
        member("trainer", rank=1, world_size=3, name="second")
    assert caught.value.kind == "JoinRefusedError"
    with pytest.raises(PeerError, match="rank 0 is taken: first ") as caught:
        member("trainer", rank=0, world_size=2, name="third")
    assert caught.value.kind in ("JoinRefusedError", "ConnectError")
    member("trainer", rank=1, world_size=2, name="fourth")


@pytest.mark.parametrize("who", [0, 1])
def test_a_trainer_rank_is_killed_and_replaced(start: Callable[..., Process], member: Callable[..., Process], url: str, who: int) -> None:
    start().call("serve", url=url, config={})
    parts = [NAMES[:2], NAMES[2:]]
    trainers = ranks(member)
    generator = member("generator", name="gen")
    for trainer in trainers:
        reaches(trainer, "gen")
    put(trainers, 1, parts)
    other = trainers[1 - who].start("put", version=2, names=parts[1 - who])
    trainers[who].kill()
    trainers[who] = member("trainer", rank=who, world_size=2)
    try:
        receipt = trainers[1 - who].result(other)
        assert outcome(receipt, "gen") != "delivered", receipt
    except PeerError as error:
        assert error.kind in ("StaleError", "StaleVersionError", "WithdrawnError", "StaleEpochError"), error
    assert generator.call("get")["values"] == [1.0]
    for trainer in trainers:
        reaches(trainer, "gen")
    for version in (3, 4):
        for receipt in put(trainers, version, parts):
            assert outcome(receipt, "gen") == "delivered", receipt
        assert generator.call("get", version=version)["values"] == [float(version)]


def test_a_rank_that_dies_under_a_put_is_named_at_once(start: Callable[..., Process], member: Callable[..., Process], url: str) -> None:
    """The other rank's part is delivered and waits for one that will never come: nobody waits for the stall time (an hour here)."""
    start().call("serve", url=url, config={})
    patient = {"stall_timeout_s": 3600.0}
    trainers = ranks(member, config=patient)
    generator = member("generator", name="gen", config=patient)
    for trainer in trainers:
        reaches(trainer, "gen")
    for receipt in put(trainers, 1, [NAMES[:2], NAMES[2:]]):
        assert outcome(receipt, "gen") == "delivered"
    waiting = trainers[0].start("put", version=2, names=NAMES[:2])
    time.sleep(0.3)  # its part is written by then; if not, the loss comes before it, which ends it all the same
    trainers[1].kill()
    with pytest.raises(PeerError, match=r"version 2 was withdrawn by rank 1 \(trainer-1 lost: ") as caught:
        trainers[0].result(waiting, 10.0)
    assert caught.value.kind == "WithdrawnError"
    assert generator.call("get")["values"] == [1.0]


def group(member: Callable[..., Process], name: str = "tp") -> list[Process]:
    return [member("generator", group=name, rank=rank, world_size=2, name=f"{name}-{rank}") for rank in range(2)]


def shown(process: Process) -> list[tuple[int, int]]:
    seen = process.call("seen")
    assert all(item["values"] == [float(item["version"])] for item in seen)
    return [(item["seq"], item["version"]) for item in seen]


def test_the_ranks_of_a_group_see_the_same_sequence(member: Callable[..., Process]) -> None:
    trainer = member("trainer", config={"credit_timeout_s": 0.2})
    pair = group(member)
    alone = member("generator", name="alone")
    reaches(trainer, "tp-0", "tp-1", "alone")
    pair[0].call("follow")
    pair[1].call("follow", most_s=0.05)
    alone.call("follow", most_s=0.02)
    trainer.call("put_many", first=1, last=60)
    trainer.call("put", version=61)
    for process in (*pair, alone):
        until(lambda process=process: shown(process)[-1:] and shown(process)[-1][1] >= 60, what="the end")
    until(lambda: len(shown(pair[0])) == len(shown(pair[1])), what="both have yielded everything")
    sequence = shown(pair[0])
    assert sequence == shown(pair[1])
    assert [seq for seq, _ in sequence] == list(range(1, len(sequence) + 1))
    versions = [version for _, version in sequence]
    assert versions == sorted(set(versions))
    lone = [version for _, version in shown(alone)]
    assert lone == sorted(set(lone))


def test_a_rank_of_a_group_is_killed_and_replaced(member: Callable[..., Process]) -> None:
    trainer = member("trainer", config={"credit_timeout_s": 0.2})
    pair = group(member)
    member("generator", name="alone")
    reaches(trainer, "tp-0", "tp-1", "alone")
    trainer.call("put", version=1)
    for process in pair:
        assert process.call("get", version=1)["values"] == [1.0]
    pair[1].kill()
    until(lambda: any(item["state"] == "lost" for item in pair[0].call("members")), what="the loss")
    receipt = trainer.call("put", version=2)
    assert outcome(receipt, "alone") == "delivered"
    assert pair[0].call("get")["version"] == 1  # no rank runs ahead of one that is missing
    pair[1] = member("generator", group="tp", rank=1, world_size=2, name="tp-1")
    reaches(trainer, "tp-0", "tp-1")
    trainer.call("put", version=3)
    # At once: a rank is shown the next version only when the other one has taken the last.
    getting = [process.start("get", version=3) for process in pair]
    for process, number in zip(pair, getting, strict=True):
        assert process.result(number)["values"] == [3.0]
    numbers = [process.call("get")["seq"] for process in pair]
    assert numbers[0] == numbers[1]
