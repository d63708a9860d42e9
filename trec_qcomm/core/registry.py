"""Registry of codecs: name -> class (for YAML), wire id -> decoder (for frames)."""

from typing import TypeVar

from trec_qcomm.core.codec import Codec

_BY_NAME: dict[str, type[Codec]] = {}
_DECODERS: dict[int, Codec] = {}
CodecType = TypeVar("CodecType", bound=type[Codec])


def register_codec(codec_type: CodecType, *decoders: Codec) -> CodecType:
    """Make a codec known by its name, and each decoder by its wire id.

    Args: codec_type: the class.  decoders: an instance for each wire id that the class may write.
    Raises: ValueError: a name or a wire id that is taken or out of range.
    """
    if codec_type.name in _BY_NAME:
        raise ValueError(f"codec name {codec_type.name!r} is taken")
    for decoder in decoders:
        if not 1 <= decoder.wire_id <= 255 or decoder.wire_id in _DECODERS:
            raise ValueError(f"wire id {decoder.wire_id} of {decoder} is taken or not 1..255")
        _DECODERS[decoder.wire_id] = decoder
    _BY_NAME[codec_type.name] = codec_type
    return codec_type


def codec_names() -> list[str]:
    """Return the registered names, sorted."""
    return sorted(_BY_NAME)


def codecs_of_16_bit_rows() -> list[str]:
    """Return the names of the codecs that take rows of float16 and bfloat16, sorted."""
    return sorted(name for name, kind in _BY_NAME.items() if hasattr(kind, "for_values"))


def codec_type(name: str) -> type[Codec]:
    """Return the class of that name. Raises ValueError naming the allowed names."""
    if name not in _BY_NAME:
        raise ValueError(f"unknown codec {name!r}; allowed: {', '.join(codec_names())}")
    return _BY_NAME[name]


def decoder(wire_id: int) -> Codec | None:
    """Return the codec that decodes that wire id; None where no codec has it."""
    return _DECODERS.get(wire_id)
