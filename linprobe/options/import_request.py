"""The request of `linprobe import`."""

from dataclasses import dataclass
from pathlib import Path

from linprobe.options.declaration import option


@dataclass(frozen=True)
class ImportRequest:
    """Turn arrays into a feature file and print its path."""

    sources: list[Path] = option(
        help="One .npz or .pt; or X_train.npy, y_train.npy, ... (or .pt); or tables train.csv and test.csv (or "
        ".parquet, .arrow); or a folder of them, or of a Hugging Face data set.",
        argument="ARRAYS...",
    )
    out: Path = option(help="Feature file to write.")
    classes: Path | None = option(None, "File of class names in label order, one per line.")
    label_column: str = option(
        "label", "Tables: column of labels; NAME,NAME,... for columns of 0 and 1, which give rows several labels."
    )
    id_column: str | None = option(None, "Tables: column of record ids.", unset="id, if there is one")
    owner_column: str | None = option(
        None,
        "Column of a table, or array NAME_train, with the person each row belongs to.",
        unset="owner, if there is one",
        metavar="NAME",
    )
    overwrite: bool = option(False, "Replace existing output files.")
    private_test: bool = option(False, "Test rows are private: accuracy on them is released with noise only.")
