"""HTML that cannot be injected into: text is escaped unless it was built here, and the policy forbids the rest."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable
from html import escape
from importlib.resources import files
from typing import Final

_VOID: Final = frozenset({"meta", "link", "br", "hr"})
CHART_STYLE: Final = (files(__package__) / "chart.css").read_text(encoding="utf-8")
_STYLE: Final = CHART_STYLE + (files(__package__) / "page.css").read_text(encoding="utf-8")
_SCRIPT: Final = (files(__package__) / "page.js").read_text(encoding="utf-8")


class Markup(str):
    """Text that is HTML already. Only this module and `charts` make any."""

    __slots__ = ()


Content = str | Markup | int | float | None
Attribute = str | int | float | bool | None


def tag(element: str, /, *children: Content | Iterable[Content], **attributes: Attribute) -> Markup:
    """One element. `class_` is `class`, `aria_label` is `aria-label`; None and False leave an attribute out."""
    words = [element]
    for key, value in attributes.items():
        if value is None or value is False:
            continue
        label = key.rstrip("_").replace("_", "-")
        words.append(label if value is True else f'{label}="{_attribute(value)}"')
    opening = f"<{' '.join(words)}>"
    return Markup(opening if element in _VOID else f"{opening}{join(*children)}</{element}>")


def join(*children: Content | Iterable[Content]) -> Markup:
    """The children one after another, what is not markup escaped."""
    found: list[str] = []
    for child in children:
        if isinstance(child, Markup):
            found.append(child)
        elif child is None:
            continue
        elif isinstance(child, str | int | float):
            found.append(escape(str(child), quote=False))
        else:
            found.append(join(*child))
    return Markup("".join(found))


def _attribute(value: str | int | float) -> str:
    return f"{value:g}" if isinstance(value, float) else escape(str(value), quote=True)


def policy() -> str:
    """The content security policy: our style, our script by their digests, and nothing else."""
    return (
        f"default-src 'none'; style-src 'sha256-{_digest(_STYLE)}'; script-src 'sha256-{_digest(_SCRIPT)}'; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )


def _digest(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode("ascii")


def page(title: str, *body: Content | Iterable[Content]) -> str:
    """A whole document. The same arguments give the same bytes."""
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=policy()),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("meta", name="referrer", content="no-referrer"),
        tag("meta", name="generator", content="inferasim"),
        tag("link", rel="icon", href="data:,"),
        tag("title", title),
        Markup(f"<style>{_STYLE}</style>"),
    )
    main = tag("main", *body, id="main")
    skip = tag("a", "Skip to the answer", href="#main", class_="skip")
    return f'<!DOCTYPE html>\n<html lang="en">{head}<body>{skip}{main}<script>{_SCRIPT}</script></body></html>\n'


def section(title: str, *body: Content | Iterable[Content], id_: str, level: int = 2) -> Markup:
    """A part of the page under a heading that names it."""
    heading = tag(f"h{level}", title, id=f"{id_}-title")
    return tag("section", heading, *body, id=id_, aria_labelledby=f"{id_}-title")


def table(
    caption: str, columns: Iterable[str], rows: Iterable[Iterable[Content]], *, numeric: Iterable[int] = ()
) -> Markup:
    """A table with a caption and column headings; the columns numbered in `numeric` are set right and sort as numbers.

    The first column heads its row. It scrolls by itself where the screen is narrow, by keyboard too.
    """
    right = set(numeric)
    head = [tag("th", name, scope="col", class_="number" if at in right else None) for at, name in enumerate(columns)]
    body = [
        tag(
            "tr",
            [
                tag(
                    "th" if at == 0 else "td",
                    value,
                    scope="row" if at == 0 else None,
                    class_="number" if at in right else None,
                )
                for at, value in enumerate(row)
            ],
        )
        for row in rows
    ]
    inner = tag("table", tag("caption", caption), tag("thead", tag("tr", head)), tag("tbody", body), data_sortable=True)
    return tag("div", inner, class_="scroll", tabindex=0, role="region", aria_label=caption)


def facts(pairs: Iterable[tuple[str, Content | Iterable[Content]]]) -> Markup:
    """A list of names and values; a value of None leaves its name out."""
    return tag(
        "dl",
        [tag("div", tag("dt", name), tag("dd", value)) for name, value in pairs if value is not None],
        class_="facts",
    )


def bullets(items: Iterable[Content | Iterable[Content]]) -> Markup | None:
    """A list, or None when there is nothing to say."""
    found = [tag("li", item) for item in items]
    return tag("ul", found) if found else None


def details(summary: str, *body: Content | Iterable[Content]) -> Markup:
    """What opens on demand, by mouse or keyboard."""
    return tag("details", tag("summary", summary), *body)
