"""Control plane: typed, authenticated messages over TCP and Unix sockets, and how to dial them."""
