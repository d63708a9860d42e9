"""CodecPerfEstimator: TorchRec's estimate of a sharding option, with our codecs' real prices.

TorchRec prices a codec by the element size of its dtype: the same for all tables, without scales,
headers or time. A smaller dtype even makes the LOOKUP look cheaper. Here lookups keep TorchRec's
price. Only the hops that we code get another price:

    hop = TorchRec's ms of the hop * wire bytes / raw bytes  +  raw bytes / encode and decode GB/s

Formulas of ours could drift from TorchRec's, so they do not compute a hop's part of TorchRec's ms.
Instead, each option is estimated twice more, on a network where one kind of collective is free. The
difference is the hop.

    sharding          fwd_comms                     bwd_comms                           codec
    TW, CW, TWCW      all-to-all                    all-to-all                          rule's
    RW                reduce-scatter                all-gather + copy                   rule's
    TWRW, GRID        all-to-all between nodes      all-to-all                          rule's
                      + reduce-scatter inside one   + all-gather + copy                 rule's intra
    DATA_PARALLEL     -                             all-reduce + optimizer              see below

`copy` is TorchRec's local copy after the all-gather. No codec makes it smaller, so its price stays.

Without a `data_parallel` section the all-reduce of DATA_PARALLEL tables keeps TorchRec's price.
With the section, its price is bytes over bandwidth. The bytes are those of the rows that at least
one rank touched in a step (traffic.py), coded as the section says. The bandwidth is that of an
all-to-all, because every rank sends to every other rank. As in TorchRec's all-to-all, a rank counts
as its own peer. The dense part is the same for every plan, so it has no price.

Accuracy: frames are priced as if each table had its own (48 bytes a peer, 0.3 % of 512 rows of 32
bytes). Receivers decode, but the sender's shard is charged for it, which gives each rank the right
sum when the plan is balanced. The backward of a sum encodes once and decodes for every peer.

Without `measured`, a codec without a fixed size is priced at its upper bound, and savings by
`unique_bags` are not priced. With `measured`, bytes, coded rows, ids and lookups are the expected
ones (measured.py). Ids then cost their time, too, unless a pipeline sends them beside the rest of a
step.

Rows of lookups that give 16 bits (`output_dtype`) have two bytes a value if a codec leaves them as
they are. TorchRec's own estimate counts the bytes of the table's weights. Units: ms and bytes, as
in TorchRec. Written against torchrec 1.6.1 to 1.9.2.
"""

import copy
import math
from collections.abc import Mapping
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
    Hop,
    MeasuredTable,
    Place,
    TouchedRows,
    TouchedTable,
    hops_of,
    reduced_nbytes,
)
from trec_qcomm.integration.compat import (
    CollectiveType,
    EmbeddingPerfEstimator,
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
        self._place = place
        self._measured = None if measured is None else MeasuredPrices(config, measured, place)
        self._without = {
            collectives: EmbeddingPerfEstimator(_with_free(topology, collectives), constraints)
            for collectives in (ALL_TO_ALL, REDUCTION, ALL_REDUCE)
        }

    def estimate(self, sharding_options: list[ShardingOption], *args: Any, **kwargs: Any) -> None:
        """Write `shard.perf` of every shard of every option, in place.

        Raises: ValueError: a table that no pattern of the config matches, a codec that `throughput`
            lacks, a codec that does not take the rows of a table's lookups, or a sharder with
            TorchRec's codecs, which TorchRec prices already.
        """
        sharders = _sharders([*args, *kwargs.values()])
        free = []
        for estimator in self._without.values():
            estimator.estimate(sharding_options, *args, **kwargs)
            free.append([shard.perf for so in sharding_options for shard in so.shards])
        super().estimate(sharding_options, *args, **kwargs)
        shards = [(so, shard) for so in sharding_options for shard in so.shards]
        for (so, shard), *perfs in zip(shards, *free, strict=True):
            self._price(so, shard, dict(zip(self._without, perfs, strict=True)), sharders)

    def _price(
        self,
        so: ShardingOption,
        shard: Shard,
        free: Mapping[frozenset[CollectiveType], Any],
        sharders: Mapping[str, Any],
    ) -> None:
        """Write what codecs make of a shard's price. Args: free: what the shard costs where
        collectives of these kinds are free."""
        if so.sharding_type == DATA_PARALLEL:
            if self._config.data_parallel is not None:
                all_reduce_ms = self._all_reduce_ms(so, self._config.data_parallel)
                shard.perf.bwd_comms = free[ALL_REDUCE].bwd_comms + all_reduce_ms
            return
        fused_params = getattr(sharders.get(so.module_type_key), "fused_params", None)
        dtype = planned_dtype(so, fused_params, self._cluster.compute_device)
        for direction, field in DIRECTIONS.items():
            stock_ms = ours_ms = getattr(shard.perf, field)
            for collectives, perf in free.items():
                if (ms := stock_ms - getattr(perf, field)) > 0:
                    ours_ms += self._coded_ms(so, shard, direction, collectives, ms, dtype) - ms
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
        rule = self._config.rule_for(so.name)
        codec: Codec = getattr(rule.intra if hop.is_intra else rule, direction)
        dim, rows = shard.size[1], self._rows_per_peer(so, hop)
        num_values = sum(rows) * dim
        if not num_values:
            return stock_ms
        of_values = codec_for_rows(codec, dtype, f"table {so.name!r}: {direction}")
        num_rows: float = sum(rows)
        sent_nbytes: float = wire_nbytes(of_values, rows, dim)
        if self._measured is not None:
            samples, intra = self._samples(so), hop.is_intra
            num_rows, sent_nbytes = self._measured.sent(
                so, shard, direction, samples, intra=intra, dtype=dtype
            )
        raw_nbytes = num_rows * dim * FLOAT32_NBYTES
        ratio = sent_nbytes / (num_values * so.tensor.element_size())
        encoded_once = hop.num_terms > 1 and direction == "backward"  # all get the same gradients
        codec_s = self._throughput_of(codec, dim).codec_s(
            encoded_nbytes=raw_nbytes * (1 if encoded_once else hop.num_peers),
            decoded_nbytes=raw_nbytes * hop.num_peers,
        )
        coded_ms: float = stock_ms * ratio + codec_s * 1e3
        return coded_ms

    def _hop(self, so: ShardingOption, collectives: frozenset[CollectiveType]) -> Hop:
        share = 1 / self._place.num_ranks
        hops = hops_of(
            so.sharding_type, self._place, rows_share=share, num_ids=1, is_pooled=so.is_pooled
        )
        return hops[0] if collectives is REDUCTION else hops[-1]

    def _rows_per_peer(self, so: ShardingOption, hop: Hop) -> tuple[int, ...]:
        """Return the most rows of each feature that a rank sends one peer."""
        lengths = [min(1.0, n) if so.is_pooled else n * hop.share for n in so.input_lengths]
        columns = zip(self._samples(so), lengths, strict=True)
        return tuple(math.ceil(samples * n * hop.num_batches) for samples, n in columns)

    def _samples(self, so: ShardingOption) -> list[float]:
        """Return the bags of each feature in the batch of a rank."""
        limits = self._table_constraints.get(so.name)
        batches = (limits and limits.batch_sizes) or [so.batch_size] * so.num_inputs
        poolings = get_num_poolings(self._table_constraints, so)
        return [batch * pooling for batch, pooling in zip(batches, poolings, strict=True)]

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


def _with_free(topology: Topology, collectives: frozenset[CollectiveType]) -> Topology:
    """Return a copy of the topology on which these collectives cost nothing."""
    real, changed = topology.comms_bandwidths, copy.copy(topology)
    network = copy.copy(real)
    network.get_bw = lambda local_world_size, world_size, collective_type: (
        math.inf
        if collective_type in collectives
        else real.get_bw(local_world_size, world_size, collective_type)
    )
    set_bandwidths(changed, network)
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
