from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.weights.strategies import boxes_in, part_of, partitions, shapes
from wtransport.weights.box import Box
from wtransport.weights.digest import DIGEST_ID, digest_box, digest_bytes, reference, splitmix64

VECTORS = json.loads((Path(__file__).parent / "vectors.json").read_text())
MASK = (1 << 64) - 1


def pattern(nbytes: int, seed: int) -> bytes:
    """Bytes that any language makes in one line: the top byte of splitmix64(seed + i)."""
    return bytes(splitmix64(seed + place) >> 56 for place in range(nbytes))


def test_vectors_are_of_this_digest() -> None:
    assert VECTORS["digest_id"] == DIGEST_ID == "wt1"


@pytest.mark.parametrize("vector", VECTORS["bytes"], ids=lambda vector: vector["what"])
def test_bytes_vectors(vector: dict[str, object]) -> None:
    nbytes, seed, position = (int(str(vector[key])) for key in ("nbytes", "seed", "position"))
    data = pattern(nbytes, seed)
    assert digest_bytes(data, position) == int(str(vector["digest"]), 16)
    assert reference(data, position) == int(str(vector["digest"]), 16)


@pytest.mark.parametrize("vector", VECTORS["boxes"], ids=lambda vector: vector["what"])
def test_box_vectors(vector: dict[str, list[int]]) -> None:
    shape, item = tuple(vector["shape"]), int(str(vector["itemsize"]))
    whole = Box.whole(shape)
    data = pattern(whole.volume * item, int(str(vector["seed"])))
    values = np.frombuffer(data, dtype=np.uint8).reshape((*shape, item))
    box = Box(tuple(vector["offsets"]), tuple(vector["sizes"]))
    elements = part_of(values, box).view(f"V{item}").reshape(box.sizes)
    assert digest_box(elements, shape, box) == int(str(vector["digest"]), 16)


@given(st.binary(max_size=200), st.integers(0, 1 << 40))
def test_numpy_is_the_definition(data: bytes, position: int) -> None:
    assert digest_bytes(data, position) == reference(data, position)


@given(st.binary(max_size=64), st.integers(0, 20_000), st.data())
def test_any_cut_adds_up(data: bytes, position: int, draw: st.DataObject) -> None:
    cut = draw.draw(st.integers(0, len(data)))
    parts = digest_bytes(data[:cut], position) + digest_bytes(data[cut:], position + cut)
    assert parts & MASK == digest_bytes(data, position)


@given(shapes, st.sampled_from(["u1", "<u2", "<f4", "<f8", "<c16"]), st.data())
def test_any_sharding_into_boxes_adds_up_to_the_whole(shape: tuple[int, ...], dtype: str, draw: st.DataObject) -> None:
    rng = np.random.default_rng(7)
    kind = np.dtype(dtype)
    raw = rng.integers(0, 256, (*shape, kind.itemsize), dtype=np.uint8)
    values = raw.view(kind).reshape(shape)
    whole = Box.whole(shape)
    total = 0
    for box in draw.draw(partitions(whole, 6)):
        index = tuple(slice(at, end) for at, end in zip(box.offsets, box.ends, strict=True))
        total += digest_box(values[index], shape, box)
    assert total & MASK == digest_box(values, shape, whole) == digest_bytes(raw.tobytes(), 0)


@given(shapes, st.data())
def test_a_box_counts_what_zeros_around_it_leave(shape: tuple[int, ...], draw: st.DataObject) -> None:
    box = draw.draw(boxes_in(shape))
    values = np.zeros(shape, dtype="<u2")
    index = tuple(slice(at, end) for at, end in zip(box.offsets, box.ends, strict=True))
    values[index] = np.arange(1, box.volume + 1, dtype="<u2").reshape(box.sizes)
    assert digest_box(values[index], shape, box) == digest_bytes(values.tobytes(), 0)


@pytest.mark.parametrize("change", ["flip", "swap words", "swap blocks", "swap rows", "shift"])
def test_accidents_change_it(change: str) -> None:
    data = bytearray(pattern(16384, 3))
    before = digest_bytes(bytes(data), 0)
    if change == "flip":
        data[9000] ^= 1
    elif change == "swap words":
        data[40:44], data[44:48] = data[44:48], data[40:44]
    elif change == "swap blocks":
        data[:4096], data[4096:8192] = data[4096:8192], data[:4096]
    elif change == "swap rows":
        data[:128], data[128:256] = data[128:256], data[:128]
    else:
        data = data[1:] + data[:1]
    assert digest_bytes(bytes(data), 0) != before


def test_long_buffers_and_strided_arrays() -> None:
    values = np.random.default_rng(1).integers(0, 1 << 32, (3000, 1000), dtype=np.uint32)
    whole = digest_bytes(values.tobytes(), 0)
    assert digest_box(values, (3000, 1000), Box.whole((3000, 1000))) == whole
    halves = [Box((0, 0), (3000, 400)), Box((0, 400), (3000, 600))]
    parts = [digest_box(values[:, box.offsets[1] : box.ends[1]], (3000, 1000), box) for box in halves]
    assert sum(parts) & MASK == whole
    fortran = np.asfortranarray(values)
    assert digest_box(fortran, (3000, 1000), Box.whole((3000, 1000))) == whole
