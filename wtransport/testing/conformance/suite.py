"""The rules of the backend seam as tests: subclass ``BackendConformance`` and name a factory.

A backend's own test file is short::

    class TestMine(BackendConformance):
        factory = "mine.backend:MyBackend"

The tests are coroutines for pytest with pytest-asyncio in its ``auto`` mode. Call
``pytest.register_assert_rewrite("wtransport.testing")`` in a ``conftest.py`` to see what differed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import pytest

from wtransport.config import TransportConfig
from wtransport.testing.conformance.endings import EndingTests
from wtransport.testing.conformance.handshake import HandshakeTests
from wtransport.testing.conformance.moves import MoveTests
from wtransport.testing.conformance.pair import Pair, make_from, open_pair
from wtransport.testing.conformance.peers import PeerTests
from wtransport.testing.conformance.refusals import RefusalTests

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from wtransport.backends.base import Backend
    from wtransport.backends.driver import EngineDriver


class BackendConformance(MoveTests, RefusalTests, EndingTests, HandshakeTests, PeerTests):
    """Every rule of ``wtransport.backends.base``, over one backend.

    Attributes:
        factory: ``module:callable`` that takes a driver and a config and makes the backend; a child
            process imports it, too.
        crosses_processes: False leaves out the tests that need a peer in another process.
        needs_peer_running: Whether transfers to a stopped peer stall (True) or go on without it.
        config: Settings of the backends under test.
    """

    factory: ClassVar[str]
    crosses_processes: ClassVar[bool] = True
    needs_peer_running: ClassVar[bool] = True
    config: ClassVar[TransportConfig] = TransportConfig(copy_threads=2, streams=2, connect_timeout_s=1.0, abort_grace_s=1.0)

    def make_backend(self, driver: EngineDriver, config: TransportConfig) -> Backend:
        """Make one end; by default what ``factory`` names."""
        return make_from(self.factory, driver, config)

    @pytest.fixture
    async def pair(self) -> AsyncIterator[Pair]:
        """Two backends of this process, connected."""
        async with open_pair(self.make_backend, self.config) as pair:
            yield pair
