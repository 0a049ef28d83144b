from __future__ import annotations

from wtransport.testing.conformance import BackendConformance


class TestShm(BackendConformance):
    factory = "wtransport.backends.shm:ShmBackend"
    needs_peer_running = False
