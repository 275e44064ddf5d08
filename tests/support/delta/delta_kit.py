"""Tables of Delta under the kit."""

from functools import partial

from delta_reader import LogReader

from krishiv_spark.formats import DeltaDataSource
from krishiv_spark.testing import OUTSIDE, Look, SinkUnderTest, back_up_folder

# The library writes the log without Python, and Arrow the files.
SEEN = {
    **OUTSIDE,
    "deltalake.table:DeltaTable.create_write_transaction": OSError,
    "deltalake.table:DeltaTable.create": OSError,
    "deltalake.table:DeltaTable.__init__": Look(OSError),
    "pyarrow.parquet.core:ParquetWriter.close": OSError,
}


def delta_sink(folder, case=""):
    """Declare the sink, with a table in a folder.

    An outage lasts, so a commit gives up soon. In a case of a stale driver there is none, and a
    driver that wakes must have time for its next attempt, however long it has slept.
    """
    patience = "60 s" if "stale_driver" in case else "300 ms"
    table = folder / "table"
    reader = LogReader(table)
    return SinkUnderTest(
        source=DeltaDataSource,
        options={"path": str(table), "commitTimeout": patience},
        oracle=reader.rows,
        leftovers=reader.leftovers,
        backup=partial(back_up_folder, folder),
        special_doubles=True,
        sweeps=False,  # VACUUM does, when nobody can need them any more
        most_held=2**26,  # a row group
        outside=SEEN,
    )
