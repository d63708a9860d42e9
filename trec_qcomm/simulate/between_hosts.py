"""Counted bytes that leave a host, where several ranks share one.

What ranks hand to collectives is counted by kind of traffic, and so is the hop inside a node of
two-level plans and of a hierarchical all-reduce. The kernel counts what leaves by the host's link.
Of an exchange of each rank with every other one that is the share of peers on other hosts; of a
ring one rank in L has its next one there; of a recursive doubling (N and L powers of 2) the stages
between hosts; of the hops of nodes all or nothing.

Knows: network records, configs, plans by name. Does not know: seconds.
Shapes: H hosts of L ranks, N = H L.
"""

import math

from trec_qcomm.config import Config, config_from_dict, parse_yaml
from trec_qcomm.records import TRAFFIC_GROUPS, NetworkRecord

NODE_PLANS = ("two_level", "grid")


def sent_between_hosts(record: NetworkRecord) -> list[dict[str, float]]:
    """Return the bytes of each group that a host sends to others in a step, one dict a host.

    Raises: ValueError: a record of plain TorchRec, of which no traffic was counted.
    """
    if record.traffic is None:
        raise ValueError(f"{record.origin or record.configuration}: no traffic was counted")
    shares, ranks = shares_between_hosts(record), record.ranks_per_host
    hosts = []
    for host in range(record.num_hosts):
        of_host = record.traffic[host * ranks : (host + 1) * ranks]
        hosts.append(
            {
                group: sum(
                    shares[kind] * rank[kind].wire_nbytes
                    for rank in of_host for kind in kinds if kind in rank
                )
                for group, kinds in TRAFFIC_GROUPS.items()
            }
        )  # fmt: skip
    return hosts


def shares_between_hosts(record: NetworkRecord) -> dict[str, float]:
    """Return the share of each kind's bytes that goes to other hosts."""
    ranks = record.ranks_per_host
    num_ranks = record.num_hosts * ranks
    to_all = (num_ranks - ranks) / max(num_ranks - 1, 1)
    kinds = [kind for kinds in TRAFFIC_GROUPS.values() for kind in kinds]
    shares = dict.fromkeys(kinds, to_all)
    shares |= {kind: 0.0 for kind in kinds if kind.startswith("intra_")}
    if ranks == 1:
        return dict.fromkeys(kinds, 1.0)
    if record.setup.get("plan") in NODE_PLANS:
        shares |= dict.fromkeys(("embedding_forward", "embedding_backward"), 1.0)
    algorithm = dense_algorithm(config_of(record))
    if algorithm == "hierarchical":
        shares["dense"] = 1.0
    elif algorithm in (None, "ring"):  # gloo's own is a ring, too
        shares["dense"] = 1 / ranks
    elif algorithm == "recursive_doubling":
        shares["dense"] = math.log2(record.num_hosts) / math.log2(num_ranks)
    elif algorithm == "auto":
        raise ValueError(
            f"{record.origin or record.configuration}: dense: algorithm: auto: which one was taken "
            "is not recorded; name it"
        )
    return shares


def config_of(record: NetworkRecord) -> Config:
    """Return the config of a record; the empty one of plain TorchRec."""
    where = str(record.origin or record.configuration)
    return config_from_dict(parse_yaml(record.config or "", name=where), source=where)


def dense_algorithm(config: Config) -> str | None:
    """Return the algorithm of our all-reduce; None where DDP's own is used."""
    rules = config.dense_rules
    return rules[0].algorithm if rules else None
