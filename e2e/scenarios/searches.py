"""What the scenarios of searches put into a namespace: a volume of the node with a trace on it, and a chat model."""

from __future__ import annotations

import json
import pathlib

from e2e import images
from tests.integration.harness import ROOT, Cluster, Object

CLAIM = "store"
TRACE = "traces/hour.jsonl"
PORT = 8080
CHAT_SERVER = ROOT / "tests" / "chat_server.py"
_ROOM = "64Mi"


def volume(team: Cluster) -> tuple[Object, Object]:
    """A folder of the node as a PersistentVolume, which goes with the cluster, and the claim that is bound to it."""
    name = f"{team.namespace}-{CLAIM}"
    common = {"accessModes": ["ReadWriteMany"], "storageClassName": ""}
    return (
        {
            "apiVersion": "v1",
            "kind": "PersistentVolume",
            "metadata": {"name": name},
            "spec": common
            | {
                "capacity": {"storage": _ROOM},
                "persistentVolumeReclaimPolicy": "Retain",
                "claimRef": {"namespace": team.namespace, "name": CLAIM},
                "hostPath": {"path": f"{team.plane.state_dir}/volumes/{name}", "type": "DirectoryOrCreate"},
            },
        },
        {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "metadata": {"name": CLAIM},
            "spec": common | {"volumeName": name, "resources": {"requests": {"storage": _ROOM}}},
        },
    )


def python_job(name: str, program: str, *, user: int = 65532) -> Object:
    """A Job that runs a program of Python with the operator's image, the claim at /store."""
    container = {
        "name": "python",
        "image": images.OPERATOR.reference,
        "command": ["python", "-c", program],
        "securityContext": {"runAsUser": user},
        "volumeMounts": [{"name": "store", "mountPath": "/store"}],
    }
    pod = {
        "restartPolicy": "Never",
        "containers": [container],
        "volumes": [{"name": "store", "persistentVolumeClaim": {"claimName": CLAIM}}],
    }
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name},
        "spec": {"backoffLimit": 0, "template": {"spec": pod}},
    }


def said(team: Cluster, job: Object) -> str:
    """Run such a Job; what it printed."""
    name = job["metadata"]["name"]
    team.apply(job)
    team.wait("job", name, "Complete", timeout_s=120.0)
    return team.kubectl("logs", f"job/{name}")


def fill() -> Object:
    """The Job that prepares the volume, as an administrator would: a trace on it, and room for the search's pods."""
    row = {"timestamp": 0, "input_length": 1024, "output_length": 64, "hash_ids": [1, 2]}
    program = (
        "import os, pathlib\n"
        f"file = pathlib.Path('/store/{TRACE}')\n"
        "file.parent.mkdir(parents=True, exist_ok=True)\n"
        f"file.write_text({json.dumps(row) + chr(10)!r} * 32)\n"
        "os.chmod('/store', 0o777)\n"
    )
    return python_job("fill", program, user=0)


def plan_on_the_volume() -> Object:
    """A plan whose trace and whose table are on the claim, its search in an Indexed Job of two pods."""
    return {
        "apiVersion": "inferasim.dev/v1alpha1",
        "kind": "ServingPlan",
        "metadata": {"name": "hour"},
        "spec": {
            "model": {"name": "Llama-3.1-8B"},
            "cluster": {"accelerator": "MI355X", "nodes": 1},
            "engines": [{"name": "SGLang"}],
            "workload": {"trace": {"claim": {"claimName": CLAIM, "path": TRACE}}},
            "load": {"concurrencies": [4, 16]},
            "tiers": [{"name": "bulk"}],
            "search": {"shards": 2},
            "results": {"claim": {"claimName": CLAIM, "path": "plans"}},
        },
    }


READ_TABLE = """
import json, pathlib, pyarrow.parquet as pq
folder = pathlib.Path('/store') / {folder!r}
files = sorted(path.name for path in folder.iterdir())
rows = [row for name in files for row in pq.read_table(folder / name).to_pylist()]
best = max(row['throughput_per_gpu_tokens_per_s'] for row in rows)
print(json.dumps(dict(files=files, rows=len(rows), best=best, owner=(folder / files[0]).stat().st_uid)))
"""


def chat_model(key: str) -> tuple[Object, ...]:
    """A chat model of the cluster's own with its Service, and the Secret with its key."""
    selector = {"app": "chat-model"}
    program = pathlib.Path(CHAT_SERVER).read_text(encoding="utf-8")
    container = {
        "name": "chat-model",
        "image": images.OPERATOR.reference,
        "command": ["python", "/program/chat_server.py", str(PORT)],
        "readinessProbe": {"tcpSocket": {"port": PORT}, "periodSeconds": 1},
        "volumeMounts": [{"name": "program", "mountPath": "/program"}],
    }
    pod = {"containers": [container], "volumes": [{"name": "program", "configMap": {"name": "chat-model"}}]}
    return (
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": "chat-model"},
            "data": {"chat_server.py": program},
        },
        {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "chat-model"}, "stringData": {"token": key}},
        {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "chat-model", "labels": selector}, "spec": pod},
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": "chat-model"},
            "spec": {"selector": selector, "ports": [{"port": PORT}]},
        },
    )


def plan_of_an_agent(address: str) -> Object:
    """A plan that a chat model proposes configurations for."""
    agent = {
        "url": f"http://{address}:{PORT}/v1",
        "model": "helpful",
        "secret": {"name": "chat-model", "key": "token"},
    }
    return {
        "apiVersion": "inferasim.dev/v1alpha1",
        "kind": "ServingPlan",
        "metadata": {"name": "agent"},
        "spec": {
            "model": {"name": "Llama-3.1-8B"},
            "cluster": {"accelerator": "MI355X", "nodes": 1, "gpuBudget": 2},
            "engines": [{"name": "SGLang"}],
            "workload": {"fixed": {"promptTokens": 1024, "outputTokens": 64}},
            "load": {"concurrencies": [1, 8]},
            "tiers": [{"name": "bulk"}],
            "search": {"method": "Agent", "budget": 16, "agent": agent},
        },
    }
