"""Image files sorted in folders: finding them, checking them, and making a data set of them."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fedprompt.data.dataset import Dataset, FileSplit, count_and_name, in_threads, why_unreadable
from fedprompt.data.settings import DataSettings
from fedprompt.errors import UserError

SUFFIXES = frozenset({".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".pgm"})


class ImageFile(NamedTuple):
    """An image file and what its folders say of it."""

    path: Path
    domain: str
    label: str


def folders(place: Path) -> list[Path]:
    """The visible folders in a folder, by name."""
    return sorted(path for path in place.iterdir() if path.is_dir() and not path.name.startswith("."))


def pictures(place: Path) -> list[Path]:
    """The image files in a folder (not in folders within it), by name."""
    return sorted(path for path in _files(place) if path.suffix.lower() in SUFFIXES)


def class_folders(place: Path, domain: str) -> list[ImageFile]:
    """All images of a tree place/class/image; an empty class is an error, and other files are reported."""
    found = []
    strange: Counter[str] = Counter()
    for folder in folders(place):
        images = pictures(folder)
        if not images:
            raise UserError(
                f"The class folder {folder} has no images; put some in, or remove it "
                f"(image files end in {', '.join(sorted(SUFFIXES))})."
            )
        if inner := folders(folder):
            raise UserError(
                f"The class folder {folder} holds images and also the folder {inner[0].name!r}; move it out."
            )
        found += [ImageFile(path, domain, folder.name) for path in images]
        strange.update(
            path.suffix.lower() or path.name for path in _files(folder) if path.suffix.lower() not in SUFFIXES
        )
    if strange:
        kinds = ", ".join(f"{count} x {kind}" for kind, count in strange.most_common(5))
        warnings.warn(f"In {place}, {strange.total()} files are not images and are not used: {kinds}", stacklevel=2)
    return found


def without_unreadable(files: list[ImageFile], settings: DataSettings) -> tuple[list[ImageFile], tuple[str, ...]]:
    """With ``unreadable = "skip"``, the files that decode and the names of the others, which are reported."""
    if settings.unreadable == "error":
        return files, ()
    reasons = list(in_threads(why_unreadable, [file.path for file in files], "Checking images"))
    good = [file for file, reason in zip(files, reasons, strict=True) if reason is None]
    bad = [(file.path, reason) for file, reason in zip(files, reasons, strict=True) if reason is not None]
    if bad:
        named = count_and_name([f"{path} ({reason})" for path, reason in bad])
        warnings.warn(f"{named}; they are left out, as data.unreadable asks", stacklevel=2)
    emptied = {(f.domain, f.label) for f in files} - {(f.domain, f.label) for f in good}
    if emptied:
        domain, label = min(emptied)
        raise UserError(
            f"No image of class {label!r} in domain {domain!r} of {settings.name!r} can be read; mend them."
        )
    return good, tuple(str(path) for path, _ in bad)


def assemble(
    name: str,
    train: Sequence[ImageFile],
    test: Sequence[ImageFile],
    unreadable: tuple[str, ...] = (),
    classes: Sequence[str] | None = None,
    domains: Sequence[str] | None = None,
) -> Dataset:
    """A data set of these files; classes and domains are the sorted names that occur, unless given."""
    both = [*train, *test]
    classes = classes or sorted({file.label for file in both})
    domains = domains or sorted({file.domain for file in both})

    def split(files: Sequence[ImageFile]) -> FileSplit:
        label_of = {label: i for i, label in enumerate(classes)}
        domain_of = {domain: i for i, domain in enumerate(domains)}
        labels = np.array([label_of[file.label] for file in files], dtype=np.int64)
        return FileSplit(
            [f.path for f in files], labels, np.array([domain_of[f.domain] for f in files], dtype=np.int64)
        )

    return Dataset(name, tuple(classes), tuple(domains), split(train), split(test), unreadable)


def _files(place: Path) -> list[Path]:
    return [path for path in place.iterdir() if path.is_file() and not path.name.startswith(".")]
