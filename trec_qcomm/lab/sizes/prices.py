"""Method of a QComm that makes an estimator for TorchRec's planner (qcomm.TOOLS).

Knows: the estimator, files of measurements. Does not know: prices.
"""

from trec_qcomm.ext.planner.estimator import CodecPerfEstimator, Throughputs
from trec_qcomm.integration.compat import ParameterConstraints, Topology
from trec_qcomm.lab.sizes.measured import Measured, load_measured
from trec_qcomm.qcomm import QComm


def estimator(
    qcomm: QComm,
    topology: Topology,
    constraints: dict[str, ParameterConstraints] | None = None,
    *,
    throughput: Throughputs | None = None,
    measured: Measured | None = None,
    pipeline: bool = False,
) -> CodecPerfEstimator:
    """Return an estimator for TorchRec's planner that knows the codecs' bytes and seconds.

        EmbeddingEnumerator(topology, batch_size, constraints, estimator=[
            qcomm.estimator(topology, constraints, throughput=...),
            EmbeddingStorageEstimator(topology, constraints),
        ])

    Without `measured`, a codec whose size depends on the data is priced at its upper bound, and
    merged bags (`unique_bags`) save nothing.

    Args:
        topology: the enumerator's topology.
        constraints: the enumerator's constraints.
        throughput: speed of coding on the planned devices, in GB/s of float32 rows: one Throughput,
            or a mapping from codecs, or names of codecs, to one. Without it the codecs are measured
            on this machine's CPU when first needed. That is right if training runs on machines like
            this one. For a plan for GPUs, made on a laptop, give their figures.
        measured: measurements of the tables: a file of `capture_rows` (.pt), records that `python
            -m trec_qcomm sizes` made of it, or their file. Expected bytes, distinct bags, ids and
            fewer lookups are then priced.
        pipeline: whether ids travel beside the rest of a step (TrainPipelineSparseDist), so that
            they cost nothing; only with `measured`.

    Raises: ValueError: no throughput for a topology that is not of cpu; measurements without a
        table or codec, or for another batch size.
    """
    if pipeline and measured is None:
        raise ValueError("pipeline: only with measured; without, ids have no price")
    tables = None if measured is None else load_measured(measured, qcomm.config)
    return CodecPerfEstimator(
        qcomm.config,
        topology,
        constraints,
        throughput=throughput,
        measured=tables,
        pipeline=pipeline,
    )
