"""Claims of ZionEX, decided by what zionex.py measured.

Knows: numbers by case, records of trainings. Does not know: how they were measured.
"""

from __future__ import annotations

from collections.abc import Mapping

from examples.papers.claims import FAILS, HOLDS, OPEN, Claim
from examples.papers.measurements import Values
from examples.papers.sharded.cases import PLAYED, REFUSED
from examples.papers.trainings import Judged

Measured = Mapping[str, Values]
TOY = "3 steps, 26 tables of dim 48, synthetic rows"


def repeats(cases: Measured) -> list[Claim]:
    """Decide whether runs are bit-reproducible."""
    if not cases:
        return []
    runs = {
        f"{config} ({case})": value
        for case, values in cases.items()
        for config, value in values.items()
        if config != "another_seed"
    }
    refused = [name for name, value in runs.items() if value == REFUSED]
    runs = {name: value for name, value in runs.items() if value != REFUSED}
    differ = [name for name, value in runs.items() if not value]
    blind = [case for case, v in cases.items() if v.get("another_seed") == 0]
    missing = [case for case in PLAYED if case not in cases]
    result = f"{len(runs) - len(differ)} of {len(runs)} pairs of runs have equal bits"
    if differ:
        result += f"<br>not {', '.join(differ)}"
    if refused:
        result += f"<br>refused, as its mask cannot be kept there: {', '.join(refused)}"
    to_tell = [
        *([f"a digest that sees another seed: {', '.join(blind)}"] if blind else []),
        *([f"the cases {'; '.join(missing)}"] if missing else []),
    ]
    return [
        Claim(
            text="Runs are deterministic: each config that ships, with each sharding, gives equal "
            "bits of all weights and losses twice",
            source="abstract",
            setting=f"played ranks; {TOY}; {'; '.join(sorted(cases))}",
            result=result,
            verdict=FAILS if differ else OPEN if to_tell else HOLDS,
            to_tell="; ".join([*to_tell, "processes with gloo, GPUs with NCCL"]),
        )
    ]


def four(measured: Measured) -> list[Claim]:
    """Decide whether four shardings in one model train as TorchRec alone does."""
    values = measured.get("stock")
    if values is None:
        return []
    same, seen = bool(values["fp32"]), bool(values["another_config"])
    return [
        Claim(
            text="One model is sharded by table, by row, by column and by data at once; in float32 "
            "it has TorchRec's own bits",
            source="abstract",
            setting=f"four_shardings.yaml, 4 ranks of 2 nodes; {TOY}",
            result=f"weights and losses {'equal' if same else 'differ'} (with 16 bits on the wire "
            f"they {'differ' if seen else 'are equal, too'})",
            verdict=OPEN if not seen else HOLDS if same else FAILS,
            to_tell="a digest that sees the difference" if not seen else "",
        )
    ]


def lookups(measured: Measured) -> list[Claim]:
    """Decide for each dtype whether lookups of 16 bits are coded without a float32 copy."""
    nbytes = {name: values["uncoded_nbytes"] for name, values in measured.items()}
    whole = nbytes.pop("fp32", 0.0)
    return [_lookup(name, of_rows, whole) for name, of_rows in nbytes.items()]


def _lookup(name: str, nbytes: float, whole: float) -> Claim:
    """Decide for one dtype. Args: nbytes, whole: uncoded bytes of its rows and of float32 rows."""
    result = f"{nbytes:.0f} bytes of rows before coding, where float32 has {whole:.0f}"
    if not nbytes:
        result = "refused by a ValueError: FBGEMM's lookups for CPU do not give it"
    return Claim(
        text=f"Rows that a lookup gives in {name.upper()} (output_dtype) are sent without a "
        "float32 copy",
        source="ours",
        setting="EmbeddingBagCollection, 2 played ranks, config fp16_bf16",
        result=result,
        verdict=HOLDS if 0 < 2 * nbytes == whole else FAILS,
        to_tell="" if nbytes else "kernels for GPUs, whose lookups give it",
    )


def trainings(judged: Judged) -> list[Claim]:
    """Decide whether reduced precision trains as float32 does."""
    return judged.no_loss(
        "Rows in FP16 and gradients in BF16 cost no accuracy",
        source="ours",
        setting="137k Criteo rows, dim 16, Adam and row-wise Adagrad, 4 ranks x 128",
        names=("fp16_bf16",),
    )


def planner(measured: Measured) -> list[Claim]:
    """Decide whether the planner's placement is faster than two that no cost model makes."""
    if not measured:
        return []
    return [
        _placement("tables dealt out in turn by their size", "dealt", measured),
        _placement("tables placed greedily by their size", "greedy", measured),
    ]


def _placement(what: str, other: str, measured: Measured) -> Claim:
    """Decide against one placement, beyond what the same plan timed twice differs.

    Args: what: the other placement in words.  other: key of it in the measurements.
    """
    planned = {case: v["planned_s"] / v[f"{other}_s"] for case, v in measured.items()}
    apart = {case: v["dealt_again_s"] / v["dealt_s"] for case, v in measured.items()}
    faster = all(planned[case] < min(x, 1 / x) for case, x in apart.items())
    slower = all(planned[case] > max(x, 1 / x) for case, x in apart.items())
    result = "<br>".join(f"{case} {planned[case]:.2f} ({apart[case]:.2f})" for case in measured)
    return Claim(
        text=f"Tables placed by the planner's balance of load make a faster step than {what}",
        source="ours",
        setting="4 emulated hosts, dim 64, 2048 samples a host, 40 steps in turn: bench-net",
        result=f"step planned / {other} (dealt again / dealt): {result}",
        verdict=HOLDS if faster else FAILS if slower else OPEN,
        to_tell=""
        if faster or slower
        else "tables of more unequal load, more hosts; the planner is itself greedy, by modelled "
        "cost, and a search by measured steps would have to see less than equal plans differ",
    )
