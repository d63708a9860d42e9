"""Preview of a running training: a method of QComm, which imports it from here (qcomm.TOOLS)."""

from trec_qcomm.lab.debug.inspection import capture_rows
from trec_qcomm.lab.debug.row_capture import CAPTURED_NBYTES, RowCapture
from trec_qcomm.lab.preview.candidates import candidates
from trec_qcomm.lab.preview.previews import CapturedRows, Preview, make_preview
from trec_qcomm.qcomm import QComm

SHOWN_TABLES = 10


def preview(qcomm: QComm, steps: int = 20, *, max_nbytes: int = CAPTURED_NBYTES) -> "LivePreview":
    """Try every codec on the rows and gradients of the next training steps.

        preview = qcomm.preview(20)
        ...  # 20 steps
        print(preview)  # for each table: bytes, dB, time, and the links on which a codec pays

    The text is about the rows that this rank sends. Nothing changes in the training.

    Args: steps, max_nbytes: arguments of `capture_rows`.
    """
    return LivePreview(capture_rows(qcomm, steps, gradients=True, max_nbytes=max_nbytes))


class LivePreview:
    """Preview of the next steps of a training; `QComm.preview` makes it.

    Its text is the tables. They are measured when the text is first needed after the steps are
    over. No collective: each rank has its own rows. `capture.save("rows.pt")`, on all ranks, writes
    the rows of all ranks, for `python -m trec_qcomm preview rows.pt`.

    Args: capture: the rows of these steps.
    """

    def __init__(self, capture: RowCapture) -> None:
        self.capture = capture
        self._complete: Preview | None = None

    def __str__(self) -> str:
        """Return the tables of all steps so far, and how many steps they cover."""
        num_steps = self.capture.num_steps
        if not num_steps:
            return f"Preview: 0 of {self.capture.steps} steps so far; train, and print it again"
        head = f"Preview of {num_steps} of {self.capture.steps} steps, rows of this rank alone"
        return f"{head}\n\n{self.preview().text(top=SHOWN_TABLES)}"

    def preview(self) -> Preview:
        """Return the figures of the steps so far. Raises ValueError before the first step."""
        if self._complete is not None:
            return self._complete
        num_steps = self.capture.num_steps
        blocks = {"forward": self.capture.rows, "backward": self.capture.gradients}
        blocks = {direction: tables for direction, tables in blocks.items() if tables}
        if not num_steps:
            raise ValueError("preview: no training step yet; call it after one or more")
        captured = CapturedRows(
            blocks=blocks,
            num_steps=num_steps,
            num_left_out=self.capture.num_left_out,
            whose="this rank",
        )
        codecs = {direction: candidates(direction) for direction in blocks}
        measured = make_preview(captured, codecs)
        if num_steps == self.capture.steps:
            self.capture.stop()
            self._complete = measured
        return measured
