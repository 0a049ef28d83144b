"""A sink with its links, memory, verification and readers."""
