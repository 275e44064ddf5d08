"""Parquet files of unusual forms."""

import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.parquet.encryption as pe


class OwnKeys(pe.KmsClient):
    def __init__(self, _):
        super().__init__()

    def wrap_key(self, key_bytes, _):
        return key_bytes.hex()

    def unwrap_key(self, wrapped_key, _):
        return bytes.fromhex(wrapped_key)


def encrypted(path, *, plaintext_footer):
    table = pa.table(
        {"open": [1, 2], "secret": [3, 4], "inside": [{"a": 5, "b": 6}, None], "last": [7, 8]}
    )
    how = pe.EncryptionConfiguration(
        footer_key="footer",
        column_keys={"column": ["secret", "inside.b"]},
        plaintext_footer=plaintext_footer,
    )
    properties = pe.CryptoFactory(OwnKeys).file_encryption_properties(pe.KmsConnectionConfig(), how)
    with pq.ParquetWriter(path, table.schema, encryption_properties=properties) as writer:
        writer.write_table(table)
