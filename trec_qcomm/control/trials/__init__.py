"""Trials: what repeated, paired measurements show, at their end or while they run. Numbers only."""
