"""A source of versions: a trainer that puts, or a generator that serves what it holds."""
