"""The method of a QComm that previews a training; `QComm` takes it from here (qcomm.TOOLS)."""

from trec_qcomm.lab.debug.inspection import capture_rows
from trec_qcomm.lab.debug.row_capture import CAPTURED_NBYTES
from trec_qcomm.lab.preview.previews import LivePreview
from trec_qcomm.qcomm import QComm


def preview(qcomm: QComm, steps: int = 20, *, max_nbytes: int = CAPTURED_NBYTES) -> LivePreview:
    """Try every codec on the rows and gradients of the next training steps.

        preview = qcomm.preview(20)
        ...  # 20 steps
        print(preview)  # for each table: bytes, dB, time, and the links on which a codec pays

    The text is about what this rank sends; nothing changes in the training.

    Args: steps, max_nbytes: arguments of `capture_rows`.
    """
    return LivePreview(capture_rows(qcomm, steps, gradients=True, max_nbytes=max_nbytes))
