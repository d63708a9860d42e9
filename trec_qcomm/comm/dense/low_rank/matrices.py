"""Matrices: what one rank keeps of the gradients that are sent as two factors of low rank.

For each parameter that is a residual, in the unit of the mean over ranks as in
comm.dense.error_feedback, and the right factor of the last step, from which the next step begins;
where ranks are chosen while training, energies, too. All are kept by the parameters' names, in the
memory of the gradients, and outlive DDP's buckets. In a bucket the matrices of equal shape lie one
behind the other, so that one batched product takes all of them.

Knows: names, shapes. Does not know: codecs, messages, which rank of the job this is.
Shapes: B matrices of one shape, of n rows and m columns, sent with rank r.
"""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from trec_qcomm.comm.dense.error_feedback import CONTRIBUTION
from trec_qcomm.comm.dense.low_rank.batch import MatrixBatch
from trec_qcomm.comm.dense.low_rank.ranks import next_rank
from trec_qcomm.comm.dense.low_rank.shapes import MatrixShape
from trec_qcomm.core.transfer import upload


class Matrices:
    """Residuals, right factors and energies of one rank, by parameter."""

    def __init__(self, shapes: Sequence[MatrixShape], seed: int) -> None:
        """Begin without residuals, and with right factors of noise.

        Args: shapes: all parameters that are sent as factors.  seed: seed of the noise.
        """
        self.shapes = {shape.name: shape for shape in shapes}
        self.chooses = any(shape.choice is not None for shape in shapes)
        self._seed = seed
        # State by name until a bucket takes it. Residuals and energies that are missing are zero,
        # and right factors are noise.
        self._residuals: dict[str, Tensor] = {}
        self._rights: dict[str, Tensor] = {}
        self._energies: dict[str, Tensor] = {}
        self._buckets: dict[tuple[str, ...], list[MatrixBatch]] = {}
        self._chosen_at = 0  # the last step before which ranks were chosen

    def rank_of(self, name: str) -> int:
        """Return the rank of a parameter's factors, 0 where it is not sent as factors."""
        return self.shapes[name].rank if name in self.shapes else 0

    def groups(self, names: Sequence[str]) -> list[list[int]]:
        """Return which of a bucket's parameters are matrices here, those of one shape together.

        Args: names: all parameters of the bucket, in its order; the result has their numbers.
        """
        by_form: dict[tuple[object, ...], list[int]] = {}
        for number, name in enumerate(names):
            shape = self.shapes.get(name)
            if shape is not None:
                form = shape.num_rows, shape.num_columns, shape.rank, shape.choice
                by_form.setdefault(form, []).append(number)
        return list(by_form.values())

    def batches(self, names: Sequence[str], device: torch.device) -> list[MatrixBatch]:
        """Return the matrices of a bucket by shape, taken from buckets that had them before.

        Args: names: all parameters of the bucket, in its order.
        """
        key = tuple(names)
        if key not in self._buckets:
            self._dissolve(names)
            self._buckets[key] = [
                self._batch([self.shapes[names[n]] for n in numbers], numbers, device)
                for numbers in self.groups(names)
            ]
        return self._buckets[key]

    def choose_ranks(self, step: int) -> bool:
        """Change ranks where it is time, at the beginning of a step, and say whether one did.

        Only the first call of a step does so. The host waits for a GPU then.

        Args: step: number of the step.
        """
        if step == self._chosen_at:
            return False
        self._chosen_at = step
        changed: dict[str, MatrixShape] = {}
        for name, energies in self._taken_energies(step).items():
            shape = self.shapes[name]
            assert shape.choice is not None
            rank = next_rank(shape.rank, energies, shape.choice, shape.largest)
            if rank != shape.rank:
                changed[name] = replace(shape, rank=rank)
        self._dissolve(changed)
        for name, shape in changed.items():
            self.shapes[name] = shape
            self._rights[name] = self._fitting(self._rights[name], shape)
            self._energies.pop(name, None)
        return bool(changed)

    def _taken_energies(self, step: int) -> dict[str, list[float]]:
        """Return the sums of those whose ranks may change now, and let new ones begin."""
        due = {n for n, s in self.shapes.items() if s.choice and step % s.choice.every == 0}
        taken = {n: self._energies.pop(n).tolist() for n in due & self._energies.keys()}
        for batches in self._buckets.values():
            for batch in batches:
                if batch.shapes[0].name in due:
                    names = [shape.name for shape in batch.shapes]
                    taken |= zip(names, batch.taken_energies(), strict=True)
        return taken

    def _dissolve(self, names: Iterable[str]) -> None:
        """Take back what the buckets of some parameters have."""
        ours = set(names)
        for key in [key for key in self._buckets if ours & set(key)]:
            for batch in self._buckets.pop(key):
                batch.write_to(self._residuals, self._rights, self._energies)

    def _batch(
        self, shapes: Sequence[MatrixShape], numbers: Sequence[int], device: torch.device
    ) -> MatrixBatch:
        shape = shapes[0]
        residual = torch.zeros(len(shapes), shape.num_rows, shape.num_columns, device=device)
        energies = torch.zeros(len(shapes), shape.rank + 1, dtype=torch.float64, device=device)
        noise = torch.stack([self._noise(s)[: s.rank] for s in shapes])
        right = noise = _uploaded(noise, device)
        for number, name in enumerate(s.name for s in shapes):
            if name in self._residuals:
                residual[number] = self._residuals.pop(name).view_as(residual[number])
            if name in self._energies:
                energies[number] = self._energies.pop(name)
        if any(s.name in self._rights for s in shapes):
            kept = [self._rights.pop(s.name, noise[n]) for n, s in enumerate(shapes)]
            right = torch.stack([factor.to(device) for factor in kept])
        return MatrixBatch(
            tuple(shapes), tuple(numbers),
            residual=residual, right=right, noise=noise, energies=energies,
        )  # fmt: skip

    def _noise(self, shape: MatrixShape) -> Tensor:
        """Return normal noise that depends on the name, equal on all ranks, for all columns."""
        key = repr((self._seed, shape.name)).encode()
        digest = hashlib.blake2b(key, digest_size=8).digest()
        generator = torch.Generator().manual_seed(int.from_bytes(digest, "little") >> 1)
        return torch.randn(shape.most_columns, shape.num_columns, generator=generator)

    def _fitting(self, right: Tensor, shape: MatrixShape) -> Tensor:
        """Return the first rows of a right factor, and noise where it has fewer."""
        more = self._noise(shape)[len(right) : shape.rank]
        return torch.cat([right[: shape.rank], _uploaded(more, right.device)])

    def residuals(self) -> dict[str, dict[str, Tensor]]:
        """Return {parameter: {"contribution": [n m] float32}} on CPU. Waits for a GPU."""
        kept, _, _ = self._all_kept()
        return {
            name: {CONTRIBUTION: kept[name].cpu() if name in kept else torch.zeros(shape.numel)}
            for name, shape in self.shapes.items()
        }

    def right_factors(self) -> dict[str, Tensor]:
        """Return {parameter: [r, m] float32} on CPU. Waits for a GPU."""
        _, kept, _ = self._all_kept()
        return {
            name: kept[name].cpu() if name in kept else self._noise(shape)[: shape.rank]
            for name, shape in self.shapes.items()
        }

    def energies(self) -> dict[str, Tensor]:
        """Return {parameter whose rank is chosen: [r + 1] float64} on CPU. Waits for a GPU."""
        _, _, kept = self._all_kept()
        zeros = {n: torch.zeros(s.rank + 1, dtype=torch.float64) for n, s in self.shapes.items()}
        chosen = (name for name, shape in self.shapes.items() if shape.choice is not None)
        return {name: kept.get(name, zeros[name]).cpu() for name in chosen}

    def _all_kept(self) -> tuple[dict[str, Tensor], dict[str, Tensor], dict[str, Tensor]]:
        """Return copies by name, without those that are zero or noise from the beginning."""
        kept = dict(self._residuals), dict(self._rights), dict(self._energies)
        for batches in self._buckets.values():
            for batch in batches:
                batch.write_to(*kept)
        return kept

    def load(
        self,
        residuals: Mapping[str, Tensor],
        rights: Mapping[str, Tensor],
        energies: Mapping[str, Tensor] | None = None,
    ) -> None:
        """Continue from the state of some parameters, on any device.

        A rank that is chosen while training becomes that of the right factor. Else the first rows
        of it are taken, and noise where it has fewer.

        Args:
            residuals: [n m] each.
            rights: right factors, [.., m] each.
            energies: [r + 1] each, taken where the right factor has that rank.

        Raises: ValueError: another number of values or columns.
        """
        for name in self.shapes.keys() & residuals.keys():
            if residuals[name].shape != (self.shapes[name].numel,):
                raise ValueError(f"residual of {name!r}: {list(residuals[name].shape)} values")
        for name in self.shapes.keys() & rights.keys():
            size, columns = list(rights[name].shape), self.shapes[name].num_columns
            if len(size) != 2 or size[1] != columns or not size[0]:
                raise ValueError(f"low_rank: {name!r}: {size}, not [.., {columns}]")
        self._dissolve(self.shapes)
        self._chosen_at = 0
        for name in self.shapes.keys() & residuals.keys():
            self._residuals[name] = residuals[name].clone()
        for name in self.shapes.keys() & rights.keys():
            shape = self.shapes[name]
            if shape.choice is not None:
                shape = replace(shape, rank=min(len(rights[name]), shape.largest))
                self.shapes[name] = shape
                self._energies.pop(name, None)
            self._rights[name] = self._fitting(rights[name].clone(), shape)
            given = (energies or {}).get(name)
            if given is not None and given.shape == (shape.rank + 1,):
                self._energies[name] = given.clone()


def _uploaded(values: Tensor, device: torch.device) -> Tensor:
    """Return float32 values of the CPU on a device, to which they are copied without a wait."""
    if values.device.type == device.type == "cpu":
        return values
    flat = values.flatten()
    even = torch.cat([flat, flat.new_zeros(len(flat) % 2)])
    (there,) = upload(device, even.view(torch.int64))
    return there.view(torch.float32)[: len(flat)].view_as(values)
