"""Measure how often the frame checksum misses a fault, by kind of fault.

    python -m tests.fuzz.checksum --trials 10000000

A trial takes a frame with a right checksum, of random bits, of small floats, or of one repeated
word (0, all ones, random). It damages it, and asks whether the checksum still fits. Nothing else of
the frame is looked at. Trials whose damage changed no bit are not counted.
"""

import argparse
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numba import njit
from tqdm import tqdm

from tests.fuzz.decoders import _below, _next
from trec_qcomm.wire import cpu

DATA = ("random bits", "floats", "zeros", "ones", "one word")


class Fault(NamedTuple):
    """A kind of fault: a name, the function that makes it, its size, and a frame's bytes."""

    name: str
    damage: Any
    size: int
    nbytes: int


@njit
def _fill(words, kind, state):
    constant = np.uint32(0)
    if kind == 3:
        constant = np.uint32(0xFFFFFFFF)
    elif kind == 4:
        constant = np.uint32(_next(state) >> np.uint64(32))
    for i in range(words.size):
        noise = _next(state) >> np.uint64(32)
        if kind == 0:
            words[i] = np.uint32(noise)
        elif kind == 1:  # sign, one of 8 exponents, 10 bits of mantissa
            words[i] = np.uint32((noise & np.uint64(0x83FFE000)) | np.uint64(0x38000000))
        else:
            words[i] = constant


@njit
def bit_line(words, size, state):
    """Flip one bit of `size` neighbouring words."""
    first, bit = _below(state, words.size - size + 1), np.uint32(_below(state, 32))
    for i in range(first, first + size):
        words[i] ^= np.uint32(1) << bit


@njit
def strided_bit_line(words, size, state):
    """Flip one bit of `size` words at a random distance of one another."""
    stride = 1 + _below(state, (words.size - 1) // (size - 1))
    first = _below(state, words.size - (size - 1) * stride)
    bit = np.uint32(_below(state, 32))
    for i in range(size):
        words[first + i * stride] ^= np.uint32(1) << bit


@njit
def stuck_bit_line(words, size, state):
    """Set or clear one bit of `size` neighbouring words."""
    first, bit = _below(state, words.size - size + 1), np.uint32(_below(state, 32))
    for i in range(first, first + size):
        words[i] = words[i] & ~(np.uint32(1) << bit)


@njit
def flips(words, size, state):
    """Flip `size` bits anywhere."""
    for _ in range(size):
        words[_below(state, words.size)] ^= np.uint32(1) << np.uint32(_below(state, 32))


@njit
def burst(words, size, state):
    """Change bits within `size` neighbouring bits, the first and the last of them for sure."""
    first = _below(state, 32 * words.size - size + 1)
    for b in range(first, first + size):
        if b == first or b == first + size - 1 or _below(state, 2):
            words[b // 32] ^= np.uint32(1) << np.uint32(b % 32)


@njit
def zeroed(words, size, state):
    """Clear `size` neighbouring words."""
    first = _below(state, words.size - size + 1)
    words[first : first + size] = 0


@njit
def swapped(words, size, state):
    """Swap two blocks of `size` words, at multiples of their size."""
    a, b = _below(state, words.size // size) * size, _below(state, words.size // size) * size
    for i in range(size):
        words[a + i], words[b + i] = words[b + i], words[a + i]


@njit
def duplicated(words, size, state):
    """Write a block of `size` words over another one."""
    a, b = _below(state, words.size // size) * size, _below(state, words.size // size) * size
    for i in range(size):
        words[b + i] = words[a + i]


@njit
def shifted(words, size, state):
    """Move all words from somewhere on by `size` words, and repeat those before."""
    first = _below(state, words.size - size)
    for i in range(words.size - 1, first + size - 1, -1):
        words[i] = words[i - size]


@njit
def cut(words, size, state):
    """Lose the end, from a random word on, and pad with zeros (size 0) or ones."""
    words[_below(state, words.size) :] = np.uint32(0xFFFFFFFF) if size else np.uint32(0)


@njit
def _misses(damage, size, num_trials, sound, faulty, state, checksum):
    """Return (misses, trials that count) for each kind of DATA. sound, faulty: [..] uint32."""
    misses, trials = np.zeros(5, np.int64), np.zeros(5, np.int64)
    right, kind = np.uint64(0), 0
    for trial in range(num_trials):
        if trial % 8 == 0:  # new data for every eighth trial, which takes longer than a trial
            kind = (trial // 8) % 5
            _fill(sound, kind, state)
            right = checksum(sound.view(np.uint64))
            sound[6:8].view(np.uint64)[0] = right
        faulty[:] = sound
        damage(faulty, size, state)
        if np.array_equal(faulty, sound):
            continue
        trials[kind] += 1
        if checksum(faulty.view(np.uint64)) == faulty[6:8].view(np.uint64)[0]:
            misses[kind] += 1
    return misses, trials


def faults() -> list[Fault]:
    """Return the faults that FORMAT.md tells of."""
    list_ = []
    for nbytes in (128, 1024):
        for size in (2, 4, 8, 16):
            list_.append(Fault(f"bit line in {size} neighbouring words", bit_line, size, nbytes))
        for size in (2, 4, 8, 16):
            list_.append(Fault(f"bit line in {size} words apart", strided_bit_line, size, nbytes))
        for size in (4, 16):
            list_.append(Fault(f"bit stuck in {size} words", stuck_bit_line, size, nbytes))
    for nbytes in (64, 128, 1024):
        for size in (1, 2, 3, 4):
            list_.append(Fault(f"{size} random flips", flips, size, nbytes))
    for size in (8, 32, 64, 256):
        list_.append(Fault(f"burst of {size} bits", burst, size, 1024))
    for name, damage, sizes in (
        ("zeroed", zeroed, (1, 2, 8)),
        ("swapped blocks", swapped, (1, 4, 8, 16, 32)),
        ("duplicated blocks", duplicated, (1, 4, 8, 16, 32)),
        ("shifted by", shifted, (1, 2)),
    ):
        for size in sizes:
            list_.append(Fault(f"{name}, {4 * size} bytes", damage, size, 1024))
    list_.append(Fault("cut, padded with zeros", cut, 0, 1024))
    list_.append(Fault("cut, padded with ones", cut, 1, 1024))
    # Beyond one block of the checksum.
    list_.append(Fault("bit line in 8 words apart", strided_bit_line, 8, 20480))
    list_.append(Fault("swapped blocks, 4096 bytes", swapped, 1024, 20480))
    list_.append(Fault("swapped blocks, 8192 bytes", swapped, 2048, 20480))
    return list_


def miss_rate(
    fault: Fault, num_trials: int, seed: int, checksum: Any = cpu.checksum
) -> tuple[np.ndarray, np.ndarray]:
    """Return ([5] misses, [5] trials that count) by kind of DATA. checksum: compiled, of words."""
    state = np.array([0x9E3779B97F4A7C15 * (seed + 1) % 2**64], np.uint64)
    sound, faulty = (np.zeros(fault.nbytes // 4, np.uint32) for _ in range(2))
    return _misses(fault.damage, fault.size, num_trials, sound, faulty, state, checksum)


def measure(
    num_trials: int, seed: int, report: Callable[[Fault, int, int], object], **options: Any
) -> tuple[int, int]:
    """Return (misses, trials) of all faults. report: called with a fault, its misses and trials."""
    total = np.zeros(2, np.int64)
    for number, fault in enumerate(faults()):
        misses, trials = miss_rate(fault, num_trials, 1000 * seed + number, **options)
        report(fault, int(misses.sum()), int(trials.sum()))
        total += misses.sum(), trials.sum()
    return int(total[0]), int(total[1])


def main() -> None:
    """Measure and print, fault by fault."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.checksum")
    parser.add_argument("--trials", type=int, default=10**7, help="for each fault; default 10^7")
    parser.add_argument("--seed", type=int, default=0, help="default 0")
    options = parser.parse_args()
    with tqdm(total=len(faults()), unit="fault") as bar:

        def report(fault: Fault, misses: int, trials: int) -> None:
            bar.write(f"{fault.name}, frame of {fault.nbytes} bytes: {misses} of {trials} missed")
            bar.update()

        misses, trials = measure(options.trials, options.seed, report)
    print(f"checksum: {misses} of {trials} faults missed, seed {options.seed}")


if __name__ == "__main__":
    main()
