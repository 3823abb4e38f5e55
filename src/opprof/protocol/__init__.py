"""The pre-registered experiment as data: read, checked, hashed, shown."""

from opprof.protocol.load import Protocol, expand, load_protocol

__all__ = ["Protocol", "expand", "load_protocol"]
