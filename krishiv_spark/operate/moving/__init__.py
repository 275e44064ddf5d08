"""Checkpoints that are copied and rewound, taken over from Spark's own sources, and handed back.

Nothing here runs beside Spark: each function reads one checkpoint and writes another one, or goes
back in one. Spark refuses a checkpoint that is only half made
(`krishiv_spark.operate.moving.copying`).
"""
