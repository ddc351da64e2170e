"""DomainNet-10: the ten classes of FedBN (Li et al., 2021) under DomainNet's official training and test lists.

Layout: root/{domain}/{class}/{image}.jpg, and root/{domain}_train.txt and root/{domain}_test.txt with lines
``domain/class/image.jpg label``. The label numbers are those of all 345 classes; here the class name counts.
"""

from __future__ import annotations

from pathlib import Path

from fedprompt.data.dataset import Dataset
from fedprompt.data.root import find_root
from fedprompt.data.settings import DataSettings
from fedprompt.data.tree import ImageFile, assemble, without_unreadable
from fedprompt.errors import UserError

DOMAINS = ("clipart", "infograph", "painting", "quickdraw", "real", "sketch")
# FedBN's order. They are not the ten most frequent classes, whatever papers say: do not derive them by counting.
CLASSES = (
    "bird",
    "feather",
    "headphones",
    "ice_cream",
    "teapot",
    "tiger",
    "whale",
    "windmill",
    "wine_glass",
    "zebra",
)
FOLDER = "DomainNet"
_REMEDY = "run `fedprompt data get domainnet10`, or set data.root to the folder with its six domains and twelve lists"


def open_domainnet10(settings: DataSettings) -> Dataset:
    """DomainNet-10: six domains, ten classes, the official lists."""
    root = find_root(settings, FOLDER, _REMEDY)
    train, bad_train = without_unreadable(_listed(root, "train"), settings)
    test, bad_test = without_unreadable(_listed(root, "test"), settings)
    if settings.unreadable == "error":
        _check_present([*train, *test], root)
    return assemble("domainnet10", train, test, bad_train + bad_test, CLASSES, DOMAINS)


def _listed(root: Path, split: str) -> list[ImageFile]:
    """The images of the ten classes that the six lists of a split name."""
    files = []
    for domain in DOMAINS:
        path = root / f"{domain}_{split}.txt"
        if not path.is_file():
            raise UserError(f"DomainNet's list {path.name} is missing in {root}; {_REMEDY}.")
        chosen = [
            file for number, line in enumerate(path.read_text().splitlines(), 1) if (file := _entry(path, number, line))
        ]
        if not chosen:
            raise UserError(f"DomainNet's list {path} names no image of the ten classes; {_REMEDY}.")
        files += chosen
    return files


def _entry(listing: Path, number: int, line: str) -> ImageFile | None:
    """The image that a line of a list names, or None if its class is not one of the ten."""
    if not line.strip():
        return None
    name = line.rsplit(maxsplit=1)[0]
    parts = name.split("/")
    if len(parts) != 3 or len(line.split()) < 2 or ".." in parts:
        raise UserError(f"Line {number} of {listing} should read `domain/class/image.jpg label`, but is {line!r}.")
    domain, label, _ = parts
    return ImageFile(listing.parent / name, domain, label) if label in CLASSES else None


def _check_present(files: list[ImageFile], root: Path) -> None:
    missing = [file.path for file in files if not file.path.is_file()]
    if missing:
        first = missing[0].relative_to(root)
        raise UserError(f"{len(missing)} of {len(files)} listed images are not in {root}, first {first}; {_REMEDY}.")
