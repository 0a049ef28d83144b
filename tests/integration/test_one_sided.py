"""A put, and a pull, need nothing of the other side's threads: neither its main thread nor its event loop."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.integration.conftest import outcome, reaches

if TYPE_CHECKING:
    from collections.abc import Callable

    from wtransport.testing.cluster.cluster import Process

BACKENDS = ["shm", "tcp"]
BLOCKS = [("main", "sleep"), ("main", "matmul"), ("loop", "sleep"), ("loop", "matmul")]


@pytest.mark.parametrize(("where", "how"), BLOCKS)
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_put_needs_no_thread_of_the_generator(member: Callable[..., Process], backend: str, where: str, how: str) -> None:
    trainer = member("trainer", backend=backend)
    generator = member("generator", name="gen", backend=backend)
    reaches(trainer, "gen")
    busy = generator.start("block", where=where, how=how, seconds=30.0)
    for version in (1, 2, 3):
        receipt = trainer.call("put", version=version)
        assert outcome(receipt, "gen") == "delivered", receipt
    if where == "loop":
        assert not generator.done(busy)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_generator_whose_loop_is_blocked_serves_a_pull(
    start: Callable[..., Process], member: Callable[..., Process], url: str, backend: str
) -> None:
    start().call("serve", url=url, config={})
    trainer = member("trainer", backend=backend)
    first = member("generator", name="first", backend=backend)
    reaches(trainer, "first")
    trainer.call("put", version=1)
    trainer.kill()
    first.start("block", where="main", how="sleep", seconds=30.0)
    busy = first.start("block", where="loop", how="sleep", seconds=30.0)
    second = member("generator", name="second", backend=backend)
    got = second.call("get", version=1)
    assert got["values"] == [1.0]
    assert not first.done(busy)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_put_needs_no_loop_of_the_trainer_once_it_is_under_way(member: Callable[..., Process], backend: str) -> None:
    trainer = member("trainer", backend=backend)
    generator = member("generator", name="gen", backend=backend, bind={"numel": 1 << 20})
    reaches(trainer, "gen")
    putting = trainer.start("put", version=1, numel=1 << 20)
    trainer.start("block", where="loop", how="sleep", seconds=2.0)
    assert generator.call("get", version=1)["values"] == [1.0]
    assert outcome(trainer.result(putting), "gen") == "delivered"
