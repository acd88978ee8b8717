"""`make demo`: from `kubectl apply` to manifests, on a real API server, from measured anchors.

The operator runs as a process with exactly its generated rights. `--cluster current` uses the current kube context and
its `kubectl`; everything the demo made is removed at the end.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import threading
import time
import typing
from collections.abc import Callable, Iterator

import yaml

from e2e import controlplane, errors, progress
from inferasim_operator.report import numbers
from tools import rbacgen

ROOT = pathlib.Path(__file__).resolve().parent.parent
EXAMPLES = ROOT / "examples"
NAMESPACE = "inferasim-demo"
ACCOUNT = "inferasim-operator"
PLAN, MIX, HARVEST = "chat", "chat", "llama-tp2"
PATIENCE_S = 120.0
KINDS = "anchorharvests,servingplans,deploymentmixes"

Kubectl = Callable[..., str]
Object = dict[str, typing.Any]


def main(arguments: list[str] | None = None) -> int:
    """Run the demo; 0 when everything it promises was seen."""
    parser = argparse.ArgumentParser(prog="python -m e2e.demo", description=__doc__.splitlines()[0])
    parser.add_argument("--cluster", choices=("embedded", "current"), default="embedded")
    options = parser.parse_args(arguments)
    started = time.monotonic()
    try:
        with _cluster(options.cluster) as (kubectl, kubeconfig):
            _show(kubectl, kubeconfig)
    except (errors.E2EError, DemoError) as error:
        print(f"\ndemo failed: {error}", file=sys.stderr)
        return 1
    print(f"\ndone in {time.monotonic() - started:.0f} s; nothing is left behind")
    return 0


class DemoError(Exception):
    """Something the demo promises did not happen."""


@contextlib.contextmanager
def _cluster(name: str) -> Iterator[tuple[Kubectl, Callable[[], pathlib.Path]]]:
    """kubectl and a way to a kubeconfig of the operator's service account, on either cluster."""
    if name == "current":
        with tempfile.TemporaryDirectory() as folder:
            yield _current_kubectl, lambda: _account_kubeconfig(pathlib.Path(folder) / "operator.yaml")
        return
    _say("starting etcd, kube-apiserver and kube-controller-manager (built on first use)")
    with controlplane.ControlPlane(shown=progress.Progress()) as plane:
        yield plane.kubectl, lambda: plane.kubeconfig_for(ACCOUNT, namespace=NAMESPACE)


def _current_kubectl(*arguments: str, input: str | None = None) -> str:  # noqa: A002 - as subprocess.run names it
    """The kubectl on PATH against the current context."""
    answer = subprocess.run(["kubectl", *arguments], input=input, capture_output=True, text=True, check=False)
    if answer.returncode != 0:
        raise errors.KubectlError(arguments, returncode=answer.returncode, stdout=answer.stdout, stderr=answer.stderr)
    return answer.stdout


def _account_kubeconfig(path: pathlib.Path) -> pathlib.Path:
    """The current context's server with a token of the operator's service account."""
    view = yaml.safe_load(_current_kubectl("config", "view", "--minify", "--raw", "-o", "yaml"))
    token = _current_kubectl("-n", NAMESPACE, "create", "token", ACCOUNT).strip()
    view["users"] = [{"name": ACCOUNT, "user": {"token": token}}]
    view["contexts"][0]["context"].update({"user": ACCOUNT, "namespace": NAMESPACE})
    path.touch(mode=0o600)
    path.write_text(yaml.safe_dump(view), encoding="utf-8")
    return path


def _show(kubectl: Kubectl, kubeconfig: Callable[[], pathlib.Path]) -> None:
    installed = _installed_crds(kubectl)
    _say("installing the CRDs, a namespace, and the operator's account with exactly its rights")
    kubectl("apply", "--server-side", "-f", str(ROOT / "crds"))
    kubectl("wait", "--for=condition=Established", "--timeout=60s", "crd", *_crd_names())
    try:
        kubectl("create", "namespace", NAMESPACE)
        rights = rbacgen.namespaced_objects(role=ACCOUNT, namespace=NAMESPACE, service_account=ACCOUNT)
        kubectl("apply", "-f", "-", input=yaml.safe_dump_all(rights))
        with _operator(kubeconfig()) as log:
            _story(kubectl, log)
    finally:
        _say("cleaning up")
        kubectl("delete", "namespace", NAMESPACE, "--ignore-not-found", "--wait=true")
        if not installed:
            kubectl("delete", "-f", str(ROOT / "crds"), "--ignore-not-found")


def _story(kubectl: Kubectl, log: pathlib.Path) -> None:
    _say("loading the measured anchors (the paper's Table 20) as ConfigMaps")
    kubectl("apply", "-f", "-", input=yaml.safe_dump_all(anchor_config_maps()))
    _say("kubectl apply -f examples/plan.yaml -f examples/mix.yaml -f examples/harvest.yaml")
    for name in ("plan.yaml", "mix.yaml", "harvest.yaml"):
        kubectl("-n", NAMESPACE, "apply", "-f", str(EXAMPLES / name))
    _follow(kubectl, log)
    emitted = _emitted(kubectl)
    deployment = next(item for item in emitted if item["kind"] == "Deployment")
    _say(f"the manifests ({len(emitted)} objects), one of them in full")
    print(yaml.safe_dump(deployment, sort_keys=True))
    print("\n".join(f"{item['kind'].lower()}/{item['metadata']['name']}" for item in emitted))
    kubectl(
        "-n", NAMESPACE, "apply", "--dry-run=server", "--validate=strict", "-f", "-", input=yaml.safe_dump_all(emitted)
    )
    _say("all accepted by the API server in a strict dry-run")
    _print_choices(_get(kubectl, "servingplan", PLAN))


def anchor_config_maps() -> list[Object]:
    """One labelled ConfigMap per anchor file in examples/anchors, named as the file."""
    return [
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": path.stem, "namespace": NAMESPACE, "labels": {"inferasim.dev/anchor": "true"}},
            "data": {"anchor.json": path.read_text(encoding="utf-8")},
        }
        for path in sorted((EXAMPLES / "anchors").glob("*.json"))
    ]


@contextlib.contextmanager
def _operator(kubeconfig: pathlib.Path) -> Iterator[pathlib.Path]:
    """The operator as a process of its own, under the account's rights; its log is a file."""
    with tempfile.TemporaryDirectory() as folder:
        log = pathlib.Path(folder) / "operator.log"
        command = [
            sys.executable, "-m", "inferasim_operator", "run", "--namespace", NAMESPACE,
            "--kubeconfig", str(kubeconfig), "--lease-namespace", NAMESPACE, "--health-port", "0",
        ]  # fmt: skip
        with log.open("wb") as output:
            process = subprocess.Popen(command, stdout=output, stderr=output, cwd=folder, env=os.environ.copy())
        _say(f"the operator runs (pid {process.pid})")
        try:
            yield log
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(timeout=30)
            except subprocess.TimeoutExpired:
                process.kill()


def _follow(kubectl: Kubectl, log: pathlib.Path) -> None:
    """Print `kubectl get` of the three kinds whenever it changes, until the plan and the mix are ready."""
    shown, pause = "", threading.Event()
    deadline = time.monotonic() + PATIENCE_S
    while True:
        table = kubectl("-n", NAMESPACE, "get", KINDS)
        # The age column alone is no news.
        news = "\n".join(line.rsplit(maxsplit=1)[0] for line in table.splitlines() if line.strip())
        if news != shown:
            shown = news
            _say(f"kubectl get {KINDS}")
            print(table, end="")
        if all(_is_ready(_get(kubectl, kind, name)) for kind, name in (("servingplan", PLAN), ("deploymentmix", MIX))):
            return
        if time.monotonic() > deadline:
            tail = "\n".join(log.read_text(errors="replace").splitlines()[-15:])
            raise DemoError(f"plan and mix are not Ready within {PATIENCE_S:.0f} s; the operator's log ends:\n{tail}")
        pause.wait(0.5)


def _is_ready(live: Object) -> bool:
    conditions = live.get("status", {}).get("conditions", [])
    return any(item["type"] == "Ready" and item["status"] == "True" for item in conditions)


def _print_choices(plan: Object) -> None:
    _say("the chosen configuration per tier")
    for choice in plan["status"].get("selected", []):
        configuration, predicted = choice["configuration"], choice["predicted"]
        interval = predicted["interval80"]
        throughput, ttft = interval["tokensPerSecondPerGpu"], interval["ttftMilliseconds"]
        print(
            f"  {choice['tier']:12} {configuration['engine']} {numbers.layout(configuration['layout'])} "
            f"x{configuration['replicas']} ({numbers.gpus(choice['gpus'])}, {configuration['concurrency']} clients): "
            f"{predicted['tokensPerSecondPerGpu']} tok/s/GPU (80 %: {throughput['low']}-{throughput['high']}), "
            f"{predicted['tokensPerSecondPerUser']} tok/s/user, "
            f"TTFT {predicted['ttftMilliseconds']} ms (80 %: {ttft['low']}-{ttft['high']})"
        )
        source = choice["source"]
        flags = f", flags: {', '.join(source['flags'])}" if source.get("flags") else ""
        print(f"  {'':12} {choice.get('reason', '')}; from anchor {source.get('anchor', '-')}{flags}")
    for limit in plan["status"].get("binding", []):
        print(f"  {limit['tier']:12} not feasible: {limit['limit']} binds: {limit['detail']}")


def _emitted(kubectl: Kubectl) -> list[Object]:
    """The objects in the mix's ConfigMap."""
    mix = _get(kubectl, "deploymentmix", MIX)
    reference = mix["status"]["manifests"]["configMap"]
    data = _get(kubectl, "configmap", reference)["data"]
    objects = [item for text in data.values() for item in yaml.safe_load_all(text) if isinstance(item, dict)]
    if not objects:
        raise DemoError(f"the ConfigMap {reference} holds no manifest")
    return objects


def _get(kubectl: Kubectl, kind: str, name: str) -> Object:
    found: Object = json.loads(kubectl("-n", NAMESPACE, "get", kind, name, "-o", "json"))
    return found


def _crd_names() -> list[str]:
    return [yaml.safe_load(path.read_text())["metadata"]["name"] for path in sorted((ROOT / "crds").glob("*.yaml"))]


def _installed_crds(kubectl: Kubectl) -> bool:
    """Whether the cluster has our kinds already: then they are not ours to remove."""
    return bool(kubectl("get", "crd", *_crd_names(), "--ignore-not-found", "-o", "name").strip())


def _say(text: str) -> None:
    print(f"\n== {text}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
