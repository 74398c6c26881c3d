"""Connections to the engine in this process. One process owns a data folder."""

import threading

from chdb.state.sqlitelike import connect

from statements import literal

_IDLE_MAX = 16  # of one kind; four times as many of all kinds that have settings


class Pool:
    """Connections by (database, settings): these belong to a connection, and a connection serves one request at a time."""

    def __init__(self, data, config):
        # A server refuses `SELEC`; this engine's own default takes it for an identifier.
        self._address = f"{data}?implicit_select=0" + (f"&config-file={config}" if config else "")
        self._idle, self._lock = {}, threading.Lock()
        self._root = connect(self._address)  # keeps the engine open

    def close(self):
        self._root.close()

    def lend(self, database, settings):
        return Loan(self, (database, tuple(sorted(settings.items()))))

    def take(self, key):
        with self._lock:
            if self._idle.get(key):
                return self._idle[key].pop()
        connection = connect(self._address)
        database, settings = key
        try:
            if database:
                connection.query(f"USE `{database}`")
            if settings:
                connection.query("SET " + ", ".join(f"{name} = {literal(value)}" for name, value in settings))
        except BaseException:
            connection.close()
            raise
        return connection

    def give(self, key, connection, clean):
        with self._lock:
            if clean and self._worth_keeping(key):
                self._idle.setdefault(key, []).append(connection)
                return
        connection.close()

    def _worth_keeping(self, key):
        _, settings = key
        if any(name.startswith("param_") or name == "insert_deduplication_token" for name, _ in settings):
            return False  # used once
        if len(self._idle.get(key, ())) >= _IDLE_MAX:
            return False
        return not settings or sum(map(len, self._idle.values())) < 4 * _IDLE_MAX


class Loan:
    """A connection for the length of a `with`. It goes back to the pool only if `clean` was set: else it may have changed."""

    def __init__(self, pool, key):
        self._pool, self._key, self.clean = pool, key, False

    def __enter__(self):
        self.connection = self._pool.take(self._key)
        return self

    def __exit__(self, *_):
        self._pool.give(self._key, self.connection, self.clean)

    def query(self, sql, output_format, params):
        """The whole answer, and its summary."""
        result = self.connection.query(sql, output_format, params=params or None)
        data = bytes(result.bytes()) if hasattr(result, "bytes") else b""
        counts = {"read_rows": result.rows_read(), "read_bytes": result.bytes_read()} if hasattr(result, "rows_read") else {}
        return data, counts

    def blocks(self, sql, output_format, params):
        """The answer block by block, as the engine makes them."""
        cursor = self.connection.send_query(sql, output_format, params=params or None)
        try:
            for block in cursor:
                yield bytes(block.bytes())
        finally:
            cursor.close()

    def insert(self, statement, input_format, chunks, piece_bytes=1 << 20):
        """Feeds rows to an insert; nothing is stored when `chunks` or the engine fails."""
        insert = self.connection.send_insert(statement, input_format)
        try:
            buffer = bytearray()
            for chunk in chunks:
                buffer += chunk
                if len(buffer) >= piece_bytes:
                    insert.append(bytes(buffer))
                    buffer.clear()
            if buffer:
                insert.append(bytes(buffer))
            return insert.finish()
        except BaseException:
            insert.cancel()
            raise
        finally:
            insert.close()
