"""Kinds of traffic that a model's collectives have, and the groups that tables and figures show.

Knows: names. Does not know: torch, so that records of a run can be read without it.
"""

TRAFFIC_KINDS = (
    "embedding_forward",  # pooled or unpooled rows, to the ranks whose samples need them
    "embedding_backward",  # gradients of these rows, to the ranks that hold the tables
    "intra_embedding_forward",  # the same two within a node, where sharding has two hops
    "intra_embedding_backward",
    "dense",  # gradients of the replicated part
    "data_parallel",  # gradients of DATA_PARALLEL tables
    "input",  # ids and their lengths
)
TRAFFIC_GROUPS: dict[str, tuple[str, ...]] = {
    "forward": ("embedding_forward", "intra_embedding_forward"),
    "backward": ("embedding_backward", "intra_embedding_backward"),
    "dense": ("dense", "data_parallel"),
    "ids": ("input",),
}
