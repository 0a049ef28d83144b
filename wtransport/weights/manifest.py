"""Manifest: names, dtypes and global shapes, and the box of each that a member holds or wants."""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Self

from wtransport.errors import ProtocolError, WeightsError
from wtransport.pacing import paced
from wtransport.weights import wire
from wtransport.weights.box import Box
from wtransport.weights.dtypes import ITEMSIZE, itemsize

if TYPE_CHECKING:
    from collections.abc import Iterable

_WIRE_FORMAT = 1
_DIGEST_NBYTES = 16


@dataclass(frozen=True, slots=True)
class TensorMeta:
    """One named tensor of a manifest.

    Attributes:
        name: The tensor's name; UTF-8, at most 4096 bytes.
        dtype: Torch's name of the dtype, without ``torch.``.
        shape: The global shape, in elements.
        box: The part of it that the member holds or wants.
        storage: Which of the member's distinct memories it is; names with equal ``storage`` are
            tied: one memory under several names.

    Raises:
        WeightsError: If a field is out of range, or the box does not lie in the shape.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    box: Box
    storage: int

    def __post_init__(self) -> None:
        try:
            nbytes_name = len(self.name) if self.name.isascii() else len(self.name.encode())
        except UnicodeEncodeError:
            raise WeightsError("a name is not valid Unicode", tensor=ascii(self.name)) from None
        if nbytes_name > wire.MAX_NAME_NBYTES:
            raise WeightsError(
                f"a name of {nbytes_name} bytes; at most {wire.MAX_NAME_NBYTES} are allowed",
                tensor=self.name[:64],
            )
        if len(self.shape) > wire.MAX_DIMS or (self.shape and min(self.shape) < 0):
            raise WeightsError(
                f"not a shape: {len(self.shape)} dimensions, or a negative size",
                tensor=self.name,
            )
        # Zero sizes count as one here: strides of an empty tensor are computed too, and may not
        # overflow.
        volume = math.prod(self.shape) or math.prod([size or 1 for size in self.shape])
        if volume * itemsize(self.dtype) >= wire.MAX_NBYTES:
            raise WeightsError(f"shape {self.shape} of {self.dtype} is too large", tensor=self.name)
        if not self.box.is_whole(self.shape) and not self.box.within(self.shape):
            raise WeightsError(f"box {self.box} does not lie in shape {self.shape}", tensor=self.name)

    @classmethod
    def full(cls, name: str, dtype: str, shape: tuple[int, ...], storage: int) -> Self:
        """Return the meta of a tensor held or wanted whole."""
        return cls(name, dtype, shape, Box.whole(shape), storage)

    @property
    def nbytes(self) -> int:
        """Bytes of the box."""
        return self.box.volume * ITEMSIZE[self.dtype]


@dataclass(frozen=True, eq=False)
class Manifest:
    """The tensors of one member, sorted by name, their storages numbered in that order.

    Equal weights give equal manifests, in whatever order they came.

    Attributes:
        tensors: One entry per name, in any order on entry; sorted afterwards.

    Raises:
        WeightsError: If a name occurs twice, tied names differ in dtype, shape or box, or all
            together are too many or too large.
    """

    tensors: tuple[TensorMeta, ...]

    def __post_init__(self) -> None:
        if len(self.tensors) > wire.MAX_TENSORS:
            raise WeightsError(f"{len(self.tensors)} tensors; at most {wire.MAX_TENSORS} are allowed")
        ordered = sorted(self.tensors, key=lambda meta: meta.name)
        _check_unique(ordered)
        object.__setattr__(self, "tensors", tuple(_number_storages(ordered)))
        if self.nbytes >= wire.MAX_NBYTES:
            raise WeightsError(f"{self.nbytes} bytes of weights are more than can be addressed")

    def __len__(self) -> int:
        return len(self.tensors)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Manifest) and self.digest == other.digest

    def __hash__(self) -> int:
        return hash(self.digest)

    @cached_property
    def by_name(self) -> dict[str, TensorMeta]:
        """Each name's entry."""
        return {meta.name: meta for meta in self.tensors}

    @cached_property
    def canonical(self) -> tuple[TensorMeta, ...]:
        """One entry per distinct memory, that of its first name; ``canonical[i].storage == i``."""
        found: list[TensorMeta] = []
        for meta in self.tensors:
            if meta.storage == len(found):
                found.append(meta)
        return tuple(found)

    @cached_property
    def aliases(self) -> tuple[tuple[str, ...], ...]:
        """Names of each distinct memory, sorted, in the order of :attr:`canonical`."""
        names: list[list[str]] = [[] for _ in self.canonical]
        for meta in self.tensors:
            names[meta.storage].append(meta.name)
        return tuple(map(tuple, names))

    @cached_property
    def nbytes(self) -> int:
        """Bytes of all boxes, tied names counted once."""
        return sum(meta.nbytes for meta in self.canonical)

    @cached_property
    def digest(self) -> bytes:
        """16 bytes that are equal exactly where names, dtypes, shapes, boxes and ties are."""
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
        return cls.from_wire(wire.decode(encoded, "manifest"))

    def to_wire(self) -> list[object]:
        """Return the manifest as lists, strings and integers, the same for equal manifests."""
        dtypes = sorted({meta.dtype for meta in self.tensors})
        index = {dtype: place for place, dtype in enumerate(dtypes)}
        rows = []
        for meta in self.tensors:
            box = None if meta.box.is_whole(meta.shape) else (meta.box.offsets, meta.box.sizes)
            rows.append((meta.name, index[meta.dtype], meta.shape, box, meta.storage))
        return [_WIRE_FORMAT, dtypes, rows]

    @classmethod
    def from_wire(cls, value: object) -> Self:
        """Read what :meth:`to_wire` wrote, from a peer that is not trusted.

        Raises:
            ProtocolError: If *value* is not exactly that.
        """
        version, dtypes, rows = wire.sequence(value, "manifest", at_most=3, exactly=3)
        if version != _WIRE_FORMAT or isinstance(version, bool):
            raise ProtocolError(f"manifest: this member reads format {_WIRE_FORMAT} only")
        names = [wire.text(name, "dtype", max_nbytes=32) for name in wire.sequence(dtypes, "dtypes", at_most=len(ITEMSIZE))]
        boxes: dict[tuple[int, ...], Box] = {}
        metas = [_read_row(row, names, boxes) for row in paced(wire.sequence(rows, "tensors", at_most=wire.MAX_TENSORS))]
        try:
            manifest = cls(tuple(metas))
        except WeightsError as error:
            raise ProtocolError(f"manifest: {error.message}", tensor=error.tensor) from error
        if any(read is not kept for read, kept in zip(metas, manifest.tensors, strict=True)):
            raise ProtocolError("manifest: names are not sorted, or storages not numbered in that order")
        return manifest


def digest_of(encoded: bytes) -> bytes:
    """Return the 16-byte blake2b of an encoded manifest or assignment."""
    return hashlib.blake2b(encoded, digest_size=_DIGEST_NBYTES).digest()


def _read_row(row: object, dtypes: list[str], boxes: dict[tuple[int, ...], Box]) -> TensorMeta:
    """One tensor; *boxes* are whole boxes by shape, of which many tensors have few."""
    name, dtype, shape, box, storage = wire.sequence(row, "tensor", at_most=5, exactly=5)
    global_shape = wire.dims(shape, "shape")
    if box is None:
        part = boxes.get(global_shape) or boxes.setdefault(global_shape, Box.whole(global_shape))
    else:
        offsets, sizes = wire.sequence(box, "box", at_most=2, exactly=2)
        part = wire.box(offsets, sizes, "box")
        if part.is_whole(global_shape):
            raise ProtocolError("manifest: a whole box is written as None")
    try:
        return TensorMeta(
            wire.text(name, "name", max_nbytes=wire.MAX_NAME_NBYTES),
            dtypes[wire.integer(dtype, "dtype", below=len(dtypes))],
            global_shape,
            part,
            wire.integer(storage, "storage", below=wire.MAX_TENSORS),
        )
    except WeightsError as error:
        raise ProtocolError(f"manifest: {error.message}", tensor=error.tensor) from error


def _check_unique(ordered: list[TensorMeta]) -> None:
    names = [meta.name for meta in ordered]
    if len(set(names)) == len(names):
        return
    twice = [name for name, count in Counter(names).items() if count > 1]
    raise WeightsError(
        f"{len(twice)} names occur more than once: {', '.join(twice[:5])}",
        tensor=twice[0],
        hint="give every tensor a name of its own",
    )


def _number_storages(ordered: Iterable[TensorMeta]) -> Iterable[TensorMeta]:
    first: dict[int, TensorMeta] = {}
    number: dict[int, int] = {}
    for meta in ordered:
        place = number.setdefault(meta.storage, len(number))
        leader = first.setdefault(meta.storage, meta)
        if leader is not meta and (leader.dtype, leader.shape, leader.box) != (
            meta.dtype,
            meta.shape,
            meta.box,
        ):
            raise WeightsError(
                f"{meta.name} is tied to {leader.name} but differs in dtype, shape or box",
                tensor=meta.name,
            )
        yield (meta if place == meta.storage else TensorMeta(meta.name, meta.dtype, meta.shape, meta.box, place))
