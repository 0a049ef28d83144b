"""The service of one transport: a thread with its own event loop that drives the session machines.

Puts and gets go on while the user's own loop, or thread, does something else: that is what makes them one-sided.
"""
