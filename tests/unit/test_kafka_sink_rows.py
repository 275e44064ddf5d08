"""By what the rows of a task are known again, when a part of their epoch is visible already."""

import pyarrow as pa
import pytest

from krishiv_spark.errors import SinkError
from krishiv_spark.sinks.kafka.task import Fingerprint, StagedTransaction, check_same

HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
FIRST_FORM = {  # as an intent of the first release has it, for the rows below
    "transaction": {
        "transactional_id": "krishiv.q.0.1",
        "producer_id": 3,
        "producer_epoch": 7,
        "rules": 2,
    },
    "task": 0,
    "rows": 3,
    "checksum": 1664283577,
    "topic": "t",
    "partition": 0,
    "offset": 12,
}


def rows(header=b"yy"):
    many = [{"key": "h", "value": None}, {"key": "i", "value": header}]
    return pa.record_batch(
        {
            "key": ["a", None, "c"],
            "value": [b"1", b"22", None],
            "partition": pa.array([0, None, 2], pa.int32()),
            "headers": pa.array([[{"key": "h", "value": b"x"}], None, many], HEADERS),
        }
    )


def sum_of(*batches):
    found = Fingerprint()
    for batch in batches:
        found.add(batch)
    return found.rows, found.checksum


def kept(batch):
    count, checksum = sum_of(batch)
    changed = {"rows": count, "checksum": checksum, "form": Fingerprint.NEWEST}
    return StagedTransaction.model_validate({**FIRST_FORM, **changed})


def test_how_rows_are_cut_makes_no_difference():
    whole = rows()
    assert sum_of(whole) == sum_of(whole.slice(0, 1), whole.slice(1, 0), whole.slice(1))


def test_rows_with_other_headers_are_others():
    check_same(iter([rows()]), kept(rows()))
    with pytest.raises(SinkError, match="are different"):
        check_same(iter([rows(header=b"yz")]), kept(rows()))


def test_headers_that_fall_into_other_rows_are_others():
    one, two = [{"key": "h", "value": b"x"}], []
    columns = [pa.array(cells, HEADERS) for cells in ([one, two], [two, one])]
    first, second = (pa.record_batch({"value": ["a", "b"], "headers": each}) for each in columns)
    assert sum_of(first) != sum_of(second)


def test_what_the_first_form_names_is_known_again():
    old = StagedTransaction.model_validate(FIRST_FORM)
    check_same(iter([rows()]), old)
    check_same(iter([rows(header=b"yz")]), old)  # it tells how many headers there are
    with pytest.raises(SinkError, match="are different"):
        check_same(iter([rows().slice(1)]), old)
