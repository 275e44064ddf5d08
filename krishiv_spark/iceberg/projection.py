"""Columns and filters of a scan: rows of a file as rows of the table. Executor.

Names and types of a table change, field ids never do (Iceberg spec, "Column Projection").
PyIceberg's own projection turns null lists and maps of structs into empty ones, and is created
again for every batch.

PyIceberg's own translation of filters compares a value that is in no file (a column's default, the
value of a partition) with a literal in the form of a file: days, microseconds, bytes. It uses the
value even where the struct around the column is null, takes a required field as never null inside
of an optional struct, and compares no UUIDs. Here such values become columns first
(`Projection`), and the columns that are read decide about a row. Decisions that are made earlier,
about a file or a row group, may keep too much and never too little.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import pyarrow as pa
from pyiceberg.exceptions import ResolveError
from pyiceberg.expressions import (
    AlwaysFalse,
    AlwaysTrue,
    And,
    BooleanExpression,
    BoundPredicate,
    BoundSetPredicate,
    BoundTerm,
    BoundUnaryPredicate,
    EqualTo,
    GreaterThan,
    In,
    LessThan,
    LessThanOrEqual,
    Not,
    Or,
    UnboundPredicate,
)
from pyiceberg.expressions.visitors import (
    BooleanExpressionVisitor,
    BoundBooleanExpressionVisitor,
    bind,
    rewrite_not,
    visit,
)
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema, promote
from pyiceberg.transforms import IdentityTransform, TruncateTransform
from pyiceberg.types import (
    FixedType,
    IcebergType,
    ListType,
    MapType,
    NestedField,
    PrimitiveType,
    StringType,
    StructType,
    UUIDType,
)

from krishiv_spark.arrow.cast import uuid_texts
from krishiv_spark.arrow.compute import list_with, map_with, pc, struct_with
from krishiv_spark.errors import SchemaError

__all__ = [
    "Projection",
    "bind_filter",
    "bind_to_file",
    "find_root_id",
    "to_arrow_condition",
    "to_filter_schema",
    "to_stored_schema",
    "widen_for_planning",
]


@dataclass(frozen=True)
class Projection:
    """A conversion of the batches of one file to batches of the table's columns.

    Attributes:
        wanted: The columns, by the table's schema.
        stored: The columns of the file by field id.
        constants: Values by field id of columns that the file may lack, since it is partitioned
            by them; a value may be null.
    """

    wanted: Sequence[NestedField]
    stored: Mapping[int, NestedField]
    constants: Mapping[int, Any]

    @classmethod
    def from_file(
        cls, wanted: Sequence[NestedField], file: Schema, constants: Mapping[int, Any]
    ) -> Projection:
        """Return the projection of a file with a schema."""
        return cls(wanted, {field.field_id: field for field in file.fields}, constants)

    @property
    def columns(self) -> list[str]:
        """Names of the columns of the file that are needed."""
        fields = (self.stored.get(field.field_id) for field in self.wanted)
        return [field.name for field in fields if field is not None]

    def fit(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Convert one batch of the file.

        Raises:
            SchemaError: If the table's type cannot represent that of a column, or a column that
                must not be null is missing.
        """
        arrays = [self._fit_column(field, batch) for field in self.wanted]
        return pa.RecordBatch.from_arrays(arrays, names=[field.name for field in self.wanted])

    def _fit_column(self, field: NestedField, batch: pa.RecordBatch) -> pa.Array:
        stored = self.stored.get(field.field_id)
        if stored is None:
            return create_absent_column(field, batch.num_rows, self.constants)
        try:
            return self._fit(batch.column(stored.name), stored.field_type, field.field_type)
        except (pa.ArrowException, ResolveError) as error:
            raise SchemaError(
                f"column {field.name!r} is {stored.field_type} in the file and {field.field_type} "
                f"in the schema that is read: {error}. If the table's schema has changed since "
                "the query started, restart the query"
            ) from error

    def _fit(self, array: pa.Array, stored: IcebergType, wanted: IcebergType) -> pa.Array:
        # Newer versions of PyArrow read UUIDs as an extension type.
        if isinstance(array, pa.ExtensionArray):
            array = array.storage
        if isinstance(stored, UUIDType) or isinstance(wanted, UUIDType):
            return _fit_uuids(array, stored, wanted)
        if isinstance(stored, PrimitiveType) and stored == wanted:
            return array
        if isinstance(stored, StructType) and isinstance(wanted, StructType):
            return self._fit_struct(array, stored, wanted)
        if isinstance(stored, ListType) and isinstance(wanted, ListType):
            pair = stored.element_type, wanted.element_type
            return list_with(array, lambda values: self._fit(values, *pair))
        if isinstance(stored, MapType) and isinstance(wanted, MapType):
            return map_with(
                array,
                lambda keys: self._fit(keys, stored.key_type, wanted.key_type),
                lambda items: self._fit(items, stored.value_type, wanted.value_type),
            )
        return array.cast(to_column_type(promote(stored, wanted)))

    def _fit_struct(self, array: pa.Array, stored: StructType, wanted: StructType) -> pa.Array:
        indices = {field.field_id: index for index, field in enumerate(stored.fields)}
        children = []
        for field in wanted.fields:
            index = indices.get(field.field_id)
            if index is None:
                children.append(create_absent_column(field, len(array), self.constants))
            else:
                kind = stored.fields[index].field_type
                children.append(self._fit(array.field(index), kind, field.field_type))
        fields = [
            pa.field(field.name, child.type, nullable=field.optional)
            for field, child in zip(wanted.fields, children, strict=True)
        ]
        return struct_with(array, children, fields)


def to_stored_schema(schema: Schema) -> Schema:
    """Return a schema that reads UUIDs as the bytes that are in files, instead of as text."""
    whole = _replace_uuids(FixedType(_UUID_BYTES), schema.as_struct())
    return Schema(*whole.fields)


def to_column_type(kind: IcebergType) -> pa.DataType:
    """Return the Arrow type of a projected column: that of the table, with UUIDs as text."""
    return schema_to_pyarrow(_replace_uuids(StringType(), kind), include_field_ids=False)


def _replace_uuids(other: PrimitiveType, kind: Any) -> Any:
    if isinstance(kind, StructType):
        fields = (
            field.model_copy(update={"field_type": _replace_uuids(other, field.field_type)})
            for field in kind.fields
        )
        return StructType(*fields)
    if isinstance(kind, ListType):
        element = _replace_uuids(other, kind.element_type)
        return ListType(kind.element_id, element, kind.element_required)
    if isinstance(kind, MapType):
        key, value = _replace_uuids(other, kind.key_type), _replace_uuids(other, kind.value_type)
        return MapType(kind.key_id, key, kind.value_id, value, kind.value_required)
    return other if isinstance(kind, UUIDType) else kind


_UUID_BYTES = 16


def create_absent_column(field: NestedField, rows: int, constants: Mapping[int, Any]) -> pa.Array:
    """Return a column that a file lacks, in the form of columns that files have.

    Args:
        field: The column, in the schema that is read.
        rows: Number of rows.
        constants: Values by field id of the file's partition. By the spec ("Column Projection")
            they take precedence over the default, even if they are null.

    Raises:
        SchemaError: If the column must not be null, and no value is known.
    """
    kind = to_column_type(field.field_type)
    value = constants.get(field.field_id, field.initial_default)
    if isinstance(value, UUID):
        value = value.bytes if isinstance(field.field_type, FixedType) else str(value)
    if value is not None:
        return pa.repeat(pa.scalar(value, kind), rows)
    if field.required:
        raise SchemaError(f"column {field.name!r} must not be null, but the file lacks it")
    return pa.nulls(rows, kind)


def _fit_uuids(array: pa.Array, stored: IcebergType, wanted: IcebergType) -> pa.Array:
    if isinstance(wanted, FixedType):
        return array
    if stored != wanted:
        promote(stored, wanted)  # raises for types other than sixteen bytes
    return uuid_texts(array)


# --- filters


def to_filter_schema(schema: Schema) -> Schema:
    """Return a schema in which a field is optional if a struct around it is.

    Such a field is null wherever the struct is, although it is required inside of the struct.
    """
    fields = (_nullable_inside(field, below_optional=False) for field in schema.fields)
    return Schema(*fields, schema_id=schema.schema_id)


def _nullable_inside(field: NestedField, *, below_optional: bool) -> NestedField:
    required = field.required and not below_optional
    changes: dict[str, Any] = {} if required == field.required else {"required": required}
    if isinstance(field.field_type, StructType):
        inner = [
            _nullable_inside(child, below_optional=not required)
            for child in field.field_type.fields
        ]
        changes["field_type"] = StructType(*inner)
    return field.model_copy(update=changes) if changes else field


def bind_filter(expression: BooleanExpression, schema: Schema) -> BooleanExpression:
    """Return an expression bound to the columns of a schema, whose names match in any case.

    Raises:
        ValueError: If the schema lacks a column, or a value does not fit its type.
        TypeError: If a value has another type.
    """
    return bind(to_filter_schema(schema), expression, case_sensitive=False)


def to_arrow_condition(bound: BooleanExpression, schema: Schema) -> Any:
    """Return a bound expression as Arrow's condition on the columns that a projection makes."""
    return visit(bound, _Condition(schema))


def widen_for_planning(
    expression: BooleanExpression, schema: Schema, specs: Collection[PartitionSpec]
) -> BooleanExpression:
    """Return a filter that PyIceberg's planner can compare with the values of partitions.

    It keeps every file that the given filter keeps, and perhaps more: the readers decide.
    Conditions that the planner gets wrong are left out or widened. It reads the UUIDs of identity
    partitions as Python's, and compares them with bytes: no file would match. It computes the day
    after 9999-12-31, and the one before 0001-01-01, and fails. And ``truncate`` of the least
    integers wraps to the greatest ones, in all writers: a comparison with the smaller ones misses
    them.

    Args:
        expression: The filter.
        schema: The columns that the filter names.
        specs: All partition specs of the table.
    """
    fields: dict[int, list[PartitionField]] = {}
    for spec in specs:
        for field in spec.fields:
            if field.source_id in schema.field_ids:
                fields.setdefault(field.source_id, []).append(field)
    if not fields:
        return expression
    return visit(rewrite_not(expression), _ForPlanning(to_filter_schema(schema), fields))


def bind_to_file(
    bound: BooleanExpression, schema: Schema, stored: Schema, constants: Mapping[int, Any]
) -> BooleanExpression:
    """Return the conditions of a filter on the columns of one file, bound to these.

    Args:
        bound: The filter, bound to `schema`.
        schema: The columns that are read.
        stored: The columns of the file.
        constants: Values by field id of the file's partition.

    Raises:
        ValueError: If a column of the file has a type that cannot be compared with a value.
        TypeError: Likewise, depending on the type.
    """
    inside = visit(rewrite_not(bound), _InFile(schema, stored, constants))
    return bind(to_filter_schema(stored), inside, case_sensitive=True)


def find_root_id(number: int, schema: Schema) -> int:
    """Return the id of the top-level column of a field, which may be inside of structs."""
    return _find_path(number, schema.fields)[0].field_id


def _find_path(number: int, fields: Iterable[NestedField]) -> tuple[NestedField, ...]:
    """Return the fields from the top down to that of an id; structs alone are searched."""
    for field in fields:
        if field.field_id == number:
            return (field,)
        kind = field.field_type
        inside = _find_path(number, kind.fields) if isinstance(kind, StructType) else ()
        if inside:
            return (field, *inside)
    return ()


class _Condition(BoundBooleanExpressionVisitor[Any]):
    """A visitor that creates Arrow's conditions; a comparison with null is null, as in SQL."""

    def __init__(self, schema: Schema) -> None:
        self._schema = schema

    def _get_column(self, term: BoundTerm) -> Any:
        # By ids and not by the dotted name: a column's own name may have dots.
        path = _find_path(term.ref().field.field_id, self._schema.fields)
        return pc.field(*(field.name for field in path))

    def _match_any(self, term: BoundTerm, values: Collection[Any]) -> Any:
        kind = term.ref().field.field_type
        literals = [_to_scalar(value, kind) for value in values]
        return self._get_column(term).isin(pa.array(literals, to_column_type(kind)))

    def visit_in(self, term: BoundTerm, literals: set[Any]) -> Any:
        return self._match_any(term, literals)

    def visit_not_in(self, term: BoundTerm, literals: set[Any]) -> Any:
        return ~self._match_any(term, literals)

    def visit_is_nan(self, term: BoundTerm) -> Any:
        return pc.is_nan(self._get_column(term))

    def visit_not_nan(self, term: BoundTerm) -> Any:
        return ~pc.is_nan(self._get_column(term))

    def visit_is_null(self, term: BoundTerm) -> Any:
        return self._get_column(term).is_null()

    def visit_not_null(self, term: BoundTerm) -> Any:
        return self._get_column(term).is_valid()

    def visit_equal(self, term: BoundTerm, literal: Any) -> Any:
        return self._get_column(term) == _to_literal(term, literal)

    def visit_not_equal(self, term: BoundTerm, literal: Any) -> Any:
        return self._get_column(term) != _to_literal(term, literal)

    def visit_greater_than_or_equal(self, term: BoundTerm, literal: Any) -> Any:
        return self._get_column(term) >= _to_literal(term, literal)

    def visit_greater_than(self, term: BoundTerm, literal: Any) -> Any:
        return self._get_column(term) > _to_literal(term, literal)

    def visit_less_than(self, term: BoundTerm, literal: Any) -> Any:
        return self._get_column(term) < _to_literal(term, literal)

    def visit_less_than_or_equal(self, term: BoundTerm, literal: Any) -> Any:
        return self._get_column(term) <= _to_literal(term, literal)

    def visit_starts_with(self, term: BoundTerm, literal: Any) -> Any:
        return pc.starts_with(self._get_column(term), literal.value)

    def visit_not_starts_with(self, term: BoundTerm, literal: Any) -> Any:
        return ~pc.starts_with(self._get_column(term), literal.value)

    def visit_true(self) -> Any:
        return pc.scalar(True)  # noqa: FBT003  Arrow's own signature

    def visit_false(self) -> Any:
        return pc.scalar(False)  # noqa: FBT003

    def visit_not(self, child_result: Any) -> Any:
        return ~child_result

    def visit_and(self, left_result: Any, right_result: Any) -> Any:
        return left_result & right_result

    def visit_or(self, left_result: Any, right_result: Any) -> Any:
        return left_result | right_result


def _to_literal(term: BoundTerm, literal: Any) -> pa.Scalar:
    return _to_scalar(literal.value, term.ref().field.field_type)


def _to_scalar(value: Any, kind: IcebergType) -> pa.Scalar:
    """Return a literal of PyIceberg in the form that a projected column has."""
    if isinstance(kind, UUIDType):
        value = str(UUID(bytes=value))
    return pa.scalar(value, to_column_type(kind))


class _Rewriting(BooleanExpressionVisitor[BooleanExpression]):
    """A visitor that rebuilds an expression without negations around other expressions."""

    def visit_true(self) -> BooleanExpression:
        return AlwaysTrue()

    def visit_false(self) -> BooleanExpression:
        return AlwaysFalse()

    def visit_not(self, child_result: BooleanExpression) -> BooleanExpression:
        return Not(child_result)

    def visit_and(
        self, left_result: BooleanExpression, right_result: BooleanExpression
    ) -> BooleanExpression:
        return And(left_result, right_result)

    def visit_or(
        self, left_result: BooleanExpression, right_result: BooleanExpression
    ) -> BooleanExpression:
        return Or(left_result, right_result)

    def visit_unbound_predicate(self, predicate: UnboundPredicate) -> BooleanExpression:
        return predicate

    def visit_bound_predicate(self, predicate: BoundPredicate) -> BooleanExpression:
        return predicate


class _ForPlanning(_Rewriting):
    """A visitor that replaces conditions by true, or widens them, for `widen_for_planning`."""

    def __init__(self, schema: Schema, fields: Mapping[int, Sequence[PartitionField]]) -> None:
        self._schema = schema
        self._fields = fields

    def visit_unbound_predicate(self, predicate: UnboundPredicate) -> BooleanExpression:
        bound = predicate.bind(self._schema, case_sensitive=False)
        if not isinstance(bound, BoundPredicate):
            return predicate
        column = bound.term.ref().field
        fields = self._fields.get(column.field_id, ())
        is_uuid = isinstance(column.field_type, UUIDType)
        if is_uuid and any(isinstance(field.transform, IdentityTransform) for field in fields):
            return AlwaysTrue()
        if not all(_can_project(field, bound) for field in fields):
            return AlwaysTrue()
        greatest = _GREATEST.get(str(column.field_type))
        widths = [f.transform.width for f in fields if isinstance(f.transform, TruncateTransform)]
        if greatest is None or not widths or not isinstance(predicate, _TO_WIDEN):
            return predicate
        wrapped: Any = GreaterThan  # type checkers disagree about the names of its parameters
        return Or(predicate, wrapped(predicate.term, greatest - 2 * max(widths)))


_GREATEST = {"int": 2**31 - 1, "long": 2**63 - 1}
_TO_WIDEN = (EqualTo, In, LessThan, LessThanOrEqual)
"""Predicates that PyIceberg compares with values of partitions, and that the least values match."""


def _can_project(field: PartitionField, bound: BoundPredicate) -> bool:
    """Return True if PyIceberg can convert a predicate to one on the values of a partition."""
    try:
        field.transform.project(field.name, bound)
        field.transform.strict_project(field.name, bound)
    except (OverflowError, TypeError, ValueError):
        return False
    return True


class _InFile(_Rewriting):
    """A visitor that converts conditions on columns that are read to those on columns of a file."""

    def __init__(self, schema: Schema, stored: Schema, constants: Mapping[int, Any]) -> None:
        self._schema = schema
        self._stored = stored
        self._constants = constants

    def visit_bound_predicate(self, predicate: BoundPredicate) -> BooleanExpression:
        field = predicate.term.ref().field
        name = self._stored.find_column_name(field.field_id)
        if name is None:
            return self._decide_absent(predicate, field)
        # Row groups have no statistics of UUIDs that Arrow compares.
        is_uuid = isinstance(field.field_type, UUIDType)
        return AlwaysTrue() if is_uuid else _unbind(predicate, name)

    def _decide_absent(self, predicate: BoundPredicate, field: NestedField) -> BooleanExpression:
        root = find_root_id(field.field_id, self._schema)
        if self._stored.find_column_name(root) is not None:
            return AlwaysTrue()  # the value differs by row: it is null where the struct is null
        column = self._schema.find_field(root)
        rows = pa.table([create_absent_column(column, 1, self._constants)], [column.name])
        found = rows.filter(to_arrow_condition(predicate, self._schema)).num_rows
        return AlwaysTrue() if found else AlwaysFalse()


def _unbind(predicate: BoundPredicate, name: str) -> BooleanExpression:
    made: Any = predicate
    if isinstance(predicate, BoundUnaryPredicate):
        return predicate.as_unbound(name)
    if isinstance(predicate, BoundSetPredicate):
        return predicate.as_unbound(name, predicate.literals)
    found: BooleanExpression = made.as_unbound(name, made.literal)
    return found
