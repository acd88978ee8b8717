"""Rules and dashboards name metrics that exist; the page of metrics is the registered ones; alerts by promtool."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from importlib import resources
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
DASHBOARDS = Path(str(resources.files("inferasim_operator.live"))) / "dashboards"
LIVE = 'namespace="ns",mix="chat",deployment="interactive",model="m",engine="VLLM",accelerator="MI355X",layout="TP2"'


def known() -> set[str]:
    """Metric names as they are on the page, and what a histogram adds."""
    text = (ROOT / "docs/generated/metrics.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(\w+)` \| (\w+) \|", text, re.MULTILINE)
    parts = {f"{name}{end}" for name, kind in rows if kind == "histogram" for end in ("_bucket", "_sum", "_count")}
    return {name for name, _ in rows} | parts


def test_the_page_of_metrics_is_up_to_date() -> None:
    found = subprocess.run(
        [sys.executable, "tools/metricdoc.py", "--check"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert found.returncode == 0, found.stderr


@pytest.mark.parametrize("name", ["rules.yaml", "live.json"])
def test_every_metric_that_is_asked_for_exists(name: str) -> None:
    text = (DASHBOARDS / name).read_text(encoding="utf-8")
    asked = set(re.findall(r"\binferasim_\w+", text))
    assert asked
    assert asked <= known()
    recorded = {rule["record"] for rule in rules() if "record" in rule}
    assert set(re.findall(r"\binferasim:[\w:]+", text)) <= recorded


def rules() -> list[dict[str, str]]:
    document = yaml.safe_load((DASHBOARDS / "rules.yaml").read_text(encoding="utf-8"))
    return [rule for group in document["groups"] for rule in group["rules"]]


def test_the_dashboard_is_whole() -> None:
    """Every panel has a place of its own, its data source by variable, and says what it shows."""
    document = json.loads((DASHBOARDS / "live.json").read_text(encoding="utf-8"))
    places: set[tuple[int, int]] = set()
    for panel in document["panels"]:
        place = panel["gridPos"]
        cells = {(place["x"] + x, place["y"] + y) for x in range(place["w"]) for y in range(place["h"])}
        assert not cells & places, panel["title"]
        places |= cells
        assert panel["description"]
        assert {target["datasource"]["uid"] for target in panel["targets"]} == {"${datasource}"}
    assert len({panel["id"] for panel in document["panels"]}) == len(document["panels"])


def test_alerts_fire_when_they_should(tmp_path: Path) -> None:
    program = shutil.which("promtool")
    if program is None:
        pytest.skip("needs the program `promtool` (Debian package prometheus)")
    labels = {"namespace": "ns", "mix": "chat", "deployment": "interactive"}

    def alerts(name: str, at: str, severity: str) -> dict[str, object]:
        rule = next(rule for rule in rules() if rule.get("alert") == name)
        told = {
            key: re.sub(r"\{\{ \$labels\.(\w+) \}\}", lambda found: labels[str(found[1])], str(text))
            for key, text in rule["annotations"].items()  # type: ignore[attr-defined]
        }
        fired = [{"exp_labels": {**labels, "severity": severity}, "exp_annotations": told}] if severity else []
        return {"alertname": name, "eval_time": at, "exp_alerts": fired}

    off = [
        {"series": f"inferasim_prediction_within_tolerance{{{LIVE}}}", "values": "1x5 0x40"},
        {"series": f"inferasim_live_comparable{{{LIVE}}}", "values": "1x45"},
        {"series": f"inferasim_live_replicas{{{LIVE}}}", "values": "2x45"},
    ]
    absent = [{"series": f"inferasim_live_comparable{{{LIVE}}}", "values": "0x60"}]
    document = {
        "rule_files": [str(DASHBOARDS / "rules.yaml")],
        "evaluation_interval": "1m",
        "tests": [
            {
                "interval": "1m",
                "input_series": off,
                "alert_rule_test": [
                    alerts("InferasimOutOfTolerance", "10m", ""),
                    alerts("InferasimOutOfTolerance", "30m", "warning"),
                    alerts("InferasimFiguresAbsent", "45m", ""),
                ],
            },
            {
                "interval": "1m",
                "input_series": absent,
                "alert_rule_test": [
                    alerts("InferasimFiguresAbsent", "50m", "info"),
                    alerts("InferasimOutOfTolerance", "50m", ""),
                ],
            },
        ],
    }
    case = tmp_path / "case.yaml"
    case.write_text(yaml.safe_dump(document))
    found = subprocess.run([program, "test", "rules", str(case)], capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stdout + found.stderr
