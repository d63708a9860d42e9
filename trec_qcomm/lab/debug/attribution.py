"""Attribution of a loss to the codecs of tables: forward passes with one codec off at a time.

Knows: sessions. Does not know: models, TorchRec.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor

if TYPE_CHECKING:
    from trec_qcomm.integration.session import Session

LossFunction = Callable[[Any], Tensor | float]


@dataclass(frozen=True)
class TableEffect:
    """What the forward codec of one table adds to the loss.

    Args:
        table: name of the table.
        added_loss: the loss with all codecs, minus that with all but this one.
    """

    table: str
    added_loss: float


@dataclass(frozen=True)
class Attribution:
    """What the forward codecs add to the loss of one batch, the mean over ranks.

    Args:
        loss: the loss with all codecs on.
        exact_loss: the loss with all of them off.
        tables: effects of all tables whose forward codec is not exact, the largest magnitude first:
            on one batch the sign is often chance. Their sum is not `loss` minus `exact_loss`:
            codecs act together.
    """

    loss: float
    exact_loss: float
    tables: tuple[TableEffect, ...]

    def __str__(self) -> str:
        lines = [f"loss {self.loss:.6g}, with exact rows {self.exact_loss:.6g}; of this, by table:"]
        lines += [f"{effect.added_loss:+12.3e}  {effect.table}" for effect in self.tables]
        return "\n".join(lines)


def attribute_loss(session: "Session", loss_fn: LossFunction, batch: Any) -> Attribution:
    """Return what each table's forward codec adds to the loss; see QComm.attribute. Collective.

    Raises: ValueError: the model is not sharded yet, or no table has a codec that loses something.
    """
    tables = session.collectives.lossy_tables()
    if not tables:
        raise ValueError("attribute: no table is sharded yet, or all forward codecs are exact")
    losses = []
    with torch.no_grad(), leaving_no_trace(session) as same_randomness:
        for exact in (set[str](), set(session.tables), *({table} for table in tables)):
            with same_randomness(), session.collectives.exact_tables(exact):
                losses.append(float(loss_fn(batch)))
    on, off, *without = _mean_over_ranks(losses)
    effects = [TableEffect(t, on - loss) for t, loss in zip(tables, without, strict=True)]
    ordered = sorted(effects, key=lambda effect: -abs(effect.added_loss))
    return Attribution(loss=on, exact_loss=off, tables=tuple(ordered))


@contextmanager
def leaving_no_trace(session: "Session") -> Iterator[Callable[[], Any]]:
    """Restore counters at the end; yield a context in which random numbers are always the same."""
    objects: list[Any] = [*session.counters.values(), session.bags]
    saved = [deepcopy(counter.__dict__) for counter in objects]
    try:
        yield torch.random.fork_rng
    finally:
        for counter, attributes in zip(objects, saved, strict=True):
            counter.__dict__ |= attributes


def _mean_over_ranks(losses: list[float]) -> list[float]:
    everyone = dist.group.WORLD
    assert everyone is not None
    device = "cuda" if "nccl" in dist.get_backend(everyone) else "cpu"
    total = torch.tensor(losses, dtype=torch.float64, device=device)
    dist.all_reduce(total)
    means: list[float] = (total / dist.get_world_size()).tolist()
    return means
