"""The five published systems: what each claims, and what of it holds here."""
