"""Does a configuration cost quality? Paired trainings of any model, resumable, a verdict."""
