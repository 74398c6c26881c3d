#!/usr/bin/env python3
"""ClickHouse's HTTP protocol in front of its engine as a library (chdb-core).

    python front.py --data DIR [--host 127.0.0.1] [--port 8123] [--config FILE.xml]

Requests run in parallel, each on a connection of its own. Not here: users, sessions, the TCP protocol, replication, progress headers.
"""

import argparse
import json
import os
import re
import signal
import socket
import threading
import uuid
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qsl, urlsplit

import statements
from bodies import Encoder, decoded, form_fields, native_blocks
from engine import Pool
from statements import NAMED, STREAMED, Refused

# Names in the query string that are no settings of the engine.
NO_SETTINGS = set(
    "query database default_format query_id user password compress decompress quota_key role enable_http_compression"
    " http_zlib_compression_level send_progress_in_http_headers wait_end_of_query buffer_size session_id session_timeout"
    " session_check client_protocol_version".split()
)
# HTTP status by ClickHouse's error code; 500 for all others.
STATUS = {
    **dict.fromkeys((36, 41, 43, 53, 62, 72, 73, 115, 117, 130, 456, 457), 400),
    **dict.fromkeys((46, 47, 60, 81), 404),
    **dict.fromkeys((159, 160), 408),
    **dict.fromkeys((192, 497), 403),
    **dict.fromkeys((202, 252), 503),
    344: 501,
    516: 401,
}
UNKNOWN_ERROR = 1002
SKIPPED_BODY_MAX = 64 << 20
COMPRESSED_FROM = 1024


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = 1 << 16
    pool = None

    def log_message(self, *_):
        pass

    def do_GET(self):
        self.serve()

    do_POST = do_HEAD = do_PUT = do_GET

    def serve(self):
        self.unread, self.raw = self.command in ("POST", "PUT"), self.body()
        url = urlsplit(self.path)
        if url.path in ("/ping", "/replicas_status") or (url.path == "/" and not url.query and self.command in ("GET", "HEAD")):
            return self.whole(200, b"Ok.\n", {})
        pairs = parse_qsl(url.query, keep_blank_values=True)
        named = {name: value for name, value in pairs if name.startswith("param_") or name in NO_SETTINGS}
        settings = {name: value for name, value in pairs if name not in named}
        self.query_id = named.get("query_id") or str(uuid.uuid4())
        try:
            if url.path != "/":
                raise Refused(36, f"There is no handle {url.path}")
            if "session_id" in named:
                raise Refused(48, "session_id is not served here: every request stands alone")
            self.answer(named, settings)
        except (ConnectionError, socket.timeout):
            self.close_connection = True
        except Exception as error:  # the engine's own come as its class or as RuntimeError
            self.fail(error)

    def answer(self, named, settings):
        sql, chunks = named.get("query", ""), decoded(self.raw, self.headers.get("Content-Encoding"))
        kind = self.headers.get("Content-Type") or ""
        if kind.lower().startswith("multipart/form-data"):
            fields = form_fields(b"".join(chunks), kind)
            sql, chunks = sql + fields.pop("query", ""), iter(())
            named.update(fields)
        if named.get("decompress") == "1":
            chunks = native_blocks(chunks)
        database = named.get("database") or self.headers.get("X-ClickHouse-Database") or ""
        params = {name[len("param_") :]: value for name, value in named.items() if name.startswith("param_")}
        into = statements.insert_into(sql.strip())
        if into:
            return self.insert(into, chunks, database, settings, params)
        sql = (sql.strip() + "\n" + b"".join(chunks).decode()).strip().rstrip(";")
        if not sql:
            raise Refused(62, "Syntax error: empty query")
        if self.command == "GET" and not statements.only_reads(sql):
            raise Refused(164, "Cannot execute query in readonly mode: for a change use POST")
        default = self.headers.get("X-ClickHouse-Format") or named.get("default_format") or "TabSeparated"
        sql, output_format = statements.query_and_format(sql, default)
        streamed = statements.is_select(sql) and output_format.lower() in STREAMED | {NAMED} and named.get("wait_end_of_query") != "1"
        with self.pool.lend(database, settings) as loan:
            if streamed:
                self.stream(loan, sql, output_format, params)
            else:
                self.reply(*loan.query(sql, output_format, params), output_format)
            loan.clean = statements.only_reads(sql) or statements.is_insert(sql)

    def insert(self, into, chunks, database, settings, params):
        statement, input_format = into
        with self.pool.lend(database, {**settings, **{f"param_{name}": value for name, value in params.items()}}) as loan:
            result = loan.insert(statement, input_format, chunks)
            loan.clean = True
        self.reply(b"", {"written_rows": result.rows_written, "written_bytes": result.bytes_written}, input_format)

    def stream(self, loan, sql, output_format, params):
        """Sends blocks as the engine makes them. What fails before the second block is an ordinary error; a later failure is told in
        a tagged block, as ClickHouse does, and the connection is cut: no part passes for the whole."""
        blocks = loan.blocks(sql, output_format, params)
        try:
            first = next(blocks, b"")
            second = next(blocks, None) if first else None
            if second is None:
                blocks.close()
                if not first and output_format.lower() == NAMED:  # an empty result has its head all the same
                    return self.reply(*loan.query(sql, output_format, params), output_format)
                return self.reply(first, {}, output_format)
            head = first[: statements.names_header(first)] if output_format.lower() == NAMED else b""
            self.chunked(first, second, blocks, head, output_format)
        finally:
            blocks.close()

    def chunked(self, first, second, blocks, head, output_format):
        headers, encoder, tag = self.answer_headers(output_format, {}), Encoder.accepted(self.headers.get("Accept-Encoding")), uuid.uuid4().hex[:16]
        if encoder:
            headers["Content-Encoding"] = encoder.name
        self.head(200, {**headers, "Transfer-Encoding": "chunked", "X-ClickHouse-Exception-Tag": tag})
        self.end_headers()
        try:
            self.piece(encoder.piece(first) if encoder else first)
            while second is not None:
                data = second[len(head) :] if head and second.startswith(head) else second
                self.piece(encoder.piece(data) if encoder else data)
                second = next(blocks, None)
            self.piece(encoder.last() if encoder else b"")
            self.wfile.write(b"0\r\n\r\n")
        except (ConnectionError, socket.timeout):
            self.close_connection = True
        except Exception as error:
            text = engine_text(error)[1] + "\n"
            told = f"\r\n__exception__\r\n{tag}\r\n{text}{len(text.encode())} {tag}\r\n__exception__\r\n".encode()
            self.piece(encoder.last(told) if encoder else told)
            self.close_connection = True
        self.wfile.flush()

    def reply(self, data, summary, output_format):
        headers = self.answer_headers(output_format, summary)
        encoder = Encoder.accepted(self.headers.get("Accept-Encoding")) if len(data) > COMPRESSED_FROM else None
        if encoder:
            headers["Content-Encoding"] = encoder.name
            data = encoder.last(data)
        self.whole(200, data, headers)

    def fail(self, error):
        code, text = engine_text(error)
        headers = {"X-ClickHouse-Exception-Code": str(code), "X-ClickHouse-Query-Id": self.query_id, "Content-Type": "text/plain; charset=UTF-8"}
        self.whole(STATUS.get(code, 500), text.encode() + b"\n", headers)

    def answer_headers(self, output_format, summary):
        name = output_format.lower()
        kind = "application/json; charset=UTF-8" if name.startswith("json") else "text/plain; charset=UTF-8"
        return {
            "Content-Type": "application/octet-stream" if "binary" in name or name == "native" else kind,
            "X-ClickHouse-Format": output_format,
            "X-ClickHouse-Query-Id": self.query_id,
            "X-ClickHouse-Server-Display-Name": "meridian-native",
            "X-ClickHouse-Timezone": "UTC",
            "X-ClickHouse-Summary": json.dumps({name: str(value) for name, value in summary.items()}),
        }

    def body(self):
        """The request's body as it comes; a body that is cut short raises, so that nothing of it is stored."""
        if "chunked" in (self.headers.get("Transfer-Encoding") or "").lower():
            yield from self.chunks()
        else:
            left = int(self.headers.get("Content-Length") or 0)
            while left:
                piece = self.rfile.read(min(left, 1 << 20))
                if not piece:
                    raise ConnectionError("body cut short")
                left -= len(piece)
                yield piece
        self.unread = False

    def chunks(self):
        while True:
            line = self.rfile.readline()
            if not line:
                raise ConnectionError("body cut short")
            size = int(line.split(b";")[0], 16)
            if size == 0:
                while self.rfile.readline() not in (b"\r\n", b"\n", b""):
                    pass
                return
            piece = self.rfile.read(size)
            if len(piece) < size:
                raise ConnectionError("body cut short")
            self.rfile.readline()
            yield piece

    def whole(self, code, data, headers):
        if code >= 400 and self.unread:
            headers = {**headers, **self.skip_body()}
        self.head(code, {**headers, "Content-Length": str(len(data))})
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)
        self.wfile.flush()

    def skip_body(self):
        """Reads the rest of the body off, else the client may see a reset and not the error."""
        skipped = 0
        for piece in self.raw:
            skipped += len(piece)
            if skipped > SKIPPED_BODY_MAX:
                break
        if not self.unread:
            return {}
        self.close_connection = True
        return {"Connection": "close"}

    def head(self, code, headers):
        self.send_response(code)
        for name, value in headers.items():
            self.send_header(name, value)

    def piece(self, data):
        if data:
            self.wfile.write(b"%x\r\n" % len(data) + data + b"\r\n")


def engine_text(error):
    """(code, text) of an error, the engine's own where it has them."""
    text = str(error)
    found = re.search(r"Code: (\d+)\.", text)
    if found:
        return int(found.group(1)), text[found.start() :]
    return UNKNOWN_ERROR, f"Code: {UNKNOWN_ERROR}. DB::Exception: {type(error).__name__}: {text}"


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 256
    allow_reuse_address = True


def main():
    parser = argparse.ArgumentParser(description="ClickHouse's HTTP protocol in front of its engine")
    parser.add_argument("--data", required=True)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8123)
    parser.add_argument("--config", help="the engine's configuration file")
    asked = parser.parse_args()
    os.makedirs(asked.data, exist_ok=True)
    Handler.pool = Pool(os.path.abspath(asked.data), os.path.abspath(asked.config) if asked.config else None)
    server = Server((asked.host, asked.port), Handler)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: threading.Thread(target=server.shutdown).start())
    print(f"ready on {asked.host}:{asked.port}", flush=True)
    server.serve_forever()
    Handler.pool.close()
    os._exit(0)


if __name__ == "__main__":
    main()
