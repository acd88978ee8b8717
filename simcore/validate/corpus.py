"""Benchmark tables: one CSV row is one measured cell of one layout. Format: docs/formats/corpus.md."""

from __future__ import annotations

import csv
import difflib
import io
import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from simcore.cards.layout import Layout
from simcore.errors import FormatError, unreadable
from simcore.units import MILLI

COLUMNS = (
    "series", "role", "engine", "model", "accelerator", "weights_dtype", "tp", "pp", "dp", "ep", "attention_dp",
    "pools", "isl_tokens", "osl_tokens", "length_range_ratio", "concurrency", "ttft_ms", "tpot_ms", "throughput_tok_s",
    "samples", "source",
)  # fmt: skip
"""In the order in which tables are written; any order is read."""
MAX_CORPUS_BYTES = 64 << 20
MAX_CORPUS_ROWS = 200_000
REQUIRED_COLUMNS = (
    "series", "role", "engine", "model", "accelerator", "tp", "isl_tokens", "osl_tokens", "concurrency", "tpot_ms",
)  # fmt: skip
OPTIONAL_COLUMNS = tuple(name for name in COLUMNS if name not in REQUIRED_COLUMNS)
NOT_A_NUMBER = frozenset(("nan", "na", "n/a", "null", "none", "-"))
"""What tools write where a measure is missing: read as empty."""
TYPO_RATIO = 0.85
"""An unknown column this close to a known one that is missing is taken for a typing error."""
LEAST_TPOT_MS = 0.05
"""Ten times a kernel's launch and an eighth of what the fastest engine needs for a token: below it a unit is wrong."""
MOST_TPOT_MS = 60_000.0
MOST_TTFT_MS = 86_400_000.0
"""A minute for a token, a day for an answer's first one."""
MOST_TOKENS_PER_S = 1e8
LEAST_TTFT_STEPS = 20
_POOLS = re.compile(r"prefill=(\d*)xTP(\d+)(?:EP(\d+))?;decode=(\d*)xTP(\d+)(?:EP(\d+))?")


class Role(StrEnum):
    """What a row is for: fitted on, or only scored on."""

    ANCHOR = "anchor"
    TARGET = "target"


@dataclass(frozen=True)
class PoolSpec:
    """One pool of a disaggregated deployment: replicas of one layout; None = the table does not say how many."""

    replicas_count: int | None
    layout: Layout


@dataclass(frozen=True)
class CorpusRow:
    """One row in SI units. None = the table does not say."""

    line: int
    series: str
    role: Role
    engine: str
    model: str
    accelerator: str
    weights_dtype: str
    layout: Layout
    prefill_pool: PoolSpec | None
    decode_pool: PoolSpec | None
    prompt_tokens: int
    """Nominal, as asked of the client."""
    output_tokens: int
    length_range_ratio: float | None
    concurrency: int
    ttft_s: float | None
    tpot_s: float | None
    throughput_tokens_per_s: float | None
    samples_count: int | None
    source: str

    @property
    def is_disaggregated(self) -> bool:
        return self.prefill_pool is not None

    @property
    def pools_label(self) -> str:
        """`2xTP4+1xTP8` for disaggregated rows, the layout's label otherwise."""
        if self.prefill_pool is None or self.decode_pool is None:
            return self.layout.label()
        parts = (self.prefill_pool, self.decode_pool)
        return "+".join(f"{part.replicas_count or '?'}x{part.layout.label()}" for part in parts)


def read_corpus(path: str | Path) -> tuple[CorpusRow, ...]:
    """Rows of the CSV file at `path`, in file order. Raises FormatError naming line and field."""
    return parse_corpus(read_text(path), Path(path).name)


def read_text(path: str | Path) -> str:
    """The text of a table; bounded. Raises FormatError."""
    place = Path(path)
    try:
        with place.open("rb") as stream:
            data = stream.read(MAX_CORPUS_BYTES + 1)
        text = data.decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise unreadable(path, error, "be a readable UTF-8 CSV file") from error
    if len(data) > MAX_CORPUS_BYTES:
        raise FormatError(place.name, None, "file", f"over {MAX_CORPUS_BYTES} bytes", "be at most 64 MiB")
    return text


def parse_corpus(text: str, where: str = "corpus") -> tuple[CorpusRow, ...]:
    """Rows of CSV `text`; `where` names it in errors. Raises FormatError naming line and field."""
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    try:
        header = [name.strip().lower() for name in next(reader, [])]
        _check_header(header, where)
        rows: list[CorpusRow] = []
        for cells in reader:
            if not any(cell.strip() for cell in cells):
                continue
            if len(rows) >= MAX_CORPUS_ROWS:
                raise FormatError(where, reader.line_num, "rows", len(rows) + 1, f"be at most {MAX_CORPUS_ROWS}")
            if len(cells) != len(header):
                raise FormatError(where, reader.line_num, "row", len(cells), f"hold {len(header)} fields as the header")
            fields = {name: _cleaned(cell) for name, cell in zip(header, cells, strict=True)}
            rows.append(_row(_Fields(fields, where, reader.line_num)))
    except csv.Error as error:
        raise FormatError(where, reader.line_num, "row", str(error), "be CSV") from error
    if not rows:
        raise FormatError(where, None, "rows", 0, "be at least 1")
    return tuple(rows)


def _cleaned(cell: str) -> str:
    text = cell.strip()
    return "" if text.lower() in NOT_A_NUMBER else text


def _check_header(header: list[str], where: str) -> None:
    twice = sorted({name for name in header if name and header.count(name) > 1})
    if twice:
        raise FormatError(where, 1, "header", twice[0], "name each column once")
    missing = [name for name in REQUIRED_COLUMNS if name not in header]
    if missing:
        raise FormatError(where, 1, "header", ",".join(header)[:80], f"hold column `{missing[0]}`")
    # Other columns are their owner's business, but a misspelt one must not be left out in silence.
    absent = [name for name in OPTIONAL_COLUMNS if name not in header]
    for name in header:
        near = difflib.get_close_matches(name.lower(), absent, n=1, cutoff=TYPO_RATIO) if name not in COLUMNS else []
        if near:
            raise FormatError(where, 1, "header", name, f"be `{near[0]}`, or named less alike")


@dataclass(frozen=True)
class _Fields:
    """One record with typed access that knows where it stands."""

    fields: dict[str, str]
    where: str
    line: int

    def refuse(self, name: str, value: object, must: str) -> FormatError:
        return FormatError(self.where, self.line, name, value, must)

    def text(self, name: str) -> str:
        value = self.fields.get(name, "")
        if not value:
            raise self.refuse(name, value, "not be empty")
        return value

    def count(self, name: str, default: int | None = None) -> int:
        value = self.fields.get(name, "")
        if not value and default is not None:
            return default
        try:
            number = float(value)
        except ValueError:
            number = math.nan
        if not (number.is_integer() and 1 <= number <= 10**7):
            raise self.refuse(name, value, "be an integer from 1 to 10,000,000")
        return int(number)

    def positive(self, name: str, least: float = 0.0, most: float = math.inf, unit: str = "") -> float | None:
        """A number above 0 in a range no serving engine leaves, or None where the field is empty."""
        value = self.fields.get(name, "")
        if not value:
            return None
        try:
            number = float(value)
        except ValueError:
            number = math.nan
        if not 0.0 < number < math.inf:
            raise self.refuse(name, value, "be empty or a positive number")
        if not least <= number <= most:
            raise self.refuse(name, value, f"be {unit} from {least:g} to {most:,.0f}")
        return number


def _row(fields: _Fields) -> CorpusRow:
    try:
        role = Role(fields.text("role").lower())
    except ValueError as error:
        raise fields.refuse("role", fields.fields["role"], "be `anchor` or `target`") from error
    ratio = fields.positive("length_range_ratio")
    if ratio is not None and ratio > 1.0:
        raise fields.refuse("length_range_ratio", ratio, "be at most 1")
    tpot_ms = fields.positive("tpot_ms", LEAST_TPOT_MS, MOST_TPOT_MS, "milliseconds")
    ttft_ms = fields.positive("ttft_ms", LEAST_TPOT_MS, MOST_TTFT_MS, "milliseconds")
    if tpot_ms is not None and ttft_ms is not None and LEAST_TTFT_STEPS * ttft_ms < tpot_ms:
        # The prompt's own pass is never that much shorter than a decode step.
        raise fields.refuse("ttft_ms", ttft_ms, f"be milliseconds, as tpot_ms {tpot_ms:g} (seconds?)")
    output_tokens = fields.count("osl_tokens")
    if output_tokens == 1:
        tpot_ms = None  # a single token has no gap, whatever a tool writes
    prefill_pool, decode_pool = _pools(fields)
    return CorpusRow(
        line=fields.line,
        series=fields.text("series"),
        role=role,
        engine=fields.text("engine"),
        model=fields.text("model"),
        accelerator=fields.text("accelerator"),
        weights_dtype=fields.fields.get("weights_dtype", "").lower(),
        layout=Layout(
            tensor_parallel=_width(fields, "tp"),
            pipeline_parallel=_width(fields, "pp"),
            data_parallel=_width(fields, "dp"),
            expert_parallel=_width(fields, "ep"),
            attention_data_parallel=_width(fields, "attention_dp"),
        ),
        prefill_pool=prefill_pool,
        decode_pool=decode_pool,
        prompt_tokens=fields.count("isl_tokens"),
        output_tokens=output_tokens,
        length_range_ratio=ratio,
        concurrency=fields.count("concurrency"),
        ttft_s=None if ttft_ms is None else ttft_ms * MILLI,
        tpot_s=None if tpot_ms is None else tpot_ms * MILLI,
        throughput_tokens_per_s=fields.positive("throughput_tok_s", 0.0, MOST_TOKENS_PER_S, "tokens per second"),
        samples_count=fields.count("samples", 1),
        source=fields.fields.get("source", ""),
    )


def _width(fields: _Fields, name: str) -> int:
    value = fields.count(name, None if name == "tp" else 1)
    if value > 4096:
        raise fields.refuse(name, value, "be an integer from 1 to 4096")
    return value


def _pools(fields: _Fields) -> tuple[PoolSpec | None, PoolSpec | None]:
    text = fields.fields.get("pools", "")
    if not text:
        return None, None
    match = _POOLS.fullmatch(text)
    if match is None:
        raise fields.refuse("pools", text, "read prefill=NxTPa[EPb];decode=MxTPc[EPd]")
    numbers = [int(group) if group else None for group in match.groups()]
    if any(number is not None and not 1 <= number <= 4096 for number in numbers):
        raise fields.refuse("pools", text, "hold counts and widths from 1 to 4096")
    prefill = PoolSpec(numbers[0], Layout(tensor_parallel=numbers[1] or 1, expert_parallel=numbers[2] or 1))
    return prefill, PoolSpec(numbers[3], Layout(tensor_parallel=numbers[4] or 1, expert_parallel=numbers[5] or 1))


def by_series(rows: Iterable[CorpusRow]) -> dict[str, list[CorpusRow]]:
    """Rows by series, in order of first appearance."""
    groups: dict[str, list[CorpusRow]] = {}
    for row in rows:
        groups.setdefault(row.series, []).append(row)
    return groups
