"""The command line as people and their scripts meet it: help, mistakes, pipes, colours, narrow screens, Ctrl-C."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from inferasim_operator.cli.app import COMMANDS, app
from inferasim_operator.cli.output import LEAST_WIDTH, screen

ROOT = Path(__file__).resolve().parents[2]
GROUPS = {"anchors": ("show", "check", "fit", "select"), "harvest": ("logs",)}
VERBS = [(name,) for name in COMMANDS] + [(group, name) for group, names in GROUPS.items() for name in names]
ANCHORS = str(ROOT / "examples" / "anchors")
CHECK = str(ROOT / "examples" / "check-deepseek-r1.yaml")
PLAN = str(ROOT / "examples" / "plan.yaml")
MIX = str(ROOT / "examples" / "mix.yaml")


def invoke(*arguments: str, **environment: str) -> tuple[int, str, str]:
    result = CliRunner(env=environment).invoke(app, list(arguments))
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.stdout, result.stderr


def run(*arguments: str, code: str | None = None, **environment: str) -> subprocess.CompletedProcess[str]:
    """A process of its own: `inferasim` with these arguments, or `code` in its place."""
    command = ["-m", "inferasim_operator.cli.app", *arguments] if code is None else ["-c", code]
    return subprocess.run(
        [sys.executable, *command],
        env=os.environ | environment,
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


@pytest.mark.parametrize("verb", VERBS, ids=" ".join)
def test_every_verb_has_help_that_fits_a_narrow_screen(verb: tuple[str, ...]) -> None:
    code, out, error = invoke(*verb, "--help", COLUMNS="40", TERMINAL_WIDTH="40")
    assert (code, error) == (0, "")
    assert out.startswith(f"Usage: root {' '.join(verb)}"[:20])
    assert "…" not in out, "something is cut off"
    whole = [line for line in out.splitlines() if len(line) > 80 and " " in line.strip()]
    assert whole == []


def test_the_list_of_commands_is_whole_and_each_says_what_it_does() -> None:
    _, out, _ = invoke("--help")
    for name, (_, text) in COMMANDS.items():
        assert f"  {name} " in out
        assert text.split()[0] in out


@pytest.mark.parametrize(
    ("arguments", "fragment"),
    [
        (("plam",), "did you mean `plan`?"),
        (("plan",), "Missing option '-f'"),
        (("plan", "-f"), "requires an argument"),
        (("plan", "--nope"), "No such option: --nope"),
        (("plan", "-f", "no-such.yaml"), "No such file"),
        (("predict", "-f", str(ROOT / "examples")), "directory"),
        (("predict", "-f", "x", "-o", "xml"), "'table', 'json', 'yaml'"),
        (("check", "-f", str(ROOT / "examples" / "plan.yaml")), "`inferasim plan` takes it"),
        (("predict", "-f", str(ROOT / "examples" / "mix.yaml")), "`inferasim render` takes it"),
        (("anchors", "nope"), "No such command 'nope'; see `root anchors --help`"),
        (("harvest", "logs"), "Missing argument 'name'; see `root harvest logs --help`"),
        (("replay",), "Missing argument"),
        (("predict", "-f", "x", "--report", "no/such/page.html"), "folder that exists, and writable"),
        (("plan", "-f", "x", "--report", "-"), "must be a file"),
        (("plan", "-f", "x", "one.json", "two.json"), "a folder stands for its files"),
        (("plan", "-f", ANCHORS), "got '0 plans'; name it with -f"),
        (("plan", "-f", PLAN, "-f", PLAN), "got '2 plans: "),
        (("render", "-f", MIX), "inferasim plan -f PLAN -f ANCHORS -o json > answer.json"),
        (("render", "-f", PLAN), "0 mixes, 1 plan answers"),
        (("anchors", "show", "no-such.json"), "No such file"),
        (("import", "no-such.json"), "No such file"),
        (("validate", "no-such.csv"), "No such file"),
        (("explain", "no-such.json"), "No such file"),
        (("report", "no-such.json"), "No such file"),
        (("status", "--kubeconfig", "no-such-kubeconfig"), "usable cluster"),
    ],
)
def test_a_mistake_is_one_line_and_exit_2(arguments: tuple[str, ...], fragment: str) -> None:
    code, out, error = invoke(*arguments)
    assert (code, out) == (2, "")
    assert len(error.strip().splitlines()) == 1, error
    assert error.startswith("inferasim: ")
    assert fragment in error


@pytest.mark.parametrize(
    ("command", "source", "old", "new", "says"),
    [
        (
            "plan",
            PLAN,
            "promptTokens:",
            "promptToken:",
            "`spec.workload.fixed.promptToken` must be a key of this format",
        ),
        ("plan", PLAN, "promptTokens:", "promptToken:", "did you mean one of: promptTokens"),
        ("plan", PLAN, "nodes: 1", "gpuBudgt: 1", "`spec.cluster.gpuBudgt` must be a key"),
        ("plan", PLAN, "promptTokens: 1024", "promptTokens: 1k", "promptTokens` must be a whole number, got '1k'"),
        ("plan", PLAN, "nodes: 1", "nodes: 0", "`spec.cluster.nodes` must be greater than or equal to 1, got 0"),
        ("plan", PLAN, "nodes: 1", "", "`spec.cluster` must set exactly one of `nodes` and `discovery`"),
        (
            "plan",
            PLAN,
            "cluster:\n    accelerator: MI355X\n    nodes: 1",
            "cluster: MI355X",
            "`spec.cluster` must be a mapping, got 'MI355X'",
        ),
        ("plan", PLAN, "accelerator: MI355X", "accelerator: MI355", "did you mean one of: MI355X"),
        ("plan", PLAN, "v1alpha1", "v1", "`apiVersion` must be inferasim.dev/v1alpha1, got 'inferasim.dev/v1'"),
        ("render", MIX, "format: SGLang", "format: sglang", "`spec.format` must be 'VLLM', 'SGLang', "),
        ("render", MIX, "planRef:", "planRf:", "did you mean one of: planRef"),
        ("render", MIX, "name: chat\nspec", "nome: chat\nspec", "`metadata.name` must be given"),
        ("check", CHECK, "tensorParallel", "tensorParalel", "did you mean one of: tensorParallel"),
        (
            "check",
            CHECK,
            "model:",
            "anchors: []\nmodel:",
            "`anchors` must be a key of this format, got 'anchors'; remove",
        ),
        ("check", CHECK, "model:", "\tmodel:", "line "),
    ],
)
def test_a_slip_in_a_file_names_its_place_the_value_and_what_to_do(
    tmp_path: Path, command: str, source: str, old: str, new: str, says: str
) -> None:
    text = Path(source).read_text(encoding="utf-8")
    assert old in text
    changed = tmp_path / "changed.yaml"
    changed.write_text(text.replace(old, new, 1), encoding="utf-8")
    code, out, error = invoke(command, "-f", str(changed))
    assert (code, out) == (2, ""), error
    assert len(error.strip().splitlines()) == 1, error
    assert says in error


def test_a_forgotten_anchor_is_told_apart_from_one_that_nobody_measured() -> None:
    code, out, error = invoke("plan", "-f", PLAN)
    assert (code, error) == (1, "inferasim: no anchor was handed in: name a file or folder of them with another -f\n")
    assert "no anchor applies" in out
    assert invoke("explain", PLAN)[0] == 0


@pytest.mark.parametrize("written", [b"\r\n", b"\n"], ids=["windows", "unix"])
def test_line_ends_and_byte_order_marks_change_nothing(tmp_path: Path, written: bytes) -> None:
    changed = tmp_path / "case.yaml"
    changed.write_bytes(b"\xef\xbb\xbf" + Path(CHECK).read_bytes().replace(b"\n", written))
    assert invoke("check", "-f", str(changed), "-o", "json") == invoke("check", "-f", CHECK, "-o", "json")


def test_help_and_version_by_the_names_that_people_try() -> None:
    assert invoke("--version") == invoke("version")
    for verb in VERBS:
        assert invoke(*verb, "-h") == invoke(*verb, "--help")


@pytest.mark.parametrize("group", [(), ("anchors",), ("harvest",)])
def test_without_a_command_the_help_goes_to_standard_error(group: tuple[str, ...]) -> None:
    code, out, error = invoke(*group)
    assert (code, out) == (2, "")
    assert "Commands:" in error


def test_json_is_alone_on_standard_output_even_where_colours_are_forced() -> None:
    found = run("check", "-f", CHECK, "-o", "json", FORCE_COLOR="1", TTY_COMPATIBLE="1")
    assert found.returncode == 0, found.stderr
    assert json.loads(found.stdout)["verdict"]
    assert found.stderr == ""


def test_no_colour_where_none_is_wanted() -> None:
    """By https://no-color.org: NO_COLOR wins over what forces colours."""
    found = run("check", "-f", CHECK, NO_COLOR="1", FORCE_COLOR="1")
    assert found.returncode == 0, found.stderr
    assert re.search("\x1b\\[(3|4|9|10)[0-9]", found.stdout) is None
    assert "kvBytesPerTokenPerRank" in found.stdout


def test_a_narrow_screen_loses_no_figure() -> None:
    _, out, _ = invoke("anchors", "check", ANCHORS, COLUMNS="30")
    assert "…" not in out


def test_a_dumb_terminal_loses_none_either(monkeypatch: pytest.MonkeyPatch) -> None:
    """An editor's or a serial console's: whatever its size, 80 columns are assumed, and our tables need more."""
    for name, value in {"TERM": "dumb", "FORCE_COLOR": "1", "TTY_COMPATIBLE": "1", "COLUMNS": "80"}.items():
        monkeypatch.setenv(name, value)
    assert screen().is_dumb_terminal
    assert screen().width >= LEAST_WIDTH


@pytest.mark.parametrize("arguments", [("check", "-f", CHECK, "-o", "json"), ("check", "-f", CHECK)])
def test_a_closed_pipe_is_no_error(arguments: tuple[str, ...]) -> None:
    """The reader is gone before the first byte is written; 1 would say that the answer is no."""
    reader, writer = os.pipe()
    os.close(reader)
    found = subprocess.run(
        [sys.executable, "-m", "inferasim_operator.cli.app", *arguments],
        stdout=writer,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
        timeout=120,
    )
    os.close(writer)
    assert found.returncode == 0
    assert found.stderr == ""


def test_a_full_disk_is_one_line() -> None:
    with Path("/dev/full").open("w") as full:
        found = subprocess.run(
            [sys.executable, "-m", "inferasim_operator.cli.app", "check", "-f", CHECK, "-o", "json"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
            timeout=120,
        )
    assert found.returncode == 1
    assert "the output cannot be written" in found.stderr
    assert len(found.stderr.strip().splitlines()) == 1


def test_ctrl_c_is_exit_130_without_a_word() -> None:
    """The signal comes while the input is read."""
    code = (
        "import os, signal, sys\n"
        "from inferasim_operator.cli import app, documents\n"
        "documents.read_text = lambda path: os.kill(os.getpid(), signal.SIGINT)\n"
        "sys.argv = ['inferasim', 'check', '-f', 'x']\n"
        "app.main()\n"
    )
    found = run(code=code)
    assert (found.returncode, found.stdout, found.stderr) == (130, "", "")


def test_usage_errors_are_found_by_their_class() -> None:
    """`typer` keeps the class of usage errors to itself; the app takes it from this family."""
    assert typer.BadParameter.__mro__[1].__name__ == "UsageError"
