"""A server's folder: certificates, who is admitted under which number, and one sentence for each mistake."""

import os
import re
import ssl
import subprocess
import sys
import time
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.exceptions import InvalidSignature
from flwr.app import Message, Metadata, RecordDict

from fedprompt.config import load_config
from fedprompt.errors import UserError
from fedprompt.federation.flower import wire
from fedprompt.federation.flower.charter import Charter, read_charter
from fedprompt.federation.flower.client_app import _answer
from fedprompt.federation.flower.credentials import make_node_keys, make_server_certificates
from fedprompt.federation.flower.headquarters import admit, init_federation, split_address, superlink_command
from fedprompt.federation.flower.papers import Card, Invitation
from fedprompt.federation.flower.processes import Processes, alive, family

ADDRESS = "fl.example.org:9092"
MARK = "pytestmark = pytest.mark." + "federation"


@pytest.fixture
def server(tmp_path, tiny_toml):
    folder = tmp_path / "server"
    init_federation(folder, folder / "run", load_config(tiny_toml), ("dark", "grey", "light"), ADDRESS)
    return folder


def card(tmp_path, name="hospital-a", images=10):
    return Card(name=name, key=make_node_keys(tmp_path / name), images=images)


def test_a_member_keeps_its_number_and_new_ones_get_the_next(server, tmp_path):
    cards = [card(tmp_path, name) for name in ("b", "a", "c")]
    for one in cards:
        charter = admit(server, one)
    assert charter.names() == {0: "b", 1: "a", 2: "c"}
    again = admit(server, cards[1].model_copy(update={"images": 99}))
    assert again.members["a"].client == 1
    assert again.members["a"].images == 99
    assert read_charter(server) == again


def test_who_is_admitted_after_the_beginning_is_a_new_client(server, tmp_path):
    admit(server, card(tmp_path, "a"))
    read_charter(server).begin().write(server)
    charter = admit(server, card(tmp_path, "late"))
    assert charter.clients == 1
    assert charter.members["a"].trains
    assert not charter.members["late"].trains
    assert admit(server, card_of(server, "a")).members["a"].trains, "new figures change nothing else"


def card_of(server, name):
    key = (server / "members" / f"{name}.pub").read_text().strip()
    return Card(name=name, key=key, images=5)


def test_a_known_name_with_another_key_is_refused(server, tmp_path):
    admit(server, card(tmp_path, "a"))
    with pytest.raises(UserError, match="another key"):
        admit(server, card(tmp_path / "other", "a"))


def test_the_superlink_runs_with_tls_and_node_authentication(server):
    command = superlink_command(server, "0.0.0.0")
    assert "--enable-supernode-auth" in command
    assert "--insecure" not in command
    assert command[command.index("--ssl-keyfile") + 1].endswith("server.key")


def test_the_servers_certificate_is_for_its_host_and_signed_by_the_authority(server):
    tls = server / "tls"
    certificate = x509.load_pem_x509_certificate((tls / "server.crt").read_bytes())
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert "fl.example.org" in names.get_values_for_type(x509.DNSName)
    certificate.verify_directly_issued_by(x509.load_pem_x509_certificate((tls / "ca.crt").read_bytes()))
    context = ssl.create_default_context(cafile=str(tls / "ca.crt"))
    context.load_cert_chain(tls / "server.crt", tls / "server.key")
    assert (tls / "server.key").stat().st_mode & 0o777 == 0o600
    assert sorted(path.name for path in tls.iterdir()) == ["ca.crt", "server.crt", "server.key"]


def test_the_invitation_holds_no_secret_and_no_path_of_the_server(server):
    text = (server / "invitation.toml").read_text()
    assert "PRIVATE" not in text
    assert str(server) not in text
    assert "/" not in Invitation.read(server / "invitation.toml").weights


def test_nothing_is_written_over(server, tiny_toml):
    with pytest.raises(UserError, match="is a federation already"):
        init_federation(server, server / "run", load_config(tiny_toml), ("a", "b"), ADDRESS)


@pytest.mark.parametrize("address", ["host", "host:", ":90", "host:0", "host:99999", "host:port"])
def test_an_address_is_host_and_port(address):
    with pytest.raises(UserError, match="host:port"):
        split_address(address)


@pytest.mark.parametrize("kind", [Card, Invitation])
def test_a_damaged_paper_is_one_sentence(kind, tmp_path):
    path = tmp_path / "paper.toml"
    with pytest.raises(UserError, match="There is no"):
        kind.read(path)
    path.write_bytes(b"name = \xff")
    with pytest.raises(UserError, match="damaged"):
        kind.read(path)
    path.write_text('name = "../../x"\nkey = "ssh-rsa AAAA"\nimages = 3\n')
    with pytest.raises(UserError, match="damaged"):
        kind.read(path)


def test_a_folder_without_a_federation_is_one_sentence(tmp_path):
    with pytest.raises(UserError, match="fedprompt federation init"):
        read_charter(tmp_path)
    (tmp_path / "federation.toml").write_text("run = 1")
    with pytest.raises(UserError, match="damaged"):
        read_charter(tmp_path)


def test_two_authorities_do_not_believe_each_other(tmp_path):
    make_server_certificates(tmp_path / "a", ["localhost"])
    make_server_certificates(tmp_path / "b", ["localhost"])
    read = x509.load_pem_x509_certificate
    mine, theirs = (read((tmp_path / name).read_bytes()) for name in ("a/server.crt", "b/ca.crt"))
    with pytest.raises(InvalidSignature):
        mine.verify_directly_issued_by(theirs)


def test_the_text_of_an_error_stays_at_the_node(tmp_path):
    def work():
        raise UserError("/data/patient-17.png cannot be read")

    metadata = Metadata(1, "1", 0, 2, "", "1", time.time(), 60.0, "train")
    question = Message(RecordDict(), metadata=metadata)
    reply = _answer(question, tmp_path, work)
    assert "patient" not in str(reply.content)
    assert "log" in (wire.read_failure(reply.content) or "")
    assert "patient-17" in (tmp_path / "node.log").read_text()


@pytest.mark.parametrize("detached", [False, True])
def test_what_was_started_is_stopped_with_its_children(tmp_path, detached):
    sleep = "import time; time.sleep(600)"
    script = f"subprocess.Popen([sys.executable, '-c', {sleep!r}], start_new_session={detached})"
    with Processes() as processes:
        command = [sys.executable, "-c", f"import subprocess, sys; {script}; {sleep}"]
        processes.start("parent", command, tmp_path / "log", dict(os.environ))
        parent = processes.running["parent"]
        while not (children := family([parent])):
            assert alive(parent.pid)
    assert not any(alive(pid) for pid in (parent.pid, *(line.pid for line in children)))


def test_a_child_that_lost_its_parent_is_stopped_all_the_same(tmp_path):
    sleep = "import time; time.sleep(600)"
    script = f"import subprocess, sys; print(subprocess.Popen([sys.executable, '-c', {sleep!r}]).pid)"
    with Processes() as processes:
        processes.start("parent", [sys.executable, "-c", script], tmp_path / "log", dict(os.environ))
        processes.running["parent"].wait()
        orphan = int((tmp_path / "log").read_text())
        assert alive(orphan)
    assert not alive(orphan)


def test_a_program_that_ended_is_one_sentence(tmp_path):
    with Processes() as processes:
        processes.start("It", [sys.executable, "-c", "raise SystemExit(3)"], tmp_path / "log", {})
        processes.running["It"].wait()
        with pytest.raises(UserError, match=r"It has stopped with code 3.*log"):
            processes.check("It", tmp_path / "log")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("up", "--resume", "absent"), "no federation to go on with"),
        (("up", "digits6", "--resume", "absent"), "leave the others away"),
        (("init", "NEW", "digits6", "--classes", "one", "--address", ADDRESS), "at least two"),
        (("init", "NEW", "digits6", "--classes", "a,b", "--address", "here"), "host:port"),
        (("admit", "absent", "card.toml"), "There is no card"),
        (("serve", "absent"), "fedprompt federation init"),
        (("welcome", "absent", "x"), "fedprompt federation init"),
    ],
)
def test_a_mistake_at_the_command_line_is_one_sentence(arguments, words, tmp_path):
    command = [sys.executable, "-m", "fedprompt", "federation", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False)
    assert done.returncode == 2
    assert words in done.stderr
    assert "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_run_name_is_hexadecimal():
    with pytest.raises(ValueError, match="run"):
        Charter(run="../..", address=ADDRESS, classes=("a", "b"))


def test_make_runs_every_process_test():
    repository = Path(__file__).resolve().parent.parent.parent
    marked = {
        path.name for path in (repository / "tests" / "flower").glob("test_*.py") if MARK in path.read_text("utf-8")
    }
    assert marked
    assert marked <= set(re.findall(r"tests/flower/(test_\w+\.py)", (repository / "Makefile").read_text("utf-8")))
