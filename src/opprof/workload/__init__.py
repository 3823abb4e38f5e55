"""Request manifests: planned, drawn, written and read (protocol, "Operational pattern axes")."""
