"""A file a kind of picture: what its records say (plain numbers), then how that is drawn.

Knows: records and runs. A new kind is a file here, or in a folder of its own, and a line in KINDS.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from trec_qcomm.report.figure import Figure
from trec_qcomm.report.figures import (
    codecs,
    losses,
    simulation,
    step_time,
    tables,
    traffic,
)
from trec_qcomm.report.figures.quality import intervals, rate_distortion
from trec_qcomm.report.records import Record
from trec_qcomm.report.runs import Run
from trec_qcomm.report.style import Looks

Builder = Callable[[Sequence[Record], Sequence[Run], Looks], list[Figure]]


@dataclass(frozen=True)
class Kind:
    """Args: needs: what makes its records, said where there are none."""

    name: str
    needs: str
    build: Builder


KINDS = (
    Kind(
        "quality of each configuration",
        "a study (examples/criteo/accuracy.py)",
        lambda records, runs, looks: intervals.build(records),
    ),
    Kind(
        "quality against bytes",
        "a study (examples/criteo/accuracy.py) and runs of equal configs (make bench-net, or "
        "examples/criteo/train.py), or several such runs with a baseline, stock or fp32, beside",
        rate_distortion.build,
    ),
    Kind(
        "step time against link rate",
        "runs on networks (make bench-net)",
        lambda records, runs, looks: step_time.build(
            runs, looks, rate_distortion.kept(records, runs)
        ),
    ),
    Kind(
        "bytes by kind of traffic",
        "runs with the plugin (make bench-net, or examples/criteo/train.py)",
        lambda records, runs, looks: traffic.build(runs, rate_distortion.kept(records, runs)),
    ),
    Kind(
        "loss curves",
        "runs (make bench-net, or examples/criteo/train.py)",
        lambda records, runs, looks: losses.build(runs, looks),
    ),
    Kind(
        "bits, bounds and ratio by table",
        "final records of examples/criteo/train.py with the plugin",
        lambda records, runs, looks: tables.build(runs),
    ),
    Kind(
        "codec throughput",
        "codec records (make bench-codec)",
        lambda records, runs, looks: codecs.build(records),
    ),
    Kind(
        "predictions of the model",
        "simulation records (python -m trec_qcomm.simulate --out FILE)",
        lambda records, runs, looks: simulation.build(records, looks),
    ),
)
