"""The coordinator with its sockets, beside a member or alone."""
