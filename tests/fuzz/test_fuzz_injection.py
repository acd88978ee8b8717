"""Text of a spec is data wherever it ends: one string of a manifest, never syntax of the YAML, an option or a name."""

from __future__ import annotations

import datetime
import re
from typing import Any

import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from inferasim_operator.api.v1alpha1.anchorharvest import AnchorHarvest
from inferasim_operator.emit.yaml import dump, dump_all
from inferasim_operator.engine import names
from inferasim_operator.engine.actions import ObjectKey
from inferasim_operator.engine.clock import Clock
from inferasim_operator.engine.kind import Context, Kind
from inferasim_operator.engine.reconcile import Reconciler
from inferasim_operator.kinds.anchorharvest.observe import observe
from inferasim_operator.kinds.anchorharvest.plan import plan
from tests import builders
from tests.fake_cluster import FakeCluster
from tests.fuzz.mutations import HOSTILE

TEXTS = st.one_of(
    st.sampled_from([text for text in HOSTILE if isinstance(text, str) and "\ud800" not in text]),
    st.text(max_size=40),
    st.text(alphabet=" \n\t:-#'\"|>{}[]&*!%@`$()\\\r\x85\u2028\ufeff", max_size=12),
)
DNS_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
LABEL_VALUE = re.compile(r"([A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?)?")


@given(st.dictionaries(TEXTS, st.one_of(TEXTS, st.lists(TEXTS, max_size=3)), max_size=4))
def test_written_yaml_reads_back_as_it_was(document: dict[str, Any]) -> None:
    """Whatever an environment value or an argument holds: no second document, no other type, no lost character."""
    assert yaml.safe_load(dump(document)) == document
    assert list(yaml.safe_load_all(dump_all([document, document]))) == [document, document]


@given(TEXTS, TEXTS)
def test_names_and_labels_are_legal(one: str, other: str) -> None:
    """Any text gives a legal name and label; different texts give different ones."""
    assert DNS_LABEL.fullmatch(names.object_name(one, "x"))
    assert LABEL_VALUE.fullmatch(names.label_value(one))
    if one != other:
        assert names.object_name(one) != names.object_name(other)


@settings(max_examples=20)
@given(st.lists(TEXTS, min_size=1, max_size=3))
def test_environment_and_arguments_of_a_harvest_stay_data(texts: list[str]) -> None:
    """They reach the Job as they are, each one string of a list, or are refused; no shell is ever asked."""
    harvest = builders.anchor_harvest()
    harvest["spec"]["engine"] |= {
        "env": [{"name": f"V{number}", "value": text} for number, text in enumerate(texts)],
        "extraArgs": texts,
    }
    cluster = FakeCluster(builders.live(harvest))
    clock = Clock(now=lambda: datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC))
    Reconciler(Kind(AnchorHarvest.resource, observe, plan), Context(cluster), clock).run(
        ObjectKey("default", "harvest")
    )
    jobs = cluster.list("batch/v1", "Job", "default")
    refused = "Stalled" in str(cluster.get("inferasim.dev/v1alpha1", "AnchorHarvest", "default", "harvest")["status"])
    assert len(jobs) == (0 if refused else 1)
    for job in jobs:
        for container in job["spec"]["template"]["spec"]["containers"]:
            assert not {"sh", "bash", "-c"} & {*container.get("command", ()), *container.get("args", ())}
        (engine, *_) = job["spec"]["template"]["spec"]["containers"]
        written = {item["name"]: item.get("value") for item in engine["env"]}
        assert [written[f"V{number}"] for number in range(len(texts))] == texts
