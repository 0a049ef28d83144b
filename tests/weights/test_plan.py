from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.weights.strategies import Model, models, part_of
from wtransport.errors import ProtocolError, WeightsError
from wtransport.weights.assign import Assignment, assign
from wtransport.weights.box import Box
from wtransport.weights.layout import SlotLayout
from wtransport.weights.manifest import Manifest, TensorMeta
from wtransport.weights.plan import (
    BLOCK,
    DST,
    NBYTES,
    POSITION,
    SRC,
    TENSOR,
    buckets,
    make_plan,
)

Bytes = npt.NDArray[np.uint8]
Ints = npt.NDArray[np.int64]


def blocks_of(source: Manifest, values: dict[str, Bytes]) -> list[Bytes]:
    return [part_of(values[meta.name], meta.box).reshape(-1) for meta in source.canonical]


def execute(spans: Ints, blocks: list[Bytes], slot: Bytes, stores: Bytes) -> None:
    for block, src, dst, nbytes, _, _ in spans.tolist():
        assert nbytes > 0
        slot[dst : dst + nbytes] = blocks[block][src : src + nbytes]
        assert len(blocks[block]) >= src + nbytes
        stores[dst : dst + nbytes] += 1


def check_slot(model: Model, slot: Bytes, stores: Bytes) -> None:
    layout = SlotLayout.of(model.wanted)
    wanted_bytes = np.zeros(layout.nbytes, dtype=np.uint8)
    for meta, offset in zip(model.wanted.canonical, layout.offsets, strict=True):
        part = part_of(model.values[meta.name], meta.box).reshape(-1)
        assert (slot[offset : offset + meta.nbytes] == part).all()
        wanted_bytes[offset : offset + meta.nbytes] = 1
    assert (stores == wanted_bytes).all()


@given(models())
def test_the_plans_of_all_sources_fill_the_slot_exactly_once(model: Model) -> None:
    layout = SlotLayout.of(model.wanted)
    slot, stores = np.zeros((2, layout.nbytes), dtype=np.uint8)
    totals = np.zeros(len(model.wanted.canonical), dtype=np.int64)
    for source, assignment in zip(model.sources, assign(model.sources, model.wanted), strict=True):
        plan = make_plan(source, model.wanted, assignment)
        execute(plan.spans, blocks_of(source, model.values), slot, stores)
        assert plan.nbytes == assignment.nbytes == plan.spans[:, NBYTES].sum()
        assert plan.key == (source.digest, model.wanted.digest, assignment.digest)
        totals += plan.nbytes_by_tensor()
    check_slot(model, slot, stores)
    assert totals.tolist() == [meta.nbytes for meta in model.wanted.canonical]


@given(models())
def test_positions_are_those_of_the_global_tensor_and_spans_are_maximal(model: Model) -> None:
    for source, assignment in zip(model.sources, assign(model.sources, model.wanted), strict=True):
        spans = make_plan(source, model.wanted, assignment).spans
        blocks = blocks_of(source, model.values)
        assert spans.dtype == np.int64
        assert spans.flags.c_contiguous
        before = None
        for block, src, dst, nbytes, tensor, position in spans.tolist():
            values = model.values[model.wanted.canonical[tensor].name].reshape(-1)
            assert (values[position : position + nbytes] == blocks[block][src : src + nbytes]).all()
            assert before != (block, src, dst, tensor, position)
            before = (block, src + nbytes, dst + nbytes, tensor, position + nbytes)
        order = spans[:, [TENSOR, POSITION]].tolist()
        assert order == sorted(order)


@given(models(), st.integers(16, 200))
def test_buckets_move_the_same_bytes_in_bounded_steps(model: Model, bucket_nbytes: int) -> None:
    layout = SlotLayout.of(model.wanted)
    slot, stores = np.zeros((2, layout.nbytes), dtype=np.uint8)
    for source, assignment in zip(model.sources, assign(model.sources, model.wanted), strict=True):
        plan = make_plan(source, model.wanted, assignment)
        tables = buckets(plan.spans, bucket_nbytes)
        blocks = blocks_of(source, model.values)
        for table in tables:
            assert table.flags.c_contiguous
            assert 0 < table[:, NBYTES].sum() <= bucket_nbytes
            execute(table, blocks, slot, stores)
            for block, src, _, nbytes, tensor, position in table.tolist():
                values = model.values[model.wanted.canonical[tensor].name].reshape(-1)
                part = blocks[block][src : src + nbytes]
                assert (values[position : position + nbytes] == part).all()
    check_slot(model, slot, stores)


@given(models())
def test_snapshots_and_slots_are_sources_too(model: Model) -> None:
    layout = SlotLayout.of(model.wanted)
    slot, stores = np.zeros((2, layout.nbytes), dtype=np.uint8)
    pulled, loads = np.zeros((2, layout.nbytes), dtype=np.uint8)
    for source, assignment in zip(model.sources, assign(model.sources, model.wanted), strict=True):
        own = SlotLayout.of(source)
        region, writes = np.zeros((2, own.nbytes), dtype=np.uint8)
        everything = Assignment.everything(source)
        copying = make_plan(source, source, everything)
        execute(copying.spans, blocks_of(source, model.values), region, writes)
        assert writes.sum() == source.nbytes
        plan = make_plan(source, model.wanted, assignment)
        execute(plan.from_region(own), [region], slot, stores)
        for block, dst, src, nbytes, _, _ in plan.reading(own).tolist():
            assert block == 0
            pulled[dst : dst + nbytes] = region[src : src + nbytes]
            loads[dst : dst + nbytes] += 1
    check_slot(model, slot, stores)
    check_slot(model, pulled, loads)


def whole(name: str, shape: tuple[int, ...], storage: int = 0, dtype: str = "float32") -> Manifest:
    return Manifest((TensorMeta.full(name, dtype, shape, storage),))


@pytest.mark.parametrize("shape", [(), (1,), (5,), (3, 4), (2, 1, 3), (1, 1), (2, 3, 4, 5), (1,) * 20])
def test_whole_tensors_are_one_span_each(shape: tuple[int, ...]) -> None:
    model = whole("w", shape)
    plan = make_plan(model, model, Assignment.everything(model))
    assert plan.spans.tolist() == [[0, 0, 0, model.nbytes, 0, 0]]


def test_row_shards_are_one_span_each_and_column_shards_one_a_row() -> None:
    shape = (6, 8)
    rows = Manifest((TensorMeta("w", "float32", shape, Box((2, 0), (2, 8)), 0),))
    (assignment,) = assign([whole("w", shape)], rows)
    assert make_plan(whole("w", shape), rows, assignment).spans.tolist() == [[0, 64, 0, 64, 0, 64]]
    columns = Manifest((TensorMeta("w", "float32", shape, Box((0, 2), (6, 2)), 0),))
    (assignment,) = assign([whole("w", shape)], columns)
    spans = make_plan(whole("w", shape), columns, assignment).spans
    assert spans[:, SRC].tolist() == spans[:, POSITION].tolist() == [8 + 32 * i for i in range(6)]
    assert spans[:, DST].tolist() == [8 * i for i in range(6)]


def test_adjacent_boxes_of_one_source_become_one_span() -> None:
    model = whole("w", (8, 4))
    pieces = Assignment(((0, Box((0, 0), (3, 4))), (0, Box((3, 0), (1, 4))), (0, Box((4, 0), (4, 4)))), 128)
    assert make_plan(model, model, pieces).spans.tolist() == [[0, 0, 0, 128, 0, 0]]


def test_misaligned_mixed_dtypes_keep_their_own_alignment() -> None:
    metas = (
        TensorMeta.full("a", "bfloat16", (3,), 0),
        TensorMeta.full("b", "float64", (2,), 1),
        TensorMeta.full("c", "uint8", (1,), 2),
        TensorMeta.full("d", "complex128", (), 3),
    )
    model = Manifest(metas)
    spans = make_plan(model, model, Assignment.everything(model)).spans
    assert spans[:, DST].tolist() == [0, 256, 512, 768]
    assert spans[:, NBYTES].tolist() == [6, 16, 1, 16]


def test_tied_source_block_serves_two_wanted_tensors() -> None:
    tied = Manifest(tuple(TensorMeta.full(name, "uint8", (4,), 0) for name in ("a", "b")))
    apart = Manifest(tuple(TensorMeta.full(n, "uint8", (4,), i) for i, n in enumerate(("a", "b"))))
    (assignment,) = assign([tied], apart)
    spans = make_plan(tied, apart, assignment).spans
    assert spans[:, BLOCK].tolist() == [0, 0]
    assert spans[:, TENSOR].tolist() == [0, 1]


def test_nothing_to_send_is_an_empty_table() -> None:
    empty = Manifest(())
    plan = make_plan(empty, empty, Assignment((), 0))
    assert plan.spans.shape == (0, 6)
    assert buckets(plan.spans, 4096) == []
    assert plan.nbytes_by_tensor().tolist() == []


@pytest.mark.parametrize(
    ("boxes", "nbytes"),
    [
        (((1, Box.whole((4, 4))),), 64),
        (((0, Box.whole((4,))),), 16),
        (((0, Box.whole((4, 5))),), 80),
        (((0, Box((0, 0), (0, 4))),), 0),
        (((0, Box((1, 0), (4, 4))),), 64),
        (((0, Box.whole((4, 4))),), 63),
        (((0, Box((0, 0), (2, 4))), (0, Box((1, 0), (3, 4)))), 80),
    ],
)
def test_hostile_assignments_are_refused(boxes: Any, nbytes: int) -> None:
    model = whole("w", (4, 4))
    with pytest.raises(ProtocolError, match="assignment"):
        make_plan(model, model, Assignment(boxes, nbytes))


def test_boxes_outside_what_is_held_or_wanted_are_refused() -> None:
    shape = (4, 4)
    half = Manifest((TensorMeta("w", "float32", shape, Box((0, 0), (2, 4)), 0),))
    everything = Assignment(((0, Box.whole(shape)),), 64)
    with pytest.raises(ProtocolError, match="not held, or not wanted"):
        make_plan(half, whole("w", shape), everything)
    with pytest.raises(ProtocolError, match="not held, or not wanted"):
        make_plan(whole("w", shape), half, everything)
    with pytest.raises(ProtocolError, match="not held by this source"):
        make_plan(whole("v", shape), whole("w", shape), everything)
    with pytest.raises(ProtocolError, match="not held by this source"):
        make_plan(whole("w", shape, dtype="int32"), whole("w", shape), everything)


def test_too_fine_a_layout_is_refused_before_memory_is_used() -> None:
    shape = (1 << 50, 2)
    model = whole("w", shape, dtype="uint8")
    half = Manifest((TensorMeta("w", "uint8", shape, Box((0, 0), (1 << 50, 1)), 0),))
    (assignment,) = assign([model], half)
    with pytest.raises(WeightsError, match="interleave"):
        make_plan(model, half, assignment)


def test_large_spans_are_cut_on_whole_pages_and_small_ones_batched() -> None:
    spans = np.array([[0, 0, 0, 20000, 0, 0], [1, 8, 20224, 10, 1, 4], [2, 0, 20480, 10, 2, 0]])
    tables = buckets(spans, 10000)
    assert [table[:, NBYTES].tolist() for table in tables] == [[8192], [8192], [3616, 10, 10]]
    assert tables[1].tolist() == [[0, 8192, 8192, 8192, 0, 8192]]
    assert tables[2][1].tolist() == [1, 8, 20224, 10, 1, 4]
    (table,) = buckets(spans, 1 << 20)
    assert table.base is spans or table is spans
    with pytest.raises(WeightsError, match="at least 16"):
        buckets(spans, 15)


def test_a_hundred_thousand_tiny_tensors_are_one_bucket() -> None:
    metas = tuple(TensorMeta.full(f"layer.{i:06}", "float32", (2, 3), i) for i in range(100_000))
    model = Manifest(metas)
    plan = make_plan(model, model, assign([model], model)[0])
    assert len(plan.spans) == 100_000
    assert [len(table) for table in buckets(plan.spans, 64 << 20)] == [100_000]
