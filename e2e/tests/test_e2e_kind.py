"""kind's variant of the cluster with `kind`, `docker` and `kubectl` replaced: what is asked of them, in which order."""

from __future__ import annotations

import collections.abc
import json
import pathlib
import shlex
import sys

import pytest

from e2e import cluster, errors, images, kind
from inferasim_operator.api.v1alpha1.servingplan import ServingPlan
from inferasim_operator.engine.kind import Context
from inferasim_operator.kinds.servingplan import observe_nodes
from tests import builders
from tests.fake_cluster import FakeCluster

NODE = "inferasim-e2e-control-plane"
# Notes its name and words, prints what `answers` holds for them, and fails where `failing` names the first two.
_PROGRAM = """\
#!{python} -IS
import json, pathlib, sys
folder = pathlib.Path({folder!r})
words = [pathlib.Path(sys.argv[0]).name, *sys.argv[1:]]
with (folder / "asked").open("a") as asked:
    asked.write(json.dumps(words) + "\\n")
said = json.loads((folder / "said.json").read_text())
print(said["answers"].get(" ".join(words[:3]), ""))
if " ".join(words[:2]) in said["failing"]:
    sys.exit("no " + words[1])
"""


class Machine:
    """A PATH of stand-ins, and what they were asked."""

    def __init__(self, folder: pathlib.Path) -> None:
        self.folder = folder
        self.bin = folder / "bin"
        self.bin.mkdir()
        for name in ("kind", "docker", "kubectl"):
            program = self.bin / name
            program.write_text(_PROGRAM.format(python=sys.executable, folder=str(folder)), encoding="utf-8")
            program.chmod(0o755)
        self.say()

    def say(self, *failing: str, **answers: str) -> None:
        """Which commands fail, and what the others print."""
        found = {name.replace("_", " "): text for name, text in answers.items()}
        (self.folder / "said.json").write_text(json.dumps({"failing": failing, "answers": found}), encoding="utf-8")

    def asked(self) -> list[list[str]]:
        """All commands so far, but docker's."""
        lines = (self.folder / "asked").read_text(encoding="utf-8").splitlines()
        return [words for words in map(json.loads, lines) if words[0] != "docker"]


@pytest.fixture
def machine(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> collections.abc.Iterator[Machine]:
    made = Machine(tmp_path)
    monkeypatch.setenv("PATH", str(made.bin))
    images.docker_answers.cache_clear()
    yield made
    images.docker_answers.cache_clear()


def test_a_cluster_is_made_equipped_loaded_and_deleted(machine: Machine) -> None:
    """As documented: labels by the admin, GPUs as an extended resource in the node's status."""
    with kind.KindCluster() as made:
        made.load_image(pathlib.Path("/tmp/operator.tar"))
        state_dir, config = made.state_dir, str(made.kubeconfig)
    asked = machine.asked()
    assert asked[0] == ["kind", "get", "clusters"]
    create = f"kind create cluster --name inferasim-e2e --kubeconfig {config} --wait 120s"
    assert asked[1] == create.split()
    label = "amd.com/gpu.device-id=75a3 amd.com/gpu.compute-memory-partition=spx_nps1"
    assert asked[2] == f"kubectl label node {NODE} --overwrite {label}".split()
    assert asked[3][:7] == shlex.split(f"kubectl patch node {NODE} --subresource=status --type=json -p")
    assert json.loads(asked[3][7]) == [
        {"op": "add", "path": "/status/capacity/amd.com~1gpu", "value": "8"},
        {"op": "add", "path": "/status/allocatable/amd.com~1gpu", "value": "8"},
    ]
    assert asked[4] == ["kind", "load", "image-archive", "--name", "inferasim-e2e", "/tmp/operator.tar"]
    assert asked[5] == f"kind delete cluster --name inferasim-e2e --kubeconfig {config}".split()
    assert len(asked) == 6
    assert not state_dir.exists()


@pytest.mark.parametrize("failing", ["kubectl label", "kubectl patch"])
def test_what_was_made_is_deleted_when_it_cannot_be_equipped(machine: Machine, failing: str) -> None:
    machine.say(failing)
    made = kind.KindCluster()
    with pytest.raises(errors.KubectlError, match=f"no {failing.split()[1]}"):
        made.__enter__()
    assert machine.asked()[-1][:3] == ["kind", "delete", "cluster"]
    assert not made.state_dir.exists()


def test_kind_that_cannot_make_a_cluster_has_cleaned_up_itself(machine: Machine) -> None:
    """A deletion by name might meet the cluster of another run that was faster."""
    machine.say("kind create")
    made = kind.KindCluster()
    with pytest.raises(errors.E2EError, match="no create"):
        made.__enter__()
    assert [words[1] for words in machine.asked()] == ["get", "create"]
    assert not made.state_dir.exists()


def test_the_cluster_of_another_run_is_left_alone(machine: Machine) -> None:
    machine.say(kind_get_clusters="work\ninferasim-e2e\n")
    made = kind.KindCluster()
    with pytest.raises(errors.E2EError, match="kind delete cluster --name inferasim-e2e"):
        made.__enter__()
    assert [words[1] for words in machine.asked()] == ["get"]
    assert not made.state_dir.exists()


def test_a_cluster_that_cannot_be_deleted_is_told(machine: Machine) -> None:
    with kind.KindCluster() as made:
        machine.say("kind delete")
        with pytest.raises(errors.E2EError, match="no delete"):
            made.stop()
        assert not made.state_dir.exists()
        machine.say()


@pytest.mark.parametrize(
    ("gone", "failing", "says"),
    [
        ("kind", (), "needs kind"),
        ("docker", (), "needs docker"),
        ("", ("docker version",), "needs a docker daemon"),
    ],
)
def test_what_is_missing_is_named(machine: Machine, gone: str, failing: tuple[str, ...], says: str) -> None:
    if gone:
        (machine.bin / gone).unlink()
    machine.say(*failing)
    with pytest.raises(errors.E2EError, match=says):
        kind.KindCluster().__enter__()


def test_the_operator_counts_such_a_node() -> None:
    """A plan's discovery finds eight MI355X by what the node is labelled and equipped with."""
    resources = {"amd.com/gpu": str(cluster.GPUS)}
    status = {"capacity": resources, "allocatable": resources, "conditions": [{"type": "Ready", "status": "True"}]}
    node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE, "labels": cluster.LABELS}, "status": status}
    context = Context(FakeCluster(node), serves_all_namespaces=True)
    plan = ServingPlan.model_validate(builders.serving_plan(cluster={"accelerator": "MI355X", "discovery": {}}))
    found = observe_nodes.nodes(context, plan.spec)
    assert found is not None
    assert (found.nodes_count, found.gpus_per_node, found.problem) == (1, 8, "")
