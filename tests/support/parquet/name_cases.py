"""Fields whose names are not quite those that are asked for."""

import pyarrow as pa


def _structs(*names: str) -> pa.Array:
    values = [{name: number for number, name in enumerate(names)}, None]
    return pa.array(values, pa.struct([(name, pa.int64()) for name in names]))


_STRUCT = pa.struct([("a", pa.int64())])
_LISTS = pa.array([[{"a": 1}, None], None, []], pa.list_(_STRUCT))
_MAPS = pa.array([[("k", {"a": 1}), ("l", None)], None, []], pa.map_(pa.string(), _STRUCT))
_DEEP = pa.array([{"d": {"a": 1}}, {"d": None}, None])

_NUMBER = pa.int64()


def _struct(*names: str) -> pa.DataType:
    return pa.struct([(name, _NUMBER) for name in names])


NAMES = {
    "same": (_structs("a"), _struct("a")),
    "other case": (_structs("A"), _struct("a")),
    "other case and more": (_structs("A", "b", "C"), _struct("c", "a")),
    "two spellings": (_structs("Ab", "aB"), _struct("ab")),
    "its own spelling and another": (_structs("A", "a"), _struct("a")),
    "two are asked for": (_structs("A"), _struct("a", "A")),
    "missing": (_structs("a"), _struct("a", "b")),
    "none of them": (_structs("a"), _struct("b")),
    "other order": (_structs("a", "b"), _struct("b", "a")),
    "none of them, deep": (_DEEP, pa.struct([("d", _struct("b"))])),
    "none of them, in a list": (_LISTS, pa.list_(_struct("b"))),
    "none of them, in a map": (_MAPS, pa.map_(pa.string(), _struct("b"))),
    "other case in a list": (_LISTS, pa.list_(_struct("A"))),
    "other case in a map": (_MAPS, pa.map_(pa.string(), _struct("A"))),
    "a number for a struct": (_structs("a"), _NUMBER),
    "a list for a struct": (_structs("a"), pa.list_(_NUMBER)),
    "a struct for a list": (_LISTS, _struct("a")),
}
"""A column, and the type that is asked for."""
