"""A whole training on this rank, from its batches to the metrics of the test.

Knows: a Trainer, options of train.py, the report. Does not know: how the model is built.
"""

from __future__ import annotations

import argparse

from data.dataset import Batches
from data.reader import BatchReader
from report.metrics import score
from report.run import Report
from trainer import Trainer

from loop.signals import StopRequest


def train(
    trainer: Trainer, batches: Batches, num_steps: int, options: argparse.Namespace, report: Report
) -> bool:
    """Train up to step `num_steps`; False if a signal stopped it, after the step's checkpoint.

    Signals are heeded only where there is a checkpoint directory: the ranks then agree after each
    step, by 4 bytes, whether one of them was told to stop.
    """
    stop = StopRequest() if options.checkpoint_dir else None
    stopped, pin = False, trainer.device.type == "cuda"
    with BatchReader(batches, trainer.step, num_steps, pin=pin) as feed:
        while trainer.step < num_steps:
            trainer.train_next(feed)
            report.add_step(trainer)
            stopped = stop is not None and stop.agreed()
            due = options.checkpoint_every and trainer.step % options.checkpoint_every == 0
            if options.checkpoint_dir and (stopped or due or trainer.step == num_steps):
                trainer.save(options.checkpoint_dir)
            if stopped:
                break
    trainer.finish_saving()
    return not stopped


def evaluate(
    trainer: Trainer, tests: Batches, options: argparse.Namespace
) -> dict[str, dict[str, float]]:
    """Return metrics by mode, the codec "on" or "off"; TorchRec alone has "off". Collective."""
    modes = ("on", "off") if options.eval_codec == "both" else (options.eval_codec,)
    if trainer.qcomm is None:
        modes = ("off",)
    return {mode: score(*trainer.predict(tests, exact=mode == "off")) for mode in modes}
