"""Reading a page over HTTP from somebody who may be hostile: bounded in size and time, nowhere else than asked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import httpx

from inferasim_operator.errors import OperatorError

TIMEOUT: Final = httpx.Timeout(10.0, connect=3.0)


class PageError(OperatorError):
    """A page could not be read; the text never repeats what the page says."""

    reason = "NotObserved"


def fetch(
    client: httpx.Client,
    url: str,
    *,
    limit_bytes: int,
    form: Mapping[str, str] | None = None,
    headers: Mapping[str, str] | None = None,
    auth: httpx.BasicAuth | None = None,
) -> bytes:
    """The body of a 200 answer; `form` makes it a POST. Raises PageError."""
    body = bytearray()
    try:
        method = "GET" if form is None else "POST"
        with client.stream(method, url, data=form, headers=headers, auth=auth, follow_redirects=False) as answer:
            if answer.status_code != 200:
                raise PageError(f"HTTP {answer.status_code}")
            for chunk in answer.iter_bytes():
                body += chunk
                if len(body) > limit_bytes:
                    raise PageError(f"more than {limit_bytes} bytes")
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise PageError(type(error).__name__) from error
    return bytes(body)
