"""How long the requests of a workload are, counted in one pass of flat memory."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from simcore.des.kernel import loop
from simcore.des.workload.batch import Workload


@dataclass(frozen=True)
class LengthFacts:
    """Counts over all requests of a workload."""

    requests_count: int
    sessions_count: int
    mean_prompt_tokens: float
    mean_output_tokens: float
    longest_tokens: int
    """Prompt plus output of the longest request."""
    shares_prefixes: bool
    """Whether prompts are known block by block, so that a prefix cache can find them."""


def length_facts(workload: Workload, *, seed: int = 0) -> LengthFacts:
    """Reads all of `workload` as `simulate` would with `seed`. Raises FormatError from a trace."""
    requests = sessions = prompts = outputs = longest = 0
    for batch in workload.batches(np.random.SeedSequence(seed).spawn(1)[0]):
        prompt, output = batch.columns[:, loop.LOAD_PROMPT], batch.columns[:, loop.LOAD_OUTPUT]
        requests += len(prompt)
        sessions += batch.sessions_count
        prompts += int(prompt.sum())
        outputs += int(output.sum())
        longest = max(longest, int((prompt + output).max(initial=0)))
    return LengthFacts(
        requests, sessions, prompts / requests, outputs / requests, longest, shares_prefixes=workload.block_tokens > 0
    )
