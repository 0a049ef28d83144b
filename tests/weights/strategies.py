"""Random shapes, boxes, and ways to spread tensors over sources."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from hypothesis import strategies as st

from wtransport.weights.box import Box
from wtransport.weights.dtypes import ITEMSIZE
from wtransport.weights.manifest import Manifest, TensorMeta

DTYPES = ("uint8", "bfloat16", "float32", "complex64", "complex128")

shapes = st.lists(st.integers(0, 6), max_size=4).map(tuple)


@st.composite
def boxes_in(draw: st.DrawFn, shape: tuple[int, ...]) -> Box:
    offsets = tuple(draw(st.integers(0, size)) for size in shape)
    sizes = tuple(draw(st.integers(0, size - offset)) for size, offset in zip(shape, offsets, strict=True))
    return Box(offsets, sizes)


@st.composite
def partitions(draw: st.DrawFn, whole: Box, most: int) -> list[Box]:
    """At most *most* disjoint boxes that cover *whole*, by cuts across one of them at a time."""
    parts = [whole]
    for _ in range(draw(st.integers(0, most - 1))):
        part = draw(st.sampled_from(parts))
        dims = [dim for dim, size in enumerate(part.sizes) if size > 1]
        if not dims:
            continue
        dim = draw(st.sampled_from(dims))
        at = draw(st.integers(1, part.sizes[dim] - 1))
        parts.remove(part)
        parts += [part.cut(dim, 0, at), part.cut(dim, at, part.sizes[dim])]
    return parts


@dataclass
class Model:
    """Global values, who holds which box of them, and what is wanted."""

    values: dict[str, npt.NDArray[np.uint8]]  # bytes: the shape, then the itemsize
    sources: list[Manifest]
    wanted: Manifest


@st.composite
def models(draw: st.DrawFn) -> Model:
    num_sources = draw(st.integers(1, 5))
    held: list[list[TensorMeta]] = [[] for _ in range(num_sources)]
    wanted = []
    values = {}
    for index in range(draw(st.integers(0, 4))):
        name, dtype, shape = f"t{index}", draw(st.sampled_from(DTYPES)), draw(shapes)
        whole = Box.whole(shape)
        parts = draw(st.permutations(draw(partitions(whole, num_sources))))
        for rank in range(num_sources):
            if rank < len(parts):
                box = parts[rank]
            elif draw(st.booleans()):
                box = draw(st.one_of(st.sampled_from([*parts, whole]), boxes_in(shape)))
            else:
                continue
            held[rank].append(TensorMeta(name, dtype, shape, box, index))
        box = draw(st.one_of(st.just(whole), boxes_in(shape)))
        wanted.append(TensorMeta(name, dtype, shape, box, index))
        rng = np.random.default_rng(draw(st.integers(0, 2**32)))
        values[name] = rng.integers(1, 256, (*shape, ITEMSIZE[dtype]), dtype=np.uint8)
    sources = [Manifest(tuple(metas)) for metas in held]
    return Model(values, sources, Manifest(tuple(wanted)))


def part_of(values: npt.NDArray[np.uint8], box: Box) -> npt.NDArray[np.uint8]:
    """The bytes of *box* of the tensor whose bytes are *values*, row-major."""
    index = tuple(slice(at, end) for at, end in zip(box.offsets, box.ends, strict=True))
    return np.ascontiguousarray(values[index])
