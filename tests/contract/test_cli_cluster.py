"""`status`, `explain`, `report` and `harvest logs` against an API server's answers, over HTTP on loopback."""

from __future__ import annotations

import http.server
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from inferasim_operator.cli.app import app
from inferasim_operator.engine import client
from inferasim_operator.kinds.servingplan import render
from simcore.errors import InputError
from tests import builders
from tests.controllers.test_report_pages import RESULT
from tests.page_rules import assert_page

API = f"/apis/{builders.API_VERSION}/namespaces/team/"
READY = {"type": "Ready", "status": "True", "reason": "PlanFound", "message": "found"}
STALLED = [
    {"type": "Ready", "status": "False", "reason": "UnknownModel", "message": "model `Lama` [bold]is unknown[/bold]"},
    {"type": "Stalled", "status": "True", "reason": "UnknownModel", "message": "model `Lama` is unknown"},
]
DIGEST = "sha256:0123456789abcdef"


def _live(manifest: dict[str, Any], generation: int = 1, **status: Any) -> dict[str, Any]:
    return builders.live(manifest, uid=f"uid-{manifest['metadata']['name']}", generation=generation, **status)


PLAN = _live(
    builders.serving_plan("chat", "team"),
    conditions=[READY],
    observedGeneration=1,
    summary="1 of 2 tiers",
    inputDigest=DIGEST,
    result={"configMap": "chat-result"},
)
EDITED = _live(builders.serving_plan("edited", "team"), generation=2, **PLAN["status"])
WRONG = _live(builders.serving_plan("wrong", "team"), conditions=STALLED, observedGeneration=1)
FRESH = _live(builders.serving_plan("fresh", "team"))
HARVEST = _live(
    builders.anchor_harvest("tp4", "team"),
    conditions=[{**READY, "status": "False", "reason": "Measuring", "message": "phase Decode"}],
    observedGeneration=1,
    progress={"phase": "Decode", "pointsDone": 12, "pointsTotal": 37, "points": "12/37", "etaSeconds": 90},
)
POD = {
    "metadata": {"name": "tp4-pod", "namespace": "team", "creationTimestamp": "2026-01-01T00:00:00Z"},
    "spec": {"containers": [{"name": "harvester"}]},
    "status": {"phase": "Running"},
}
LOG = "naïve line\nsecond line\n"


def _pages() -> dict[str, Any]:
    plans, harvests = [PLAN, WRONG, FRESH, EDITED], [HARVEST]
    pages: dict[str, Any] = {
        API + "servingplans": {"items": plans},
        API + "anchorharvests": {"items": harvests},
        API + "deploymentmixes": {"items": []},
        "/api/v1/namespaces/team/configmaps/chat-result": render.result_config_map(PLAN, DIGEST, RESULT),
        "/api/v1/namespaces/team/pods": {"items": [POD]},
        "/api/v1/namespaces/team/pods/tp4-pod/log": LOG,
    }
    pages |= {API + f"servingplans/{plan['metadata']['name']}": plan for plan in plans}
    pages |= {API + f"anchorharvests/{one['metadata']['name']}": one for one in harvests}
    return pages


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
    """The pages that the server answers with, by path; a test may change them."""
    pages = _pages()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            found = pages.get(self.path.split("?")[0])
            missing = {"kind": "Status", "message": "not found", "code": 404}
            body = found if isinstance(found, str) else json.dumps(missing if found is None else found)
            self.send_response(404 if found is None else 200)
            self.end_headers()
            # In two pieces that cut a letter, as a stream may.
            raw = body.encode()
            self.wfile.write(raw[:3])
            self.wfile.flush()
            self.wfile.write(raw[3:])

        def log_message(self, *_: object) -> None:
            pass

    listener = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=listener.serve_forever, args=(0.02,), daemon=True).start()
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "c", "cluster": {"server": f"http://127.0.0.1:{listener.server_address[1]}"}}],
        "users": [{"name": "u", "user": {}}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u", "namespace": "team"}}],
        "current-context": "x",
    }
    path = tmp_path / "kubeconfig"
    path.write_text(yaml.safe_dump(config))
    monkeypatch.chdir(tmp_path)
    yield pages
    listener.shutdown()
    listener.server_close()


def invoke(tmp_path: Path, *arguments: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, [*arguments, "--kubeconfig", str(tmp_path / "kubeconfig")])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.stdout, result.stderr


@pytest.mark.usefixtures("server")
def test_status_says_how_far_and_why_not(tmp_path: Path) -> None:
    code, out, _ = invoke(tmp_path, "status", "-o", "json")
    found = {item["name"]: item for item in json.loads(out)["objects"]}
    assert code == 1, "one plan is stalled"
    assert list(found) == ["tp4", "chat", "edited", "fresh", "wrong"], "as the kinds follow one another"
    assert (found["chat"]["ready"], found["chat"]["summary"]) == ("True", "1 of 2 tiers")
    assert found["wrong"]["stalled"]
    assert found["fresh"] | {"ready": "Unknown", "outdated": True} == found["fresh"]
    assert found["edited"]["outdated"]
    assert not found["chat"]["outdated"]
    code, out, _ = invoke(tmp_path, "status")
    assert "Decode 12/37, 90 s to go" in out
    assert "model `Lama` [bold]is unknown[/bold]" in out, "text from the cluster is not our markup"


@pytest.mark.usefixtures("server")
@pytest.mark.parametrize("name", ["chat", "sp/chat", "servingplans/chat", "ServingPlan/chat"])
def test_status_of_one_object(tmp_path: Path, name: str) -> None:
    code, out, _ = invoke(tmp_path, "status", name, "-o", "json")
    assert code == 0
    assert [item["name"] for item in json.loads(out)["objects"]] == ["chat"]


@pytest.mark.usefixtures("server")
@pytest.mark.parametrize(
    ("arguments", "code", "fragment"),
    [
        (("status", "nobody"), 2, "no object `nobody` in namespace `team`"),
        (("status", "pod/chat"), 2, "DeploymentMix"),
        (("status", "-n", "other"), 2, "helm install"),
        (("report", "nobody"), 2, "no ServingPlan `nobody`"),
        (("report", "fresh"), 1, "no operator has looked at it yet"),
        (("explain", "wrong"), 1, "UnknownModel: model `Lama`"),
        (("explain", "chat", "--disaggregation", "MoRI"), 2, "come with the plan's files"),
        (("harvest", "logs", "nobody"), 2, "no AnchorHarvest `nobody`"),
        (("report", "chat", "no/such/folder/page.html"), 2, "be writable"),
    ],
)
def test_mistakes_are_one_clear_line(tmp_path: Path, arguments: tuple[str, ...], code: int, fragment: str) -> None:
    found, out, error = invoke(tmp_path, *arguments)
    assert (found, out) == (code, "")
    assert fragment in error
    assert len(error.strip().splitlines()) == 1


@pytest.mark.usefixtures("server")
def test_report_of_a_live_plan_is_the_page_of_its_result(tmp_path: Path) -> None:
    code, out, error = invoke(tmp_path, "report", "chat")
    assert (code, out) == (0, "")
    assert "wrote chat.html" in error
    page = (tmp_path / "chat.html").read_text(encoding="utf-8")
    assert assert_page(page).text("h1") == ["Llama-3.1-8B: serving plan chat"]
    assert invoke(tmp_path, "report", "servingplan/chat", "-")[1] == page
    assert "was edited after" in invoke(tmp_path, "report", "edited", "-")[2]


@pytest.mark.usefixtures("server")
def test_explain_of_a_live_plan_equals_that_of_its_file(tmp_path: Path) -> None:
    (tmp_path / "answer.json").write_text(json.dumps(RESULT))
    code, told, _ = invoke(tmp_path, "explain", "chat", "-o", "json")
    assert code == 0
    assert told == invoke(tmp_path, "explain", "answer.json", "-o", "json")[1]


def test_a_damaged_answer_is_told(tmp_path: Path, server: dict[str, Any]) -> None:
    server["/api/v1/namespaces/team/configmaps/chat-result"]["data"] = {"inputDigest": "another"}
    code, _, error = invoke(tmp_path, "report", "chat")
    assert code == 2
    assert "holds no answer to this question" in error
    assert "spec.rerun" in error


def test_harvest_logs_come_whole_or_with_the_reason_why_not(tmp_path: Path, server: dict[str, Any]) -> None:
    code, out, _ = invoke(tmp_path, "harvest", "logs", "tp4", "-f")
    assert (code, out) == (0, LOG)
    pods = "/api/v1/namespaces/team/pods"
    waiting = {"phase": "Pending", "conditions": [{"type": "PodScheduled", "message": "0/3 nodes: no amd.com/gpu"}]}
    server[pods] = {"items": [{**POD, "status": waiting}]}
    code, _, error = invoke(tmp_path, "harvest", "logs", "tp4")
    assert code == 1
    assert "has not started: 0/3 nodes: no amd.com/gpu" in error
    server[pods] = {"items": []}
    assert "has no pod: Measuring: phase Decode" in invoke(tmp_path, "harvest", "logs", "tp4")[2]


def test_in_a_pod_the_pods_namespace_is_meant(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`kubectl exec` into the operator's image and ask there: no kubeconfig, the service account instead."""
    (tmp_path / "token").write_text("t")
    (tmp_path / "namespace").write_text("serving\n")
    monkeypatch.setattr(client, "_SERVICE_ACCOUNT", tmp_path)
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "api.example")
    assert client.context_namespace() == "serving"
    with pytest.raises(InputError):
        client.context_namespace(kubeconfig=str(tmp_path / "none"))
