"""Probe: losses of a guard's batches on all ranks, with codecs on and off.

Knows: sessions, loss functions. Does not know: models, decisions, TorchRec.
Shapes: N probe batches of a rank, of P parts each, V variants of the codecs.
"""

import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from trec_qcomm.integration.session import Session
from trec_qcomm.lab.debug.inspection import LossFunction, leaving_no_trace, summing_device

_STEP_BITS = 20  # calls of one probe, at most: noise is keyed by the number of the call


class Probe:
    """Losses of fixed batches of this rank.

    Args:
        session: the QComm's session.
        loss_fn: function that takes a batch and returns this rank's loss, or one for each sample.
        batches: N batches of this rank.
        parts: P, number of parts into which the losses of a batch's samples are cut; with 1 there
            is one loss.
    """

    def __init__(
        self, session: Session, loss_fn: LossFunction, batches: Sequence[Any], parts: int
    ) -> None:
        self._session, self._loss_fn, self.batches, self.parts = session, loss_fn, batches, parts

    def on_and_off(self, step: int) -> Tensor:
        """Return [2, N P] float64, the losses with codecs and without. Exchanges rows."""
        return self._losses(step, [[], self._session.tables])

    def without(self, step: int, tables: Sequence[str]) -> Tensor:
        """Return [len(tables), N P] float64, each with one table's rows exact. Exchanges rows."""
        return self._losses(step, [[table] for table in tables])

    def _losses(self, step: int, variants: Sequence[Iterable[str]]) -> Tensor:
        """Return [V, N P] float64. Args: variants: V times the tables whose rows are exact."""
        losses = []
        collectives, seed = self._session.collectives, self._session.config.seed + step
        with torch.no_grad(), leaving_no_trace(self._session):
            for tables in variants:
                exact = collectives.exact_tables(tables, evaluation=step << _STEP_BITS)
                with _random_numbers_of(seed), exact:
                    losses += [_means(self._loss_fn(batch), self.parts) for batch in self.batches]
        device = summing_device()
        return torch.cat([loss.to(device) for loss in losses]).view(len(variants), -1)


def gathered(losses: Tensor, sums: Tensor, agreed: str) -> tuple[Tensor, Tensor]:
    """Return the losses of all ranks, and sums over all ranks. One collective.

    Args:
        losses: [V, N] float64, of this rank.
        sums: float64, of this rank, of any shape.
        agreed: text that must be equal on all ranks.
    Returns: [V, R N] and the shape of `sums`, float64 on the CPU, for R ranks.
    Raises: ValueError: on all ranks, if the texts of two ranks differ.
    """
    check = losses.new_tensor([zlib.crc32(agreed.encode())])
    ours = torch.cat([check, losses.flatten(), sums.flatten().to(losses.device)])
    by_rank = [torch.empty_like(ours) for _ in range(dist.get_world_size())]
    dist.all_gather(by_rank, ours)
    sizes = [1, losses.numel(), sums.numel()]
    checks, all_losses, all_sums = torch.split(torch.stack(by_rank).cpu(), sizes, 1)
    if not bool((checks == checks[0]).all()):
        raise ValueError(f"guard: ranks are not in step, or have other codecs; this one: {agreed}")
    all_losses = all_losses.view(-1, *losses.shape).transpose(0, 1).flatten(1)
    return all_losses, all_sums.sum(0).view(sums.shape)


def _means(loss: Tensor | float, parts: int) -> Tensor:
    """Return the mean loss of each part of a batch, [parts] float64.

    Raises: ValueError: not one number for one part, or not as many as there are parts, or more.
    """
    losses = torch.as_tensor(loss, dtype=torch.float64).detach()
    if parts == 1 and losses.numel() != 1:
        raise ValueError(f"guard: loss_fn: returned {list(losses.shape)}, expected one number")
    if losses.numel() < parts:
        raise ValueError(
            f"guard: loss_fn: returned {list(losses.shape)}, expected the loss of each sample, "
            f"{parts} or more (parts: {parts})"
        )
    return torch.stack([part.mean() for part in losses.flatten().tensor_split(parts)])


@contextmanager
def _random_numbers_of(seed: int) -> Iterator[None]:
    """Draw torch's random numbers from a seed inside the block, and go on as before after it."""
    is_gpu = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    devices = [torch.cuda.current_device()] if is_gpu else []
    with torch.random.fork_rng(devices):
        torch.manual_seed((seed + dist.get_rank()) % 2**63)
        yield
