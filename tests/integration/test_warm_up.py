"""A warm-up compiles what training uses, for the same types, and nothing of other codecs."""

import gc
import logging
from dataclasses import replace

import pytest
import torch
from numba.core.dispatcher import Dispatcher

from tests.integration.embedding.test_every_sharding import SUM_TABLES
from tests.integration.sharded_models.cases import DP, MIX, TW, Case
from tests.integration.sharded_models.training import run, shard
from tests.rank_programs import results_of, run_programs
from trec_qcomm import Config, ErrorBounded, QComm, Rowwise, TableRule, load_preset, presets
from trec_qcomm.integration import warm_up
from trec_qcomm.jit.once import Job
from trec_qcomm.lab.debug.rule import DebugRule
from trec_qcomm.lab.ranks.ranks import PlayedRanks
from trec_qcomm.ops.batch import unique

TRAINED = ("best",)


def signatures() -> set[tuple[str, str]]:
    """Return (kernel, types) of all kernels that this process has compiled or loaded."""
    gc.unfreeze()  # what the fork server imported
    kernels = (
        thing
        for thing in gc.get_objects()
        if isinstance(thing, Dispatcher) and thing.py_func.__module__.startswith("trec_qcomm")
    )
    names = ((f"{k.py_func.__module__}.{k.py_func.__name__}", k) for k in kernels)
    return {(name, str(types)) for name, kernel in names for types in kernel.signatures}


def new_kernels_in_training(preset):
    """Warm up, train, and return what was compiled or loaded by each."""
    qcomm = QComm(load_preset(preset))
    qcomm.warm_up()
    for job in warm_up.jobs(qcomm.config):
        job.run()  # to load what another process compiled
    warm = signatures()
    run(Case(tables=SUM_TABLES, sharding=MIX, batch=(64,)), qcomm, 2, linear=True)
    return warm, signatures() - warm


@pytest.fixture(scope="module")
def trained():
    programs = {name: name for name in TRAINED}
    return run_programs(new_kernels_in_training, 2, programs, timeout_s=250)


@pytest.mark.dist
@pytest.mark.parametrize("preset", TRAINED)
def test_training_needs_no_kernel_that_the_warm_up_did_not_compile(trained, preset):
    for warm, new in results_of(trained[preset]):
        assert len(warm) > 8
        assert new == set()


def test_neither_dtypes_of_lengths_nor_sizes_of_batches_choose_kernels():
    """Lengths may be int32 or int64. From 32768 bags of a group their numbers need 32 bits."""
    (job,) = (job for job in warm_up.jobs(load_preset("best")) if job.name.startswith("bags"))
    job.run()
    warm = signatures()
    warm_up._use_bags(torch.int64, torch.int64)
    ids = torch.arange(1 << 15) // 2
    lengths, shares = torch.ones_like(ids), torch.ones(1, dtype=torch.float64)
    for size in (4, 1 << 15):
        bags = unique.unique_bags(ids[:size], lengths[:size], torch.tensor([size]), shares)
        assert torch.equal(bags.inverse, ids[:size])
    assert signatures() == warm


def test_shadows_of_a_debugger_are_compiled_ahead():
    before = {job.name for job in warm_up.jobs(load_preset("int8"))}
    config = replace(load_preset("int8"), debug=DebugRule(shadow=[ErrorBounded(0.1)]))
    added = [job for job in warm_up.jobs(config) if job.name not in before]
    assert {job.name for job in added} == {"error_bounded: encode", "error_bounded: decode"}


@pytest.mark.parametrize("name", presets())
def test_jobs_are_those_of_the_config(name):
    config = load_preset(name)
    names = {job.name for job in warm_up.jobs(config)}
    codecs = warm_up._codecs(config, config.data_parallel)
    used = [codec for codec in codecs if codec.name != "identity"]
    codecs = {codec.name for codec in used if ".ext." not in type(codec).__module__}  # no kernels
    codecs = {"float6" if name == "float8" else name for name in codecs}  # the same kernels
    assert {job.partition(":")[0].split()[0] for job in names if ":" in job} >= codecs
    assert ("bags int64" in names) == any(rule.unique_bags for rule in config.embedding)
    if config.dense:
        assert "rows" in {job.name for job in warm_up.jobs(Config(dense=config.dense))}


@pytest.mark.parametrize("sharding", [TW, DP])
def test_kernels_of_data_parallel_tables_are_compiled_where_there_are_any(sharding, monkeypatch):
    """In `best` no other part of the config has the codec rowwise."""
    names = set()
    monkeypatch.setattr(warm_up, "missing", lambda jobs: names.update(j.name for j in jobs) or [])
    case = Case(tables=SUM_TABLES, sharding=sharding)
    PlayedRanks(1).run(lambda: shard(case, QComm.from_preset("best")) and None)
    assert "frames" in names
    assert any(name.startswith("rowwise") for name in names) == (sharding == DP)


def test_each_encoder_is_a_job():
    rules = [
        TableRule(tables=name, forward=ErrorBounded(0.1, encoder=name), backward=Rowwise(8))
        for name in ("rans", "vector_lz")
    ]
    names = {job.name for job in warm_up.jobs(Config(embedding=rules))}
    assert {"error_bounded rans: encode", "error_bounded vector_lz: encode"} <= names


def test_another_dtype_of_ids_is_refused():
    with pytest.raises(ValueError, match=r"ids: torch.float32 is not torch.int32 or"):
        QComm.from_preset("best").warm_up(ids=torch.float32)


def test_one_line_says_what_is_compiled_and_only_then(monkeypatch, caplog):
    compiled = []
    left = [Job("rowwise: encode", lambda: compiled.append(1)), Job("frames", int)]
    monkeypatch.setattr(warm_up, "missing", lambda _jobs: left)
    monkeypatch.setattr(warm_up, "compile_once", lambda jobs: [j.run() for j in jobs])
    config = load_preset("int4")
    with caplog.at_level(logging.WARNING, logger="trec_qcomm"):
        assert warm_up.warm_up(config) == 2
    assert compiled == [1]
    (line,) = caplog.messages
    assert "compiling CPU kernels for preset int4 once, 2 jobs of seconds each: rowwise: " in line
    assert "warm_up" in line
    caplog.clear()
    monkeypatch.setattr(warm_up, "missing", lambda _jobs: [])
    assert warm_up.warm_up(config) == 0
    assert not caplog.messages
