"""One real control plane, started, used, interrupted and ended."""

from __future__ import annotations

import collections.abc
import json
import pathlib
import time

import pytest

from e2e import commands, controlplane, errors, processes

pytestmark = pytest.mark.integration


def _eventually(is_so: collections.abc.Callable[[], bool], *, timeout_s: float = 60.0) -> None:
    deadline_s = time.monotonic() + timeout_s
    while not is_so():
        assert time.monotonic() < deadline_s
        time.sleep(0.1)


def _job(owner_uid: str) -> str:
    owner = {"apiVersion": "v1", "kind": "ConfigMap", "name": "owner", "uid": owner_uid}
    pod = {"restartPolicy": "Never", "containers": [{"name": "main", "image": "none"}]}
    job = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": "job", "ownerReferences": [owner]},
        "spec": {"template": {"spec": pod}},
    }
    return json.dumps(job)


def test_control_plane_from_start_to_stop() -> None:
    with controlplane.ControlPlane(audit=True) as cluster:
        pids = cluster.pids()
        assert len(pids) == 3
        cluster.kubectl("create", "configmap", "owner")
        uid = cluster.kubectl("get", "configmap", "owner", "-o", "jsonpath={.metadata.uid}")
        cluster.kubectl("apply", "--server-side", "-f", "-", input=_job(uid))
        _eventually(lambda: cluster.kubectl("get", "pods", "-o", "jsonpath={.items[*].status.phase}") == "Pending")

        cluster.kubectl("create", "serviceaccount", "bot")
        bot = cluster.kubeconfig_for("bot")
        with pytest.raises(errors.KubectlError, match="forbidden"):
            cluster.kubectl("get", "pods", kubeconfig=bot)
        refused = [event for event in cluster.audit_events() if event.is_forbidden]
        assert [(event.user, event.resource) for event in refused] == [("system:serviceaccount:default:bot", "pods")]
        with pytest.raises(errors.E2EError, match="not found"):
            cluster.kubeconfig_for("nobody")

        cluster.restart_apiserver(crash=True)
        cluster.restart_controller_manager()
        cluster.kubectl("delete", "configmap", "owner")
        _eventually(lambda: cluster.kubectl("get", "jobs,pods", "-o", "name") == "")
        cluster.check()
        pids |= cluster.pids()
        folder = cluster.state_dir
    assert not folder.exists()
    assert [name for name, pid in pids.items() if pid is not None and processes.started_at(pid)] == []


def test_failed_start_leaves_the_logs_and_no_process(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commands, "etcd", lambda program, **_: [str(program), "--no-such-flag"])
    cluster = controlplane.ControlPlane(state_dir=tmp_path)
    with pytest.raises(errors.ComponentError, match=r"etcd (?s:.*)no-such-flag"):
        cluster.start()
    assert cluster.pids() == {}
    assert (tmp_path / "logs" / "etcd.log").exists()
