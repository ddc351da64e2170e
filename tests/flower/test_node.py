"""A node by itself: its folder, its images and classes, and its numbered personal tensors."""

import json
import shutil

import pytest
import torch

from fedprompt.config import load_config
from fedprompt.errors import UserError
from fedprompt.federation.flower.charter import read_charter
from fedprompt.federation.flower.local import prepare
from fedprompt.federation.flower.node import Node
from fedprompt.federation.flower.node_folder import class_map, describe_images, init_node, start_line
from fedprompt.federation.flower.node_images import NodeRefusalError
from fedprompt.federation.flower.node_settings import NodeSettings, make_node_settings, read_node_settings
from fedprompt.federation.flower.papers import Card, Invitation
from fedprompt.federation.flower.wire import Order
from fedprompt.federation.simulation import Simulation


@pytest.fixture(scope="module")
def trial(tiny_toml, tmp_path_factory):
    """A prepared federation of two clients on one machine, and the same in this process."""
    config = load_config(tiny_toml, {"partition.clients": 2})
    folder = prepare(config, tmp_path_factory.mktemp("trial"))
    return folder, Simulation(load_config(folder / "config.toml"))


@pytest.fixture
def node_at(trial, tmp_path):
    """Makes client 0's node for an order, in a folder of this test's own."""
    folder, engine = trial
    place = shutil.copytree(folder / "nodes" / "client-0", tmp_path / "node")
    charter = read_charter(folder / "server")

    def make(round_number=1, accepted=0, durable=0, **changes):
        values = {
            "run": charter.run,
            "settings": json.dumps(engine.config.resolved()),
            "classes": charter.classes,
            "clients": 2,
            "client": 0,
            "round": round_number,
            "accepted": accepted,
            "durable": durable,
            "backbone": engine.backbone.checksum,
        }
        return Node(place, Order(**(values | changes)))

    return make


def payload(engine):
    return engine.method.payload(engine.fresh, 0)


def kept(node):
    return sorted(path.name for path in (node.folder / "runs" / node.order.run).glob("*.safetensors"))


def test_a_lost_update_leaves_no_trace(trial, node_at):
    """A node that trained in a round that the server never counted trains the next as if it had not."""
    _, engine = trial
    lost = node_at(1)
    lost.train(payload(engine))
    after_loss = node_at(2).train(payload(engine))
    shutil.rmtree(lost.folder / "runs")
    never = node_at(2).train(payload(engine))
    assert all(torch.equal(after_loss.tensors[name], value) for name, value in never.tensors.items())


def test_an_accepted_update_decides_what_the_next_starts_from(trial, node_at):
    _, engine = trial
    node_at(1).train(payload(engine))
    accepted = node_at(2, accepted=1).train(payload(engine))
    refused = node_at(2, accepted=0).train(payload(engine))
    assert any(not torch.equal(accepted.tensors[name], value) for name, value in refused.tensors.items())


def test_what_the_server_may_still_ask_for_is_kept_and_the_rest_removed(trial, node_at):
    _, engine = trial
    node = node_at(1)
    node.train(payload(engine))
    node_at(2, accepted=1).train(payload(engine))
    node_at(3, accepted=2, durable=1).train(payload(engine))
    assert kept(node) == [f"personal-{number}.safetensors" for number in (1, 2, 3)]
    node_at(4, accepted=3, durable=3).train(payload(engine))
    assert kept(node) == [f"personal-{number}.safetensors" for number in (3, 4)]


def test_lost_personal_tensors_are_said_and_not_made_up(trial, node_at):
    _, engine = trial
    with pytest.raises(NodeRefusalError, match="lost its personal tensors"):
        node_at(5, accepted=3).train(payload(engine))


def test_a_node_evaluates_as_the_simulation_does(trial, node_at):
    _, engine = trial
    found = node_at(0).evaluate(payload(engine))
    figures = engine.evaluate(engine.start())
    assert found.accuracy == figures["accuracy"]["0"]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"backbone": "0" * 64}, "backbone weights"),
        ({"classes": ("cat", "dog", "bird")}, "other classes"),
        ({"settings": "{}}"}, "cannot read the server's settings"),
        ({"settings": json.dumps({"method": "pfedbayespt", "unheard": 1})}, "cannot read the server's settings"),
        ({"run": "../../etc"}, "proper name"),
    ],
)
def test_a_node_refuses_what_does_not_fit_it_in_words_without_secrets(trial, node_at, changes, words):
    folder, engine = trial
    with pytest.raises(NodeRefusalError, match=words) as refusal:
        node_at(1, **changes).train(payload(engine))
    assert str(folder) not in str(refusal.value)


def test_the_server_cannot_point_a_node_at_other_files(trial, node_at):
    """Data, weights, device and threads are the node's own, whatever the settings from the server say."""
    _, engine = trial
    tree = engine.config.resolved()
    tree["data"]["root"] = "/etc"
    tree["backbone"]["weights"] = "/etc/passwd"
    node = node_at(1, settings=json.dumps(tree | {"threads": 64}))
    assert str(node.config.data.root) != "/etc"
    assert node.config.backbone.weights != "/etc/passwd"
    assert node.config.threads == node.own.threads


def test_images_are_prepared_once_and_again_when_they_change(tiny_toml, trial, tmp_path):
    _, engine = trial
    images = shutil.copytree(tiny_toml.parent / "images" / "day", tmp_path / "images")
    folder, _, invitation = make_node(engine, tmp_path, images)
    order = Order(
        "a" * 32, json.dumps(engine.config.resolved()), invitation.classes, 1, 0, 0, 0, 0, invitation.backbone
    )

    def prepared():
        Node(folder, order).evaluate(payload(engine))
        return [(path.name, path.stat().st_mtime_ns) for path in (folder / "prepared").glob("images-*")]

    first = prepared()
    assert prepared() == first
    next((images / "dark").iterdir()).unlink()
    changed = prepared()
    assert len(changed) == 1
    assert changed != first


def invitation_for(engine):
    return Invitation(
        address="fl.example.org:9092",
        certificate="a certificate",
        classes=("dark", "grey", "light", "white"),
        weights=engine.config.backbone.weights,
        backbone=engine.backbone.checksum,
        method="pfedbayespt",
    )


def make_node(engine, tmp_path, images, name="hospital-a"):
    invitation = invitation_for(engine)
    data, dataset = describe_images(images, 0.3, skip_unreadable=False)
    own = make_node_settings(
        name=name,
        images=data,
        folders=dataset.classes,
        classes=class_map(dataset.classes, invitation.classes, {}),
        weights=engine.config.backbone.weights,
    )
    card, _ = init_node(tmp_path / "own", own, invitation)
    return tmp_path / "own", card, invitation


def test_init_makes_keys_card_and_a_line_to_start_with(tiny_toml, trial, tmp_path):
    _, engine = trial
    folder, card, _ = make_node(engine, tmp_path, tiny_toml.parent / "images" / "day")
    assert (folder / "node.key").stat().st_mode & 0o777 == 0o600
    assert Card.read(folder / "card.toml") == card
    assert card.images == 42  # 70 % of 60
    assert "PRIVATE" not in (folder / "card.toml").read_text()
    line = start_line(folder)
    assert line.startswith("flower-supernode --superlink fl.example.org:9092 ")
    assert str(folder / "node.key") in line
    assert "--insecure" not in line
    with pytest.raises(UserError, match="is a node already"):
        make_node(engine, tmp_path, tiny_toml.parent / "images" / "day")


def test_domains_within_a_nodes_images_are_understood(tiny_toml):
    data, dataset = describe_images(tiny_toml.parent / "images", 0.3, skip_unreadable=False)
    assert data.name == "domains"
    assert dataset.classes == ("dark", "grey", "light")


def test_a_broken_image_stops_init_unless_it_may_be_left_out(tiny_toml, tmp_path):
    images = shutil.copytree(tiny_toml.parent / "images" / "day", tmp_path / "images")
    (images / "dark" / "0.png").write_bytes(b"no image")
    with pytest.raises(UserError, match=r"0\.png.*--skip-unreadable"):
        describe_images(images, 0.3, skip_unreadable=False)
    data, _ = describe_images(images, 0.3, skip_unreadable=True)
    assert data.unreadable == "skip"


def test_classes_are_agreed_on_by_name():
    assert class_map(("LIGHT", "black"), ("dark", "light"), {"black": "dark"}) == ("light", "dark")
    with pytest.raises(UserError, match="--map darkk=dark"):
        class_map(("darkk",), ("dark", "light"), {})
    with pytest.raises(UserError, match="no such class folder"):
        class_map(("dark",), ("dark", "light"), {"absent": "light"})


def test_other_weights_are_refused_at_init(tiny_toml, trial, tmp_path):
    _, engine = trial
    data, dataset = describe_images(tiny_toml.parent / "images" / "day", 0.3, skip_unreadable=False)
    own = NodeSettings(name="a", images=data, folders=dataset.classes, classes=dataset.classes, weights="mini")
    with pytest.raises(UserError, match="--weights"):
        init_node(tmp_path / "own", own, invitation_for(engine))
    assert not (tmp_path / "own").exists()


@pytest.mark.parametrize("name", ["Hospital A", "../up", "", "-a", "a/b"])
def test_a_name_is_plain(name):
    with pytest.raises(UserError, match="small letters"):
        make_node_settings(name=name)


def test_a_folder_without_a_node_is_one_sentence(tmp_path):
    with pytest.raises(UserError, match="fedprompt client init"):
        read_node_settings(tmp_path)
    (tmp_path / "client.toml").write_text("name = 3")
    with pytest.raises(UserError, match="name"):
        read_node_settings(tmp_path)
