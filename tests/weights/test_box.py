from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.weights.strategies import boxes_in, shapes
from wtransport.errors import WeightsError
from wtransport.weights.box import Box


def cells(box: Box) -> set[tuple[int, ...]]:
    ranges = [range(at, end) for at, end in zip(box.offsets, box.ends, strict=True)]
    return set(product(*ranges))


@st.composite
def pairs(draw: st.DrawFn) -> tuple[Box, Box]:
    shape = draw(shapes)
    return draw(boxes_in(shape)), draw(boxes_in(shape))


@given(pairs())
def test_box_algebra_is_that_of_sets_of_cells(pair: tuple[Box, Box]) -> None:
    first, second = pair
    shared = first.intersection(second)
    assert (cells(shared) if shared else set()) == cells(first) & cells(second)
    assert shared is None or shared.volume > 0
    rest = first.subtract(second)
    assert all(box.volume > 0 for box in rest)
    assert sum(box.volume for box in rest) == len(cells(first) - cells(second))
    assert set().union(*map(cells, rest)) == cells(first) - cells(second)
    assert first.contains(second) == (cells(second) <= cells(first))
    assert first.volume == len(cells(first))


def test_zero_dimensional_box_has_one_element() -> None:
    box = Box.whole(())
    assert box.volume == 1
    assert box.intersection(box) == box
    assert box.subtract(box) == []
    assert box.within(())
    assert str(box) == "[]"


def test_box_without_elements_is_nowhere_and_in_everything() -> None:
    empty = Box((1, 0), (0, 3))
    whole = Box.whole((2, 3))
    assert empty.volume == 0
    assert whole.intersection(empty) is None
    assert whole.subtract(empty) == [whole]
    assert empty.subtract(whole) == []
    assert whole.contains(empty)
    assert not empty.contains(whole)


def test_within_looks_at_the_edges_of_empty_boxes_too() -> None:
    assert Box((2,), (0,)).within((2,))
    assert not Box((3,), (0,)).within((2,))
    assert not Box((0,), (1,)).within((1, 1))


@pytest.mark.parametrize(("offsets", "sizes"), [((0,), ()), ((-1,), (1,)), ((0,), (-1,)), ((), (1, 2))])
def test_nonsense_is_refused(offsets: tuple[int, ...], sizes: tuple[int, ...]) -> None:
    with pytest.raises(WeightsError, match="not a box"):
        Box(offsets, sizes)


def test_boxes_of_different_dimensions_are_not_compared() -> None:
    with pytest.raises(WeightsError, match="2 and 1 dimensions"):
        Box.whole((2, 3)).intersection(Box.whole((2,)))


def test_cut_takes_rows_of_one_dimension() -> None:
    assert Box((4, 1), (6, 3)).cut(0, 2, 5) == Box((6, 1), (3, 3))
    assert str(Box((4, 1), (6, 3))) == "[4:10, 1:4]"
