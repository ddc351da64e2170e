"""A client's own classifier: any kind of image in, probabilities and their spread out."""

import numpy as np
import pytest
import torch
from PIL import Image

import fedprompt
from fedprompt.federation.simulation import Simulation


@pytest.fixture(scope="module")
def predictor(tiny_run):
    return tiny_run.predictor(client=0)


@pytest.fixture(scope="module")
def photo():
    """A colour image that is not square and not of the backbone's size."""
    return np.random.default_rng(0).integers(0, 256, (24, 40, 3), dtype=np.uint8)


def test_probabilities_sum_to_one_and_come_with_their_spread(predictor, photo):
    found = predictor([photo, photo[::-1].copy()])
    assert found.probabilities.shape == found.spread.shape == (2, 3)
    assert found.draws.shape == (3, 2, 3)
    assert torch.allclose(found.probabilities.sum(-1), torch.ones(2), atol=1e-5)
    assert torch.allclose(found.probabilities, found.draws.mean(0))
    assert torch.allclose(found.spread, found.draws.std(0, unbiased=False))
    assert bool((found.spread > 0).any()), "the draws of the mask move the prediction"
    assert found.labels == [found.classes[int(row.argmax())] for row in found.probabilities]


def test_every_form_of_an_image_gives_the_same(predictor, photo, tmp_path):
    picture = Image.fromarray(photo)
    picture.save(tmp_path / "photo.png")
    tensor = torch.from_numpy(photo)
    forms = {
        "path": tmp_path / "photo.png",
        "string": str(tmp_path / "photo.png"),
        "Pillow image": picture,
        "array": photo,
        "tensor, channels last": tensor,
        "tensor, channels first": tensor.permute(2, 0, 1),
        "array of many": photo[None],
        "tensor of many": tensor.permute(2, 0, 1)[None],
    }
    expected = predictor([photo]).draws
    for name, form in forms.items():
        assert torch.equal(predictor(form).draws, expected), name
        if "many" not in name:
            assert torch.equal(predictor([form]).draws, expected), f"a list with one {name}"


def test_greyscale_is_the_same_in_every_form(predictor, photo, tmp_path):
    grey = photo[:, :, 0]
    expected = predictor([np.repeat(grey[:, :, None], 3, axis=2)]).draws
    Image.fromarray(grey).save(tmp_path / "grey.png")
    for form in (grey, grey[:, :, None], grey[None], Image.fromarray(grey), tmp_path / "grey.png"):
        assert torch.equal(predictor([form]).draws, expected)
    assert torch.equal(predictor(grey).draws, expected)


def test_a_sixteen_bit_file_is_scaled_not_clipped(predictor, photo, tmp_path):
    grey = photo[:, :, 0]
    Image.fromarray(grey.astype(np.uint16) * 256).save(tmp_path / "deep.png")
    assert torch.equal(predictor(tmp_path / "deep.png").draws, predictor(grey).draws)
    with pytest.raises(fedprompt.UserError, match="8 bits"):
        predictor(Image.open(tmp_path / "deep.png"))


def test_a_photo_is_turned_as_its_camera_said(predictor, photo, tmp_path):
    exif = Image.Exif()
    exif[0x0112] = 3  # upside down
    Image.fromarray(photo[::-1, ::-1].copy()).save(tmp_path / "turned.png", exif=exif)
    assert torch.equal(predictor(tmp_path / "turned.png").draws, predictor(photo).draws)


def test_the_same_images_give_the_same_answer_in_batches_or_at_once(predictor, photo):
    many = [np.roll(photo, shift, axis=1) for shift in range(7)]
    assert torch.equal(predictor(many).draws, predictor(many).draws)
    head = predictor.method.needs
    assert head.layers > 0, "this run draws masks"
    assert predictor(many, batch=3).draws.shape == (3, 7, 3)


@pytest.mark.parametrize(
    "image",
    [
        np.zeros((8, 8, 3), dtype=np.float32),
        np.zeros((8, 8, 5), dtype=np.uint8),
        np.zeros((2, 8, 8, 8, 3), dtype=np.uint8),
        np.zeros((0, 8, 3), dtype=np.uint8),
        np.zeros(8, dtype=np.uint8),
        torch.zeros(3, 8, 8),
        3,
    ],
)
def test_what_is_no_image_gets_one_sentence(predictor, image):
    with pytest.raises(fedprompt.UserError, match="uint8"):
        predictor([image])


def test_no_image_and_a_bad_file_get_one_sentence(predictor, tmp_path):
    (tmp_path / "text.png").write_text("not a picture")
    for images, sentence in (
        ([], "no image to predict"),
        ([tmp_path / "text.png"], "not an image"),
        ([tmp_path / "absent.png"], "There is no image file"),
        ([tmp_path], "not an image"),
    ):
        with pytest.raises(fedprompt.UserError, match=sentence):
            predictor(images)


@pytest.mark.parametrize("method", ["head-tune", "fedvpt-d"])
def test_the_predictor_is_the_model_that_was_evaluated(method, tiny_toml, tmp_path):
    """On a client's test images it is right as often as the last evaluation of a method without chance says."""
    run = fedprompt.run(tiny_toml, method=method, out=tmp_path, changes={"training.rounds": 2})
    simulation = Simulation(run.config)
    for client, data in enumerate(simulation.held_data):
        found = run.predictor(client)(data.pixels).probabilities.argmax(-1)
        right = float((found == data.labels).double().mean())
        assert right == pytest.approx(run.records[-1]["accuracy"][str(client)])


def test_a_new_client_predicts_with_the_head_it_fine_tuned(tiny_toml, tmp_path):
    run = fedprompt.run(tiny_toml, method="fedvpt-d", out=tmp_path, changes={"new_clients.hold_out": [3]})
    data = Simulation(run.config).held_data[3]
    found = run.predictor(3)(data.pixels).probabilities.argmax(-1)
    right = float((found == data.labels).double().mean())
    assert right == pytest.approx(run.summary["new_clients"]["accuracy"]["3"])


def test_weights_that_changed_since_training_are_refused(tiny_run, monkeypatch):
    run = fedprompt.load_run(tiny_run.folder)
    monkeypatch.setitem(run.about, "backbone", "f" * 64)
    with pytest.raises(fedprompt.UserError, match="not those"):
        run.predictor(0)
