"""Registry of codecs: name -> class (for YAML), wire id -> decoder (for frames).

The names and wire ids of this package's codecs are listed here. The module of such a codec is
imported when a config names it or a frame of it arrives; the import registers the codec. A codec of
another package is imported when a config names it, by an entry point in `trec_qcomm.codecs`.
"""

from importlib import import_module
from importlib.metadata import entry_points

from trec_qcomm.core.codec import Codec, adopt

_BY_NAME: dict[str, type[Codec]] = {}
_DECODERS: dict[int, Codec] = {}

# {module: names and wire ids of the codecs that it registers}
_MODULES: dict[str, tuple[tuple[str, ...], tuple[int, ...]]] = {
    "trec_qcomm.codecs.cast": (("identity", "cast"), (1, 2, 3)),
    "trec_qcomm.codecs.rowwise": (("rowwise",), (4, 5, 6)),
    "trec_qcomm.codecs.error_bounded": (("error_bounded",), (7,)),
    "trec_qcomm.codecs.minifloat": (("float6", "float8"), (12, 13, 24, 25)),
    "trec_qcomm.ext.dct.codecs": (("topk", "forward_mask", "threshold"), (8, 9, 10)),
    "trec_qcomm.ext.fbgemm.codec": (("fbgemm",), (14, 15, 16, 17, 18, 19, 20, 21)),
}
_MODULE_OF_NAME = {name: module for module, (names, _) in _MODULES.items() for name in names}
_GROUP = "trec_qcomm.codecs"  # of entry points
_MODULE_OF_WIRE_ID = {id_: module for module, (_, ids) in _MODULES.items() for id_ in ids}


def register_codec(codec_type: type[Codec], *decoders: Codec) -> None:
    """Make a codec known by its name, and each decoder by its wire id.

    Args: codec_type: the class.  decoders: an instance for each wire id that the class may write.
    Raises: ValueError: a name that is taken, or a wire id that is taken or out of range.
    """
    adopt(codec_type)
    name, module = codec_type.name, codec_type.__module__
    if name in _BY_NAME or _MODULE_OF_NAME.get(name, module) != module:
        raise ValueError(f"codec name {name!r} is taken; choose another one")
    for decoder in decoders:
        wire_id = decoder.wire_id
        is_taken = wire_id in _DECODERS or _MODULE_OF_WIRE_ID.get(wire_id, module) != module
        if not 1 <= wire_id <= 255 or is_taken:
            raise ValueError(f"{name}: wire id {wire_id} is taken or not 1..255; choose 240..255")
        _DECODERS[wire_id] = decoder
    _BY_NAME[name] = codec_type


def codec_names() -> list[str]:
    """Return the names of registered codecs, extensions' codecs and entry points, sorted."""
    return sorted({*_BY_NAME, *_MODULE_OF_NAME, *entry_points(group=_GROUP).names})


def codecs_of_16_bit_rows() -> list[str]:
    """Return the names of the codecs that take rows of float16 and bfloat16, sorted."""
    return sorted(name for name, kind in _BY_NAME.items() if kind.for_values != Codec.for_values)


def codec_type(name: str) -> type[Codec]:
    """Return the class of a codec by its name. Raises ValueError naming the allowed names."""
    if name not in _BY_NAME and name in _MODULE_OF_NAME:
        import_module(_MODULE_OF_NAME[name])
    if name not in _BY_NAME:
        for point in entry_points(group=_GROUP, name=name):
            point.load()
    if name not in _BY_NAME:
        raise ValueError(f"unknown codec {name!r}; allowed: {', '.join(codec_names())}")
    return _BY_NAME[name]


def decoder(wire_id: int) -> Codec | None:
    """Return the codec that decodes a wire id; None where no codec has it."""
    if wire_id not in _DECODERS and wire_id in _MODULE_OF_WIRE_ID:
        import_module(_MODULE_OF_WIRE_ID[wire_id])
    return _DECODERS.get(wire_id)
