"""The same method over a real network ends in the same tensors and figures; and nothing private leaves a node."""

import json

import pytest
import torch
from flower.conftest import flower_processes, inside
from flower.recorded import read_sent
from safetensors.torch import load_file

import fedprompt
from fedprompt.config import load_config
from fedprompt.federation.checkpoint import load_state
from fedprompt.federation.flower.local import LocalFederation, prepare
from fedprompt.federation.flower.processes import Processes
from fedprompt.federation.round import train_client
from fedprompt.federation.simulation import Simulation

pytestmark = pytest.mark.federation

SMALL = {
    "partition.clients": 3,
    "training.rounds": 2,
    "training.schedule": "cosine",
    "data.train_per_domain": 18,
    "data.test_per_domain": 9,
    "evaluation.every": 2,
    "evaluation.last": 1,
    "threads": 1,
    # A head that stays at its client, so that there is something personal.
    "methods.pfedbayespt.head": "local",
    "methods.pfedpg.head": "local",
    "methods.sgpt.head": "local",
}
METHODS = ("pfedbayespt", "pfedpg", "sgpt")


@pytest.fixture(scope="module", params=METHODS)
def pair(request, tmp_path_factory):
    """A run in this process, and the same over the network; the first node's words are recorded."""
    out = tmp_path_factory.mktemp(request.param)
    changes = SMALL | {"method": request.param}
    simulated = fedprompt.run("digits6", changes=changes, out=out / "simulation")
    recorded = out / "recorded"
    recorded.mkdir()
    with Processes() as processes:
        federation = LocalFederation(prepare(load_config("digits6", changes), out / "network"), processes)
        federation.start(nodes=False)
        for name in federation.names:
            federation.start_node(name, **(inside(TEST_RECORD=str(recorded)) if name == "client-0" else {}))
        networked = federation.train()
    return simulated, networked, recorded


def close(mine, theirs):
    assert mine.keys() == theirs.keys()
    for name, value in mine.items():
        torch.testing.assert_close(value, theirs[name], rtol=0, atol=1e-6, msg=name)


def test_shared_and_server_tensors_are_those_of_the_simulation(pair):
    simulated, networked, _ = (run.state() if isinstance(run, fedprompt.Run) else run for run in pair)
    close(networked.shared, simulated.shared)
    close(networked.server, simulated.server)
    assert networked.participations == simulated.participations


def test_personal_tensors_are_at_the_nodes_alone_and_those_of_the_simulation(pair):
    simulated, networked, _ = pair
    assert networked.state().personal == {}
    for client, expected in simulated.state().personal.items():
        assert expected, "nothing personal would prove nothing"
        (path,) = (networked.folder / "nodes" / f"client-{client}" / "runs").glob("*/personal-2.safetensors")
        close(load_state(path).personal[client], expected)


def test_figures_are_those_of_the_simulation(pair):
    simulated, networked, _ = pair
    assert [record["round"] for record in networked.records] == [1, 2]
    for mine, theirs in zip(networked.records, simulated.records, strict=True):
        assert mine.keys() == theirs.keys()
        assert mine["participants"] == theirs["participants"]
        assert mine["training"] == pytest.approx(theirs["training"], abs=1e-6)
    mine, theirs = networked.records[-1], simulated.records[-1]
    assert mine["accuracy"] == pytest.approx(theirs["accuracy"], abs=1e-6)
    for key in ("average", "worst_local", "nll", "brier", "calibration_error"):
        assert mine[key] == pytest.approx(theirs[key], abs=1e-6)
    assert networked.summary == simulated.summary


def test_an_update_is_as_many_bytes_as_the_method_says(pair):
    _, networked, _ = pair
    lines = [json.loads(line) for line in (networked.folder / "traffic.jsonl").read_text().splitlines()]
    assert {(line["round"], line["client"]) for line in lines} == {(r, c) for r in (1, 2) for c in range(3)}
    assert {line["bytes"] for line in lines} == {networked.summary["bytes_per_client_and_round"]}


def test_nothing_is_left_running(pair):
    assert flower_processes() == []


@pytest.fixture
def sent(pair):
    return read_sent(pair[2])


def pieces(values, length):
    """Pieces of an array's bytes that are worth looking for: not all the same few bytes."""
    data = values.contiguous().view(torch.uint8).numpy().tobytes()
    found = {data[start : start + length] for start in range(0, len(data) - length + 1, length)}
    return [piece for piece in found if len(set(piece)) > length // 4]


def test_what_a_node_sends_are_the_shared_tensors_counts_and_figures(pair, sent):
    _, networked, _ = pair
    engine = Simulation(networked.config)
    size = networked.summary["bytes_per_client_and_round"]
    figures = {name for record in networked.records for name in record["training"]}
    assert set(sent.kinds) <= {"Message", "RecordDict", "ArrayRecord", "Array", "ArrayChunk", "MetricRecord"}
    assert dict(sent.tensors) == dict.fromkeys(engine.method.expected(engine.fresh), 2), "each once a round"
    tallied = {"images", "right", "log_loss", "squares", "drawn", "gaps"}
    # A record that another node sent before, as one of the same number of images may be, is not sent again.
    assert sent.numbers | {"examples"} == {"examples", *figures, *tallied}
    assert sent.words == set()
    assert size < sent.tensor_bytes <= 2 * size, "Flower sends equal pieces once"


def test_no_personal_tensor_and_no_image_is_among_the_bytes_that_a_node_sends(pair, sent):
    _, networked, _ = pair
    node = networked.folder / "nodes" / "client-0"
    everything = b"".join(sent.bodies)
    for path in (node / "runs").glob("*/personal-*.safetensors"):
        for name, value in load_state(path).personal[0].items():
            assert not any(piece in everything for piece in pieces(value, 16)), name
    (images,) = (node / "prepared").glob("images-*.safetensors")
    for name in ("train.pixels", "held.pixels"):
        wanted = pieces(load_file(images)[name], 24)
        assert len(wanted) > 1000
        assert not any(piece in everything for piece in wanted), name


def test_the_search_finds_what_is_sent(pair, sent):
    """The tests above are worth something: the client's update of the first round, worked out here, is found."""
    _, networked, _ = pair
    everything = b"".join(sent.bodies)
    engine = Simulation(networked.config)
    payload = engine.method.payload(engine.fresh, 0)
    arguments = (engine.method, payload, engine.fresh.personal, engine.train_data[0], engine.schedule)
    _, update = train_client(*arguments, seed=networked.config.seed, round_number=1, client=0)
    largest = max(update.tensors.values(), key=lambda value: value.nbytes)
    chunks = [chunk for chunk in sent.chunks if len(chunk) == largest.nbytes]
    same_size = [torch.frombuffer(bytearray(chunk), dtype=largest.dtype) for chunk in chunks]
    found = [values for values in same_size if torch.allclose(values, largest.flatten(), rtol=0, atol=1e-6)]
    assert found
    wanted = pieces(found[0], 16)
    assert wanted
    assert all(piece in everything for piece in wanted)


def test_no_private_key_and_no_path_is_among_the_bytes_that_a_node_sends(pair, sent):
    _, networked, _ = pair
    everything = b"".join(sent.heads) + b"".join(sent.bodies)
    key = (networked.folder / "nodes" / "client-0" / "node.key").read_bytes()
    assert not any(line in everything for line in key.splitlines()[1:-1])
    assert str(networked.folder).encode() not in everything
