"""Commands of a federation over a real network: try it on one machine, or serve it to other organisations."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Annotated, Literal

import typer

from fedprompt import runs
from fedprompt.cli.console import Json, Out, Preset, Set, say
from fedprompt.cli.live_federation import LiveRounds
from fedprompt.config import load_config, parse_assignments
from fedprompt.errors import UserError
from fedprompt.federation.flower import require_flower

app = typer.Typer(no_args_is_help=True, help="Federations over a real network, on Flower.")
Folder = Annotated[Path, typer.Argument(metavar="FOLDER", help="The federation's folder.")]


@app.command("up")
def up(
    preset: Annotated[str | None, typer.Argument(help="A preset's name or a TOML file; by default digits6.")] = None,
    clients: Annotated[int | None, typer.Option(min=1, help="How many clients; by default as the preset says.")] = None,
    method: Annotated[str | None, typer.Option(help="The method; see `fedprompt methods`.")] = None,
    seed: Annotated[int | None, typer.Option(help="The seed of everything random in the run.")] = None,
    change: Set = None,
    out_folder: Out = Path("runs"),
    engine: Annotated[
        Literal["flower", "flower-simulation"],
        typer.Option(help="Real processes on this machine, or Flower's simulation on Ray."),
    ] = "flower",
    cpus: Annotated[float, typer.Option(help="With flower-simulation: CPUs for each client at work.")] = 1.0,
    gpus: Annotated[float, typer.Option(help="With flower-simulation: GPUs, or a share of one, for each.")] = 0.0,
    resume: Annotated[Path | None, typer.Option(help="Go on with the stopped federation in this run folder.")] = None,
    as_json: Json = False,
) -> None:
    """Try a whole federation on this machine: SuperLink, SuperNodes, TLS and keys, one run, and all stopped after."""
    require_flower()
    from fedprompt.federation.flower.local import check_resumable, prepare

    if resume is not None:
        if preset or clients or method or seed is not None or change:
            raise UserError("--resume takes all settings from the run's folder; leave the others away.")
        folder = check_resumable(resume)
    else:
        chosen = parse_assignments(change or [])
        chosen |= {"partition.clients": clients} if clients else {}
        chosen |= {"method": method} if method else {}
        chosen |= {"seed": seed} if seed is not None else {}
        folder = prepare(load_config(preset or "digits6", chosen), out_folder)
    if (folder / "summary.json").is_file():
        done = runs.load_run(folder)
    elif engine == "flower-simulation":
        from fedprompt.federation.flower.virtual import simulate

        done = simulate(folder, cpus, gpus)
    else:
        done = _up(folder, silent=as_json)
    _print_summary(done, as_json=as_json)


def _up(folder: Path, *, silent: bool) -> runs.Run:
    from fedprompt.federation.flower.local import LocalFederation
    from fedprompt.federation.flower.processes import Processes

    with stopping(), LiveRounds(silent=silent) as live, Processes() as processes:
        federation = LocalFederation(folder, processes)
        live.begin(folder, federation.config, len(federation.names))
        federation.start()
        live.say(f"SuperLink and {len(federation.names)} SuperNodes are up.")
        return federation.train(live.round_ended)


@app.command("init")
def init(
    folder: Folder,
    preset: Preset,
    classes: Annotated[str, typer.Option(help="The classes' names, comma-separated; nodes map their folders to them.")],
    address: Annotated[str, typer.Option(help="host:port under which nodes reach this server.")],
    method: Annotated[str | None, typer.Option(help="The method; see `fedprompt methods`.")] = None,
    change: Set = None,
    as_json: Json = False,
) -> None:
    """Prepare a server: certificates, settings, and the invitation to hand to each organisation."""
    require_flower()
    from fedprompt.federation.flower.headquarters import init_federation

    names = tuple(name.strip() for name in classes.split(",") if name.strip())
    if len(names) < 2 or len(set(names)) < len(names):
        raise UserError(f"--classes is {classes!r}, but it must be at least two different names with commas.")
    changes = parse_assignments(change or []) | ({"method": method} if method else {})
    init_federation(folder, folder / "run", load_config(preset, changes), names, address)
    invitation = folder / "invitation.toml"
    if as_json:
        print(json.dumps({"folder": str(folder), "invitation": str(invitation)}))
        return
    say(f"Give {invitation} to every organisation. Each answers with a card; let it in with:")
    say(f"  fedprompt federation admit {folder} CARD")
    say(f"  fedprompt federation serve {folder}")


@app.command("admit")
def admit(
    folder: Folder,
    cards: Annotated[list[Path], typer.Argument(metavar="CARD...", help="Cards that `fedprompt client init` made.")],
    new_client: Annotated[bool, typer.Option(help="Does not train; gets a model later.")] = False,
    as_json: Json = False,
) -> None:
    """Let nodes in by their cards: each card's key, name and number of images."""
    require_flower()
    from fedprompt.federation.flower.headquarters import Headquarters
    from fedprompt.federation.flower.headquarters import admit as let_in
    from fedprompt.federation.flower.papers import Card
    from fedprompt.federation.flower.processes import Processes

    read = [Card.read(card) for card in cards]
    for card in read:
        charter = let_in(folder, card, trains=not new_client)
    server = Headquarters(folder, Processes())
    if server.listens():
        server.register()
    rows = [{"name": name, **member.model_dump()} for name, member in charter.members.items()]
    if as_json:
        print(json.dumps(rows))
        return
    for row in rows:
        say(f"{row['client']}  {row['name']}  {row['images']} images{'' if row['trains'] else ', new client'}")


@app.command("serve")
def serve(
    folder: Folder,
    host: Annotated[str, typer.Option(help="Address of this machine to listen on; 0.0.0.0 for all.")] = "0.0.0.0",
    resume: Annotated[bool, typer.Option("--resume", help="Go on from the last finished round.")] = False,
    stay: Annotated[bool, typer.Option("--stay", help="Stay up for new clients when the run is finished.")] = False,
    as_json: Json = False,
) -> None:
    """Start the SuperLink, wait for the members, and train; Ctrl-C stops everything in good order."""
    require_flower()
    from fedprompt.federation.flower.charter import read_charter
    from fedprompt.federation.flower.headquarters import Headquarters, follow
    from fedprompt.federation.flower.processes import Processes

    charter = read_charter(folder)
    begun = (folder / "run" / "checkpoint.safetensors").is_file()
    if begun and not resume:
        raise UserError(f"The run in {folder / 'run'} has begun; go on with --resume.")
    config = load_config(folder / "run" / "config.toml")
    with stopping(), LiveRounds(silent=as_json) as live, Processes() as processes:
        server = Headquarters(folder, processes)
        live.begin(folder / "run", config, sum(member.trains for member in charter.members.values()))
        server.start(host)
        charter.begin().write(folder)
        live.say(f"The SuperLink listens on {charter.address}; {len(charter.members)} members may come in.")
        done = follow(server, folder / "run", live.round_ended)
        _print_summary(done, as_json=as_json)
        if stay:
            live.say("The run is finished; new clients are welcome until Ctrl-C.")
            while True:
                server.check()
                time.sleep(1)


@app.command("welcome")
def welcome(
    folder: Folder,
    name: Annotated[str, typer.Argument(help="The new client, as its card says.")],
    as_json: Json = False,
) -> None:
    """Give a new client a model from the last finished round; the SuperLink must run (`federation serve --stay`)."""
    require_flower()
    from fedprompt.federation.flower.headquarters import Headquarters, welcome_client
    from fedprompt.federation.flower.processes import Processes

    figures = welcome_client(Headquarters(folder, Processes()), name)
    if as_json:
        print(json.dumps({"name": name, **figures}))
    else:
        say(f"{name} has a model: {100 * figures['accuracy']:.2f} % right on its own {figures['images']} test images.")


def _print_summary(done: runs.Run, *, as_json: bool) -> None:
    summary = done.summary
    traffic = _traffic(done.folder)
    if as_json:
        print(json.dumps({"folder": str(done.folder), **summary, "bytes_measured": traffic}))
        return
    final = summary["final"]
    say(f"Average {100 * final['average']:.2f} %  Worst Local {100 * final['worst_local']:.2f} %")
    said, measured = summary["bytes_per_client_and_round"], ", ".join(f"{size:,}" for size in traffic)
    say(f"Sent by a client in a round: {measured or '-'} bytes of tensors (the method says {said:,})")
    say(f"Run folder: {done.folder}")


def _traffic(folder: Path) -> list[int]:
    """The different sizes of the updates that came in."""
    from fedprompt.run_folder import read_records

    return sorted({line["bytes"] for line in read_records(folder / "traffic.jsonl")})


@contextmanager
def stopping() -> Iterator[None]:
    """Let a polite kill (SIGTERM) end like Ctrl-C: with everything stopped."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
