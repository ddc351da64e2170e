"""Fetch one large file over HTTP: goes on where it broke off, and keeps only what has the right checksum."""

from __future__ import annotations

import errno
import hashlib
import http.client
import shutil
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.progress import TextColumn

from fedprompt.errors import UserError
from fedprompt.progress import bar

_TRIES = 5  # in a row without a single new byte
_CHUNK = 1 << 18
_SPARE = 50_000_000  # bytes of disk that we leave to others
_TRANSIENT = {408, 425, 429, 500, 502, 503, 504}
_MEGA = 1e6


class _BrokenOffError(Exception):
    """The connection failed in a way that may be over soon."""


def fetch(url: str, path: Path, md5: str | None = None, pause: float = 2.0) -> None:
    """Fetch ``url`` to ``path``, by way of ``path.part``, which a later call goes on from."""
    part = path.with_name(path.name + ".part")
    path.parent.mkdir(parents=True, exist_ok=True)
    best, tries = _size(part), 0
    while True:
        try:
            with _disk_errors(path.parent):
                _go_on(url, part)
            break
        except _BrokenOffError as error:
            # Compared with the furthest so far: a server that begins anew each time must not keep us for ever.
            tries = 0 if _size(part) > best else tries + 1
            best = max(best, _size(part))
            if tries >= _TRIES:
                raise UserError(
                    f"Fetching {url} failed {tries} times in a row ({error}); what came so far is kept, "
                    "so run the same command again later."
                ) from error
            time.sleep(pause * 2 ** min(tries, 5))
    if md5 is not None and (found := _md5(part)) != md5:
        part.unlink()
        raise UserError(f"What came from {url} has the MD5 {found}, not {md5}, and is removed; try again.")
    part.replace(path)


def _go_on(url: str, part: Path) -> None:
    """One request: append to ``part`` what is missing, or begin anew if the server cannot go on."""
    have = _size(part)
    headers = {"User-Agent": "fedprompt", "Accept-Encoding": "identity"}
    if have:
        headers["Range"] = f"bytes={have}-"
    try:
        with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=60) as response:
            if response.status != 206 or _range_start(response) != have:
                have = 0  # the server ignored the range and sends everything
            length = response.headers.get("Content-Length")
            total = have + int(length) if length is not None else None
            _check_space(part.parent, None if total is None else total - have)
            _receive(response, part, have, total)
    except urllib.error.HTTPError as error:
        error.close()
        if error.code == 416:  # nothing beyond what we have: either that is all, or it is not this file
            if error.headers.get("Content-Range", "").rpartition("/")[2] == str(have):
                return
            part.unlink(missing_ok=True)
            raise _BrokenOffError("the part already here does not fit the file") from error
        if error.code in _TRANSIENT:
            raise _BrokenOffError(f"HTTP {error.code}") from error
        raise UserError(f"The server refused {url} with HTTP {error.code} {error.reason}.") from error
    except urllib.error.URLError as error:
        raise _BrokenOffError(str(error.reason)) from error
    except (http.client.HTTPException, ConnectionError, TimeoutError, ssl.SSLError) as error:
        raise _BrokenOffError(str(error) or type(error).__name__) from error


def _receive(response: http.client.HTTPResponse, part: Path, have: int, total: int | None) -> None:
    """Write the answer's bytes behind the first ``have`` of ``part``."""
    shown = "{task.completed:,.1f} MB" if total is None else "{task.completed:,.1f} of {task.total:,.1f} MB"
    title = f"Fetching {part.name.removesuffix('.part')}"
    with (
        bar(title, None if total is None else total / _MEGA, TextColumn(shown)) as progress,
        part.open("r+b" if have else "wb") as file,
    ):
        file.seek(have)
        progress.advance(progress.task_ids[0], have / _MEGA)
        while chunk := response.read(_CHUNK):
            file.write(chunk)
            progress.advance(progress.task_ids[0], len(chunk) / _MEGA)
    # http.client does not complain when a connection ends early, so we count.
    if total is not None and _size(part) != total:
        raise _BrokenOffError(f"{_size(part):,} of {total:,} bytes came")


def _range_start(response: http.client.HTTPResponse) -> int | None:
    """Where the bytes of a partial answer begin: 5 for ``Content-Range: bytes 5-9/10``."""
    first = (response.headers.get("Content-Range") or "").removeprefix("bytes ").partition("-")[0]
    return int(first) if first.isdigit() else None


def _check_space(folder: Path, needed: int | None) -> None:
    free = shutil.disk_usage(folder).free
    if needed is not None and needed + _SPARE > free:
        raise UserError(
            f"{needed / 1e9:.1f} GB are still to fetch, but the disk of {folder} has {free / 1e9:.1f} GB free; "
            "make room or choose another folder."
        )


@contextmanager
def _disk_errors(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EROFS):
            raise UserError(
                f"Cannot write to {folder} ({error.strerror}); make room or choose another folder."
            ) from error
        raise


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _md5(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()
