"""A user's own images: root/class/image ("folder") or root/domain/class/image ("domains"; PACS is one of these).

Where root holds ``train`` and ``test`` (or ``val``), each with such a tree, these are the splits. Otherwise part of
each class of each domain is set aside as the test split.
"""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

from fedprompt.data.dataset import Dataset
from fedprompt.data.root import find_root
from fedprompt.data.settings import DataSettings
from fedprompt.data.tree import ImageFile, assemble, class_folders, folders, pictures, without_unreadable
from fedprompt.errors import UserError
from fedprompt.randomness import numpy_generator


def open_folder(settings: DataSettings) -> Dataset:
    """Images sorted by class: root/class/image, one domain named "all"."""
    root = find_root(settings, None, "set it to a folder with one subfolder a class, each full of images")
    return _open(settings, root)


def open_domains(settings: DataSettings) -> Dataset:
    """Images sorted by domain and class: root/domain/class/image."""
    root = find_root(settings, None, "set it to a folder with one subfolder a domain, each with one a class")
    return _open(settings, root)


def open_pacs(settings: DataSettings) -> Dataset:
    """PACS (Li et al., 2017): photo, art painting, cartoon and sketch; seven classes."""
    remedy = (
        "put its four domain folders (art_painting, cartoon, photo, sketch) there, or set data.root to where they are"
    )
    return _open(settings, find_root(settings, "PACS", remedy))


def _open(settings: DataSettings, root: Path) -> Dataset:
    halves = _own_halves(root)
    if halves is None:
        files, unreadable = without_unreadable(_scan(root, settings), settings)
        train, test = _set_aside_test(files, settings)
    else:
        train, bad_train = without_unreadable(_scan(halves[0], settings), settings)
        test, bad_test = without_unreadable(_scan(halves[1], settings), settings)
        unreadable = bad_train + bad_test
    return assemble(settings.name, train, test, unreadable)


def _own_halves(root: Path) -> tuple[Path, Path] | None:
    """The train and test folders, if root has both; "train" alone may well be a class."""
    for test in ("test", "val"):
        if (root / "train").is_dir() and (root / test).is_dir():
            return root / "train", root / test
    return None


def _scan(root: Path, settings: DataSettings) -> list[ImageFile]:
    """All images under root, or one sentence on what is wrong with the tree."""
    depth = _depth(root)
    if depth is None:
        raise UserError(f"There are no images under {root}; the data set {settings.name!r} needs {_layout(settings)}.")
    if depth == 0:
        raise UserError(f"The images lie in {root} itself; sort them as {_layout(settings)}.")
    wanted = 1 if settings.name == "folder" else 2
    if depth != wanted:
        other = {
            1: "root/class/image: use the data set 'folder'",
            2: "root/domain/class/image: use the data set 'domains'",
        }
        hint = other.get(depth, f"{depth} folders deep: set data.root further down")
        raise UserError(f"The data set {settings.name!r} needs {_layout(settings)}, but {root} looks like {hint}.")
    if settings.name == "folder":
        return class_folders(root, "all")
    found = []
    for domain in folders(root):
        if not folders(domain):
            raise UserError(f"The domain folder {domain} has no class folders; put some in, or remove it.")
        found += class_folders(domain, domain.name)
    return found


def _layout(settings: DataSettings) -> str:
    return "root/class/image" if settings.name == "folder" else "root/domain/class/image"


def _depth(place: Path, deepest: int = 4) -> int | None:
    """How many folders down the first images lie, or None where there are none."""
    if pictures(place):
        return 0
    if deepest == 0:
        return None
    depths = (_depth(inner, deepest - 1) for inner in folders(place))
    return next((depth + 1 for depth in depths if depth is not None), None)


def _set_aside_test(files: list[ImageFile], settings: DataSettings) -> tuple[list[ImageFile], list[ImageFile]]:
    """Cut each class of each domain in training and test images, at least one of each where there are two."""
    groups: defaultdict[tuple[str, str], list[ImageFile]] = defaultdict(list)
    for file in files:
        groups[file.domain, file.label].append(file)
    train, test = [], []
    for (domain, label), members in groups.items():
        count = min(max(round(settings.test_fraction * len(members)), 1), len(members) - 1)
        # Addressed by name: a class added later leaves the cut of the others as it was.
        order = numpy_generator(settings.seed, "test images", domain, label).permutation(len(members))
        chosen = set(order[:count].tolist())
        train += [file for i, file in enumerate(members) if i not in chosen]
        test += [file for i, file in enumerate(members) if i in chosen]
    if not test:
        raise UserError(f"Every class of {settings.name!r} has a single image, so none is left to test on; add images.")
    return train, test
