"""Compression ratios of a configuration: from measured steps, or from its tables' sizes.

The ratio of a record belongs to its plan and number of hosts. With measured sizes of segments
(ext.planner.traffic) the ratio follows the plan. In row-wise plans more GPUs share a table's rows,
so segments have fewer rows, and more summands share a bound.

Knows: measured steps, records of sizes, plans by name. Does not know: seconds.
"""

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from trec_qcomm.codecs import Identity
from trec_qcomm.config import Config, config_from_dict
from trec_qcomm.ext.planner.cost_model import FLOAT32_NBYTES
from trec_qcomm.ext.planner.sizes import FixedSizes
from trec_qcomm.ext.planner.traffic import Place, Sharded, sent_nbytes
from trec_qcomm.lab.records import TableSizesRecord
from trec_qcomm.lab.simulate.between_hosts import config_of, dense_algorithm
from trec_qcomm.lab.simulate.measured import TABLE_WISE, MeasuredStep
from trec_qcomm.lab.simulate.plans import Cluster
from trec_qcomm.lab.simulate.step import Configuration
from trec_qcomm.lab.sizes import load_measured

PLANS = {"tw": "table_wise", "rw": "row_wise", "twrw": "table_row_wise"}  # of plans.py
_DIRECTIONS = ("forward", "backward", "intra_forward", "intra_backward")
_VALUES = 1024  # rows that a codec is asked for its size


def find_configuration(name: str, steps: Sequence[MeasuredStep]) -> Configuration:
    """Return the ratios of a configuration, table-wise if it was measured so, at the fewest hosts.

    The last of these steps counts.

    Raises: ValueError: an unknown configuration; the error names the known ones.
    """
    named = [step for step in steps if step.configuration == name and step.ranks_per_host == 1]
    if not named:
        known = ", ".join(dict.fromkeys(step.configuration for step in steps))
        raise ValueError(f"configs: {name!r} was not measured; expected of {known}")
    step = min(reversed(named), key=lambda step: (step.plan != TABLE_WISE, step.num_hosts))
    ratios: dict[str, Any] = {}
    for group in ("forward", "backward", "dense"):
        raw, sent = step.distinct[group], step.sent[group]
        if not (raw > 0 and sent > 0):
            raise ValueError(
                f"configs: {name!r} has no ratio of {group}: {raw:.0f} bytes of float32 as "
                f"{sent:.0f} bytes, on {step.num_hosts} hosts, {step.rate}; expected both > 0"
            )
        ratios[group] = raw / sent
    if step.config is None:
        return Configuration(name=name, **ratios)
    config = config_from_dict(json.loads(step.config))
    return Configuration(
        name=name,
        distinct_share=min(1.0, step.distinct["forward"] / step.raw["forward"]),
        **ratios,
        ids=step.distinct["ids"] / step.sent["ids"] if step.sent["ids"] else 1.0,
        dense_algorithm=dense_algorithm(config),
        dense_intra=_dense_intra_ratio(config),
        is_ours=True,
        sizes_first=any(not rule.forward.fixed_size for rule in config.embedding),
    )


def _dense_intra_ratio(config: Config) -> float:
    """Return the ratio of the hop inside a node, of a hierarchical all-reduce."""
    rules = config.dense_rules
    if not rules or rules[0].intra is None:
        return 1.0
    nbytes = FixedSizes(rules[0].intra).nbytes(_VALUES, rules[0].block)
    return FLOAT32_NBYTES * _VALUES * rules[0].block / nbytes


def dense_values(steps: Sequence[MeasuredStep]) -> int:
    """Return the number of dense values; a ring sends 2 (N-1)/N of them in float32."""
    ours = [step for step in steps if step.config is not None and step.ranks_per_host == 1]
    step = next(step for step in ours if step.num_hosts > 1)
    share = 2 * (step.num_hosts - 1) / step.num_hosts
    return round(step.distinct["dense"] / share / FLOAT32_NBYTES)


def ratios_at(
    configuration: Configuration, sizes: Sequence[TableSizesRecord], plan: str, cluster: Cluster
) -> Configuration:
    """Return the configuration with its tables' ratios under a plan, with one id a bag.

    The last sizes under its name count. Without sizes, as for plain TorchRec, nothing changes.
    Args: plan: a key of PLANS.
    """
    named = [record for record in sizes if record.configuration == configuration.name]
    if not named:
        return configuration
    config = config_of(named[-1])
    tables = load_measured(named[-1:], config).values()
    place = Place(num_ranks=cluster.num_gpus, node_size=cluster.node_size)
    how, packed = Sharded(sharding=PLANS[plan]), config.ids is not None
    exact: dict[str, Any] = dict.fromkeys(_DIRECTIONS, FixedSizes(Identity()))
    ours = [sent_nbytes(t, how, place, packed_ids=packed) for t in tables]
    raw = [sent_nbytes(replace(t, **exact), how, place) for t in tables]

    def ratio(group: str) -> float:
        sent = sum(getattr(nbytes, group) for nbytes in ours)
        return sum(getattr(nbytes, group) for nbytes in raw) / sent if sent else 1.0

    return replace(
        configuration,
        distinct_share=sum(t.num_sent for t in tables) / sum(t.num_bags for t in tables),
        forward=ratio("forward"),
        backward=ratio("backward"),
        ids=ratio("ids"),
    )
