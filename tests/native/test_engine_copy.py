"""The engine moves tensors: every byte arrives, and the digests are those of the definition."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.native.support import CODES, packed, region_of, settle, table
from wtransport import _native
from wtransport.weights.digest import digest_bytes, reference

_LARGE = 3_000_001


def _bytes_of(tensor: torch.Tensor) -> bytes:
    return tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def _tensors() -> list[torch.Tensor]:
    torch.manual_seed(1)
    matrix = torch.randn(301, 517)
    return [
        torch.randn(1000),
        torch.randn(700, 333).to(torch.bfloat16),
        matrix.t(),
        matrix.to(torch.bfloat16).t(),
        matrix.to(torch.float64)[::2, ::3],
        torch.randn(8, 3, 5, 5).to(memory_format=torch.channels_last),
        torch.randn(7, 1).expand(7, 90),
        torch.randint(0, 255, (1 << 20,), dtype=torch.uint8)[1:],
        torch.randn(1 << 19),
        torch.randn(33, 35, dtype=torch.complex128).permute(1, 0),
        torch.tensor(3.5),
        torch.empty(0, 4),
        matrix.to(torch.float8_e4m3fn).t(),
    ]


def test_every_tensor_arrives_with_its_digest(engine: _native.Engine) -> None:
    tensors = _tensors()
    source = region_of(tensors)
    shared = _native.SharedRegion.create(source.nbytes)
    spans = packed(tensors)
    work = settle(engine, engine.copy(source, shared, spans, len(tensors), _native.DIGEST))
    assert (work.code(), work.detail(), work.progress()) == (0, "", work.nbytes)
    arrived = shared.view().tobytes()
    assert arrived == b"".join(map(_bytes_of, tensors))
    assert work.digests().tolist() == [digest_bytes(_bytes_of(t), 0) for t in tensors]
    for region in (source, shared):
        again = settle(engine, engine.digest(region, spans, len(tensors)))
        assert again.digests().tolist() == work.digests().tolist()


def test_reading_back_fills_tensors_of_any_layout(engine: _native.Engine) -> None:
    tensors = [t for t in _tensors() if 0 not in t.stride()]
    source = region_of(tensors)
    shared = _native.SharedRegion.create(source.nbytes)
    spans = packed(tensors)
    sent = settle(engine, engine.copy(source, shared, spans, len(tensors), _native.DIGEST))
    landed = [torch.zeros_like(t, memory_format=torch.preserve_format) for t in tensors]
    read = settle(engine, engine.copy_from(shared, region_of(landed), spans, len(tensors), _native.DIGEST))
    assert read.code() == 0
    for here, there in zip(tensors, landed, strict=True):
        assert _bytes_of(here) == _bytes_of(there)
    assert read.digests().tolist() == sent.digests().tolist()


@given(
    cuts=st.lists(st.integers(0, 9_999), max_size=8),
    position=st.integers(0, 1 << 40),
    shift=st.integers(0, 63),
)
def test_any_cut_of_a_tensor_sums_to_the_definition(cuts: list[int], position: int, shift: int) -> None:
    data = torch.arange(10_000, dtype=torch.int64).mul(2_654_435_761).to(torch.uint8)
    borders = sorted({0, 10_000, *cuts})
    spans = table(*((0, a, shift + a, b - a, 0, position + a) for a, b in itertools.pairwise(borders)))
    shared = _native.SharedRegion.create(10_063)
    engine = _native.Engine(1)
    try:
        work = engine.copy(region_of([data]), shared, spans, 1, _native.DIGEST)
    finally:
        engine.close()
    assert work.settled()
    assert int(work.digests()[0]) == reference(data.numpy().tobytes(), position)
    assert shared.view()[shift : shift + 10_000].tobytes() == data.numpy().tobytes()


@pytest.mark.parametrize("count", [0, 1, 31, 32, 33, 63, 64, 65, 300, 10_000])
@pytest.mark.parametrize("nbytes", [8, 100, 9_000])
def test_batches_of_any_length_are_whole(engine: _native.Engine, count: int, nbytes: int) -> None:
    if count * nbytes > 4 << 20:
        nbytes = 8
    tensors = [torch.full((nbytes,), i % 251, dtype=torch.uint8) for i in range(count)]
    shared = _native.SharedRegion.create(count * nbytes)
    work = settle(engine, engine.copy(region_of(tensors), shared, packed(tensors), count, _native.DIGEST))
    assert work.code() == 0
    expected = np.repeat(np.arange(count) % 251, nbytes).astype(np.uint8)
    assert np.array_equal(shared.view(), expected)


def test_small_copies_run_inline_and_queue_no_event(engine: _native.Engine) -> None:
    data = torch.zeros(256 << 10, dtype=torch.uint8)
    shared = _native.SharedRegion.create((256 << 10) + 1)
    assert engine.copy(region_of([data]), shared, packed([data]), 1, 0).settled()
    assert engine.drain() == []
    larger = torch.zeros((256 << 10) + 1, dtype=torch.uint8)
    work = settle(engine, engine.copy(region_of([larger]), shared, packed([larger]), 1, 0))
    assert work.code() == 0


def test_without_the_flag_no_digest_is_taken(engine: _native.Engine) -> None:
    data = torch.ones(_LARGE, dtype=torch.uint8)
    shared = _native.SharedRegion.create(_LARGE)
    work = settle(engine, engine.copy(region_of([data]), shared, packed([data]), 1, 0))
    assert work.digests().tolist() == [0]
    assert work.digests().dtype == np.uint64


def test_work_ids_are_never_used_again(engine: _native.Engine) -> None:
    data = torch.ones(8, dtype=torch.uint8)
    shared = _native.SharedRegion.create(8)
    ids = [engine.copy(region_of([data]), shared, packed([data]), 1, 0).id for _ in range(100)]
    assert ids == sorted(set(ids))


@pytest.mark.parametrize(
    "row",
    [
        (1, 0, 0, 1, 0, 0),
        (-1, 0, 0, 1, 0, 0),
        (0, 0, 0, 101, 0, 0),
        (0, 100, 0, 1, 0, 0),
        (0, 0, 100, 1, 0, 0),
        (0, 0, -1, 1, 0, 0),
        (0, 0, 0, -1, 0, 0),
        (0, 0, 0, 1, 1, 0),
        (0, 0, 0, 1, 0, -1),
        (0, 2**63 - 1, 0, 2, 0, 0),
        (0, 0, 2**63 - 1, 2, 0, 0),
    ],
)
def test_a_span_out_of_bounds_moves_nothing(engine: _native.Engine, row: tuple[int, int, int, int, int, int]) -> None:
    data = torch.ones(100, dtype=torch.uint8)
    shared = _native.SharedRegion.create(100)
    work = engine.copy(region_of([data]), shared, table((0, 0, 0, 100, 0, 0), row), 1, _native.DIGEST)
    assert work.settled()
    assert work.code() == CODES["BOUNDS"]
    assert work.detail().startswith("span 1")
    assert work.progress() == 0
    assert not shared.view().any()


def test_what_cannot_be_stored_into_is_refused(engine: _native.Engine) -> None:
    shared = _native.SharedRegion.create(400)
    expanded = torch.zeros(1).expand(100)
    work = engine.copy_from(shared, region_of([expanded]), table((0, 0, 0, 400, 0, 0)), 1, 0)
    assert work.code() == CODES["INVALID"]
