"""The example's training step: the host launches it and does not wait for its loss."""

from types import SimpleNamespace
from unittest import mock

import pytest
import torch
from trainer import Trainer

from tests.ops.fake_gpu import HostReads

LOSSES = [0.5, 0.25, 0.125]


def trainer_on(device, losses):
    optimizer = mock.Mock()
    steps = iter(losses)

    def dmp(_batch):
        loss = next(steps)
        return loss, (loss.detach(),)

    return Trainer(dmp, optimizer, torch.device(device))


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_losses_are_read_when_somebody_asks(device):
    batches = [SimpleNamespace(to=lambda device: None)]
    losses = torch.tensor(LOSSES, requires_grad=True)
    with HostReads(losses) as reads:
        trainer = trainer_on(device, losses.unbind())
        for _ in LOSSES:
            trainer.train_step(batches)
    assert len(reads.calls) == 0
    assert trainer.losses == LOSSES
    assert trainer.step == len(trainer.step_s) == len(LOSSES)
    assert min(trainer.step_s) > 0
