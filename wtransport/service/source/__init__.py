"""A source with its links, plans and writes."""
