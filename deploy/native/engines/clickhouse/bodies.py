"""Bodies of requests and answers: content encodings, ClickHouse's own compressed blocks, multipart forms."""

import re
import struct
import zlib

from statements import Refused

try:
    import lz4.block
    import lz4.frame
except ImportError:
    lz4 = None

_CHECKSUM = 16  # of a native block; it is not verified
_HEAD = 9  # method, packed size (with this head), plain size
_BLOCK_MAX = 1 << 30
_NONE, _LZ4 = 0x02, 0x82


def native_blocks(chunks):
    """Opens ClickHouse's own block framing (`decompress=1`)."""
    buffer = bytearray()
    for chunk in chunks:
        buffer += chunk
        while len(buffer) >= _CHECKSUM + _HEAD:
            method, packed, plain = struct.unpack_from("<BII", buffer, _CHECKSUM)
            if packed < _HEAD or packed > _BLOCK_MAX or plain > _BLOCK_MAX:
                raise Refused(271, "Cannot decompress: bad head of a block")
            end = _CHECKSUM + packed
            if len(buffer) < end:
                break
            data = bytes(buffer[_CHECKSUM + _HEAD : end])
            del buffer[:end]
            if method == _LZ4 and lz4:
                yield lz4.block.decompress(data, uncompressed_size=plain)
            elif method == _NONE:
                yield data
            else:
                raise Refused(432, f"Unknown codec 0x{method:02x}: turn compression off in the client")
    if buffer:
        raise Refused(271, "Cannot decompress: the body ends inside a block")


def decoded(chunks, encoding):
    """Undoes a Content-Encoding."""
    encoding = (encoding or "").lower().strip()
    if encoding in ("", "identity"):
        for chunk in chunks:  # not `yield from`: a request that fails reads the rest of its body off afterwards
            yield chunk
    elif encoding in ("gzip", "deflate"):
        yield from _inflated(chunks, 47 if encoding == "gzip" else 15)
    elif encoding == "lz4" and lz4:
        frames = lz4.frame.LZ4FrameDecompressor()
        for chunk in chunks:
            yield frames.decompress(chunk)
    else:
        raise Refused(48, f"Content-Encoding {encoding} is not served here")


def _inflated(chunks, window_bits):
    inflate = zlib.decompressobj(window_bits)
    for chunk in chunks:
        yield inflate.decompress(chunk)
    yield inflate.flush()


class Encoder:
    """Compresses one answer, at the fastest level: the peer is on the same host."""

    def __init__(self, name, begin, compress, finish):
        self.name, self._begin, self.compress, self._finish = name, begin, compress, finish

    @staticmethod
    def accepted(accept):
        """The encoder for an Accept-Encoding, or None."""
        names = {part.split(";")[0].strip().lower() for part in (accept or "").split(",")}
        if "lz4" in names and lz4:
            frames = lz4.frame.LZ4FrameCompressor(auto_flush=True)
            return Encoder("lz4", frames.begin, frames.compress, frames.flush)
        if "gzip" in names:
            deflate = zlib.compressobj(1, zlib.DEFLATED, 31)
            return Encoder("gzip", bytes, deflate.compress, deflate.flush)
        return None

    def piece(self, data):
        begin, self._begin = self._begin, bytes
        return begin() + self.compress(data)

    def last(self, data=b""):
        return self.piece(data) + self._finish()


def form_fields(body, content_type):
    """The fields of multipart/form-data: the statement in `query`, parameters in `param_*`, byte for byte."""
    boundary = re.search(r'boundary="?([^";]+)"?', content_type)
    if not boundary:
        raise Refused(36, "multipart body without a boundary")
    mark, fields = b"\r\n--" + boundary.group(1).encode(), {}
    for part in (b"\r\n" + body).split(mark)[1:]:
        if part.startswith(b"--"):
            break
        head, _, value = part.partition(b"\r\n\r\n")
        name = re.search(rb'name="([^"]*)"', head)
        if not name:
            raise Refused(36, "multipart field without a name")
        if b"filename=" in head:
            raise Refused(48, "external tables are not served here")
        fields[name.group(1).decode()] = value.decode()
    return fields
