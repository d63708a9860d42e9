"""SessionRegistry: carries the Session from sharders to shardings, through TorchRec's own code.

TorchRec hands its `qcomm_codecs_registry` from sharder to module to sharding, by constructors and
classmethods that we do not own. Ours is such a registry. It is empty, so that stock code sees no
codecs, and has the Session as an attribute.
"""

from collections.abc import Mapping
from typing import Any

import torch

from trec_qcomm.config import TableRule
from trec_qcomm.integration.compat import (
    ParameterSharding,
    QuantizedCommCodecs,
    ShardingEnv,
    get_use_sync_collectives,
)
from trec_qcomm.integration.embedding.output_dtype import asked_dtype
from trec_qcomm.integration.session import Session


class SessionRegistry(dict[str, QuantizedCommCodecs]):
    """Empty TorchRec codec registry that carries a Session to the shardings of one module.

    Args:
        module_name: key of the state of the module's collectives
        is_nested: whether the collection is inside a module that does more with its ids than look
            them up
    """

    def __init__(self, session: Session, module_name: str, *, is_nested: bool) -> None:
        super().__init__()
        self.session, self.module_name, self.is_nested = session, module_name, is_nested


def register_module(
    session: Session,
    params: Mapping[str, ParameterSharding],
    env: ShardingEnv,
    device: torch.device | None,
    module_fqn: str | None,
    fused_params: Mapping[str, Any] | None,
    *,
    is_nested: bool = False,
) -> SessionRegistry:
    """Check how a module is to be sharded and add it to the session. Collective over env's group.

    Args: module_fqn: the module's path; None inside towers, where its tables' names are used
    Raises: ValueError: a device or output dtype that is not supported, a codec without kernels
        for the device, synchronous collectives, a table that no pattern of the config matches, or
        ranks whose configs differ.
    """
    rows_dtype = asked_dtype(params, fused_params)
    refuse_sync_collectives()
    if env.process_group is None:
        raise ValueError("trec_qcomm needs a ShardingEnv with a process group")
    module_name = module_fqn or "+".join(sorted(params))
    session.add_module(env.process_group, module_name, params)
    if device is not None:
        rules = {table: session.config.rule_for(table) for table in params}
        _check_device(device, rules)
        for extension in session.extensions.values():
            extension.check_tables(params, torch.float32, device)
    if device is None or device.type == "cpu":
        session.warm_up_once(rows_dtype)
    return SessionRegistry(session, module_name, is_nested=is_nested)


def refuse_sync_collectives() -> None:
    """Raise ValueError where TorchRec's switch `use_sync_collectives` (for torch.compile) is on.

    With it TorchRec's own codecs silently stop the training of the embeddings.
    """
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
            if not codec.has_gpu_kernels:
                raise ValueError(f"device {device}: table {table!r}: no GPU kernels for {codec!r}")
