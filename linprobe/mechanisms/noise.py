"""The noise: rounded real Gaussians and coin tosses from ChaCha20, with a key from the operating system.

A released number is `round(s + std Z)` on a public grid. `s` is a float64 number; `Z` is a standard normal variate over
the real numbers, not a floating-point number. So a release is a post-processing of the Gaussian mechanism of the
analysis, and has its guarantee without a term for rounding (`docs/proofs/gaussian.md`).

`Z = +-Phi^-1(U)` with `U` uniform on (0, 1/2). 64 bits of the stream fix the sign and 63 bits of U. The first look, in
float64 arithmetic with a proven error bound, finds the grid cells of many numbers at once and leaves about two in a
million to the second. The kernel and SciPy compute the inverse of the normal distribution function in different ways,
with errors below the bound. So they give the same cells where both are sure (`docs/proofs/gaussian.md`, lemma 3).

The second look reads more bits of U until the answer is certain, in ball arithmetic (Arb). `value + std Z < b` holds
exactly where `Z < (b - value) / std`. So a cell needs no inverse of the distribution function: `Phi` compares its two
boundaries with Z.
"""

import hashlib
import math
import os
from collections.abc import Callable
from fractions import Fraction

import numpy as np
import scipy
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20
from numpy.typing import NDArray

from linprobe.errors import LinprobeError
from linprobe.native import LIBRARY
from linprobe.parallel.array_api import Array, Mask, Reals, contiguous
from linprobe.parallel.threads import in_slices

GRID_BITS = 20  # a grid step is between 2^-21 and 2^-20 of the noise's standard deviation
UNSURE = 2.0**-21  # bound on the error of a number in grid steps; lemma 3 of docs/proofs/gaussian.md
DEEP = 1 << 43  # magnitudes below have too few leading bits for that bound
WORD_BITS = 63  # of U in a word of the stream; the last bit of the word is the sign
EXTRA_BITS = 512  # further bits of U for one number
SPARE = 64  # bits of the ball arithmetic beyond the bits of U
EXTRA_STEPS = (64, 192, EXTRA_BITS)  # numbers of further bits to try, in this order


def grid_step(std: float) -> float:
    """Step of the public grid for noise of standard deviation `std`: a power of two."""
    return 2.0 ** (math.floor(math.log2(std)) - GRID_BITS)


def first_look(value: Reals, words: NDArray[np.uint64], std: float, out: Reals) -> NDArray[np.integer]:
    """Write round(value + std Z) on the grid of `grid_step(std)` to `out`; all (n,), contiguous.

    Args:
        words: 64 bits of the stream for each number: 63 bits of U, and the sign of Z.
    Returns: places that the arithmetic leaves undecided.
    """
    grid = grid_step(std)
    if LIBRARY is not None:
        doubtful = np.empty(len(value), dtype=np.uint32)
        arrays = (array.ctypes.data for array in (words, value, out, doubtful))
        count = LIBRARY.linprobe_first_look(*arrays, len(value), std / grid, grid, UNSURE, DEEP)
        return doubtful[:count]
    magnitudes = words >> np.uint64(1)
    steps = value / grid  # exact, because `grid` is a power of two
    whole = np.rint(steps)
    steps -= whole
    steps += normals(magnitudes, words) * (std / grid)
    cells = np.rint(steps)
    steps -= cells
    np.abs(steps, out=steps)
    np.multiply(whole + cells + 0.0, grid, out=out)  # zero has no sign, which would tell the sign of `value`
    return np.flatnonzero((steps > 0.5 - UNSURE) | (magnitudes < DEEP))


def normals(magnitudes: NDArray[np.uint64], words: NDArray[np.uint64]) -> Reals:
    """Z in float64, for the leading 63 bits of U in `magnitudes` and the sign in the last bit of `words`."""
    z: Reals = magnitudes.astype(np.float64)
    z += 0.5
    z *= 2.0**-64
    scipy.special.ndtri(z, out=z)
    np.negative(z, out=z, where=(words & np.uint64(1)).astype(np.bool_))
    return z


def nearest_cell(value: float, std: float, grid: float, word: int, further_bits: Callable[[], int]) -> float:
    """The integer k with value + std Z in ((k - 1/2) grid, (k + 1/2) grid).

    Args:
        value, std, grid: finite; the grid step is a power of two.
        word: 64 bits of the stream: 63 bits of U, and the sign of Z.
        further_bits: returns `EXTRA_BITS` more bits of U, the same in every call.
    Raises ArithmeticError: the bits of U do not decide; the probability is below 2^-500.
    """
    exact_value, exact_std, exact_grid = Fraction(value), Fraction(std), Fraction(grid)
    leading, extra = word >> 1, further_bits()
    for n_extra in EXTRA_STEPS:
        bits = WORD_BITS + 1 + n_extra  # U is below 1/2
        low = leading << n_extra | extra >> (EXTRA_BITS - n_extra)
        z = float(scipy.special.ndtri(float(Fraction(2 * low + 1, 2 << bits))))
        first_guess = exact_value + exact_std * Fraction(-z if word & 1 else z)
        cell = math.floor(first_guess / exact_grid + Fraction(1, 2))
        while True:
            below = _is_below((exact_grid * (2 * cell - 1) / 2 - exact_value) / exact_std, word & 1, low, bits)
            above = _is_below((exact_grid * (2 * cell + 1) / 2 - exact_value) / exact_std, word & 1, low, bits)
            if below is None or above is None:
                break
            if not below and above:
                return float(cell)
            cell += -1 if below else 1
    raise ArithmeticError("a number of the noise needs more than 575 random bits")


def _is_below(boundary: Fraction, positive: int, low: int, bits: int) -> bool | None:
    """Whether Z is below `boundary`; None if the bits of U do not decide.

    |Z| = -Phi^-1(U) for a U in [low, low + 1] 2^-bits; `positive` says that Z > 0.
    """
    if positive and boundary <= 0:
        return False
    if not positive and boundary >= 0:
        return True
    from flint import arb, ctx, fmpq

    with ctx.workprec(bits + SPARE):
        tail = (arb(fmpq(abs(boundary.numerator), boundary.denominator)) / arb(2).sqrt()).erfc() / 2
        first = arb(low) * arb(2) ** -bits
        last = arb(low + 1) * arb(2) ** -bits
        # |Z| < |boundary| where U > Phi(-|boundary|)
        nearer, farther = bool(first >= tail), bool(last <= tail)
    if not (nearer or farther):
        return None
    return nearer if positive else farther


SECURE = "operating system, ChaCha20"
INSECURE = "user seed, not private"
PART = 1 << 16  # numbers that one thread works on at a time, or a few more: threads in Python wait for each other
WORDS_PER_BLOCK = 8  # 64-bit words of a ChaCha20 block
EXTENSION = 1 << 95  # set in the nonce of the blocks with further bits
RATCHET = b"linprobe noise: next key"
RENEWAL = b"linprobe noise: renewed key"


class NoiseSource:
    """Independent Gaussians and coin tosses. No draw is made twice.

    Args:
        insecure_seed: None keys the stream from the operating system. An integer makes every draw reproducible
            by whoever knows it, which voids the guarantee; `kind` then says so.

    Attributes:
        kind: where the key came from.
        key: 32 bytes, as secret as the private rows. It determines the draws since the last `ratchet`, and the keys of
            later ones until a `renewed_key` takes its place.
        draws: number of streams used since the last `ratchet`.
    Raises LinprobeError: this thread does not compute with the arithmetic that the proofs assume.
    """

    def __init__(self, insecure_seed: int | None = None) -> None:
        _check_arithmetic()
        self.kind = SECURE if insecure_seed is None else INSECURE
        if insecure_seed is None:
            self.key = os.urandom(32)
        else:
            self.key = hashlib.sha256(f"linprobe insecure seed {insecure_seed}".encode()).digest()
        self.draws = 0

    def ratchet(self) -> None:
        """Replace the key by a one-way function of it. The new key reveals no earlier draw."""
        self.key = hashlib.sha256(RATCHET + self.key).digest()
        self.draws = 0

    def renewed_key(self) -> bytes:
        """A key to use in place of `key`: a one-way function of it and of fresh bytes from the operating system.

        `key` does not reveal it. With a seed it is `key` itself: the draws must not depend on the time of this call.
        """
        if self.kind == INSECURE:
            return self.key
        return hashlib.sha256(RENEWAL + self.key + os.urandom(32)).digest()

    def add_noise(self, value: Array, std: float) -> Array:
        """round(value + std Z) on the grid of `grid_step(std)`, for independent real normal Z. ValueError: too many."""
        _check_place(0, value.size)
        table, draw, grid = np.atleast_1d(np.asarray(value, dtype=np.float64)), self.next_draw(), grid_step(std)
        noised, width = np.empty(table.shape), max(1, math.prod(table.shape[1:]))

        def fill(rows: slice) -> None:
            part, first = contiguous(table[rows]).reshape(-1), rows.start * width
            words, numbers = self.words(draw, len(part), first), noised[rows].reshape(-1)
            for place in first_look(part, words, std, numbers).tolist():
                numbers[place] = grid * self.cell(draw, first + place, int(words[place]), float(part[place]), std, grid)

        in_slices(len(table), WORDS_PER_BLOCK * max(1, PART // (WORDS_PER_BLOCK * width)), fill)
        return noised.reshape(value.shape)

    def cell(self, draw: int, index: int, word: int, value: float, std: float, grid: float) -> float:
        """Index of the grid step nearest to value + std Z, where `word` is word `index` of the draw."""
        return nearest_cell(value, std, grid, word, lambda: self.further_bits(draw, index))

    def bernoulli(self, probability: float, n: int, start: int = 0) -> Mask:
        """Independent events, shape (n,): a 64-bit word below `probability` of the range, rounded down.

        With `start`, a multiple of `WORDS_PER_BLOCK`: events `start` to `start + n` of a longer draw.
        """
        _check_place(start, n)
        return np.asarray(self.words(self.next_draw(), n, start) < np.uint64(int(probability * 2.0**64)))

    def next_draw(self) -> int:
        """The number of a stream that no other draw uses."""
        self.draws += 1
        return self.draws - 1

    def words(self, draw: int, n: int, start: int = 0) -> NDArray[np.uint64]:
        """Words `start` to `start + n` of the stream of a draw."""
        return np.frombuffer(stream(self.key, start // WORDS_PER_BLOCK, draw, 8 * n), dtype="<u8")

    def further_bits(self, draw: int, index: int) -> int:
        """`EXTRA_BITS` bits that belong to number `index` of a draw and to no other number."""
        nonce = EXTENSION | (index >> 32) << 64 | draw
        return int.from_bytes(stream(self.key, index % 2**32, nonce, EXTRA_BITS // 8), "big")


def stream(key: bytes, block: int, nonce: int, n_bytes: int) -> bytes:
    """`n_bytes` bytes of the ChaCha20 stream of a key and a nonce, from 64-byte block `block`."""
    # the cipher takes a 4-byte block counter, then the nonce
    place = block.to_bytes(4, "little") + nonce.to_bytes(12, "little")
    return Cipher(ChaCha20(key, place), mode=None).encryptor().update(bytes(n_bytes))


def _check_arithmetic(half_unit: float = 2.0**-53, least: float = 2.0**-1074) -> None:
    """Raise LinprobeError unless float64 is rounded to nearest and subnormal numbers are kept.

    A library may change both for a thread and all that it starts; one compiled with -ffast-math does when it is loaded.
    """
    nearest = 1.0 + half_unit == 1.0 == -(-1.0 - half_unit) and 1.0 + 1.5 * half_unit > 1.0
    if not nearest or not (least * 2.0**60 > 0 and half_unit * 2.0**-969 * 0.5 > 0):
        raise LinprobeError(
            f"the processor {'flushes small numbers to 0' if nearest else 'does not round to nearest'}, so noise and "
            "sums would be wrong; allowed: the default of IEEE 754; run without the library that changed it"
        )


def _check_place(start: int, n: int) -> None:
    """Raise ValueError unless a stream has words `start` to `start + n` and a block begins at `start`."""
    if start % WORDS_PER_BLOCK or start // WORDS_PER_BLOCK + n // WORDS_PER_BLOCK >= 2**32:
        raise ValueError(f"{n} words from {start} on; allowed: from multiples of {WORDS_PER_BLOCK}, below 2^35 in all")


class PoissonSampler:
    """Draws Poisson samples: each step selects each record independently, with the same probability.

    The accounting of Abadi et al. 2016 and Mironov et al. 2019 holds for this sampling only, not for batches of a fixed
    size or shuffled passes. An empty batch is also noised, released and accounted for.

    Args:
        source: cryptographic source; each draw uses its own stream.
        rate: sampling probability q, in (0, 1]. At 1 the sample is all rows, and nothing is drawn.
    """

    def __init__(self, source: NoiseSource, rate: float) -> None:
        self.rate = rate
        self._source = source

    def draw(self, n_rows: int, first: int = 0) -> Mask:
        """Mask of a sample of `n_rows` rows, shape (n_rows,).

        Rows are selected independently; the probability is at most `rate` and more than `rate` - 2^-63. A process draws
        for its shard, which begins at row `first`; the masks of all processes are one draw for all rows.
        """
        if self.rate >= 1:
            return np.ones(n_rows, dtype=bool)
        return self._source.bernoulli(self.rate, n_rows, first)
