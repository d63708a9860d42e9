"""Writes the configs of the study of quantized collectives and thresholds, one file each.

  python examples/criteo/studies/dense_configurations.py --out runs/configs
  python examples/criteo/studies/accuracy.py --configs runs/configs/*.yaml --seeds 16 --jobs 2 \\
      --modes training --data train.txt --out runs/study

The configs: all-to-all forward, backward or both at 8, 4 and 2 bits; all-reduce by ring or
recursive doubling at 8, 4 and 2 bits with and without error feedback, and some by two-shot;
gradients above a threshold (DCT, data parallel) and the largest columns (DCT, model parallel) at
several densities.
What a config does not name is exact; `best_dense_*` have the embeddings of configs/fast.yaml.
Source: the tables of Yang et al. 2020 (quantized collectives) and Gupta et al. 2021 (DCT).
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import yaml

from trec_qcomm import (
    Cast,
    Config,
    Float6,
    GradientRule,
    Identity,
    Rowwise,
    TableRule,
    Threshold,
    TopK,
)
from trec_qcomm.config import config_to_dict, load_preset
from trec_qcomm.core.codec import Codec
from trec_qcomm.ext.dct import ForwardMask
from trec_qcomm.ext.dct.refresh import ThresholdRefresh

BITS = (8, 4, 2)
THRESHOLD_DENSITIES = (0.01, 0.001)
DENSITIES = (0.5, 0.25, 0.125, 0.0625)
EXACT = (TableRule(tables=("*",), forward=Identity(), backward=Identity()),)
BEST = load_preset("fast").embedding  # under its former name


def configurations() -> dict[str, Config]:
    """Return all configs by name."""
    configs: dict[str, Config] = {}
    for bits in BITS:
        lossy = {"forward": Rowwise(bits), "backward": Rowwise(bits, "stochastic")}
        for name in lossy:
            configs[f"a2a_{name}_int{bits}"] = _embedding(**{name: lossy[name]})
        configs[f"a2a_both_int{bits}"] = _embedding(**lossy)
        for algorithm in ("ring", "recursive_doubling"):
            for feedback in (False, True):
                name = f"{algorithm}_int{bits}" + "_feedback" * feedback
                configs[name] = _dense(Rowwise(bits), algorithm, feedback)
    for name, codec, feedback in (
        ("int8", Rowwise(8), False),
        ("int8_stochastic", Rowwise(8, "stochastic"), False),
        ("int4", Rowwise(4), False),
        ("int4_feedback", Rowwise(4), True),
        ("int4_stochastic", Rowwise(4, "stochastic"), False),
    ):
        configs[f"two_shot_{name}"] = _dense(codec, "two_shot", feedback)
    for name, rule in (
        ("int8", GradientRule(codec=Rowwise(8))),
        ("int8_stochastic", GradientRule(codec=Rowwise(8, "stochastic"), algorithm="two_shot")),
        ("int4", GradientRule(codec=Rowwise(4))),
        ("bf16", GradientRule(codec=Cast("bf16"), algorithm="two_shot")),
        ("float6", GradientRule(codec=Float6("e4m1", "stochastic"), algorithm="two_shot")),
        ("float6_e3m2", GradientRule(codec=Float6("e3m2", "stochastic"), algorithm="two_shot")),
    ):
        configs[f"best_dense_{name}"] = Config(embedding=BEST, dense=rule)
    for density in THRESHOLD_DENSITIES:
        refresh = ThresholdRefresh(every=10, density=density, sample="all")
        codec, options = Threshold(1.0, values="int8"), {"block": 1, "refresh": refresh}
        configs[f"threshold_{density:g}"] = _dense(codec, "two_shot", True, **options)
    for density in DENSITIES:
        configs[f"topk_{density:g}"] = _embedding(forward=TopK(density), backward=ForwardMask())
    return configs


def _embedding(forward: Codec = Identity(), backward: Codec = Identity()) -> Config:  # noqa: B008
    return Config(embedding=(TableRule(tables=("*",), forward=forward, backward=backward),))


def _dense(codec: Codec, algorithm: str, error_feedback: bool, **options: Any) -> Config:
    rule = GradientRule(codec=codec, algorithm=algorithm, error_feedback=error_feedback, **options)
    return Config(embedding=EXACT, dense=rule)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True, help="a folder, made if need be")
    folder: Path = parser.parse_args().out
    folder.mkdir(parents=True, exist_ok=True)
    for name, config in configurations().items():
        text = yaml.safe_dump(config_to_dict(config), sort_keys=False)
        (folder / f"{name}.yaml").write_text(text)
    print(f"{len(configurations())} configs in {folder}")


if __name__ == "__main__":
    main()
