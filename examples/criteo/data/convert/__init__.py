"""Criteo's TSV to a folder of arrays, once: parts are read, columns counted, ids written."""
