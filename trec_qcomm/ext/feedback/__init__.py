"""Error feedback of rows: residuals that are kept by id.

Source: Yang et al. 2020.
"""
