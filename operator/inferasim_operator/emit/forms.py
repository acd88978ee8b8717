"""The forms a flag can take. Each renders levers into arguments and reads the same arguments back."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from inferasim_operator.emit.levers import Lever, Levers
from simcore.errors import InputError

Given = Mapping[str, tuple[str, ...]]
"""Flags of a command line and the values that follow each."""


class Form(Protocol):
    """One flag, or two that belong together."""

    @property
    def flags(self) -> tuple[str, ...]: ...
    @property
    def levers(self) -> tuple[str, ...]: ...
    def render(self, levers: Levers) -> list[str]:
        """The arguments that state these levers; none where the levers are neutral. Raises InputError."""
        ...

    def parse(self, given: Given, levers: Levers) -> None:
        """Put what `given` states into `levers`, which holds what earlier forms read. Raises InputError."""
        ...


def _one(flag: str, values: Sequence[str]) -> str:
    if len(values) != 1:
        raise InputError(flag, " ".join(values), "be followed by one value")
    return values[0]


@dataclass(frozen=True)
class _Single:
    flag: str
    lever: str

    @property
    def flags(self) -> tuple[str, ...]:
        return (self.flag,)

    @property
    def levers(self) -> tuple[str, ...]:
        return (self.lever,)

    def render(self, levers: Levers) -> list[str]:
        return [f"{self.flag}={self.text(levers[self.lever])}"] if self.lever in levers else []

    def parse(self, given: Given, levers: Levers) -> None:
        if self.flag in given:
            levers[self.lever] = self.value(_one(self.flag, given[self.flag]))

    def text(self, value: Lever) -> str:
        return str(value)

    def value(self, text: str) -> Lever:
        return text


class Text(_Single):
    """`--flag=text`."""


@dataclass(frozen=True)
class Integer(_Single):
    """`--flag=N`; `always` is the neutral value of a flag that is given even so; `plus` is added to the lever."""

    plus: int = 0
    always: int | None = None

    def render(self, levers: Levers) -> list[str]:
        if self.always is not None and self.lever not in levers:
            return [f"{self.flag}={self.always}"]
        return super().render(levers)

    def parse(self, given: Given, levers: Levers) -> None:
        if self.flag not in given:
            return
        number = self.value(_one(self.flag, given[self.flag]))
        if number != self.always and levers.setdefault(self.lever, number) != number:
            raise InputError(self.flag, number, f"agree with the other flags of {self.lever} ({levers[self.lever]})")

    def text(self, value: Lever) -> str:
        return str(int(value) + self.plus)  # type: ignore[arg-type]

    def value(self, text: str) -> int:
        if not text.isascii() or not text.isdigit():
            raise InputError(self.flag, text, "be a whole number")
        return int(text) - self.plus


class Permille(_Single):
    """`--flag=0.925` for 925 permille."""

    def text(self, value: Lever) -> str:
        return f"{int(value) / 1000:.3f}".rstrip("0").rstrip(".")  # type: ignore[arg-type]

    def value(self, text: str) -> int:
        permille = round(float(text) * 1000)
        if float(self.text(permille)) != float(text):
            raise InputError(self.flag, text, "have at most three decimals")
        return permille


@dataclass(frozen=True)
class Choice(_Single):
    """`--flag=word`, the engine's word for our value."""

    values: Mapping[str, str] = field(default_factory=dict)

    def text(self, value: Lever) -> str:
        if value not in self.values:
            raise InputError(self.lever, value, f"be one of {', '.join(self.values)} for {self.flag}")
        return self.values[str(value)]

    def value(self, text: str) -> str:
        for ours, theirs in self.values.items():
            if theirs == text:
                return ours
        raise InputError(self.flag, text, f"be one of {', '.join(self.values.values())}")


@dataclass(frozen=True)
class Constant(_Single):
    """`--flag=value`, always the same, given when the lever is set."""

    constant: str = ""

    def text(self, value: Lever) -> str:  # noqa: ARG002 - the lever only switches it on
        return self.constant

    def parse(self, given: Given, levers: Levers) -> None:  # noqa: ARG002 - states no lever by itself
        if self.flag in given and _one(self.flag, given[self.flag]) != self.constant:
            raise InputError(self.flag, given[self.flag][0], f"be {self.constant}")


class Present(_Single):
    """`--flag` when the lever is set; another flag states its value."""

    def render(self, levers: Levers) -> list[str]:
        return [self.flag] if self.lever in levers else []

    def parse(self, given: Given, levers: Levers) -> None:
        """Nothing to read: the flag that goes with it states the value."""


@dataclass(frozen=True)
class Switch:
    """`--on` or `--off` by a lever that is true or false; a side without a flag is the engine's default."""

    lever: str
    on: str | None
    off: str | None

    @property
    def flags(self) -> tuple[str, ...]:
        return tuple(flag for flag in (self.on, self.off) if flag)

    @property
    def levers(self) -> tuple[str, ...]:
        return (self.lever,)

    def render(self, levers: Levers) -> list[str]:
        flag = self.on if levers[self.lever] else self.off
        return [flag] if flag else []

    def parse(self, given: Given, levers: Levers) -> None:
        stated = [flag for flag in self.flags if flag in given]
        if len(stated) > 1:
            raise InputError(self.lever, " ".join(stated), "be stated once")
        levers[self.lever] = stated[0] == self.on if stated else self.on is None


@dataclass(frozen=True)
class Product:
    """`--flag` when a width equals the product of others; the engine has no flag for any other width."""

    flag: str
    lever: str
    of: tuple[str, ...]

    @property
    def flags(self) -> tuple[str, ...]:
        return (self.flag,)

    @property
    def levers(self) -> tuple[str, ...]:
        return (self.lever,)

    def _product(self, levers: Levers) -> int:
        widths: list[int] = [int(levers.get(name, 1)) for name in self.of]  # type: ignore[arg-type]
        return math.prod(widths)

    def render(self, levers: Levers) -> list[str]:
        if self.lever not in levers:
            return []
        if levers[self.lever] != self._product(levers):
            names = " · ".join(self.of)
            raise InputError(
                self.lever,
                levers[self.lever],
                f"be 1 or {names} = {self._product(levers)}",
                f"{self.flag} has no width",
            )
        return [self.flag]

    def parse(self, given: Given, levers: Levers) -> None:
        if self.flag in given and self._product(levers) > 1:
            levers[self.lever] = self._product(levers)


@dataclass(frozen=True)
class AttentionRanks:
    """SGLang before 0.5.22: `--dp-size=N`, with a switch when the ranks share the TP group."""

    flag: str
    switch: str
    levers: tuple[str, ...]

    @property
    def flags(self) -> tuple[str, ...]:
        return (self.flag, self.switch)

    def render(self, levers: Levers) -> list[str]:
        attention, copies = (levers.get(name) for name in self.levers)
        if attention and copies:
            raise InputError(self.levers[0], attention, f"not be combined with {self.levers[1]} ({copies})")
        if attention:
            return [f"{self.flag}={attention}", self.switch]
        return [f"{self.flag}={copies}"] if copies else []

    def parse(self, given: Given, levers: Levers) -> None:
        if self.flag in given:
            levers[self.levers[0] if self.switch in given else self.levers[1]] = int(_one(self.flag, given[self.flag]))


@dataclass(frozen=True)
class Integers(_Single):
    """`--flag 1 2 4`, or `--flag=[1,2,4]` when bracketed."""

    bracketed: bool = False

    def render(self, levers: Levers) -> list[str]:
        if self.lever not in levers:
            return []
        texts = [str(size) for size in levers[self.lever]]  # type: ignore[union-attr]
        return [f"{self.flag}=[{','.join(texts)}]"] if self.bracketed else [self.flag, *texts]

    def parse(self, given: Given, levers: Levers) -> None:
        if self.flag in given:
            values = given[self.flag]
            texts = _one(self.flag, values).strip("[]").split(",") if self.bracketed else values
            levers[self.lever] = tuple(int(text) for text in texts)


@dataclass(frozen=True)
class Json:
    """`--flag={…}`: the first case whose `when` holds; `$lever` in it is that lever's value, left out when not set."""

    flag: str
    levers: tuple[str, ...]
    cases: tuple[Mapping[str, Any], ...]

    @property
    def flags(self) -> tuple[str, ...]:
        return (self.flag,)

    def render(self, levers: Levers) -> list[str]:
        if not any(name in levers for name in self.levers):
            return []
        for case in self.cases:
            if all(levers.get(name) == value for name, value in case["when"].items()):
                text = json.dumps(_filled(case["value"], levers), sort_keys=True, separators=(",", ":"))
                return [f"{self.flag}={text}"]
        stated = {name: levers[name] for name in self.levers if name in levers}
        raise InputError(next(iter(stated)), next(iter(stated.values())), f"have a form of {self.flag} in this version")

    def parse(self, given: Given, levers: Levers) -> None:
        if self.flag not in given:
            return
        record = json.loads(_one(self.flag, given[self.flag]))
        for case in self.cases:
            # A lever that is known from elsewhere (the role of the pool) tells cases with equal text apart.
            if any(levers.get(name, value) != value for name, value in case["when"].items()):
                continue
            found: Levers = {}
            if _matched(case["value"], record, found):
                levers |= {**case["when"], **found}
                return
        raise InputError(self.flag, json.dumps(record), "have a known form")


def _filled(template: Any, levers: Levers) -> Any:
    if isinstance(template, Mapping):
        filled = {key: _filled(value, levers) for key, value in template.items()}
        return {key: value for key, value in filled.items() if value is not None}
    if isinstance(template, str) and template.startswith("$"):
        return levers.get(template[1:])
    return template


def _matched(template: Any, record: Any, found: Levers) -> bool:
    if isinstance(template, Mapping):
        if not isinstance(record, Mapping) or set(record) - set(template):
            return False
        return all(_matched(value, record.get(key), found) for key, value in template.items())
    if isinstance(template, str) and template.startswith("$"):
        if record is not None:
            found[template[1:]] = record
        return True
    return bool(template == record)


_SIMPLE: Final[Mapping[str, type[_Single]]] = {"text": Text, "permille": Permille, "present": Present}


def form_of(record: Mapping[str, Any]) -> Form:
    """The form that one record of a flag file describes. Raises InputError."""
    kind, flag, lever = record["form"], record.get("flag", ""), record.get("lever", "")
    match kind:
        case "text" | "permille" | "present":
            return _SIMPLE[kind](flag, lever)
        case "integer":
            return Integer(flag, lever, plus=record.get("plus", 0), always=record.get("always"))
        case "choice":
            return Choice(flag, lever, values=record["values"])
        case "constant":
            return Constant(flag, lever, constant=str(record["value"]))
        case "switch":
            return Switch(lever, record["enable"], record["disable"])
        case "product":
            return Product(flag, lever, tuple(record["of"]))
        case "integers" | "bracketed":
            return Integers(flag, lever, bracketed=kind == "bracketed")
        case "attentionRanks":
            return AttentionRanks(flag, record["switch"], tuple(record["levers"]))
        case "json":
            return Json(flag, tuple(record["levers"]), tuple(record["cases"]))
        case _:
            raise InputError("form", kind, "be a known form of flag")
