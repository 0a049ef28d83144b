"""Box: a rectangular part of a tensor, as offsets and sizes in its global shape."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Self

from wtransport.errors import WeightsError


@dataclass(frozen=True, slots=True, order=True)
class Box:
    """Offsets and sizes in elements, one of each per dimension.

    A 0-dim box has one element, a box with a zero size none.

    Attributes:
        offsets: First index in each dimension, not negative.
        sizes: Number of indices in each dimension, not negative.

    Raises:
        WeightsError: If the two differ in length or an entry is negative.
    """

    offsets: tuple[int, ...]
    sizes: tuple[int, ...]

    def __post_init__(self) -> None:
        if len(self.offsets) != len(self.sizes) or (self.sizes and (min(self.sizes) < 0 or min(self.offsets) < 0)):
            raise WeightsError(f"not a box: offsets {self.offsets} and sizes {self.sizes}")

    @classmethod
    def whole(cls, shape: tuple[int, ...]) -> Self:
        """Return the box of every element of a tensor of *shape*."""
        return cls((0,) * len(shape), shape)

    @property
    def ndim(self) -> int:
        """Number of dimensions."""
        return len(self.sizes)

    @property
    def volume(self) -> int:
        """Number of elements."""
        return math.prod(self.sizes)

    @property
    def ends(self) -> tuple[int, ...]:
        """One past the last index in each dimension."""
        return tuple(offset + size for offset, size in zip(self.offsets, self.sizes, strict=True))

    def is_whole(self, shape: tuple[int, ...]) -> bool:
        """Whether this is the box of every element of a tensor of *shape*."""
        return self.sizes == shape and not any(self.offsets)

    def within(self, shape: tuple[int, ...]) -> bool:
        """Whether every edge of this box, of empty ones too, lies in a tensor of *shape*."""
        return len(shape) == len(self.sizes) and all(end <= size for end, size in zip(self.ends, shape, strict=True))

    def contains(self, other: Box) -> bool:
        """Whether every element of *other* is one of this box."""
        return other.volume == 0 or self.intersection(other) == other

    def intersection(self, other: Box) -> Box | None:
        """Return the box of the elements in both, or None when there are none.

        Raises:
            WeightsError: If the two differ in their number of dimensions.
        """
        if len(self.sizes) != len(other.sizes):
            raise WeightsError(f"boxes of {self.ndim} and {other.ndim} dimensions cannot be compared")
        if self == other:
            return self if self.volume else None
        offsets = tuple(map(max, self.offsets, other.offsets))
        ends = tuple(map(min, self.ends, other.ends))
        sizes = tuple(end - offset for end, offset in zip(ends, offsets, strict=True))
        return Box(offsets, sizes) if all(size > 0 for size in sizes) else None

    def subtract(self, other: Box) -> list[Box]:
        """Return disjoint boxes, none empty, of the elements of this box not in *other*."""
        shared = self.intersection(other)
        if shared is None:
            return [self] if self.volume else []
        rest = []
        offsets, sizes = list(self.offsets), list(self.sizes)
        for dim in range(self.ndim):
            start, end = offsets[dim], offsets[dim] + sizes[dim]
            cut_start, cut_end = shared.offsets[dim], shared.offsets[dim] + shared.sizes[dim]
            for low, high in ((start, cut_start), (cut_end, end)):
                if high > low:
                    rest.append(
                        Box(
                            (*offsets[:dim], low, *offsets[dim + 1 :]),
                            (*sizes[:dim], high - low, *sizes[dim + 1 :]),
                        )
                    )
            offsets[dim], sizes[dim] = cut_start, cut_end - cut_start
        return rest

    def cut(self, dim: int, start: int, stop: int) -> Box:
        """Return the part between the *start*-th and *stop*-th index of dimension *dim*."""
        offsets, sizes = list(self.offsets), list(self.sizes)
        offsets[dim] += start
        sizes[dim] = stop - start
        return Box(tuple(offsets), tuple(sizes))

    def __str__(self) -> str:
        return "[" + ", ".join(f"{offset}:{end}" for offset, end in zip(self.offsets, self.ends, strict=True)) + "]"
