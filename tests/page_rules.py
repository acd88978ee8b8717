"""What every page must keep, checked on its text: no request, no injection, names for screen readers, structure."""

from __future__ import annotations

import base64
import hashlib
import itertools
import re
from html.parser import HTMLParser

VOID = {"meta", "link", "br", "hr"}


class Dom(HTMLParser):
    """Elements in document order, with the text that each holds."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict[str, str], list[str]]] = []
        self._open: list[int] = []
        self.feed(text)
        self.close()
        assert self._open == [], "an element is not closed"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, {name: value or "" for name, value in attrs}, []))
        if tag not in VOID:
            self._open.append(len(self.elements) - 1)

    def handle_endtag(self, tag: str) -> None:
        assert self.elements[self._open.pop()][0] == tag, f"</{tag}> closes another element"

    def handle_data(self, data: str) -> None:
        for at in self._open:
            self.elements[at][2].append(data)

    def text(self, tag: str) -> list[str]:
        """What each element of a kind holds, in words."""
        return ["".join(parts) for name, _, parts in self.elements if name == tag]

    def attributes(self, tag: str) -> list[dict[str, str]]:
        return [found for name, found, _ in self.elements if name == tag]


def assert_page(text: str) -> Dom:
    """The rules of every page."""
    dom = Dom(text)
    _assert_self_contained(dom)
    _assert_named(dom)
    return dom


def _assert_self_contained(dom: Dom) -> None:
    allowed = {"data:,"}
    for name, found, _ in dom.elements:
        assert name not in {"iframe", "object", "embed", "form", "base", "img", "video", "audio", "foreignobject"}
        for key, value in found.items():
            assert not key.startswith("on"), f"{name} has a handler {key}"
            assert key != "style", "the policy forbids style attributes"
            if key in {"src", "href", "xlink:href", "action", "srcset"}:
                assert value in allowed or value.startswith(("#", "/plans")), f"{name} leads to {value}"
    styles, scripts = dom.text("style"), dom.text("script")
    assert len(styles) == len(scripts) == 1
    assert "url(" not in styles[0]
    assert "@import" not in styles[0]
    policy = next(m["content"] for m in dom.attributes("meta") if m.get("http-equiv") == "Content-Security-Policy")
    assert policy.startswith("default-src 'none'; ")
    assert "unsafe" not in policy
    for directive, held in (("style-src", styles[0]), ("script-src", scripts[0])):
        digest = base64.b64encode(hashlib.sha256(held.encode()).digest()).decode()
        assert f"{directive} 'sha256-{digest}'" in policy


def _assert_named(dom: Dom) -> None:
    assert dom.attributes("html")[0]["lang"] == "en"
    assert len(dom.text("h1")) == 1
    assert dom.text("title")[0] == dom.text("h1")[0]
    ids = [found["id"] for _, found, _ in dom.elements if "id" in found]
    assert len(ids) == len(set(ids)), "an id is there twice"
    levels = [int(name[1]) for name, _, _ in dom.elements if re.fullmatch(r"h[1-6]", name)]
    assert all(after <= before + 1 for before, after in itertools.pairwise(levels)), "a heading is skipped"
    for name, found, parts in dom.elements:
        for key in ("aria-labelledby", "aria-describedby", "data-readout"):
            assert found.get(key, ids[0]) in ids
        if found.get("href", "").startswith("#"):
            assert found["href"][1:] in ids
        if name == "svg":
            assert found.get("aria-label") or found.get("aria-hidden") == "true"
        if "tabindex" in found:
            assert found.get("aria-label"), f"{name} takes the focus without a name"
        if name == "table":
            assert any("scope" in cell for cell in dom.attributes("th"))
        if name in {"caption", "summary", "dt", "figcaption"}:
            assert "".join(parts).strip()
