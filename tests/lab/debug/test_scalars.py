"""Scalars of the debugger: each figure once, by direction and name; TensorBoard reads them back."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from tests.lab.debug.made_runs import PARAMETER, STEPS, TABLES, made_run
from tests.lab.report import sample_records
from trec_qcomm.lab.debug.scalars import FIGURES, DebugScalars, GuardScalars

OF_RANK_0 = [record for record in made_run().records if record.rank == 0]


class Written(list[tuple[str, float, int]]):
    """A writer that keeps what it is given."""

    def add_scalar(self, tag: str, scalar_value: float, global_step: int) -> None:
        self.append((tag, scalar_value, global_step))


def test_every_figure_is_written_once() -> None:
    written = Written()
    scalars = DebugScalars(written)
    for end in (60, 60, 110, len(OF_RANK_0)):  # a window that grows and moves
        scalars.add(OF_RANK_0[max(end - 100, 0) : end])
    expected = {
        (f"debug_{r.direction}_{f}/{r.name}" + (f" {r.site}" if r.site else ""), r.step): value
        for r in OF_RANK_0
        for f in FIGURES
        if (value := getattr(r, f)) is not None
    }
    assert {(tag, step): value for tag, value, step in written} == expected
    assert len(written) == len(expected)


def test_shadows_are_left_out() -> None:
    written = Written()
    shadow = dataclasses.replace(OF_RANK_0[0], is_shadow=True, codec="Float6()", snr_db=1.0)
    DebugScalars(written).add([shadow])
    assert written == []


def test_tensorboard_reads_them_back(tmp_path: Path) -> None:
    events = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    from torch.utils.tensorboard import SummaryWriter

    writer: Any = SummaryWriter(tmp_path)  # type: ignore[no-untyped-call]
    DebugScalars(writer).add(OF_RANK_0)
    writer.close()
    read = events.EventAccumulator(str(tmp_path))
    read.Reload()
    tags = read.Tags()["scalars"]
    assert sum("_rms/" in tag for tag in tags) == 2 * len(TABLES) + 2
    assert f"debug_dense_rms/{PARAMETER} contribution" in tags
    assert [event.step for event in read.Scalars("debug_forward_rms/t_1")] == list(STEPS)


def test_a_guard_s_probes_are_written_once_with_the_rungs_of_tables() -> None:
    written = Written()
    scalars = GuardScalars(written)
    records = sample_records.guarded()
    scalars.add(records[:8])
    scalars.add(records)
    rungs = [(step, value) for tag, value, step in written if tag == "guard_rung_forward/t_1"]
    assert rungs == [(200 * n, 2.0 if 7 <= n <= 14 else 1.0) for n in range(16)]
    tags = {tag for tag, _, _ in written}
    assert tags == {
        *(f"guard/{name}" for name in ("change", "mean", "low", "high", "limit_ne", "wire_nbytes")),
        *(f"guard_rung_{direction}/t_{n}" for direction in ("forward", "backward") for n in (0, 1)),
    }
