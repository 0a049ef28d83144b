"""Hunts for torn versions: a trainer puts as fast as it can, generators read at their own pace."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.integration.conftest import reaches
from wtransport.testing.cluster.cluster import until

if TYPE_CHECKING:
    from collections.abc import Callable

    from wtransport.testing.cluster.cluster import Process

LAST = 210


@pytest.mark.parametrize("verify", ["off", "wire", "full"])
@pytest.mark.parametrize("backend", ["shm", "tcp"])
def test_no_update_mixes_versions(member: Callable[..., Process], backend: str, verify: str) -> None:
    config = {"verify": verify, "credit_timeout_s": 0.02}
    size = {"num_tensors": 6, "numel": 50_000}
    trainer = member("trainer", backend=backend, config=config)
    paces = {"quick": 0.0, "slow": 0.02, "slower": 0.08}
    generators = {name: member("generator", name=name, backend=backend, config=config, bind=size) for name in paces}
    reaches(trainer, *generators)
    for name, generator in generators.items():
        generator.call("follow", most_s=paces[name])
    told = trainer.call("put_many", first=1, last=LAST, wait_s=30.0, **size)
    assert set(told["outcomes"]) <= {"delivered", "behind", "overtaken"}, told
    assert told["outcomes"]["delivered"] >= LAST
    for name, generator in generators.items():
        seen = until(lambda generator=generator: (found := generator.call("seen")) and found[-1]["version"] == LAST and found, what=name)
        torn = [item for item in seen if item["values"] != [float(item["version"])] or "changed" in item]
        assert not torn, torn[:5]
        versions = [item["version"] for item in seen]
        assert versions == sorted(set(versions))
        assert len(versions) > 1
