"""Emission under attack: names that collide, words that YAML readers misread, settings that contradict the pod."""

from __future__ import annotations

import copy
import re
from pathlib import Path
from typing import Any

import pytest
import yaml as pyyaml
from hypothesis import given
from hypothesis import strategies as st

from inferasim_operator.cli.render import render_document
from inferasim_operator.emit import yaml
from simcore.errors import InputError

GOLDEN = Path(__file__).parents[1] / "golden/manifests"


def mix(case: str, *, name: str = "chat", configuration: dict[str, Any] | None = None, **spec: Any) -> dict[str, Any]:
    document: dict[str, Any] = pyyaml.load((GOLDEN / case / "mix.yaml").read_text(), pyyaml.CSafeLoader)
    document["metadata"]["name"] = name
    document["spec"].update(spec)
    document["spec"]["configurations"][0]["configuration"].update(configuration or {})
    return document


def identities(documents: list[dict[str, Any]]) -> list[tuple[str, str]]:
    return [(m["kind"], m["metadata"]["name"]) for document in documents for m in render_document(document)]


def renamed(document: dict[str, Any], deployment: str) -> dict[str, Any]:
    changed = copy.deepcopy(document)
    changed["spec"]["configurations"][0]["name"] = deployment
    return changed


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (("a", "b-c"), ("a-b", "c")),
        (("a-b", "decode"), ("a", "b")),
        (("a-b", "prefill"), ("a", "b")),
        (("a-b", "router"), ("a", "b")),
        (("a", "b-router"), ("a", "b")),
        (("2x", "b"), ("mix-2x", "b")),
    ],
)
def test_two_mixes_never_make_objects_of_one_name(one: tuple[str, str], other: tuple[str, str]) -> None:
    """The dash joins mix, deployment and role; it may be part of each."""
    for case in ("sglang-one-node", "sglang-disaggregated"):
        documents = [
            renamed(mix(case, name=one[0]), one[1]),
            renamed(mix("sglang-disaggregated", name=other[0]), other[1]),
        ]
        found = identities(documents)
        assert len(set(found)) == len(found)
        assert all(re.fullmatch(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?", name) for _, name in found), "Services' names"


@given(st.text(max_size=60))
def test_any_text_survives_our_yaml(text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError:
        return
    document = {"a": text, "b": [text], "c": {"d": text}}
    assert pyyaml.load(yaml.dump(document), pyyaml.SafeLoader) == document


@pytest.mark.parametrize(
    "word",
    [
        *("y", "n", "Y", "1e3", "1E5", ".5", "1.", "0o17", "0b1", "1_000", "inf", ".inf", ".NaN", "nan", "-1e-3"),
        *("yes", "off", "null", "~", "", "2001-01-01", "1:30", "0x1F", "<<", "=", "true", "- a", "a: b", "#a", "*a"),
    ],
)
def test_what_another_reader_takes_for_a_number_or_a_switch_is_quoted(word: str) -> None:
    """Go's readers know YAML 1.1's `y` and YAML 1.2's `1e3`; the API server refuses a number where text belongs."""
    line = yaml.dump({"value": word}).splitlines()[0]
    assert line.startswith(("value: '", 'value: "')), line


def test_env_passes_through_as_it_is() -> None:
    """Quotes, newlines, references and things that only look like them; nothing is expanded or unescaped on the way."""
    values = ['say "hi"', "it's", "$(POD_IP):1", "$$(NOT)", "{{ .Values.x }}", "a\nb\n", "  ", "ünï", "1e3", "`id`"]
    env = [{"name": f"V{index}", "value": value} for index, value in enumerate(values)]
    secret = {"name": "S", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}
    text = yaml.dump_all(render_document(mix("vllm-one-node", configuration={"env": [*env, secret]})))
    (workload,) = (m for m in pyyaml.safe_load_all(text) if m["kind"] == "Deployment")
    found = {v["name"]: v for v in workload["spec"]["template"]["spec"]["containers"][0]["env"]}
    assert [found[f"V{index}"]["value"] for index in range(len(values))] == values
    assert found["S"] == secret


@pytest.mark.parametrize(
    ("engine", "argument"),
    [
        ("vllm", "--tensor-parallel-size=8"),
        ("vllm", "--tensor_parallel_size=8"),
        ("vllm", "--tensor-par=8"),
        ("vllm", "-tp=8"),
        ("vllm", "-tp"),
        ("vllm", "--no-enable-prefix-caching"),
        ("vllm", "--max_num_seqs=1"),
        ("vllm", "--port=1"),
        ("sglang", "--tp=8"),
        ("sglang", "--model=/else"),
        ("sglang", "--mem-fraction=0.1"),
        ("atom", "--kv-cache-dtype=fp8"),
        ("atom", "-tp"),
    ],
)
def test_an_extra_argument_cannot_take_back_what_was_predicted(engine: str, argument: str) -> None:
    """Engines take the last of two spellings of a flag without a word."""
    with pytest.raises(InputError, match="not repeat a flag"):
        render_document(mix(f"{engine}-one-node", configuration={"extraArgs": [argument]}))


def test_an_extra_argument_of_its_own_is_taken() -> None:
    (workload,) = (
        m
        for m in render_document(mix("vllm-one-node", configuration={"extraArgs": ["--quantization=fp8", "-O3"]}))
        if m["kind"] == "Deployment"
    )
    assert workload["spec"]["template"]["spec"]["containers"][0]["args"][-2:] == ["--quantization=fp8", "-O3"]


@pytest.mark.parametrize(
    ("case", "spec", "told"),
    [
        ("vllm-one-node", {"rdmaResources": [{"name": "amd.com/gpu", "count": 1}]}, "network cards"),
        ("vllm-one-node", {"labels": {"inferasim.dev/pool": "epp"}}, "ours to set"),
        ("vllm-one-node", {"labels": {"app.kubernetes.io/managed-by": "me"}}, "ours to set"),
        ("vllm-one-node", {"pod": {"labels": {"llm-d.ai/inference-serving": "true"}}}, "ours to set"),
        ("vllm-one-node", {"labels": {"a/b/c": "x"}}, "label's key"),
        ("vllm-one-node", {"labels": {"a": "b c"}}, "labels"),
        ("vllm-one-node", {"pod": {"volumes": [{"name": "shm", "emptyDir": {}}]}}, "repeat a `name`"),
        ("vllm-one-node", {"pod": {"volumes": [{"name": "model", "emptyDir": {}}]}}, "repeat a `name`"),
        (
            "vllm-one-node",
            {
                "pod": {
                    "volumes": [{"name": "x", "emptyDir": {}}],
                    "volumeMounts": [{"name": "x", "mountPath": "/dev/shm"}],
                }
            },
            "repeat a `mountPath`",
        ),
        (
            "vllm-one-node",
            {"pod": {"nodeSelector": {"amd.com/gpu.compute-memory-partition": "cpx_nps4"}}},
            "split GPUs",
        ),
        ("vllm-one-node", {"pod": {"nodeSelector": {"amd.com/gpu.device-id": "74a1"}}}, "device id of MI355X"),
    ],
)
def test_what_no_cluster_could_run_is_one_clear_line(case: str, spec: dict[str, Any], told: str) -> None:
    with pytest.raises(InputError, match=told) as caught:
        render_document(mix(case, **spec))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("case", "told"), [("vllm-disaggregated-nixl", "the KV cache moves"), ("vllm-wide-ep", "collectives run")]
)
def test_pools_on_several_nodes_without_cards_say_so(case: str, told: str) -> None:
    """Case D09's kind: it starts, and is many times slower than predicted."""
    for resources, is_said in ([], True), ([{"name": "rdma/ib", "count": 8}], False):
        workloads = [
            m
            for m in render_document(mix(case, rdmaResources=resources))
            if m["kind"] in ("Deployment", "LeaderWorkerSet") and m["metadata"]["labels"]["inferasim.dev/pool"] != "epp"
        ]
        assert workloads
        for workload in workloads:
            notes = workload["metadata"].get("annotations", {}).get("inferasim.dev/assumed", "")
            assert (told in notes) is is_said
