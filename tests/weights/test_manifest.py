from __future__ import annotations

import copy
from typing import Any

import msgpack
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.weights.strategies import Model, models
from wtransport.errors import ProtocolError, WeightsError
from wtransport.weights.assign import Assignment
from wtransport.weights.box import Box
from wtransport.weights.layout import ALIGNMENT, SlotLayout
from wtransport.weights.manifest import Manifest, TensorMeta, digest_of


def full(name: str, storage: int = 0, shape: tuple[int, ...] = (2, 3)) -> TensorMeta:
    return TensorMeta.full(name, "float32", shape, storage)


def test_order_and_numbering_do_not_depend_on_how_it_was_made() -> None:
    first = Manifest((full("b", 7), full("a", 3), full("c", 3)))
    second = Manifest((full("c", 1), full("b", 0), full("a", 1)))
    assert first == second
    assert hash(first) == hash(second)
    assert [(meta.name, meta.storage) for meta in first.tensors] == [("a", 0), ("b", 1), ("c", 0)]
    assert [meta.name for meta in first.canonical] == ["a", "b"]
    assert first.aliases == (("a", "c"), ("b",))
    assert first.nbytes == 2 * 24


@pytest.mark.parametrize(
    "other",
    [
        Manifest((full("a", 0), full("b", 0))),
        Manifest((full("a", 0), full("c", 1))),
        Manifest((full("a", 0), full("b", 1, (3, 2)))),
        Manifest((full("a", 0), TensorMeta.full("b", "int32", (2, 3), 1))),
        Manifest((full("a", 0), TensorMeta("b", "float32", (2, 3), Box((0, 0), (2, 2)), 1))),
        Manifest((full("a", 0), full("b", 1), full("c", 2))),
        Manifest(()),
    ],
)
def test_digest_tells_names_dtypes_shapes_boxes_and_ties_apart(other: Manifest) -> None:
    base = Manifest((full("a", 0), full("b", 1)))
    assert other != base
    assert len(base.digest) == 16
    assert base != "a manifest"


def test_empty_manifest_is_valid() -> None:
    empty = Manifest(())
    assert (len(empty), empty.nbytes, empty.canonical, empty.aliases) == (0, 0, (), ())
    assert Manifest.from_wire(empty.to_wire()) == empty
    assert SlotLayout.of(empty).nbytes == 0


def test_duplicate_names_are_refused_by_name() -> None:
    with pytest.raises(WeightsError, match="2 names occur more than once: a, b") as caught:
        Manifest((full("a", 0), full("b", 1), full("a", 2), full("b", 3), full("c", 4)))
    assert caught.value.tensor == "a"


def test_tied_names_must_agree() -> None:
    with pytest.raises(WeightsError, match="b is tied to a but differs"):
        Manifest((full("a", 0), full("b", 0, (3, 2))))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"dtype": "quint8"}, "'quint8' cannot be moved"),
        ({"dtype": "torch.float32"}, "cannot be moved"),
        ({"shape": (-1, 3)}, "not a shape"),
        ({"shape": (1,) * 65, "box": Box.whole((1,) * 65)}, "not a shape"),
        ({"shape": (1 << 58,), "box": Box.whole((1 << 58,))}, "too large"),
        ({"shape": (0, 1 << 58), "box": Box.whole((0, 1 << 58))}, "too large"),
        ({"box": Box((1, 0), (2, 3))}, "does not lie in"),
        ({"box": Box((0,), (2,))}, "does not lie in"),
        ({"box": Box((0, 4), (0, 0))}, "does not lie in"),
        ({"name": "n" * 4097}, "a name of 4097 bytes"),
        ({"name": "\udc80"}, "not valid Unicode"),
    ],
)
def test_a_meta_out_of_range_is_refused(fields: dict[str, Any], message: str) -> None:
    plain = {
        "name": "a",
        "dtype": "float32",
        "shape": (2, 3),
        "box": Box.whole((2, 3)),
        "storage": 0,
    }
    with pytest.raises(WeightsError, match=message):
        TensorMeta(**{**plain, **fields})


def test_names_may_be_empty_or_beyond_ascii() -> None:
    manifest = Manifest((full("", 0), full("gewicht.\u00e4.\U0001f600", 1), full("a b\n\0", 2)))
    assert Manifest.from_wire(manifest.to_wire()) == manifest


def test_too_many_bytes_together_are_refused() -> None:
    metas = tuple(full(str(i), i, (1 << 57,)) for i in range(4))
    with pytest.raises(WeightsError, match="more than can be addressed"):
        Manifest(metas)


@given(models())
def test_the_wire_keeps_everything(model: Model) -> None:
    for manifest in (*model.sources, model.wanted):
        read = Manifest.from_wire(msgpack.unpackb(msgpack.packb(manifest.to_wire())))
        assert read == manifest
        assert read.tensors == manifest.tensors


WIRE = Manifest((full("a", 0), full("b", 0), TensorMeta("c", "int8", (4,), Box((1,), (2,)), 1))).to_wire()


def edited(*path: int | slice, value: object) -> Any:
    wire = copy.deepcopy(msgpack.unpackb(msgpack.packb(WIRE)))
    place: Any = wire
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] = value
    return wire


@pytest.mark.parametrize(
    "wire",
    [
        None,
        "manifest",
        [],
        [1, [], [], []],
        {0: 1, 1: [], 2: []},
        edited(0, value=2),
        edited(0, value=True),
        edited(1, value="float32"),
        edited(1, 0, value=b"float32"),
        edited(1, 0, value="f" * 33),
        edited(1, 0, value="quint8"),
        edited(1, value=["int8"] * 100),
        edited(2, 0, value=["a", 0, [2, 3], None]),
        edited(2, 0, 0, value=7),
        edited(2, 0, 0, value="n" * 5000),
        edited(2, 0, 1, value=-1),
        edited(2, 0, 1, value=9),
        edited(2, 0, 1, value=False),
        edited(2, 0, 2, value=[2, 3.0]),
        edited(2, 0, 2, value=[2, True]),
        edited(2, 0, 2, value=[-2, 3]),
        edited(2, 0, 2, value=[1 << 70]),
        edited(2, 0, 2, value=[1] * 65),
        edited(2, 0, 2, value=None),
        edited(2, 0, 3, value=[[0, 0], [2, 3]]),
        edited(2, 0, 3, value=[[0, 0], [2, 4]]),
        edited(2, 0, 3, value=[[0], [2]]),
        edited(2, 0, 3, value=[[0, 0], [2]]),
        edited(2, 0, 3, value=[[0, 0]]),
        edited(2, 0, 4, value=1),
        edited(2, 0, 4, value=1 << 40),
        edited(2, 1, 0, value="a"),
        edited(2, 2, 4, value=5),
        edited(2, 2, 0, value="0"),
    ],
)
def test_hostile_wire_is_a_protocol_error(wire: object) -> None:
    with pytest.raises(ProtocolError):
        Manifest.from_wire(wire)


junk = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3) | st.binary(max_size=3),
    lambda inner: st.lists(inner, max_size=5),
)


@given(junk, st.integers(0, 2), st.integers(0, 2), st.integers(0, 4))
def test_junk_anywhere_is_refused_or_read_exactly(value: Any, a: int, b: int, c: int) -> None:
    for path in ((a,), (1, b % 2), (2, b), (2, b, c)):
        wire = edited(*path, value=value)
        try:
            manifest = Manifest.from_wire(wire)
        except ProtocolError:
            continue
        assert msgpack.packb(manifest.to_wire()[2]) == msgpack.packb(wire[2])


def test_layout_aligns_each_distinct_tensor_once() -> None:
    manifest = Manifest((full("a", 0), full("b", 0), full("c", 1, (0, 5)), full("d", 2, (65,)), full("e", 3, ())))
    layout = SlotLayout.of(manifest)
    assert layout.offsets.tolist() == [0, 256, 256, 768]
    assert layout.sizes.tolist() == [24, 0, 260, 4]
    assert layout.nbytes == 1024
    assert layout.offsets.dtype == np.int64


@given(models())
def test_layout_places_nothing_over_anything_else(model: Model) -> None:
    layout = SlotLayout.of(model.wanted)
    ends = layout.offsets + layout.sizes
    assert (layout.offsets % ALIGNMENT == 0).all()
    assert (ends[:-1] <= layout.offsets[1:]).all()
    assert layout.nbytes % ALIGNMENT == 0
    assert not len(ends) or ends[-1] <= layout.nbytes < ends[-1] + ALIGNMENT


@pytest.mark.parametrize("junk", [b"", b"[", b"\xff\xfe", b"[" * 100_000, b"1" * 10_000, b"NaN", b'[1,["int8"],[["a",0,[NaN],null,0]]]'])
def test_bytes_that_are_no_manifest_are_refused(junk: bytes) -> None:
    with pytest.raises(ProtocolError):
        Manifest.decode(junk)
    with pytest.raises(ProtocolError):
        Assignment.decode(junk)


def test_what_is_encoded_is_read_again_and_has_its_digest() -> None:
    manifest = Manifest((full("a", 0), full("b", 0), TensorMeta("größe", "int8", (4,), Box((1,), (2,)), 1)))
    read = Manifest.decode(manifest.encoded)
    assert read == manifest
    assert read.encoded == manifest.encoded
    assert digest_of(manifest.encoded) == manifest.digest
