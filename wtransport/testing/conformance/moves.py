"""Conformance: bytes arrive where they should, exactly once, with equal digests at both ends."""
# ruff: noqa: D102 (the tests' names say what they check)

from __future__ import annotations

import asyncio
import random

import numpy as np
import pytest

from wtransport.testing.conformance.pair import (
    Pair,
    cut,
    local_region,
    random_bytes,
    table,
    whole,
)
from wtransport.weights.digest import digest_bytes

# Batch sizes around the widths at which bit masks and small tables have broken elsewhere.
BATCHES = (0, 1, 31, 32, 33, 64, 65, 300, 10_000)
_CHUNK = 4 << 20


class MoveTests:
    """Every way to cut, stride and order bytes."""

    @pytest.mark.parametrize("count", BATCHES)
    async def test_write_of_any_batch_size(self, pair: Pair, count: int) -> None:
        nbytes = 300_007 if count else 64
        data, spans = random_bytes(nbytes), cut(nbytes, count)
        landing = pair.landing(nbytes)
        work = pair.write(pair.source(data), spans, landing.remote)
        await work
        moved = nbytes if count else 0
        np.testing.assert_array_equal(landing.bytes[:moved], data[:moved])
        assert work.progress() == work.nbytes == moved
        assert work.digests()[0] == digest_bytes(data[:moved], 0)

    @pytest.mark.parametrize("count", BATCHES)
    async def test_read_of_any_batch_size(self, pair: Pair, count: int) -> None:
        nbytes = 300_007 if count else 64
        data, spans = random_bytes(nbytes), cut(nbytes, count)
        landing = pair.landing(nbytes, writable=False, fill=data)
        got = np.zeros(nbytes, np.uint8)
        work = pair.read(pair.source(got), spans, landing.remote)
        await work
        moved = nbytes if count else 0
        np.testing.assert_array_equal(got[:moved], data[:moved])
        assert work.digests()[0] == digest_bytes(data[:moved], 0)

    @pytest.mark.parametrize("nbytes", [1, 2, 7, 4095, 4097, 256 << 10, (256 << 10) + 1])
    async def test_sizes_around_the_inline_limit(self, pair: Pair, nbytes: int) -> None:
        data, landing = random_bytes(nbytes), pair.landing(nbytes)
        await pair.write(pair.source(data), whole(nbytes), landing.remote)
        np.testing.assert_array_equal(landing.bytes, data)

    async def test_spans_of_zero_bytes_settle_well(self, pair: Pair) -> None:
        landing = pair.landing(16)
        spans = table([(0, 0, 0, 0, 0, 0), (0, 16, 16, 0, 0, 16)])
        work = pair.write(pair.source(random_bytes(16)), spans, landing.remote)
        await work
        assert not landing.bytes.any()
        assert work.digests()[0] == 0

    async def test_odd_offsets_move_just_their_bytes(self, pair: Pair) -> None:
        data, landing = random_bytes(10_000), pair.landing(10_000)
        spans = table([(0, 1, 4099, 4097, 0, 1), (0, 5003, 13, 3, 0, 5003)])
        await pair.write(pair.source(data), spans, landing.remote)
        expected = np.zeros(10_000, np.uint8)
        expected[4099:8196] = data[1:4098]
        expected[13:16] = data[5003:5006]
        np.testing.assert_array_equal(landing.bytes, expected)

    async def test_spans_larger_than_a_chunk(self, pair: Pair) -> None:
        nbytes = 3 * _CHUNK + 4097
        data, landing = random_bytes(nbytes), pair.landing(nbytes)
        spans = table([(0, 0, 0, nbytes - 5, 0, 0), (0, nbytes - 5, nbytes - 5, 5, 0, nbytes - 5)])
        work = pair.write(pair.source(data), spans, landing.remote)
        await work
        np.testing.assert_array_equal(landing.bytes, data)
        assert work.digests()[0] == digest_bytes(data, 0)

    @pytest.mark.parametrize("direction", ["write", "read"])
    async def test_strided_blocks(self, pair: Pair, direction: str) -> None:
        base = random_bytes(4 * 1031 * 1200).view(np.float32).reshape(1031, 1200)
        block = base[3:1000:2, ::3].T
        serial = np.ascontiguousarray(block).view(np.uint8).reshape(-1)
        spans = cut(serial.nbytes, 40)
        if direction == "write":
            landing = pair.landing(serial.nbytes)
            work = pair.write(pair.source(block), spans, landing.remote)
            await work
            np.testing.assert_array_equal(landing.bytes, serial)
        else:
            landing = pair.landing(serial.nbytes, writable=False, fill=serial)
            target = np.zeros_like(base)
            work = pair.read(pair.source(target[3:1000:2, ::3].T), spans, landing.remote)
            await work
            np.testing.assert_array_equal(target[3:1000:2, ::3], base[3:1000:2, ::3])
            assert not target[:3].any()
            assert not target[:, 1::3].any()
        assert work.digests()[0] == digest_bytes(serial, 0)

    async def test_digests_agree_at_both_ends_for_every_tensor(self, pair: Pair) -> None:
        sizes = [1, 4096, 100_003, 700_001]
        arrays = [random_bytes(size, seed) for seed, size in enumerate(sizes)]
        rows, start = [], 0
        for index, size in enumerate(sizes):
            half = size // 2
            rows.append((index, 0, start, half, index, 0))
            rows.append((index, half, start + half, size - half, index, half))
            start += size
        spans = table(rows)
        landing = pair.landing(start, num_digests=len(sizes))
        work = pair.write(pair.source(*arrays), spans, landing.remote, num_digests=len(sizes))
        await work
        landed = await pair.landed_digests(landing, spans, len(sizes))
        assert work.digests().tolist() == [digest_bytes(array, 0) for array in arrays]
        assert landed.tolist() == work.digests().tolist()

    async def test_ledger_counts_what_was_stored_or_is_none(self, pair: Pair) -> None:
        landing = pair.landing(1000, num_digests=2)
        spans = table([(0, 0, 0, 300, 0, 0), (0, 300, 300, 700, 1, 0)])
        await pair.write(pair.source(random_bytes(1000)), spans, landing.remote, num_digests=2)
        ledger = pair.owner.ledger(landing.remote)
        assert (ledger is not None) == pair.initiator.owner_digests
        assert ledger is None or ledger.nbytes.tolist() == [300, 700]

    async def test_a_table_can_be_used_again(self, pair: Pair) -> None:
        data, spans = random_bytes(500_000), cut(500_000, 33)
        landing, source = pair.landing(500_000), pair.source(data)
        before = spans.copy()
        for seed in (2, 3):
            data[:] = random_bytes(500_000, seed)
            await pair.write(source, spans, landing.remote)
            np.testing.assert_array_equal(landing.bytes, data)
        np.testing.assert_array_equal(spans, before)

    async def test_works_run_side_by_side(self, pair: Pair) -> None:
        nbytes, count = 700_001, 12
        arrays = [random_bytes(nbytes, seed) for seed in range(count)]
        landings = [pair.landing(nbytes) for _ in range(count)]
        spans = whole(nbytes)
        works = [pair.write(pair.source(array), spans, landing.remote) for array, landing in zip(arrays, landings, strict=True)]
        await asyncio.gather(*works)
        for array, landing in zip(arrays, landings, strict=True):
            np.testing.assert_array_equal(landing.bytes, array)

    async def test_hundred_works_awaited_in_any_order(self, pair: Pair) -> None:
        nbytes = 100 * 5003
        data, landing = random_bytes(nbytes), pair.landing(nbytes)
        source, pieces = pair.source(data), cut(nbytes, 100)
        works = [pair.write(source, pieces[i : i + 1], landing.remote) for i in range(100)]
        random.Random(5).shuffle(works)
        for work in works:
            await work
        assert len({work.id for work in works}) == 100
        np.testing.assert_array_equal(landing.bytes, data)

    async def test_read_and_write_of_one_region_at_a_time(self, pair: Pair) -> None:
        data, landing = random_bytes(2 << 20), pair.landing(2 << 20)
        await pair.write(pair.source(data), whole(2 << 20), landing.remote)
        got = np.zeros(2 << 20, np.uint8)
        await pair.read(pair.source(got), cut(2 << 20, 64), landing.remote)
        np.testing.assert_array_equal(got, data)

    async def test_shared_memory_can_be_the_source(self, pair: Pair) -> None:
        data = random_bytes(300_000)
        landing, mirror = pair.landing(300_000), pair.landing(300_000, fill=data)
        source = pair.near.register(local_region(mirror.bytes), mirror)
        await pair.write(source, cut(300_000, 9), landing.remote)
        np.testing.assert_array_equal(landing.bytes, data)

    async def test_many_awaiters_of_one_work(self, pair: Pair) -> None:
        landing = pair.landing(1 << 20)
        work = pair.write(pair.source(random_bytes(1 << 20)), whole(1 << 20), landing.remote)

        async def wait() -> None:
            await work

        await asyncio.gather(*(wait() for _ in range(5)))
        await work
        assert work.settled

    async def test_the_loop_goes_on_while_much_is_written(self, pair: Pair) -> None:
        nbytes = 256 << 20
        data = np.empty(nbytes, np.uint8)
        data[:] = 7
        landing, ticks = pair.landing(nbytes), 0
        work = pair.write(pair.source(data), whole(nbytes), landing.remote)

        async def tick() -> None:
            nonlocal ticks
            while not work.settled:
                ticks += 1
                await asyncio.sleep(0)

        ticker = asyncio.create_task(tick())
        await work
        await ticker
        assert ticks > 10
        assert landing.bytes[:: 1 << 20].tolist() == [7] * 256
