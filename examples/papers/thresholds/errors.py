"""What measurements without a training decide about dynamic communication thresholding.

Knows: names and numbers of the measurements. Does not know: how they were measured.
Source of the claims: see losses.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import mean

from examples.papers.claims import FAILS, HOLDS, OPEN, Claim
from examples.papers.decisions import Decision
from examples.papers.measured import activations, gradients, threshold_time, traffic
from examples.papers.measurements import Values
from examples.papers.thresholds.configs import EQUAL, LIVES, SPARSE
from examples.papers.trainings import claim_of
from trec_qcomm.lab.records import NetworkRecord

Measured = Mapping[str, Values]
LEAST = {"dense": 100, "rows": 20}  # times less communication, by the abstract
NOTES = {
    "dense": "how the paper counts: 1 % of the values are 100 times fewer values, each with its "
    "place; small tensors are float32 here",
    "rows": "what it costs is told by density",
}
BASE, OURS = "stock", "dct"
TEN_STEPS = "threshold_0.01"  # 1 %, the threshold anew every 10 steps
MOST_MORE = 1 / 1.1  # of times less: a tenth more bytes
OF_TRAININGS = "one training of 137k Criteo rows, dim 16, 4 ranks x 128, headers included"
RATES = {
    "25mbit": "25 Mbit/s", "100mbit": "100 Mbit/s", "1gbit": "1 Gbit/s", "10gbit": "10 Gbit/s",
    "none": "no limit",
}  # fmt: skip


def bytes_sent(measured: Measured) -> list[Claim]:
    """Decide how many times less is sent."""
    claims = []
    for kind, what, start in (
        ("dense", "Data parallel, 100 times less communication or more", "data parallel"),
        ("rows", "Model parallel, 20 times less communication or more", "model parallel"),
    ):
        ratios = {n: v[kind] for n, v in measured.items() if n.startswith(start)}
        if not ratios:
            continue
        is_kept = max(ratios.values()) >= LEAST[kind]
        claims.append(
            claim_of(
                Decision(HOLDS if is_kept else FAILS),
                what,
                source="abstract",
                setting=traffic.SETTING,
                result="; ".join(
                    f"density {name.split()[-1]}: {ratio:.0f} times"
                    for name, ratio in ratios.items()
                ),
                note=NOTES[kind],
            )
        )
    claims += _by_threshold(measured)
    for name, values in measured.items():
        if name.startswith("hybrid"):
            claims.append(
                claim_of(
                    Decision(HOLDS if min(values["dense"], values["rows"]) > 1 else FAILS),
                    "Data and model parallel thresholding go together in one configuration",
                    source="ours",
                    setting=traffic.SETTING,
                    result=f"{values['dense']:.0f} times fewer bytes of dense gradients, "
                    f"{values['rows']:.0f} times of rows both ways (densities {name[7:]})",
                )
            )
    return claims


def sent(measured: Measured) -> list[Claim]:
    """Decide what the trainings with thresholds of 1 % of the gradients really sent."""
    times = {name: values["dense"] for name, values in measured.items()}
    if TEN_STEPS not in times:
        return []
    base = times[TEN_STEPS]
    by_life = {f"life_{n}": times[f"life_{n}"] for n in LIVES if f"life_{n}" in times}
    longer = [ratio for name, ratio in by_life.items() if name != "life_1"]
    apart = {*by_life, TEN_STEPS, *(f"{k}_{n}" for k in ("equal", "sparse") for n in LIVES)}
    others = {name: r for name, r in times.items() if name not in apart}
    claims = [
        claim_of(
            Decision(HOLDS if base >= LEAST["dense"] else FAILS),
            "Data parallel, 100 times less communication or more",
            source="abstract",
            setting=f"{OF_TRAININGS}, the threshold anew every 10 steps",
            result="; ".join(
                f"`{n}`: {r:.0f} times" for n, r in {TEN_STEPS: base, **others}.items()
            ),
            note="what it costs is told by trainings",
        )
    ]
    if longer:
        claims.append(
            claim_of(
                Decision(HOLDS if min(longer) >= MOST_MORE * base else FAILS),
                "A threshold that is used for 50, 200 and 1000 steps sends at most a tenth more "
                "than one of 10",
                source="ours",
                setting=OF_TRAININGS,
                result=f"times less: 10 steps {base:.0f}; "
                + "; ".join(f"{name[5:]} {ratio:.0f}" for name, ratio in by_life.items()),
            )
        )
    return [*claims, *_equal_bytes(times), *_sparse(times)]


def _equal_bytes(times: Mapping[str, float]) -> list[Claim]:
    """Decide whether what the trainings compare at equal bytes is equal: within a tenth."""
    pairs = {n: (times.get(f"equal_{n}"), times.get(f"life_{n}")) for n in EQUAL}
    known = {n: (x, y) for n, (x, y) in pairs.items() if x is not None and y is not None}
    if not known:
        return []
    is_equal = all(MOST_MORE <= ours / theirs <= 1 / MOST_MORE for ours, theirs in known.values())
    return [
        claim_of(
            Decision(HOLDS if is_equal else FAILS),
            "Thresholds that are compared at equal bytes send as much, within a tenth",
            source="ours",
            setting=OF_TRAININGS,
            result="times less, anew every 10 steps and used for long: "
            + "; ".join(f"{n}: {x:.0f}, {y:.0f}" for n, (x, y) in known.items()),
        )
    ]


def _sparse(times: Mapping[str, float]) -> list[Claim]:
    """Decide whether a smaller density makes a long life send as little as 10 steps do."""
    by_life = {n: times[f"sparse_{n}"] for n in SPARSE if f"sparse_{n}" in times}
    if not by_life:
        return []
    is_kept = min(by_life.values()) >= MOST_MORE * times[TEN_STEPS]
    return [
        claim_of(
            Decision(HOLDS if is_kept else FAILS),
            "With a smaller density, a threshold that is used for 50, 200 and 1000 steps sends as "
            "little as 1 % of 10 steps",
            source="ours",
            setting=OF_TRAININGS,
            result=f"times less: 10 steps, 1 % {times[TEN_STEPS]:.0f}; "
            + "; ".join(f"{n}, {100 * SPARSE[n]:g} % {r:.0f}" for n, r in by_life.items()),
            note="what is kept for later grows above a threshold that stays as it was",
        )
    ]


def _by_threshold(measured: Measured) -> list[Claim]:
    """Decide whether a threshold of rows sends less than as many columns of each."""
    pairs = {
        name.split()[-1]: (values["rows"], measured[f"model parallel {name.split()[-1]}"]["rows"])
        for name, values in measured.items() if name.startswith("by threshold")
    }  # fmt: skip
    if not pairs:
        return []
    return [
        claim_of(
            Decision(HOLDS if all(ours > theirs for ours, theirs in pairs.values()) else FAILS),
            "Model parallel, a threshold for each table, its mask used again backward, sends less "
            "than as many columns of every row",
            source="ours",
            setting=f"{traffic.SETTING}, the threshold anew every 10 steps",
            result="times less by threshold, by columns: " + "; ".join(
                f"density {density}: {ours:.0f}, {theirs:.0f}"
                for density, (ours, theirs) in pairs.items()
            ),
            note="`topk` of a `threshold`: the codec `threshold` is for gradients",
        )
    ]  # fmt: skip


def time_of_thresholds(measured: Measured) -> list[Claim]:
    """Decide whether finding the threshold is cheap if it is used for long."""
    claims = []
    for sample, values in measured.items():
        shares = {life: values["ratio"] / life for life in threshold_time.LIVES}
        cheap = [life for life, share in shares.items() if share <= 0.1]
        what = "all values" if sample == "all" else f"a sample of {sample}"
        claims.append(
            claim_of(
                Decision(HOLDS if cheap else FAILS),
                f"Used for many steps, a threshold of {what} costs little beside encoding",
                source="ours",
                setting=threshold_time.SETTING,
                result="finding it takes, of the time of encoding, by steps that it is used for: "
                + "; ".join(f"{life}: {100 * share:.3g} %" for life, share in shares.items()),
            )
        )
    return claims


def scopes(measured: Measured) -> list[Claim]:
    """Decide whether one threshold for all layers keeps more than one for each."""
    if set(measured) < {"layer", "global"}:
        return []
    layer, everywhere = measured["layer"], measured["global"]
    seeds = [seed for seed in layer if seed in everywhere]
    wins = [everywhere[seed] > layer[seed] for seed in seeds]
    decision = Decision(HOLDS) if all(wins) else Decision(OPEN, "seeds disagree")
    shares = [100 * mean(values[seed] for seed in seeds) for values in (everywhere, layer)]
    return [
        claim_of(
            decision if any(wins) else Decision(FAILS),
            "One threshold for all layers keeps more of the gradients' power than one for each",
            source="ours",
            setting=f"{gradients.SETTING}, 1 % of the values; {len(seeds)} seeds",
            result=f"{shares[0]:.0f} % of the squares against {shares[1]:.0f} %",
        )
    ]


def neurons(measured: Measured) -> list[Claim]:
    """Decide whether the autograd op is dense autograd with a mask."""
    is_equal = all(values["difference"] == 0 for values in measured.values())
    return [
        claim_of(
            Decision(HOLDS if is_equal else FAILS),
            "Between pipeline stages, the most relevant neurons forward and only their gradients "
            "backward are dense autograd with a mask",
            source="ours",
            setting=activations.SETTING,
            result="largest difference of loss and gradients, times fewer bytes in fp16: "
            + "; ".join(
                f"density {density}: {values['difference']:g}, {values['ratio']:.1f}"
                for density, values in measured.items()
            ),
        )
    ]


def links(records: Sequence[NetworkRecord]) -> list[Claim]:
    """Decide whether a training is 37 % shorter, on two hosts."""
    chosen = [r for r in records if r.num_hosts == 2 and r.setup["plan"] == "table_wise"]
    times = {(r.configuration, r.rate): r.step_s.p50 for r in chosen}
    shorter = {
        rate: 1 - times[OURS, rate] / times[BASE, rate]
        for rate in RATES
        if (OURS, rate) in times and (BASE, rate) in times
    }
    if not shorter:
        return []
    return [
        claim_of(
            Decision(OPEN, "the paper's production model and cluster"),
            "End-to-end training of a production model is 37 % shorter",
            source="abstract",
            setting="`dct.yaml` against plain TorchRec in float32 with gloo, 2 emulated hosts, dim "
            "64, 2048 samples a host; median step",
            result="shorter by " + ", ".join(
                f"{100 * share:.0f} % at {RATES[rate]}" for rate, share in shorter.items()
            ),
            note="the dense gradients are float32 in both",
        )
    ]  # fmt: skip
