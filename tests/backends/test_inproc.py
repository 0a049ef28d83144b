from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from wtransport.backends.inproc import InprocBackend, InprocFabric
from wtransport.testing.conformance import BackendConformance

if TYPE_CHECKING:
    from wtransport.backends.driver import EngineDriver
    from wtransport.config import TransportConfig


class TestInproc(BackendConformance):
    factory = "wtransport.backends.inproc:InprocBackend"
    crosses_processes = False
    needs_peer_running = False

    @pytest.fixture(autouse=True)
    def _fabric(self) -> None:
        self.fabric = InprocFabric()

    def make_backend(self, driver: EngineDriver, config: TransportConfig) -> InprocBackend:
        return InprocBackend(driver, config, self.fabric)
