"""Sans-IO state machines: who may write, reuse and show what, and when.

Every machine takes events as method calls (with the time as an argument) and leaves actions in ``out``. No machine awaits, reads a
clock, opens a socket, or imports torch or the native module: the whole protocol runs in a simulator.
"""
