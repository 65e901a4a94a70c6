"""Output files of commands: none replaces a file unless the user says so, and each has one writer."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

from linprobe.errors import LinprobeError, UsageError
from linprobe.parallel.process_group import Group
from linprobe.runs.claim import claimed
from linprobe.runs.run_folder import RunFolder, new_run_folder


@contextmanager
def new_files(
    paths: Mapping[str, Path | None],
    *,
    what: str = "file",
    inputs: Iterable[Path | None] = (),
    overwrite: bool = False,
) -> Iterator[None]:
    """Hold the names of output files inside the block, before anything is read. Missing folders are made.

    Args:
        paths: the files to write by the flags that name them; None for one that is not asked for.
        what: their kind, for messages.
        inputs: files that the command reads. overwrite: whether to replace an existing file.

    Raises:
        UsageError: an existing file without `overwrite`, a folder, an input, one name twice, or a file that another
            process is making. LinprobeError: the place is not writable.
    """
    wanted = {flag: path for flag, path in paths.items() if path is not None}
    for place, path in enumerate(wanted.values()):
        if path.is_dir():
            raise UsageError(f"{what} {path} is a folder; give a file name")
        for given in inputs:
            if given is not None and path.exists() and given.exists() and path.samefile(given):
                raise UsageError(f"{what} {path} would replace an input of the command; give another name")
        if path.absolute() in [other.absolute() for other in list(wanted.values())[:place]]:
            raise UsageError(f"{what} {path} is named twice; give two names")
    with ExitStack() as stack:
        for flag, path in wanted.items():
            stack.enter_context(claimed(path, what, flag, overwrite=overwrite))
        yield


def inputs_of(run: Path) -> tuple[Path, ...]:
    """The files of a run folder, and the feature files of its rows; none if its manifest cannot be read."""
    try:
        manifest = RunFolder(run).manifest
    except LinprobeError:  # the command will say so when it reads the run
        return ()
    return *run.iterdir(), *(Path(name) for name in (manifest.features, manifest.public_file) if name)


def writing(path: Path, write: Callable[[], None]) -> None:
    """Call `write`; an OSError becomes a LinprobeError of one line."""
    try:
        write()
    except OSError as error:
        raise LinprobeError(f"{path} cannot be written ({error.strerror}); give another path") from None


@contextmanager
def run_folder_of_group(out: Path, group: Group, *, resume: bool = False) -> Iterator[Path]:
    """`new_run_folder` in rank 0; the other processes of the group receive its path."""
    if group.rank > 0:
        yield Path(group.broadcast_text(""))
        return
    with new_run_folder(out, resume=resume) as folder:
        group.broadcast_text(str(folder))
        yield folder
