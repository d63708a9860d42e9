"""Bytes that the embedding exchange takes for rows and gradients of a trained model.

    python examples/criteo/train.py --config configs/fp32.yaml --dump-rows rows.pt
    python examples/bench/trained.py --data rows.pt
    python examples/bench/trained.py --data rows.pt --samples 2048 --ranks 2 --json trained.json

Tables are dealt to the ranks, and every rank sends every other its samples' rows in real frames,
headers counted. Forward codecs code rows, backward codecs gradients, summed over equal bags where
these are merged. `raw` is 4 bytes a value of ALL rows, merged or not, so that a ratio is what the
network sees. Before a size is reported, the frames are decoded and held against the codec's
contract. The rows are a file's own: nothing is trained here. One JSON object a row with --json.
"""

import argparse
import json
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from trec_qcomm import Contract, ErrorBounded, Identity, Rowwise, TopK
from trec_qcomm.comm.exchange import decode_frames, encode_frames
from trec_qcomm.comm.frame_plan import PlacedFrames, plan_frames
from trec_qcomm.comm.rows.layout import packed
from trec_qcomm.control.error_bound import BoundClasses
from trec_qcomm.control.homogenization import homogenization_index
from trec_qcomm.control.schedule import SCHEDULES
from trec_qcomm.core.codec import Codec
from trec_qcomm.core.counters import Traffic
from trec_qcomm.ops.unique import BagBlocks, sum_by_bag, unique_bags
from trec_qcomm.testing import max_error_in_bounds

STEPS_SAMPLED = 21  # of a schedule

Tables = dict[str, Tensor]


@dataclass(frozen=True)
class Batch:
    """What one rank's samples look up, by table: rows and gradients [n, D], ids [n]."""

    rows: Tables
    gradients: Tables
    ids: Tables


def load(path: Path, num_samples: int, num_ranks: int) -> list[Batch]:
    """One batch a rank. Raises ValueError: a file with too few samples."""
    data = torch.load(path, weights_only=True)
    have = len(next(iter(data["ids"].values())))
    if have < num_samples * num_ranks:
        raise ValueError(f"{path}: {have} samples, {num_ranks} x {num_samples} are needed")
    parts = [slice(r * num_samples, (r + 1) * num_samples) for r in range(num_ranks)]
    kinds = ("rows", "gradients", "ids")
    return [
        Batch(*({t: x[part] for t, x in data[kind].items()} for kind in kinds)) for part in parts
    ]


def merged(batch: Batch) -> Batch:
    """Each distinct bag once: its row, and the sum of its gradients."""
    rows, gradients, ids = {}, {}, {}
    for table, own in batch.ids.items():
        n, dim = batch.rows[table].shape
        one = torch.ones(1, dtype=torch.float64)
        found = unique_bags(own, torch.ones(n, dtype=torch.int32), torch.tensor([n]), one)
        count = len(found.first)
        places = (torch.tensor([x]) for x in (0, count, dim, 0, 0))
        sums = torch.empty(count * dim)
        sum_by_bag(batch.gradients[table], BagBlocks(*places), found.inverse[None], sums)
        rows[table] = batch.rows[table][found.first]
        gradients[table], ids[table] = sums.view(count, dim), own[found.first]
    return Batch(rows, gradients, ids)


def frame_nbytes(tables: Tables, codecs: Mapping[str, Codec], factors: Mapping[str, float]) -> int:
    """Size of the frame with these tables, after a check of what it decodes to."""
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
    """Of all ranks to others, in one direction."""
    total, names = 0, list(batches[0].ids)
    for owner in range(len(batches)):
        own = names[owner :: len(batches)]
        for peer, batch in enumerate(batches):
            if peer != owner:
                tables = {name: getattr(batch, kind)[name] for name in own}
                total += frame_nbytes(tables, codecs, factors)
    return total


def cases(batches: list[Batch]) -> Iterator[tuple[str, str, Codec, dict[str, float]]]:
    """(name, kind, codec, factor of each table's bound)."""
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
    for encoder in ("bitpack", "vector_lz", "rans", "auto"):
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
    for name, kind in SCHEDULES.items():
        schedule = kind()
        end = getattr(schedule, "end_step", 0)
        steps = [end * n // STEPS_SAMPLED for n in range(STEPS_SAMPLED)]
        factor = sum(schedule.multiplier(step) for step in steps) / len(steps)
        scaled = {t: f * factor for t, f in by_class.items()}
        title = f"classes, schedule {name}, mean m = {factor:.2f}"
        yield title, "rows", ErrorBounded(classes.base, encoder="auto"), scaled


def main() -> None:
    """Print a table and, with --json, write the objects."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True, help="of train.py --dump-rows")
    parser.add_argument("--samples", type=int, default=2048, help="a rank (default 2048)")
    parser.add_argument("--ranks", type=int, default=2, help="default 2")
    parser.add_argument("--json", type=Path, default=None, help="file for the objects")
    options = parser.parse_args()
    batches = load(options.data, options.samples, options.ranks)
    unique = [merged(batch) for batch in batches]
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False
    ).stdout.strip()
    dims = {rows.shape[1] for rows in batches[0].rows.values()}
    raw = sent_nbytes(batches, "rows", dict.fromkeys(batches[0].ids, Identity()), {})
    raw_values = (
        sum(4 * rows.numel() for batch in batches for rows in batch.rows.values())
        * (options.ranks - 1)
        // options.ranks
    )
    share = sum(len(i) for b in unique for i in b.ids.values()) / sum(
        len(i) for b in batches for i in b.ids.values()
    )
    print(f"dim {dims}, {options.ranks} ranks x {options.samples}, {share:.1%} of bags distinct")
    print(f"{'codec':48} {'of':9} {'all bags':>9} {'distinct':>9}")
    records = []
    for name, kind, codec, factors in cases(batches):
        codecs = dict.fromkeys(batches[0].ids, codec)
        sizes = [sent_nbytes(b, kind, codecs, factors) for b in (batches, unique)]
        ratios = [raw_values / size for size in sizes]
        print(f"{name:48} {kind:9} {ratios[0]:8.1f}x {ratios[1]:8.1f}x", flush=True)
        records.append(
            {
                "commit": commit,
                "name": name,
                "kind": kind,
                "codec": repr(codec),
                "dims": sorted(dims),
                "ranks": options.ranks,
                "samples": options.samples,
                "raw_nbytes": raw_values,
                "wire_nbytes": {"all": sizes[0], "distinct": sizes[1]},
                "ratio": {"all": ratios[0], "distinct": ratios[1]},
            }
        )
    if options.json:
        options.json.write_text("".join(json.dumps(record) + "\n" for record in records))
    print(
        f"{len(records)} cases; float32 frames of all bags take {raw} bytes, {raw_values} are rows"
    )


if __name__ == "__main__":
    main()
