"""Rules of the protocol that both the client and the analysis apply; plain Python, no I/O."""
