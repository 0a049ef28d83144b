"""The whole protocol in one process, without sockets, threads or a clock."""
