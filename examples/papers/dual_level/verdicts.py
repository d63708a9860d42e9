"""Claims of SC'24, decided by what sc24.py measured.

Knows: numbers by case. Does not know: how they were measured.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from examples.papers.claims import FAILS, HOLDS, OPEN, Claim
from examples.papers.decisions import Decision, all_of, lower
from examples.papers.dual_level.distributions import NUM_BINS, distances
from examples.papers.dual_level.encoders import ALL_TO_ALL_SHARE, end_to_end
from examples.papers.dual_level.ratio import BOUNDS, ENCODERS
from examples.papers.dual_level.schedules import CONSTANT, FALLING, STEPS
from examples.papers.dual_level.setting import OPTIMIZERS
from examples.papers.measurements import Values
from examples.papers.trainings import Judged, as_text, claim_of, seeds_of

Measured = Mapping[str, Values]
THEIR_LZ, THEIR_HUFFMAN, THEIR_BEST, THEIR_SPEED_UP = 7.8, 8.7, 12.25, 1.38
SZ3 = Path(__file__).resolve().parents[2] / "bench" / "results" / "codec.jsonl"
LONGER = "a training as long as theirs, on all rows of the Kaggle set"
SETTING = (
    "dim 32, batch 128, seed 0, every row of the last 8,192 samples; harmonic mean over tables"
)
SETTING_BY_CLASSES = "dim 32, batch 128, seed 0, every row sent, bounds by classes"
CASES = [(name, bounds) for name in OPTIMIZERS for bounds in BOUNDS]


def ratio(measured: Measured) -> list[Claim]:
    """Compare ratios by encoder with those of the artefact."""
    if not all(f"{name}, 128 samples, {bounds}" in measured for name, bounds in CASES):
        return []
    of_case = {case: measured[f"{case[0]}, 128 samples, {case[1]}"] for case in CASES}
    claims = []
    for text, key, theirs in (
        ("Vector-LZ makes the rows of Kaggle 7.8x smaller", "vector_lz", THEIR_LZ),
        ("Huffman coding makes them 8.7x smaller (rANS stands in for it)", "rans", THEIR_HUFFMAN),
        ("The better of the two for each table: 12.25x", "best", THEIR_BEST),
    ):
        figures = {case: values[key] for case, values in of_case.items()}
        result = "<br>".join(f"{name}, {bounds} {x:.1f}x" for (name, bounds), x in figures.items())
        if key != "vector_lz":
            huffman = of_case[CASES[-1]]["huffman" if key == "rans" else "best_huffman"]
            result += f" (with zlib's Huffman coder {huffman:.1f}x)"
        all_above, none_above = min(figures.values()) >= theirs, max(figures.values()) < theirs
        verdict = HOLDS if all_above else FAILS if none_above else OPEN
        told = "" if verdict == HOLDS else f"the bounds that their tables had; {LONGER}"
        claims.append(
            Claim(
                text=text, source="artefact", setting=SETTING, result=result, verdict=verdict,
                to_tell=told,
            )
        )  # fmt: skip
    return [*claims, _distinct(measured)]


def _distinct(measured: Measured) -> Claim:
    by_name = {name: measured[f"{name}, 128 samples, classes"] for name in OPTIMIZERS}
    most = max(v["distinct_best"] / v["distinct_rans"] - 1 for v in by_name.values())
    result = "<br>".join(
        f"{name}: vector-LZ {v['vector_lz']:.1f}x of all rows, {v['distinct_vector_lz']:.1f}x of "
        f"distinct ones, rANS {v['rans']:.1f}x, {v['distinct_rans']:.1f}x"
        for name, v in by_name.items()
    )
    return Claim(
        text="What vector-LZ finds is bags that repeat: where a bag is sent once, rANS alone is "
        "within 1 % of the better of both",
        source="ours",
        setting=SETTING,
        result=f"{result}<br>the choice gains {100 * most:.2f} %",
        verdict=HOLDS if most < 0.01 else FAILS,
    )


def classes(measured: Measured) -> list[Claim]:
    """Compare classes by the index with what the artefact says of its tables."""
    claims = [_classes(name, values) for name, values in measured.items()]
    told = [claim for claim in claims if claim.verdict != OPEN]
    return [*(claim for claim in claims if claim.verdict == OPEN)][:1] + told


def _classes(name: str, v: Values) -> Claim:
    """Decide one case: most large tables tight, and all small ones loose."""
    moved = v["rank_correlation"] != 0
    agree = v["num_large_tight"] > v["num_large"] / 2 and v["num_small_loose"] == v["num_small"]
    large, small = (
        ", ".join(f"{v[f'num_{size}_{kind}']:.0f} {kind}" for kind in ("tight", "base", "loose"))
        for size in ("large", "small")
    )
    result = (
        f"of {v['num_large']:.0f} tables of more than 970 rows {large}; of {v['num_small']:.0f} of "
        f"3 to 970 rows {small}; rank correlation of index and size {v['rank_correlation']:+.2f}"
    )
    if not moved:
        result = "no table has moved far enough from its initial values: all indices are 1"
    return Claim(
        text="By the homogenization index large tables come out tight, those of 3 to 970 rows "
        "loose",
        source="artefact",
        setting=f"{name}, dim 32, seed 0, bound .03, the library's thresholds",
        result=result,
        verdict=OPEN if not moved else HOLDS if agree else FAILS,
        to_tell="" if moved else LONGER,
    )


def encoders(measured: Measured) -> list[Claim]:
    """Decide on the choice of the encoder; show what the training would gain."""
    claims = []
    for name in OPTIMIZERS:
        links = _cases_of(measured, name)
        if not links:
            continue
        setting = f"{name}, {SETTING_BY_CLASSES}; speeds of one busy core, the link modelled"
        claims += [
            Claim(
                text="The encoder with the largest modelled speed-up, chosen for each table, beats "
                "one encoder for all",
                source="artefact",
                setting=setting,
                result="<br>".join(_choice_text(link, v) for link, v in links.items()),
                verdict=HOLDS if max(map(_gain, links.values())) > 0.01 else FAILS,
                to_tell="the encoders of a GPU",
            ),
            _speed_up_claim(links, setting),
        ]
    return claims


def _cases_of(measured: Measured, optimizer: str) -> dict[str, Values]:
    """Return the cases of one optimizer, by the rest of their names."""
    begin = f"{optimizer}, "
    return {n.removeprefix(begin): v for n, v in measured.items() if n.startswith(begin)}


def _gain(values: Values) -> float:
    """Return what the choice gains over the best single encoder, as a share."""
    single = max(values[f"speed_up_{name}"] for name in ENCODERS)
    return values["speed_up_choice"] / single - 1


def _choice_text(link: str, values: Values) -> str:
    tables = ", ".join(f"{name} {values[f'tables_{name}']:.0f}" for name in ENCODERS)
    return f"{link}: +{100 * _gain(values):.0f} % ({tables} tables)"


def _speed_up_claim(links: Mapping[str, Values], setting: str) -> Claim:
    shown = "<br>".join(
        f"{link} {v['speed_up_choice']:.1f}x, {end_to_end(v['speed_up_choice']):.2f}x"
        for link, v in links.items()
    )
    most = 1 / (1 - ALL_TO_ALL_SHARE / 2)
    return Claim(
        text="Training becomes 1.38x faster, with the forward all-to-all alone coded",
        source="abstract",
        setting=f"{setting}; {ALL_TO_ALL_SHARE:.0%} of the float32 step is all-to-all (assumed)",
        result=f"modelled, forward and step: {shown}<br>{most:.2f}x if forward took no time",
        verdict=OPEN,
        to_tell="a measured step on GPUs and their network",
    )


def prediction(measured: Measured) -> list[Claim]:
    """Decide whether prediction of values hurts."""
    if not measured:
        return []
    claims = []
    for name, what in (("columns", "the value before it in its row"), ("rows", "the row above it")):
        result = "<br>".join(
            f"{case}: {v['none']:.2f}, {v[name]:.2f}" for case, v in measured.items()
        )
        claims.append(
            Claim(
                text=f"Predicting a value from {what} makes it no smaller (the artefact has no "
                "prediction)",
                source="artefact",
                setting="dim 32, batch 128, seed 0, mean over tables",
                result=f"entropy in bits a value without, with:<br>{result}",
                verdict=HOLDS if all(v[name] >= v["none"] for v in measured.values()) else FAILS,
            )
        )
    return [*claims, *_sz3()]


def _sz3() -> list[Claim]:
    by_case: dict[str, dict[str, float]] = {}
    for line in SZ3.read_text(encoding="utf-8").splitlines():
        fields = json.loads(line)
        if fields["configuration"].startswith("SZ3") and fields["threads"] == 1:
            case = by_case.setdefault(f"{fields['values']} of dim {fields['dim']}", {})
            case[fields["configuration"]] = fields["ratio"]
    with_it, without = "SZ3", "SZ3, no prediction"
    result = "<br>".join(f"{n}: {v[with_it]:.1f}x, {v[without]:.1f}x" for n, v in by_case.items())
    return [
        Claim(
            text="SZ3 is better without its prediction",
            source="ours",
            setting="batch 2048, distinct bags, Adagrad, bound .01: make bench-codec",
            result=f"with prediction, without:<br>{result}",
            verdict=HOLDS if all(v[without] > v[with_it] for v in by_case.values()) else FAILS,
        )
    ]


def drift(measured: Measured) -> list[Claim]:
    """Show how rows change while the training goes on."""
    claims = []
    for name in OPTIMIZERS:
        by_share = _cases_of(measured, name)
        if len(by_share) < 2:
            continue
        before = [v["index_largest"] for share, v in by_share.items() if float(share) < 1]
        result = "<br>".join(
            f"after {share} {v['index_largest']:.2f}, {v['index']:.2f}, {v['spread']:.4f}, "
            f"{v['bits']:.2f}"
            for share, v in by_share.items()
        )
        moved = any(v["index"] < 1 for v in by_share.values())
        claims.append(
            Claim(
                text="Rows of large tables that are looked up become more homogeneous while a "
                "training goes on, so bounds have to be found while it goes on",
                source="ours",
                setting=f"{name}, dim 32, batches of 2048, bound .03, seed 0; the last samples, "
                "which are trained on after .9 of the training",
                result="index of the largest third, of all tables, standard deviation, bits a "
                f"value:<br>{result}",
                verdict=OPEN if not moved else HOLDS if before[-1] < before[0] else FAILS,
                to_tell="" if moved else LONGER,
            )
        )
    return claims


def distributions(measured: Measured) -> list[Claim]:
    """Decide whether the values of rows are distributed as a Gaussian."""
    claims = []
    for name in OPTIMIZERS:
        by_table = _cases_of(measured, name)
        if not by_table:
            continue
        pairs = [distances(values) for values in by_table.values()]
        nearer = sum(gaussian < uniform for gaussian, uniform in pairs)
        means = " and ".join(f"{sum(each) / len(pairs):.2f}" for each in zip(*pairs, strict=True))
        moved = any(values["index"] < 1 for values in by_table.values())
        claims.append(
            Claim(
                text="The values of a table's rows come to lie nearer to a Gaussian than to the "
                "uniform values that they start with",
                source="ours",
                setting=f"{name}, dim 32, seed 0, every row of the last 8,192 samples, {NUM_BINS} "
                "bins",
                result=f"so in {nearer} of {len(pairs)} tables; mean total variation distance from "
                f"Gaussian and uniform values {means}",
                verdict=OPEN if not moved else HOLDS if nearer > len(pairs) / 2 else FAILS,
                to_tell="" if moved else LONGER,
            )
        )
    return claims


def terabyte(measured: Measured) -> list[Claim]:
    """Compare ratios at the dim and batch of the Terabyte set with those at Kaggle's."""
    settings = "dim 32, batch 128", "dim 64, batch 2048"
    pairs = {
        f"{name}, {bounds}": [measured[f"{setting}, {name}, {bounds}"] for setting in settings]
        for name, bounds in CASES
        if all(f"{setting}, {name}, {bounds}" in measured for setting in settings)
    }
    if not pairs:
        return []
    shown = (*ENCODERS, "best", "distinct_rans")
    result = "<br>".join(
        f"{case}: " + ", ".join(f"{n} {k[n]:.1f}x {t[n]:.1f}x" for n in shown)
        for case, (k, t) in pairs.items()
    )
    return [
        Claim(
            text="At the Terabyte set's dim and batch (64, 2048) rows become as much smaller as at "
            "Kaggle's (32, 128), or more",
            source="ours",
            setting="rows of Kaggle in both, seed 0, a batch a segment, every row of the last "
            "8,192 samples; best: of vector_lz and rans, for each table; distinct: a bag once",
            result=f"at Kaggle's, at the Terabyte set's: {result}",
            verdict=HOLDS if all(t["best"] >= k["best"] for k, t in pairs.values()) else FAILS,
            to_tell="rows of the Terabyte set, which are not here",
        )
    ]


def schedules(judged: Judged) -> list[Claim]:
    """Decide whether a bound that falls is better than a constant one of equal bytes."""
    by_name = {
        name: changes
        for name in FALLING
        if name in judged.verdicts and (changes := judged.changes(name, against=CONSTANT))
    }
    if not by_name:
        return []
    decisions = [lower(changes) for changes in by_name.values()]
    missing = [name for name in FALLING if name not in by_name]
    decisions += [Decision(OPEN, f"trainings of {', '.join(missing)}")] if missing else []
    seeds = seeds_of([change.n for each in by_name.values() for change in each.values()])
    return [
        claim_of(
            all_of(decisions),
            "A bound that falls to half of its start loses less than a constant one of about equal "
            "bytes",
            source="ours",
            setting=f"SGD .1, dim 32, 2 ranks x 64, {STEPS} steps, the start at 6 %; {seeds}",
            result="<br>".join(f"`{name}`: {as_text(c)}" for name, c in by_name.items()),
        )
    ]
