"""A place in the job that is taken: by a live member, by one that is stopped, by one that is dead."""

from __future__ import annotations

import os
import re
import signal
import time
from typing import TYPE_CHECKING, Any

import pytest

from tests.integration.conftest import outcome, reaches
from wtransport.testing.cluster.cluster import Cluster, PeerError, Process, until

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.helpers.scripts import Script

ALIVE = r"is taken: .* is alive, pid {pid} on host \S+, joined [\d.]+ s ago, last heartbeat [\d.]+ s ago"


def refused(member: Callable[..., Process], role: str, **arguments: Any) -> str:
    """What a member that must not come in is told."""
    with pytest.raises(PeerError) as caught:
        member(role, **arguments)
    assert str(caught.value).startswith("JoinRefusedError: "), caught.value
    return str(caught.value)


def test_a_trainer_that_is_started_twice_disturbs_nobody(member: Callable[..., Process]) -> None:
    trainer, generator = member("trainer"), member("generator", name="gen")
    reaches(trainer, "gen")
    assert outcome(trainer.call("put", version=1), "gen") == "delivered"
    told = refused(member, "trainer")
    assert re.search(ALIVE.format(pid=trainer.pid), told), told
    assert "takeover=True" in told
    assert outcome(trainer.call("put", version=2), "gen") == "delivered"
    assert generator.call("get", version=2)["values"] == [2.0]


def test_a_generator_that_is_started_twice_disturbs_nobody(member: Callable[..., Process]) -> None:
    trainer, generator = member("trainer"), member("generator", name="gen")
    reaches(trainer, "gen")
    told = refused(member, "generator", name="gen")
    assert re.search("the name gen " + ALIVE.format(pid=generator.pid), told), told
    assert outcome(trainer.call("put", version=1), "gen") == "delivered"
    assert generator.call("get", version=1)["values"] == [1.0]


def test_a_rank_of_a_group_that_is_started_twice_disturbs_nobody(member: Callable[..., Process]) -> None:
    trainer = member("trainer")
    ranks = [member("generator", name=f"tp{rank}", group="engine", rank=rank, world_size=2) for rank in range(2)]
    reaches(trainer, "tp0", "tp1")
    told = refused(member, "generator", name="another", group="engine", rank=1, world_size=2)
    assert re.search("rank 1 " + ALIVE.format(pid=ranks[1].pid), told), told
    trainer.call("put", version=1)
    assert [rank.call("get", version=1)["values"] for rank in ranks] == [[1.0], [1.0]]


@pytest.mark.parametrize("role", ["trainer", "generator"])
def test_a_place_whose_holder_is_stopped_is_free_once_it_is_found_silent(
    cluster: Cluster, member: Callable[..., Process], role: str
) -> None:
    """The newcomer waits for that; the old process wakes and is told that it is fenced."""
    cluster.serve()
    trainer, generator = member("trainer"), member("generator", name="gen")
    reaches(trainer, "gen")
    old = trainer if role == "trainer" else generator
    old.signal(signal.SIGSTOP)
    new = member(role, **({} if role == "trainer" else {"name": "gen"}))
    old.signal(signal.SIGCONT)
    trainer, generator = (new, generator) if role == "trainer" else (trainer, new)
    reaches(trainer, "gen")
    assert outcome(trainer.call("put", version=5), "gen") == "delivered"
    assert generator.call("get", version=5)["values"] == [5.0]

    def fenced() -> bool:
        try:
            old.call("put", version=9) if role == "trainer" else old.call("get", version=9, timeout_s=0.2)
        except PeerError as error:
            return str(error).startswith("FencedError")
        return False

    until(fenced, what="the one that woke is told")


def test_a_place_whose_holder_was_killed_is_free_at_once(member: Callable[..., Process]) -> None:
    trainer, generator = member("trainer", config={"silent_after_s": 30.0}), member("generator", name="gen")
    generator.kill()
    start = time.monotonic()
    member("generator", name="gen")
    assert time.monotonic() - start < 15.0  # found by its end, not by its silence
    reaches(trainer, "gen")
    assert outcome(trainer.call("put", version=1), "gen") == "delivered"


async def leaves_a_child(url: str, rings: str) -> None:
    import asyncio
    import os
    import time
    from pathlib import Path

    import wtransport

    config = wtransport.TransportConfig(recorder_dir=Path(rings))
    async with wtransport.connect(url, role="generator", name="gen", config=config):
        if os.fork() == 0:
            print("child", flush=True)
            time.sleep(60)
            os._exit(0)
        await asyncio.sleep(60)


def test_a_place_is_free_though_the_dead_ones_sockets_live_on_in_a_child(
    cluster: Cluster, member: Callable[..., Process], start_python: Callable[..., Script], tmp_path: Path
) -> None:
    trainer = member("trainer")
    old = start_python(leaves_a_child, cluster.url, str(tmp_path))
    old.line("child")
    old.send_signal(signal.SIGKILL)
    try:
        new = member("generator", name="gen")
    finally:
        os.killpg(old.pid, signal.SIGKILL)
    reaches(trainer, "gen")
    assert outcome(trainer.call("put", version=1), "gen") == "delivered"
    assert new.call("get", version=1)["values"] == [1.0]


def test_the_shell_can_free_a_place(cluster: Cluster, member: Callable[..., Process]) -> None:
    """`wtransport replace NAME NAME`: the live one is fenced, the next under that name comes in."""
    trainer, old = member("trainer"), member("generator", name="gen")
    trainer.call("replace", old="gen", new="gen")
    new = member("generator", name="gen")
    reaches(trainer, "gen")
    assert outcome(trainer.call("put", version=1), "gen") == "delivered"
    assert new.call("get", version=1)["values"] == [1.0]
    with pytest.raises(PeerError, match="FencedError"):
        old.call("get", version=1, timeout_s=1.0)


def test_who_finds_a_place_empty_after_the_coordinator_restarted_gives_it_back(cluster: Cluster, member: Callable[..., Process]) -> None:
    """The newcomer comes while the members of before are still on their way back: they are not ended by that."""
    coordinator = cluster.serve()
    trainer, generator = member("trainer"), member("generator", name="gen")
    reaches(trainer, "gen")
    trainer.call("put", version=1)
    newcomer = cluster.start()
    coordinator.kill()
    cluster.serve()
    asked = newcomer.start("open", url=cluster.url, role="generator", name="gen", config=cluster.config)

    try:
        newcomer.result(asked)
    except PeerError as refused:
        assert refused.kind == "JoinRefusedError", refused
    else:
        newcomer.call("bind")

        def fenced() -> bool:
            with pytest.raises(PeerError) as caught:
                newcomer.call("get", version=99, timeout_s=0.2)
            return caught.value.kind == "FencedError"

        until(fenced, what="the newcomer is told")
    reaches(trainer, "gen")
    assert outcome(trainer.call("put", version=2), "gen") == "delivered"
    assert generator.call("get", version=2)["values"] == [2.0]
