"""trec_qcomm: compressed communication for TorchRec.

import trec_qcomm

qcomm = trec_qcomm.QComm.from_yaml("configs/int4.yaml")
model = DistributedModelParallel(
    module=dlrm, device=device, plan=plan,
    sharders=qcomm.sharders(),
    data_parallel_wrapper=qcomm.data_parallel_wrapper(),
)
"""

from trec_qcomm.codecs import (
    Cast,
    ErrorBounded,
    Float6,
    ForwardMask,
    Identity,
    Rowwise,
    Sign,
    Threshold,
    TopK,
)
from trec_qcomm.config import (
    Config,
    GradientRule,
    HopCodecs,
    TableGradientRule,
    TableRule,
    load_config,
)
from trec_qcomm.control.cost_model import Throughput
from trec_qcomm.core.codec import Codec, Contract
from trec_qcomm.core.errors import CorruptFrameError, UnencodableError
from trec_qcomm.core.registry import register_codec
from trec_qcomm.core.segments import Encoded, Segments
from trec_qcomm.integration.gradients.all_reduce import ddp_comm_hook
from trec_qcomm.qcomm import QComm

__all__ = [
    "Cast",
    "Codec",
    "Config",
    "Contract",
    "CorruptFrameError",
    "Encoded",
    "ErrorBounded",
    "Float6",
    "ForwardMask",
    "GradientRule",
    "HopCodecs",
    "Identity",
    "QComm",
    "Rowwise",
    "Segments",
    "Sign",
    "TableGradientRule",
    "TableRule",
    "Threshold",
    "Throughput",
    "TopK",
    "UnencodableError",
    "ddp_comm_hook",
    "load_config",
    "register_codec",
]
