"""trec_qcomm: compressed communication for TorchRec.

    import trec_qcomm

    qcomm = trec_qcomm.QComm.from_preset("best")
    model = DistributedModelParallel(
        module=dlrm, device=device, plan=plan,
        **qcomm.dmp_arguments(),
    )

For a DDP outside TorchRec: `trec_qcomm.compress_ddp(ddp, "dense_float6")`. Each name is imported
when it is first used: only QComm needs TorchRec and FBGEMM, and `read_delta` needs numpy alone.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from trec_qcomm.core.version import __version__ as __version__

if TYPE_CHECKING:
    from trec_qcomm.codecs import Cast as Cast
    from trec_qcomm.codecs import ErrorBounded as ErrorBounded
    from trec_qcomm.codecs import Float6 as Float6
    from trec_qcomm.codecs import Float8 as Float8
    from trec_qcomm.codecs import Identity as Identity
    from trec_qcomm.codecs import Rowwise as Rowwise
    from trec_qcomm.config import Config as Config
    from trec_qcomm.config import GradientRule as GradientRule
    from trec_qcomm.config import HopCodecs as HopCodecs
    from trec_qcomm.config import TableGradientRule as TableGradientRule
    from trec_qcomm.config import TableRule as TableRule
    from trec_qcomm.config import load_config as load_config
    from trec_qcomm.config import load_preset as load_preset
    from trec_qcomm.config import presets as presets
    from trec_qcomm.core.codec import Codec as Codec
    from trec_qcomm.core.codec import Contract as Contract
    from trec_qcomm.core.errors import CorruptFrameError as CorruptFrameError
    from trec_qcomm.core.errors import GuardError as GuardError
    from trec_qcomm.core.errors import LostPeerError as LostPeerError
    from trec_qcomm.core.errors import UnencodableError as UnencodableError
    from trec_qcomm.core.registry import register_codec as register_codec
    from trec_qcomm.core.segments import Encoded as Encoded
    from trec_qcomm.core.segments import Segments as Segments
    from trec_qcomm.ext.delta import DeltaExport as DeltaExport
    from trec_qcomm.integration.gradients.compress_ddp import CompressedDDP as CompressedDDP
    from trec_qcomm.integration.gradients.compress_ddp import compress_ddp as compress_ddp
    from trec_qcomm.qcomm import QComm as QComm
    from trec_qcomm.wire.row_files import read_delta as read_delta

_HOMES = {
    "codecs": "Cast ErrorBounded Float6 Float8 Identity Rowwise",
    "config": "Config GradientRule HopCodecs TableGradientRule TableRule",
    "config.files": "load_config load_preset presets",
    "core.codec": "Codec Contract",
    "core.errors": "CorruptFrameError GuardError LostPeerError UnencodableError",
    "core.registry": "register_codec",
    "core.segments": "Encoded Segments",
    "ext.dct": "ForwardMask Threshold TopK sparsified_nbytes sparsify_activation",
    "ext.delta": "DeltaExport",
    "wire.row_files": "read_delta",
    "ext.fbgemm.codec": "Fbgemm",
    "ext.planner.cost_model": "Throughput",
    "integration.gradients.compress_ddp": "CompressedDDP compress_ddp",
    "lab.ranks.model": "emulate played_ranks",
    "lab.search": "search",
    "qcomm": "QComm",
}
"""Names of the package by the module that has them."""
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names.split()}
_PACKAGES = ("codecs", "comm", "config", "core", "integration", "jit", "lab", "ops", "wire")
__all__ = ["__version__", *_HOME_OF]


def __getattr__(name: str) -> Any:
    """Import a name or a module of the package when it is first used.

    Raises: ImportError: TorchRec, FBGEMM or what they need is not installed.
    """
    if name in _PACKAGES:
        return import_module(f"trec_qcomm.{name}")
    if name == "quality":  # trec_qcomm.quality.study needs no import before
        return import_module("trec_qcomm.lab.study")
    if name not in _HOME_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        value = getattr(import_module(f"trec_qcomm.{_HOME_OF[name]}"), name)
    except ModuleNotFoundError as error:
        raise ImportError(
            f"trec_qcomm.{name}: {error}. QComm needs torchrec, and fbgemm-gpu (without CUDA "
            "fbgemm-gpu-cpu), of the versions that belong to this torch; codecs, configs and "
            "compress_ddp need torch, and read_delta numpy.",
            name=error.name,
        ) from error
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME_OF})
