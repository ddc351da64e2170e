"""Downloads from a server that breaks off, cannot resume or lies; and archives that mean harm."""

import hashlib
import io
import pickle
import shutil
import tarfile
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from PIL import Image

from fedprompt.data import download
from fedprompt.data.download import get
from fedprompt.data.fetch import fetch
from fedprompt.data.registry import open_dataset
from fedprompt.data.settings import DataSettings
from fedprompt.data.unpack import unpack
from fedprompt.errors import UserError

BODY = np.random.default_rng(0).bytes(700_000)


@pytest.fixture
def server(server):
    server.files["file.bin"] = BODY
    return server


def fetch_body(server, folder: Path, md5: str | None = None) -> bytes:
    fetch(f"{server.url}/file.bin", folder / "file.bin", md5, pause=0)
    assert not (folder / "file.bin.part").exists()
    return (folder / "file.bin").read_bytes()


def test_a_plain_download_arrives_whole(server, tmp_path):
    assert fetch_body(server, tmp_path, hashlib.md5(BODY).hexdigest()) == BODY


def test_a_download_that_breaks_off_goes_on_where_it_was(server, tmp_path):
    server.break_after = [300_000, 200_000]
    assert fetch_body(server, tmp_path) == BODY
    assert server.asked == [None, "bytes=300000-", "bytes=500000-"]


def test_a_later_call_goes_on_from_the_part_file(server, tmp_path):
    (tmp_path / "file.bin.part").write_bytes(BODY[:123_456])
    assert fetch_body(server, tmp_path) == BODY
    assert server.asked == ["bytes=123456-"]


def test_a_server_that_ignores_ranges_is_read_from_the_start(server, tmp_path):
    server.ranges = False
    (tmp_path / "file.bin.part").write_bytes(b"x" * 900_000)  # longer than the file: nothing of it may remain
    assert fetch_body(server, tmp_path) == BODY


def test_a_server_that_ignores_ranges_and_always_breaks_off_is_given_up(server, tmp_path):
    server.ranges = False
    server.break_after = [1000] * 50
    with pytest.raises(UserError, match="5 times in a row"):
        fetch_body(server, tmp_path)
    assert len(server.asked) < 10


def test_a_complete_part_file_needs_no_more_bytes(server, tmp_path):
    (tmp_path / "file.bin.part").write_bytes(BODY)
    assert fetch_body(server, tmp_path) == BODY
    assert server.asked == [f"bytes={len(BODY)}-"]  # answered with 416


def test_a_part_file_longer_than_the_file_is_thrown_away(server, tmp_path):
    (tmp_path / "file.bin.part").write_bytes(BODY + b"more")
    assert fetch_body(server, tmp_path) == BODY


def test_a_server_that_does_not_tell_the_length_is_believed(server, tmp_path):
    server.length = False
    assert fetch_body(server, tmp_path) == BODY


def test_a_wrong_file_is_an_error_and_is_not_kept(server, tmp_path):
    with pytest.raises(UserError, match="MD5"):
        fetch_body(server, tmp_path, "0" * 32)
    assert list(tmp_path.iterdir()) == []


def test_a_busy_server_is_asked_again(server, tmp_path):
    server.statuses = [503, 429]
    assert fetch_body(server, tmp_path) == BODY


def test_a_missing_file_is_not_asked_for_twice(server, tmp_path):
    with pytest.raises(UserError, match="HTTP 404"):
        fetch(f"{server.url}/nothing", tmp_path / "nothing", pause=0)
    assert len(server.asked) == 1


def test_no_server_at_all_is_one_sentence(tmp_path):
    with pytest.raises(UserError, match="failed 5 times in a row"):
        fetch("http://127.0.0.1:9/file", tmp_path / "file", pause=0)


def test_a_full_disk_is_noticed_before_the_download(server, tmp_path, monkeypatch):
    class Usage(NamedTuple):
        free: int = 1000

    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage())
    with pytest.raises(UserError, match="make room"):
        fetch_body(server, tmp_path)


def tar_bytes(build: Callable[[tarfile.TarFile], None]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        build(archive)
    return buffer.getvalue()


def add(archive: tarfile.TarFile, name: str, content: bytes = b"hello", **attributes: object) -> None:
    info = tarfile.TarInfo(name)
    info.size = len(content)
    for key, value in attributes.items():
        setattr(info, key, value)
    archive.addfile(info, io.BytesIO(content))


def zip_bytes(entries: dict[str, bytes], mode: int | None = None) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, content in entries.items():
            info = zipfile.ZipInfo(name)
            if mode is not None:
                info.external_attr = mode << 16
            archive.writestr(info, content)
    return buffer.getvalue()


HARMFUL = {
    "tar-absolute": tar_bytes(lambda tar: add(tar, "/top/evil")),
    "tar-parent": tar_bytes(lambda tar: add(tar, "top/../../evil")),
    "tar-symlink": tar_bytes(lambda tar: add(tar, "top/a", b"", type=tarfile.SYMTYPE, linkname="../..")),
    "tar-hardlink": tar_bytes(lambda tar: add(tar, "top/a", b"", type=tarfile.LNKTYPE, linkname="/etc/passwd")),
    "tar-device": tar_bytes(lambda tar: add(tar, "top/a", b"", type=tarfile.CHRTYPE)),
    "tar-pipe": tar_bytes(lambda tar: add(tar, "top/a", b"", type=tarfile.FIFOTYPE)),
    "zip-absolute": zip_bytes({"/top/evil": b"x"}),
    "zip-parent": zip_bytes({"top/../../evil": b"x"}),
    "zip-backslash": zip_bytes({"top/..\\..\\evil": b"x"}),
    "zip-drive": zip_bytes({"C:/evil": b"x"}),
    "zip-symlink": zip_bytes({"top/a": b"../.."}, mode=0o120777),
}


@pytest.mark.parametrize("kind", HARMFUL)
def test_a_harmful_archive_is_refused_whole(tmp_path, kind):
    work = tmp_path / "deep" / "work"
    work.mkdir(parents=True)
    (work / "archive").write_bytes(HARMFUL[kind])
    with pytest.raises(UserError, match="is refused"):
        unpack(work / "archive", work / "into", "top")
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["archive", "deep", "work"]


@pytest.mark.parametrize("kind", ["tar", "zip"])
def test_only_the_wanted_files_under_the_top_folder_are_unpacked(tmp_path, kind):
    names = ["top/cat/a", "top/dog/b", "other/c"]
    tar = tar_bytes(lambda archive: [add(archive, name) for name in names])
    (tmp_path / "archive").write_bytes(tar if kind == "tar" else zip_bytes(dict.fromkeys(names, b"hello")))
    unpack(tmp_path / "archive", tmp_path / "into", "top", keep=lambda name: name.parts[0] == "cat")
    assert [str(p.relative_to(tmp_path)) for p in tmp_path.glob("into/**/*") if p.is_file()] == ["into/cat/a"]
    assert (tmp_path / "into/cat/a").read_bytes() == b"hello"


@pytest.mark.parametrize("kind", ["tar", "zip", "neither"])
def test_a_damaged_archive_leaves_nothing_behind(tmp_path, kind):
    content = np.random.default_rng(1).bytes(50_000)
    if kind == "tar":
        raw = tar_bytes(lambda archive: add(archive, "top/a", content))[:30_000]
    elif kind == "zip":
        whole = zip_bytes({"top/a": content})
        raw = whole[:20_000] + bytes([whole[20_000] ^ 1]) + whole[20_001:]  # one bit, found by the CRC
    else:
        raw = b"<html>Not found</html>"
    (tmp_path / "archive").write_bytes(raw)
    with pytest.raises(UserError, match="damaged"):
        unpack(tmp_path / "archive", tmp_path / "into", "top")
    assert [path.name for path in tmp_path.iterdir()] == ["archive"]


def test_an_archive_without_the_folder_is_an_error(tmp_path):
    (tmp_path / "archive").write_bytes(zip_bytes({"other/a": b"x"}))
    with pytest.raises(UserError, match="holds nothing"):
        unpack(tmp_path / "archive", tmp_path / "into", "top")


def cifar_archive() -> bytes:
    halves = {b"data": np.zeros((3, 3072), np.uint8), b"fine_labels": [0, 1, 1]}
    files = {"train": halves, "test": halves, "meta": {b"fine_label_names": [b"apple", b"bear"]}, "file.txt~": {}}
    return tar_bytes(
        lambda tar: [add(tar, f"cifar-100-python/{name}", pickle.dumps(what, 2)) for name, what in files.items()]
    )


def serve(server, monkeypatch: pytest.MonkeyPatch, name: str, files: dict[str, bytes]) -> None:
    """Let the server have these files, and the recipe their checksums."""
    server.files = files
    recipe = download.RECIPES[name]
    sources = tuple(
        replace(source, md5=hashlib.md5(files[source.url.rsplit("/", 1)[1]]).hexdigest()) for source in recipe.sources
    )
    monkeypatch.setitem(download.RECIPES, name, replace(recipe, sources=sources))


def test_cifar100_is_fetched_unpacked_and_opened(server, tmp_path, monkeypatch):
    serve(server, monkeypatch, "cifar100", {"cifar-100-python.tar.gz": cifar_archive()})
    folder = get("cifar100", tmp_path, base_url=server.url)
    assert [path.name for path in tmp_path.iterdir()] == ["cifar-100-python"]
    assert sorted(path.name for path in folder.iterdir()) == ["meta", "test", "train"]
    assert len(open_dataset(DataSettings(name="cifar100", root=folder)).train) == 3


def test_what_is_there_is_not_overwritten(server, tmp_path):
    (tmp_path / "cifar-100-python").mkdir()
    with pytest.raises(UserError, match="not overwritten"):
        get("cifar100", tmp_path, base_url=server.url)
    assert server.asked == []


def test_a_false_cifar100_is_refused(server, tmp_path):
    server.files = {"cifar-100-python.tar.gz": cifar_archive()}
    with pytest.raises(UserError, match="not eb9058c3a382ffc7106e4002c42a8d85"):
        get("cifar100", tmp_path, base_url=server.url)
    assert not (tmp_path / "cifar-100-python").exists()


def domainnet_files() -> dict[str, bytes]:
    picture = io.BytesIO()
    Image.new("RGB", (4, 4)).save(picture, "JPEG")
    files = {}
    for domain in ("clipart", "infograph", "painting", "quickdraw", "real", "sketch"):
        names = [f"{domain}/{label}/{i}.jpg" for label in ("zebra", "bird", "aardvark") for i in range(2)]
        files[f"{domain}.zip"] = zip_bytes(dict.fromkeys(names, picture.getvalue()))
        files[f"{domain}_train.txt"] = "".join(f"{name} 0\n" for name in names[::2]).encode()
        files[f"{domain}_test.txt"] = "".join(f"{name} 0\n" for name in names[1::2]).encode()
    return files


def test_domainnet_goes_on_after_a_failure_and_keeps_only_the_ten_classes(server, tmp_path, monkeypatch):
    files = domainnet_files()
    serve(server, monkeypatch, "domainnet10", files)
    server.files = {name: content for name, content in files.items() if name != "real.zip"}
    with pytest.raises(UserError, match="HTTP 404"):
        get("domainnet10", tmp_path, base_url=server.url)
    assert not (tmp_path / "DomainNet").exists()
    server.files = files
    folder = get("domainnet10", tmp_path, base_url=server.url)
    assert len(server.asked) == 18 + 1  # nothing was fetched twice but what had failed
    assert not list(folder.rglob("aardvark"))
    assert [path.name for path in tmp_path.iterdir()] == ["DomainNet"]
    dataset = open_dataset(DataSettings(name="domainnet10", root=folder))
    assert (len(dataset.train), len(dataset.test)) == (12, 12)


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("digits6", "needs no download"),
        ("pacs", "domain folders"),
        ("cifar", "did you mean 'cifar100'"),
        ("xyzzy", "known"),
    ],
)
def test_what_cannot_be_fetched_is_explained(tmp_path, name, says):
    with pytest.raises(UserError, match=says):
        get(name, tmp_path)
