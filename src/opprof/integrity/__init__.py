"""Provenance, verification, privacy scan and packing of what leaves the machine."""
