"""How a Session reaches TorchRec's shardings, and what is checked before one is made.

TorchRec hands its `qcomm_codecs_registry` from sharder to module to sharding through constructors
and classmethods that we do not own. Ours rides along: `Wiring`, an empty registry, so stock code
sees no codecs, that carries the Session.
"""

from collections.abc import Mapping
from typing import Any

import torch

from trec_qcomm.config import TableRule
from trec_qcomm.core.codec import has_gpu_kernels
from trec_qcomm.integration.compat import (
    ParameterSharding,
    QuantizedCommCodecs,
    ShardingEnv,
    get_use_sync_collectives,
)
from trec_qcomm.integration.session import Session


class Wiring(dict[str, QuantizedCommCodecs]):
    """An empty TorchRec codec registry that carries a Session to the shardings of one module.

    Args: module_name: keys the state of the module's collectives.  held: the collection is inside
        of a module that does more with its ids than look them up.
    """

    def __init__(self, session: Session, module_name: str, held: bool) -> None:
        super().__init__()
        self.session, self.module_name, self.held = session, module_name, held


def wire(
    session: Session,
    params: Mapping[str, ParameterSharding],
    env: ShardingEnv,
    device: torch.device | None,
    module_fqn: str | None,
    fused_params: Mapping[str, Any] | None,
    held: bool = False,
) -> Wiring:
    """Check what a module is to be sharded by, and make its Wiring. Collective over env's group.

    Where TorchRec does not tell the module's name (inside of towers), its tables name it.
    Raises: ValueError: a device or output dtype that is not supported, a codec without kernels
        for the device, synchronous collectives, a table that no pattern of the config matches, or
        ranks whose configs differ.
    """
    _check_output_dtype(params, fused_params)
    refuse_sync_collectives()
    if env.process_group is None:
        raise ValueError("trec_qcomm needs a ShardingEnv with a process group")
    module_name = module_fqn or "+".join(sorted(params))
    session.add_module(env.process_group, module_name, params)
    if device is not None:
        _check_device(device, {table: session.config.rule_for(table) for table in params})
    return Wiring(session, module_name, held)


def refuse_sync_collectives() -> None:
    """Raise ValueError where torchrec's switch for torch.compile's collectives is on: stock
    codecs under it freeze the embeddings without a word."""
    if get_use_sync_collectives():
        raise ValueError("torchrec's use_sync_collectives is not supported by trec_qcomm")


def _check_device(device: torch.device, rules: Mapping[str, TableRule]) -> None:
    if device.type in ("cpu", "meta"):
        return
    if device.type != "cuda":
        raise ValueError(f"device {device}: trec_qcomm has kernels for cpu and cuda")
    for table, rule in rules.items():
        codecs = (rule.forward, rule.backward, rule.intra.forward, rule.intra.backward)
        for codec in codecs:
            if not has_gpu_kernels(codec):
                raise ValueError(f"device {device}: table {table!r}: no GPU kernels for {codec!r}")


def _check_output_dtype(
    params: Mapping[str, ParameterSharding], fused_params: Mapping[str, Any] | None
) -> None:
    """Codecs take float32 rows."""
    options: list[tuple[str, Any]] = [("fused_params", (fused_params or {}).get("output_dtype"))]
    options += [(f"table {t!r}", getattr(p, "output_dtype", None)) for t, p in params.items()]
    for where, dtype in options:
        name = str(getattr(dtype, "value", dtype)).lower()
        if dtype is not None and name not in ("fp32", "torch.float32"):
            raise ValueError(f"{where}: output_dtype {dtype} is not supported; allowed: fp32")
