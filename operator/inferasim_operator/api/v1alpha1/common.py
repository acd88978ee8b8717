"""What all API types share: the base model, validation rules, bounded field types, object metadata.

Field conventions (guarded by `tools/crdgen.py`): camelCase on the wire; integers with the unit in the name; every
string and list bounded; no floats; no schema defaults (case D02: they make a permanent diff), so an optional field is
`None` when absent and its effective value shows in the status. `extra` is ignored on reading, because a newer CRD must
not crash an older operator; `unknown_fields` is for places that must refuse.
"""

from __future__ import annotations

import re
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import pydantic
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StrictBool, WithJsonSchema
from pydantic.alias_generators import to_camel

GROUP = "inferasim.dev"
VERSION = "v1alpha1"
API_VERSION = f"{GROUP}/{VERSION}"
CATEGORY = "inferasim"


@dataclass(frozen=True)
class Rule:
    """A cross-field rule: the CEL text for the API server and its Python twin, kept side by side so that both agree."""

    cel: str
    must: str
    """The message; reads on after the field's path, e.g. `must set exactly one of …`."""
    holds: Callable[[Any], bool]


class ApiModel(BaseModel):
    """Base of all API types: frozen, camelCase aliases, unknown fields ignored, rules checked on construction."""

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, frozen=True, extra="ignore")
    rules: ClassVar[tuple[Rule, ...]] = ()

    @pydantic.model_validator(mode="after")
    def _rules_hold(self) -> typing.Self:
        for rule in self.rules:
            if not rule.holds(self):
                raise ValueError(rule.must)
        return self

    @classmethod
    def __get_pydantic_json_schema__(cls, core_schema: Any, handler: Any) -> dict[str, Any]:
        schema: dict[str, Any] = handler(core_schema)
        target = handler.resolve_ref_schema(schema)
        if cls.rules:
            target["x-kubernetes-validations"] = [{"rule": r.cel, "message": r.must} for r in cls.rules]
        return schema

    def to_dict(self) -> dict[str, Any]:
        """The JSON-able form with camelCase keys; absent fields are left out."""
        return self.model_dump(mode="json", by_alias=True, exclude_none=True)


@dataclass(frozen=True)
class PrinterColumn:
    """One column of `kubectl get`; `priority` 1 shows with `-o wide` only."""

    name: str
    json_path: str
    type: str = "string"
    priority: int = 0
    description: str = ""


@dataclass(frozen=True)
class Resource:
    """How a kind is served; declared on the model class as `resource`."""

    kind: str
    plural: str
    short_names: tuple[str, ...] = ()
    columns: tuple[PrinterColumn, ...] = ()
    group: str = GROUP
    version: str = VERSION

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def crd_name(self) -> str:
        return f"{self.plural}.{self.group}"


def condition_column(name: str, type_: str, *, field: str = "status", priority: int = 0) -> PrinterColumn:
    """A printer column that shows one field of one condition."""
    return PrinterColumn(name, f'.status.conditions[?(@.type=="{type_}")].{field}', priority=priority)


AGE = PrinterColumn("Age", ".metadata.creationTimestamp", type="date")


class ObjectMeta(ApiModel):
    """The part of Kubernetes metadata that the operator reads."""

    name: str
    namespace: str = ""
    uid: str = ""
    generation: int = 0
    resource_version: str = ""
    labels: Mapping[str, str] = Field(default_factory=dict)
    annotations: Mapping[str, str] = Field(default_factory=dict)
    deletion_timestamp: str | None = None


# --- bounded field types ---------------------------------------------------------------------------------------------

DNS_LABEL = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"
DNS_SUBDOMAIN = r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$"

ObjectName = Annotated[str, Field(min_length=1, max_length=253, pattern=DNS_SUBDOMAIN)]
_LABEL_KEY = re.compile(r"([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")


def _label_key(key: str) -> str:
    # A structural schema has no place for the form of keys.
    if not _LABEL_KEY.fullmatch(key):
        raise ValueError("a label's key must be a name, or prefix/name")
    return key


LabelKey = Annotated[str, Field(min_length=1, max_length=317), AfterValidator(_label_key)]
LabelValue = Annotated[str, Field(max_length=63, pattern=r"^([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?$")]
DataKey = Annotated[str, Field(min_length=1, max_length=253, pattern=r"^[-._a-zA-Z0-9]+$")]
Word = Annotated[str, Field(min_length=1, max_length=63, pattern=r"^[A-Za-z0-9]([-A-Za-z0-9_.+]*[A-Za-z0-9])?$")]
"""An identifier of ours: a product, a dtype, a backend, a version, a tier."""
ModelName = Annotated[str, Field(min_length=1, max_length=128, pattern=r"^[A-Za-z0-9][-A-Za-z0-9_./]*$")]
ShortText = Annotated[str, Field(max_length=1024)]
Message = Annotated[str, Field(max_length=4096)]
ImageReference = Annotated[str, Field(min_length=1, max_length=512, pattern=r"^[A-Za-z0-9][-A-Za-z0-9_.:/@]*$")]
Argument = Annotated[str, Field(max_length=1024)]
SUBPATH = r"^[A-Za-z0-9_][-A-Za-z0-9_.=+]*(/[A-Za-z0-9_][-A-Za-z0-9_.=+]*)*$"
"""Inside a volume: no leading slash, no `..`, no hidden names."""
Digest = Annotated[str, Field(min_length=8, max_length=128, pattern=r"^[a-z0-9:]+$")]
Timestamp = Annotated[
    str, Field(max_length=40), WithJsonSchema({"type": "string", "format": "date-time", "maxLength": 40})
]
Count = Annotated[int, Field(strict=True, ge=0, le=2**53)]
Positive = Annotated[int, Field(strict=True, ge=1, le=2**53)]
Width = Annotated[int, Field(strict=True, ge=1, le=4096)]
"""A parallel width."""
Tokens = Annotated[int, Field(strict=True, ge=1, le=16_777_216)]
Permille = Annotated[int, Field(strict=True, ge=0, le=1000)]
SignedPermille = Annotated[int, Field(strict=True, ge=-(2**31), le=2**31)]

PreservedObject = Annotated[
    dict[str, Any], WithJsonSchema({"type": "object", "x-kubernetes-preserve-unknown-fields": True})
]
"""A Kubernetes object whose own schema the API server checks when the pod is made; passed through unread."""

StringMap = Annotated[dict[LabelKey, LabelValue], Field(max_length=64)]


def justified_boolean(reason: str) -> dict[str, Any]:
    """`json_schema_extra` for a boolean; without a reason why it cannot grow a third value, crdgen refuses it."""
    return {"x-inferasim-boolean": reason}


def map_list(*keys: str) -> dict[str, Any]:
    """`json_schema_extra` for a list whose items are told apart by `keys` (camelCase)."""
    return {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": list(keys)}


def atomic_list() -> dict[str, Any]:
    """`json_schema_extra` for a list that is replaced as a whole."""
    return {"x-kubernetes-list-type": "atomic"}


def unique_by(*names: str) -> AfterValidator:
    """The Python twin of `map_list`: refuses two items that are equal in all `names` (snake_case attributes)."""

    def check(items: Sequence[Any] | None) -> Sequence[Any] | None:
        seen: set[tuple[Any, ...]] = set()
        for item in items or ():
            key = tuple(getattr(item, name) for name in names)
            if key in seen:
                raise ValueError(f"must not hold two items with {', '.join(names)} = {', '.join(map(str, key))}")
            seen.add(key)
        return items

    return AfterValidator(check)


# --- references and pod fields ---------------------------------------------------------------------------------------


class ObjectReference(ApiModel):
    """An object in the same namespace."""

    name: ObjectName


class ConfigMapKey(ApiModel):
    """One key of a ConfigMap in the same namespace."""

    name: ObjectName
    key: DataKey | None = None


class SecretKey(ApiModel):
    """One key of a Secret in the same namespace."""

    name: ObjectName
    key: DataKey


class ResultReference(ApiModel):
    """A ConfigMap that holds an immutable result, and the digest its name is made from."""

    config_map: ObjectName
    digest: Digest


class EnvVar(ApiModel):
    """An environment variable of the engine container: a literal, or whatever `valueFrom` Kubernetes accepts."""

    name: Annotated[str, Field(min_length=1, max_length=253, pattern=r"^[-._a-zA-Z][-._a-zA-Z0-9]*$")]
    value: Annotated[str, Field(max_length=4096)] | None = None
    value_from: PreservedObject | None = None


class Toleration(ApiModel):
    """A Kubernetes toleration, passed through."""

    key: Annotated[str, Field(max_length=317)] | None = None
    operator: Annotated[str, Field(max_length=16)] | None = None
    value: Annotated[str, Field(max_length=63)] | None = None
    effect: Annotated[str, Field(max_length=32)] | None = None
    toleration_seconds: Annotated[int, Field(strict=True, ge=0, le=2**31)] | None = None


class Volume(ApiModel):
    """A Kubernetes volume, passed through; its source is one of Kubernetes' own fields."""

    model_config = ConfigDict(extra="allow")
    name: Annotated[str, Field(min_length=1, max_length=63, pattern=DNS_LABEL)]

    @classmethod
    def __get_pydantic_json_schema__(cls, core_schema: Any, handler: Any) -> dict[str, Any]:
        schema = super().__get_pydantic_json_schema__(core_schema, handler)
        target = handler.resolve_ref_schema(schema)
        target.pop("additionalProperties", None)
        target["x-kubernetes-preserve-unknown-fields"] = True
        return schema


class VolumeMount(ApiModel):
    """Where a volume shows up in the engine container."""

    name: Annotated[str, Field(min_length=1, max_length=63, pattern=DNS_LABEL)]
    mount_path: Annotated[str, Field(min_length=1, max_length=1024, pattern=r"^/[^:]*$")]
    sub_path: Annotated[str, Field(max_length=1024)] | None = None
    read_only: StrictBool | None = Field(
        default=None, json_schema_extra=justified_boolean("Kubernetes' own field of this name")
    )


class PodOptions(ApiModel):
    """Pod fields that only the user can know; passed through to every pod made for this object."""

    node_selector: StringMap | None = None
    tolerations: Annotated[tuple[Toleration, ...], Field(max_length=32)] | None = Field(
        default=None, json_schema_extra=atomic_list()
    )
    priority_class_name: ObjectName | None = None
    queue_name: Annotated[str, Field(min_length=1, max_length=63, pattern=DNS_LABEL)] | None = Field(
        default=None, description="Kueue LocalQueue; becomes the label `kueue.x-k8s.io/queue-name`."
    )
    service_account_name: ObjectName | None = None
    image_pull_secrets: Annotated[tuple[ObjectReference, ...], Field(max_length=8), unique_by("name")] | None = Field(
        default=None, json_schema_extra=map_list("name")
    )
    volumes: Annotated[tuple[Volume, ...], Field(max_length=32), unique_by("name")] | None = Field(
        default=None, json_schema_extra=map_list("name")
    )
    volume_mounts: Annotated[tuple[VolumeMount, ...], Field(max_length=32), unique_by("mount_path")] | None = Field(
        default=None, json_schema_extra=map_list("mountPath")
    )
    shared_memory_mebibytes: Annotated[int, Field(strict=True, ge=64, le=1_048_576)] | None = Field(
        default=None, description="Size limit of the memory-backed /dev/shm; 16384 when absent."
    )
    supplemental_groups: (
        Annotated[tuple[Annotated[int, Field(strict=True, ge=1, le=2**31 - 1)], ...], Field(max_length=16)] | None
    ) = Field(
        default=None,
        description="Group ids that may open the node's GPU devices (render, video).",
        json_schema_extra=atomic_list(),
    )
    labels: StringMap | None = Field(default=None, description="Extra labels for the pods, Kubernetes syntax.")


def unknown_fields(model: type[BaseModel], data: object, path: str = "") -> dict[str, list[str]]:
    """Paths in `data` that `model` does not have, as the API server's strict validation would name them.

    Each with the names that there are in its place.
    """
    if not isinstance(data, Mapping):
        return {}
    fields = {info.alias or name: info.annotation for name, info in model.model_fields.items()}
    allows_extra = model.model_config.get("extra") == "allow"
    found: dict[str, list[str]] = {}
    for key, value in data.items():
        here = f"{path}.{key}" if path else str(key)
        if key not in fields:
            if not allows_extra:
                found[here] = list(fields)
            continue
        inner = _model_in(fields[key])
        if inner is None:
            continue
        if isinstance(value, Sequence) and not isinstance(value, str):
            for index, item in enumerate(value):
                found |= unknown_fields(inner, item, f"{here}[{index}]")
        else:
            found |= unknown_fields(inner, value, here)
    return found


def _model_in(annotation: Any) -> type[BaseModel] | None:
    """The API type inside Optional, Annotated or tuple wrappers, if there is one."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    for argument in typing.get_args(annotation):
        inner = _model_in(argument)
        if inner is not None:
            return inner
    return None
