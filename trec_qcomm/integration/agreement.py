"""Agreement of ranks: whether all have the same config, told by the key that differs.

Knows: process groups, texts by key. Does not know: TorchRec, what is compared.
"""

import json
from collections.abc import Mapping

import torch
import torch.distributed as dist

from trec_qcomm.config.differences import text_of_ranks


def check_equal(pg: dist.ProcessGroup, ours: Mapping[str, str], what: str) -> None:
    """Raise ValueError on all ranks if the texts of any two differ. Collective.

    Args: ours: this rank's {key: text}.  what: beginning of the message.
    """
    gathered = all_gather_bytes(pg, json.dumps(dict(ours)).encode())
    differing = text_of_ranks([json.loads(data) for data in gathered])
    if differing:
        raise ValueError(f"{what}:\n{differing}")


def all_gather_bytes(pg: dist.ProcessGroup, data: bytes) -> list[bytes]:
    """Return the bytes of every rank of the group. Collective; nothing is unpickled."""
    on_cpu = torch.device("cpu") in pg._device_types
    device = torch.device("cpu") if on_cpu else torch.device("cuda", torch.cuda.current_device())
    nbytes = torch.tensor([len(data)], device=device)
    sizes = [torch.empty_like(nbytes) for _ in range(pg.size())]
    dist.all_gather(sizes, nbytes, group=pg)
    room = max(int(size) for size in sizes)
    padded = torch.frombuffer(bytearray(data.ljust(room, b"\0") or b"\0"), dtype=torch.uint8)
    padded = padded.to(device)
    parts = [torch.empty_like(padded) for _ in sizes]
    dist.all_gather(parts, padded, group=pg)
    return [
        part[: int(size)].cpu().numpy().tobytes() for part, size in zip(parts, sizes, strict=True)
    ]
