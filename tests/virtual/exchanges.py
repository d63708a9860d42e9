"""Exchanges, all-reduces and packed ids of realistic shape, as dry runs: 8 ranks, 26 tables, 14
parameters.
"""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from tests.virtual.dry_run import GPU, Counted, Group, dry_run
from trec_qcomm.codecs import Cast, ErrorBounded, Float6, Identity, Rowwise
from trec_qcomm.comm.dense.chunks import ParameterShape
from trec_qcomm.comm.rows.all_to_all import PooledAllToAll
from trec_qcomm.comm.rows.collective import RowCollective
from trec_qcomm.comm.rows.direction_codecs import DirectionCodecs
from trec_qcomm.comm.rows.layout import FeatureShard, Layout
from trec_qcomm.comm.rows.reduce_scatter import PooledReduceScatter
from trec_qcomm.comm.rows.sequence import SequenceAllToAll
from trec_qcomm.comm.transport import DeviceTransport
from trec_qcomm.config import GradientRule
from trec_qcomm.core.checks import DeferredChecks
from trec_qcomm.core.counters import Traffic
from trec_qcomm.integration.gradients.reduction import make_reduction
from trec_qcomm.ops.batch.packed_ids import Bags
from trec_qcomm.ops.id_messages import cpu as id_cpu
from trec_qcomm.wire.id_messages import STATED_BAGS, pack, unpack

NUM_RANKS, NUM_TABLES, DIM, BATCH_SIZE = 8, 26, 64, 2048
# Forward and backward codec.
ROW_CODECS = {
    "identity": (Identity(), Identity()),
    "cast": (Cast("bf16"), Cast("bf16")),
    "rowwise": (Rowwise(8), Rowwise(4)),
    "rowwise-of-bf16": (Rowwise(8), Rowwise(4)),
    "error_bounded": (ErrorBounded(0.01), ErrorBounded(0.01, encoder="rans")),
    "float6": (Float6(), Float6()),
}
COLLECTIVES = {
    "all-to-all": PooledAllToAll,
    "reduce-scatter": PooledReduceScatter,
    "sequence": SequenceAllToAll,
}
ALGORITHMS = ("two_shot", "ring", "recursive_doubling", "hierarchical")
RANKS_PER_NODE = 4  # of hierarchical
DENSE_RULES = {
    "rowwise": {"codec": Rowwise(4), "error_feedback": True},
    "cast": {"codec": Cast("bf16")},
}
MLP = {
    "bottom0": (512, 13), "bottom1": (256, 512), "bottom2": (64, 256), "top0": (512, 415),
    "top1": (512, 512), "top2": (256, 512), "out": (1, 256),
}  # fmt: skip


def row_names() -> list[str]:
    return [f"{collective} {codecs}" for collective in COLLECTIVES for codecs in ROW_CODECS]


def dense_names() -> list[str]:
    return [f"{algorithm} {rule}" for algorithm in ALGORITHMS for rule in DENSE_RULES]


def layout_of(kind: type[RowCollective], dtype: torch.dtype = torch.float32) -> Layout:
    """Return all tables' columns on every rank, or each table's on one."""
    shards = [FeatureShard(f"t{t}", f"f{t}", 0, DIM) for t in range(NUM_TABLES)]
    if kind is PooledReduceScatter:
        return Layout((tuple(shards),) * NUM_RANKS, dtype)
    return Layout(tuple(tuple(shards[rank::NUM_RANKS]) for rank in range(NUM_RANKS)), dtype)


def make(collective: str, codecs: str) -> RowCollective:
    kind = COLLECTIVES[collective]
    layout = layout_of(kind, torch.bfloat16 if codecs.endswith("bf16") else torch.float32)
    forward, backward = (dict.fromkeys(layout.tables(), codec) for codec in ROW_CODECS[codecs])
    exact = dict.fromkeys(layout.tables(), Identity())
    return kind(
        Group(NUM_RANKS),
        layout,
        codecs=DirectionCodecs(forward, backward),
        exact=DirectionCodecs(exact, exact),
        name=f"{collective} {codecs}",
    )


def step_of(op: RowCollective) -> Callable[[], tuple[Tensor, Tensor]]:
    """Return a function that runs the forward exchange: its rows and its result."""
    if isinstance(op, SequenceAllToAll):
        num_shards = len(op.layout.shards_by_rank[0])
        sent = torch.full((num_shards, NUM_RANKS), BATCH_SIZE)
        received = torch.full((NUM_TABLES,), BATCH_SIZE)
        shape, sizes = (int(sent.sum()), DIM), (sent, received)
    else:
        shape = (BATCH_SIZE * NUM_RANKS, op.layout.dim_sum(0))
        sizes = ([BATCH_SIZE] * NUM_RANKS,)

    def forward() -> tuple[Tensor, Tensor]:
        rows = torch.empty(shape, dtype=op.dtype, device=GPU, requires_grad=True)
        return rows, op.start(rows, *sizes).wait()

    return forward


def row_runs(collective: str, codecs: str) -> Iterator[tuple[str, Counted]]:
    """Yield the counts of the second step, forward and backward."""
    with dry_run() as run:
        forward = step_of(make(collective, codecs))
        for _ in range(2):
            run.taken()
            with run:
                rows, out = forward()
            in_forward, gradient = run.taken(), torch.empty_like(out)
            with run:
                torch.autograd.grad(out, rows, gradient)
    yield "forward", in_forward
    yield "backward", run.taken()


def dense_step(algorithm: str, rule: str) -> tuple[Callable[[], Any], Tensor]:
    """Return a function that starts a bucket's all-reduce, and the bucket."""
    config = GradientRule(block=128, min_numel=1024, algorithm=algorithm, **DENSE_RULES[rule])
    shapes = []
    for name, (rows, columns) in MLP.items():
        shapes += [ParameterShape(f"{name}.weight", rows * columns, 128)]
        shapes += [ParameterShape(f"{name}.bias", rows, 128)]
    traffic = Traffic("dense", ["all"])
    reduction = make_reduction(config, shapes, 0, NUM_RANKS, traffic, ranks_per_node=RANKS_PER_NODE)
    transport = DeviceTransport(Group(NUM_RANKS), GPU, DeferredChecks())
    bucket = torch.empty(sum(shape.numel for shape in shapes), device=GPU)

    def all_reduce() -> Any:
        return transport.start(reduction.start(shapes, bucket), bucket, lambda seconds: None)

    return all_reduce, bucket


def dense_run(algorithm: str, rule: str) -> Counted:
    """Return the counts of one bucket's all-reduce in the second step."""
    with dry_run() as run:
        step, _ = dense_step(algorithm, rule)
        with run:  # the first step is watched, too, but what it prepares is not counted
            step()
            run.taken()
            step()
    return run.taken()


_MESSAGE_NBYTES = 1024


def _downloads_of_ids(counts: list[int]) -> Iterator[list[Tensor]]:
    """Yield what the host downloads to pack, and to unpack, messages of so many features."""
    num_bags, total = [BATCH_SIZE] * NUM_TABLES, BATCH_SIZE * NUM_TABLES
    yield [torch.tensor([_MESSAGE_NBYTES] * NUM_RANKS + num_bags + [0, total])]
    first_word = int(id_cpu.MAGIC) | int(id_cpu.VERSION) << 32 | STATED_BAGS << 48
    headers = [first_word, counts[0], _MESSAGE_NBYTES, 0] * NUM_RANKS
    begins = [_MESSAGE_NBYTES // 8 * rank for rank in range(NUM_RANKS + 1)]
    sums, first_blocks = [0] * NUM_RANKS, [0] * (NUM_RANKS + 1)
    plans = [BATCH_SIZE] * (3 * NUM_RANKS * counts[0])
    yield [torch.tensor(headers + sums + begins + first_blocks), torch.tensor([*plans, -1])]


def id_runs() -> Iterator[tuple[str, Counted]]:
    """Yield the counts of a batch's ids: packed for all ranks, and unpacked from all."""
    counts = [len(shards) for shards in layout_of(PooledAllToAll).shards_by_rank]
    downloads = _downloads_of_ids(counts)
    with dry_run() as run:
        ids = torch.empty(NUM_TABLES * BATCH_SIZE, dtype=torch.int64, device=GPU)
        bags = Bags(ids, torch.empty_like(ids), torch.full((NUM_TABLES,), BATCH_SIZE))
        run.replies = next(downloads)
        with run:
            packed = pack(bags, counts, even_bags=None)
        yield "ids packed", run.taken()
        run.replies = next(downloads)
        with run:
            unpack(packed.buffer, range(NUM_RANKS), ["f"] * counts[0], None)
    yield "ids unpacked", run.taken()


def runs() -> Iterator[tuple[str, Counted]]:
    """Yield the counts of all exchanges and all-reduces, by name."""
    for name in row_names():
        for direction, counted in row_runs(*name.split()):
            yield f"{name} {direction}", counted
    for name in dense_names():
        yield name, dense_run(*name.split())
    yield from id_runs()
