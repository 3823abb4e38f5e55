"""Every file OpProf reads or writes, as frozen msgspec Structs."""
