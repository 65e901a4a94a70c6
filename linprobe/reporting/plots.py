"""Figures. matplotlib is imported here only, when one is drawn."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from linprobe.errors import UsageError
from linprobe.files import replace_when_complete

FORMATS = (".png", ".svg")


def check_format(path: Path) -> str:
    """The format a figure's name asks for; UsageError unless .png or .svg."""
    if path.suffix not in FORMATS:
        raise UsageError(f"plot file {path} ends in {path.suffix!r}; allowed: {', '.join(FORMATS)}")
    return path.suffix[1:]


def sorted_epsilons(path: Path, epsilons: NDArray[np.float64], epsilon: float, method: str) -> None:
    """The sorted curve of epsilon_i with the worst case drawn (the AdaMix paper's Figure 3); mode 0600."""
    form = check_format(path)
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(6.4, 4), layout="constrained")
    axes.plot(np.arange(1, epsilons.size + 1), np.sort(epsilons), color="tab:blue", label="each record's own ε")
    axes.axhline(epsilon, color="tab:red", linestyle="--", label=f"worst case, ε = {epsilon:.4g}")
    axes.set(
        xlabel="private records, sorted",
        ylabel="per-record ε",
        title=f"{method}: privacy loss of each record",
    )
    axes.set_ylim(0, 1.08 * epsilon)
    axes.set_xlim(1, max(2, epsilons.size))
    axes.grid(alpha=0.3)
    axes.legend(loc="lower right")
    with replace_when_complete(path, private=True) as stream:
        figure.savefig(stream, format=form, dpi=150)
    plt.close(figure)
