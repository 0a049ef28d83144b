"""make_plan: the spans that one source copies for one wanted manifest, as one int64 table."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt

from wtransport.errors import ProtocolError, WeightsError
from wtransport.pacing import paced
from wtransport.weights.dtypes import ITEMSIZE
from wtransport.weights.layout import SlotLayout

if TYPE_CHECKING:
    from wtransport.weights.assign import Assignment
    from wtransport.weights.box import Box
    from wtransport.weights.manifest import Manifest

Ints = npt.NDArray[np.int64]

BLOCK, SRC, DST, NBYTES, TENSOR, POSITION = range(6)
MAX_SPANS: Final = 1 << 26
_CUT_NBYTES = 4096
_SMALL_CUT_NBYTES = 16


@dataclass(frozen=True, eq=False)
class Plan:
    """What one source copies into a slot laid out by the wanted manifest.

    Attributes:
        spans: int64 [n, 6], C-contiguous, sorted by tensor and position: index of the source's
            block; byte offset in its row-major bytes; byte offset in the slot; bytes; index of the
            wanted canonical tensor; byte position of the span's first byte in the global tensor.
        num_tensors: Wanted canonical tensors, so digest accumulators.
        nbytes: Bytes of all spans.
        key: Digests of source, wanted and assignment: plans with equal keys are equal.
    """

    spans: Ints
    num_tensors: int
    nbytes: int
    key: tuple[bytes, bytes, bytes]

    def nbytes_by_tensor(self) -> Ints:
        """Return int64 [num_tensors], the bytes sent of each wanted canonical tensor."""
        totals = np.zeros(self.num_tensors, dtype=np.int64)
        np.add.at(totals, self.spans[:, TENSOR], self.spans[:, NBYTES])
        return totals

    def from_region(self, layout: SlotLayout) -> Ints:
        """Return the spans for a source that lies in one region by *layout*: a snapshot or a slot.

        The region counts as block 0, and source offsets are those in the region.
        """
        spans = self.spans.copy()
        spans[:, SRC] += layout.offsets[spans[:, BLOCK]]
        spans[:, BLOCK] = 0
        return spans

    def reading(self, layout: SlotLayout) -> Ints:
        """Return the spans by which the wanting side reads a source that lies in a peer's region.

        The local side is the wanting side's slot as one block, the remote side is the peer's
        region.
        """
        spans = self.from_region(layout)
        spans[:, [SRC, DST]] = spans[:, [DST, SRC]]
        return spans


def make_plan(source: Manifest, wanted: Manifest, assignment: Assignment) -> Plan:
    """Lay out what *source* sends of *wanted* under *assignment*, in the fewest spans.

    A span is contiguous in the source's block, in the slot and in the global tensor. Deterministic;
    may run on any thread.

    Raises:
        ProtocolError: If the assignment names what *source* does not hold or *wanted* does not
            want.
        WeightsError: If the layouts interleave so finely that more than 2**26 spans would be
            needed.
    """
    layout = SlotLayout.of(wanted)
    groups: dict[int, list[tuple[int, int, int, Box, Box, Box, tuple[int, ...]]]] = {}
    canonical = wanted.canonical
    for tensor, box in paced(assignment.boxes):
        if tensor >= len(canonical):
            raise ProtocolError(f"assignment: tensor {tensor} of {len(canonical)}")
        want = canonical[tensor]
        have = source.by_name.get(want.name)
        if have is None or (have.dtype, have.shape) != (want.dtype, want.shape) or box.ndim != len(want.shape):
            raise ProtocolError("assignment: not held by this source as it is wanted", tensor=want.name)
        row = (have.storage, tensor, ITEMSIZE[want.dtype], have.box, want.box, box, want.shape)
        groups.setdefault(box.ndim, []).append(row)
    tables = [_spans(rows, layout) for rows in groups.values()]
    spans = _merge(np.concatenate(tables)) if tables else np.zeros((0, 6), dtype=np.int64)
    nbytes = int(spans[:, NBYTES].sum())
    if nbytes != assignment.nbytes:
        raise ProtocolError(f"assignment: states {assignment.nbytes} bytes, its boxes have {nbytes}")
    return Plan(spans, len(canonical), nbytes, (source.digest, wanted.digest, assignment.digest))


def buckets(spans: Ints, bucket_nbytes: int) -> list[Ints]:
    """Cut *spans* into tables of at most *bucket_nbytes* bytes each, in order.

    Args:
        spans: int64 [n, 6], C-contiguous.
        bucket_nbytes: At least 16. A span larger than this is split at multiples of 4096 bytes (of
            16 in buckets below 4096), so never inside an element.

    Raises:
        WeightsError: If *bucket_nbytes* is below 16.
    """
    if bucket_nbytes < _SMALL_CUT_NBYTES:
        raise WeightsError(f"a bucket holds at least {_SMALL_CUT_NBYTES} bytes, not {bucket_nbytes}")
    spans = _split(spans, bucket_nbytes)
    ends = np.cumsum(spans[:, NBYTES])
    tables = []
    start, done = 0, 0
    while start < len(spans):
        stop = int(np.searchsorted(ends, done + bucket_nbytes, side="right"))
        tables.append(spans[start:stop])
        start, done = stop, int(ends[stop - 1])
    return tables


def _split(spans: Ints, bucket_nbytes: int) -> Ints:
    if not len(spans) or int(spans[:, NBYTES].max()) <= bucket_nbytes:
        return spans
    unit = _CUT_NBYTES if bucket_nbytes >= _CUT_NBYTES else _SMALL_CUT_NBYTES
    step = bucket_nbytes - bucket_nbytes % unit
    sizes = spans[:, NBYTES]
    # What fits a bucket stays whole, also where the bucket is not a multiple of the unit.
    counts = np.where(sizes <= bucket_nbytes, 1, -(-sizes // step))
    cut = np.repeat(spans, counts, axis=0)
    inside = (np.arange(len(cut)) - np.repeat(np.cumsum(counts) - counts, counts)) * step
    whole = np.repeat(counts == 1, counts)
    cut[:, NBYTES] = np.where(whole, cut[:, NBYTES], np.minimum(step, cut[:, NBYTES] - inside))
    for column in (SRC, DST, POSITION):
        cut[:, column] += inside
    return cut


def _spans(rows: list[tuple[int, int, int, Box, Box, Box, tuple[int, ...]]], layout: SlotLayout) -> Ints:
    # All of one number of dimensions: arithmetic over all tensors at once, not a loop over them.
    block = np.array([row[0] for row in rows], dtype=np.int64)
    tensor = np.array([row[1] for row in rows], dtype=np.int64)
    item = np.array([row[2] for row in rows], dtype=np.int64)
    have_at, have = _columns([row[3] for row in rows])
    want_at, want = _columns([row[4] for row in rows])
    part_at, part = _columns([row[5] for row in rows])
    shape = np.array([row[6] for row in rows], dtype=np.int64).reshape(part.shape)
    ends = part_at + part
    inside = (part_at >= have_at) & (ends <= have_at + have) & (part_at >= want_at) & (ends <= want_at + want)
    if not inside.all() or (part == 0).any():
        raise ProtocolError("assignment: a box is empty, or not held, or not wanted")
    # Bytes run on through the trailing dimensions that are whole in the global shape (and so in all
    # boxes), and one more.
    ndim = part.shape[1]
    whole_after = np.ones((len(rows), ndim), dtype=bool)
    for dim in range(ndim - 2, -1, -1):
        whole_after[:, dim] = whole_after[:, dim + 1] & (part[:, dim + 1] == shape[:, dim + 1])
    run = np.where(whole_after, part, 1).prod(axis=1) * item
    outer = np.where(whole_after, 1, part)
    # In floating point first: the product of hostile sizes may not fit.
    if outer.astype(np.float64).prod(axis=1).sum() > MAX_SPANS:
        raise WeightsError(
            f"the layouts of trainer and generator interleave in more than {MAX_SPANS} pieces",
            hint="shard the outer dimensions instead of the last one",
        )
    counts = outer.prod(axis=1)
    entry = np.repeat(np.arange(len(rows)), counts)
    index = np.arange(len(entry)) - np.repeat(np.cumsum(counts) - counts, counts)
    spans = np.empty((len(entry), 6), dtype=np.int64)
    spans[:, BLOCK], spans[:, TENSOR], spans[:, NBYTES] = block[entry], tensor[entry], run[entry]
    sides = ((SRC, have_at, have), (DST, want_at, want), (POSITION, np.zeros_like(shape), shape))
    strides = {column: _strides(sizes, item) for column, _, sizes in sides}
    for column, at, _ in sides:
        spans[:, column] = ((part_at - at) * strides[column]).sum(axis=1)[entry]
    spans[:, DST] += layout.offsets[tensor][entry]
    for dim in range(ndim - 1, -1, -1):
        if (outer[:, dim] == 1).all():
            continue
        index, step = np.divmod(index, outer[entry, dim])
        for column, stride in strides.items():
            spans[:, column] += step * stride[entry, dim]
    return spans


def _columns(boxes: list[Box]) -> tuple[Ints, Ints]:
    shape = (len(boxes), boxes[0].ndim)
    offsets = np.array([box.offsets for box in boxes], dtype=np.int64).reshape(shape)
    return offsets, np.array([box.sizes for box in boxes], dtype=np.int64).reshape(shape)


def _strides(sizes: Ints, item: Ints) -> Ints:
    """Byte strides of row-major arrays of *sizes* [n, ndim] with elements of *item* [n] bytes."""
    strides = np.empty_like(sizes)
    step = item.copy()
    for dim in range(sizes.shape[1] - 1, -1, -1):
        strides[:, dim] = step
        step = step * sizes[:, dim]
    return strides


def _merge(spans: Ints) -> Ints:
    """Sort by tensor and position, and join neighbours that are contiguous on all three sides."""
    keys = spans[:, TENSOR], spans[:, POSITION]
    sorted_already = (keys[0][1:] > keys[0][:-1]) | ((keys[0][1:] == keys[0][:-1]) & (keys[1][1:] > keys[1][:-1]))
    if not sorted_already.all():
        spans = spans[np.lexsort((keys[1], keys[0]))]
    before, after = spans[:-1], spans[1:]
    joined = (after[:, BLOCK] == before[:, BLOCK]) & (after[:, TENSOR] == before[:, TENSOR])
    if (joined & (after[:, POSITION] < before[:, POSITION] + before[:, NBYTES])).any():
        raise ProtocolError("assignment: boxes overlap")
    for column in (SRC, DST, POSITION):
        joined &= after[:, column] == before[:, column] + before[:, NBYTES]
    starts = np.flatnonzero(np.concatenate(([True], ~joined)))
    if len(starts) == len(spans):
        return np.ascontiguousarray(spans)
    merged = spans[starts]
    merged[:, NBYTES] = np.add.reduceat(spans[:, NBYTES], starts)
    return merged
