"""Codecs that change while two ranks train: by hand, by a guard, after a checkpoint."""

from types import SimpleNamespace

import pytest

from tests.lab.guard import programs as trainings
from tests.lab.guard.programs import CHANGES, TABLES, run
from tests.rank_programs import results_of, run_programs
from trec_qcomm import Identity, QComm
from trec_qcomm.lab import records
from trec_qcomm.lab.guard.extension import guarding_of
from trec_qcomm.lab.guard.rule import GuardRule

PROGRAMS = ("changed", "episode", "resumed", "pipelined", "signals", "bad_input")
FINER, EXACT = repr(trainings.FINER), repr(Identity())


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("guard")


@pytest.fixture(scope="module")
def programs(folder):
    return run_programs(
        run, 2, {name: (name, str(folder / name)) for name in PROGRAMS}, timeout_s=300
    )


@pytest.mark.dist
@pytest.mark.parametrize("name", CHANGES)
def test_changed_codecs_are_those_of_a_config_that_had_them_from_the_start(programs, name):
    """Not so the exchange that had begun: its backward keeps the codecs of its forward."""
    for rank in results_of(programs["changed"]):
        assert rank[name] == {"in flight": True, "after": True, "differs": True}


COARSE = "tw_last", "forward"
EPISODE = [  # of the coarse table; a finite change needs four readings
    ("trip", "loss", None, None, None, 4),
    ("raise", "loss", *COARSE, FINER, 4),
    ("raise", "loss", *COARSE, EXACT, 6),
    ("calm", "calm", None, None, None, 8),
    ("lower", "calm", *COARSE, FINER, 8),
]
INFINITE = [  # where the loss is infinite with the coarse table from the start
    ("trip", "loss", None, None, None, 1),
    ("raise", "loss", *COARSE, EXACT, 1),
    ("calm", "calm", None, None, None, 3),
    ("lower", "calm", *COARSE, FINER, 3),
]


@pytest.mark.dist
def test_the_guard_finds_the_coarse_table_and_leaves_no_trace_until_then(programs, folder):
    for rank in results_of(programs["episode"]):
        assert rank["before"] == []
        assert rank["traceless"] == (True, True, True)  # losses, random numbers, statistics
        assert rank["events"] == EPISODE
        assert repr(rank["codecs"]) == repr(rank["in force"]) == FINER
    lines = records.read(folder / "episode" / "guard.jsonl")
    probes = [line for line in lines if line.kind == "guard_probe"]
    events = [line for line in lines if line.kind == "guard"]
    assert [p.step for p in probes] == list(range(1, 9))
    assert [p.forward["tw_last"] for p in probes] == [0, 0, 0, 0, 1, 1, 2, 2]
    assert all(p.wire_nbytes > 0 and p.run == "mine" for p in probes)
    assert [round(p.change, 6) for p in probes] == [1, 1, 1, 1, 1, 1, 0, 0]
    assert [(e.event, e.reason, e.table, e.step) for e in events] == [
        (kind, reason, table, step) for kind, reason, table, _, _, step in EPISODE
    ]
    assert events[1].figures == pytest.approx({"effect tw_last": 1})  # no other one is coded


@pytest.mark.dist
def test_a_run_that_is_resumed_in_an_episode_is_the_same(programs):
    for rank in results_of(programs["resumed"]):
        assert rank["same"]
        assert rank["events"] == INFINITE[2:]
        assert rank["in force"] == [EXACT, EXACT]


@pytest.mark.dist
def test_a_pipeline_is_guarded_as_a_plain_loop_is(programs):
    for pipelined, plain in results_of(programs["pipelined"]):
        assert pipelined == plain
        assert plain[1] == INFINITE


@pytest.mark.dist
def test_values_move_a_table_to_float32_or_are_an_error(programs):
    for rank in results_of(programs["signals"]):
        assert rank["pointless"] == [("raise", "pointless", "tw_last", "forward", EXACT, 1)]
        for reason in ("unencodable", "nan"):
            assert rank[reason] == [
                ("raise", reason, table, "backward", EXACT, 1) for table in TABLES
            ]
        assert rank["error"].startswith("guard: cw backward: error: values are NaN")


@pytest.mark.dist
def test_one_batch_is_read_in_parts_and_by_ranks_in_step(programs):
    for number, rank in enumerate(results_of(programs["signals"])):
        readings, step, message = rank["parts"]
        assert f"this one: step {2 + number}, 1 batches, rungs 0,0,0,0,0,0,0,0" in step
        assert readings == pytest.approx([0.5, 2.5, 4.5, 1.5, 3.5, 5.5], 1e-4)  # of both ranks
        assert message == (
            "guard: loss_fn: returned [2, 1], expected the loss of each sample, "
            "3 or more (parts: 3)"
        )


MESSAGES = {
    "unsharded": "guard: no table is sharded yet",
    "numbers": "different numbers of probe batches:\nprobe_batches: 1 batches on rank 0; 2",
    "parts": "guard: parts: 0 is not an integer >= 1",
    "numbers of parts": "different numbers of probe batches:\nparts: 1 parts on rank 0; 2",
    "none": "guard: probe_batches: 0 in all; expected two or more",
    "function": "guard: loss_fn: None is not a function",
    "shape": r"guard: loss_fn: returned \[2\], expected one number",
    "without": r"16 steps without guard.step\(\); call guard = qcomm.guard\(loss_fn, ",
    "second": "guard: this QComm has a guard already",
    "table": "no collective sends dp; tables: ",
    "masks": "table 'cw': backward: forward_mask sends the columns that forward kept",
    "patterns": "guard.tables: 'dp' matches no table that is sent; there are: cw, cw_shared",
    "no rule": "config: guard: the config has no `guard`",
}


@pytest.mark.dist
@pytest.mark.parametrize("name", MESSAGES)
def test_bad_input_is_named(programs, name):
    for rank in results_of(programs["bad_input"]):
        with pytest.raises(ValueError, match=MESSAGES[name]):
            raise ValueError(rank[name])


def test_many_micro_batches_are_a_step_and_a_guard_that_is_forgotten_is_told_once(caplog):
    session = QComm(trainings.config_of(trainings.Rowwise(8), guard=GuardRule(every=2))).session
    guarding_of(session).guard = SimpleNamespace()
    for step in range(3000):
        session.check_step(step)
    text = "1000 steps without guard.step(); call guard.step() after each optimizer step"
    assert [record.message.count(text) for record in caplog.records] == [1]
