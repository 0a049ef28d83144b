from __future__ import annotations

from wtransport.testing.conformance import BackendConformance


class TestTcp(BackendConformance):
    factory = "wtransport.backends.tcp:TcpBackend"
