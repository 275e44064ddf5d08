"""Variables in SQL of job files, without Spark: what a literal keeps, and what is no value there.

That Spark reads each text as it is meant: ``tests/spark/test_job_variables.py``.
"""

import pytest

from krishiv_spark.jobs.variables import (
    Dialect,
    Variables,
    dialect_of,
    has_encoded_literals,
    substitute_sql,
)


def put(text, dialect=Dialect.QUERY, **given):
    return substitute_sql(text, Variables(given, {}), dialect)


@pytest.mark.parametrize(
    ("path", "dialect"),
    [
        (("steps", 0, "sql"), Dialect.QUERY),
        (("workflow", "dag", 0, "spec", "stackSpec", "steps", 0, "sequence", 1, "sql"),
         Dialect.QUERY),
        (("inputs", 0, "schema"), Dialect.SPARK),
        (("inputs", 0, "watermark", "column"), Dialect.SPARK),
        (("steps", 2, "deduplicate", 1), Dialect.SPARK),
        (("outputs", 0, "partitionBy", 0), Dialect.SPARK),
        (("outputs", 0, "options", "iceberg", "partitionBy"), Dialect.SPARK),
        (("inputs", 0, "options", "valueSchema"), Dialect.SPARK),
        (("outputs", 0, "options", "route.a.rowFilter"), Dialect.OTHER),
        (("inputs", 0, "options", "rowFilter"), Dialect.OTHER),
        (("inputs", 0, "options", "dbtable"), Dialect.OTHER),
        (("inputs", 0, "options", "es", "query"), None),
        (("inputs", 0, "options", "path"), None),
        (("steps", 0, "arguments", "sql"), None),
        (("inputs", 0, "name"), None),
        (("spark", "sql"), None),
    ],
)  # fmt: skip
def test_it_is_known_which_texts_are_sql(path, dialect):
    assert dialect_of(path) is dialect


PLAIN = ["t", "lake.db.t", "_x1", "ärger", "1", "-1", "+2.5", ".5", "1e3", "1.5E-3", "10L", "2BD",
         "10 minutes", "interval 1 day", "1 hour 30 minutes", "true", "NULL"]  # fmt: skip


@pytest.mark.parametrize("value", PLAIN)
def test_a_name_a_number_and_an_interval_may_stand_outside_of_quotes(value):
    assert put("SELECT ${X} FROM t", X=value) == f"SELECT {value} FROM t"


@pytest.mark.parametrize(
    "value",
    ["", " ", "a b", "1 OR 1=1", "x' OR '1'='1", "a--b", "a;b", "2024-01-01", "a,b", "f(x)", "'x'",
     "`a`", "a/*", "*", "${Y}", "a\nb", "1 day; x", "a."],
)  # fmt: skip
@pytest.mark.parametrize("text", ["SELECT ${X}", "${X}", "SELECT f(1, ${X})", "a /*+ H(${X}) */"])
def test_what_is_none_of_these_is_refused_with_the_form_of_a_parameter(value, text):
    with pytest.raises(ValueError, match=r"\$\{X\} would become SQL.*:x in .*args: {x: \${X}}"):
        put(text, X=value)


def test_the_value_is_not_shown():
    with pytest.raises(ValueError, match="would become SQL") as refused:
        put("SELECT ${X}", X="very secret")
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize(
    ("text", "becomes"),
    [
        ("'${X}'", r"'x\U00000027y\U0000005Cn'"),
        ('"${X}"', r'"x\U00000027y\U0000005Cn"'),
        ("'it''s ${X}'", r"'it''s x\U00000027y\U0000005Cn'"),
        (r"'it\'s ${X}'", r"'it\'s x\U00000027y\U0000005Cn'"),
        (r"'a\\${X}'", r"'a\\x\U00000027y\U0000005Cn'"),
        (r"'a\${X}'", r"'a\U0000005Cx\U00000027y\U0000005Cn'"),
        (r"r'\d${X}'", r"'\U0000005Cdx\U00000027y\U0000005Cn'"),
        (r"r'\d' || '${X}'", r"r'\d' || 'x\U00000027y\U0000005Cn'"),
        (r"r'\' || '${X}'", r"r'\' || 'x\U00000027y\U0000005Cn'"),
        ("or'${X}'", r"or'x\U00000027y\U0000005Cn'"),
        ("-- it's\n'${X}'", "-- it's\n" + r"'x\U00000027y\U0000005Cn'"),
        ("-- it's \\\n still ' \n'${X}'", "-- it's \\\n still ' \n" + r"'x\U00000027y\U0000005Cn'"),
        ("/* ' /* ' */ ' */'${X}'", "/* ' /* ' */ ' */" + r"'x\U00000027y\U0000005Cn'"),
        ("`it's` = '${X}'", r"`it's` = 'x\U00000027y\U0000005Cn'"),
        ("-- ${X}\n1", "-- {X}\n1"),
        ("/* ${X} */ 1", "/* {X} */ 1"),
        ("`${X}`", r"`x'y\n`"),
        ("'$${X}'", "'${X}'"),
        ("'${Y:-it's}' = '${X}'", r"'it\U00000027s' = 'x\U00000027y\U0000005Cn'"),
        ("${Y:-CAST('1' AS INT)}", "CAST('1' AS INT)"),
        ("'$' || \"$x\" || '{'", "'$' || \"$x\" || '{'"),
        ("'\\${'", "'\\${'"),
        ("'unclosed ${X}", r"'unclosed x\U00000027y\U0000005Cn"),
        ("r'unclosed ${X}", r"'unclosed x\U00000027y\U0000005Cn"),
    ],
)
def test_a_value_is_a_part_of_its_literal(text, becomes):
    assert put(text, X="x'y\\n") == becomes


@pytest.mark.parametrize(
    ("text", "value", "becomes"),
    [
        ("1 -${X}", "-1", "1 - -1"),
        ("1 +${X}", "+1", "1 + +1"),
        ("${X}'a'", "r", "r 'a'"),
        ("${X}r'a\\'b'", "a", "ar 'a\\'b'"),
        ("t_${X}", "a", "t_a"),
        ("${X}_t.`${X}`", "a", "a_t.`a`"),
        ("`${X}`", "a`b", "`a``b`"),
    ],
)
def test_a_value_does_not_change_what_is_beside_it(text, value, becomes):
    assert put(text, X=value) == becomes


@pytest.mark.parametrize("begun", ["0", "1", "10", "04", "u", "u00", "u004", "U", "U0000004"])
def test_digits_of_a_value_do_not_end_the_number_of_an_escape(begun):
    text = f"'\\{begun}${{E}}${{X}}${{X}}'"
    assert put(text, E="", X="41") == f"'\\{begun}\\U00000034141'"


def test_an_escape_with_all_its_digits_leaves_the_value_as_it_is():
    for whole in (r"\101", r"\u0041", r"\U00000041", r"\7", r"\n", r"\\0", r"\\\\u00"):
        assert put(f"'{whole}${{X}}'", X="41") == f"'{whole}41'"


def test_two_dollars_stand_for_one_after_a_backslash_too():
    assert put(r"'\$${X}'", X="value") == r"'\${X}'"


def test_a_name_in_backquotes_is_not_a_variable_of_sparks():
    with pytest.raises(ValueError, match="no name of a column"):
        put("`${X}`", X="${env:HOME}")


def test_all_of_a_part_of_sql_may_be_a_value_and_what_is_in_one_has_to_be_plain():
    assert put("${X}", Dialect.SPARK, X="id BIGINT, c STRING") == "id BIGINT, c STRING"
    assert put("id ${X}", Dialect.SPARK, X="BIGINT") == "id BIGINT"
    with pytest.raises(ValueError, match="or all of this text"):
        put("id ${X}", Dialect.SPARK, X="BIGINT, c STRING")
    assert put("c STRING COMMENT '${X}'", Dialect.SPARK, X="it's") == (
        r"c STRING COMMENT 'it\U00000027s'"
    )


def test_quotes_are_doubled_where_the_escapes_of_a_language_are_not_known():
    assert put("c = '${X}'", Dialect.OTHER, X="it's") == "c = 'it''s'"
    for text, value in (("c = '${X}'", "a\\"), ("c = '\\' AND d = '${X}'", "a")):
        with pytest.raises(ValueError, match="a backslash or a line break"):
            put(text, Dialect.OTHER, X=value)


def test_messages_show_the_name_also_of_a_value_that_was_encoded():
    values = Variables({"X": "it's a secret\\"}, {})
    text = substitute_sql("'${X}'", values, Dialect.QUERY)
    assert values.hide(f"near {text}") == "near '${X}'"
    assert has_encoded_literals(text)
    assert not has_encoded_literals(r"'\u0027\U1234'")


def test_a_name_without_a_value_is_told_also_in_a_comment():
    for text in ("${NONE}", "'${NONE}'", "-- ${NONE}", "`${NONE}`"):
        with pytest.raises(ValueError, match="NONE has no value"):
            put(text)


@pytest.mark.long
@pytest.mark.parametrize(
    ("begin", "repeated"),
    [("", "${A:-"), ("'", "${A:-"), ("", "/*"), ("", "--${A"), ("", "r'"), ("", "'\\$")],
)
def test_a_long_text_takes_no_longer_for_each_character(begin, repeated):
    text = begin + repeated * 100_000
    assert put(text) is not None
