from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch
from torch import nn

from wtransport.errors import WeightsError
from wtransport.memory.names import named_values

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.helpers.scripts import Outcome


def names(weights: object) -> list[str]:
    return [name for name, _ in named_values(weights)]


class Stack(nn.Module):
    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)


def test_plain_names_are_kept_and_sorted() -> None:
    assert names({"b": 1, "a.module.b": 2, "module.a": 3}) == ["a.module.b", "b", "module.a"]
    assert names(nn.Linear(1, 1)) == ["bias", "weight"]


def test_compiled_modules_have_their_models_names() -> None:
    compiled = torch.compile(nn.Linear(1, 1), backend="eager")
    assert names(compiled) == ["bias", "weight"]
    assert names(compiled.state_dict()) == ["bias", "weight"]
    inner = torch.compile(nn.Linear(1, 1, bias=False), backend="eager")
    part = Stack(nn.Linear(1, 1, bias=False), inner)
    assert names(part) == names(part.state_dict()) == ["layers.0.weight", "layers.1.weight"]


def test_data_parallel_modules_have_their_models_names() -> None:
    assert names(nn.DataParallel(nn.Linear(1, 1))) == ["bias", "weight"]
    part = Stack(nn.DataParallel(nn.Linear(1, 1, bias=False)))
    assert names(part) == ["layers.0.weight"]


def distributed() -> None:
    import torch
    from torch import nn

    from wtransport.memory.names import named_values

    store = torch.distributed.HashStore()
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    wrapped = nn.parallel.DistributedDataParallel(nn.Linear(2, 2))
    for model in (wrapped, torch.compile(wrapped, backend="eager")):
        assert [name for name, _ in named_values(model)] == ["bias", "weight"]
    torch.distributed.destroy_process_group()


def test_distributed_and_compiled_wrappers_come_off_together(
    run_python: Callable[..., Outcome],
) -> None:
    outcome = run_python(distributed)
    assert outcome.returncode == 0, outcome


def test_a_models_own_module_called_module_is_no_wrapper() -> None:
    model = nn.Module()
    model.module = nn.DataParallel(Stack(nn.Linear(1, 1, bias=False)))
    assert names(model) == ["module.layers.0.weight"]
    assert names({"module.weight": 1}) == ["module.weight"]


def test_names_that_become_the_same_are_refused() -> None:
    with pytest.raises(WeightsError, match="1 names are equal without wrappers' prefixes: w"):
        named_values({"_orig_mod.w": 1, "w": 2})
