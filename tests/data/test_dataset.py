"""What every split promises: RGB pixels of the side asked for, and no broken file passed over in silence."""

import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from fedprompt.data.dataset import ArraySplit, FileSplit, decode
from fedprompt.errors import UserError


def picture(seed: int, height: int = 20, width: int = 30) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)


def files(folder: Path, count: int) -> FileSplit:
    paths = [folder / f"{i}.png" for i in range(count)]
    for seed, path in enumerate(paths):
        Image.fromarray(picture(seed)).save(path)
    return FileSplit(paths, np.arange(count), np.zeros(count))


def test_array_images_come_back_untouched_at_their_own_side():
    pixels = torch.from_numpy(np.stack([picture(i, 8, 8) for i in range(4)])).permute(0, 3, 1, 2)
    split = ArraySplit(pixels, np.arange(4), np.zeros(4))
    assert torch.equal(split.images(np.array([2, 0]), 8), pixels[[2, 0]])


@pytest.mark.parametrize("side", [16, 48])
def test_resizing_in_memory_equals_pillows_bicubic_to_one_grey_level(side):
    pixels = torch.from_numpy(np.stack([picture(i, 32, 32) for i in range(3)])).permute(0, 3, 1, 2)
    ours = ArraySplit(pixels, np.arange(3), np.zeros(3)).images(np.arange(3), side)
    for image, out in zip(pixels, ours, strict=True):
        pillow = Image.fromarray(image.permute(1, 2, 0).numpy()).resize((side, side), Image.Resampling.BICUBIC)
        assert np.abs(np.asarray(pillow).astype(int) - out.permute(1, 2, 0).numpy()).max() <= 1
    assert ours.dtype == torch.uint8


def test_files_and_memory_give_the_same_pixels(tmp_path):
    image = Image.fromarray(picture(0, 32, 32))
    image.save(tmp_path / "a.png")
    from_file = FileSplit([tmp_path / "a.png"], np.zeros(1), np.zeros(1)).images(np.array([0]), 32)
    assert np.array_equal(from_file[0].permute(1, 2, 0).numpy(), np.asarray(image))


@pytest.mark.parametrize("mode", ["L", "LA", "P", "RGBA", "CMYK", "1"])
def test_every_colour_mode_becomes_rgb(tmp_path, mode):
    path = tmp_path / ("a.tif" if mode == "CMYK" else "a.png")
    Image.fromarray(picture(0)).convert(mode).save(path)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        images = FileSplit([path], np.zeros(1), np.zeros(1)).images(np.array([0]), 16)
    assert images.shape == (1, 3, 16, 16)


def test_sixteen_bit_pictures_keep_their_contrast(tmp_path):
    ramp = np.linspace(0, 65535, 32 * 32).reshape(32, 32).astype(np.uint16)
    Image.fromarray(ramp).save(tmp_path / "xray.png")
    seen = decode(tmp_path / "xray.png")
    assert seen.min() == 0
    assert seen.max() == 255
    assert 120 < seen.mean() < 135


def test_floating_point_pictures_are_named_and_not_clipped(tmp_path):
    Image.fromarray(np.linspace(0, 4000, 64, dtype=np.float32).reshape(8, 8)).save(tmp_path / "dose.tif")
    split = FileSplit([tmp_path / "dose.tif"], np.zeros(1), np.zeros(1))
    with pytest.raises(UserError, match=r"dose\.tif \(its 32-bit pixels have no agreed scale"):
        split.images(np.array([0]), 8)


def test_pictures_are_turned_as_the_camera_said(tmp_path):
    image = Image.fromarray(picture(0, 20, 30))
    exif = image.getexif()
    exif[0x0112] = 6  # to be turned by a quarter
    image.save(tmp_path / "a.jpg", exif=exif)
    assert decode(tmp_path / "a.jpg").shape == (30, 20, 3)


def test_take_keeps_labels_and_pixels_together(tmp_path):
    split = files(tmp_path, 5)
    part = split.take(np.array([3, 1]))
    assert part.labels.tolist() == [3, 1]
    assert torch.equal(part.images(np.array([0]), 16), split.images(np.array([3]), 16))


def test_all_broken_files_of_a_request_are_counted_and_ten_are_named(tmp_path):
    split = files(tmp_path, 14)
    for i in range(12):
        (tmp_path / f"{i}.png").write_bytes(b"not an image")
    with pytest.raises(UserError) as caught:
        split.images(np.arange(14), 16)
    message = str(caught.value)
    assert "12 image files" in message
    assert "9.png" in message
    assert "10.png" not in message
    assert "and 2 more" in message


def test_a_truncated_picture_is_an_error_and_not_a_grey_one(tmp_path):
    split = files(tmp_path, 1)
    path = tmp_path / "0.png"
    path.write_bytes(path.read_bytes()[:-300])
    with pytest.raises(UserError, match="1 image file cannot be read"):
        split.images(np.array([0]), 16)


def test_broken_files_outside_the_request_do_no_harm(tmp_path):
    split = files(tmp_path, 3)
    (tmp_path / "1.png").write_bytes(b"")
    assert len(split.images(np.array([0, 2]), 16)) == 2


@pytest.mark.parametrize("kind", ["array", "files"])
def test_an_empty_request_gives_an_empty_batch(tmp_path, kind):
    array = ArraySplit(torch.zeros(2, 3, 8, 8, dtype=torch.uint8), np.zeros(2), np.zeros(2))
    split = array if kind == "array" else files(tmp_path, 1)
    assert split.images(np.zeros(0, dtype=np.int64), 24).shape == (0, 3, 24, 24)


def test_pixels_and_labels_of_unlike_number_are_refused():
    with pytest.raises(ValueError, match="3 images, 2 labels"):
        ArraySplit(torch.zeros(3, 3, 8, 8, dtype=torch.uint8), np.zeros(2), np.zeros(3))
