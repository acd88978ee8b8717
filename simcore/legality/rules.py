"""The rules: each a small pure function from a case to what it sees. What a finding means is in the table."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from simcore.cards.formats import canonical_format, storage_format
from simcore.cards.hf import HEAD_DIM_DERIVED
from simcore.cards.kv_dtype import kv_storage
from simcore.cards.layout import Engine
from simcore.cards.matrices import Matrix, Part, Split, layer_matrices, part_dtype
from simcore.cards.model import AttentionKind
from simcore.legality.case import Finding, LegalityCase
from simcore.legality.table import Verdict

_MLP_PARTS = (Part.DENSE, Part.SHARED, Part.EXPERTS)
Rule = Callable[[LegalityCase, Mapping[str, Any]], Iterator[Finding]]


def tp_divides_heads(case: LegalityCase, parameters: Mapping[str, Any]) -> Iterator[Finding]:
    """Attention heads split evenly over the attention TP ranks (A01)."""
    del parameters
    tp = case.widths.attention_tp
    kinds = {g.attention.heads for g in case.card.groups if g.attention.kind is not AttentionKind.LINEAR}
    for heads in sorted(kinds):
        if heads % tp:
            yield Finding("attention.q_proj", heads, f"{heads} attention heads mod TP {tp} = {heads % tp}")


def tp_divides_kv_heads(case: LegalityCase, parameters: Mapping[str, Any]) -> Iterator[Finding]:
    """KV heads are split or replicated evenly (A02); says nothing for MLA, or where every head has its own KV."""
    del parameters
    tp = case.widths.attention_tp
    pairs = {
        (g.attention.heads, g.attention.kv_heads) for g in case.card.groups if g.attention.kind is AttentionKind.GQA
    }
    for heads, kv in sorted(pairs):
        if kv != heads and kv % tp and tp % kv:
            rests = f"{kv} mod {tp} = {kv % tp}, {tp} mod {kv} = {tp % kv}"
            detail = f"{kv} KV heads can be neither split nor replicated over TP {tp}: {rests}"
            yield Finding("attention.k_proj", kv, detail)


def tp_divides_linear_heads(case: LegalityCase, parameters: Mapping[str, Any]) -> Iterator[Finding]:
    """Key and value heads of linear attention split evenly."""
    del parameters
    tp = case.widths.attention_tp
    for group in case.card.groups:
        spec = group.attention
        if spec.kind is not AttentionKind.LINEAR:
            continue
        for name, heads in (("key", spec.linear_key_heads), ("value", spec.linear_value_heads)):
            if heads % tp:
                yield Finding(f"linear_attn.{name}", heads, f"{heads} linear {name} heads mod TP {tp} = {heads % tp}")


def vocab_divides_tp(case: LegalityCase, parameters: Mapping[str, Any]) -> Iterator[Finding]:
    """The vocabulary splits evenly where the engine does not pad it (A02)."""
    del parameters
    tp, vocab = case.widths.attention_tp, case.card.vocab_tokens
    if vocab % tp:
        yield Finding(
            "embed_tokens", vocab, f"vocabulary {vocab} mod TP {tp} = {vocab % tp}, and the engine does not pad"
        )


def experts_divide_ep(case: LegalityCase, parameters: Mapping[str, Any]) -> Iterator[Finding]:
    """Physical experts split evenly over the EP ranks (A02, A09)."""
    del parameters
    if "experts" in case.card.unknown:
        return
    ep, extra = case.layout.expert_parallel, case.redundant_experts_count
    for experts in sorted({g.ffn.experts_count for g in case.card.groups if g.ffn.is_moe}):
        rest = (experts + extra) % ep
        if rest:
            total = f"{experts}" if not extra else f"{experts} + {extra} redundant"
            missing = ep - rest
            detail = (
                f"{total} experts mod EP {ep} = {rest}; {extra + missing} redundant experts would make "
                f"{experts + extra + missing} / {ep} = {(experts + extra + missing) // ep}"
            )
            yield Finding("experts", experts, detail)


def ep_expressible(case: LegalityCase, parameters: Mapping[str, Any]) -> Iterator[Finding]:
    """The engine's flags can say this expert-parallel width (A10)."""
    ep, tp = case.layout.expert_parallel, case.layout.tensor_parallel
    if ep == 1:
        return
    if not case.card.is_moe:
        yield Finding("experts", ep, f"EP {ep} asked of a model without routed experts")
    elif parameters["choices"] == "divides-tp":
        if tp % ep:
            yield Finding("experts", ep, f"EP {ep} must divide TP {tp} (moe_tp = TP / EP)")
    else:
        inside = case.engine is Engine.ATOM and case.layout.attention_data_parallel > 1
        group = tp if inside else tp * case.widths.attention_dp
        if ep != group:
            yield Finding(
                "experts", ep, f"expert parallelism is off (EP 1) or spans the whole group (EP {group}), not {ep}"
            )


def attention_dp_expressible(case: LegalityCase, parameters: Mapping[str, Any]) -> Iterator[Finding]:
    """The engine's flags can say this attention data parallelism (B03)."""
    layout = case.layout
    tp, dp, adp = layout.tensor_parallel, layout.data_parallel, layout.attention_data_parallel
    if adp == 1:
        return
    if case.engine is not Engine.VLLM and dp not in (1, adp):
        detail = f"attention DP {adp} and data parallel {dp} are one number here; say the same or leave one out"
        yield Finding("attention", adp, detail)
    if parameters["choices"] == "data-parallel":
        if adp != dp and not (dp == 1 and tp == 1):
            detail = f"no attention DP inside a TP group; say dataParallel {adp} and tensorParallel per rank"
            yield Finding("attention", adp, detail)
    elif parameters["choices"] == "whole-group":
        if adp != tp:
            yield Finding("attention", adp, f"DP attention flattens the whole TP group: {tp} ranks, not {adp}")
    elif tp % adp:
        yield Finding("attention", adp, f"attention DP {adp} must divide TP {tp}: {tp} mod {adp} = {tp % adp}")


def attention_dp_dense(case: LegalityCase, parameters: Mapping[str, Any]) -> Iterator[Finding]:
    """DP attention on a dense model without latent attention (B03)."""
    card, adp = case.card, case.layout.attention_data_parallel
    if adp == 1 or card.is_moe or card.is_mla:
        return
    if card.architecture in parameters.get("proven", ()):
        return
    verdict = None
    if "architectures" in parameters and card.architecture not in parameters["architectures"]:
        verdict = Verdict(parameters["otherwise"])
    name = card.architecture or "a dense model"
    yield Finding(
        "attention", adp, f"attention DP {adp} on {name}: DP attention needs a model file that splits it", verdict
    )


def mla_kernel_heads(case: LegalityCase, parameters: Mapping[str, Any]) -> Iterator[Finding]:
    """Latent-attention heads per rank are a width that the kernel has (A03)."""
    tp = case.widths.attention_tp
    for heads in sorted(
        {g.attention.heads for g in case.card.groups if _is_latent(g.attention.kind, g.attention.latent_expanded)}
    ):
        if heads == 0 or heads % tp:
            continue
        local = heads // tp
        multiple = parameters.get("multiple_of", 0)
        banned = local in parameters.get("banned", ())
        listed = local in parameters.get("unsure_heads", ())
        if not banned and not listed and (local in parameters["heads"] or (multiple and local % multiple == 0)):
            continue
        maybe = parameters.get("unsure_multiple_of", 0)
        unsure = listed or (not banned and maybe and local % maybe == 0)
        allowed = ", ".join(str(count) for count in parameters["heads"]) + (
            f" or multiples of {multiple}" if multiple else ""
        )
        allowed += f" but not {', '.join(map(str, parameters['banned']))}" if parameters.get("banned") else ""
        detail = f"{heads} heads / TP {tp} = {local} heads per rank; the MLA kernel of this version has {allowed}"
        yield Finding("attention.mla_decode", local, detail, Verdict.UNVERIFIED if unsure else None)


def _is_latent(kind: AttentionKind, expanded: bool) -> bool:
    return kind is AttentionKind.MLA and expanded


def block_shape(case: LegalityCase, parameters: Mapping[str, Any]) -> Iterator[Finding]:
    """Each rank's slice of a block-quantised matrix is whole blocks (A05, A06, A07)."""
    del parameters
    skip_experts = case.engine is Engine.SGLANG and case.moe_backend_family == "aiter"
    for finding in _block_findings(case):
        if not (skip_experts and finding.tensor.startswith("experts.")):
            yield finding


def block_shape_aiter_moe(case: LegalityCase, parameters: Mapping[str, Any]) -> Iterator[Finding]:
    """As block_shape, for the routed experts that the engine does not check itself."""
    del parameters
    yield from (finding for finding in _block_findings(case) if finding.tensor.startswith("experts."))


def _block_findings(case: LegalityCase) -> Iterator[Finding]:
    block = case.card.dtypes.block
    if block is None or case.card.dtypes.online:
        return
    guessed = HEAD_DIM_DERIVED in case.card.assumed
    found: dict[tuple[Part, int, int, int, int, Verdict | None], list[str]] = {}
    for matrix in _sliced(case, "fp8"):
        if guessed and matrix.part is Part.ATTENTION:
            continue  # nothing certain can be said of a width that was not given
        size = block[0] if matrix.split is Split.COLUMN else block[1]
        for ranks, verdict in _ranks(case, matrix):
            local = matrix.local_width(ranks)
            if local * ranks != matrix.local_width(1) and matrix.part in _MLP_PARTS:
                continue  # tp-divides-width says so
            # A merged or routed matrix is checked even when it is not cut: its parts must start on a block.
            if local and local % size and (ranks > 1 or matrix.merged or matrix.part is Part.EXPERTS):
                names = found.setdefault((matrix.part, local, matrix.local_width(1), ranks, size, verdict), [])
                names += [matrix.name] if matrix.name not in names else []
                break
    label = {Part.DENSE: "dense MLP", Part.EXPERTS: "routed experts", Part.SHARED: "shared experts"}
    for (part, local, full, ranks, size, verdict), names in found.items():
        slices = f"{full}/{ranks} = {local}" if local * ranks == full else f"{local} of {full} on each of {ranks} ranks"
        detail = f"{label.get(part, 'attention')}: {slices} = {local / size:g} blocks of {size}"
        yield Finding(", ".join(names), local, detail, verdict)


def _sliced(case: LegalityCase, *formats: str) -> Iterator[Matrix]:
    """Matrices of the model that tensor parallelism cuts and that are stored in one of `formats`, each shape once."""
    seen: set[Matrix] = set()
    for group in case.card.groups:
        for matrix in layer_matrices(group, case.card.hidden):
            if matrix.split is not Split.NONE and matrix not in seen and part_dtype(case.card, matrix) in formats:
                seen.add(matrix)
                yield matrix


def _ranks(case: LegalityCase, matrix: Matrix) -> list[tuple[int, Verdict | None]]:
    """(ranks that cut the matrix, verdict override): EP leaves shared experts cut by TP (A07)."""
    widths = case.widths
    if matrix.part is Part.EXPERTS or (matrix.part is Part.SHARED and case.fused_shared_experts):
        return [(widths.moe_tp, None)]
    ranks: list[tuple[int, Verdict | None]] = [(widths.attention_tp, None)]
    if matrix.part in (Part.DENSE, Part.SHARED) and case.has_shards_of_tp_group:
        ranks.append((case.layout.tensor_parallel, Verdict.UNVERIFIED))
    return ranks


def tp_divides_width(case: LegalityCase, parameters: Mapping[str, Any]) -> Iterator[Finding]:
    """Each rank gets a whole slice of the MLP width: dense, shared and routed."""
    del parameters
    found: dict[tuple[Part, int, int, Verdict | None], list[str]] = {}
    for group in case.card.groups:
        for matrix in layer_matrices(group, case.card.hidden):
            if matrix.split is Split.NONE or matrix.part not in _MLP_PARTS:
                continue
            full = matrix.local_width(1)
            for ranks, verdict in _ranks(case, matrix):
                if full % ranks:
                    names = found.setdefault((matrix.part, full, ranks, verdict), [])
                    names += [matrix.name] if matrix.name not in names else []
                    break
    for (_part, full, ranks, verdict), names in found.items():
        yield Finding(", ".join(names), full, f"width {full} mod {ranks} ranks = {full % ranks}", verdict)


def group_shape(case: LegalityCase, parameters: Mapping[str, Any]) -> Iterator[Finding]:
    """Each rank's slice of the input dimension is whole scale groups of a grouped integer checkpoint."""
    del parameters
    if case.card.dtypes.group:
        yield from _group_findings(case, ("int4", "int8"), case.card.dtypes.group)


def scale_group_shape(case: LegalityCase, parameters: Mapping[str, Any]) -> Iterator[Finding]:
    """As group_shape for MXFP4 and NVFP4; gpt-oss experts are padded by the engines."""
    del parameters
    if case.card.architecture != "GptOssForCausalLM":
        for form in ("mxfp4", "nvfp4"):
            yield from _group_findings(case, (form,), storage_format(form).group)


def _group_findings(case: LegalityCase, formats: tuple[str, ...], size: int) -> Iterator[Finding]:
    for matrix in _sliced(case, *formats):
        ranks = _ranks(case, matrix)[0][0]
        local = matrix.local_width(ranks)
        if matrix.split is Split.ROW and ranks > 1 and local % size:
            detail = f"{matrix.in_dim}/{ranks} = {local} = {local / size:g} scale groups of {size}"
            yield Finding(matrix.name, local, detail)


def mxfp4_native(case: LegalityCase, parameters: Mapping[str, Any]) -> Iterator[Finding]:
    """MXFP4 weights on hardware without a native path (A21)."""
    del parameters
    yield from _native(case, ("mxfp4", "mxfp6"))


def nvfp4_native(case: LegalityCase, parameters: Mapping[str, Any]) -> Iterator[Finding]:
    """NVFP4 weights on hardware without a native path."""
    del parameters
    yield from _native(case, ("nvfp4",))


def _native(case: LegalityCase, formats: tuple[str, ...]) -> Iterator[Finding]:
    if case.accelerator is None:
        return
    dtypes = case.card.dtypes
    parts = {"experts": dtypes.experts} if case.card.is_moe else {}
    parts |= {"mlp": dtypes.weights, "attention": dtypes.attention}
    for part, form in parts.items():
        if form in formats and form not in case.accelerator.peak_flop_per_s:
            detail = (
                f"{form} is not native on {case.accelerator.name} ({case.accelerator.architecture}): emulated only, "
                "never ranked on FP4 speed"
            )
            yield Finding(part, storage_format(form).element_bits, detail)
            return


def kv_dtype(case: LegalityCase, parameters: Mapping[str, Any]) -> Iterator[Finding]:
    """The engine has a kernel, and a flag, for the KV format; the model's own 16-bit format needs neither."""
    name, card = case.kv_format_name, case.card
    if name == canonical_format(card.dtypes.embeddings):
        return
    bits = storage_format(kv_storage(name)).element_bits
    without = parameters.get("amd_without", ()) if case.is_amd else ()
    known = [choice for choice in parameters["choices"] if choice not in without]
    stored = {card.dtypes.weights, card.dtypes.attention, *((card.dtypes.experts,) if card.is_moe else ())}
    if name not in known:
        where = " on AMD" if case.is_amd else ""
        detail = f"{case.engine.value} has no {name} KV cache{where}: it stores {', '.join(known)}"
        yield Finding("kv-cache", bits, detail)
    elif name in parameters.get("not_with_quantised", ()) and stored - {"bf16", "fp16", "fp32"}:
        detail = f"{name} KV cache with a checkpoint stored as {', '.join(sorted(stored))} is refused at start"
        yield Finding("kv-cache", bits, detail, None if "fp8" in stored else Verdict.UNVERIFIED)
    elif case.accelerator is not None and case.is_amd and name in parameters.get("amd_unsure", ()):
        detail = f"{name} KV cache was not seen running on {case.accelerator.architecture}"
        yield Finding("kv-cache", bits, detail, Verdict.UNVERIFIED)


def pipeline_layers(case: LegalityCase, parameters: Mapping[str, Any]) -> Iterator[Finding]:
    """Each pipeline stage has a layer, and a given split adds up."""
    del parameters
    stages, layers, split = case.layout.pipeline_parallel, case.card.layers_count, case.split
    if "layers" in case.card.unknown:
        return
    if stages > layers:
        yield Finding("layers", stages, f"{stages} pipeline stages for {layers} layers")
    if split is not None and (len(split) != stages or sum(split) != layers or min(split, default=0) < 1):
        detail = f"split {list(split)} must be {stages} positive counts that add up to {layers}"
        yield Finding("layers", sum(split), detail)


def gpu_budget(case: LegalityCase, parameters: Mapping[str, Any]) -> Iterator[Finding]:
    """One replica fits in the GPUs that there are."""
    del parameters
    gpus = case.widths.gpus_count
    if case.gpu_budget is not None and gpus > case.gpu_budget:
        yield Finding("gpus", gpus, f"one engine takes {gpus} GPUs, the budget is {case.gpu_budget}")


def nodes_whole(case: LegalityCase, parameters: Mapping[str, Any]) -> Iterator[Finding]:
    """An engine that leaves its node fills whole nodes."""
    del parameters
    gpus, per_node = case.widths.gpus_count, case.gpus_per_node
    if gpus > per_node and gpus % per_node:
        yield Finding(
            "gpus",
            gpus,
            f"{gpus} GPUs do not fill whole nodes of {per_node}: {gpus} mod {per_node} = {gpus % per_node}",
        )


def context_parallel_decode(case: LegalityCase, parameters: Mapping[str, Any]) -> Iterator[Finding]:
    """Decode context parallelism lives inside the TP group and splits the copies of replicated KV heads."""
    del parameters
    dcp, tp = case.layout.decode_context_parallel, case.layout.tensor_parallel
    if dcp == 1:
        return
    if tp % dcp:
        yield Finding("attention", dcp, f"decode context parallel {dcp} must divide TP {tp}")
    for kv in sorted({g.attention.kv_heads for g in case.card.groups if g.attention.kind is AttentionKind.GQA}):
        copies = tp // kv if kv else dcp
        if copies < dcp:
            detail = (
                f"TP {tp} holds {copies} copies of each of {kv} KV heads, decode context parallel {dcp} needs {dcp}"
            )
            yield Finding("attention.k_proj", kv, detail)


def context_parallel_option(case: LegalityCase, parameters: Mapping[str, Any]) -> Iterator[Finding]:
    """The engine has a flag for decode context parallelism."""
    del parameters
    dcp = case.layout.decode_context_parallel
    if dcp > 1:
        yield Finding("attention", dcp, f"no flag of {case.engine.value} is known for decode context parallel {dcp}")


def max_position(case: LegalityCase, parameters: Mapping[str, Any]) -> Iterator[Finding]:
    """The model length is within the checkpoint's positions."""
    del parameters
    longest, asked = case.card.max_position_tokens, case.model_length_tokens
    if longest and asked is not None and asked > longest:
        yield Finding("positions", asked, f"maximum model length {asked} exceeds the checkpoint's {longest} positions")


RULES: Mapping[str, Rule] = {
    "tp-divides-heads": tp_divides_heads,
    "tp-divides-kv-heads": tp_divides_kv_heads,
    "tp-divides-linear-heads": tp_divides_linear_heads,
    "tp-divides-width": tp_divides_width,
    "vocab-divides-tp": vocab_divides_tp,
    "experts-divide-ep": experts_divide_ep,
    "ep-expressible": ep_expressible,
    "attention-dp-expressible": attention_dp_expressible,
    "attention-dp-dense": attention_dp_dense,
    "mla-kernel-heads": mla_kernel_heads,
    "block-shape": block_shape,
    "block-shape-aiter-moe": block_shape_aiter_moe,
    "group-shape": group_shape,
    "scale-group-shape": scale_group_shape,
    "mxfp4-native": mxfp4_native,
    "nvfp4-native": nvfp4_native,
    "kv-dtype": kv_dtype,
    "pipeline-layers": pipeline_layers,
    "gpu-budget": gpu_budget,
    "nodes-whole": nodes_whole,
    "context-parallel-decode": context_parallel_decode,
    "context-parallel-option": context_parallel_option,
    "max-position": max_position,
}
"""Every rule of one engine replica; `disaggregated-tp` compares two of them (`disaggregation.py`)."""
