"""Functions that steps of jobs name."""


def doubled(frame, times=2):
    """Amounts, several times as high."""
    return frame.withColumn("amount", frame.amount * times)
