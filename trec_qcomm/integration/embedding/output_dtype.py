"""Dtype of the rows that the lookups of a sharding give (FBGEMM's `output_dtype`).

We send rows and their gradients in the dtype in which FBGEMM gives rows, as TorchRec does. On a
CPU, dense lookups of FBGEMM 1.8 give float32 whatever is asked for, and fused lookups cannot give
bfloat16.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from trec_qcomm.integration.compat import GroupedEmbeddingConfig, ShardingOption

_DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}


def rows_dtype(
    groups_per_rank: Sequence[Sequence[GroupedEmbeddingConfig]], device: torch.device | None
) -> torch.dtype:
    """Return the dtype of the rows of a sharding.

    Args:
        groups_per_rank: tables of each rank, grouped by lookup kernel
        device: where the lookups are; None: the CPU
    Raises: ValueError: lookups of several dtypes, or a dtype for which the device has no kernels.
    """
    on_cpu = device is None or device.type == "cpu"
    tables: dict[torch.dtype, str] = {}
    for group in (group for groups in groups_per_rank for group in groups):
        name = group.embedding_tables[0].name
        asked = (group.fused_params or {}).get("output_dtype")
        dtype = _dtype_named(asked, f"table {name!r}")
        if on_cpu and group.compute_kernel.value == "dense":
            dtype = torch.float32
        if on_cpu and dtype == torch.bfloat16:
            raise ValueError(
                f"table {name!r}: output_dtype {asked}: FBGEMM's lookups for CPU do not give it; "
                "allowed on a CPU: fp32, fp16"
            )
        tables.setdefault(dtype, name)
    if len(tables) > 1:
        (one, table), (other, another) = list(tables.items())[:2]
        raise ValueError(
            f"output_dtype: rows of table {table!r} are {one} and those of {another!r} {other}; "
            "tables of one sharding type and module must have the same"
        )
    return next(iter(tables), torch.float32)


def planned_dtype(
    option: ShardingOption, fused_params: Mapping[str, Any] | None, compute_device: str
) -> torch.dtype:
    """Return the dtype of the rows that a planner's option would send.

    Args: fused_params: options of the table's sharder.  compute_device: device of the topology.
    Raises: ValueError: rows that are not floats of 32 or 16 bits.
    """
    if compute_device == "cpu" and option.compute_kernel == "dense":
        return torch.float32
    asked = option.output_dtype or (fused_params or {}).get("output_dtype")
    return _dtype_named(asked, f"table {option.name!r}")


def _dtype_named(dtype: Any, where: str) -> torch.dtype:
    """Return the dtype of FBGEMM's or TorchRec's name for it; float32 where none is given."""
    if dtype is None:
        return torch.float32
    name = str(getattr(dtype, "value", dtype)).lower()
    names = _DTYPES | {str(known): known for known in _DTYPES.values()}
    if name not in names:
        allowed = ", ".join(_DTYPES)
        raise ValueError(f"{where}: output_dtype {dtype} is not supported; allowed: {allowed}")
    return names[name]
