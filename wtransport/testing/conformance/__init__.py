"""The rules of the backend seam as tests: see ``wtransport.testing.conformance.suite``."""
