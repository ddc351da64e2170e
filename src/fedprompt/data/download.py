"""Get a public data set from where its authors keep it."""

from __future__ import annotations

import difflib
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from fedprompt.data import domainnet10
from fedprompt.data.fetch import fetch
from fedprompt.data.unpack import unpack
from fedprompt.errors import UserError


@dataclass(frozen=True)
class Source:
    """One file to fetch and what becomes of it."""

    url: str
    md5: str | None
    becomes: str  # a path in the data set's folder, or "" for the folder itself
    top: str | None = None  # the folder inside the archive that becomes this; None: a plain file, kept as it is
    keep: Callable[[PurePosixPath], bool] = lambda name: True


@dataclass(frozen=True)
class Recipe:
    """The folder a data set is put in, and the files it is made of."""

    folder: str
    sources: tuple[Source, ...]


_VISDA = "http://csr.bu.edu/ftp/visda/2019/multi-source"
# DomainNet's authors publish no checksums; these are what several independent projects recorded from their server.
_DOMAINNET_MD5 = {
    "groundtruth/clipart.zip": "cd0d8f2d77a4e181449b78ed62bccf1e",
    "infograph.zip": "720380b86f9e6ab4805bb38b6bd135f8",
    "groundtruth/painting.zip": "1ae32cdb4f98fe7ab5eb0a351768abfd",
    "quickdraw.zip": "bdc1b6f09f277da1a263389efe0c7a66",
    "real.zip": "dcc47055e8935767784b7162e7c7cca6",
    "sketch.zip": "658d8009644040ff7ce30bb2e820850f",
    "domainnet/txt/clipart_test.txt": "f5ddbcfd657a3acf9d0f7da10db22565",
    "domainnet/txt/clipart_train.txt": "b4349693a7f9c05c53955725c47ed6cb",
    "domainnet/txt/infograph_test.txt": "779626b50869edffe8ea6941c3755c71",
    "domainnet/txt/infograph_train.txt": "379b50054f4ac2018dca4f89421b92d9",
    "domainnet/txt/painting_test.txt": "232b35dc53f26d414686ae579e38d9b5",
    "domainnet/txt/painting_train.txt": "7db0e7ca73ad9982f6e1f7f3ef372c0a",
    "domainnet/txt/quickdraw_test.txt": "c1a828fdfe216fb109f1c0083a252c6f",
    "domainnet/txt/quickdraw_train.txt": "b732ced3939ac8efdd8c0a889dca56cc",
    "domainnet/txt/real_test.txt": "6098816791c3ebed543c71ffa11b9054",
    "domainnet/txt/real_train.txt": "8ebf02c2075fadd564705f0dc7cd6291",
    "domainnet/txt/sketch_test.txt": "d8a222e4672cfd585298aa14d02ea441",
    "domainnet/txt/sketch_train.txt": "1233bd18aa9a8a200bf4cecf1c34ef3e",
}


def _domainnet_source(name: str, md5: str) -> Source:
    file = PurePosixPath(name)
    if file.suffix == ".txt":
        return Source(f"{_VISDA}/{name}", md5, file.name)
    # Some 18 GB come over the wire, but only the ten classes are put on disk.
    return Source(f"{_VISDA}/{name}", md5, file.stem, file.stem, lambda image: image.parts[0] in domainnet10.CLASSES)


RECIPES: dict[str, Recipe] = {
    "cifar100": Recipe(
        "cifar-100-python",
        (
            Source(
                "https://www.cs.toronto.edu/~kriz/cifar-100-python.tar.gz",
                "eb9058c3a382ffc7106e4002c42a8d85",
                "",
                "cifar-100-python",
                lambda file: str(file) in {"train", "test", "meta"},
            ),
        ),
    ),
    "domainnet10": Recipe(
        domainnet10.FOLDER, tuple(_domainnet_source(name, md5) for name, md5 in _DOMAINNET_MD5.items())
    ),
}
_WITHOUT = {
    "digits6": "needs no download: it is drawn when opened",
    "pacs": "has no official address that stays; put its four domain folders into PACS/ in your data folder",
    "folder": "is the name for your own images; set data.root to where they are",
    "domains": "is the name for your own images; set data.root to where they are",
}


def get(name: str, target: Path, base_url: str | None = None) -> Path:
    """Fetch and unpack a data set into a folder of its own in ``target``, and return that folder.

    A call that was broken off is made again: it goes on where it was. ``base_url`` is a mirror which has all the
    files, under their own names, in one place.
    """
    recipe = _recipe(name)
    final = target / recipe.folder
    if final.exists():
        raise UserError(f"{final} is there already and is not overwritten; move it away to get {name} anew.")
    staging = target / f"{recipe.folder}.incomplete"
    for source in recipe.sources:
        made = staging / "tree" / source.becomes
        if not made.exists():
            url = f"{base_url.rstrip('/')}/{PurePosixPath(source.url).name}" if base_url else source.url
            _make(source, url, staging, made)
    (staging / "tree").rename(final)
    shutil.rmtree(staging)  # at most what a killed unpacking left behind
    return final


def _make(source: Source, url: str, staging: Path, made: Path) -> None:
    """Fetch one file and put it, or what it holds, in its place."""
    if source.top is None:
        made.parent.mkdir(parents=True, exist_ok=True)
        fetched = staging / PurePosixPath(source.url).name
        fetch(url, fetched, source.md5)
        fetched.rename(made)
        return
    archive = staging / PurePosixPath(source.url).name
    if not archive.exists():
        fetch(url, archive, source.md5)
    unpack(archive, made, source.top, source.keep)
    archive.unlink()  # several gigabytes that nobody needs again


def _recipe(name: str) -> Recipe:
    if name in RECIPES:
        return RECIPES[name]
    if name in _WITHOUT:
        raise UserError(f"The data set {name!r} {_WITHOUT[name]}.")
    near = difflib.get_close_matches(name.lower(), [*RECIPES, *_WITHOUT], n=1, cutoff=0.5)
    hint = f"did you mean {near[0]!r}?" if near else f"known are {', '.join(RECIPES)}."
    raise UserError(f"There is no data set named {name!r} to get; {hint}")
