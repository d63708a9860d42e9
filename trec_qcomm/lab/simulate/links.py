"""Collectives on a cluster of two link levels, in the alpha-beta model.

A message of n bytes takes alpha + n / beta seconds; a GPU sends its messages one after the other on
each level, and both levels at the same time unless an algorithm says otherwise. A link is as fast
in both directions at once. The two levels of a hierarchical reduction follow one another; where a
library sends it in pieces they overlap, and it takes as little as half. All GPUs are alike, so one
of them, the busiest, is looked at.

Knows: GPUs, nodes, bytes. Does not know: tables, codecs, what else a step does.
Shapes: N GPUs, G of them in a node, M = N / G nodes, n bytes.
Source: Thakur, Rabenseifner, Gropp 2005 (the model, pairwise all-to-all); Patarasuk, Yuan 2009
(ring); two-shot is an all-to-all, a sum, an all-to-all.
"""

from dataclasses import dataclass

from trec_qcomm.config import Link


@dataclass(frozen=True, kw_only=True)
class Hops:
    """Bytes that one GPU sends.

    Args:
        intra: bytes to the other GPUs of its node.
        inter: bytes to GPUs of other nodes.
    """

    intra: float = 0.0
    inter: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """A cluster of N GPUs in nodes of G.

    Args:
        num_gpus, gpus_per_node: N and G.
        intra: link of a GPU to the others of its node.
        inter: link of a GPU to other nodes.
    Raises: ValueError: num_gpus that do not fill their nodes; one node may be smaller.
    """

    num_gpus: int
    gpus_per_node: int = 8
    intra: Link
    inter: Link

    def __post_init__(self) -> None:
        for name in ("num_gpus", "gpus_per_node"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}: {getattr(self, name)} is not an integer >= 1")
        if self.num_gpus > self.gpus_per_node and self.num_gpus % self.gpus_per_node:
            raise ValueError(
                f"num_gpus: {self.num_gpus} is neither below gpus_per_node {self.gpus_per_node} "
                "nor a multiple of it"
            )

    @property
    def node_size(self) -> int:
        """Number of GPUs in a node; fewer than G where there are not as many."""
        return min(self.num_gpus, self.gpus_per_node)

    @property
    def num_nodes(self) -> int:
        """Number of nodes, M."""
        return self.num_gpus // self.node_size

    def all_to_all_s(self, sent: Hops, *, rounds: int = 1) -> float:
        """Return the seconds in which each GPU sends every other one a message.

        The faster of two algorithms counts:

        direct:        max((G-1) alpha_i + intra / beta_i, (N-G) alpha_x + inter / beta_x)
        hierarchical:  what is for GPU g of another node goes to GPU g of the own node first, so
                       that messages between nodes are M-1:
                       (G-1) alpha_i + (intra + inter (G-1)/G) / beta_i,
                       and then (M-1) alpha_x + inter / beta_x.

        Args:
            sent: bytes of one GPU.
            rounds: number of exchanges that share these bytes, such as sizes and then rows.
        """
        inside, across = self.node_size - 1, self.num_gpus - self.node_size
        direct = max(
            _send_s(self.intra, rounds * inside, sent.intra),
            _send_s(self.inter, rounds * across, sent.inter),
        )
        relayed = sent.intra + sent.inter * inside / self.node_size
        hierarchical = self.inside_s(relayed, rounds=rounds) + self.across_s(
            sent.inter, rounds=rounds
        )
        return min(direct, hierarchical)

    def inside_s(self, nbytes: float, *, rounds: int = 1) -> float:
        """Return the seconds of an all-to-all, reduce-scatter or all-gather within a node.

        Args: nbytes: bytes that a GPU sends.
        """
        return _send_s(self.intra, rounds * (self.node_size - 1), nbytes)

    def across_s(self, nbytes: float, *, rounds: int = 1) -> float:
        """Return the seconds of an all-to-all among the GPUs of equal place in their nodes.

        Args: nbytes: bytes that a GPU sends.
        """
        return _send_s(self.inter, rounds * (self.num_nodes - 1), nbytes)

    def reduce_scatter_s(self, nbytes: float) -> float:
        """Return the seconds until each GPU has the sum of all GPUs' messages to it.

        An all-gather is the same in reverse. The faster of two algorithms counts:

        all-to-all:    N-1 messages, summed where they arrive
        hierarchical:  sums of the node first, (G-1) messages of M n bytes, then M-1 of n between
                       nodes: of these G times fewer

        Args: nbytes: n, bytes of one message as it is sent.
        """
        inside, across = self.node_size - 1, self.num_gpus - self.node_size
        direct = self.all_to_all_s(Hops(intra=inside * nbytes, inter=across * nbytes))
        in_node = self.inside_s(inside * self.num_nodes * nbytes)
        return min(direct, in_node + self.across_s((self.num_nodes - 1) * nbytes))

    def all_reduce_s(self, nbytes: float) -> dict[str, float]:
        """Return the seconds of an all-reduce by algorithm.

        ring:          2 (N-1) messages of n/N on the slowest link of the ring
        two_shot:      twice an all-to-all of n/N for each peer
        hierarchical:  reduce-scatter in the node, ring among M nodes of n/G, all-gather in the node

        Args: nbytes: n, bytes of one GPU's contribution as it is sent.
        """
        num, inside = self.num_gpus, self.node_size - 1
        slowest = self.inter if self.num_nodes > 1 else self.intra
        share = nbytes / num
        once = Hops(intra=inside * share, inter=(num - self.node_size) * share)
        in_node = self.inside_s(inside * nbytes / self.node_size)
        return {
            "ring": _ring_s(slowest, num, nbytes),
            "two_shot": 2 * self.all_to_all_s(once),
            "hierarchical": 2 * in_node
            + _ring_s(self.inter, self.num_nodes, nbytes / self.node_size),
        }


def _send_s(link: Link, num_messages: int, nbytes: float) -> float:
    """Return the seconds of messages; without bytes there are no messages, either."""
    if not nbytes:
        return 0.0
    return link.transfer_s(num_messages=num_messages, nbytes=nbytes)


def _ring_s(link: Link, num: int, nbytes: float) -> float:
    return _send_s(link, 2 * (num - 1), 2 * (num - 1) / num * nbytes)
