"""The recorder: raw step records through shared memory to a writer process that owns the stream.

Nothing here knows an engine. ``handle.Recorder`` lives on the engine's step path, ``writer`` is the
other process, ``stream.StreamWriter`` writes the files (a simulated engine uses it directly).
"""
