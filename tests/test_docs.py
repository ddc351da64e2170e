"""What the documents say exists: commands, their options, presets, methods, and the files they point to."""

import re
import shlex
from pathlib import Path

import pytest
import typer

from fedprompt.cli import app
from fedprompt.config import parse_assignments, preset_names
from fedprompt.methods import method_class
from fedprompt.studies import study_names

REPOSITORY = Path(__file__).resolve().parent.parent
DOCUMENTS = sorted(
    path
    for path in (*REPOSITORY.glob("*.md"), *REPOSITORY.glob("docs/**/*.md"), *REPOSITORY.glob("results/**/*.md"))
    if path.is_file()
)
COMMANDS = typer.main.get_command(app).commands


def name(path: Path) -> str:
    return path.relative_to(REPOSITORY).as_posix()


def code_blocks(text: str) -> list[str]:
    """The content of fenced blocks, of indented ones, and of `inline code`."""
    fenced = re.findall(r"^ *```[^\n]*\n(.*?)^ *```", text, re.MULTILINE | re.DOTALL)
    rest = re.sub(r"^ *```[^\n]*\n.*?^ *```", "", text, flags=re.MULTILINE | re.DOTALL)
    return fenced + re.findall(r"^    .+$", rest, re.MULTILINE) + re.findall(r"`([^`\n]+)`", rest)


def commands(text: str) -> list[list[str]]:
    """Every call of fedprompt in the code of a document, as words."""
    found = []
    for block in code_blocks(text.replace("\\\n", " ")):
        for line in block.splitlines():
            call = re.match(r"^\s*(?:\$ )?(?:\S*/)?(?:python -m )?fedprompt\s+([^|&;>]+)", line.split(" #")[0])
            if call:
                found.append(shlex.split(call.group(1).replace("...", "").replace("[", "").replace("]", "")))
    return found


def complaint(words: list[str]) -> str | None:
    """What is wrong with a call, if anything; words in capitals stand for whatever the reader has."""
    if words[0].startswith("-"):
        return None if words[0] in ("--help", "--version") else f"there is no option {words[0]}"
    if words[0] not in COMMANDS:
        return f"there is no command {words[0]}"
    command, called, words = COMMANDS[words[0]], words[0], words[1:]
    while words and hasattr(command, "commands") and not words[0].startswith("-"):  # as in `fedprompt study run`
        if words[0] not in command.commands:
            return f"there is no command {called} {words[0]}"
        command, called, words = command.commands[words[0]], f"{called} {words[0]}", words[1:]
    options = {opt: parameter for parameter in command.params for opt in parameter.opts if opt[0] == "-"}
    options |= {opt: parameter for parameter in command.params for opt in parameter.secondary_opts}
    rest, arguments = iter(words), []
    for word in rest:
        option, equals, value = word.partition("=")
        if not word.startswith("--"):
            arguments.append(word)
            continue
        if option == "--help":
            continue
        if option not in options:
            return f"{called} has no option {option}"
        if not options[option].is_flag:
            value = value if equals else next(rest, None)
            if value is None:
                return f"{option} lacks its value"
            if not stands_for_something(value):
                check_value(option, value)
    return wrong_preset(called, arguments)


def stands_for_something(word: str) -> bool:
    return word.isupper() or "<" in word


def check_value(option: str, value: str) -> None:
    """Raises where a value cannot be right."""
    if option == "--set":
        parse_assignments([value])
    elif option == "--method":
        method_class(value)
    elif option == "--methods":
        for key in value.split(","):
            method_class(key.strip())


def wrong_preset(command: str, arguments: list[str]) -> str | None:
    if command in ("run", "compare", "data", "methods") and arguments and arguments[0] != "get":
        preset = arguments[0]
        if not (preset in preset_names() or preset.endswith(".toml") or stands_for_something(preset)):
            return f"there is no preset {preset}"
    if command in ("study run", "study show") and arguments:
        study = arguments[0]
        if not (study in study_names() or study.endswith(".toml") or stands_for_something(study)):
            return f"there is no study {study}"
    return None


@pytest.mark.parametrize("path", DOCUMENTS, ids=name)
def test_every_command_in_a_document_exists(path):
    for words in commands(path.read_text("utf-8")):
        assert complaint(words) is None, f"{name(path)}: fedprompt {' '.join(words)}: {complaint(words)}"


@pytest.mark.parametrize("path", DOCUMENTS, ids=name)
def test_every_relative_link_in_a_document_leads_somewhere(path):
    text = re.sub(r"^ *```.*?^ *```", "", path.read_text("utf-8"), flags=re.MULTILINE | re.DOTALL)
    links = re.findall(r"\]\(<?([^)\s>]+)>?[^)]*\)", text) + re.findall(r'(?:src|href)="([^"]+)"', text)
    for link in links:
        target = link.partition("#")[0]
        if target and not re.match(r"[a-z]+:", target):
            assert (path.parent / target).exists(), f"{name(path)} points to {link}, which is not there"


@pytest.mark.parametrize("path", DOCUMENTS, ids=name)
def test_every_make_target_in_a_document_exists(path):
    targets = set(re.findall(r"^([a-z][\w-]*):", (REPOSITORY / "Makefile").read_text("utf-8"), re.MULTILINE))
    for block in code_blocks(path.read_text("utf-8")):
        for target in re.findall(r"^\s*(?:\$ )?make ([a-z][\w-]*)", block, re.MULTILINE):
            assert target in targets, f"{name(path)} names make {target}"


def test_there_is_something_to_read():
    assert "README.md" in map(name, DOCUMENTS)


def test_wrong_commands_would_be_found():
    """The tests above are worth something: these mistakes do not pass them."""
    text = (
        "    fedprompt rum\n\n"
        "```\nfedprompt run digits6 --sett a=1\n$ fedprompt trane\n```\nand `fedprompt run digits9`, `fedprompt run X`"
        " `fedprompt study rum ablation`, `fedprompt study run ablatoin`, `fedprompt study run ablation --onn digits6`"
    )
    found = [complaint(words) for words in commands(text)]
    assert sorted(filter(None, found)) == [
        "run has no option --sett",
        "study run has no option --onn",
        "there is no command rum",
        "there is no command study rum",
        "there is no command trane",
        "there is no preset digits9",
        "there is no study ablatoin",
    ]
    assert len(found) == 8
    assert complaint(shlex.split("compare digits6 --methods head-tune,fedvpt-d --seeds 0,1,2 --set a.b=1")) is None
    assert complaint(shlex.split("predict RUN --client 3 a.png b.png --json")) is None
    with pytest.raises(Exception, match="sgtp"):
        complaint(["run", "--method", "sgtp"])
