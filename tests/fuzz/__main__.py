"""make fuzz: damaged frames of every codec, at every receiver, and of ids; error bounds on awkward
values.

Examples:
    python -m tests.fuzz
    python -m tests.fuzz --pairs 10000 --ids 0 --values 0 --seed 3
"""

import argparse

from tqdm import tqdm

from tests.fuzz import ids, receivers
from tests.fuzz.bounds import worst_error

ENCODERS = ("bitpack", "rans")


def main() -> None:
    """Run the searches and print their results. An exception ends them; its seed repeats it."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.fuzz",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--pairs", type=int, default=10**6, help="receiver x id; default 10^6")
    parser.add_argument("--ids", type=int, default=10**5, help="messages of ids; default 10^5")
    parser.add_argument("--values", type=int, default=10**8, help="for each encoder; default 10^8")
    parser.add_argument("--seed", type=int, default=0, help="seed of the damage; default 0")
    options = parser.parse_args()
    seed = options.seed
    if options.ids:
        with tqdm(total=options.ids, unit="message") as bar:
            refused = ids.search(options.ids, seed, bar.update)
        print(f"seed {seed}: {refused} of {options.ids} damaged messages refused", flush=True)
    if options.pairs:
        with tqdm(total=options.pairs, unit="pair") as bar:
            decoded, refused = receivers.search(options.pairs, seed, bar.update)
        print(
            f"seed {seed}: {options.pairs} pairs of a receiver's codec and a wire id: "
            f"{decoded} frames decoded, {refused} refused",
            flush=True,
        )
    for encoder in ENCODERS if options.values else ():
        with tqdm(total=options.values, unit="value", unit_scale=True) as bar:
            worst = worst_error(options.values, encoder, bar.update)
        print(f"{encoder}: {options.values} values, max |error| / bound = {worst!r}", flush=True)
        if worst > 1:
            raise SystemExit("fuzz: the error bound was broken")
    print("fuzz: nothing found")


if __name__ == "__main__":
    main()
