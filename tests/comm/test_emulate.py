"""The emulated exchange: by its contract, and bit for bit against two real ranks."""

from dataclasses import dataclass, field
from typing import ClassVar

import pytest
import torch
import torch.distributed as dist
from fbgemm_gpu.split_embedding_configs import EmbOptimType
from torch import Tensor, nn
from torchrec.distributed import DistributedModelParallel
from torchrec.distributed.embedding_types import EmbeddingComputeKernel
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.sharding_plan import construct_module_sharding_plan, table_wise
from torchrec.distributed.types import ShardingEnv, ShardingPlan
from torchrec.modules.embedding_configs import EmbeddingBagConfig
from torchrec.modules.embedding_modules import EmbeddingBagCollection
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from trec_qcomm import (
    Config,
    ErrorBounded,
    ForwardMask,
    Identity,
    QComm,
    Rowwise,
    TableRule,
    TopK,
)
from trec_qcomm.comm.emulate import EmulatedExchange
from trec_qcomm.ops.unique import UniqueBags, unique_bags
from trec_qcomm.testing import run_ranks

CPU = torch.device("cpu")
DIMS = (16, 8, 16)
NUM_IDS = 12
BATCH_SIZES = (6, 3)  # uneven; most ids repeat within a rank


def ids_of(step: int, rank: int) -> Tensor:
    """Return [F, B_r]."""
    generator = torch.Generator().manual_seed(1000 * step + rank)
    return torch.randint(NUM_IDS, (len(DIMS), BATCH_SIZES[rank]), generator=generator)


def find_bags(ids: Tensor, share: float) -> UniqueBags:
    num_bags = torch.full((len(ids),), ids.shape[1], dtype=torch.int64)
    shares = torch.full((len(ids),), share, dtype=torch.float64)
    return unique_bags(
        ids.reshape(-1), torch.ones(ids.numel(), dtype=torch.int64), num_bags, shares
    )


class Emulation:
    """Tables of NUM_IDS rows, and one step of SGD on them."""

    def __init__(self, tables: list[Tensor], exchange: EmulatedExchange, *, share: float) -> None:
        self.tables = [table.clone().requires_grad_() for table in tables]
        self.exchange, self.share = exchange, share

    def look_up(self, ids: list[Tensor], **options) -> Tensor:
        """Return the samples [B, W]. ids: [F, B_r] for each rank."""
        bags = [find_bags(part, self.share) for part in ids]
        rows = []
        for part, distinct in zip(ids, bags, strict=True):
            at = part.reshape(-1)[distinct.first].split(distinct.counts.tolist())
            rows += [table[i].view(-1) for table, i in zip(self.tables, at, strict=True)]
        return self.exchange(torch.cat(rows), bags, **options)

    def step(self, ids: list[Tensor], lr: float) -> Tensor:
        out = self.look_up(ids, gradient_divisor=len(ids))
        loss_of(out).backward()
        with torch.no_grad():
            for table in self.tables:
                table -= lr * table.grad
                table.grad = None
        return out.detach()


def loss_of(out: Tensor) -> Tensor:
    """Return a loss whose gradient is computed value by value, whatever else is in the batch."""
    return ((out - 0.5) ** 2).sum() / 8


def random_tables() -> list[Tensor]:
    generator = torch.Generator().manual_seed(7)
    scales = (1e-3, 1.0, 50.0)  # a range shared by all would leave nothing of the first table
    shapes = zip(scales, DIMS, strict=True)
    return [scale * torch.randn(NUM_IDS, dim, generator=generator) for scale, dim in shapes]


def exchange_of(forward, backward=None) -> EmulatedExchange:
    return EmulatedExchange(DIMS, (forward,) * len(DIMS), (backward or forward,) * len(DIMS))


def all_ids(step: int = 0) -> list[Tensor]:
    return [ids_of(step, rank) for rank in range(len(BATCH_SIZES))]


@pytest.mark.parametrize("share", [0.0, 1.0])
def test_identity_is_the_plain_lookup(share):
    emulated = Emulation(random_tables(), exchange_of(Identity()), share=share)
    plain = [table.clone().requires_grad_() for table in random_tables()]
    ids = torch.cat(all_ids(), dim=1)
    expected = torch.cat([t[i] for t, i in zip(plain, ids, strict=True)], dim=1)
    out = emulated.look_up(all_ids())
    assert torch.equal(out, expected)
    weights = torch.randn(out.shape, generator=torch.Generator().manual_seed(1))
    (out * weights).sum().backward()
    (expected * weights).sum().backward()
    for table, other in zip(emulated.tables, plain, strict=True):
        # Two orders of adding at most n numbers, each off by (n - 1) 2^-24 sum |x|.
        n = ids.shape[1]
        slack = 2 * (n - 1) * 2.0**-24 * n * float(weights.abs().max())
        assert (table.grad - other.grad).abs().max() <= slack


@pytest.mark.parametrize("share", [0.0, 1.0])
def test_each_rank_and_table_has_a_bound_of_its_own(share):
    bound = 0.03
    emulated = Emulation(random_tables(), exchange_of(ErrorBounded(bound)), share=share)
    out = emulated.look_up(all_ids()).detach()
    exact = Emulation(random_tables(), exchange_of(Identity()), share=share).look_up(all_ids())
    for x, y in zip(exact.detach().split(BATCH_SIZES), out.split(BATCH_SIZES), strict=True):
        for a, b in zip(x.split(DIMS, dim=1), y.split(DIMS, dim=1), strict=True):
            allowed = bound * (a.max().double() - a.min().double())
            error = (a.double() - b.double()).abs().max()
            assert 0 < error <= allowed


def test_gradients_are_coded_after_they_are_summed_up():
    codec = ErrorBounded(0.05)
    ids = [torch.zeros(3, 4, dtype=torch.int64), torch.ones(3, 2, dtype=torch.int64)]
    emulated = Emulation(random_tables(), exchange_of(Identity(), codec), share=1.0)
    weights = torch.arange(1.0, 1 + 6 * sum(DIMS)).view(6, -1).sqrt()
    (emulated.look_up(ids) * weights).sum().backward()
    for table, table_weights in zip(emulated.tables, weights.split(DIMS, dim=1), strict=True):
        for row, part in ((0, table_weights[:4]), (1, table_weights[4:])):
            total = torch.zeros(table_weights.shape[1])
            for sample in part:
                total += sample
            allowed = 0.05 * (total.max().double() - total.min().double())
            error = (table.grad[row].double() - total.double()).abs().max()
            assert 0 < error <= allowed
        assert torch.equal(table.grad[2:], torch.zeros_like(table.grad[2:]))


def test_tolerances_replace_those_of_the_codecs():
    tables = random_tables()
    twice = Emulation(tables, exchange_of(ErrorBounded(0.02)), share=1.0)
    plain = Emulation(tables, exchange_of(ErrorBounded(0.04)), share=1.0)
    out = twice.look_up(all_ids(), tolerances=[0.04, 0.02, 0.04])
    expected = plain.look_up(all_ids())
    assert torch.equal(out[:, :16], expected[:, :16])
    assert torch.equal(out[:, 24:], expected[:, 24:])
    assert not torch.equal(out[:, 16:24], expected[:, 16:24])


def test_noise_depends_on_the_seed_and_nothing_else():
    emulated = Emulation(random_tables(), exchange_of(Rowwise(2, "stochastic")), share=1.0)
    outs = [emulated.look_up(all_ids(), seed=seed).detach() for seed in (5, 5, 6)]
    assert torch.equal(outs[0], outs[1])
    assert not torch.equal(outs[0], outs[2])


def test_backward_sends_the_columns_that_forward_kept():
    emulated = Emulation(random_tables(), exchange_of(TopK(density=0.25), ForwardMask()), share=0.0)
    out = emulated.look_up(all_ids())
    out.sum().backward()
    kept = [part != 0 for part in out.detach().split(DIMS, dim=1)]
    ids = torch.cat(all_ids(), dim=1)
    for table, columns, i in zip(emulated.tables, kept, ids, strict=True):
        expected = torch.zeros_like(table).index_add_(0, i, columns.float())
        assert torch.equal(table.grad, expected)
        assert int(columns.sum()) == columns.shape[0] * columns.shape[1] // 4


@dataclass(frozen=True)
class Counting(Identity):
    """Identity that notes how many segments each call of encode has."""

    calls: list[int] = field(default_factory=list, compare=False)
    name: ClassVar[str] = "counting"

    def encode(self, values, segments, *args, **options):
        self.calls.append(segments.num_segments)
        return super().encode(values, segments, *args, **options)


def test_equal_codecs_and_dims_are_one_call():
    forward, backward = Counting(), Counting()
    exchange = EmulatedExchange(DIMS, (forward,) * 3, (backward,) * 3)
    emulated = Emulation(random_tables(), exchange, share=1.0)
    emulated.look_up(all_ids()).sum().backward()
    num_ranks = len(BATCH_SIZES)
    assert sorted(forward.calls) == sorted(backward.calls) == [num_ranks, 2 * num_ranks]


def test_bad_arguments_are_named():
    codec = Identity()
    with pytest.raises(ValueError, match="backward: expected 2 codecs"):
        EmulatedExchange((4, 4), (codec, codec), (codec,))
    with pytest.raises(ValueError, match="backward: forward_mask needs topk forward"):
        EmulatedExchange((4,), (codec,), (ForwardMask(),))
    exchange = EmulatedExchange((4,), (codec,), (codec,))
    bags = find_bags(torch.zeros(1, 3, dtype=torch.int64), 1.0)
    with pytest.raises(ValueError, match=r"rows: expected \[4\] float32, got \[8\]"):
        exchange(torch.zeros(8), [bags])
    with pytest.raises(ValueError, match="bags: expected of one rank or more"):
        exchange(torch.zeros(0), [])
    with pytest.raises(ValueError, match="tolerances: expected 1 numbers"):
        exchange(torch.zeros(4), [bags], tolerances=[1.0, 1.0])


# Two real ranks.

LR = 0.125  # a power of two: lr * gradient is exact, so a fused multiply-add makes no difference
NUM_STEPS = 6
FEATURES = [f"f{k}" for k in range(len(DIMS))]


def real_model() -> nn.Module:
    torch.manual_seed(3)
    tables = [
        EmbeddingBagConfig(
            name=f"t_{feature}", embedding_dim=dim, num_embeddings=NUM_IDS, feature_names=[feature]
        )
        for feature, dim in zip(FEATURES, DIMS, strict=True)
    ]
    return EmbeddingBagCollection(device=CPU, tables=tables)


def shard(model: nn.Module, qcomm: QComm) -> DistributedModelParallel:
    plan = construct_module_sharding_plan(
        model,
        {"t_f0": table_wise(rank=0), "t_f1": table_wise(rank=1), "t_f2": table_wise(rank=1)},
        sharder=EmbeddingBagCollectionSharder(),
        world_size=2,
        local_size=2,
        device_type="cpu",
    )
    for parameter in plan.values():
        parameter.compute_kernel = EmbeddingComputeKernel.FUSED.value
    fused = {"optimizer": EmbOptimType.EXACT_SGD, "learning_rate": LR}
    return DistributedModelParallel(
        module=model,
        device=CPU,
        env=ShardingEnv.from_process_group(dist.group.WORLD),
        plan=ShardingPlan({"": plan}),
        sharders=qcomm.sharders(fused_params=fused),
    )


def own_tables(dmp: DistributedModelParallel) -> dict[str, Tensor]:
    """Return {feature: table} of this rank."""
    shards = {name: value.local_shards() for name, value in dmp.state_dict().items()}
    named = {name.split(".")[1].removeprefix("t_"): local for name, local in shards.items()}
    return {feature: local[0].tensor.clone() for feature, local in named.items() if local}


def train_for_real(config: Config) -> tuple[dict[str, Tensor], list[Tensor], dict[str, Tensor]]:
    """Return this rank's tables, its outputs [B_r, W] of each step, and its tables afterwards."""
    dmp, outs = shard(real_model(), QComm(config)), []
    before = own_tables(dmp)
    for step in range(NUM_STEPS):
        ids = ids_of(step, dist.get_rank())
        lengths = torch.ones(ids.numel(), dtype=torch.int32)
        out = dmp(KeyedJaggedTensor(FEATURES, ids.reshape(-1), lengths=lengths)).to_dict()
        joined = torch.cat([out[feature] for feature in FEATURES], dim=1)
        loss_of(joined).backward()
        outs.append(joined.detach())
    return before, outs, own_tables(dmp)


def rules(share: float, **codecs) -> Config:
    return Config(embedding=(TableRule(tables=("*",), unique_bags=bool(share), **codecs),))


PAIRS = [
    (Identity(), Identity()),
    (ErrorBounded(0.03), Rowwise(4)),
    (Rowwise(2), ErrorBounded(0.05)),
    (TopK(density=0.25), ForwardMask()),
]


def train_all_for_real():
    return [
        train_for_real(rules(share, forward=forward, backward=backward))
        for forward, backward in PAIRS
        for share in (0.0, 1.0)
    ]


@pytest.mark.dist
def test_outputs_and_weights_equal_those_of_two_ranks():
    cases = [(*pair, share) for pair in PAIRS for share in (0.0, 1.0)]
    per_rank = run_ranks(train_all_for_real, 2)
    starts: list[Tensor] = []
    trained: list[Tensor] = []
    for number, (forward, backward, share) in enumerate(cases):
        real = [results[number] for results in per_rank]
        before, after = ({**real[0][k], **real[1][k]} for k in (0, 2))
        start = [before[feature] for feature in FEATURES]
        starts.append(torch.cat([table.view(-1) for table in start]))
        emulated = Emulation(start, exchange_of(forward, backward), share=share)
        for step in range(NUM_STEPS):
            out = emulated.step(all_ids(step), LR)
            assert torch.equal(out, torch.cat([outs[step] for _, outs, _ in real])), (number, step)
        for feature, table in zip(FEATURES, emulated.tables, strict=True):
            assert torch.equal(table.detach(), after[feature]), (number, feature)
            assert not torch.equal(table.detach(), before[feature]), (number, feature)
        trained.append(torch.cat([table.detach().view(-1) for table in emulated.tables]))
    assert all(torch.equal(tables, starts[0]) for tables in starts)
    # The codecs did something: what exact communication trains is another model.
    assert not any(torch.equal(tables, trained[0]) for tables in trained[2:])
