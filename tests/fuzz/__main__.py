"""make fuzz: damaged frames of every codec, at every receiver, and of ids; error bounds on awkward
values.

Examples:
    python -m tests.fuzz
    python -m tests.fuzz --cases 100000000 --frames 0 --pairs 0 --values 0
    python -m tests.fuzz --cases 0 --frames 10000 --pairs 0 --values 0 --seed 3

Compiled cases come in rounds of their own seeds, seed, seed + 1 and so on, so a run that was ended
goes on with --seed. How often the checksum misses a fault: python -m tests.fuzz.checksum.
"""

import argparse

from tqdm import tqdm

from tests.fuzz import decoders, frames, ids, receivers
from tests.fuzz.bounds import worst_error

ENCODERS = ("bitpack", "rans")


def main() -> None:
    """Run the searches and print their results. An exception ends them; its seed repeats it."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.fuzz",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--cases", type=int, default=10**7, help="in compiled code; default 10^7")
    parser.add_argument("--frames", type=int, default=10**6, help="by the codecs; default 10^6")
    parser.add_argument("--pairs", type=int, default=10**5, help="receiver x id; default 10^5")
    parser.add_argument("--ids", type=int, default=10**5, help="messages of ids; default 10^5")
    parser.add_argument("--values", type=int, default=10**8, help="for each encoder; default 10^8")
    parser.add_argument("--seed", type=int, default=0, help="seed of the damage; default 0")
    options = parser.parse_args()
    _search_frames(options)
    for encoder in ENCODERS if options.values else ():
        with tqdm(total=options.values, unit="value", unit_scale=True) as bar:
            worst = worst_error(options.values, encoder, bar.update)
        print(f"{encoder}: {options.values} values, max |error| / bound = {worst!r}", flush=True)
        if worst > 1:
            raise SystemExit("fuzz: the error bound was broken")
    print("fuzz: nothing found")


def _search_frames(options: argparse.Namespace) -> None:
    seed = options.seed
    if options.cases:
        with tqdm(total=options.cases, unit="case", unit_scale=True) as bar:
            counts = decoders.search(options.cases, seed, bar.update)
        print(
            f"seed {seed}: {counts.sum()} cases: "
            + ", ".join(f"{n} {name}" for n, name in zip(counts, decoders.OUTCOMES, strict=True)),
            flush=True,
        )
    if options.frames:
        with tqdm(total=options.frames, unit="frame") as bar:
            refused = frames.search(options.frames, seed, bar.update)
        print(f"seed {seed}: {refused} of {options.frames} damaged frames refused", flush=True)
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


if __name__ == "__main__":
    main()
