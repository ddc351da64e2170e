"""Unpack an archive from the network: plain files and folders only, and none of them outside the folder meant."""

from __future__ import annotations

import shutil
import stat
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath
from typing import IO

from fedprompt.errors import UserError
from fedprompt.progress import track

Keep = Callable[[PurePosixPath], bool]


def unpack(archive: Path, into: Path, top: str, keep: Keep = lambda name: True) -> None:
    """Unpack what lies under ``top`` in a .zip or .tar.gz file as the new folder ``into``; all of it or nothing.

    Only files whose name below ``top`` pleases ``keep`` are written. A name that leads elsewhere, a link or a device
    anywhere in the archive is a reason to refuse it whole: no data set needs one. ``into`` must be on the same disk as
    the archive, beside which the work is done.
    """
    if into.exists():
        raise UserError(f"{into} is there already and is not overwritten; move it away first.")
    into.parent.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(prefix=".unpack-", dir=archive.parent))
    try:
        read = _zip_files if zipfile.is_zipfile(archive) else _tar_files
        count = sum(_write(work / "tree", name, content) for name, content in read(archive, top, keep))
        if count == 0:
            raise UserError(f"The archive {archive} holds nothing of what should be in its folder {top!r}.")
        (work / "tree").rename(into)
    except (tarfile.TarError, zipfile.BadZipFile, zlib.error, EOFError, RuntimeError, NotImplementedError) as error:
        raise UserError(f"The archive {archive} is damaged ({error}); remove it and fetch it again.") from error
    except OSError as error:
        raise UserError(f"The archive {archive} cannot be unpacked to {into.parent} ({error}).") from error
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _zip_files(archive: Path, top: str, keep: Keep) -> Iterator[tuple[PurePosixPath, IO[bytes]]]:
    """The wanted files of a zip, each with its name below ``top``; reading one to its end checks its CRC."""
    with zipfile.ZipFile(archive) as content:
        members = content.infolist()
        wanted = []
        for member in members:
            name = _safe(archive, member.filename)
            kind = stat.S_IFMT(member.external_attr >> 16)
            if kind not in (0, stat.S_IFREG, stat.S_IFDIR):
                raise _refusal(archive, member.filename, "is a link or a device")
            if not member.is_dir() and (below := _below(name, top)) is not None and keep(below):
                wanted.append((member, below))
        _check_space(archive, sum(member.file_size for member, _ in wanted))
        for member, below in track(wanted, f"Unpacking {archive.name}"):
            with content.open(member) as file:
                yield below, file


def _tar_files(archive: Path, top: str, keep: Keep) -> Iterator[tuple[PurePosixPath, IO[bytes]]]:
    """The wanted files of a tar, as in a zip."""
    with tarfile.open(archive) as content:
        wanted = []
        for member in content:
            name = _safe(archive, member.name)
            if not (member.isfile() or member.isdir()):
                raise _refusal(archive, member.name, "is a link or a device")
            if member.isfile() and (below := _below(name, top)) is not None and keep(below):
                wanted.append((member, below))
        _check_space(archive, sum(member.size for member, _ in wanted))
        for member, below in track(wanted, f"Unpacking {archive.name}"):
            file = content.extractfile(member)
            assert file is not None  # it is a plain file
            with file:
                yield below, file


def _write(tree: Path, name: PurePosixPath, content: IO[bytes]) -> int:
    goal = tree / name
    goal.parent.mkdir(parents=True, exist_ok=True)
    with goal.open("wb") as file:
        shutil.copyfileobj(content, file, 1 << 20)
    return 1


def _safe(archive: Path, name: str) -> PurePosixPath:
    """The name as a path, if it stays within the folder on every system (a backslash or a colon may lead out)."""
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or "\\" in name or ":" in name or "\0" in name:
        raise _refusal(archive, name, "leads out of its folder")
    return path


def _below(name: PurePosixPath, top: str) -> PurePosixPath | None:
    return name.relative_to(top) if name.is_relative_to(top) and name != PurePosixPath(top) else None


def _check_space(archive: Path, needed: int) -> None:
    free = shutil.disk_usage(archive.parent).free
    if needed > free:
        raise UserError(f"Unpacking {archive} needs {needed / 1e9:.1f} GB, but its disk has {free / 1e9:.1f} GB free.")


def _refusal(archive: Path, name: str, why: str) -> UserError:
    return UserError(f"The archive {archive} is refused: its entry {name!r} {why}; do not use this file.")
