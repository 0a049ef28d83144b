"""The command line: ``wtransport trace``, ``wtransport doctor``."""
