"""Where an attempt runs: on this host, or on others through an existing distributed engine."""
