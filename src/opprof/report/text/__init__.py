"""Plain sentences from Structs: what a reader should take away, and what not to."""
