"""The only importer of the Kubernetes client: a small blocking surface over plain JSON objects.

The generated classes of the client library are not used: they cost time and drop fields they do not know. Every error
leaves as one of `inferasim_operator.errors`, with the cause chained.
"""

from __future__ import annotations

import codecs
import http
import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlencode

import urllib3
import yaml
from kubernetes import client as library
from kubernetes import config as library_config

from inferasim_operator.engine import resources
from inferasim_operator.engine.actions import Manifest, Reference
from inferasim_operator.errors import LeaseLostError, NotFoundError, UnavailableError, cluster_error
from simcore.errors import InputError

Object = dict[str, Any]
TIMEOUT_S = 30.0
_config: Any = library_config  # the library has no types
_SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")


def _is_in_pod(kubeconfig: str | None, context: str | None) -> bool:
    """Whether the pod's service account is meant: it is there, and nothing else was named."""
    named = kubeconfig is not None or context is not None
    return not named and (_SERVICE_ACCOUNT / "token").exists() and "KUBERNETES_SERVICE_HOST" in os.environ


def context_namespace(*, kubeconfig: str | None = None, context: str | None = None) -> str:
    """The namespace meant where none is named: the pod's or the context's, else `default`. Raises InputError."""
    if _is_in_pod(kubeconfig, context):
        return (_SERVICE_ACCOUNT / "namespace").read_text(encoding="utf-8").strip()
    contexts, active = _read_config(lambda: _config.list_kube_config_contexts(config_file=kubeconfig), kubeconfig)
    chosen = next((item for item in contexts if item["name"] == context), active)
    return str(((chosen or {}).get("context") or {}).get("namespace") or "default")


def _read_config(read: Callable[[], Any], kubeconfig: str | None) -> Any:
    try:
        return read()
    except (_config.ConfigException, yaml.YAMLError, OSError, TypeError, AttributeError) as error:
        # The library meets a file that is no kubeconfig with whatever its own code runs into.
        where = kubeconfig or "the usual places"
        must = f"name a usable cluster ({str(error)[:120]})"
        raise InputError("kubeconfig", where, must, "pass --kubeconfig, or run in a pod") from error


@dataclass(frozen=True)
class Connection:
    """Where the API server is and how to prove oneself, for the watches."""

    server: str
    ca_path: str | None
    insecure: bool
    certificate_path: str | None
    private_key_path: str | None
    scheme: str | None
    token: str | None


class Client:
    """Blocking calls to one API server; safe to use from several threads."""

    def __init__(
        self,
        api: library.ApiClient,
        *,
        manager: str,
        timeout_s: float = TIMEOUT_S,
        reload: Callable[[], None] = lambda: None,
    ) -> None:
        """`reload` reads the credentials anew: asked for when the server does not know the present ones any more."""
        self._api, self.manager, self._timeout_s, self._reload = api, manager, timeout_s, reload
        self.may_write: Callable[[], bool] = lambda: True
        """Asked before each request that could change something."""

    @classmethod
    def connect(cls, *, manager: str, kubeconfig: str | None = None, context: str | None = None) -> Client:
        """A client for `kubeconfig`, else the pod's service account, else the usual context. Raises InputError."""
        configuration = library.Configuration()

        def load() -> None:
            if _is_in_pod(kubeconfig, context):
                _config.load_incluster_config(client_configuration=configuration)
                return
            _read_config(
                lambda: _config.load_kube_config(
                    config_file=kubeconfig, context=context, client_configuration=configuration
                ),
                kubeconfig,
            )

        load()
        configuration.connection_pool_maxsize = 40  # the threads of all kinds, the lease, and the live figures
        configuration.retries = False  # our own worker retries, with backoff, and says so in the status
        api = library.ApiClient(configuration)
        api.user_agent = f"{manager}/v1alpha1"
        return cls(api, manager=manager, reload=load)

    def impatient(self, timeout_s: float) -> Client:
        """The same server for requests whose answer is worth nothing after `timeout_s`, over connections of their own:
        one that fails is the only one, so that the next attempt is made over a new one."""
        api = library.ApiClient(self._api.configuration)
        api.user_agent = self._api.user_agent
        return Client(api, manager=self.manager, timeout_s=timeout_s, reload=self._reload)

    def connection(self) -> Connection:
        """The connection as it is now; read anew, because the watches ask when the server refused the last one."""
        self._read_credentials()
        configuration: Any = self._api.configuration
        header = configuration.get_api_key_with_prefix("BearerToken", alias="authorization")
        scheme, _, token = (header or "").partition(" ")
        return Connection(
            server=configuration.host,
            ca_path=configuration.ssl_ca_cert,
            insecure=not configuration.verify_ssl,
            certificate_path=configuration.cert_file,
            private_key_path=configuration.key_file,
            scheme=scheme if token else None,
            token=token or scheme or None,
        )

    def get(self, api_version: str, kind: str, namespace: str, name: str) -> Object:
        """One object. Raises NotFoundError."""
        return self._call("GET", resources.path(api_version, kind, namespace, name))

    def find(self, api_version: str, kind: str, namespace: str, name: str) -> Object | None:
        """One object, or None when there is none."""
        try:
            return self.get(api_version, kind, namespace, name)
        except NotFoundError:
            return None

    def list(
        self, api_version: str, kind: str, namespace: str = "", *, labels: str = "", fields: str = ""
    ) -> list[Object]:
        """All objects of a kind in one namespace (or all of them), by selectors, in the order of their names."""
        items: list[Object] = []
        query: dict[str, str] = {"limit": "500"}
        if labels:
            query["labelSelector"] = labels
        if fields:
            query["fieldSelector"] = fields
        while True:
            page = self._call("GET", resources.path(api_version, kind, namespace), query=query)
            # Items of a list carry no kind of their own.
            items += [{"apiVersion": api_version, "kind": kind, **item} for item in page.get("items") or ()]
            token = (page.get("metadata") or {}).get("continue")
            if not token:
                return sorted(items, key=lambda o: (o["metadata"].get("namespace", ""), o["metadata"]["name"]))
            query["continue"] = token

    def create(self, manifest: Manifest, *, dry_run: bool = False) -> Object:
        """Create an object under strict field validation. Raises AlreadyExistsError."""
        reference = Reference.of(manifest)
        return self._call(
            "POST",
            resources.path(reference.api_version, reference.kind, reference.namespace),
            query=self._write_query(dry_run=dry_run),
            body=dict(manifest),
        )

    def apply(self, manifest: Manifest, *, dry_run: bool = False, force: bool = False) -> Object:
        """Server-side apply under strict field validation. Raises ConflictError naming the other managers."""
        reference = Reference.of(manifest)
        return self._patch(
            resources.path(reference.api_version, reference.kind, reference.namespace, reference.name),
            manifest,
            self._write_query(dry_run=dry_run, force=force),
        )

    def merge(self, reference: Reference, change: Manifest) -> Object:
        """Merge-patch an existing object; the answer to an empty change is the object itself. Raises NotFoundError."""
        path = resources.path(reference.api_version, reference.kind, reference.namespace, reference.name)
        text = self._text(
            "PATCH", path, query=self._write_query(), body=dict(change), content="application/merge-patch+json"
        )
        answer: Object = json.loads(text)
        return answer

    def apply_status(self, manifest: Manifest) -> Object:
        """Server-side apply of the status alone; the manifest carries the uid, so a namesake is never written to."""
        reference = Reference.of(manifest)
        return self._patch(
            resources.path(reference.api_version, reference.kind, reference.namespace, reference.name, "status"),
            manifest,
            self._write_query(force=True),
        )

    def replace(self, manifest: Manifest) -> Object:
        """Replace an object as read, guarded by its resourceVersion. Raises ConflictError."""
        reference = Reference.of(manifest)
        return self._call(
            "PUT",
            resources.path(reference.api_version, reference.kind, reference.namespace, reference.name),
            query=self._write_query(),
            body=dict(manifest),
        )

    def delete(self, reference: Reference, *, uid: str) -> None:
        """Delete the object with this uid, and what it owns in the background. Raises NotFoundError, ConflictError."""
        self._call(
            "DELETE",
            resources.path(reference.api_version, reference.kind, reference.namespace, reference.name),
            body={
                "apiVersion": "v1",
                "kind": "DeleteOptions",
                "propagationPolicy": "Background",
                "preconditions": {"uid": uid},
            },
        )

    def stream_pod_log(
        self, namespace: str, name: str, *, container: str, lines: int, previous: bool = False, follow: bool = False
    ) -> Iterator[str]:
        """The end of a container's log in pieces as they come; with `follow` on to the container's end."""
        query = {"container": container, "tailLines": str(lines), "follow": str(follow).lower()}
        query |= {"previous": "true"} if previous else {}
        path = resources.path("v1", "Pod", namespace, name, "log")
        decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        with _translated("GET", path):
            waits = (self._timeout_s, None if follow else self._timeout_s)
            answer = self._request("GET", path, query=query, timeout=waits)
            for piece in answer.response.stream(decode_content=True):
                yield decoder.decode(piece)

    def served_kinds(self, group_version: str) -> set[str]:
        """The kinds that the server offers in a group version; empty when it has none. For the check at start."""
        try:
            answer = self._call("GET", f"/apis/{group_version}")
        except NotFoundError:
            return set()
        return {item["kind"] for item in answer.get("resources") or ()}

    def _write_query(self, *, dry_run: bool = False, force: bool = False) -> dict[str, str]:
        query = {"fieldManager": self.manager, "fieldValidation": "Strict"}
        if dry_run:
            query["dryRun"] = "All"
        if force:
            query["force"] = "true"
        return query

    def _patch(self, path: str, manifest: Manifest, query: dict[str, str]) -> Object:
        answer: Object = json.loads(
            self._text("PATCH", path, query=query, body=json.dumps(manifest), content="application/apply-patch+yaml")
        )
        return answer

    def _call(
        self, method: str, path: str, *, query: Mapping[str, str] | None = None, body: Object | None = None
    ) -> Object:
        text = self._text(method, path, query=query, body=body)
        answer: Object = json.loads(text)
        return answer

    def _text(
        self,
        method: Literal["GET", "POST", "PUT", "PATCH", "DELETE"] | str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: Object | str | None = None,
        content: str = "application/json",
    ) -> str:
        with _translated(method, path):
            answer = self._request(method, path, query=query, body=body, content=content)
            return bytes(answer.read()).decode("utf-8", errors="replace")

    def _request(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: Object | str | None = None,
        content: str = "application/json",
        timeout: float | tuple[float, float | None] | None = None,
    ) -> Any:
        """The answer, its body not yet read. Raises one of our errors for any but a good one, or the libraries'."""
        if method != "GET" and not self.may_write():
            raise LeaseLostError(f"{method} {path}: not sent, because another instance may lead by now")
        answer = self._send(method, path, query, body, content, timeout)
        if answer.status == http.HTTPStatus.UNAUTHORIZED:
            # Rotated, and neither the library nor we have read the new ones: once more with what is there now.
            answer.read()
            self._read_credentials()
            answer = self._send(method, path, query, body, content, timeout)
        if not 200 <= answer.status <= 299:
            raise cluster_error(int(answer.status), bytes(answer.read()).decode("utf-8", errors="replace"))
        return answer

    def _read_credentials(self) -> None:
        with suppress(InputError):  # a file that is just being written: the next request asks again
            self._reload()

    def _send(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None,
        body: Object | str | None,
        content: str,
        timeout: float | tuple[float, float | None] | None,
    ) -> Any:
        headers: dict[str, str] = dict(self._api.default_headers)
        headers |= {"Accept": "application/json", "Content-Type": content}
        # Asked anew for each call, so that a rotated service-account token is picked up.
        self._api.update_params_for_auth(headers, [], ["BearerToken"], path, method, body)
        url = self._api.configuration.host + path + (f"?{urlencode(query)}" if query else "")
        rest: Any = self._api.rest_client
        return rest.request(method, url, headers=headers, body=body, _request_timeout=timeout or self._timeout_s)


@contextmanager
def _translated(method: str, path: str) -> Iterator[None]:
    """What the libraries raise on the way becomes one of our errors."""
    try:
        yield
    except library.ApiException as error:
        raise UnavailableError(f"{method} {path}: {error.reason}") from error
    except urllib3.exceptions.HTTPError as error:
        raise UnavailableError(f"{method} {path}: {type(error).__name__}") from error
