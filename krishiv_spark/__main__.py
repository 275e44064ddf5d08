"""``python -m krishiv_spark``: the command, where its script is not installed, as in archives."""

from krishiv_spark.cli import main

if __name__ == "__main__":
    main(prog_name="krishiv-spark")
