"""What the language model sees: architecture, cluster, legal values, objective, trials. Names are cut to plain words.

Nothing else leaves: no node names, no paths, no secrets. Text from outside is data here, never a sentence.
"""

from __future__ import annotations

import json
import re
from typing import Any, Final

from simcore.search.ledger import Entry, Session
from simcore.search.levers import levers
from simcore.units import GIB

HISTORY_COUNT: Final = 40
"""Trials that the model reads (paper section 4)."""
MAX_GUIDANCE: Final = 2000
"""Characters of the operator's free-form guidance."""


def plain_word(text: object) -> str:
    """A name as one word of at most 80 characters, so that a model called `ignore all rules` is no instruction."""
    return re.sub(r"[^A-Za-z0-9._/:-]+", "_", str(text))[:80]


def architecture(session: Session) -> dict[str, Any]:
    """Layers, hidden size, heads, experts and sparse-attention fields of the model card."""
    card = session.space.setting.card
    groups = [
        {
            "layers": group.layers_count,
            "attention": group.attention.kind.value,
            "heads": group.attention.heads,
            "kvHeads": group.attention.kv_heads,
            "headDim": group.attention.head_dim,
            "windowTokens": group.attention.window_tokens,
            "indexTopkTokens": group.attention.index_topk_tokens,
            "experts": group.ffn.experts_count,
            "expertsPerToken": group.ffn.experts_per_token,
        }
        for group in card.groups[:16]
    ]
    return {
        "model": plain_word(card.name),
        "hidden": card.hidden,
        "layers": card.layers_count,
        "weights": plain_word(card.dtypes.weights),
        "mtpLayers": card.mtp_layers_count,
        "groups": groups,
    }


def cluster(session: Session) -> dict[str, Any]:
    """Nodes, GPUs and memory."""
    space = session.space
    return {
        "engine": space.option.engine.value,
        "accelerator": plain_word(space.setting.accelerator.name),
        "nodes": space.cluster.nodes_count,
        "gpusPerNode": space.cluster.gpus_per_node,
        "gpuBudget": space.cluster.gpu_budget_count,
        "hbmGibibytes": round(space.setting.accelerator.hbm_bytes / GIB, 1),
        "promptTokens": space.setting.prompt_tokens,
        "outputTokens": space.setting.output_tokens,
    }


def legal_values(session: Session) -> dict[str, Any]:
    """Legal values of the levers that move, their kind, and the baseline. Widths are judged together."""
    space = session.space
    values = {
        name: [plain_word(value) if isinstance(value, str) else value for value in offered]
        for name, offered in space.legal_values.items()
        if len(offered) > 1
    }
    return {
        "levers": values,
        "anchorDefining": [name for name in values if levers()[name].kind.value == "anchorDefining"],
        "layouts": [space.widths(layout) for layout in space.layouts[:64]],
        "baseline": dict(space.baseline),
    }


def objective(session: Session) -> dict[str, Any]:
    """What is optimised, which way, within which latency budgets."""
    space = session.space
    return {
        "name": space.objective.name,
        "direction": space.objective.direction.value,
        "unit": space.objective.unit,
        "reads": space.objective.reads,
        "maxTtftSeconds": space.slo.max_ttft_s,
        "maxTpotSeconds": space.slo.max_tpot_s,
    }


def trial_row(entry: Entry) -> dict[str, Any]:
    """One trial as the model reads it: every figure is the predictor's."""
    trial = entry.trial
    row: dict[str, Any] = {
        "trial": entry.number,
        "from": plain_word(entry.origin),
        "configuration": {plain_word(name): _shown(value) for name, value in trial.configuration.items()},
        "legal": trial.legal,
    }
    if trial.reason:
        row["reason"] = trial.reason[:300]
    if trial.score_value is not None:
        row["score"] = trial.score_value
    if trial.figures:
        row["figures"] = dict(trial.figures)
    if trial.mode:
        row["mode"] = trial.mode
    if trial.opportunities:
        row["fusionOpportunities"] = dict(trial.opportunities)
    return row


def _shown(value: object) -> object:
    return value if isinstance(value, int) else plain_word(value)


def history(session: Session, count: int = HISTORY_COUNT) -> list[dict[str, Any]]:
    """The latest trials, oldest first."""
    return [trial_row(entry) for entry in session.recent(max(1, min(count, HISTORY_COUNT)))]


def briefing(session: Session, notes: list[str], guidance: str) -> dict[str, str]:
    """The five inputs of both stages as JSON text, the operator's guidance and the scratchpad."""
    best = trial_row(session.best) if session.best else None
    trials = {"best": best, "budgetLeft": session.left_count, "latest": history(session)}
    return {
        "architecture": compact(architecture(session)),
        "cluster": compact(cluster(session)),
        "legal_values": compact(legal_values(session)),
        "objective": compact(objective(session)),
        "trials": compact(trials),
        "guidance": guidance[:MAX_GUIDANCE],
        "notes": compact(notes[-20:]),
    }


def compact(value: object) -> str:
    """JSON without spaces."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"))
