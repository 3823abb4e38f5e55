"""A campaign: which run when and where, at what cost, and what allows it (A-P3-1 to A-P3-5)."""
