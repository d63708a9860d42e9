"""trec_qcomm: compressed communication for TorchRec.

    import trec_qcomm

    qcomm = trec_qcomm.QComm.from_preset("best")
    model = DistributedModelParallel(
        module=dlrm, device=device, plan=plan,
        **qcomm.dmp_arguments(),
    )

For a DDP outside TorchRec: `trec_qcomm.compress_ddp(ddp, "dense_float6")`. Only QComm needs
TorchRec and FBGEMM; it is imported when it is first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from trec_qcomm.codecs import (
    Cast,
    ErrorBounded,
    Float6,
    Identity,
    Rowwise,
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
from trec_qcomm.core.codec import Codec, Contract
from trec_qcomm.core.errors import CorruptFrameError, GuardError, LostPeerError, UnencodableError
from trec_qcomm.core.registry import register_codec
from trec_qcomm.core.segments import Encoded, Segments
from trec_qcomm.core.version import __version__
from trec_qcomm.integration.gradients.compress_ddp import CompressedDDP, compress_ddp

if TYPE_CHECKING:
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
    "GuardError",
    "HopCodecs",
    "Identity",
    "LostPeerError",
    "QComm",
    "Rowwise",
    "Segments",
    "TableGradientRule",
    "TableRule",
    "Threshold",
    "Throughput",
    "TopK",
    "UnencodableError",
    "__version__",
    "compress_ddp",
    "emulate",
    "load_config",
    "load_preset",
    "played_ranks",
    "presets",
    "register_codec",
    "sparsified_nbytes",
    "sparsify_activation",
]


_WHEN_USED = {
    **dict.fromkeys(
        ("ForwardMask", "Threshold", "TopK", "sparsified_nbytes", "sparsify_activation"),
        "trec_qcomm.ext.dct",
    ),
    "Fbgemm": "trec_qcomm.ext.fbgemm.codec",
    "QComm": "trec_qcomm.qcomm",
    "Throughput": "trec_qcomm.ext.planner.cost_model",
    "emulate": "trec_qcomm.lab.ranks.model",
    "played_ranks": "trec_qcomm.lab.ranks.model",
    "search": "trec_qcomm.lab.search",
}


def __getattr__(name: str) -> Any:
    """Import a name or a module of the package when it is first used.

    Raises: ImportError: TorchRec, FBGEMM or what they need is not installed.
    """
    if name == "quality":  # trec_qcomm.quality.study needs no import before
        return import_module("trec_qcomm.lab.study")
    if name not in _WHEN_USED:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        value = getattr(import_module(_WHEN_USED[name]), name)
    except ModuleNotFoundError as error:
        raise ImportError(
            f"QComm shards modules of TorchRec, but: {error}. Install torchrec, and fbgemm-gpu (on "
            "a machine without CUDA fbgemm-gpu-cpu), of the versions that belong to this torch. "
            "Codecs, configs and compress_ddp work without.",
            name=error.name,
        ) from error
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
