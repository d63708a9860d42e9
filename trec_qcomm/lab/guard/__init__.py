"""The guard: changes codecs while a model trains, and tells why; see docs/GUARD.md."""
