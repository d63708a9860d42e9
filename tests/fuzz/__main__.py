"""make fuzz: damaged frames of every codec at every receiver, damaged messages of ids, of replicas
and of low-rank all-reduces, and error bounds on awkward values.

Examples:
    python -m tests.fuzz
    python -m tests.fuzz ids factors --minutes 30 --seed 3
"""

import argparse
import time
from collections.abc import Callable

from tests.fuzz import factors, ids, receivers, replicas
from tests.fuzz.bounds import worst_error

ENCODERS = ("bitpack", "rans")


def _bounds(num_values: int, seed: int) -> str:
    worst = {encoder: worst_error(num_values, encoder) for encoder in ENCODERS}
    if max(worst.values()) > 1:
        raise SystemExit(f"fuzz: the error bound was broken: {worst}")
    return f"largest |error| / bound {max(worst.values())!r}"


# {search: (cases of one part, what a case is, function of the cases and a seed)}
SEARCHES: dict[str, tuple[int, str, Callable[[int, int], object]]] = {
    "ids": (10_000, "messages", ids.search),
    "frames": (10_000, "pairs of receiver and wire id", receivers.search),
    "replicas": (1_000, "messages", replicas.search),
    "factors": (100, "all-reduces", factors.search),
    "bounds": (10**6, "values of each encoder", _bounds),
}


def main() -> None:
    """Run the searches and print their results. An exception ends them; its seed repeats it."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.fuzz",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("searches", nargs="*", metavar="SEARCH", help=f"of {', '.join(SEARCHES)}")
    parser.add_argument("--minutes", type=float, default=3, help="of each search; default 3")
    parser.add_argument("--seed", type=int, default=0, help="seed of the first part; default 0")
    options = parser.parse_args()
    if unknown := {*options.searches} - {*SEARCHES}:
        parser.error(f"SEARCH: {min(unknown)!r} is not one of {', '.join(SEARCHES)}")
    for name in options.searches or SEARCHES:
        size, cases, search = SEARCHES[name]
        begin, seed = time.monotonic(), options.seed
        while seed == options.seed or time.monotonic() - begin < 60 * options.minutes:
            result = search(size, seed)
            seed += 1
            done = (seed - options.seed) * size
            print(f"{name}: {done} {cases}, seeds to {seed - 1}; last part: {result}", flush=True)
    print("fuzz: nothing found")


if __name__ == "__main__":
    main()
