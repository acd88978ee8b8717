"""The chart's page: no port of it leaves the pod, and an operator started as rendered serves it on loopback only."""

from __future__ import annotations

import re
from collections.abc import Callable

import httpx
import pytest

from tests import builders
from tests.integration import chart
from tests.integration.harness import Cluster, Operator, until
from tests.page_rules import assert_page


def test_off_by_default_and_on_loopback_when_on() -> None:
    without = chart.the(chart.render(), "Deployment")["spec"]["template"]["spec"]["containers"][0]
    assert not any("page" in argument for argument in without["args"])
    rendered = chart.render({"page": {"enabled": True, "port": 9000}, "networkPolicy": {"enabled": True}})
    container = chart.the(rendered, "Deployment")["spec"]["template"]["spec"]["containers"][0]
    assert "--page-port=9000" in container["args"]
    assert [port["containerPort"] for port in container["ports"]] == [8080], "the page is no port of the pod"
    assert chart.of_kind(rendered, "Service") == []
    with pytest.raises(chart.HelmError, match="port"):
        chart.render({"page": {"enabled": True, "port": 80}})


def test_the_page_of_a_running_operator(cluster: Cluster, operator: Callable[..., Operator]) -> None:
    """Under exactly the generated rights it lists all three kinds; the health port knows nothing of it."""
    op = operator(environment={"INFERASIM_PAGE_PORT": "0"})
    op.start()
    cluster.apply(builders.serving_plan(), builders.anchor_harvest(), builders.anchor_config_map("anchor-a"))
    cluster.wait("servingplan", "plan", "Ready")
    until(lambda: "page on http" in op.text, "the page is served")
    found = re.search(r"page on (http://127\.0\.0\.1:\d+)/", op.text)
    assert found is not None, op.text
    with httpx.Client(base_url=found[1], trust_env=False, timeout=30.0) as client:
        page = client.get("/")
        assert page.status_code == 200, page.text
        names = [row.split("\n")[0] for row in assert_page(page.text).text("tr")]
        assert any(row.startswith("plan" + cluster.namespace) for row in names)
        assert any(row.startswith("harvest" + cluster.namespace) for row in names)
        assert client.get("/plans/kube-system/plan").status_code == 404
        assert client.get("/", headers={"Host": "evil.example"}).status_code == 421
    port = re.search(r"health and metrics on port (\d+)", op.text)
    assert port is not None
    assert httpx.get(f"http://127.0.0.1:{port[1]}/", trust_env=False, timeout=30.0).status_code == 404
