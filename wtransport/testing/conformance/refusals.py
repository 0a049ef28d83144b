"""Conformance: what must not move is refused before a byte has, and counted."""
# ruff: noqa: D102 (the tests' names say what they check)

from __future__ import annotations

import asyncio
import dataclasses
from typing import TYPE_CHECKING

import numpy as np
import pytest

from wtransport._native import SharedRegion
from wtransport.backends.deadline import Deadline
from wtransport.errors import ConfigError, StaleEpochError, TransportError, UnsupportedError
from wtransport.testing.conformance.pair import (
    TIMEOUT_S,
    Landing,
    Pair,
    outcome,
    random_bytes,
    table,
    until,
    whole,
)

if TYPE_CHECKING:
    from wtransport.backends.base import RemoteRegion

_SIZE = 4096


async def _assert_usable(pair: Pair) -> None:
    """The endpoint still moves bytes after a refusal."""
    data, landing = random_bytes(_SIZE, 9), pair.landing(_SIZE)
    await pair.write(pair.source(data), whole(_SIZE), landing.remote)
    np.testing.assert_array_equal(landing.bytes, data)
    assert pair.initiator.broken is None
    assert pair.owner.broken is None


async def _refused_write(pair: Pair, remote: RemoteRegion, error: type[TransportError], landing: Landing) -> None:
    before = pair.refused
    work = pair.write(pair.source(random_bytes(_SIZE)), whole(_SIZE), remote)
    with pytest.raises(error) as caught:
        await work
    assert caught.value.backend == pair.near.name
    assert caught.value.peer == "owner"
    assert pair.refused > before
    assert not landing.bytes.any()


class RefusalTests:
    """Bounds, generations, grants, epochs."""

    @pytest.mark.parametrize(
        "row",
        [
            pytest.param((0, 0, 1, _SIZE, 0, 0), id="beyond the grant"),
            pytest.param((0, 0, -1, 8, 0, 0), id="before the grant"),
            pytest.param((0, 1, 0, _SIZE, 0, 0), id="beyond the block"),
            pytest.param((0, -8, 0, 8, 0, 0), id="before the block"),
            pytest.param((1, 0, 0, 8, 0, 0), id="no such block"),
            pytest.param((-1, 0, 0, 8, 0, 0), id="negative block"),
            pytest.param((0, 0, 0, -8, 0, 0), id="negative size"),
            pytest.param((0, 0, 2**63 - 4, 8, 0, 0), id="offset that wraps"),
            pytest.param((0, 0, 0, 8, 1, 0), id="no such tensor"),
            pytest.param((0, 0, 0, 8, -1, 0), id="negative tensor"),
        ],
    )
    @pytest.mark.parametrize("direction", ["write", "read"])
    async def test_spans_out_of_bounds(self, pair: Pair, row: tuple[int, int, int, int, int, int], direction: str) -> None:
        landing, mine = pair.landing(_SIZE), np.zeros(_SIZE, np.uint8)
        if direction == "write":
            mine[:] = random_bytes(_SIZE)
        else:
            landing.bytes[:] = random_bytes(_SIZE)
        before = mine.copy(), landing.bytes.copy()
        # The bad row comes last: rows before it must not have moved either.
        spans = table([(0, 0, 0, 16, 0, 0), row])
        move = pair.write if direction == "write" else pair.read
        with pytest.raises(ConfigError):
            await move(pair.source(mine), spans, landing.remote)
        np.testing.assert_array_equal(mine, before[0])
        np.testing.assert_array_equal(landing.bytes, before[1])
        await _assert_usable(pair)

    async def test_bounds_forged_by_the_initiator(self, pair: Pair) -> None:
        # The initiator believes in a larger grant than there is; whoever stores must not.
        landing = pair.landing(_SIZE)
        forged = dataclasses.replace(landing.remote, nbytes=4 * _SIZE)
        spans = table([(0, 0, _SIZE, _SIZE, 0, 0)])
        before = pair.refused
        with pytest.raises((ConfigError, StaleEpochError)):
            await pair.write(pair.source(random_bytes(_SIZE)), spans, forged)
        assert pair.refused > before
        assert not landing.bytes.any()
        await _assert_usable(pair)

    async def test_table_of_another_shape_or_type(self, pair: Pair) -> None:
        landing, source = pair.landing(_SIZE), pair.source(random_bytes(_SIZE))
        for spans in (np.zeros((1, 5), np.int64), np.zeros(6, np.int64), np.zeros((1, 6), np.int32)):
            with pytest.raises(ConfigError):
                pair.write(source, spans, landing.remote)  # type: ignore[arg-type]
        await _assert_usable(pair)

    async def test_older_generation(self, pair: Pair) -> None:
        landing = pair.landing(_SIZE, generation=5)
        old = dataclasses.replace(landing.remote, generation=4)
        await _refused_write(pair, old, StaleEpochError, landing)
        await _assert_usable(pair)

    async def test_memory_granted_anew_outdates_the_first_grant(self, pair: Pair) -> None:
        landing = pair.landing(_SIZE, generation=5)
        again = pair.owner.grant(landing.region, generation=6, writable=True, num_digests=1)
        await _refused_write(pair, landing.remote, StaleEpochError, landing)
        data = random_bytes(_SIZE)
        await pair.write(pair.source(data), whole(_SIZE), again)
        np.testing.assert_array_equal(landing.bytes, data)

    async def test_revoking_an_outdated_grant_leaves_the_newer_one(self, pair: Pair) -> None:
        landing, data = pair.landing(_SIZE, generation=5), random_bytes(_SIZE)
        again = pair.owner.grant(landing.region, generation=6, writable=True, num_digests=1)
        pair.owner.revoke(landing.remote)
        await asyncio.sleep(0.05)
        await pair.write(pair.source(data), whole(_SIZE), again)
        np.testing.assert_array_equal(landing.bytes, data)

    async def test_memory_passed_ahead_is_granted_only_later(self, pair: Pair) -> None:
        data, memory = random_bytes(_SIZE), SharedRegion.create(_SIZE)
        region = pair.far.register(memory, None)
        pair.owner.prepare(region)
        remote = pair.owner.grant(region, generation=3, writable=True, num_digests=1)
        await pair.write(pair.source(data), whole(_SIZE), remote)
        np.testing.assert_array_equal(memory.view(), data)
        pair.owner.revoke(remote)
        memory.close()

    async def test_generation_never_goes_down(self, pair: Pair) -> None:
        landing = pair.landing(_SIZE, generation=5)
        with pytest.raises(StaleEpochError):
            pair.owner.grant(landing.region, generation=4, writable=True, num_digests=1)
        assert landing.memory.generation == 5

    async def test_read_of_memory_that_moved_on(self, pair: Pair) -> None:
        data = random_bytes(_SIZE)
        landing = pair.landing(_SIZE, writable=False, fill=data)
        landing.memory.generation = 2
        got, before = np.zeros(_SIZE, np.uint8), pair.refused
        with pytest.raises(StaleEpochError):
            await pair.read(pair.source(got), whole(_SIZE), landing.remote)
        assert pair.refused > before
        await _assert_usable(pair)

    async def test_read_while_the_memory_moves_on(self, pair: Pair) -> None:
        nbytes = 64 << 20
        landing = pair.landing(nbytes, writable=False)
        got = np.zeros(nbytes, np.uint8)
        work = pair.read(pair.source(got), whole(nbytes), landing.remote)
        landing.memory.generation = 2
        with pytest.raises(StaleEpochError):
            await work
        await _assert_usable(pair)

    async def test_revoked_grant(self, pair: Pair) -> None:
        landing = pair.landing(_SIZE)
        await pair.write(pair.source(np.zeros(_SIZE, np.uint8)), whole(_SIZE), landing.remote)
        pair.owner.revoke(landing.remote)
        pair.owner.revoke(landing.remote)
        await asyncio.sleep(0.05)
        await _refused_write(pair, landing.remote, StaleEpochError, landing)
        await _assert_usable(pair)

    async def test_memory_is_granted_again_after_a_grant_of_it_was_revoked(self, pair: Pair) -> None:
        landing, data = pair.landing(_SIZE, generation=5), random_bytes(_SIZE)
        pair.owner.revoke(landing.remote)
        for generation in (5, 6):
            again = pair.owner.grant(landing.region, generation=generation, writable=True, num_digests=1)
            await pair.write(pair.source(data), whole(_SIZE), again)
            np.testing.assert_array_equal(landing.bytes, data)
        landing.bytes[:] = 0
        await _refused_write(pair, landing.remote, StaleEpochError, landing)

    async def test_memory_that_is_retired_is_used_no_more(self, pair: Pair) -> None:
        landing = pair.landing(_SIZE)
        await pair.write(pair.source(np.zeros(_SIZE, np.uint8)), whole(_SIZE), landing.remote)
        pair.owner.retire(landing.region)
        pair.owner.retire(landing.region)
        await asyncio.sleep(0.05)
        await _refused_write(pair, landing.remote, StaleEpochError, landing)
        await _assert_usable(pair)

    async def test_revoking_while_bytes_move_ends_the_work(self, pair: Pair) -> None:
        nbytes = 128 << 20
        landing = pair.landing(nbytes)
        data = np.ones(nbytes, np.uint8)
        work = pair.write(pair.source(data), whole(nbytes), landing.remote)
        await until(lambda: work.settled or work.progress() > 0)
        pair.owner.revoke(landing.remote)
        error = await outcome(work)
        assert error is None or isinstance(error, StaleEpochError)
        await _assert_usable(pair)

    async def test_grant_of_an_endpoint_before_this_one(self, pair: Pair) -> None:
        landing, first = pair.landing(_SIZE), (pair.initiator, pair.owner)
        await pair.connect(epoch=8)
        try:
            await _refused_write(pair, landing.remote, StaleEpochError, landing)
            await _assert_usable(pair)
        finally:
            for endpoint in first:
                await endpoint.close()

    async def test_key_that_was_never_granted(self, pair: Pair) -> None:
        landing = pair.landing(_SIZE)
        unknown = dataclasses.replace(landing.remote, key=landing.remote.key ^ 1)
        await _refused_write(pair, unknown, StaleEpochError, landing)
        await _assert_usable(pair)

    async def test_grant_of_another_backend(self, pair: Pair) -> None:
        landing = pair.landing(_SIZE)
        other = dataclasses.replace(landing.remote, backend="other")
        await _refused_write(pair, other, ConfigError, landing)
        await _assert_usable(pair)

    async def test_writing_what_was_granted_for_reading(self, pair: Pair) -> None:
        landing = pair.landing(_SIZE, writable=False)
        await _refused_write(pair, landing.remote, TransportError, landing)
        await _assert_usable(pair)

    async def test_private_memory_is_granted_or_refused_as_probed(self, pair: Pair) -> None:
        probed = pair.far.probe()
        data, got = random_bytes(_SIZE), np.zeros(_SIZE, np.uint8)
        region = pair.far.register(pair.source(data).memory, data)

        def grant() -> RemoteRegion:
            return pair.owner.grant(region, generation=1, writable=False, num_digests=1)

        if getattr(probed, "reads_private", False):
            await pair.read(pair.source(got), whole(_SIZE), grant())
            np.testing.assert_array_equal(got, data)
        else:
            with pytest.raises(UnsupportedError):
                grant()
        await _assert_usable(pair)

    async def test_memory_that_is_closed_already(self, pair: Pair) -> None:
        landing, gone = pair.landing(_SIZE), pair.landing(_SIZE)
        gone.memory.close()
        region = pair.near.register(gone.memory, None)
        work = pair.initiator.write(
            region,
            whole(_SIZE),
            landing.remote,
            num_digests=1,
            digest=False,
            deadline=Deadline(TIMEOUT_S),
        )
        with pytest.raises(ConfigError):
            await work
        await _assert_usable(pair)
