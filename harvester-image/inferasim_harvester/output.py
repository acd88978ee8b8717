"""Whether what the engine produces makes sense: broken number formats serve quickly, answer 200, and write garbage.

Every language model that works continues a sequence that it has just read twice. So random tokens are shown over and
over, and the greedy continuation is compared with what has to follow. No tokenizer and no corpus is needed, and a KV
cache that forgets or distorts shows at once (public case A24: accuracy 0.967 to 0.010, and nothing said so).
"""

from __future__ import annotations

import json
from typing import Any, Final

from inferasim_harvester.errors import RequestFailedError
from inferasim_harvester.session import Session

UNIT: Final = 48
"""Tokens (or words) of the sequence that is repeated."""
SHOWN: Final = 3
LEAD: Final = 8
"""Tokens of the last, unfinished repetition in the prompt."""
ASKED: Final = 24
PROMPTS: Final = 4


async def recall_frac(session: Session) -> float | None:
    """Share of continuation tokens that are right; None when the answers hold neither tokens nor text."""
    right = total = 0
    wanted: list[list[Any]] = []
    bodies = []
    for index in range(PROMPTS):
        prompt, expected = _task(session, index)
        wanted.append(expected)
        bodies.append(_body(session, prompt))
    for answer, expected in zip(await session.client.post(session.dialect.path, bodies), wanted, strict=True):
        if answer.status != 200:
            raise RequestFailedError(f"{session.dialect.path} answered {answer.status} to a greedy request")
        found = _produced(answer.json())
        if found is None:
            return None
        produced: list[Any] = found.split() if isinstance(found, str) else found
        # A text of so many tokens holds fewer words, and its last one may be half a word.
        judged = expected if session.dialect.token_ids else expected[: max(1, len(produced) - 1)]
        right += sum(one == other for one, other in zip(produced, judged, strict=False))
        total += len(judged)
    return right / total


def _task(session: Session, index: int) -> tuple[Any, list[Any]]:
    label = f"output/{index}"
    if session.dialect.token_ids:
        (unit,) = session.prompts.token_ids(label, 1, UNIT)
        return [*(unit * SHOWN), *unit[:LEAD]], unit[LEAD : LEAD + ASKED]
    words = session.prompts.texts(label, 1, UNIT)[0].split()
    return " ".join([*(words * SHOWN), *words[:LEAD]]), words[LEAD : LEAD + ASKED]


def _body(session: Session, prompt: Any) -> bytes:
    """The session's usual request, greedy and in one piece."""
    body = json.loads(session.dialect.request(session.model, prompt, ASKED, detokenize=session.detokenize))
    body["stream"] = False
    body.pop("stream_options", None)
    sampling = body.get("sampling_params", body)
    sampling["temperature"] = 0.0
    if session.dialect.returns_ids is not None:
        body[session.dialect.returns_ids] = True
    return json.dumps(body, separators=(",", ":")).encode()


def _produced(answer: Any) -> list[int] | str | None:
    """Token ids where the engine gives them, else text."""
    choices = answer.get("choices") if isinstance(answer, dict) else None
    record = choices[0] if isinstance(choices, list) and choices else answer
    if not isinstance(record, dict):
        return None
    ids = record.get("token_ids") or record.get("output_ids")
    if isinstance(ids, list):
        return ids
    text = record.get("text")
    return text if isinstance(text, str) and text.strip() else None
