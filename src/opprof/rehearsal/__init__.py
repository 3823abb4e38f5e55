"""Rehearsals: the real load client, the embedded engine and the ordinary analysis; no GPU."""
