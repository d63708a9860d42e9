"""What every fixed-size decoder checks first."""

from torch import Tensor

from trec_qcomm.core.errors import CorruptFrameError
from trec_qcomm.core.segments import Encoded


def check_sizes(encoded: Encoded, expected: Tensor) -> None:
    """Raise CorruptFrameError at the first segment whose nbytes are not the [S] expected ones."""
    wrong = (encoded.nbytes != expected).nonzero()
    if len(wrong):
        s = int(wrong[0])
        raise CorruptFrameError(
            f"{int(encoded.nbytes[s])} bytes where its format has {int(expected[s])}", segment=s
        )
