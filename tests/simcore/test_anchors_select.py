"""Which anchor a target gets: refusals with reasons, flags, ranking, sibling (paper 3.1.1, 5.1; cases A24, A26)."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import pytest

from simcore.anchors.schema import Anchor, anchor_from
from simcore.anchors.select import Selection, Target, anchor_key, select_anchor
from simcore.errors import NoAnchorError

TARGET = Target(
    accelerator="MI355X",
    engine="SGLang",
    model="DeepSeek-V4-Pro",
    tensor_parallel=8,
    weights_dtype="fp8",
    kv_dtype="fp8",
    engine_version="0.5.16",
    image="sglang:a",
    partition="spx_nps1",
    attention_backend="aiter",
    graph_capture_mode="full",
    speculates=False,
    prompt_tokens=1024,
    max_batch=64,
    concurrency=64,
)


def anchor(batches: tuple[int, ...] = (1, 4, 16, 64), prompt: int = 1024, **changes: Any) -> Anchor:
    """A clean harvest for TARGET; keys of `changes` go to the signature, or to the provenance where it has them."""
    provenance: dict[str, Any] = {"source": "harvested", "realWeights": True, "prefixCachingOff": True}
    signature: dict[str, Any] = {
        "acceleratorArchitecture": "gfx950",
        "accelerator": "MI355X",
        "partition": "SPX/NPS1",
        "engine": "SGLang",
        "engineVersion": "0.5.16",
        "image": "sglang:a",
        "model": "deepseek-ai/DeepSeek-V4-Pro",
        "weightsDtype": "fp8",
        "kvDtype": "fp8",
        "attentionBackend": "aiter",
        "graphCapture": {"mode": "full", "sizes": [1, 4, 16, 64]},
        "tensorParallel": 8,
    }
    for key, value in changes.items():
        (provenance if key in ("source", "realWeights", "checks", "maxConcurrency") else signature)[key] = value
    return anchor_from(
        {
            "schema": "inferasim.dev/anchor/v1",
            "signature": signature,
            "decode": [
                {
                    "promptTokens": prompt,
                    "contextTokens": prompt,
                    "points": [
                        {"batch": b, "stepMilliseconds": 12 + 0.1 * b, "repeats": 5, "spread": 0.01} for b in batches
                    ],
                }
            ],
            "prefill": {
                "points": [{"promptTokens": n, "milliseconds": 10 + 0.02 * n} for n in (512, 1024, 2048, 4096, 8192)],
                "fit": {
                    "fixedMilliseconds": 10,
                    "perTokenMicroseconds": 20,
                    "perTokenSquaredNanoseconds": 0,
                    "residualPercent": 0,
                },
            },
            "provenance": provenance,
        }
    )


def reasons(selection: Selection, one: Anchor) -> str:
    return "; ".join(selection.refusals[anchor_key(one)])


def test_an_equal_anchor_is_taken_without_flags() -> None:
    selection = select_anchor(TARGET, [anchor()])
    assert selection.chosen == anchor()
    assert selection.flags == ()
    assert selection.is_covered


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"accelerator": "MI300X"}, "accelerator: anchor has MI300X, target asks MI355X"),
        ({"accelerator": "MI350X"}, "accelerator"),
        ({"engine": "VLLM"}, "engine: anchor has VLLM"),
        ({"engineVersion": "0.5.15"}, "engineVersion"),
        ({"image": "sglang:b"}, "stale: harvested with image sglang:b, the target runs sglang:a"),
        ({"model": "DeepSeek-V4-Flash"}, "model"),
        ({"model": "amd/DeepSeek-V4-Pro-MXFP4"}, "model"),
        ({"weightsDtype": "mxfp4"}, "weightsDtype"),
        ({"kvDtype": "bf16"}, "kvDtype"),
        ({"attentionBackend": "triton"}, "attentionBackend"),
        ({"graphCapture": {"mode": "piecewise", "sizes": [1]}}, "graphCapture.mode"),
        ({"speculation": {"method": "mtp", "depth": 1, "acceptanceLength": 1.8}}, "speculation: anchor runs mtp"),
        ({"partition": "dpx_nps1"}, "partition: anchor has dpx_nps1, target asks spx_nps1"),
        ({"kvDtype": "fp8_e5m2"}, "kvDtype: anchor has fp8_e5m2, target asks fp8"),
        ({"acceleratorArchitecture": "x86_64", "accelerator": "CPU"}, "CPU"),
        ({"realWeights": False}, "check real-weights failed"),
        ({"checks": [{"name": "served-length", "verdict": "refuse", "detail": "5128"}]}, "check served-length failed"),
    ],
)
def test_every_anchor_defining_difference_refuses_with_its_reason(change: dict[str, Any], word: str) -> None:
    other = anchor(**change)
    selection = select_anchor(TARGET, [other])
    assert selection.chosen is None
    assert word in reasons(selection, other)
    with pytest.raises(NoAnchorError, match="no anchor applies to DeepSeek-V4-Pro on SGLang MI355X TP8"):
        selection.require(TARGET)


def test_all_reasons_are_given_at_once() -> None:
    other = anchor(engine="VLLM", kvDtype="bf16", partition="dpx_nps1")
    assert len(select_anchor(TARGET, [other]).refusals[anchor_key(other)]) == 3


@pytest.mark.parametrize("spelling", ["fp8_e4m3", "FP8", "fp8_e4m3fn", "float8_e4m3fn"])
def test_spellings_of_fp8_are_one_dtype_in_case_a24(spelling: str) -> None:
    assert select_anchor(TARGET, [anchor(kvDtype=spelling)]).chosen is not None


@pytest.mark.parametrize("product", ["AMD_Instinct_MI355X_OAM", "amd instinct mi355x"])
def test_product_names_of_node_labels_match(product: str) -> None:
    assert select_anchor(TARGET, [anchor(accelerator=product)]).chosen is not None


@pytest.mark.parametrize(
    ("target", "change", "flag"),
    [
        ({"prompt_tokens": 8192}, {}, "prompt-length-differs"),
        ({"prompt_tokens": 32_768}, {}, "prefill-length-outside-sweep"),
        ({"max_batch": 256}, {}, "batch-beyond-sweep"),
        ({"concurrency": 257}, {}, "concurrency-beyond-reach"),
        ({"expert_parallel": 8}, {}, "expert-parallel-differs"),
        ({"attention_data_parallel": 8}, {}, "attention-dp-differs"),
        ({}, {"tensorParallel": 4}, "anchor-narrower"),
        ({}, {"tensorParallel": 2}, "extrapolated-width"),
        ({"tensor_parallel": 4}, {}, "anchor-wider"),
        ({}, {"attentionBackend": None}, "unverified-signature"),
        ({}, {"source": "fitted"}, "not-harvested"),
    ],
)
def test_transferable_differences_are_flagged_not_refused(
    target: dict[str, Any], change: dict[str, Any], flag: str
) -> None:
    selection = select_anchor(replace(TARGET, **target), [anchor(**change)])
    assert selection.chosen is not None
    assert flag in selection.flags
    assert len(selection.notes) == len(selection.flags)


def test_coverage_reaches_four_times_the_concurrency() -> None:
    assert select_anchor(replace(TARGET, concurrency=256), [anchor()]).is_covered
    assert not select_anchor(replace(TARGET, concurrency=257), [anchor()]).is_covered
    assert select_anchor(TARGET, [anchor(tensorParallel=4)]).is_covered  # TP may be narrower
    assert not select_anchor(replace(TARGET, tensor_parallel=4), [anchor()]).is_covered


def test_a_narrower_anchor_must_be_a_sweep() -> None:
    narrow = anchor(batches=(64,), tensorParallel=4)
    selection = select_anchor(TARGET, [narrow])
    assert selection.chosen is None
    assert "no batch sweep" in reasons(selection, narrow)
    assert select_anchor(replace(TARGET, tensor_parallel=4), [narrow]).chosen == narrow
    fitted = anchor(batches=(4, 16, 64), tensorParallel=4, source="fitted")  # benchmark tables rarely hold one client
    assert select_anchor(TARGET, [fitted]).chosen == fitted
    assert select_anchor(TARGET, [anchor(batches=(4, 16, 64), tensorParallel=4)]).chosen is None
    assert select_anchor(TARGET, [anchor(batches=(16, 32, 64), tensorParallel=4, source="fitted")]).chosen is None


def test_an_anchor_without_speculation_serves_no_speculative_plan() -> None:
    """Public case B07."""
    plain = anchor()
    selection = select_anchor(replace(TARGET, speculates=True), [plain])
    assert selection.chosen is None
    assert "speculation" in reasons(selection, plain)


def test_one_checkpoint_by_two_names_is_one_model() -> None:
    asked = replace(TARGET, model="Llama-3.1-8B")
    for name in ("meta-llama/Llama-3.1-8B-Instruct", "Llama-3.1-8B-Instruct", "Meta-Llama-3.1-8B"):
        assert select_anchor(asked, [anchor(model=name)]).chosen is not None
    for name in ("meta-llama/Llama-3.1-70B-Instruct", "amd/Llama-3.1-8B-Instruct-FP8-KV", "Llama-3.1-8B-Distill"):
        assert select_anchor(asked, [anchor(model=name)]).chosen is None
    assert select_anchor(replace(TARGET, engine_version="v0.5.16"), [anchor()]).chosen is not None


def test_the_nearest_width_wins_and_a_wider_anchor_comes_last() -> None:
    two, four, eight = (anchor(tensorParallel=width) for width in (2, 4, 8))
    selection = select_anchor(TARGET, [two, four, eight])
    assert selection.chosen == eight
    assert selection.sibling == four
    assert select_anchor(TARGET, [two, four]).chosen == four
    assert select_anchor(replace(TARGET, tensor_parallel=4), [eight, two]).chosen == two
    assert select_anchor(replace(TARGET, tensor_parallel=4), [eight]).chosen == eight
    assert "is nearer" in reasons(selection, two)


def test_a_usable_anchor_that_lost_says_what_the_chosen_one_is_better_in() -> None:
    """Place by place of the order of preference (paper 5.1 and ours), and two that are equal say that too."""
    lost = {
        "is nearer in width": (anchor(tensorParallel=2), anchor()),
        "has the surer source": (anchor(source="fitted"), anchor()),
        "is nearer in prompt length": (anchor(), anchor(prompt=8192)),
        "was measured to larger batches": (anchor(batches=(1, 2, 4)), anchor(batches=(1, 2, 4, 8))),
    }
    for words, (worse, better) in lost.items():
        target = replace(TARGET, prompt_tokens=8192) if "length" in words else TARGET
        for order in ([worse, better], [better, worse]):
            selection = select_anchor(target, order)
            assert selection.chosen == better, words
            assert words in reasons(selection, worse)
    one, other = anchor(), anchor(image="example.test/again:1")
    selection = select_anchor(replace(TARGET, image=None), [one, other])
    assert "is its equal and comes first by digest" in reasons(selection, other if selection.chosen == one else one)


@pytest.mark.parametrize(
    ("older", "newer"),
    [("0.4.0", "0.5.19"), ("0.5.9", "0.5.10"), ("0.5.13", "0.5.13.post1"), ("v0.5.2-rocm700", "0.6"), (None, "0.1.0")],
)
def test_a_target_that_states_no_version_gets_the_newest(older: str | None, newer: str) -> None:
    old, new = anchor(engineVersion=older), anchor(engineVersion=newer, prompt=2048)
    for order in ([old, new], [new, old]):
        selection = select_anchor(replace(TARGET, engine_version=None, image=None), order)
        assert selection.chosen == new
        assert "is of a newer engine" in reasons(selection, old)


def test_a_harvest_beats_a_fit_and_the_nearer_length_beats_the_farther() -> None:
    fitted, harvest = anchor(source="fitted"), anchor()
    assert select_anchor(TARGET, [fitted, harvest]).chosen == harvest
    long = anchor(prompt=8192)
    assert select_anchor(replace(TARGET, prompt_tokens=8192), [harvest, long]).chosen == long


def test_a_sibling_is_the_same_stack_at_half_the_width() -> None:
    other_backend = anchor(tensorParallel=4, attentionBackend=None)
    assert select_anchor(TARGET, [anchor(), other_backend]).sibling is None


def test_random_weights_only_when_allowed_and_always_flagged() -> None:
    selection = select_anchor(TARGET, [anchor(realWeights=False)], allow_dummy_weights=True)
    assert "dummy-weights" in selection.flags


def test_open_fields_are_adopted_from_the_anchor() -> None:
    open_target = Target(accelerator="MI355X", engine="sglang", model="DeepSeek-V4-Pro", tensor_parallel=8)
    selection = select_anchor(open_target, [anchor()])
    assert selection.chosen is not None
    assert selection.adopted is not None
    assert selection.adopted["image"] == "sglang:a"
    assert selection.adopted["kvDtype"] == "fp8"
    assert "model" not in selection.adopted


def test_order_and_repeats_do_not_matter() -> None:
    anchors = [anchor(), anchor(tensorParallel=4), anchor(source="fitted"), anchor(engine="VLLM")]
    first = select_anchor(TARGET, anchors)
    for order in itertools.permutations(anchors):
        assert select_anchor(TARGET, [*order, order[0]]) == first


def test_fp8_kv_that_nobody_asked_for_is_flagged_unless_its_output_was_checked() -> None:
    """Public case A24: FP8 KV of the other kind answers 200 with garbage; an anchor with a plain cache goes first."""
    open_target = replace(TARGET, kv_dtype=None)
    checked = {"checks": [{"name": "output", "verdict": "pass", "detail": "97 % continued"}]}
    assert select_anchor(TARGET, [anchor()]).flags == ()
    assert select_anchor(open_target, [anchor()]).flags == ("fp8-kv-output-unchecked",)
    assert select_anchor(open_target, [anchor(**checked)]).flags == ()
    plain = anchor(kvDtype="bf16")
    assert select_anchor(open_target, [anchor(), plain]).chosen == plain
    assert select_anchor(open_target, [anchor(**checked)]).adopted is not None


@pytest.mark.parametrize(("asked", "same"), [("mxfp4", True), ("fp4", True), ("nvfp4", True), ("fp8", False)])
def test_fp4_of_a_table_is_the_vendors_own(asked: str, same: bool) -> None:
    table = anchor(weightsDtype="fp4")
    assert (select_anchor(replace(TARGET, weights_dtype=asked), [table]).chosen is not None) is same


def test_an_anchor_without_a_partition_stands_for_whole_gpus_only() -> None:
    """Public case A26: what was measured on one partition mode matches no node in another."""
    unknown = anchor(partition=None)
    whole = select_anchor(TARGET, [unknown])
    assert (whole.chosen, whole.flags) == (unknown, ("unverified-signature",))
    split = select_anchor(replace(TARGET, partition="cpx_nps4"), [unknown])
    assert split.chosen is None
    assert "target asks cpx_nps4" in " ".join(*split.refusals.values())
