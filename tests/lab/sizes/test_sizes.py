"""Sizes of segments: measured on a file of rows, kept as a record, read for a configuration."""

import pytest
import torch

from trec_qcomm.config import config_from_dict
from trec_qcomm.lab.records import TableSizesRecord, read
from trec_qcomm.lab.sizes import load_measured, measure_sizes
from trec_qcomm.lab.sizes.command import main

DIM, DISTINCT, BAGS = 8, 60, 80
BOUNDED = {"codec": "error_bounded", "bound": 0.01}
INT8 = {"codec": "rowwise", "bits": 8}


def config(forward=BOUNDED, backward=INT8, **more):
    rule = {"tables": ["*"], "forward": forward, "backward": backward, "unique_bags": True}
    return config_from_dict({"embedding": [rule | more]})


def write(path, *, merged=True, **changes):
    """A file as QComm.capture_rows writes it, of one table in two blocks."""
    draw = torch.Generator().manual_seed(0)
    blocks = [torch.randn(DISTINCT, DIM, generator=draw) for _ in range(2)]
    if not merged:
        blocks = [torch.cat([b, b[: BAGS - DISTINCT]]) for b in blocks]
    counts = {"num_sent": sum(map(len, blocks)), "num_blocks": 2, "num_rows": 500}
    counts |= {"num_bags": 2 * BAGS, "num_distinct": 2 * DISTINCT} if merged else {}
    content = {"rows": {"t": blocks}, "gradients": {"t": blocks}, "tables": {"t": counts}}
    content |= {"meta": {"steps": 2, "world_size": 4}} | changes
    torch.save(content, path)
    return path


def test_counts_of_bags_and_the_merging_of_the_configuration(tmp_path) -> None:
    """Where the rows were captured without merging, equal rows are equal bags."""
    for merged in (True, False):
        path = write(tmp_path / "rows.pt", merged=merged)
        (table,) = load_measured(path, config()).values()
        assert (table.dim, table.num_bags) == (DIM, BAGS)
        assert (table.num_distinct, table.num_sent) == (DISTINCT, DISTINCT)
        assert (table.num_rows, table.distinct_share) == (500, DISTINCT / BAGS)
        (whole,) = load_measured(path, config(unique_bags=False)).values()
        assert (whole.num_sent, whole.distinct_share) == (BAGS, 1)
        (auto,) = load_measured(path, config(unique_bags="auto")).values()
        assert auto.num_sent == DISTINCT  # a quarter repeats


def test_a_record_prices_as_its_rows_do_and_has_none_of_them(tmp_path) -> None:
    path, out = write(tmp_path / "rows.pt"), tmp_path / "sizes.jsonl"
    record = measure_sizes(path, config(), configuration="mine")
    assert (record.num_ranks, record.num_steps) == (4, 2)
    assert record.tables["t"].backward == ()  # of fixed size
    from_rows, from_record = (
        load_measured(source, config())["t"] for source in (str(path), record)
    )
    for dim, terms in ((DIM, 1), (DIM, 4), (DIM // 2, 1)):
        sizes = [t.forward.nbytes(DISTINCT, dim, num_terms=terms) for t in (from_rows, from_record)]
        assert sizes[0] == pytest.approx(sizes[1], rel=1e-3)
        both = [t.backward.nbytes(DISTINCT, dim) for t in (from_rows, from_record)]
        assert both[0] == both[1]
    words = ["--data", str(path), "--out", str(out), "--configs", "int8"]
    assert main([*words, "--setup", "batch_size=80"]) == 0
    (written,) = read(out)
    assert isinstance(written, TableSizesRecord)
    assert (written.configuration, written.setup) == ("int8", {"batch_size": 80})
    assert load_measured(out, config(INT8))["t"].num_sent == DISTINCT


def test_what_cannot_be_priced_is_named(tmp_path, capsys) -> None:
    path = tmp_path / "rows.pt"
    record = measure_sizes(write(path), config(), configuration="mine")
    other = config({**BOUNDED, "bound": 0.02})
    with pytest.raises(
        ValueError, match=r"mine: t: forward: sizes are of ErrorBounded\(bound=0.01"
    ):
        load_measured([record], other)
    with pytest.raises(ValueError, match="measured: no record of kind table_sizes"):
        load_measured([], config())
    with pytest.raises(ValueError, match=r"rows.pt: t: gradients: none, which error_bounded needs"):
        load_measured(write(path, gradients={}), config(INT8, BOUNDED))
    partial = {"t": {"num_sent": 1, "num_blocks": 1, "is_partial": True}}
    with pytest.raises(ValueError, match=r"rows.pt: t: rows are partial sums of a row-wise table"):
        load_measured(write(path, tables=partial), config())
    with pytest.raises(ValueError, match=r"rows.pt: tables: expected counts by table"):
        load_measured(write(path, tables=[1]), config())
    with pytest.raises(SystemExit):
        main(["--data", str(path), "--configs", "int8", "--out", "o", "--setup", "wrong"])
    assert "setup: 'wrong' is not NAME=VALUE" in capsys.readouterr().err
