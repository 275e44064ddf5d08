"""Records whose schema is in a registry, as Arrow columns and back.

Each form of records has a folder: ``avro``, ``protobuf``, ``json_schema``. Its modules are

* ``…_types``: schemas as trees of types, and the Arrow types of values
* ``…_derive``: the schema of columns for which no schema is given
* ``…_decode``, with ``…_decode_program`` and ``…_decode_kernel``: a pair of schemas is compiled to
  a program, which the kernel runs over the bytes of all records
* ``…_encode``, with ``…_encode_program`` and ``…_encode_kernel``: the same for columns

``registry`` asks the registry for schemas (``registered_schemas``), and ``frames`` reads the
headers of records. ``buffers``, ``octets``, ``encode_columns`` and ``encode_nodes`` are parts of
all coders.
"""
