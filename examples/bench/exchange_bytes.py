"""Bytes that the embedding exchange takes for rows and gradients of a trained model.

  python examples/criteo/train.py --config configs/fp32.yaml --dump-rows rows.pt
  python -m examples.bench.exchange_bytes --data rows.pt
  python -m examples.bench.exchange_bytes --data rows.pt --samples 2048 --ranks 2 --out bytes.jsonl

Tables are dealt to the ranks, and every rank sends every other its samples' rows in real frames,
headers counted. Forward codecs code rows, backward codecs gradients, summed over equal bags where
these are merged. `raw` is 4 bytes a value of ALL rows, merged or not, so that a ratio is what the
network sees. Before a size is reported, the frames are decoded and held against the codec's
contract. The rows are those of the file: nothing is trained here.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from examples.bench.codecs.workload import Batch, Tables, load, merged
from trec_qcomm import Contract, ErrorBounded, Identity, Rowwise, TopK
from trec_qcomm.comm.frames.coding import encode_frames
from trec_qcomm.comm.frames.decoding import decode_frames
from trec_qcomm.comm.frames.plan import PlacedFrames, plan_frames
from trec_qcomm.comm.rows.layout import packed
from trec_qcomm.core.codec import Codec
from trec_qcomm.core.counters import Traffic
from trec_qcomm.ext.dual_level.error_bound import BoundClasses
from trec_qcomm.ext.dual_level.homogenization import homogenization_index
from trec_qcomm.ext.dual_level.schedule import Schedule
from trec_qcomm.lab import records
from trec_qcomm.lab.records import BenchRecord, Environment
from trec_qcomm.testing import max_error_in_bounds

STEPS_SAMPLED = 21  # steps of a schedule whose mean multiplier is taken


def frame_nbytes(tables: Tables, codecs: Mapping[str, Codec], factors: Mapping[str, float]) -> int:
    """Return the size of the frame with these tables, after a check of what it decodes to."""
    names = list(tables)
    plan = plan_frames(
        [[(name, tables[name].shape[1]) for name in names]],
        layouts=[0],
        codecs=codecs,
        table_numbers={name: t for t, name in enumerate(names)},
        rank=-1,
    )
    placed = plan.place(*packed(plan, torch.tensor([len(tables[name]) for name in names])))
    values = torch.cat([tables[name].reshape(-1) for name in names]).contiguous()
    by_table = torch.tensor([factors.get(name, 1.0) for name in names], dtype=torch.float64)
    frames = encode_frames(
        values,
        placed,
        call=0,
        seed=0,
        traffic=Traffic("", names),
        tolerances=plan.tolerances * by_table,
    )
    out = torch.full_like(values, torch.nan)
    decode_frames(frames, placed, out, ranks=[0], traffic=Traffic("", names))
    check(values, out, placed, by_table)
    return frames.nbytes[0]


def check(values: Tensor, out: Tensor, placed: PlacedFrames, factors: Tensor) -> None:
    """Raise AssertionError where a codec breaks its contract."""
    assert not bool(out.isnan().any()), "rows are missing"
    for group in placed.groups:
        if group.codec.contract is Contract.EXACT:
            assert torch.equal(values, out)
        if group.codec.contract is Contract.BOUNDED:
            for s, segment in enumerate(group.members.tolist()):
                codec = replace(group.codec, bound=group.codec.bound * float(factors[segment]))
                x = group.segments.block(values, s).contiguous()
                one = type(group.segments).packed([len(x)], group.segments.dim)
                y = group.segments.block(out, s).contiguous()
                assert max_error_in_bounds(codec, x, y, one) <= 1


def sent_nbytes(
    batches: list[Batch], kind: str, codecs: Mapping[str, Codec], factors: Mapping[str, float]
) -> int:
    """Return the bytes that all ranks send to others in one direction."""
    total, names = 0, list(batches[0].ids)
    for owner in range(len(batches)):
        owned = names[owner :: len(batches)]
        for rank, batch in enumerate(batches):
            if rank != owner:
                tables = {name: getattr(batch, kind)[name] for name in owned}
                total += frame_nbytes(tables, codecs, factors)
    return total


def cases(batches: list[Batch]) -> Iterator[tuple[str, str, Codec, dict[str, float]]]:
    """Yield (name, kind, codec, factor of each table's bound)."""
    classes = BoundClasses()
    index = {
        table: homogenization_index(rows, bound=classes.base)
        for table, rows in batches[0].rows.items()
    }
    by_class = {t: classes.bound(classes.of_index(i)) / classes.base for t, i in index.items()}
    reversed_class = {
        t: (classes.tight if i >= classes.loose_from else classes.base) / classes.base
        for t, i in index.items()
    }
    yield "float32", "rows", Identity(), {}
    for bits in (8, 4, 2):
        yield f"int{bits}", "rows", Rowwise(bits), {}
    for encoder in ("bitpack", "vector_lz", "rans"):
        for bound in (0.01, 0.03):
            yield f"rel {bound} {encoder}", "rows", ErrorBounded(bound, encoder=encoder), {}
        base = ErrorBounded(classes.base, encoder=encoder)
        yield f"classes .01/.03/.05 {encoder}", "rows", base, by_class
        yield f"small tables .01, large .03 {encoder}", "rows", base, reversed_class
    yield "topk .1 fp16", "rows", TopK(density=0.1, values="fp16"), {}
    for bits in (8, 4, 2):
        codec = Rowwise(bits, rounding="stochastic")
        yield f"int{bits}, stochastic", "gradients", codec, {}
    yield "rel 0.01 bitpack", "gradients", ErrorBounded(0.01), {}
    for name, kind in Schedule.kinds.items():
        schedule = kind()
        end = getattr(schedule, "end_step", 0)
        steps = [end * n // STEPS_SAMPLED for n in range(STEPS_SAMPLED)]
        factor = sum(schedule.multiplier(step) for step in steps) / len(steps)
        scaled = {t: f * factor for t, f in by_class.items()}
        title = f"classes, schedule {name}, mean m = {factor:.2f}"
        yield title, "rows", ErrorBounded(classes.base, encoder="rans"), scaled


def main() -> None:
    """Print a table and, with --out, append the records."""
    options = _parser().parse_args()
    batches = load(options.data, options.samples, options.ranks)
    distinct = [merged(batch) for batch in batches]
    all_rows = [rows for batch in batches for rows in batch.rows.values()]
    (dim,) = {rows.shape[1] for rows in all_rows}
    raw_nbytes = sum(4 * rows.numel() for rows in all_rows)
    raw_nbytes = raw_nbytes * (options.ranks - 1) // options.ranks
    num_bags, num_distinct = (
        sum(len(ids) for batch in some for ids in batch.ids.values())
        for some in (batches, distinct)
    )
    print(
        f"dim {dim}, {options.ranks} ranks x {options.samples}, "
        f"{num_distinct / num_bags:.1%} of bags distinct"
    )
    print(f"{'codec':48} {'codes':9} {'all bags':>9} {'distinct':>9}")
    environment, num_cases = Environment.current(), 0
    for name, kind, codec, factors in cases(batches):
        codecs = dict.fromkeys(batches[0].ids, codec)
        sizes = [sent_nbytes(b, kind, codecs, factors) for b in (batches, distinct)]
        ratios = [raw_nbytes / size for size in sizes]
        print(f"{name:48} {kind:9} {ratios[0]:8.1f}x {ratios[1]:8.1f}x", flush=True)
        num_cases += 1
        if options.out is not None:
            case = {"kind": kind, "codec": repr(codec), "dim": dim, "ranks": options.ranks}
            record = BenchRecord(
                configuration=name,
                bench="exchange_bytes",
                environment=environment,
                case=case | {"samples": options.samples, "data": options.data.name},
                figures={
                    "raw_nbytes": raw_nbytes,
                    "all_bags_nbytes": sizes[0],
                    "distinct_bags_nbytes": sizes[1],
                },
            )
            records.append(options.out, record)
    print(f"{num_cases} cases; {raw_nbytes} bytes of rows as float32; {options.out or 'no --out'}")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--data", type=Path, required=True, help="file of train.py --dump-rows")
    add("--samples", type=int, default=2048, help="samples a rank (default 2048)")
    add("--ranks", type=int, default=2, help="default 2")
    add("--out", type=Path, default=None, metavar="FILE", help="append the records to this file")
    return parser


if __name__ == "__main__":
    main()
