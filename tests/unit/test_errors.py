"""Errors: one tree, and each of them crosses process borders."""

import copy
import inspect
import pickle
import re

import pytest
from pyspark import cloudpickle

from krishiv_spark import errors
from krishiv_spark.errors import (
    BatchMismatch,
    CheckpointMismatch,
    CommitRejected,
    CommitUnknown,
    DataLossError,
    Fenced,
    KrishivError,
    LinkError,
    LogError,
    ManifestError,
    NotExclusiveError,
    OffsetError,
    OffsetVersionError,
    OptionError,
    OutOfMemory,
    QueryFailed,
    SchemaError,
    SinkError,
    StorageError,
    UploadGoneError,
)

TREE = {
    OptionError: (KrishivError, ValueError),
    SchemaError: (KrishivError,),
    OffsetError: (KrishivError,),
    OffsetVersionError: (OffsetError,),
    DataLossError: (OffsetError,),
    StorageError: (KrishivError,),
    LinkError: (StorageError,),
    NotExclusiveError: (StorageError,),
    UploadGoneError: (StorageError,),
    OutOfMemory: (KrishivError, MemoryError),
    LogError: (KrishivError,),
    CheckpointMismatch: (KrishivError,),
    ManifestError: (KrishivError, ValueError),
    QueryFailed: (KrishivError,),
    SinkError: (KrishivError,),
    BatchMismatch: (SinkError,),
    CommitRejected: (SinkError,),
    CommitUnknown: (SinkError,),
    Fenced: (SinkError,),
}
ALL = [
    value
    for _, value in inspect.getmembers(errors, inspect.isclass)
    if issubclass(value, BaseException)
]


def test_the_tree_is_the_one_that_is_drawn():
    assert {error: error.__bases__ for error in ALL if error is not KrishivError} == TREE
    drawn = re.findall(r"[├└]── (\w+)", errors.__doc__)
    assert sorted(drawn) == sorted(error.__name__ for error in TREE)


@pytest.mark.parametrize("error", ALL, ids=lambda error: error.__name__)
@pytest.mark.parametrize("way", [pickle, cloudpickle], ids=lambda way: way.__name__)
def test_an_error_pickles_whole(error, way):
    loaded = way.loads(way.dumps(error("what, which, what to do")))
    assert type(loaded) is error
    assert str(loaded) == "what, which, what to do"
    assert loaded.args == ("what, which, what to do",)
    assert str(copy.copy(loaded)) == str(loaded)


@pytest.mark.parametrize("error", ALL, ids=lambda error: error.__name__)
def test_whether_it_may_be_repeated_is_said_by_the_class(error):
    assert isinstance(error.retriable, bool)
    assert "retriable" not in vars(error("x"))


@pytest.mark.parametrize(
    "error", [OptionError, OffsetVersionError, LogError, CommitUnknown, Fenced]
)
def test_what_only_a_person_can_mend_is_not_repeated(error):
    assert not error.retriable


@pytest.mark.parametrize("error", ALL, ids=lambda error: error.__name__)
def test_every_error_says_when_it_is_raised(error):
    assert error.__doc__.rstrip().endswith((".", "anything."))
