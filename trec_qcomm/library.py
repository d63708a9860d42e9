"""Codecs as operators of torch, `torch.ops.trec_qcomm.encode` and `decode`. Import it to have them.

A graph of torch.compile or torch.export holds each operator as one node. The plain methods of a
codec would break the graph. The operators are for models that code rows by themselves; the
collectives call codecs directly, on memory that is there already. They are not differentiable.

A codec is named as in a config, by a mapping in YAML or JSON: "{codec: rowwise, bits: 4}".
Shapes: N rows of D values, W bytes.
"""

from functools import cache

import torch
from torch import Tensor

from trec_qcomm.config.files import codec_from_dict, parse_yaml
from trec_qcomm.core.codec import Codec, encode_alone
from trec_qcomm.core.segments import Encoded, Segments, int64_tensor


@cache
def _codec(text: str) -> Codec:
    return codec_from_dict(parse_yaml(text, name="codec"))


@torch.library.custom_op("trec_qcomm::encode", mutates_args=())
def encode(rows: Tensor, codec: str, seed: int = 0) -> Tensor:
    """Encode rows: return [W] uint8, the bytes of one segment that holds all rows.

    Args: rows: [N, D], of a dtype that the codec takes.  seed: seed of stochastic rounding.
    Raises: ValueError: an unknown codec, or rows that the codec does not take.
    """
    chosen = _codec(codec).for_values(rows.dtype)
    chosen.check_dim(rows.shape[1])
    segments = Segments.packed([rows.shape[0]], rows.shape[1])
    encoded = encode_alone(chosen, rows.contiguous(), segments, seed=seed)
    return encoded.payload[: int(encoded.nbytes)]


@torch.library.custom_op("trec_qcomm::decode", mutates_args=())
def decode(payload: Tensor, num_rows: int, dim: int, codec: str) -> Tensor:
    """Decode what `encode` wrote: return the rows, [N, D] float32.

    Args: payload: [W] uint8.  num_rows: N.  dim: D.
    Raises: ValueError: an unknown codec.  CorruptFrameError: bytes that the codec does not write.
    """
    rows = payload.new_empty(num_rows, dim, dtype=torch.float32)
    encoded = Encoded(payload.contiguous(), int64_tensor([0]), int64_tensor([len(payload)]))
    _codec(codec).decode(encoded, Segments.packed([num_rows], dim), rows)
    return rows


@encode.register_fake
def _(rows: Tensor, codec: str, seed: int = 0) -> Tensor:
    num_words = torch.library.get_ctx().new_dynamic_size()
    return rows.new_empty(8 * num_words, dtype=torch.uint8)


@decode.register_fake
def _(payload: Tensor, num_rows: int, dim: int, codec: str) -> Tensor:
    return payload.new_empty(num_rows, dim, dtype=torch.float32)
