"""What was measured without a training: cases of numbers, and the verdict that they give.

Each function takes numbers by name of a case, those that its claim names, in their order.
Knows: files of cases. Does not know: how they were measured.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from math import log2
from pathlib import Path
from statistics import fmean

import numpy as np

from examples.papers.decisions import FAILS, HOLDS, OPEN, Outcome

Values = Mapping[str, float]
Cases = Mapping[str, Values]  # in the order of the table
EXACT_TO = 1e-5  # of the largest sum: some hundred float32 roundings
MOST_MORE = 1 / 1.1  # of times less: a tenth more bytes
LIVES = (1, 10, 50, 200, 1000)  # steps that a threshold is used for
ENCODERS = ("bitpack", "vector_lz", "rans")
ALL_TO_ALL_SHARE = 0.6  # of the step in float32; assumed
NUM_BINS = 41  # of equal width, from -1 to 1
REFUSED = -1.0  # in the place of 1 or 0: a config that a sharding refuses


def read(path: Path) -> dict[str, Values]:
    """Return numbers by case; the last line of a case counts.

    Raises: ValueError: a line is no measurement; it names file and line.
    """
    cases: dict[str, Values] = {}
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        try:
            fields = json.loads(line)
            values = {name: float(value) for name, value in fields["values"].items()}
            cases[fields["case"]] = values
        except (ValueError, TypeError, LookupError, AttributeError) as error:
            raise ValueError(f"{path}, line {number}: no measurement ({error!r})") from None
    return cases


# Quantized collectives


def telescoping(cases: Cases) -> Outcome:
    """Decide whether what was sent and what is kept are what there was."""
    is_kept = all(v["kept"] <= EXACT_TO < v["lost"] for v in cases.values())
    shown = (f"{n}: {v['kept']:.0e}, without {v['lost']:.0e}" for n, v in cases.items())
    start = "largest difference, as a share of the largest sum: "
    return Outcome(_holds(is_kept), start + "<br>".join(shown))


def finer_grain(cases: Cases) -> Outcome:
    """Decide whether finer blocks have less error for each seed. Cases: `rows, 32` and so on."""
    grains = {name.split(", ")[1]: values for name, values in cases.items()}
    seeds, row, tensor = _seeds(grains["tensor"]), grains["row"], grains["tensor"]
    pairs = [*((grains[g], tensor) for g in ("32", "64", "128")), (row, tensor)]
    pairs += [(grains["32"], grains["64"]), (grains["64"], grains["128"])]
    shown = (
        f"{g}: error {100 * fmean(v[s] for s in seeds):.1f} %, {v['bytes a value']:.2f} bytes a "
        "value"
        for g, v in grains.items()
    )
    return Outcome(_agree([a[s] < b[s] for a, b in pairs for s in seeds]), "<br>".join(shown))


def doubling_on_many_ranks(cases: Cases) -> Outcome:
    """Decide whether recursive doubling errs less on 16 ranks and more, for each seed."""
    errors = _by_ranks(cases)
    ring, doubling = errors["ring"], errors["recursive_doubling"]
    wins = [doubling[n][s] < ring[n][s] for n in ring if n >= 16 for s in _seeds(ring[n])]
    shown = (f"{n} ranks {100 * _mean(ring[n]):.0f} %, {100 * _mean(doubling[n]):.0f} %"
             for n in ring)  # fmt: skip
    start = "error of the sum by ring, by recursive doubling: "
    return Outcome(_agree(wins), start + "; ".join(shown))


def growth_with_ranks(cases: Cases) -> Outcome:
    """Decide whether the error grows as the number of quantizations does."""
    errors = _by_ranks(cases)
    first, *_, last = errors["ring"]
    counted = {"ring": last / first, "recursive_doubling": log2(last) / log2(first)}
    growth = {name: _mean(errors[name][last]) / _mean(errors[name][first]) for name in counted}
    shown = (f"{n.replace('_', ' ')} x{growth[n]:.1f} (counted: x{counted[n]:.0f})"
             for n in counted)  # fmt: skip
    is_so = all(growth[name] >= counted[name] for name in counted)
    return Outcome(_holds(is_so), f"from {first} to {last} ranks " + ", ".join(shown))


def _by_ranks(cases: Cases) -> dict[str, dict[int, Values]]:
    """Return errors by algorithm and number of ranks. Cases: `ring nearest 64` and so on."""
    errors: dict[str, dict[int, Values]] = {}
    for name, values in cases.items():
        algorithm, _, num_ranks = name.split()
        errors.setdefault(algorithm, {})[int(num_ranks)] = values
    return {name: dict(sorted(by_ranks.items())) for name, by_ranks in errors.items()}


def _seeds(values: Values) -> list[str]:
    return [name for name in values if name.startswith("seed ")]


def _mean(values: Values) -> float:
    return fmean(values[seed] for seed in _seeds(values))


# Dynamic communication thresholding


def times_less(cases: Cases, kind: str, least: float) -> Outcome:
    """Decide whether some density sends so many times less. Args: kind: dense or rows."""
    ratios = {name.split()[-1]: values[kind] for name, values in cases.items()}
    shown = "; ".join(f"density {density}: {x:.0f} times" for density, x in ratios.items())
    return Outcome(_holds(max(ratios.values()) >= least), shown)


def first_times_less(cases: Cases, least: float) -> Outcome:
    """Decide whether the first of some configurations sends so many times less."""
    ratios = [values["dense"] for values in cases.values()]
    shown = "; ".join(f"`{name}`: {x:.0f} times" for name, x in zip(cases, ratios, strict=True))
    return Outcome(_holds(ratios[0] >= least), shown)


def threshold_sends_less(cases: Cases) -> Outcome:
    """Decide whether a threshold of rows sends less than as many columns of each row."""
    pairs = {n.split()[-1]: (v["rows"], cases[f"model parallel {n.split()[-1]}"]["rows"])
             for n, v in cases.items() if n.startswith("by threshold")}  # fmt: skip
    shown = "; ".join(f"density {n}: {a:.0f}, {b:.0f}" for n, (a, b) in pairs.items())
    is_less = all(ours > theirs for ours, theirs in pairs.values())
    return Outcome(_holds(is_less), f"times less by threshold, by columns: {shown}")


def both_send_less(cases: Cases) -> Outcome:
    """Decide whether gradients and rows are both fewer in one configuration."""
    ((name, v),) = cases.items()
    result = f"{v['dense']:.0f} times fewer bytes of dense gradients, {v['rows']:.0f} times of rows"
    result += f" both ways (densities {name.removeprefix('hybrid ')})"
    return Outcome(_holds(min(v["dense"], v["rows"]) > 1), result)


def as_little(cases: Cases, labels: list[str], but: str = "") -> Outcome:
    """Decide whether all cases send at most a tenth more than the first. Args: but: not counted."""
    first, *rest = (values["dense"] for values in cases.values())
    counted = [v["dense"] for name, v in list(cases.items())[1:] if name != but]
    shown = "; ".join(f"{n} {x:.0f}" for n, x in zip(labels, (first, *rest), strict=True))
    return Outcome(_holds(min(counted) >= MOST_MORE * first), f"times less: {shown}")


def equal_bytes(cases: Cases) -> Outcome:
    """Decide whether `equal_50` and `life_50`, and so on, send as much within a tenth."""
    pairs = {n[6:]: (v["dense"], cases[f"life_{n[6:]}"]["dense"])
             for n, v in cases.items() if n.startswith("equal_")}  # fmt: skip
    shown = "; ".join(f"{n}: {x:.0f}, {y:.0f}" for n, (x, y) in pairs.items())
    is_equal = all(MOST_MORE <= x / y <= 1 / MOST_MORE for x, y in pairs.values())
    start = "times less, anew every 10 steps and used for long: "
    return Outcome(_holds(is_equal), start + shown)


def time_of_threshold(cases: Cases) -> Outcome:
    """Decide whether finding a threshold takes a tenth of encoding or less, if used for long."""
    (values,) = cases.values()
    shares = {life: values["ratio"] / life for life in LIVES}
    shown = "; ".join(f"{life}: {100 * share:.3g} %" for life, share in shares.items())
    start = "finding it takes, of the time of encoding, by steps that it is used for: "
    return Outcome(_holds(min(shares.values()) <= 0.1), start + shown)


def global_keeps_more(cases: Cases) -> Outcome:
    """Decide whether one threshold for all layers keeps more than one for each, for each seed."""
    everywhere, layer = cases["global"], cases["layer"]
    wins = [everywhere[seed] > layer[seed] for seed in _seeds(layer)]
    shares = [100 * _mean(values) for values in (everywhere, layer)]
    return Outcome(_agree(wins), "{:.0f} % of the squares against {:.0f} %".format(*shares))


def dense_autograd(cases: Cases) -> Outcome:
    """Decide whether loss and gradients are those of dense autograd with a mask, bit for bit."""
    shown = "; ".join(f"density {n}: {v['difference']:g}, {v['ratio']:.1f}"
                      for n, v in cases.items())  # fmt: skip
    is_equal = all(v["difference"] == 0 for v in cases.values())
    start = "largest difference of loss and gradients, times fewer bytes in fp16: "
    return Outcome(_holds(is_equal), start + shown)


# Dual-level adaptive error bounds


def ratio(cases: Cases, encoder: str, theirs: float, huffman: str = "") -> Outcome:
    """Compare an encoder's ratios with the artefact's. Args: huffman: key of zlib's coder."""
    figures = {name.replace("128 samples, ", ""): v[encoder] for name, v in cases.items()}
    result = "<br>".join(f"{name} {x:.1f}x" for name, x in figures.items())
    if huffman:
        *_, last = cases.values()
        result += f" (with zlib's Huffman coder {last[huffman]:.1f}x)"
    all_above, none_above = min(figures.values()) >= theirs, max(figures.values()) < theirs
    return Outcome(HOLDS if all_above else FAILS if none_above else OPEN, result)


def rans_is_enough(cases: Cases) -> Outcome:
    """Decide whether rANS is within 1 % of the better encoder where a bag is sent once."""
    shown = "<br>".join(
        f"{_optimizer(name)}: vector-LZ {v['vector_lz']:.1f}x of all rows, "
        f"{v['distinct_vector_lz']:.1f}x of distinct ones, rANS {v['rans']:.1f}x, "
        f"{v['distinct_rans']:.1f}x"
        for name, v in cases.items()
    )
    most = max(v["distinct_best"] / v["distinct_rans"] - 1 for v in cases.values())
    return Outcome(_holds(most < 0.01), f"{shown}<br>the choice gains {100 * most:.2f} %")


def classes(cases: Cases) -> Outcome:
    """Decide whether most large tables come out tight, and all small ones loose."""
    (v,) = cases.values()
    if v["rank_correlation"] == 0:
        moved = "no table has moved far enough from its initial values: all indices are 1"
        return Outcome(OPEN, moved)
    large, small = (
        ", ".join(f"{v[f'num_{size}_{kind}']:.0f} {kind}" for kind in ("tight", "base", "loose"))
        for size in ("large", "small")
    )
    agree = v["num_large_tight"] > v["num_large"] / 2 and v["num_small_loose"] == v["num_small"]
    return Outcome(
        _holds(agree),
        f"of {v['num_large']:.0f} tables of more than 970 rows {large}; of {v['num_small']:.0f} of "
        f"3 to 970 rows {small}; rank correlation of index and size {v['rank_correlation']:+.2f}",
    )


def choice_of_encoders(cases: Cases) -> Outcome:
    """Decide whether a choice for each table gains more than 1 % over the best encoder for all."""
    lines, gains = [], []
    for name, v in cases.items():
        gains.append(v["speed_up_choice"] / max(v[f"speed_up_{e}"] for e in ENCODERS) - 1)
        tables = ", ".join(f"{e} {v[f'tables_{e}']:.0f}" for e in ENCODERS)
        lines.append(f"{_rest(name)}: +{100 * gains[-1]:.0f} % ({tables} tables)")
    return Outcome(_holds(max(gains) > 0.01), "<br>".join(lines))


def modelled_step(cases: Cases) -> Outcome:
    """Show the modelled speed-up of a step whose forward all-to-all alone is coded."""
    forward = ALL_TO_ALL_SHARE / 2
    shown = "<br>".join(
        f"{_rest(name)} {x:.1f}x, {1 / (1 - forward + forward / x):.2f}x"
        for name, x in ((name, v["speed_up_choice"]) for name, v in cases.items())
    )
    most = f"{1 / (1 - forward):.2f}x if forward took no time"
    return Outcome(OPEN, f"modelled, forward and step: {shown}<br>{most}")


def prediction(cases: Cases, along: str) -> Outcome:
    """Decide whether values have no less entropy when predicted along rows or columns."""
    shown = "<br>".join(f"{name}: {v['none']:.2f}, {v[along]:.2f}" for name, v in cases.items())
    is_so = all(v[along] >= v["none"] for v in cases.values())
    return Outcome(_holds(is_so), f"entropy in bits a value without, with:<br>{shown}")


def drift(cases: Cases) -> Outcome:
    """Decide whether rows of large tables become more homogeneous before the samples' own turn."""
    by_share = {_rest(name): v for name, v in cases.items()}
    before = [v["index_largest"] for share, v in by_share.items() if float(share) < 1]
    shown = "<br>".join(
        f"after {share} {v['index_largest']:.2f}, {v['index']:.2f}, {v['spread']:.4f}, "
        f"{v['bits']:.2f}"
        for share, v in by_share.items()
    )
    start = "index of the largest third, of all tables, standard deviation, bits a value:<br>"
    return Outcome(_moved(cases, before[-1] < before[0]), start + shown)


def nearer_to_gaussian(cases: Cases) -> Outcome:
    """Decide whether the values of most tables lie nearer to a Gaussian than to uniform values."""
    pairs = [_distances(values) for values in cases.values()]
    nearer = sum(gaussian < uniform for gaussian, uniform in pairs)
    means = " and ".join(f"{sum(each) / len(pairs):.2f}" for each in zip(*pairs, strict=True))
    return Outcome(
        _moved(cases, nearer > len(pairs) / 2),
        f"so in {nearer} of {len(pairs)} tables; mean total variation distance from Gaussian and "
        f"uniform values {means}",
    )


def _distances(values: Values) -> tuple[float, float]:
    """Return the total variation distance from a Gaussian and from uniform values.

    The Gaussian has the values' mean and deviation, what lies beyond +-1 counts in the last bins.

    Args: values: numbers of values by bin, and mean and deviation of the values.
    """
    counts = np.array([values.get(f"bin {number}", 0) for number in range(NUM_BINS)], dtype=float)
    deviation = max(values["deviation"], 1e-12)
    edges = (np.linspace(-1, 1, NUM_BINS + 1) - values["mean"]) / (deviation * math.sqrt(2))
    below = np.array([0, *((1 + math.erf(edge)) / 2 for edge in edges[1:-1]), 1])
    others = np.diff(below), np.full(NUM_BINS, 1 / NUM_BINS)
    first, second = (float(np.abs(counts / counts.sum() - x).sum()) / 2 for x in others)
    return first, second


def as_small_at_terabyte(cases: Cases) -> Outcome:
    """Decide whether rows are as small at the Terabyte set's dim and batch. Cases of the two."""
    kaggle, terabyte = "dim 32, batch 128, ", "dim 64, batch 2048, "
    pairs = {
        name.removeprefix(kaggle): (v, cases[name.replace(kaggle, terabyte)])
        for name, v in cases.items() if name.startswith(kaggle)
    }  # fmt: skip
    shown = "<br>".join(
        f"{case}: "
        + ", ".join(f"{n} {k[n]:.1f}x {t[n]:.1f}x" for n in (*ENCODERS, "best", "distinct_rans"))
        for case, (k, t) in pairs.items()
    )
    is_so = all(t["best"] >= k["best"] for k, t in pairs.values())
    return Outcome(_holds(is_so), f"at Kaggle's, at the Terabyte set's: {shown}")


def _optimizer(name: str) -> str:
    return name.split(", ")[0]


def _rest(name: str) -> str:
    return name.split(", ", 1)[1]


def _moved(cases: Cases, is_so: bool) -> str:
    """Return a verdict that is open where no table has moved from its initial values."""
    return _holds(is_so) if any(v["index"] < 1 for v in cases.values()) else OPEN


# 4D parallelism


def stock_bits(cases: Cases) -> Outcome:
    """Decide whether four shardings in one model train as TorchRec alone does."""
    same, seen = (bool(cases["stock"][name]) for name in ("fp32", "another_config"))
    return Outcome(
        OPEN if not seen else _holds(same),
        f"weights and losses {'equal' if same else 'differ'} (with 16 bits on the wire they "
        f"{'differ' if seen else 'are equal, too'})",
        "" if seen else "a digest that sees the difference",
    )


def repeats(cases: Cases) -> Outcome:
    """Decide whether runs are bit-reproducible."""
    runs = {f"{config} ({case})": value for case, values in cases.items()
            for config, value in values.items() if config != "another_seed"}  # fmt: skip
    refused = [name for name, value in runs.items() if value == REFUSED]
    differ = [name for name, value in runs.items() if not value]
    blind = [case for case, values in cases.items() if not values["another_seed"]]
    num_pairs = len(runs) - len(refused)
    result = f"{num_pairs - len(differ)} of {num_pairs} pairs of runs have equal bits"
    result += f"<br>not {', '.join(differ)}" if differ else ""
    if refused:
        result += f"<br>refused, as its mask cannot be kept there: {', '.join(refused)}"
    to_tell = f"a digest that sees another seed: {', '.join(blind)}" if blind else ""
    verdict = FAILS if differ else OPEN if blind else HOLDS
    return Outcome(verdict, result, to_tell, {"cases": "; ".join(sorted(cases))})


def lookup(cases: Cases) -> Outcome:
    """Decide whether lookups of 16 bits are coded without a float32 copy. Cases: fp32, the dtype"""
    whole, nbytes = (v["uncoded_nbytes"] for v in cases.values())
    if not nbytes:
        return Outcome(FAILS, "refused by a ValueError: FBGEMM's lookups for CPU do not give it")
    result = f"{nbytes:.0f} bytes of rows before coding, where float32 has {whole:.0f}"
    return Outcome(_holds(2 * nbytes == whole), result)


def placement(cases: Cases, other: str) -> Outcome:
    """Decide against another placement, beyond what the same plan timed twice differs."""
    planned = {case: v["planned_s"] / v[f"{other}_s"] for case, v in cases.items()}
    apart = {case: v["dealt_again_s"] / v["dealt_s"] for case, v in cases.items()}
    faster = all(planned[case] < min(x, 1 / x) for case, x in apart.items())
    slower = all(planned[case] > max(x, 1 / x) for case, x in apart.items())
    shown = "<br>".join(f"{case} {planned[case]:.2f} ({apart[case]:.2f})" for case in cases)
    verdict = HOLDS if faster else FAILS if slower else OPEN
    return Outcome(verdict, f"step planned / {other} (dealt again / dealt): {shown}")


def _holds(is_so: bool) -> str:
    return HOLDS if is_so else FAILS


def _agree(wins: list[bool]) -> str:
    """Return a verdict about comparisons, all of which have to agree."""
    return HOLDS if all(wins) else OPEN if any(wins) else FAILS


RULES: tuple[Callable[..., Outcome], ...] = (
    telescoping, finer_grain, doubling_on_many_ranks, growth_with_ranks, times_less,
    first_times_less, threshold_sends_less, both_send_less, as_little, equal_bytes,
    time_of_threshold, global_keeps_more, dense_autograd, ratio, rans_is_enough, classes,
    choice_of_encoders, modelled_step, prediction, drift, nearer_to_gaussian, as_small_at_terabyte,
    stock_bits, repeats, lookup, placement,
)  # fmt: skip
