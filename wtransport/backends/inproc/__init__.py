"""Two transports in one process."""
