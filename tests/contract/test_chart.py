"""The chart's files agree with the rest of the project: CRDs, version, metric names, generated GitOps files."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client.metrics import MetricWrapperBase

from inferasim_operator import metrics
from inferasim_operator.live.export import LiveCollector
from tools import chartgen, imagelock, metricdoc

ROOT = Path(__file__).resolve().parents[2]
CHART = ROOT / "charts" / "inferasim"
DASHBOARDS = ("dashboard.json", "live.json")
_NAME = re.compile(r"\binferasim[_:][a-z0-9_:]+")


@pytest.mark.parametrize("tool", [chartgen, imagelock, metricdoc], ids=lambda tool: tool.__name__)
def test_generated_files_are_fresh(tool: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert tool.main(["--check"]) == 0, capsys.readouterr().err


def test_the_charts_crds_are_the_projects_and_are_kept() -> None:
    for path in (ROOT / "crds").glob("*.yaml"):
        ours = yaml.safe_load(path.read_text())
        theirs = yaml.safe_load((CHART / "generated" / "crds" / path.name).read_text())
        annotations = theirs["metadata"].pop("annotations")
        assert annotations["helm.sh/resource-policy"] == "keep"
        assert theirs == ours
        # Client-side apply keeps the whole object in an annotation, which is bounded.
        assert len(json.dumps(theirs)) < 262_144


def test_no_crd_has_defaults() -> None:
    """What Git says is what the server keeps, byte for byte (D02)."""

    def defaults(node: Any, path: str) -> list[str]:
        if isinstance(node, dict):
            own = [path] if "default" in node and path.rsplit(".", 1)[-1] != "properties" else []
            return own + [hit for key, value in node.items() for hit in defaults(value, f"{path}.{key}")]
        return [hit for item in node for hit in defaults(item, path)] if isinstance(node, list) else []

    found = {name: defaults(crd["spec"], "") for name, crd in chartgen.crds().items()}
    assert not any(found.values()), found


def test_one_version() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert chart["appVersion"] == chart["version"] == project["version"]


def _exported() -> set[str]:
    """Names of the samples that the operator exports, as Prometheus stores them."""
    own = [value for value in vars(metrics).values() if isinstance(value, MetricWrapperBase)]
    names: set[str] = set()
    for family in [f for metric in own for f in metric.collect()] + list(LiveCollector().collect()):
        suffixes = {"counter": ["_total"], "histogram": ["_bucket", "_sum", "_count"]}.get(family.type, [""])
        names |= {family.name + suffix for suffix in suffixes}
    return names


def _dashboard(name: str) -> dict[str, Any]:
    document: dict[str, Any] = json.loads((CHART / "monitoring" / name).read_text())
    return document


def _rules() -> list[dict[str, Any]]:
    groups = yaml.safe_load((CHART / "monitoring" / "rules.yaml").read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


def test_rules_and_dashboard_name_metrics_that_exist() -> None:
    recorded = {rule["record"] for rule in _rules() if "record" in rule}
    known = _exported() | recorded
    expressions = [rule["expr"] for rule in _rules()]
    for dashboard in map(_dashboard, DASHBOARDS):
        expressions += [target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", ())]
        expressions += [item["query"]["query"] for item in dashboard["templating"]["list"] if item["type"] == "query"]
    used = {name for expression in expressions for name in _NAME.findall(expression)}
    assert used <= known, used - known


def test_the_metric_guard_fires() -> None:
    assert set(_NAME.findall("rate(inferasim_no_such_total[5m])")) - _exported() == {"inferasim_no_such_total"}


def test_alerts_say_what_they_are() -> None:
    alerts = [rule for rule in _rules() if "alert" in rule]
    assert alerts
    for alert in alerts:
        assert alert["labels"]["severity"] in {"info", "warning", "critical"}, alert["alert"]
        assert set(alert["annotations"]) == {"summary", "description"}, alert["alert"]


@pytest.mark.parametrize("name", DASHBOARDS)
def test_the_dashboard_is_whole(name: str) -> None:
    panels = _dashboard(name)["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    cells: set[tuple[int, int]] = set()
    for panel in panels:
        at = panel["gridPos"]
        covered = {(at["x"] + x, at["y"] + y) for x in range(at["w"]) for y in range(at["h"])}
        assert not covered & cells, f"{panel['title']} overlaps another panel"
        cells |= covered
        assert panel["type"] == "row" or (panel["description"] and panel["fieldConfig"]["defaults"]["unit"])
        assert {target["datasource"]["uid"] for target in panel.get("targets", ())} <= {"${datasource}"}


def test_every_value_is_in_the_schema_and_back() -> None:
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    schema = json.loads((CHART / "values.schema.json").read_text())

    def compare(given: Any, described: dict[str, Any], path: str) -> None:
        if described.get("additionalProperties") is False and "properties" in described:
            assert set(given) == set(described["properties"]) - {"global"}, path
            for key, value in given.items():
                compare(value, described["properties"][key], f"{path}.{key}")

    compare(values, schema, "")
