"""Rehearsals: the real load client, the embedded engine and the ordinary analysis, without a GPU."""
