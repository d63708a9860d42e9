"""The command line of a program that trains configs in turn and measures them.

Knows: --configs, --pipelines and how many steps; that what is left belongs to a train.py. Does not
know: which train.py, its model and its data.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch.distributed as dist

from trec_qcomm.lab import records
from trec_qcomm.lab.records import NetworkRecord


@dataclass(frozen=True, kw_only=True)
class TrainOptions:
    """The options of a train.py, for a program that does not write what train.py writes.

    Args:
        build_parser: maker of train.py's parser.
        check: function that raises ValueError for options that make no sense.
        setup_of: function that returns the options that must be equal for two records to be
            compared.
        unused: names of options that would do nothing, and are refused.
        pipelines: choices of --pipeline.
        defaults: words that come before those of the command line.
    """

    build_parser: Callable[[], argparse.ArgumentParser]
    check: Callable[[argparse.Namespace], None]
    setup_of: Callable[[argparse.Namespace], dict[str, Any]]
    unused: Sequence[str]
    pipelines: Sequence[str]
    defaults: Sequence[str] = ()

    def parse(
        self,
        configs: Sequence[str],
        rest: Sequence[str],
        pipelines: Sequence[str] | None = None,
        plans: Sequence[str] | None = None,
    ) -> list[argparse.Namespace]:
        """Return the options of each config with each pipeline and plan; None: those of `rest`.

        Raises: ValueError: an option that does nothing here.
        """
        parser = self.build_parser()
        choices = [
            [(option, value) for value in values]
            for option, values in (("--pipeline", pipelines), ("--plan", plans))
            if values
        ]
        words = [
            [*self.defaults, *rest, *itertools.chain(*chosen)]
            for chosen in itertools.product(*choices)
        ]
        every = [parser.parse_args(["--config", c, *more]) for c in configs for more in words]
        for name in self.unused:
            if any(getattr(options, name) != parser.get_default(name) for options in every):
                raise ValueError(f"{name}: an option that bench-net does not have")
        for options in every:
            self.check(options)
        return every


# Options of each training, those of the command line, the network interface -> a record each.
Measure = Callable[[list[argparse.Namespace], argparse.Namespace, str], list[NetworkRecord]]


def run(description: str | None, train_options: TrainOptions, measure: Measure) -> None:
    """Measure as the command line says, and append rank 0's records. Every rank calls it once."""
    parser = _parser(description, train_options)
    arguments, rest = parser.parse_known_args()
    if arguments.num_steps < 1:
        parser.error(f"steps {arguments.num_steps}: must be positive")
    try:
        every = train_options.parse(arguments.configs, rest, arguments.pipelines, arguments.plans)
    except ValueError as error:
        parser.error(str(error))
    if arguments.check:
        print(json.dumps([train_options.setup_of(options) for options in every]))
        return
    ranks_per_node = vars(every[0]).get("ranks_per_node")  # which not every training has
    if ranks_per_node is not None:
        os.environ["LOCAL_WORLD_SIZE"] = str(ranks_per_node)  # what TorchRec calls a node
    num_ranks, ranks_per_host = int(os.environ["WORLD_SIZE"]), arguments.ranks_per_host
    if ranks_per_host < 1 or num_ranks % ranks_per_host:
        parser.error(f"ranks_per_host {ranks_per_host}: {num_ranks} ranks do not fill such hosts")
    interface = os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group("gloo", timeout=timedelta(seconds=every[0].timeout))
    try:
        made = measure(every, arguments, interface)
        dist.barrier()  # a thread of gloo that freed a Python tensor during exit would abort
    finally:
        dist.destroy_process_group()
    if int(os.environ["RANK"]) == 0:
        records.append(arguments.out, *made)


def network_of(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return what a record says of the network."""
    names = ("rate", "delay", "ranks_per_host")
    return {name: getattr(arguments, name) for name in names}


def _parser(description: str | None, train_options: TrainOptions) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--configs", nargs="+", required=True, help="as train.py's --config")
    add(
        "--pipelines",
        nargs="+",
        choices=train_options.pipelines,
        help="each config with each of these (default: --pipeline)",
    )
    add("--plans", nargs="+", help="each config with each of these (default: --plan)")
    add("--steps", type=int, default=25, dest="num_steps", help="timed steps of each (default 25)")
    add("--ranks-per-host", type=int, default=1, help="for the records (default 1)")
    add("--rate", default="none", help="rate of each link, for the records (default none)")
    add("--delay", default=None, help="delay of each link, for the records")
    add("--out", type=Path, required=True, help="file of records, appended to")
    add(
        "--check",
        action="store_true",
        help="check the options and print the setup of each training as JSON; train nothing",
    )
    return parser
