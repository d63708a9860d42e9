"""Compute the counted bytes that leave a host, if several ranks share a host.

The bytes that ranks hand to collectives are counted by kind of traffic. The hop inside a node, of
two-level plans and of a hierarchical all-reduce, is counted separately. The kernel counts the bytes
that leave by the host's link. In an exchange of each rank with every other rank, these are the
share of peers on other hosts. In a ring, one rank in L has its next rank on another host. Of the
hops of nodes, all bytes leave or none. Gradients of DATA_PARALLEL tables are counted together with
the bits of touched rows, which each rank sends to every other rank. So their share is known only
for a two-shot all-reduce.

Knows: network records, configs, plans by name. Does not know: seconds.
Shapes: H hosts of L ranks, N = H L.
"""

import re
from collections.abc import Mapping

from trec_qcomm.config import Config, config_from_dict, parse_yaml
from trec_qcomm.lab.records import TRAFFIC_GROUPS, NetworkRecord, Record, Scalar, TrafficByKind

NODE_PLANS = frozenset({"two_level", "grid"})
PLANNED = "planned"
_KINDS = [kind for kinds in TRAFFIC_GROUPS.values() for kind in kinds]
_ROWS_IN_NODES = ("intra_embedding_forward", "intra_embedding_backward")


def sent_between_hosts(record: NetworkRecord) -> list[dict[str, float]]:
    """Return the bytes of each group that a host sends to others in a step, one dict a host.

    Raises: ValueError: a record of plain TorchRec, without counted traffic; a plan with tables by
        node, whose share is not recorded; or the errors of host_shares.
    """
    if record.traffic is None:
        raise ValueError(f"{where(record)}: no traffic was counted")
    ranks = record.ranks_per_host
    by_node = any(r[k].wire_nbytes for r in record.traffic for k in _ROWS_IN_NODES if k in r)
    if ranks > 1 and PLANNED in _shardings(record.setup) and by_node:
        raise ValueError(
            f"{where(record)}: plan: {PLANNED} has tables by node, whose "
            f"share of the bytes is not recorded; expected hosts of one rank, not {ranks}"
        )
    shares = _shares(record)
    sums = [by_group(rank, "wire_nbytes", shares) for rank in record.traffic]
    hosts = [sums[host * ranks : (host + 1) * ranks] for host in range(record.num_hosts)]
    return [{group: sum(s[group] for s in host) for group in TRAFFIC_GROUPS} for host in hosts]


def by_group(
    rank: TrafficByKind, field: str, shares: Mapping[str, float] | None = None
) -> dict[str, float]:
    """Return the bytes of a rank by group, 0 if not counted. Args: shares: shares that count."""
    nbytes = {kind: getattr(counted, field) or 0.0 for kind, counted in rank.items()}
    nbytes = {kind: n * (shares or {}).get(kind, 1.0) for kind, n in nbytes.items()}
    return {g: sum(nbytes.get(kind, 0.0) for kind in kinds) for g, kinds in TRAFFIC_GROUPS.items()}


def _shares(record: NetworkRecord) -> dict[str, float]:
    if record.ranks_per_host == 1:  # of whatever config, also one that is not read today
        return dict.fromkeys(_KINDS, 1.0)
    hosts = {"num_hosts": record.num_hosts, "ranks_per_host": record.ranks_per_host}
    config = config_of(record)
    try:
        return host_shares(config, record.setup, **hosts)
    except ValueError as error:
        raise ValueError(f"{where(record)}: {error}") from error


def host_shares(
    config: Config, setup: Mapping[str, Scalar], *, num_hosts: int, ranks_per_host: int
) -> dict[str, float]:
    """Return the share of each kind's bytes that goes to other hosts in a planned training.

    Args: setup: setup of a record; only `plan` and `ranks_per_node` count.
    Raises: ValueError: a plan or an algorithm whose share is unknown on hosts of several ranks.
    """
    if ranks_per_host == 1:
        return dict.fromkeys(_KINDS, 1.0)
    num_ranks = num_hosts * ranks_per_host
    to_all = (num_ranks - ranks_per_host) / (num_ranks - 1)
    shares = {kind: 0.0 if kind.startswith("intra_") else to_all for kind in _KINDS}
    if _is_by_node(setup, ranks_per_host):
        shares |= dict.fromkeys(("embedding_forward", "embedding_backward"), 1.0)
    shares["dense"] = _dense_share(config, ranks_per_host, to_all)
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


def _dense_share(config: Config, ranks_per_host: int, to_all: float) -> float:
    algorithm, ring = dense_algorithm(config), 1 / ranks_per_host
    shares = {"hierarchical": 1.0, "ring": ring, None: ring, "two_shot": to_all}  # gloo's: a ring
    if algorithm not in shares:
        raise ValueError(
            f"dense: algorithm: {algorithm}: the share that leaves a host of {ranks_per_host} "
            "ranks is not recorded; expected ring, two_shot or hierarchical"
        )
    return shares[algorithm]


def config_of(record: Record) -> Config:
    """Return the config of a record; an empty config for plain TorchRec."""
    return config_from_dict(
        parse_yaml(record.config or "", name=where(record)), source=where(record)
    )


def where(record: Record) -> str:
    """Return the file and line of a record that was read, else its configuration."""
    return str(record.origin or record.configuration)


def dense_algorithm(config: Config) -> str | None:
    """Return the algorithm of our all-reduce; None if DDP's own is used."""
    rules = config.dense_rules
    return rules[0].algorithm if rules else None
