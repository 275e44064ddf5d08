"""Variables in the SQL of job files, as Spark reads it: the value, whatever characters it has."""

import random

import pytest

from krishiv_spark.errors import ManifestError, OptionError
from krishiv_spark.jobs import JobRunner, load
from krishiv_spark.jobs.variables import Dialect, Variables, substitute_sql

ROWS = ["NO", "N'O", "SE", "a;b", "a}b", "a\nb", "a$b", "", "x' OR '1'='1", 'a"b', "a\\nb", "a\\b"]
"""Each with its number, from 1 on."""

JOB = """
name: j
inputs:
  - {{name: t, format: parquet, options: {{path: "{folder}/in"}}}}
steps:
  - name: v
    sql: {sql}
{more}
outputs:
  - {{name: v, format: parquet, saveMode: overwrite, options: {{path: "{folder}/out"}}}}
"""


@pytest.fixture(scope="module")
def table(spark, tmp_path_factory):
    folder = tmp_path_factory.mktemp("variables")
    rows = [(text, number + 1) for number, text in enumerate(ROWS)]
    frame = spark.createDataFrame(rows, "c STRING, id INT").coalesce(1)
    frame.write.parquet(str(folder / "in"))
    return folder


@pytest.fixture
def found(spark, table):
    def run(sql, more="", **given):
        file = table / "job.yaml"
        file.write_text(JOB.format(folder=table, sql=sql, more=more))
        JobRunner(spark, lambda _: None).run(load(file, variables=given))
        return sorted(row.id for row in spark.read.parquet(str(table / "out")).collect())

    return run


WHERE = "SELECT * FROM t WHERE c = '${X}'"


@pytest.mark.parametrize("value", [*ROWS, "${HOME}", "${env:HOME}", "x'; DROP TABLE t; --"])
def test_a_value_in_quotes_finds_the_row_that_has_it_and_no_other(found, value):
    number = ROWS.index(value) + 1 if value in ROWS else None
    assert found(WHERE, X=value) == ([] if number is None else [number])


@pytest.mark.parametrize(
    "sql",
    [
        'SELECT * FROM t WHERE c = "${X}"',
        "|\n      SELECT * -- it's\n      FROM t\n      WHERE c = '${X}'",
        "SELECT * FROM t WHERE c = r'${X}'",
        "SELECT * FROM t WHERE concat('<', c) = '<${X}'",
    ],
)
@pytest.mark.parametrize("value", ["N'O", "a\\nb", 'a"b', "a\nb"])
def test_so_it_does_in_each_kind_of_literal(found, sql, value):
    assert found(sql if sql.startswith("|") else f"|\n      {sql}", X=value) == [
        ROWS.index(value) + 1
    ]


def test_a_parameter_has_a_value_of_any_kind(found):
    more = "    args: {x: '${X}', n: 3, ids: [2, 9], none: null}"
    sql = '"SELECT * FROM t WHERE c = :x OR id = :n OR array_contains(:ids, id) OR c <=> :none"'
    assert found(sql, more, X="a\\b") == [2, 3, 9, 12]


@pytest.mark.parametrize(("text", "expected"), [("id > ${N}", [11, 12]), ("id = -${N} + 11", [1])])
def test_a_number_may_stand_outside_of_quotes(found, text, expected):
    assert found(f"SELECT * FROM t WHERE {text}", N="10") == expected


def test_code_in_a_value_is_a_mistake_of_the_file(found):
    with pytest.raises(ManifestError, match=r"job\.yaml:7:10: the value of \$\{N\} would become"):
        found("SELECT * FROM t WHERE id = ${N}", N="1 OR true")


def test_a_session_without_escapes_is_told_to_take_a_parameter(found):
    name = "spark.sql.parser.escapedStringLiterals"
    more = f"spark: {{{name}: true}}"
    assert found(WHERE, more, X="SE") == [3]
    with pytest.raises(OptionError, match=r"a variable in a literal .* :name and 'args'"):
        found(WHERE, more, X="N'O")


CHARACTERS = "'\"`\\$ {}%_nrtbuUZ0x/*-;:@\n\r\t\0é😀"
AROUND = [("'", "'"), ('"', '"'), ("r'", "'"), ("'a''", "'"), ("'\\'", "'"), ("/* ' */ '", "\\\\'"),
          ("-- '\n'", "'"), ("r'\\", "'"), ("'\\", "'")]  # fmt: skip


def test_whatever_a_value_is_it_is_what_spark_reads(spark):
    """Many values in one query, each in literals of every kind, beside Spark's own."""
    rng = random.Random(11)
    values = ["".join(rng.choices(CHARACTERS, k=rng.randint(0, 6))) for _ in range(200)]
    columns, expected = [], []
    quote = spark.sql("SELECT 'a'''").collect()[0][0]  # Spark 4.0 reads two, 'a' and ''
    for number, value in enumerate(values):
        begin, end = AROUND[number % len(AROUND)]
        columns.append(substitute_sql(f"{begin}${{X}}{end}", Variables({"X": value}, {}),
                                      Dialect.QUERY))  # fmt: skip
        before = {"'a''": quote, "'\\'": "'", "r'\\": "\\", "'\\": "\\"}.get(begin, "")
        expected.append(before + value + ("\\" if end.startswith("\\") else ""))
    select = ", ".join(f"{text} AS c{number}" for number, text in enumerate(columns))
    assert list(spark.sql(f"SELECT {select}").collect()[0]) == expected
