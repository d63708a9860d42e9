"""make fuzz: damaged frames of every codec, and the error bound on values that are hard to code.

Examples:
    python -m tests.fuzz
    python -m tests.fuzz --frames 10000 --values 0 --seed 3
"""

import argparse

from tqdm import tqdm

from tests.fuzz.bounds import worst_error
from tests.fuzz.frames import search

ENCODERS = ("bitpack", "auto")


def main() -> None:
    """Run the searches and print their results. An exception ends them; its seed repeats it."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.fuzz",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--frames", type=int, default=10**6, help="default 10^6")
    parser.add_argument("--values", type=int, default=10**8, help="for each encoder; default 10^8")
    parser.add_argument("--seed", type=int, default=0, help="seed of the damage; default 0")
    options = parser.parse_args()
    with tqdm(total=options.frames, unit="frame") as bar:
        refused = search(options.frames, options.seed, bar.update)
    print(f"seed {options.seed}: {refused} of {options.frames} damaged frames refused, no crash")
    for encoder in ENCODERS if options.values else ():
        with tqdm(total=options.values, unit="value", unit_scale=True) as bar:
            worst = worst_error(options.values, encoder, bar.update)
        print(f"{encoder}: {options.values} values, max |error| / bound = {worst!r}")
        if worst > 1:
            raise SystemExit("fuzz: the error bound was broken")
    print("fuzz: nothing found")


if __name__ == "__main__":
    main()
