"""assign: which boxes of the wanted tensors each source sends, every wanted byte exactly once."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Final, Self

from wtransport.errors import ProtocolError
from wtransport.pacing import paced
from wtransport.weights import wire
from wtransport.weights.box import Box
from wtransport.weights.dtypes import ITEMSIZE
from wtransport.weights.manifest import Manifest, TensorMeta, digest_of
from wtransport.weights.mismatch import check_sources, check_wanted, raise_uncovered

if TYPE_CHECKING:
    from collections.abc import Sequence


_WIRE_FORMAT = 1
# A tensor under this goes to one replica whole: more spans would cost more than the better balance
# gains.
_SHARE_NBYTES: Final = 1 << 20
_ROWS_EACH: Final = 8


@dataclass(frozen=True, eq=False)
class Assignment:
    """What one source sends for one wanted manifest.

    Attributes:
        boxes: Pairs (index of the wanted canonical tensor, box in its global shape), sorted, the
            boxes disjoint and not empty.
        nbytes: Bytes of all of them.
    """

    boxes: tuple[tuple[int, Box], ...]
    nbytes: int

    @classmethod
    def everything(cls, manifest: Manifest) -> Self:
        """Return the assignment of every byte of *manifest*, as for a snapshot of it."""
        boxes = tuple((meta.storage, meta.box) for meta in manifest.canonical if meta.nbytes)
        return cls(boxes, manifest.nbytes)

    @cached_property
    def digest(self) -> bytes:
        """16 bytes that are equal exactly where the assignments are."""
        return digest_of(self.encoded)

    @cached_property
    def encoded(self) -> bytes:
        """:meth:`to_wire` as bytes: what travels, and what the digest is of."""
        return wire.encode(self.to_wire())

    @classmethod
    def decode(cls, encoded: bytes) -> Self:
        """Read :attr:`encoded`, from a peer that is not trusted.

        Raises:
            ProtocolError: If it is not exactly that.
        """
        return cls.from_wire(wire.decode(encoded, "assignment"))

    def to_wire(self) -> list[object]:
        """Return the assignment as lists and integers, the same for equal assignments."""
        return [
            _WIRE_FORMAT,
            [(tensor, box.offsets, box.sizes) for tensor, box in self.boxes],
            self.nbytes,
        ]

    @classmethod
    def from_wire(cls, value: object) -> Self:
        """Read what :meth:`to_wire` wrote, from a peer that is not trusted.

        Only ``make_plan`` checks it against the manifests.

        Raises:
            ProtocolError: If *value* is not exactly that.
        """
        version, rows, nbytes = wire.sequence(value, "assignment", at_most=3, exactly=3)
        if version != _WIRE_FORMAT or isinstance(version, bool):
            raise ProtocolError(f"assignment: this member reads format {_WIRE_FORMAT} only")
        boxes: list[tuple[int, Box]] = []
        for row in paced(wire.sequence(rows, "boxes", at_most=wire.MAX_BOXES)):
            tensor, offsets, sizes = wire.sequence(row, "box", at_most=3, exactly=3)
            boxes.append(
                (
                    wire.integer(tensor, "tensor", below=wire.MAX_TENSORS),
                    wire.box(offsets, sizes, "box"),
                )
            )
        if any(first >= second for first, second in itertools.pairwise(boxes)):
            raise ProtocolError("assignment: boxes are not sorted, or one occurs twice")
        return cls(tuple(boxes), wire.integer(nbytes, "nbytes", below=wire.MAX_NBYTES))


@dataclass(slots=True)
class _Cell:
    """Elements of one wanted tensor that the same manifests hold."""

    tensor: int
    box: Box
    nbytes: int
    holders: tuple[int, ...]


def assign(sources: Sequence[Manifest], wanted: Manifest, *, allow_extra: bool = False) -> tuple[Assignment, ...]:
    """Share the bytes of *wanted* out among *sources*, the same way on every member that asks.

    Args:
        sources: What each trainer rank (or other holder) holds, in rank order.
        wanted: What one generator wants.
        allow_extra: Accept names that only the sources have.

    Returns:
        One assignment per source, in the order of *sources*; their boxes are disjoint and cover
        *wanted*.

    Raises:
        ManifestMismatchError: If names, dtypes, global shapes or ties differ, or no source holds a
            wanted box; the first few are listed.
    """
    distinct: dict[Manifest, list[int]] = {}
    for index, source in enumerate(sources):
        distinct.setdefault(source, []).append(index)
    manifests, members = list(distinct), list(distinct.values())
    check_sources(manifests, members)
    check_wanted(manifests, members, wanted, allow_extra=allow_extra)
    cells = _cells(manifests, members, wanted)
    return _share(cells, [tuple(ranks) for ranks in members], wanted, len(sources))


def _cells(manifests: list[Manifest], members: list[list[int]], wanted: Manifest) -> list[_Cell]:
    cells: list[_Cell] = []
    uncovered: list[tuple[TensorMeta, Box]] = []
    # Models repeat a few shapes many times: each pattern of boxes is decomposed once.
    patterns: dict[tuple[Box, tuple[tuple[int, Box], ...]], list[tuple[Box, tuple[int, ...]]]] = {}
    for tensor, meta in enumerate(paced(wanted.canonical)):
        if not meta.nbytes:
            continue
        held = tuple((index, found.box) for index, manifest in enumerate(manifests) if (found := manifest.by_name.get(meta.name)))
        pattern = (meta.box, held)
        parts = patterns.get(pattern)
        if parts is None:
            parts = patterns[pattern] = _decompose(meta.box, held)
        for box, holders in parts:
            if holders:
                cells.append(_Cell(tensor, box, box.volume * ITEMSIZE[meta.dtype], holders))
            else:
                uncovered.append((meta, box))
    if uncovered:
        raise_uncovered(uncovered, members)
    return cells


def _decompose(wanted: Box, held: tuple[tuple[int, Box], ...]) -> list[tuple[Box, tuple[int, ...]]]:
    """Cut *wanted* into boxes whose elements all have the same holders, possibly none."""
    by_box: dict[Box, list[int]] = {}
    for index, box in held:
        by_box.setdefault(box, []).append(index)
    cells: list[tuple[Box, tuple[int, ...]]] = [(wanted, ())]
    for box, indices in by_box.items():
        after: list[tuple[Box, tuple[int, ...]]] = []
        for cell, holders in cells:
            shared = cell.intersection(box)
            if shared is None:
                after.append((cell, holders))
                continue
            after.append((shared, (*holders, *indices)))
            after.extend((rest, holders) for rest in cell.subtract(box))
        cells = after
    return cells


def _share(cells: list[_Cell], members: list[tuple[int, ...]], wanted: Manifest, num_sources: int) -> tuple[Assignment, ...]:
    loads = [0] * num_sources
    boxes: list[list[tuple[int, Box]]] = [[] for _ in range(num_sources)]
    ranks_of: dict[tuple[int, ...], tuple[int, ...]] = {}
    shared: list[_Cell] = []
    for cell in cells:
        if cell.holders not in ranks_of:
            ranks_of[cell.holders] = tuple(sorted(rank for holder in cell.holders for rank in members[holder]))
        ranks = ranks_of[cell.holders]
        if len(ranks) > 1:
            shared.append(cell)
            continue
        loads[ranks[0]] += cell.nbytes
        boxes[ranks[0]].append((cell.tensor, cell.box))
    # Largest first: the small ones then even out what the large ones left uneven.
    shared.sort(key=lambda cell: (-cell.nbytes, cell.tensor, cell.box))
    for cell in shared:
        ranks = ranks_of[cell.holders]
        if cell.nbytes < _SHARE_NBYTES:
            least = min(ranks, key=loads.__getitem__)
            loads[least] += cell.nbytes
            boxes[least].append((cell.tensor, cell.box))
            continue
        for rank, box in _split(cell, ranks, loads):
            loads[rank] += box.volume * (cell.nbytes // cell.box.volume)
            boxes[rank].append((cell.tensor, box))
    return tuple(Assignment(tuple(sorted(own)), load) for own, load in zip(boxes, loads, strict=True))


def _split(cell: _Cell, ranks: tuple[int, ...], loads: list[int]) -> list[tuple[int, Box]]:
    """Cut one large cell, in rank order, so that the least loaded ranks fill up to one level."""
    order = sorted(ranks, key=loads.__getitem__)
    filled, total = len(order), cell.nbytes + sum(loads[rank] for rank in order)
    while filled > 1 and loads[order[filled - 1]] * filled >= total:
        filled -= 1
        total -= loads[order[filled]]
    chosen = sorted(order[:filled])
    sizes = cell.box.sizes
    # The outermost dimension that can be cut evenly enough: the further out, the fewer spans.
    enough = _ROWS_EACH * filled
    dim = next((at for at, size in enumerate(sizes) if size >= enough), sizes.index(max(sizes)))
    pieces, start, given = [], 0, 0
    for place, rank in enumerate(chosen):
        given += total // filled - loads[rank]
        stop = sizes[dim] if place == filled - 1 else max(start, min(sizes[dim], given * sizes[dim] // cell.nbytes))
        if stop > start:
            pieces.append((rank, cell.box.cut(dim, start, stop)))
        start = stop
    return pieces
