"""trec_qcomm: compressed communication for TorchRec.

    import trec_qcomm

    qcomm = trec_qcomm.QComm.from_preset("best")
    model = DistributedModelParallel(
        module=dlrm, device=device, plan=plan,
        **qcomm.dmp_arguments(),
    )

A DDP outside TorchRec: `trec_qcomm.compress_ddp(ddp, "dense_float6")`.
"""

from trec_qcomm.codecs import (
    Cast,
    ErrorBounded,
    Fbgemm,
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
    load_preset,
    presets,
)
from trec_qcomm.control.cost_model import Throughput
from trec_qcomm.core.codec import Codec, Contract
from trec_qcomm.core.errors import CorruptFrameError, LostPeerError, UnencodableError
from trec_qcomm.core.registry import register_codec
from trec_qcomm.core.segments import Encoded, Segments
from trec_qcomm.core.version import __version__
from trec_qcomm.integration.gradients.compress_ddp import CompressedDDP, compress_ddp
from trec_qcomm.qcomm import QComm

__all__ = [
    "Cast",
    "Codec",
    "CompressedDDP",
    "Config",
    "Contract",
    "CorruptFrameError",
    "Encoded",
    "ErrorBounded",
    "Fbgemm",
    "Float6",
    "ForwardMask",
    "GradientRule",
    "HopCodecs",
    "Identity",
    "LostPeerError",
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
    "__version__",
    "compress_ddp",
    "load_config",
    "load_preset",
    "presets",
    "register_codec",
]
