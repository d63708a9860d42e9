"""Counted bytes that leave a host, where several ranks share one.

What ranks hand to collectives is counted by kind of traffic, and so is the hop inside a node of
two-level plans and of a hierarchical all-reduce. The kernel counts what leaves by the host's link.
Of an exchange of each rank with every other one that is the share of peers on other hosts; of a
ring one rank in L has its next one there; of a recursive doubling (N and L powers of 2) the stages
between hosts; of the hops of nodes all or nothing. Gradients of DATA_PARALLEL tables are counted
together with the bits of touched rows, which each rank sends to every other one; so their share is
known of a two-shot all-reduce alone.

Knows: network records, configs, plans by name. Does not know: seconds.
Shapes: H hosts of L ranks, N = H L.
"""

import math
import re
from collections.abc import Mapping

from trec_qcomm.config import Config, config_from_dict, parse_yaml
from trec_qcomm.lab.records import TRAFFIC_GROUPS, NetworkRecord, Scalar

NODE_PLANS = frozenset({"two_level", "grid"})
PLANNED = "planned"
_ALL = {kind: 1.0 for kinds in TRAFFIC_GROUPS.values() for kind in kinds}


def sent_between_hosts(record: NetworkRecord) -> list[dict[str, float]]:
    """Return the bytes of each group that a host sends to others in a step, one dict a host.

    Raises: ValueError: a record of plain TorchRec, of which no traffic was counted; a planned one
        with tables by node, whose share is not recorded; and what host_shares raises.
    """
    if record.traffic is None:
        raise ValueError(f"{record.origin or record.configuration}: no traffic was counted")
    shares, ranks = shares_between_hosts(record), record.ranks_per_host
    if ranks > 1 and PLANNED in _shardings(record.setup) and _has_hops_of_rows(record):
        raise ValueError(
            f"{record.origin or record.configuration}: plan: {PLANNED} has tables by node, whose "
            f"share of the bytes is not recorded; expected hosts of one rank, not {ranks}"
        )
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
    """Return the share of each kind's bytes that goes to other hosts.

    Raises: ValueError naming the record: as host_shares.
    """
    if record.ranks_per_host == 1:
        return _ALL
    config = config_of(record)
    try:
        return host_shares(
            config,
            record.setup,
            num_hosts=record.num_hosts,
            ranks_per_host=record.ranks_per_host,
        )
    except ValueError as error:
        raise ValueError(f"{record.origin or record.configuration}: {error}") from error


def host_shares(
    config: Config, setup: Mapping[str, Scalar], *, num_hosts: int, ranks_per_host: int
) -> dict[str, float]:
    """Return the share of each kind's bytes that goes to other hosts in a training to be.

    Args: setup: a record's; of it count `plan` and `ranks_per_node`.
    Raises: ValueError: a plan or an algorithm whose share is not known on hosts of several ranks.
    """
    if ranks_per_host == 1:
        return _ALL
    num_ranks = num_hosts * ranks_per_host
    to_all = (num_ranks - ranks_per_host) / (num_ranks - 1)
    shares = dict.fromkeys(_ALL, to_all)
    shares |= {kind: 0.0 for kind in _ALL if kind.startswith("intra_")}
    if _is_by_node(setup, ranks_per_host):
        shares |= dict.fromkeys(("embedding_forward", "embedding_backward"), 1.0)
    shares["dense"] = _dense_share(config, num_hosts, ranks_per_host, to_all)
    rule = config.data_parallel
    if rule is not None and rule.algorithm != "two_shot":
        raise ValueError(
            f"data_parallel: algorithm: {rule.algorithm}: the share that leaves a host of "
            f"{ranks_per_host} ranks is not recorded; expected two_shot"
        )
    return shares


def _is_by_node(setup: Mapping[str, Scalar], ranks_per_host: int) -> bool:
    """Return whether all tables are by node. Raises ValueError: some are, or nodes are no hosts."""
    shardings = _shardings(setup)
    if shardings.isdisjoint(NODE_PLANS):
        return False
    if not shardings <= NODE_PLANS:
        raise ValueError(
            f"plan: {', '.join(sorted(shardings))}: the shares of tables by node and of others are "
            f"not recorded; expected hosts of one rank, not {ranks_per_host}"
        )
    ranks_per_node = setup.get("ranks_per_node", ranks_per_host)
    if ranks_per_node != ranks_per_host:
        raise ValueError(
            f"ranks_per_node: {ranks_per_node}: expected that of a host, {ranks_per_host}"
        )
    return True


def _shardings(setup: Mapping[str, Scalar]) -> set[str]:
    """Return the shardings of a plan: its name's, or those that the plan file names."""
    plan = str(setup.get("plan", ""))
    return set(re.findall(r"sharding='(\w+)'", plan)) if plan.startswith("Plan(") else {plan}


def _has_hops_of_rows(record: NetworkRecord) -> bool:
    kinds = ("intra_embedding_forward", "intra_embedding_backward")
    return any(r[kind].wire_nbytes > 0 for r in record.traffic or () for kind in kinds if kind in r)


def _dense_share(config: Config, num_hosts: int, ranks_per_host: int, to_all: float) -> float:
    algorithm = dense_algorithm(config)
    if algorithm == "hierarchical":
        return 1.0
    if algorithm in (None, "ring"):  # gloo's own is a ring, too
        return 1 / ranks_per_host
    if algorithm == "two_shot":
        return to_all
    if algorithm == "recursive_doubling":
        if any(number & (number - 1) for number in (num_hosts, ranks_per_host)):
            raise ValueError(
                "dense: algorithm: recursive_doubling: its share is known of powers of 2 alone; "
                f"got {num_hosts} hosts of {ranks_per_host} ranks"
            )
        return math.log2(num_hosts) / math.log2(num_hosts * ranks_per_host)
    raise ValueError(f"dense: algorithm: {algorithm}: which one was taken is not recorded; name it")


def config_of(record: NetworkRecord) -> Config:
    """Return the config of a record; the empty one of plain TorchRec."""
    where = str(record.origin or record.configuration)
    return config_from_dict(parse_yaml(record.config or "", name=where), source=where)


def dense_algorithm(config: Config) -> str | None:
    """Return the algorithm of our all-reduce; None where DDP's own is used."""
    rules = config.dense_rules
    return rules[0].algorithm if rules else None
