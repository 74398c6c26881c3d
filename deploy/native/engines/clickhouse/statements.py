"""What a statement is, as far as the front must know: an insert with its rows in the body, something that only reads, and its format."""

import re

_COMMENTS = r"^(?:\s|--[^\n]*\n|/\*.*?\*/)*"
_INSERT = re.compile(_COMMENTS + r"INSERT\s+INTO\b", re.I | re.S)
_READS = re.compile(_COMMENTS + r"\(*\s*(SELECT|WITH|SHOW|DESCRIBE|DESC|EXISTS|EXPLAIN|CHECK)\b", re.I | re.S)
_SELECT = re.compile(_COMMENTS + r"\(*\s*(SELECT|WITH)\b", re.I | re.S)
_FORMAT_AT_END = re.compile(r"\bFORMAT\s+([A-Za-z0-9_]+)\s*;?\s*$", re.I)
_VALUES_AT_END = re.compile(r"\bVALUES\s*;?\s*$", re.I)

# Formats whose blocks can follow one another as the engine makes them. Others have a head or a foot in every block.
STREAMED = {
    name.lower()
    for name in (
        "RowBinary JSONEachRow JSONCompactEachRow JSONLines NDJSON TabSeparated TSV TabSeparatedRaw TSVRaw CSV Native"
        " JSONStringsEachRow LineAsString RawBLOB"
    ).split()
}
# Streamed too, its head kept once.
NAMED = "rowbinarywithnamesandtypes"


class Refused(Exception):
    """A request that cannot be served: ClickHouse's code for it, and a text."""

    def __init__(self, code, text):
        super().__init__(f"Code: {code}. DB::Exception: {text}")


def only_reads(sql):
    return bool(_READS.match(sql))


def is_insert(sql):
    return bool(_INSERT.match(sql))


def is_select(sql):
    return bool(_SELECT.match(sql))


def insert_into(sql):
    """(statement, format) when the rows are in the body, else None."""
    if not is_insert(sql):
        return None
    found = _FORMAT_AT_END.search(sql)
    if found:
        return sql[: found.start()].rstrip(), found.group(1)
    found = _VALUES_AT_END.search(sql)
    return (sql[: found.start()].rstrip(), "Values") if found else None


def query_and_format(sql, default):
    """The statement without its FORMAT clause, and the format."""
    found = None if is_insert(sql) else _FORMAT_AT_END.search(sql)
    return (sql[: found.start()], found.group(1)) if found else (sql, default)


def literal(value):
    return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"


def names_header(chunk):
    """Length of the head of RowBinaryWithNamesAndTypes: a count, then so many names and so many types."""

    def varint(at):
        value = shift = 0
        while True:
            byte = chunk[at]
            value |= (byte & 127) << shift
            at, shift = at + 1, shift + 7
            if byte < 128:
                return value, at

    count, at = varint(0)
    for _ in range(2 * count):
        size, at = varint(at)
        at += size
    return at
