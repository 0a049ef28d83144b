"""Digest "wt1": the definition in plain Python, and the same in numpy.

Let u[j] be the j-th little-endian 32-bit word of the row-major bytes of the global tensor, padded
with zeros. The digest is the sum over j, modulo 2**64, of u[j] * lane(j % 1024) * block(j // 1024).
A byte counts by its position in the global tensor alone, so the digests of disjoint boxes add up to
that of their union, however the tensor is sharded. It finds accidents, not forgeries.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from wtransport.weights.box import Box

DIGEST_ID: Final = "wt1"
LANES: Final = 1024
_WORD = 4
_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15
_MIX_1 = 0xBF58476D1CE4E5B9
_MIX_2 = 0x94D049BB133111EB
# Bounds the temporaries: at most a few times this many bytes at once.
_CHUNK_NBYTES = 4 << 20

Words = npt.NDArray[np.uint64]
Bytes = npt.NDArray[np.uint8]


def splitmix64(value: int) -> int:
    """Return the 64-bit mix of *value* that the weights are drawn with."""
    value = (value + _GOLDEN) & _MASK
    value = ((value ^ value >> 30) * _MIX_1) & _MASK
    value = ((value ^ value >> 27) * _MIX_2) & _MASK
    return value ^ value >> 31


def weight(word: int) -> int:
    """Return the 64-bit weight of the *word*-th 32-bit word of a global tensor."""
    lane = splitmix64(word % LANES) >> 32 | 1
    block = splitmix64(word // LANES + _GOLDEN & _MASK) | 1
    return lane * block & _MASK


def reference(data: bytes, position: int) -> int:
    """Return the digest of *data* at byte *position* of its global tensor, in plain Python.

    This is the definition, byte by byte; :func:`digest_bytes` is the one to use.
    """
    total = 0
    for place, byte in enumerate(data, position):
        total += (byte << 8 * (place % _WORD)) * weight(place // _WORD)
    return total & _MASK


def digest_bytes(data: bytes | memoryview | Bytes, position: int) -> int:
    """Return the digest of contiguous *data* that lies at byte *position* of its global tensor."""
    flat = np.frombuffer(data, dtype=np.uint8)
    total = 0
    for start in range(0, len(flat), _CHUNK_NBYTES):
        total += _digest_chunk(flat[start : start + _CHUNK_NBYTES], position + start)
    return total & _MASK


def digest_box(array: npt.NDArray[np.generic], shape: tuple[int, ...], box: Box) -> int:
    """Return the digest of *array*, the values of *box*, as a part of a global tensor.

    Args:
        array: Array of shape ``box.sizes``, little-endian, of any layout.
        shape: Global shape, in elements.
        box: Where *array* lies in it.
    """
    if not box.volume:
        return 0
    item = array.dtype.itemsize
    flat = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    # A run: the elements that follow each other in the global tensor too.
    dim = max(box.ndim - 1, 0)
    while dim and box.sizes[dim] == shape[dim]:
        dim -= 1
    run = item
    for size in box.sizes[dim:]:
        run *= size
    starts = np.zeros((), dtype=np.int64)
    stride = item
    for place in range(box.ndim - 1, -1, -1):
        count = box.sizes[place] if place < dim else 1
        steps = (box.offsets[place] + np.arange(count, dtype=np.int64)) * stride
        starts = np.add.outer(steps, starts)
        stride *= shape[place]
    positions = starts.reshape(-1)
    if run >= LANES:
        pieces = zip(range(0, len(flat), run), positions.tolist(), strict=True)
        return sum(digest_bytes(flat[at : at + run], place) for at, place in pieces) & _MASK
    total = 0
    rows = max(1, _CHUNK_NBYTES // 8 // run)
    for first in range(0, len(positions), rows):
        places = positions[first : first + rows, None] + np.arange(run, dtype=np.int64)
        part = flat[first * run : first * run + places.size].astype(np.uint64)
        byte: Words = places.reshape(-1).astype(np.uint64)
        shifted = part << (byte % np.uint64(_WORD) * np.uint64(8))
        total += int((shifted * _weights(byte // np.uint64(_WORD))).sum(dtype=np.uint64))
    return total & _MASK


def _digest_chunk(flat: Bytes, position: int) -> int:
    lead = position % _WORD
    padded = np.zeros(-(-(lead + len(flat)) // _WORD) * _WORD, dtype=np.uint8)
    padded[lead : lead + len(flat)] = flat
    words = padded.view("<u4").astype(np.uint64)
    first = position // _WORD
    indices = np.arange(first, first + len(words), dtype=np.uint64)
    return int((words * _weights(indices)).sum(dtype=np.uint64))


def _weights(words: Words) -> Words:
    lanes = _splitmix64(np.arange(LANES, dtype=np.uint64)) >> np.uint64(32) | np.uint64(1)
    blocks = _splitmix64(words // np.uint64(LANES) + np.uint64(_GOLDEN)) | np.uint64(1)
    weights: Words = lanes[words % np.uint64(LANES)] * blocks
    return weights


def _splitmix64(values: Words) -> Words:
    mixed = values + np.uint64(_GOLDEN)
    mixed = (mixed ^ mixed >> np.uint64(30)) * np.uint64(_MIX_1)
    mixed = (mixed ^ mixed >> np.uint64(27)) * np.uint64(_MIX_2)
    return mixed ^ mixed >> np.uint64(31)
