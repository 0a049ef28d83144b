"""Cancelling, closing, forking, leaving: every work settles, nobody hangs, nothing is reported as leaked."""

from __future__ import annotations

import gc
import threading
from typing import TYPE_CHECKING

import pytest
import torch

from tests.native.support import CODES, events, packed, region_of, settle
from wtransport import _native

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.helpers.scripts import Outcome

_LARGE = 64 << 20


def test_cancelled_works_settle_once_and_say_so() -> None:
    engine = _native.Engine(1)
    data = torch.ones(_LARGE, dtype=torch.uint8)
    shared = _native.SharedRegion.create(_LARGE)
    works = [engine.copy(region_of([data]), shared, packed([data]), 1, _native.DIGEST) for _ in range(10)]
    for work in works[1:]:
        work.cancel()
    seen: dict[int, int] = {}
    for _, ident, code, _ in events(engine):
        assert ident not in seen
        seen[ident] = code
        if len(seen) == len(works):
            break
    assert seen[works[0].id] == 0
    assert works[0].progress() == _LARGE
    assert {seen[work.id] for work in works[2:]} == {CODES["CANCELLED"]}
    for work in works:
        work.cancel()
        assert work.code() == seen[work.id]
    engine.close()
    assert engine.drain() == []


def test_closing_settles_what_is_queued_and_refuses_the_rest() -> None:
    engine = _native.Engine(2)
    data = torch.ones(_LARGE, dtype=torch.uint8)
    shared = _native.SharedRegion.create(_LARGE)
    works = [engine.copy(region_of([data]), shared, packed([data]), 1, 0) for _ in range(20)]
    engine.close()
    engine.close()
    assert all(work.settled() for work in works)
    assert {work.code() for work in works} <= {0, CODES["CANCELLED"]}
    assert works[-1].code() == CODES["CANCELLED"]
    assert works[-1].detail() == "the engine was closed"
    assert len(engine.drain()) == len(works)
    late = engine.copy(region_of([data[:8]]), shared, packed([data[:8]]), 1, 0)
    assert late.code() == CODES["CLOSED"]


def test_other_threads_run_while_one_waits_for_the_close() -> None:
    engine = _native.Engine(1)
    data = torch.ones(_LARGE, dtype=torch.uint8)
    shared = _native.SharedRegion.create(_LARGE)
    works = [engine.copy(region_of([data]), shared, packed([data]), 1, 0) for _ in range(4)]
    closer = threading.Thread(target=engine.close)
    closer.start()
    closer.join(60)
    assert not closer.is_alive()
    assert all(work.settled() for work in works)


def test_native_threads_own_no_python_object(engine: _native.Engine) -> None:
    """A region dropped while its work runs must not be freed by a copy thread, which has no right to the GIL."""
    data = torch.ones(_LARGE, dtype=torch.uint8)
    shared = _native.SharedRegion.create(_LARGE)
    source = region_of([data])
    work = engine.copy(source, shared, packed([data]), 1, _native.DIGEST)
    del source
    view = shared.view()
    shared.close()
    del shared
    gc.collect()
    assert settle(engine, work).code() == 0
    assert int(view[-1]) == 1


def test_populate_faults_in_and_keeps_contents(engine: _native.Engine) -> None:
    shared = _native.SharedRegion.create(_LARGE + 5)
    shared.view()[-1] = 7
    work = settle(engine, engine.populate(shared))
    assert (work.code(), work.progress()) == (0, _LARGE + 5)
    assert int(shared.view()[-1]) == 7


@pytest.mark.parametrize("threads", [0, -1, 257])
def test_bad_thread_counts_raise(threads: int) -> None:
    with pytest.raises(ValueError, match="copy_threads"):
        _native.Engine(threads)


def test_a_forked_child_exits_with_the_parents_engine_alive(run_python: Callable[..., Outcome]) -> None:
    def program() -> None:
        import os
        import select
        import signal

        import torch

        from tests.native.support import packed, region_of
        from wtransport import _native

        engine = _native.Engine(2)
        data = torch.ones(64 << 20, dtype=torch.uint8)
        shared = _native.SharedRegion.create(64 << 20)
        works = [engine.copy(region_of([data]), shared, packed([data]), 1, 0) for _ in range(4)]
        child = os.fork()
        if child == 0:
            signal.alarm(60)
            works[-1].cancel()
            assert engine.drain() == []
            late = engine.copy(region_of([data]), shared, packed([data]), 1, 0)
            assert late.code() == _native.error_codes()["CLOSED"]
            engine.close()
            return  # an ordinary exit, with finalisation
        _, status = os.waitpid(child, 0)
        assert status == 0, status
        seen = 0
        while seen < len(works):
            assert select.select([engine.fileno()], [], [], 60)[0]
            seen += len(engine.drain())
        assert [work.code() for work in works] == [0, 0, 0, 0]
        print("parent done")

    outcome = run_python(program)
    assert (outcome.returncode, outcome.stdout.split("\n")[-2]) == (0, "parent done"), outcome
    assert outcome.stderr == ""


def test_leaving_without_closing_is_quiet(run_python: Callable[..., Outcome]) -> None:
    def program() -> None:
        import builtins

        import torch

        from tests.native.support import packed, region_of
        from wtransport import _native

        engine = _native.Engine(2)
        data = torch.ones(64 << 20, dtype=torch.uint8)
        shared = _native.SharedRegion.create(64 << 20)
        works = [engine.copy(region_of([data]), shared, packed([data]), 1, _native.DIGEST) for _ in range(4)]
        works[1].cancel()
        builtins.kept = (engine, shared, works, data)  # type: ignore[attr-defined]

    outcome = run_python(program)
    assert outcome == type(outcome)(0, "", ""), outcome
