"""Whether the gap to float32 grows with the length of a training: long paired trainings.

  python examples/criteo/studies/length.py --configs int8 best --jobs 2
  python examples/criteo/studies/length.py --configs best --steps 20000 --seeds 4 --out runs/longer
  python examples/criteo/studies/length.py --configs int8 best --show      what the records say

Each config trains on rows without end (data/endless.py), so every step's loss is one of fresh rows.
The gap at a step is the mean loss of the EVERY steps before it, over that of float32 from the same
seed; its slope is the line through the gaps from WARM steps on. Records, resuming and the null run
are those of trec_qcomm.quality.study, in --out/length.jsonl; --show also draws --out/length.png.
Other options are those of train.py; the defaults are 2 ranks x 256.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from data.dataset import Batches
from data.endless import TEST_ROWS
from ranks import FAILED, INTERRUPTED
from report import score
from trainer import Trainer

from studies.emulation import EmulatedTrainer, train_steps
from trec_qcomm import Config, quality
from trec_qcomm.lab.records import StudyRecord
from trec_qcomm.lab.report.figure import Figure
from trec_qcomm.lab.report.style import MUTED, Looks, grid, render
from trec_qcomm.lab.study.gates import BASELINE, NULL
from trec_qcomm.lab.study.paired import Change, percent

EVERY = 500  # steps whose losses make one point
WARM = 1000  # steps before the first gap that counts for the slope
AHEAD = 32  # batches of fresh rows on which AUC is taken, at every second point
LAST = "last_loss"  # mean loss of the last 2 EVERY steps
LIMITS = {LAST: quality.Limits(mean=0.02, upper=0.05, seeds=8), "logloss": None, "auc": None}
SLOPE_LIMIT = 0.01  # percent in 10,000 steps, of the one-sided upper limit


@dataclass(frozen=True)
class LongTrainer(EmulatedTrainer):
    """Callback of a study: a long training, and its losses and AUC on the way."""

    def __call__(self, config: Config, seed: int, perturbation: float) -> Any:
        """Return metrics by name; `loss_at_N` and `auc_at_N` are those at step N."""
        auc: dict[str, float] = {}

        def program(trainer: Trainer, rows: Batches, num_steps: int) -> None:
            for step in range(2 * EVERY, num_steps + 1, 2 * EVERY):
                train_steps(trainer, rows, 2 * EVERY)
                ahead = score(*trainer.predict(_after(rows, step), exact=False))
                auc[f"auc_at_{step}"] = ahead["auc"]

        model = self.run(config, seed, perturbation, program)
        losses = np.array(model.losses)
        means = losses.reshape(-1, EVERY).mean(1)
        loss = {f"loss_at_{EVERY * (n + 1)}": float(mean) for n, mean in enumerate(means)}
        return model.metrics | auc | loss | {LAST: float(losses[-2 * EVERY :].mean())}


def _after(rows: Batches, step: int) -> Batches:
    """Return the batches of this rank that come after so many steps."""
    size = rows.batch_size * rows.world_size
    ahead = rows.rows[step * size : (step + AHEAD) * size]
    return Batches(ahead, rows.batch_size, rows.rank, rows.world_size, drop_last=False)


@dataclass(frozen=True)
class Gaps:
    """Gaps of one config to float32, in percent of the loss; positive is worse.

    Args:
        steps: [S] the steps.
        by_seed: [seeds, S] of each paired training.
    """

    steps: np.ndarray
    by_seed: np.ndarray

    def at(self, step: int) -> Change:
        """Return the gap at a step, the mean of the two points up to it, over seeds."""
        near = (self.steps > step - 2 * EVERY) & (self.steps <= step)
        return Change.from_percents(self.by_seed[:, near].mean(1).tolist())

    @property
    def slope(self) -> Change:
        """Percent in 10,000 steps, of a line through each seed's gaps from WARM steps on."""
        counted = self.steps > WARM
        lines = np.polyfit(self.steps[counted] / 10_000, self.by_seed[:, counted].T, 1)
        return Change.from_percents(lines[0].tolist())


def gaps_of(records: Iterable[StudyRecord]) -> dict[str, Gaps]:
    """Return the gaps of each config that has trainings, the null run among them."""
    by_name: dict[str, dict[int, Mapping[str, float]]] = {}
    for record in records:
        if record.training is not None:
            metrics = by_name.setdefault(record.configuration, {})
            metrics[record.seed] = record.training.metrics
    exact, made = by_name.pop(BASELINE, {}), {}
    for name, runs in by_name.items():
        seeds = sorted(runs.keys() & exact.keys())
        if seeds:
            steps = _steps_of(exact[seeds[0]])
            gaps = [[_gap(runs[seed], exact[seed], step) for step in steps] for seed in seeds]
            made[name] = Gaps(np.array(steps), np.array(gaps))
    return made


def _steps_of(metrics: Mapping[str, float]) -> list[int]:
    names = (name for name in metrics if name.startswith("loss_at_"))
    return sorted(int(name.removeprefix("loss_at_")) for name in names)


def _gap(ours: Mapping[str, float], exact: Mapping[str, float], step: int) -> float:
    return percent(ours[f"loss_at_{step}"], exact[f"loss_at_{step}"])


def table(records: Sequence[StudyRecord]) -> str:
    """Return markdown: float32's loss and AUC on the way, then each config's gaps and slope."""
    exact = [r.training.metrics for r in records if r.configuration == BASELINE and r.training]
    steps = _steps_of(exact[0])
    shown = [step for step in (1000, 5000, 10_000, 20_000) if step in steps] or steps[-1:]
    lines = [f"| {BASELINE} | " + " | ".join(f"{step} steps" for step in shown) + " |"]
    lines.append("|---" * (len(shown) + 1) + "|")
    for kind, digits in (("loss", 4), ("auc", 4)):
        means = [np.mean([m[f"{kind}_at_{step}"] for m in exact]) for step in shown]
        lines.append(f"| {kind} | " + " | ".join(f"{mean:.{digits}f}" for mean in means) + " |")
    columns = [f"gap at {step}, %" for step in shown]
    lines += ["", "| config | seeds | " + " | ".join(columns) + " | slope, % in 10,000 steps |"]
    lines.append("|---" * (len(shown) + 3) + "|")
    for name, gaps in sorted(gaps_of(records).items(), key=lambda item: item[0] != NULL):
        cells = [*(gaps.at(step) for step in shown), gaps.slope]
        lines.append(f"| {name} | {len(gaps.by_seed)} | " + " | ".join(map(str, cells)) + " |")
    return "\n".join(lines)


def picture(records: Sequence[StudyRecord]) -> Figure:
    """Return the gap of each config against the step, with the interval of the mean as a band."""
    gaps = gaps_of(records)

    def draw(canvas: Any) -> None:
        axes, looks = canvas.subplots(), Looks(sorted(gaps))
        for name, of_config in gaps.items():
            color = looks[name].color
            changes = [Change.from_percents(of_seeds.tolist()) for of_seeds in of_config.by_seed.T]
            axes.plot(of_config.steps, [c.mean for c in changes], label=name, color=color)
            if all(c.low is not None for c in changes):
                band = [c.low for c in changes], [c.high for c in changes]
                axes.fill_between(of_config.steps, *band, color=color, alpha=0.15, linewidth=0)
        axes.axhline(LIMITS[LAST].mean, color=MUTED, linestyle=":", label="limit of the mean")
        axes.set(xlabel="training step", ylabel="loss above float32's, %")
        axes.legend(ncols=3)
        grid(axes)

    rows = [(name, *of_config.by_seed.mean(0)) for name, of_config in gaps.items()]
    columns = ["config", *(str(step) for step in next(iter(gaps.values())).steps)]
    return Figure(
        key="length", title="Gap to float32 against the step", columns=columns, rows=rows,
        draw=draw, size=(7.0, 3.4),
    )  # fmt: skip


def main() -> int:
    """Run what is missing and show all; the exit status is 1 after an error, 130 after Ctrl-C."""
    parser = _parser()
    arguments, rest = parser.parse_known_args()
    path: Path = arguments.out / "length.jsonl"
    try:
        study = study_arguments(arguments, rest)
        if arguments.show:
            records = quality.plan(**study).read(path)
        else:
            result = quality.study(**study, path=path, jobs=arguments.jobs)
            records = list(result.records)
            print(result)
    except ValueError as error:
        parser.error(str(error))
    except KeyboardInterrupt:
        print(f"interrupted; the same command goes on with {path}", file=sys.stderr)
        return INTERRUPTED
    except quality.TrainingFailedError as error:
        print(f"error: {error}", file=sys.stderr)
        return FAILED
    if not gaps_of(records):
        print(f"error: {path}: no pair of trainings yet", file=sys.stderr)
        return FAILED
    print(table(records))
    render(picture(records), arguments.out)
    return 0


def study_arguments(arguments: argparse.Namespace, rest: Sequence[str]) -> dict[str, Any]:
    """Return what quality.study takes. Raises ValueError naming the option that is wrong."""
    if arguments.steps < 2 * WARM or arguments.steps % (2 * EVERY):
        raise ValueError(
            f"steps {arguments.steps}: expected a multiple of {2 * EVERY} from {2 * WARM} on"
        )
    train = LongTrainer.from_words(
        ("--data", "endless", "--ranks", "2", "--batch-size", "256", *rest)
    )
    options = train.options
    options.steps = arguments.steps
    options.rows = (arguments.steps + AHEAD) * options.ranks * options.batch_size + TEST_ROWS
    configs = quality.configs_by_name(arguments.configs)
    train.check(configs)
    return {
        "train": train,
        "configs": configs,
        "seeds": arguments.seeds,
        "limits": LIMITS,
        "setup": train.setup,
        "num_ranks": options.ranks,
        "name": "length",
    }


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("--configs", nargs="+", required=True, help="YAML files, or names of configs that ship")
    add("--steps", type=int, default=10_000, help="of each training (default 10000)")
    add("--seeds", type=int, default=8, help="how many (default 8)")
    add("--jobs", type=int, default=1, help="processes of one thread each (default 1)")
    add("--show", action="store_true", help="run nothing; show what the records say")
    add("--out", type=Path, default=Path("runs/length"), help="default runs/length")
    return parser


if __name__ == "__main__":
    sys.exit(main())
