"""Codecs that a preview tries, by name, for rows and for gradients.

Gradients are rounded stochastically, as in the shipped configurations.
"""

from collections.abc import Mapping, Sequence

from trec_qcomm.codecs import Cast, ErrorBounded, Float6, Identity, Rowwise
from trec_qcomm.config import codec_from_dict, parse_yaml
from trec_qcomm.core.codec import Codec, check_choice

BASELINE = "float32"  # name of the rows as they are
_BOTH: dict[str, Codec] = {BASELINE: Identity(), "bf16": Cast("bf16"), "int8": Rowwise(8)}
CODECS: Mapping[str, Mapping[str, Codec]] = {
    "forward": {
        **_BOTH,
        "float6": Float6(),
        "int4": Rowwise(4),
        "int2": Rowwise(2),
        "bound1%": ErrorBounded(0.01),
        "bound1%-rans": ErrorBounded(0.01, encoder="rans"),
        "bound3%": ErrorBounded(0.03),
    },
    "backward": {
        **_BOTH,
        "float6": Float6(rounding="stochastic"),
        "int4": Rowwise(4, rounding="stochastic"),
        "int2": Rowwise(2, rounding="stochastic"),
    },
}
NAMES = tuple(dict.fromkeys(name for codecs in CODECS.values() for name in codecs))


def candidates(
    direction: str, *, names: Sequence[str] = NAMES, more: Sequence[str] = ()
) -> dict[str, Codec]:
    """Return the codecs to try in one direction. float32, the base of comparison, comes first.

    Args:
        direction: "forward", or "backward" for gradients.
        names: names of `CODECS` to keep.
        more: other codecs, in YAML as a config has them: "{codec: topk, density: 0.1}".
    Raises: ValueError: a wrong codec; the error names it.
    """
    for name in names:
        check_choice("codecs", name, NAMES)
    known = CODECS[direction]
    chosen = {name: known[name] for name in known if name in {BASELINE, *names}}
    for text in more:
        codec = codec_from_dict(parse_yaml(text, name="codec"), where=f"codec {text}")
        if codec.follows_forward:
            raise ValueError(f"codec {text}: codes the columns that another codec kept, not rows")
        chosen[text] = codec
    return chosen
