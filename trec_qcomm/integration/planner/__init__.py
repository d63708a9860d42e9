"""TorchRec's planner with our prices: estimator.py, and what rows say of them, measured.py."""

from trec_qcomm.integration.planner.estimator import CodecPerfEstimator, Throughputs

__all__ = ["CodecPerfEstimator", "Throughputs"]
