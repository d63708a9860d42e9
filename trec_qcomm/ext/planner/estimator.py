"""CodecPerfEstimator: TorchRec's estimate of a sharding option, with our codecs' real prices.

TorchRec prices a codec by the element size of its dtype: the same for all tables, no scales, no
headers, no time, and a smaller dtype makes the LOOKUP look cheaper too. Here lookups keep
TorchRec's price. Of the communication, only the hops that we code get another:

    hop = TorchRec's ms of the hop * wire bytes / raw bytes  +  raw bytes / encode and decode GB/s

How much of TorchRec's ms is a hop's is not computed by formulas of ours, which could drift from
TorchRec's. Each option is estimated twice more on a network where one kind of collective is free,
and the difference is the hop.

    sharding          fwd_comms                     bwd_comms                           codec
    TW, CW, TWCW      all-to-all                    all-to-all                          rule's
    RW                reduce-scatter                all-gather + copy                   rule's
    TWRW, GRID        all-to-all between nodes      all-to-all                          rule's
                      + reduce-scatter inside one   + all-gather + copy                 rule's intra
    DATA_PARALLEL     -                             all-reduce + optimizer              see below

`copy` is TorchRec's local copy after the all-gather. No codec makes it smaller, so its price stays.
The all-reduce of DATA_PARALLEL tables keeps TorchRec's price without a `data_parallel` section.
With one it is the bytes of the rows that some rank touched in a step (control.traffic), as that
section codes them, over the bandwidth of an all-to-all, as every rank sends to every other one; as
in TorchRec's all-to-all, a rank counts as its own peer.
The dense part is the same for every plan, and so has no price.
Accuracy: frames are priced as if each table had its own (48 bytes a peer, 0.3 % of 512 rows of 32
bytes). Decoding happens on the receivers; its time is charged to the sender's shard, which gives
each rank the right sum when the plan is balanced. The backward of a sum encodes once and decodes
for every peer. A codec without a fixed size is priced at its upper bound, and what `unique_bags`
saves is not priced, unless `measured` tells both: then bytes, rows that are coded, ids and lookups
are the expected ones (measured.py), and ids cost their time, too, unless a pipeline sends them
beside the rest of a step.
Rows of lookups that give 16 bits (`output_dtype`) have two bytes a value where a codec leaves them
as they are; TorchRec's own estimate counts the bytes of the table's weights.
Units: ms and bytes, as TorchRec has them. Written against torchrec 1.6.1 to 1.9.2.
"""

import copy
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from trec_qcomm.comm.rows.direction_codecs import codec_for_rows
from trec_qcomm.config import Config, TableGradientRule
from trec_qcomm.core.codec import Codec
from trec_qcomm.ext.planner.cost_model import (
    FLOAT32_NBYTES,
    Throughput,
    measure_throughput,
    wire_nbytes,
)
from trec_qcomm.ext.planner.measured import MeasuredPrices
from trec_qcomm.ext.planner.traffic import (
    MeasuredTable,
    Place,
    TouchedRows,
    TouchedTable,
    reduced_nbytes,
)
from trec_qcomm.integration.compat import (
    CollectiveType,
    EmbeddingPerfEstimator,
    GeneralizedCommsBandwidth,
    ParameterConstraints,
    Shard,
    ShardingOption,
    ShardingType,
    Topology,
    get_num_poolings,
)
from trec_qcomm.integration.compat.private import set_bandwidths
from trec_qcomm.integration.embedding.output_dtype import planned_dtype

Throughputs = Throughput | Mapping[str | Codec, Throughput]
ALL_TO_ALL = frozenset({CollectiveType.ALL_TO_ALL})
ALL_REDUCE = frozenset({CollectiveType.ALL_REDUCE})
REDUCTION = frozenset({CollectiveType.REDUCE_SCATTER, CollectiveType.ALL_GATHER})
DATA_PARALLEL = ShardingType.DATA_PARALLEL.value
TWO_LEVEL = (ShardingType.TABLE_ROW_WISE.value, ShardingType.GRID_SHARD.value)
DIRECTIONS = {"forward": "fwd_comms", "backward": "bwd_comms"}


class CodecPerfEstimator(EmbeddingPerfEstimator):
    """Drop-in for TorchRec's EmbeddingPerfEstimator that prices hops with the config's codecs."""

    def __init__(
        self,
        config: Config,
        topology: Topology,
        constraints: dict[str, ParameterConstraints] | None = None,
        *,
        throughput: Throughputs | None = None,
        measured: Mapping[str, MeasuredTable] | None = None,
        pipeline: bool = False,
    ) -> None:
        super().__init__(topology, constraints)
        _check_throughput(throughput, topology.compute_device)
        self._config = config
        self._cluster, self._table_constraints = topology, constraints or {}
        self._throughput, self._pipeline = throughput, pipeline
        place = Place(num_ranks=topology.world_size, node_size=topology.intra_group_size)
        self._measured = None if measured is None else MeasuredPrices(config, measured, place)
        self._without = {
            collectives: EmbeddingPerfEstimator(_with_free(topology, collectives), constraints)
            for collectives in (ALL_TO_ALL, REDUCTION)
        }
        self._without_all_reduce = EmbeddingPerfEstimator(
            _with_free(topology, ALL_REDUCE), constraints
        )

    def estimate(self, sharding_options: list[ShardingOption], *args: Any, **kwargs: Any) -> None:
        """Write `shard.perf` of every shard of every option, in place.

        Raises: ValueError: a table that no pattern of the config matches, a codec that `throughput`
            lacks, one that does not take the rows of a table's lookups, or a sharder with codecs of
            TorchRec's, which TorchRec prices already.
        """
        sharders = _sharders([*args, *kwargs.values()])
        coded = [so for so in sharding_options if so.sharding_type != DATA_PARALLEL]
        replicated = [so for so in sharding_options if so.sharding_type == DATA_PARALLEL]
        without = {}
        for collectives, estimator in self._without.items():
            estimator.estimate(coded, *args, **kwargs)
            without[collectives] = [shard.perf for so in coded for shard in so.shards]
        self._without_all_reduce.estimate(replicated, *args, **kwargs)
        free_ms = [[shard.perf.bwd_comms for shard in so.shards] for so in replicated]
        super().estimate(sharding_options, *args, **kwargs)
        if self._config.data_parallel is not None:
            for so, rest_ms in zip(replicated, free_ms, strict=True):
                all_reduce_ms = self._all_reduce_ms(so, self._config.data_parallel)
                for shard, ms in zip(so.shards, rest_ms, strict=True):
                    shard.perf.bwd_comms = ms + all_reduce_ms
        shards = [(so, shard) for so in coded for shard in so.shards]
        for number, (so, shard) in enumerate(shards):
            dtype = self._rows_dtype(so, sharders)
            for direction, field in DIRECTIONS.items():
                stock_ms = getattr(shard.perf, field)
                hops_ms = {
                    c: stock_ms - getattr(perfs[number], field) for c, perfs in without.items()
                }
                ours_ms = stock_ms + sum(
                    self._coded_ms(so, shard, direction, collectives, ms, dtype) - ms
                    for collectives, ms in hops_ms.items()
                    if ms > 0
                )
                setattr(shard.perf, field, ours_ms)
            if self._measured is not None:
                self._price_bags(self._measured, so, shard)

    def _price_bags(self, measured: MeasuredPrices, so: ShardingOption, shard: Shard) -> None:
        """Write what merging equal bags leaves of a shard's lookups, and the time of its ids."""
        for field in ("fwd_compute", "bwd_compute"):
            setattr(shard.perf, field, getattr(shard.perf, field) * measured.distinct_share(so))
        bandwidth = self._all_to_all_bandwidth()
        nbytes = measured.ids_nbytes(so, shard, self._samples(so))
        shard.perf.input_dist_comms = nbytes * self._cluster.world_size / bandwidth
        if not self._pipeline:
            shard.perf.fwd_comms += shard.perf.input_dist_comms

    def _all_to_all_bandwidth(self) -> float:
        """Return bytes a ms of a rank that sends to all ranks."""
        cluster = self._cluster
        bandwidth: float = cluster.comms_bandwidths.get_bw(
            cluster.local_world_size, cluster.world_size, CollectiveType.ALL_TO_ALL
        )
        return bandwidth

    def _all_reduce_ms(self, so: ShardingOption, rule: TableGradientRule) -> float:
        """Return the ms of a step's all-reduce of a DATA_PARALLEL table's gradients."""
        (num_rows, dim), num_ranks = so.tensor.shape, self._cluster.world_size
        samples = self._samples(so)
        if self._measured is None:
            ids = zip(samples, so.input_lengths, strict=True)
            by_one = sum(num * length for num, length in ids)
            touched = TouchedRows(num_rows=num_rows, by_one=by_one).by(num_ranks)
        else:
            touched = self._measured.num_touched(so, samples)
        table = TouchedTable(dim=dim, num_rows=num_rows, num_touched=touched)
        nbytes = reduced_nbytes([table], rule.codec, rule.algorithm, num_ranks)
        bandwidth = self._all_to_all_bandwidth()
        raw_nbytes = touched * dim * FLOAT32_NBYTES * (num_ranks > 1)
        codec_s = self._throughput_of(rule.codec, dim).codec_s(
            encoded_nbytes=raw_nbytes * (1 + 1 / num_ranks), decoded_nbytes=2 * raw_nbytes
        )
        with_itself = num_ranks / max(num_ranks - 1, 1)
        return float(nbytes * with_itself / bandwidth + codec_s * 1e3)

    def _coded_ms(
        self,
        so: ShardingOption,
        shard: Shard,
        direction: str,
        collectives: frozenset[CollectiveType],
        stock_ms: float,
        dtype: torch.dtype,
    ) -> float:
        """Return the ms of one hop of one shard, which without codecs takes `stock_ms`."""
        hop = self._hop(so, collectives)
        codec = self._codec(so.name, direction, intra=hop.is_intra)
        dim, rows = shard.size[1], self._rows_per_peer(so, hop)
        num_values = sum(rows) * dim
        if not num_values:
            return stock_ms
        of_values = codec_for_rows(codec, dtype, f"table {so.name!r}: {direction}")
        sent_nbytes: float = 0.0
        if self._measured is None:
            sent_nbytes, raw_nbytes = wire_nbytes(of_values, rows, dim), num_values * FLOAT32_NBYTES
        else:
            samples = self._samples(so)
            sent = self._measured.sent(
                so, shard, direction, samples, intra=hop.is_intra, dtype=dtype
            )
            sent_nbytes, raw_nbytes = sent.nbytes, sent.num_rows * dim * FLOAT32_NBYTES
        ratio = sent_nbytes / (num_values * so.tensor.element_size())
        encoded_once = hop.is_sum and direction == "backward"
        codec_s = self._throughput_of(codec, dim).codec_s(
            encoded_nbytes=raw_nbytes * (1 if encoded_once else hop.num_peers),
            decoded_nbytes=raw_nbytes * hop.num_peers,
        )
        coded_ms: float = stock_ms * ratio + codec_s * 1e3
        return coded_ms

    def _hop(self, so: ShardingOption, collectives: frozenset[CollectiveType]) -> "_Hop":
        world_size, node_size = self._cluster.world_size, self._cluster.intra_group_size
        is_sum = collectives is REDUCTION and so.is_pooled
        if so.sharding_type not in TWO_LEVEL:
            is_split = so.sharding_type == ShardingType.ROW_WISE.value and not so.is_pooled
            return _Hop(world_size, 1 / world_size if is_split else 1.0, False, is_sum)
        if collectives is REDUCTION:
            return _Hop(node_size, world_size / node_size, True, is_sum)
        return _Hop(world_size // node_size, 1.0, False, False)

    def _rows_per_peer(self, so: ShardingOption, hop: "_Hop") -> tuple[int, ...]:
        """Return the rows of each feature that a rank sends one peer."""
        lengths = [min(1.0, n) for n in so.input_lengths] if so.is_pooled else so.input_lengths
        columns = zip(self._samples(so), lengths, strict=True)
        return tuple(math.ceil(samples * n * hop.num_batches) for samples, n in columns)

    def _samples(self, so: ShardingOption) -> list[float]:
        """Return the bags of each feature in the batch of a rank."""
        limits = self._table_constraints.get(so.name)
        batches = (limits and limits.batch_sizes) or [so.batch_size] * so.num_inputs
        poolings = get_num_poolings(self._table_constraints, so)
        return [batch * pooling for batch, pooling in zip(batches, poolings, strict=True)]

    def _rows_dtype(self, so: ShardingOption, sharders: Mapping[str, Any]) -> torch.dtype:
        sharder = sharders.get(so.module_type_key)
        fused_params = getattr(sharder, "fused_params", None)
        return planned_dtype(so, fused_params, self._cluster.compute_device)

    def _codec(self, table: str, direction: str, *, intra: bool) -> Codec:
        rule = self._config.rule_for(table)
        codec: Codec = getattr(rule.intra if intra else rule, direction)
        return codec

    def _throughput_of(self, codec: Codec, dim: int) -> Throughput:
        if self._throughput is None:
            return measure_throughput(codec, dim)
        if isinstance(self._throughput, Throughput):
            return self._throughput
        for key in (codec, codec.name):
            if key in self._throughput:
                return self._throughput[key]
        known = ", ".join(map(str, self._throughput))
        raise ValueError(f"throughput: neither {codec} nor {codec.name!r} is among: {known}")


@dataclass(frozen=True)
class _Hop:
    """One collective of a sharding.

    Args:
        num_peers: number of ranks that take part, this one included
        num_batches: number of ranks' batches whose rows go to each peer: the number of nodes for
            the hop inside a node, else 1; less than 1 for row-wise sequences, of whose rows a rank
            has a share
        is_intra: whether it is the hop inside a node
        is_sum: whether the forward adds rows up; then the backward sends all peers the same
    """

    num_peers: int
    num_batches: float
    is_intra: bool
    is_sum: bool


class _FreeCollectives(GeneralizedCommsBandwidth):
    """Network on which some kinds of collective take no time."""

    def __init__(self, real: GeneralizedCommsBandwidth, free: frozenset[CollectiveType]) -> None:
        self._real, self._free = real, free

    def get_bw(
        self, local_world_size: int, world_size: int, collective_type: CollectiveType
    ) -> float:
        """Return the bandwidth in bytes/ms; inf for a free collective."""
        if collective_type in self._free:
            return math.inf
        return float(self._real.get_bw(local_world_size, world_size, collective_type))

    @property
    def intra_host_bw(self) -> float:
        """Bandwidth of the real network, in bytes/ms."""
        return float(self._real.intra_host_bw)

    @property
    def inter_host_bw(self) -> float:
        """Bandwidth of the real network, in bytes/ms."""
        return float(self._real.inter_host_bw)


def _with_free(topology: Topology, collectives: frozenset[CollectiveType]) -> Topology:
    """Return a copy of the topology on which these collectives cost nothing."""
    changed = copy.copy(topology)
    set_bandwidths(changed, _FreeCollectives(topology.comms_bandwidths, collectives))
    return changed


def _check_throughput(throughput: object, compute_device: str) -> None:
    if throughput is None:
        if compute_device != "cpu":
            raise ValueError(
                f"throughput: measuring is for cpu, and the topology is of {compute_device}; "
                "give a Throughput, or a mapping from codecs or their names to one"
            )
        return
    values = throughput.values() if isinstance(throughput, Mapping) else [throughput]
    if not values or not all(isinstance(value, Throughput) for value in values):
        raise ValueError(
            "throughput: expected a Throughput, or a mapping from codecs or their names to one, "
            f"got {throughput!r}"
        )


def _sharders(arguments: list[Any]) -> dict[str, Any]:
    """Return sharders (1.6), or TorchRec's snapshots of them, by module type.

    Raises: ValueError: a sharder with TorchRec's codecs.
    """
    sharders = {name: s for a in arguments if isinstance(a, dict) for name, s in a.items()}
    for name, sharder in sharders.items():
        stock = getattr(sharder, "qcomm_dtype_sizes", None)
        stock = stock or getattr(sharder, "qcomm_codecs_registry", None)
        if stock:
            raise ValueError(
                f"sharders: {name} has a qcomm_codecs_registry, which TorchRec prices already; "
                "plan with qcomm.sharders()"
            )
    return sharders
