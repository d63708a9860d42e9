"""Predicted bytes beside those that were counted between emulated hosts, from committed records."""

from dataclasses import replace
from pathlib import Path
from statistics import fmean

import pytest

from trec_qcomm.lab.records import NetworkRecord, TableSizesRecord, read
from trec_qcomm.lab.simulate.counted import (
    WITHIN,
    data_parallel_nbytes,
    predict_counted,
    shardings_of,
)
from trec_qcomm.lab.simulate.own_tables import config_of
from trec_qcomm.lab.sizes import load_measured

RESULTS = Path(__file__).resolve().parents[2] / "examples" / "bench" / "results"
LINKS = [
    RESULTS / name
    for name in (
        *("links.jsonl", "links_4_hosts.jsonl", "column_wise_4_hosts.jsonl", "grid_4_hosts.jsonl"),
        "mixed.jsonl",
    )
]


@pytest.fixture(scope="module")
def networks():
    return [r for path in LINKS for r in read(path) if isinstance(r, NetworkRecord)]


@pytest.fixture(scope="module")
def sizes():
    return [r for r in read(RESULTS / "table_sizes.jsonl") if isinstance(r, TableSizesRecord)]


def test_every_plan_on_every_number_of_hosts_is_within_5_percent_of_the_kernel(networks, sizes):
    """Sizes are of a table-wise training on 4 ranks; nothing is fitted to the counted bytes."""
    predictions = predict_counted(networks, sizes)
    coded = {(r.configuration, r.num_hosts, r.setup["plan"]) for r in networks if r.traffic}
    known = {p.configuration for p in sizes}
    assert {(p.record.configuration, p.record.num_hosts, p.plan) for p in predictions} == {
        key for key in coded if key[0] in known
    }
    assert len(predictions) >= 24
    for p in predictions:
        where = p.record.configuration, p.record.num_hosts, p.plan
        assert p.kernel_ratio == pytest.approx(1, abs=WITHIN), where
        assert p.holds
        if p.record.num_hosts == p.num_ranks:  # of the same training, by direction, too
            for group in ("forward", "backward"):
                assert p.ratio(group) == pytest.approx(1, abs=WITHIN), (where, group)
        if p.record.configuration == "int8":  # codecs of fixed size, no bags merged: all is known
            assert p.predicted == pytest.approx(p.counted, rel=1e-3)


def test_replicated_tables_send_the_rows_that_some_rank_touched(networks, sizes):
    """On 2 hosts the number of these rows lies between what one rank and what four touch."""
    mixed = [p for p in predict_counted(networks, sizes) if p.plan == "mixed"]
    assert {p.record.num_hosts for p in mixed} == {2, 4}
    for p in mixed:
        (of_it,) = (s for s in sizes if s.configuration == p.record.configuration)
        config = config_of(of_it)
        tables = load_measured([of_it], config)
        shardings = shardings_of("mixed", tables)
        small = {n: t for n, t in tables.items() if shardings[n] == "data_parallel"}
        assert len(small) == 8
        hosts = p.record.traffic
        counted = fmean(host["data_parallel"].wire_nbytes for host in hosts)
        predicted = data_parallel_nbytes(small, config, p.record.num_hosts)
        assert predicted == pytest.approx(counted, rel=0.01), p.record.configuration
        # Not knowing what several ranks touch together leaves a bound, here 10 to 30 % above.
        of_one_rank = {name: replace(table, num_joint=None) for name, table in small.items()}
        bound = data_parallel_nbytes(of_one_rank, config, p.record.num_hosts)
        assert 1.1 * counted < bound < 1.3 * counted
    name, table = next(iter(small.items()))
    with pytest.raises(ValueError, match=f"data_parallel: rows of {name} are not known"):
        data_parallel_nbytes({name: replace(table, num_rows=None)}, config, 4)
    with pytest.raises(ValueError, match="data_parallel: not in the config"):
        data_parallel_nbytes(small, replace(config, data_parallel=None), 4)


def test_sizes_of_another_model_or_configuration_predict_nothing(networks, sizes):
    other = [replace(s, setup={**s.setup, "batch_size": 1024}) for s in sizes]
    assert predict_counted(networks, other) == []
    renamed = [replace(s, configuration=f"my_{s.configuration}") for s in sizes]
    assert predict_counted(networks, renamed) == []


def test_the_bound_of_a_row_wise_table_is_divided(networks, sizes):
    """Without that, rows of `best` on 4 hosts would be predicted far too small."""
    wrong = [
        replace(s, tables={n: replace(t, forward=_of_one_term(t)) for n, t in s.tables.items()})
        for s in sizes
        if s.configuration == "best"
    ]
    (p,) = (
        p
        for p in predict_counted(networks, wrong)
        if (p.record.num_hosts, p.plan) == (4, "row_wise")
    )
    assert p.ratio("forward") < 0.8


def _of_one_term(table):
    return tuple(s for s in table.forward if s.num_terms == 1)
