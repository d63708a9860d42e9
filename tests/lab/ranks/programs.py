"""Programs of ranks that call torch's collectives, for real and for played ranks."""

from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

NUM_ELEMENTS = (1, 2, 7, 64, 1001)


def mine(num_elements: int, *, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    generator = torch.Generator().manual_seed(1000 * seed + dist.get_rank())
    values = torch.randn(num_elements, generator=generator) * 10.0 ** (dist.get_rank() - 1)
    return values.to(dtype)


def all_reduces() -> list[Tensor]:
    results = []
    for number in NUM_ELEMENTS:
        for operation in (dist.ReduceOp.SUM, dist.ReduceOp.MAX, dist.ReduceOp.PRODUCT):
            results.append(mine(number))
            dist.all_reduce(results[-1], op=operation)
    long = mine(1_700_000)  # 6.8 MB: gloo's ring has more segments than two a rank
    dist.all_reduce(long)
    results.append(long[::97].clone())
    for dtype in (torch.float64, torch.bfloat16, torch.int64):
        results.append(mine(1001, dtype=dtype))
        dist.all_reduce(results[-1])
    reduced = mine(33, seed=1)
    dist.reduce(reduced, dst=1)  # what the other ranks are left with, torch does not say
    strided = mine(24).view(4, 6).t()
    dist.all_reduce(strided)
    scattered = torch.empty(5)
    dist.reduce_scatter_tensor(scattered, mine(5 * dist.get_world_size()))
    return [*results, strided, scattered, *([reduced] if dist.get_rank() == 1 else [])]


def all_to_alls() -> list[Tensor]:
    rank, size = dist.get_rank(), dist.get_world_size()
    sent = [rank + r for r in range(size)]  # rows for rank r
    received = torch.empty(sum(sent), 3)
    work = dist.all_to_all_single(
        received, mine(3 * sum(sent)).view(-1, 3), sent, sent, async_op=True
    )
    even = torch.empty(2 * size)
    dist.all_to_all_single(even, mine(2 * size, seed=1))
    work.wait()
    return [received, even]


def spreads() -> list[Tensor]:
    rank, size = dist.get_rank(), dist.get_world_size()
    gathered = [torch.empty(4) for _ in range(size)]
    dist.all_gather(gathered, mine(4))
    joined = torch.empty(4 * size)
    dist.all_gather_into_tensor(joined, mine(4, seed=1))
    spread = mine(6, seed=2)
    dist.broadcast(spread, src=1)
    dealt = torch.empty(2)
    dist.scatter(dealt, [mine(2, seed=r) for r in range(size)] if rank == 1 else None, src=1)
    collected = [torch.zeros(2) for _ in range(size)]
    dist.gather(mine(2, seed=9), collected if rank == 1 else None, dst=1)
    texts: list[str] = [""] * size
    dist.all_gather_object(texts, f"rank {rank}")
    assert texts == [f"rank {r}" for r in range(size)]
    return [*gathered, joined, spread, dealt, *collected]


def messages() -> list[Tensor]:
    """Send around, twice to the same peer, and receive before the peer has sent."""
    rank, size = dist.get_rank(), dist.get_world_size()
    received = [torch.empty(5), torch.empty(7)]
    works = [dist.irecv(place, (rank + 1) % size) for place in received]
    for number, place in enumerate(received):
        dist.send(mine(len(place), seed=number), (rank - 1) % size)
    for work in works:
        work.wait()
    return received


def subgroups() -> list[Tensor]:
    """Reduce in groups of the first two ranks and of the rest, and of two at a time."""
    rank, size = dist.get_rank(), dist.get_world_size()
    parts = [list(range(2)), list(range(2, size))]
    groups = [dist.new_group(part) for part in parts]
    value = mine(9)
    dist.all_reduce(value, group=groups[rank >= 2])
    dist.barrier()
    return [value, torch.tensor(dist.get_process_group_ranks(groups[rank >= 2]))]


def ddp() -> list[Tensor]:
    """Train a DDP with a buffer and with dropout, which draws from the rank's own generator."""
    torch.manual_seed(1 + dist.get_rank())
    net = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 1))
    model = DistributedDataParallel(net)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    for step in range(3):
        loss = model(mine(24, seed=step).view(4, 6)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return [value.detach().clone() for value in net.state_dict().values()]


PROGRAMS: dict[str, Callable[[], list[Tensor]]] = {
    program.__name__: program
    for program in (all_reduces, all_to_alls, spreads, messages, subgroups, ddp)
}


def run(name: str) -> list[Tensor]:
    return PROGRAMS[name]()
