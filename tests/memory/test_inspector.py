"""The second look at the same weights says what the first one would say now."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING

import pytest
import torch
from torch import nn

from wtransport.errors import WeightsError
from wtransport.memory.inspector import Inspector
from wtransport.memory.tensors import inspect

if TYPE_CHECKING:
    from collections.abc import Callable


def model() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5))


def agree(inspector: Inspector, weights: object) -> None:
    seen, fresh = inspector.look(weights), inspect(weights)
    assert seen.manifest == fresh.manifest
    assert seen.blocks == fresh.blocks
    assert seen.versions == fresh.versions
    assert [given.data_ptr() for given in seen.owners] == [given.data_ptr() for given in fresh.owners]


def test_the_same_weights_share_one_manifest() -> None:
    inspector, module = Inspector(), model()
    first = inspector.look(module)
    assert inspector.look(module.state_dict()).manifest is first.manifest


def test_writes_between_two_looks_are_counted_from_the_second() -> None:
    inspector, weights = Inspector(), {"a": torch.zeros(3), "b": torch.zeros(2)}
    first = inspector.look(weights)
    weights["a"].add_(1)
    assert first.changed() == ["a"]
    second = inspector.look(weights)
    assert second.changed() == []
    weights["b"].add_(1)
    assert second.changed() == ["b"]


def transposed(weights: dict[str, torch.Tensor]) -> None:
    weights["a"] = weights["a"].t()


def another_dtype(weights: dict[str, torch.Tensor]) -> None:
    weights["a"] = weights["a"].view(torch.int32)


def tied(weights: dict[str, torch.Tensor]) -> None:
    weights["b"] = weights["a"]


def replaced(weights: dict[str, torch.Tensor]) -> None:
    weights["a"] = torch.ones(4, 4)


def renamed(weights: dict[str, torch.Tensor]) -> None:
    weights["c"] = weights.pop("a")


def narrowed(weights: dict[str, torch.Tensor]) -> None:
    weights["a"] = weights["a"][1:]


def turned_in_place(weights: dict[str, torch.Tensor]) -> None:
    weights["a"].t_()


def given_other_data(weights: dict[str, torch.Tensor]) -> None:
    weights["a"].data = torch.ones(4, 4)


def given_its_data_transposed(weights: dict[str, torch.Tensor]) -> None:
    weights["a"].data = weights["a"].data.t()


def cast_in_place(weights: dict[str, torch.Tensor]) -> None:
    weights["a"].data = weights["a"].data.view(torch.int32)


def one_more(weights: dict[str, torch.Tensor]) -> None:
    weights["c"] = torch.zeros(1)


CHANGES = [transposed, another_dtype, tied, replaced, renamed, narrowed, turned_in_place, given_other_data, given_its_data_transposed]


@pytest.mark.parametrize("change", [*CHANGES, cast_in_place, one_more])
def test_whatever_changes_is_seen(change: Callable[[dict[str, torch.Tensor]], None]) -> None:
    inspector, weights = Inspector(), {"a": torch.zeros(4, 4), "b": torch.zeros(4, 4)}
    agree(inspector, weights)
    change(weights)
    agree(inspector, weights)
    agree(inspector, weights)


def test_nothing_is_kept_alive() -> None:
    inspector, weights = Inspector(), {"a": torch.zeros(4)}
    inspector.look(weights)
    inspector.look(weights)
    reference = weakref.ref(weights["a"])
    weights.clear()
    assert reference() is None


def test_what_became_unmovable_is_refused() -> None:
    inspector, weights = Inspector(), {"a": torch.zeros(4, dtype=torch.complex64)}
    agree(inspector, weights)
    weights["a"] = weights["a"].conj()
    with pytest.raises(WeightsError, match="conjugate"):
        inspector.look(weights)
    weights["a"] = torch.zeros(4, dtype=torch.complex64)
    agree(inspector, weights)
    weights["a"].data = weights["a"].conj().data
    with pytest.raises(WeightsError, match="conjugate"):
        inspector.look(weights)
    weights["a"] = torch.zeros(4)
    agree(inspector, weights)
    weights["a"].untyped_storage().resize_(0)
    with pytest.raises(WeightsError, match="storage"):
        inspector.look(weights)
