from __future__ import annotations

from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.weights.strategies import Model, models
from wtransport.errors import ManifestMismatchError, ProtocolError
from wtransport.weights.assign import Assignment, assign
from wtransport.weights.box import Box
from wtransport.weights.manifest import Manifest, TensorMeta

KIB, MIB = 1 << 10, 1 << 20


def manifest(*metas: tuple[str, tuple[int, ...]] | TensorMeta, dtype: str = "uint8") -> Manifest:
    made = [meta if isinstance(meta, TensorMeta) else TensorMeta.full(meta[0], dtype, meta[1], index) for index, meta in enumerate(metas)]
    return Manifest(tuple(made))


def part(name: str, shape: tuple[int, ...], box: Box, storage: int = 0) -> TensorMeta:
    return TensorMeta(name, "uint8", shape, box, storage)


def refused(sources: list[Manifest], wanted: Manifest, **options: bool) -> ManifestMismatchError:
    with pytest.raises(ManifestMismatchError) as caught:
        assign(sources, wanted, **options)
    return caught.value


@given(models())
def test_every_wanted_element_is_sent_once_by_one_that_holds_it(model: Model) -> None:
    assignments = assign(model.sources, model.wanted)
    assert len(assignments) == len(model.sources)
    sent: dict[int, list[Box]] = {}
    for source, assignment in zip(model.sources, assignments, strict=True):
        assert list(assignment.boxes) == sorted(assignment.boxes)
        for tensor, box in assignment.boxes:
            assert box.volume
            assert source.by_name[model.wanted.canonical[tensor].name].box.contains(box)
            sent.setdefault(tensor, []).append(box)
    for tensor, meta in enumerate(model.wanted.canonical):
        boxes = sent.get(tensor, [])
        assert sum(box.volume for box in boxes) == meta.box.volume
        assert all(meta.box.contains(box) for box in boxes)
        for place, box in enumerate(boxes):
            assert all(box.intersection(other) is None for other in boxes[:place])
    assert sum(assignment.nbytes for assignment in assignments) == model.wanted.nbytes


@given(models())
def test_all_members_compute_the_same_and_the_wire_keeps_it(model: Model) -> None:
    first = assign(model.sources, model.wanted)
    sources = [Manifest.from_wire(source.to_wire()) for source in model.sources]
    second = assign(sources, Manifest.from_wire(model.wanted.to_wire()))
    for one, other in zip(first, second, strict=True):
        read = Assignment.from_wire(msgpack.unpackb(msgpack.packb(other.to_wire())))
        assert (read.boxes, read.nbytes, read.digest) == (one.boxes, one.nbytes, one.digest)


@pytest.mark.parametrize("replicas", [2, 3, 7])
def test_replicas_share_many_small_tensors_evenly(replicas: int) -> None:
    model = manifest(*((f"layer.{i}", (i + 1,)) for i in range(500)))
    loads = [assignment.nbytes for assignment in assign([model] * replicas, model)]
    assert max(loads) - min(loads) <= replicas


def test_replicas_share_one_large_tensor_in_few_pieces() -> None:
    model = manifest(("huge", (7, 3 * MIB)))
    shared = assign([model] * 3, model)
    assert [assignment.nbytes for assignment in shared] == [7 * MIB] * 3
    assert all(len(assignment.boxes) == 1 for assignment in shared)


def test_a_replica_that_must_send_more_anyway_gets_less_of_what_is_shared() -> None:
    busy = manifest(("own", (6 * MIB,)), ("shared", (10 * MIB,)))
    free = manifest(TensorMeta.full("shared", "uint8", (10 * MIB,), 0))
    first, second = assign([busy, free], busy)
    assert (first.nbytes, second.nbytes) == (8 * MIB, 8 * MIB)
    overloaded = manifest(("own", (20 * MIB,)), ("shared", (10 * MIB,)))
    first, second = assign([overloaded, free], overloaded)
    assert (first.nbytes, second.nbytes) == (20 * MIB, 10 * MIB)


def test_one_dimensional_shards_to_another_number_of_shards() -> None:
    shape = (12, 4)
    sources = [manifest(part("w", shape, Box((row, 0), (4, 4)))) for row in (0, 4, 8)]
    wanted = manifest(part("w", shape, Box((6, 0), (6, 4))))
    first, second, third = assign(sources, wanted)
    assert first.boxes == ()
    assert second.boxes == ((0, Box((6, 0), (2, 4))),)
    assert third.boxes == ((0, Box((8, 0), (4, 4))),)


def test_nothing_wanted_and_nothing_held_are_valid() -> None:
    nothing = manifest()
    assert assign([], nothing) == ()
    assert [assignment.nbytes for assignment in assign([nothing, nothing], nothing)] == [0, 0]
    hollow = manifest(("empty", (0, 3)))
    assert [assignment.boxes for assignment in assign([hollow], hollow)] == [()]


def test_rank_without_tensors_takes_part() -> None:
    model = manifest(("w", (4,)))
    nothing, everything = assign([manifest(), model], model)
    assert (nothing.nbytes, everything.nbytes) == (0, 4)


def test_missing_and_extra_names_are_listed() -> None:
    error = refused([manifest(("a", (1,)), ("c", (1,)))], manifest(("a", (1,)), ("b", (1,))))
    assert "1 held by no trainer: b" in error.message
    assert "1 not wanted by the generator: c" in error.message
    assert error.tensor == "b"
    many = manifest(*((f"w{i}", (1,)) for i in range(9)))
    assert "9 held by no trainer: w0, w1, w2, w3, w4 and 4 more" in refused([], many).message


def test_extra_names_can_be_allowed_missing_ones_never() -> None:
    source, wanted = manifest(("a", (1,)), ("c", (1,))), manifest(("a", (1,)))
    assert "c" in refused([source], wanted).message
    assert assign([source], wanted, allow_extra=True)[0].nbytes == 1
    assert "held by no trainer" in refused([wanted], source, allow_extra=True).message


@pytest.mark.parametrize("prefix", ["module.", "language_model."])
def test_a_constant_prefix_is_named_in_the_hint(prefix: str) -> None:
    plain = manifest(("a", (1,)), ("b", (1,)))
    wrapped = manifest((f"{prefix}a", (1,)), (f"{prefix}b", (1,)))
    trainer, generator = refused([wrapped], plain), refused([plain], wrapped)
    assert f"the trainers' names are the generator's with {prefix!r}" in str(trainer)
    assert f"the generator's names are the trainers' with {prefix!r}" in str(generator)


def test_other_shapes_and_dtypes_are_listed_and_nothing_is_cast() -> None:
    source = manifest(("a", (4,)), ("b", (2,)))
    error = refused([source], manifest(("a", (2, 2)), ("b", (2,))))
    assert "1 of another shape: a ((2, 2) wanted, (4,) held)" in error.message
    error = refused([source], manifest(("a", (4,)), ("b", (2,)), dtype="int8"))
    assert "2 of another dtype: a (int8 wanted, uint8 held)" in error.message
    assert "convert one side" in str(error)


def test_trainers_that_disagree_are_named() -> None:
    error = refused([manifest(("a", (4,))), manifest(("a", (5,)))], manifest(("a", (4,))))
    assert "a (uint8 (4,) at rank 0, uint8 (5,) at rank 1)" in error.message


def test_uncovered_boxes_are_named() -> None:
    shape = (8, 2)
    sources = [manifest(part("w", shape, Box((row, 0), (3, 2)))) for row in (0, 4)]
    error = refused(sources, manifest(("w", shape)))
    assert "w ([3:4, 0:2] of (8, 2)), w ([7:8, 0:2] of (8, 2))" in error.message
    assert error.tensor == "w"


def tied(*groups: tuple[str, ...]) -> Manifest:
    names = [(name, index) for index, group in enumerate(groups) for name in group]
    return Manifest(tuple(TensorMeta.full(name, "uint8", (8,), index) for name, index in names))


def test_tied_at_the_trainer_only_gives_both_their_bytes() -> None:
    (assignment,) = assign([tied(("embed", "head"))], tied(("embed",), ("head",)))
    assert assignment.nbytes == 16


def test_tied_at_both_travels_once() -> None:
    (assignment,) = assign([tied(("embed", "head"))], tied(("embed", "head")))
    assert assignment.nbytes == 8


@pytest.mark.parametrize(
    "sources",
    [
        [tied(("embed",), ("head",))],
        [tied(("embed", "head")), tied(("embed",), ("head",))],
        [tied(("embed",)), tied(("head",))],
    ],
)
def test_tied_at_the_generator_only_is_refused(sources: list[Manifest]) -> None:
    error = refused(sources, tied(("embed", "head")))
    assert "tied at the generator but not at a trainer: embed (with head" in error.message


def edited(*path: int, value: object) -> Any:
    wire: Any = [1, [[0, [0, 0], [2, 3]], [1, [0], [4]]], 10]
    place = wire
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] = value
    return wire


@pytest.mark.parametrize(
    "wire",
    [
        None,
        [1, []],
        edited(0, value=0),
        edited(0, value=True),
        edited(1, value={}),
        edited(1, 0, value=[0, [0, 0]]),
        edited(1, 0, 0, value=-1),
        edited(1, 0, 0, value=2),
        edited(1, 0, 0, value="0"),
        edited(1, 0, 1, value=[0]),
        edited(1, 0, 2, value=[2, -3]),
        edited(1, 0, 2, value=[2, 1 << 62]),
        edited(1, 1, value=[0, [0, 0], [2, 3]]),
        edited(2, value=-1),
        edited(2, value=1.5),
        edited(2, value=1 << 61),
    ],
)
def test_hostile_wire_is_a_protocol_error(wire: object) -> None:
    with pytest.raises(ProtocolError):
        Assignment.from_wire(wire)


@given(st.integers(1, 9), st.integers(1, 40), st.integers(0, 8 * MIB))
def test_large_cells_fill_the_least_loaded_to_one_level(replicas: int, rows: int, head_start: int) -> None:
    row_nbytes = 64 * KIB
    shape = (rows, row_nbytes)
    shared = [TensorMeta.full("shared", "uint8", shape, 0) for _ in range(replicas)]
    own = TensorMeta.full("own", "uint8", (head_start,), 1)
    sources = [Manifest((shared[0], own)), *(Manifest((meta,)) for meta in shared[1:])]
    loads = [assignment.nbytes for assignment in assign(sources, sources[0])]
    assert sum(loads) == rows * row_nbytes + head_start
    level = max(sum(loads) / replicas, head_start)
    if rows * row_nbytes >= MIB:
        # Cut along rows of one byte where there are few of 64 KiB.
        step = row_nbytes if rows >= 8 * replicas else rows
        assert max(loads) <= level + step * replicas
