"""Guard: change codecs while a model trains, and tell why (docs/GUARD.md)."""
