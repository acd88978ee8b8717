"""`inferasim render -f mix.yaml [-f plan-result.yaml]`: the manifests of a DeploymentMix, byte-identical each time.

With `--directory` they are written as the folder that Git delivery would commit.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from inferasim_operator.api.v1alpha1.common import API_VERSION, ObjectMeta
from inferasim_operator.api.v1alpha1.deploymentmix import DeploymentMix, DeploymentMixSpec
from inferasim_operator.cli import documents, output
from inferasim_operator.convert import typed, validated
from inferasim_operator.emit import yaml
from inferasim_operator.emit.objects import Manifest
from inferasim_operator.emit.package import Package
from inferasim_operator.kinds.deploymentmix.choices import PlanAnswer
from inferasim_operator.kinds.deploymentmix.render import Emission, emission
from simcore.errors import InputError

ANSWER_HINT = "`inferasim plan -f PLAN -f ANCHORS -o json > answer.json` writes it; hand it in with another -f"


def render_document(document: Mapping[str, Any], plan_result: Mapping[str, Any] | None = None) -> list[Manifest]:
    """The manifests of the DeploymentMix `document`. Raises InputError."""
    return list(render_emission(document, plan_result)[1].manifests)


def render_emission(
    document: Mapping[str, Any], plan_result: Mapping[str, Any] | None = None
) -> tuple[DeploymentMixSpec, Emission]:
    """All that comes of `document`; `plan_result` is a ServingPlan with its answer. Raises InputError.

    `plan_result` holds `selected`, either at its top (what `inferasim plan -o json` prints) or under `status` (a
    ServingPlan as `kubectl get -o yaml` prints it), and its question under `spec` where the answer leaves things open.
    """
    if document.get("apiVersion") != API_VERSION or document.get("kind") != DeploymentMix.resource.kind:
        raise InputError("kind", document.get("kind"), f"be DeploymentMix of {API_VERSION}")
    spec = typed(DeploymentMixSpec, document.get("spec"), "spec")
    metadata = validated(ObjectMeta, document.get("metadata"), "metadata")
    answer = None if plan_result is None else _answer(plan_result)
    if answer is None and spec.plan_ref is not None:
        raise InputError("planRef", spec.plan_ref.name, "come with its plan's answer", ANSWER_HINT)
    return spec, emission(metadata.name, metadata.namespace or "default", spec, answer)


def _answer(result: Mapping[str, Any]) -> PlanAnswer:
    status = result.get("status") if isinstance(result.get("status"), Mapping) else result
    assert isinstance(status, Mapping)  # noqa: S101 - one of the two mappings above
    selected = status.get("selected")
    if not isinstance(selected, Sequence) or not all(isinstance(item, Mapping) and "tier" in item for item in selected):
        raise InputError("selected", selected, "be the list of a plan's choices", ANSWER_HINT)
    spec = result.get("spec") or {}
    return PlanAnswer(spec, tuple(selected))


def render(
    files: Annotated[list[str], typer.Option("--file", "-f", help="The DeploymentMix, and the plan's answer if any.")],
    directory: Annotated[
        Path | None, typer.Option("--directory", "-d", help="Write a folder of files here, which must be new or empty.")
    ] = None,
    package: Annotated[
        Package | None, typer.Option(help="What the folder is for; the mix's own `delivery.git.package` when absent.")
    ] = None,
) -> None:
    """Print the manifests of a DeploymentMix as YAML, or write them as a folder."""
    with output.exit_codes():
        mixes: list[Mapping[str, Any]] = []
        results: list[Mapping[str, Any]] = []
        for path in documents.expand(files):
            for document in documents.load_documents(path):
                (mixes if document.get("kind") == DeploymentMix.resource.kind else results).append(document)
        if len(mixes) != 1 or len(results) > 1:
            found = f"{len(mixes)} mixes, {len(results)} plan answers"
            raise InputError("file", found, "be one DeploymentMix and at most one plan's answer", ANSWER_HINT)
        spec, result = render_emission(mixes[0], results[0] if results else None)
        if directory is not None:
            _write(directory, result.files(package or spec.package))
            return
        if package is not None:
            raise InputError("package", package.value, "come with --directory: it is a folder")
        sys.stdout.write(yaml.dump_all(result.manifests))
        sys.stdout.flush()


def _write(directory: Path, contents: Mapping[str, str]) -> None:
    """The files, which nothing is in the way of. Raises InputError."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        if any(directory.iterdir()):
            raise InputError("directory", str(directory), "be new or empty")
        for name, text in contents.items():
            (directory / name).parent.mkdir(parents=True, exist_ok=True)
            (directory / name).write_text(text, encoding="utf-8")
    except OSError as error:
        raise InputError("directory", str(directory), f"be a folder to write to: {error.strerror}") from error
