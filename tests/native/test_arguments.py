"""What the binding refuses, and with which exception."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from tests.native.support import packed, region_of
from wtransport import _native

_DATA = torch.ones(100, dtype=torch.uint8)


@pytest.mark.parametrize(
    ("spans", "error"),
    [
        (np.zeros((1, 6), dtype=np.int32), TypeError),
        (np.zeros((1, 6), dtype=np.uint64), TypeError),
        (np.zeros((1, 6), dtype=np.float64), TypeError),
        (np.zeros((1, 5), dtype=np.int64), ValueError),
        (np.zeros((6,), dtype=np.int64), ValueError),
        (np.zeros((1, 1, 6), dtype=np.int64), ValueError),
        (np.zeros((6, 2), dtype=np.int64).T, ValueError),
        (np.zeros((4, 6), dtype=np.int64)[::2], ValueError),
        ([[0] * 6], TypeError),
        (None, TypeError),
    ],
)
def test_span_tables_of_the_wrong_kind_raise(engine: _native.Engine, spans: Any, error: type[Exception]) -> None:
    shared = _native.SharedRegion.create(100)
    with pytest.raises(error):
        engine.copy(region_of([_DATA]), shared, spans, 1, 0)


def test_read_only_and_empty_tables_are_fine(engine: _native.Engine) -> None:
    shared = _native.SharedRegion.create(100)
    spans = packed([_DATA])
    spans.flags.writeable = False
    assert engine.copy(region_of([_DATA]), shared, spans, 1, 0).code() == 0
    assert engine.copy(region_of([_DATA]), shared, np.zeros((0, 6), dtype=np.int64), 1, 0).settled()


@pytest.mark.parametrize(
    "block",
    [
        (0, 4, (2,), (4,)),
        (4096, 0, (2,), (4,)),
        (4096, 17, (2,), (17,)),
        (4096, 4, (2,), (-4,)),
        (4096, 4, (-1,), (4,)),
        (4096, 4, (2, 2), (4,)),
        (4096, 4, (1,) * 17, (4,) * 17),
        (4096, 4, (2**40, 2**40), (4, 4)),
    ],
)
def test_blocks_that_make_no_sense_raise(block: tuple[int, int, tuple[int, ...], tuple[int, ...]]) -> None:
    with pytest.raises(ValueError, match="block 0"):
        _native.LocalRegion([block])


@pytest.mark.parametrize("blocks", [[(1, 2, 3)], [("a", 4, (2,), (4,))], 7, [(4096, 4, 2, 4)]])
def test_blocks_of_the_wrong_type_raise(blocks: Any) -> None:
    with pytest.raises(TypeError):
        _native.LocalRegion(blocks)


def test_sizes_of_a_local_region() -> None:
    region = region_of([torch.zeros(3, 5), torch.zeros(0, 5), torch.zeros(2, dtype=torch.bfloat16)])
    assert (region.nbytes, region.num_blocks) == (64, 3)
    assert _native.LocalRegion([]).nbytes == 0


def test_regions_of_the_wrong_type_raise(engine: _native.Engine) -> None:
    bad: Any = object()
    with pytest.raises(TypeError):
        engine.copy(bad, bad, packed([_DATA]), 1, 0)


def test_error_codes_and_texts_agree() -> None:
    codes = _native.error_codes()
    assert codes["OK"] == 0
    assert sorted(codes.values()) == list(range(14))
    assert sorted(_native.error_texts()) == sorted(codes.values())
