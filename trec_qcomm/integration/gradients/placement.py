"""Find where gradients lie, and the process group over which they are reduced.

Knows: devices, process groups. Does not know: DDP, rules, algorithms.
"""

import os
from collections.abc import Iterable, Mapping
from itertools import groupby

import torch
import torch.distributed as dist
from torch import nn

from trec_qcomm.comm.dense.chunks import ParameterShape
from trec_qcomm.comm.peers import make_group
from trec_qcomm.comm.transport import DeviceTransport, Transport
from trec_qcomm.core.checks import DeferredChecks
from trec_qcomm.core.codec import Codec
from trec_qcomm.integration.agreement import check_equal


def device_of(names: Mapping[nn.Parameter, str]) -> torch.device:
    """Return the one device on which all parameters lie; the CPU if there are none.

    Args: names: each parameter's name, for errors.
    Raises: ValueError: a parameter that is not float32 on cpu or cuda, or parameters on several
        devices.
    """
    devices = {parameter.device: name for parameter, name in names.items()}
    for parameter, name in names.items():
        if parameter.dtype != torch.float32 or parameter.device.type not in ("cpu", "cuda"):
            raise ValueError(
                f"gradients of {name!r}: {parameter.dtype} on {parameter.device}; allowed: float32 "
                "on cpu or cuda; else leave dense and data_parallel out of the config"
            )
    if len(devices) > 1:
        places = ", ".join(f"{name!r} on {device}" for device, name in devices.items())
        raise ValueError(f"gradients of one DDP: on one device only, got {places}")
    return next(iter(devices), torch.device("cpu"))


# What launchers call the number of ranks of a node; as TorchRec reads it for two-level shardings.
_RANKS_OF_A_NODE = (
    "LOCAL_WORLD_SIZE", "MPI_LOCALNRANKS", "OMPI_COMM_WORLD_LOCAL_SIZE",
    "MV2_COMM_WORLD_LOCAL_SIZE",
)  # fmt: skip
_LARGEST_BLOCK = 8192  # on a GPU; with more, registers spill
_LAUNCH_ORDER = "NCCL_LAUNCH_ORDER_IMPLICIT"
_NODES_OF_A_POD = "TORCHREC_RESOLVED_POD_SIZE"  # nodes with fast links between them; TorchRec's


def ranks_per_node(pg: dist.ProcessGroup) -> int:
    """Return how many ranks of a group share each node, by the variables that launchers set.

    Adjacent ranks of the job share a node, as in TorchRec's two-level shardings.

    Raises: ValueError: no such variable, or nodes with unequal numbers of ranks of the job or
        group.
    """
    name = next((name for name in _RANKS_OF_A_NODE if name in os.environ), None)
    if name is None:
        raise ValueError(
            "algorithm: hierarchical: LOCAL_WORLD_SIZE, the number of ranks of a node, is not set; "
            "torchrun sets it"
        )
    text = os.environ[name], os.environ.get(_NODES_OF_A_POD, "1")
    size = int(text[0]) * int(text[1]) if all(part.isdecimal() for part in text) else 0
    world_size = dist.get_world_size()
    if size < 1 or world_size % size:
        pods = f" times {_NODES_OF_A_POD} {text[1]}" if _NODES_OF_A_POD in os.environ else ""
        raise ValueError(
            f"algorithm: hierarchical: {world_size} ranks are not nodes of {name} {text[0]}{pods} "
            "each; make nodes equal, or take another algorithm"
        )
    ranks = dist.get_process_group_ranks(pg)
    nodes = [(node, len(list(members))) for node, members in groupby(ranks, lambda r: r // size)]
    if len({node for node, _ in nodes}) < len(nodes) or len({count for _, count in nodes}) > 1:
        raise ValueError(
            f"algorithm: hierarchical: the group has ranks {ranks}, which are no equal parts of "
            f"nodes of {size} ranks"
        )
    return nodes[0][1]


def agreed_ranks_per_node(pg: dist.ProcessGroup, group: dist.ProcessGroup) -> int:
    """Return `ranks_per_node` of a group, or raise its ValueError on all ranks. Collective.

    If nodes differ in size, only some ranks may find an error, and all other ranks would wait for
    them.

    Args: group: the process group to compare over, of the same ranks.
    Raises: ValueError: an error of this rank, or ranks with other results.
    """
    error, size = None, 0
    try:
        size = ranks_per_node(pg)
    except ValueError as raised:
        error = raised
    told = {"ranks of a node": str(error or size)}
    check_equal(group, told, "algorithm: hierarchical: nodes of the group differ")
    if error is not None:
        raise error
    return size


def check_on_gpu(field: str, codec: Codec, backends: str) -> None:
    """Raise ValueError if gradients in a GPU's memory cannot be all-reduced with this codec.

    The host launches all rounds of an all-reduce at once, so it must know each message's size.

    Args: field: field of the rule that holds the codec.  backends: backends of the process group,
        such as "cpu:gloo,cuda:nccl".
    """
    if not codec.has_gpu_kernels or not codec.fixed_size:
        raise ValueError(
            f"{field}: {codec!r}: on cuda gradients are all-reduced only with codecs that have a "
            "fixed size and GPU kernels, such as cast, rowwise and float6"
        )
    backend = dict(pair.split(":") for pair in backends.split(",")).get("cuda")
    if backend != "nccl":  # gloo does not send from a GPU's memory
        raise ValueError(
            f"gradients on cuda: the process group has {backend} there, and the all-reduce needs "
            'nccl: init_process_group("cpu:gloo,cuda:nccl"), or dense, data_parallel: left out'
        )


def check_rows_on_gpu(shapes: Iterable[ParameterShape]) -> None:
    """Raise ValueError at a parameter with rows that are too long for a GPU's kernels."""
    for shape in shapes:
        if shape.numel >= shape.block > _LARGEST_BLOCK:
            raise ValueError(
                f"gradients of {shape.name!r}: on cuda a kernel holds a whole row (block), of at "
                f"most {_LARGEST_BLOCK} values, got {shape.block}"
            )


def check_launch_order(group: dist.ProcessGroup) -> None:
    """Raise ValueError on all ranks unless NCCL shall order what two groups launch. Collective."""
    order = os.environ.get(_LAUNCH_ORDER, "unset")
    check_equal(group, {_LAUNCH_ORDER: order}, "own_group: environments of ranks differ")
    if order != "1":
        raise ValueError(
            "own_group: with two groups of NCCL at once, ranks may wait for each other for ever; "
            f"set {_LAUNCH_ORDER}=1 on all ranks, or leave own_group out"
        )


def make_transport(
    pg: dist.ProcessGroup, device: torch.device, checks: DeferredChecks, *, own_group: bool = False
) -> Transport | DeviceTransport:
    """Return a transport of messages that lie in the memory of a device. Collective.

    A group of another class than torch's may have a method `make_transport`, which returns it.

    Args: checks: results of checks on a GPU, which the host reads later, for DeviceTransport.
        own_group: whether messages of a GPU have a new NCCL group of the same ranks.
    """
    if hasattr(pg, "make_transport"):
        own_transport: Transport = pg.make_transport()
        return own_transport
    if device.type == "cpu":
        return Transport(pg)
    return DeviceTransport(make_group(pg, "nccl") if own_group else pg, device, checks)
