"""Low-rank all-reduce of gradients: two factors of each matrix are sent, and a residual is kept."""
