"""Write the golden frames of the current wire version: `python -m tests.golden.make`.

Run it once when a codec or a version is added, and never change a file that has been released.
"""

import json
from pathlib import Path
from typing import get_args

import torch

from trec_qcomm.codecs import Cast, ErrorBounded, Float6, Float8, Identity, Rowwise
from trec_qcomm.core.codec import Codec
from trec_qcomm.ext.dct import Threshold, TopK
from trec_qcomm.ext.fbgemm import is_installed
from trec_qcomm.ext.fbgemm.codec import Fbgemm, Precision
from trec_qcomm.ops.batch.packed_ids import Bags
from trec_qcomm.testing import frame_of, open_frame
from trec_qcomm.wire import frame
from trec_qcomm.wire.id_messages import pack

CODECS = {
    "identity": Identity(),
    "cast_fp16": Cast("fp16"),
    "cast_bf16": Cast("bf16"),
    "rowwise_2": Rowwise(2),
    "rowwise_4": Rowwise(4),
    "rowwise_8": Rowwise(8),
    "error_bounded_rel": ErrorBounded(0.01),
    "error_bounded_abs": ErrorBounded(1e-4, mode="abs"),
    "error_bounded_vector_lz": ErrorBounded(0.05, encoder="vector_lz"),
    "error_bounded_rans": ErrorBounded(0.05, encoder="rans"),
    "topk_density": TopK(density=0.4, values="fp16"),
    "topk_threshold": TopK(threshold=1.5, values="int8"),
    "threshold": Threshold(1.5, values="int8"),
    "float6_e4m1": Float6("e4m1"),
    "float6_e3m2": Float6("e3m2"),
    "float8_e4m3": Float8("e4m3"),
    "float8_e5m2": Float8("e5m2"),
}
if is_installed():
    CODECS |= {f"fbgemm_{precision}": Fbgemm(precision) for precision in get_args(Precision)}
NUM_ROWS = [3, 0, 2]
# Features of one message of ids: lengths of 6 bags, and ids of every kind.
ID_MESSAGE = [
    ([1] * 6, [3, 4, 6, 7, 8, 40]),  # steps with high parts
    ([0, 0, 0, 1, 1, 1], [-5, -5, 100]),  # gaps
    ([1, 1, 1, 1, 0, 1], [0, 1, 2, 3, 4]),  # steps of 0 bits
    ([2, 0, 1, 0, 0, 1], [7, 2, 9, 4]),  # offsets, packed lengths
    ([0] * 6, []),
    ([1] * 6, [-(2**63), 2**63 - 1, 0, -1, 1, 2**40]),  # offsets of 64 bits
]


def rows(codec: Codec) -> torch.Tensor:
    """Return [5, 7] float32: plain, tiny and constant rows, and one with NaN and infinities.

    For fbgemm [5, 8] and finite: it takes dims by 8, and what NaN becomes depends on the processor.
    """
    if isinstance(codec, Fbgemm):
        data = torch.arange(40).view(5, 8) * 0.37 - 4
        data[1] *= 1e-6
        data[2] = 0.1
        return data
    data = torch.arange(35).view(5, 7) * 0.37 - 4
    data[1] *= 1e-6
    data[2] = 0.1
    data[4, 1:4] = torch.tensor([torch.nan, torch.inf, -torch.inf])
    return data


def id_bags() -> Bags:
    """Return the bags of ID_MESSAGE."""
    lengths, ids = ([n for part in parts for n in part] for parts in zip(*ID_MESSAGE, strict=True))
    return Bags(torch.tensor(ids), torch.tensor(lengths), torch.full((len(ID_MESSAGE),), 6))


def id_message(*, states_bags: bool) -> torch.Tensor:
    """Return the bytes of ID_MESSAGE to one peer."""
    return pack(id_bags(), [len(ID_MESSAGE)], even_bags=None if states_bags else 6).buffer


def as_hex(data: torch.Tensor) -> str:
    """Return the bytes of a tensor in hexadecimal."""
    return bytes(data.contiguous().view(-1).view(torch.uint8).tolist()).hex()


def main() -> None:
    """Write one JSON file for each codec that has none, and one of messages of ids."""
    folder = Path(__file__).parent / f"v{frame.VERSION}"
    folder.mkdir(exist_ok=True)
    for name, codec in CODECS.items():
        path = folder / f"{name}.json"
        if path.exists():
            continue
        data, segments = frame_of(codec, rows(codec), NUM_ROWS)
        decoded = as_hex(open_frame(codec, data, segments))
        golden = {"num_rows": NUM_ROWS, "dim": segments.dim, "frame": as_hex(data), "rows": decoded}
        path.write_text(json.dumps(golden, indent=1) + "\n")
    path = folder / "ids_packed.json"
    if not path.exists():
        messages = {
            name: as_hex(id_message(states_bags=states_bags))
            for name, states_bags in (("even", False), ("stated", True))
        }
        path.write_text(json.dumps({"features": ID_MESSAGE} | messages) + "\n")


if __name__ == "__main__":
    main()
