#!/usr/bin/env python3
"""Conformance checks for an arklet: the HTTP operations API of a Koupleless base.

The checks talk to a running arklet over raw sockets and judge what comes back on the wire. That can be a real base,
or `arklet-simulator` of this crate, which must behave alike (`cargo test -p harness --test conformance` runs them
against it). They were fitted to arklet-core 1.4.2 on sofa-ark 2.2.16, which passes all of them.

    arklet_conformance.py --url http://127.0.0.1:1238                 every check that needs no extra set-up
    arklet_conformance.py --url ... --optional                        also the slow ones and the timing ones
    arklet_conformance.py --url ... --only 'async_*' --json           some checks, as JSON
    arklet_conformance.py --list                                      names and meanings, runs nothing

MODULES. The checks install module jars with fixed file names and identities:

{catalogue}

Without --modules the script makes these jars itself, in memory, from small class files kept in its own text
(no Java needed), and serves them at http://SERVE_ADDRESS/modules/FILE. With --modules DIR it serves the files of
that folder under the same names. With --modules http://HOST:PORT/PREFIX it serves none and names
PREFIX/FILE to the base. `--write-modules DIR` writes the jars into a folder and stops.

FOR THE SIMULATOR. It cannot run class files, and finds what main would do in the jar's manifest, in the
attribute `Conformance-Main`, which a real arklet ignores:
    returns   main returns at once
    throws    main throws java.lang.IllegalStateException; its text is TEXT of the install argument
              --fail-with=TEXT, else `{default_failure}`
    sleeps    main sleeps N ms of the install argument --sleep-millis=N, else 8000
    leaks     main loads as many classes as the attribute `Conformance-Classes` says and leaves a thread behind
    absent    the main class is not in the jar: java.lang.ClassNotFoundException: conformance.Absent

BASE SETTINGS. The base must be otherwise unused, and be able to reach SERVE_ADDRESS. Say --multi-active if it runs
with sofa.ark.activate.multi.biz.version.enable=true and --keep-broken if it runs with
sofa.ark.auto.uninstall.when.failed.enable=false. Every check first uninstalls the modules of this suite
(their names begin with `conformance-`); modules of other names are left alone.
"""

import argparse
import base64
import fnmatch
import http.server
import io
import json
import os
import socket
import socketserver
import subprocess
import sys
import tempfile
import threading
import time
import urllib.parse
import uuid
import zipfile

# ---------------------------------------------------------------------------------------------------------------
# Module jars

DEFAULT_FAILURE = "conformance module failed on purpose"
LEAKED_CLASSES = 300

# Java 8 class files of package `conformance`, compiled without debug information. Returns, Throws, Sleeps and Leaks
# have a main as described above; Filler0000 is an empty-handed class that the leaking module carries many copies of.
CLASS_FILES = {
    "Returns": (
        "yv66vgAAADQADAoAAgADBwAEDAAFAAYBABBqYXZhL2xhbmcvT2JqZWN0AQAGPGluaXQ+AQADKClWBwAIAQATY29uZm9ybWFuY2Uv"
        "UmV0dXJucwEABENvZGUBAARtYWluAQAWKFtMamF2YS9sYW5nL1N0cmluZzspVgAhAAcAAgAAAAAAAgABAAUABgABAAkAAAARAAEA"
        "AQAAAAUqtwABsQAAAAAACQAKAAsAAQAJAAAADQAAAAEAAAABsQAAAAAAAA=="
    ),
    "Throws": (
        "yv66vgAAADQAJgoAAgADBwAEDAAFAAYBABBqYXZhL2xhbmcvT2JqZWN0AQAGPGluaXQ+AQADKClWCAAIAQAkY29uZm9ybWFuY2Ug"
        "bW9kdWxlIGZhaWxlZCBvbiBwdXJwb3NlCAAKAQAMLS1mYWlsLXdpdGg9CgAMAA0HAA4MAA8AEAEAEGphdmEvbGFuZy9TdHJpbmcB"
        "AApzdGFydHNXaXRoAQAVKExqYXZhL2xhbmcvU3RyaW5nOylaCgAMABIMABMAFAEABmxlbmd0aAEAAygpSQoADAAWDAAXABgBAAlz"
        "dWJzdHJpbmcBABUoSSlMamF2YS9sYW5nL1N0cmluZzsHABoBAB9qYXZhL2xhbmcvSWxsZWdhbFN0YXRlRXhjZXB0aW9uCgAZABwM"
        "AAUAHQEAFShMamF2YS9sYW5nL1N0cmluZzspVgcAHwEAEmNvbmZvcm1hbmNlL1Rocm93cwEABENvZGUBAARtYWluAQAWKFtMamF2"
        "YS9sYW5nL1N0cmluZzspVgEADVN0YWNrTWFwVGFibGUHACUBABNbTGphdmEvbGFuZy9TdHJpbmc7ACEAHgACAAAAAAACAAEABQAG"
        "AAEAIAAAABEAAQABAAAABSq3AAGxAAAAAAAJACEAIgABACAAAABlAAMABgAAADsSB0wqTSy+PgM2BBUEHaIAJCwVBDI6BRkFEgm2"
        "AAuZAA4ZBRIJtgARtgAVTIQEAaf/3LsAGVkrtwAbvwAAAAEAIwAAABgAA/8ACwAFBwAkBwAMBwAkAQEAACD4AAUAAA=="
    ),
    "Sleeps": (
        "yv66vgAAADQAOgoAAgADBwAEDAAFAAYBABBqYXZhL2xhbmcvT2JqZWN0AQAGPGluaXQ+AQADKClWCAAIAQAYY29uZm9ybWFuY2Uu"
        "c2xlZXAubWlsbGlzBQAAAAAAAB9ACgAMAA0HAA4MAA8AEAEADmphdmEvbGFuZy9Mb25nAQAHZ2V0TG9uZwEAJShMamF2YS9sYW5n"
        "L1N0cmluZztKKUxqYXZhL2xhbmcvTG9uZzsKAAwAEgwAEwAUAQAJbG9uZ1ZhbHVlAQADKClKCAAWAQAPLS1zbGVlcC1taWxsaXM9"
        "CgAYABkHABoMABsAHAEAEGphdmEvbGFuZy9TdHJpbmcBAApzdGFydHNXaXRoAQAVKExqYXZhL2xhbmcvU3RyaW5nOylaCgAYAB4M"
        "AB8AIAEABmxlbmd0aAEAAygpSQoAGAAiDAAjACQBAAlzdWJzdHJpbmcBABUoSSlMamF2YS9sYW5nL1N0cmluZzsKAAwAJgwAJwAo"
        "AQAJcGFyc2VMb25nAQAVKExqYXZhL2xhbmcvU3RyaW5nOylKCgAqACsHACwMAC0ALgEAEGphdmEvbGFuZy9UaHJlYWQBAAVzbGVl"
        "cAEABChKKVYHADABABJjb25mb3JtYW5jZS9TbGVlcHMBAARDb2RlAQAEbWFpbgEAFihbTGphdmEvbGFuZy9TdHJpbmc7KVYBAA1T"
        "dGFja01hcFRhYmxlBwA2AQATW0xqYXZhL2xhbmcvU3RyaW5nOwEACkV4Y2VwdGlvbnMHADkBAB5qYXZhL2xhbmcvSW50ZXJydXB0"
        "ZWRFeGNlcHRpb24AIQAvAAIAAAAAAAIAAQAFAAYAAQAxAAAAEQABAAEAAAAFKrcAAbEAAAAAAAkAMgAzAAIAMQAAAG0AAwAHAAAA"
        "RRIHFAAJuAALtgARQCpOLb42BAM2BRUFFQSiACctFQUyOgYZBhIVtgAXmQARGQYSFbYAHbYAIbgAJUCEBQGn/9gfuAApsQAAAAEA"
        "NAAAABYAA/8AFQAFBwA1BAcANQEBAAAk+AAFADcAAAAEAAEAOAAA"
    ),
    "Leaks": (
        "yv66vgAAADQASAoAAgADBwAEDAAFAAYBABBqYXZhL2xhbmcvT2JqZWN0AQAGPGluaXQ+AQADKClWBwAIAQAXamF2YS9sYW5nL1N0"
        "cmluZ0J1aWxkZXIKAAcAAwgACwEAEmNvbmZvcm1hbmNlLkZpbGxlcgoABwANDAAOAA8BAAZhcHBlbmQBAC0oTGphdmEvbGFuZy9T"
        "dHJpbmc7KUxqYXZhL2xhbmcvU3RyaW5nQnVpbGRlcjsKABEAEgcAEwwAFAAVAQARamF2YS9sYW5nL0ludGVnZXIBAAh0b1N0cmlu"
        "ZwEAFShJKUxqYXZhL2xhbmcvU3RyaW5nOwoAFwAYBwAZDAAaABUBABBqYXZhL2xhbmcvU3RyaW5nAQAJc3Vic3RyaW5nCgAHABwM"
        "ABQAHQEAFCgpTGphdmEvbGFuZy9TdHJpbmc7CgAfACAHACEMACIAIwEAD2phdmEvbGFuZy9DbGFzcwEAB2Zvck5hbWUBACUoTGph"
        "dmEvbGFuZy9TdHJpbmc7KUxqYXZhL2xhbmcvQ2xhc3M7BwAlAQAgamF2YS9sYW5nL0NsYXNzTm90Rm91bmRFeGNlcHRpb24HACcB"
        "ABBqYXZhL2xhbmcvVGhyZWFkBwApAQARY29uZm9ybWFuY2UvTGVha3MKACgAAwgALAEAEGNvbmZvcm1hbmNlLWxlYWsKACYALgwA"
        "BQAvAQApKExqYXZhL2xhbmcvUnVubmFibGU7TGphdmEvbGFuZy9TdHJpbmc7KVYKACYAMQwAMgAzAQAJc2V0RGFlbW9uAQAEKFop"
        "VgoAJgA1DAA2AAYBAAVzdGFydAcAOAEADmphdmEvbGFuZy9Mb25nBX//////////CgAmADwMAD0APgEABXNsZWVwAQAEKEopVgcA"
        "QAEAHmphdmEvbGFuZy9JbnRlcnJ1cHRlZEV4Y2VwdGlvbgcAQgEAEmphdmEvbGFuZy9SdW5uYWJsZQEABENvZGUBAARtYWluAQAW"
        "KFtMamF2YS9sYW5nL1N0cmluZzspVgEADVN0YWNrTWFwVGFibGUBAANydW4AIQAoAAIAAQBBAAAAAwABAAUABgABAEMAAAARAAEA"
        "AQAAAAUqtwABsQAAAAAACQBEAEUAAQBDAAAAagAEAAQAAABGAzy7AAdZtwAJEgq2AAwRJxAbYLgAEAS2ABa2AAy2ABu4AB5XhAEB"
        "p//bTbsAJlm7AChZtwAqEiu3AC1OLQS2ADAttgA0sQABAAIAKgAqACQAAQBGAAAACgAC/AACAWcHACQAAQBHAAYAAQBDAAAALQAC"
        "AAIAAAAMFAA5uAA7pwAFTLGxAAEAAAAGAAkAPwABAEYAAAAHAAJJBwA/AQAA"
    ),
    "Filler0000": (
        "yv66vgAAADQAHwoAAgADBwAEDAAFAAYBABBqYXZhL2xhbmcvT2JqZWN0AQAGPGluaXQ+AQADKClWCQAIAAkHAAoMAAsADAEAFmNv"
        "bmZvcm1hbmNlL0ZpbGxlcjAwMDABAAVmaXJzdAEAAUoJAAgADgwADwAMAQAGc2Vjb25kCQAIABEMABIADAEABXRoaXJkCgAIABQM"
        "ABUAFgEABXRocmVlAQAEKEopSgoACAAYDAAZABYBAAN0d28KAAgAGwwAHAAWAQADb25lAQAEQ29kZQEABGZvdXIAIQAIAAIAAAAD"
        "AAAACwAMAAAAAAAPAAwAAAAAABIADAAAAAUAAQAFAAYAAQAdAAAAEQABAAEAAAAFKrcAAbEAAAAAAAAAHAAWAAEAHQAAABMABAAD"
        "AAAABx8qtAAHYa0AAAAAAAAAGQAWAAEAHQAAABMABAADAAAABx8qtAANZa0AAAAAAAAAFQAWAAEAHQAAABMABAADAAAABx8qtAAQ"
        "aa0AAAAAAAAAHgAWAAEAHQAAABoABQADAAAADioqKh+2ABO2ABe2ABqtAAAAAAAA"
    ),
}


class Module:
    """One module jar: its file name, the identity in its manifest, and what is in it."""

    def __init__(self, file, name, version, main, priority=None, context_path=None, note=""):
        self.file = file
        self.name = name
        self.version = version
        self.main = main
        self.priority = priority
        self.context_path = context_path
        self.note = note

    def manifest(self):
        main_class = None if self.main is None else "conformance." + self.main.capitalize()
        attributes = [
            ("Manifest-Version", "1.0"),
            ("Ark-Biz-Name", self.name),
            ("Ark-Biz-Version", self.version),
            ("Main-Class", main_class),
            ("priority", self.priority),
            ("web-context-path", self.context_path),
            ("Conformance-Main", self.main),
            ("Conformance-Classes", LEAKED_CLASSES if self.main == "leaks" else None),
        ]
        lines = ["%s: %s\r\n" % (key, value) for key, value in attributes if value is not None]
        return "".join(lines) + "\r\n"

    def class_files(self):
        if self.main in (None, "absent"):
            return {}
        name = self.main.capitalize()
        files = {name: base64.b64decode(CLASS_FILES[name])}
        if self.main == "leaks":
            filler = base64.b64decode(CLASS_FILES["Filler0000"])
            for number in range(LEAKED_CLASSES):
                # The new name is as long as the old one, so the class file stays well formed.
                name = "Filler%04d" % number
                files[name] = filler.replace(b"Filler0000", name.encode())
        return files

    def jar(self):
        data = io.BytesIO()
        with zipfile.ZipFile(data, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("META-INF/MANIFEST.MF", self.manifest())
            archive.writestr("com/alipay/sofa/ark/biz/mark", "")
            for name, content in self.class_files().items():
                archive.writestr("conformance/%s.class" % name, content)
        return data.getvalue()


MODULES = [
    Module("ok-1.jar", "conformance-ok", "1.0.0", "returns", context_path="ok"),
    Module("ok-2.jar", "conformance-ok", "2.0.0", "returns"),
    Module("other-1.jar", "conformance-other", "1.0.0", "returns"),
    Module("throws-1.jar", "conformance-throws", "1.0.0", "throws"),
    Module("slow-1.jar", "conformance-slow", "1.0.0", "sleeps", priority=50),
    Module("slow-2.jar", "conformance-slow", "2.0.0", "sleeps", priority=50),
    Module("leaky-1.jar", "conformance-leaky", "1.0.0", "leaks"),
    Module("absent-class.jar", "conformance-absent", "1.0.0", "absent"),
    Module("wrong-identity.jar", "conformance-actual", "3.1.4", "returns",
           note="requested as conformance-claimed:1.0.0"),
    Module("no-name.jar", None, "1.0.0", "returns", note="no Ark-Biz-Name"),
    Module("no-version.jar", "conformance-noversion", None, "returns", note="no Ark-Biz-Version"),
    Module("no-main.jar", "conformance-nomain", "1.0.0", None, note="no Main-Class"),
]
OK_1, OK_2, OTHER, THROWS, SLOW_1, SLOW_2, LEAKY, ABSENT, WRONG, NO_NAME, NO_VERSION, NO_MAIN = MODULES
BROKEN_FILES = {
    "truncated.jar": "the first half of ok-1.jar",
    "not-a-zip.jar": "a few lines of text",
    "no-manifest.jar": "a jar without META-INF/MANIFEST.MF",
}


def module_files():
    """Every file that the checks can ask for, by name."""
    files = {module.file: module.jar() for module in MODULES}
    whole = files[OK_1.file]
    files["truncated.jar"] = whole[: len(whole) // 2]
    files["not-a-zip.jar"] = b"this is text, not a jar\n" * 20
    bare = io.BytesIO()
    with zipfile.ZipFile(bare, "w") as archive:
        archive.writestr("conformance/Returns.class", base64.b64decode(CLASS_FILES["Returns"]))
    files["no-manifest.jar"] = bare.getvalue()
    return files


def catalogue_text():
    rows = []
    for module in MODULES:
        identity = "%s:%s" % (module.name or "-", module.version or "-")
        extra = [] if module.priority is None else ["priority %s" % module.priority]
        extra += [module.note] if module.note else []
        rows.append("    %-19s %-29s %-8s %s" % (module.file, identity, module.main or "-", ", ".join(extra)))
    for file, note in BROKEN_FILES.items():
        rows.append("    %-19s %s" % (file, note))
    return "\n".join(row.rstrip() for row in rows)


class ModuleServer:
    """Serves module jars, and the awkward answers that some checks need, to the base.

    /modules/FILE        the jar              /status/CODE/ANY     an error status
    /redirect/FILE       302 to /modules/FILE /hang/ANY            no answer until release() is called, then 503
    """

    def __init__(self, address, files):
        self.hits = []
        self.files = files
        self._lock = threading.Lock()
        self._released = threading.Event()
        owner = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def log_message(self, *_):
                pass

            def do_GET(self):
                owner._answer(self)

        class Server(socketserver.ThreadingMixIn, http.server.HTTPServer):
            daemon_threads = True
            request_queue_size = 64

        self._server = Server(address, Handler)
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        self.root = "http://%s:%d" % (address[0], self._server.server_address[1])

    def _answer(self, request):
        path = urllib.parse.urlsplit(request.path).path
        with self._lock:
            self.hits.append((path, request.headers.get("Authorization")))
        kind, _, rest = path.lstrip("/").partition("/")
        if kind == "redirect":
            request.send_response(302)
            request.send_header("Location", "/modules/" + rest)
            request.end_headers()
        elif kind == "status":
            request.send_error(int(rest.partition("/")[0]))
        elif kind == "hang":
            self._released.wait(60)
            request.send_error(503)
        elif kind == "modules" and rest in self.files:
            content = self.files[rest]
            request.send_response(200)
            request.send_header("Content-Type", "application/java-archive")
            request.send_header("Content-Length", str(len(content)))
            request.end_headers()
            request.wfile.write(content)
        else:
            request.send_error(404)

    def hit_count(self, path):
        with self._lock:
            return sum(1 for hit, _ in self.hits if hit == path)

    def hold(self):
        self._released.clear()

    def release(self):
        self._released.set()


# ---------------------------------------------------------------------------------------------------------------
# The wire

class Failed(Exception):
    """A check found something other than it expects."""


class Skipped(Exception):
    """A check cannot run in this set-up."""


class Reply:
    """What came back on one connection: the raw bytes, and whether the peer closed."""

    def __init__(self, raw, closed, seconds):
        self.raw = raw
        self.closed = closed
        self.seconds = seconds
        head, separator, self.body = raw.partition(b"\r\n\r\n")
        lines = head.decode("latin-1").split("\r\n")
        self.complete_head = bool(separator)
        self.status_line = lines[0]
        words = lines[0].split(" ", 2)
        self.status = int(words[1]) if len(words) > 1 and words[1].isdigit() else None
        self.headers = [tuple(part.strip() for part in line.split(":", 1)) for line in lines[1:] if line]

    def header(self, name):
        return next((value for key, value in self.headers if key.lower() == name.lower()), None)

    def __str__(self):
        if not self.raw:
            return "no byte in %.1f s, %s" % (self.seconds, "closed" if self.closed else "still open")
        return shorten(self.raw.decode("utf-8", "replace"), 300)


class Connection:
    """One TCP connection to the arklet."""

    def __init__(self, address, timeout):
        self.socket = socket.create_connection(address, timeout=timeout)

    def send(self, data):
        try:
            self.socket.sendall(data)
        except (BrokenPipeError, ConnectionResetError):
            pass  # the peer may answer and close before it has read everything

    def read(self, wait, enough=None):
        """Reads until the peer closes, `enough(bytes)` is true, or `wait` seconds are over."""
        begin = time.monotonic()
        data = b""
        closed = False
        while not (enough and enough(data)):
            left = begin + wait - time.monotonic()
            if left <= 0:
                break
            self.socket.settimeout(left)
            try:
                part = self.socket.recv(65536)
            except socket.timeout:
                break
            except ConnectionResetError:
                closed = True
                break
            if not part:
                closed = True
                break
            data += part
        return Reply(data, closed, time.monotonic() - begin)

    def close(self):
        self.socket.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


def request_bytes(path, body=b"{}", method="POST", version="HTTP/1.1", headers=(), length=True):
    lines = ["%s %s %s" % (method, path, version), "Host: arklet"]
    lines += ["%s: %s" % header for header in headers]
    if length:
        lines.append("Content-Length: %d" % len(body))
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def padded_body(size):
    """A JSON object of exactly `size` bytes."""
    head, tail = b'{"pad":"', b'"}'
    return head + b"x" * (size - len(head) - len(tail)) + tail


class Answer:
    """A JSON reply: the outer code and message, and what is inside `data`."""

    def __init__(self, reply):
        self.reply = reply
        if not reply.raw:
            raise Failed("no reply: %s" % reply)
        if not reply.closed:
            raise Failed("the connection stays open after the reply: %s" % reply)
        try:
            self.json = json.loads(reply.body.decode("utf-8"))
        except ValueError:
            raise Failed("the reply is not JSON: %s" % reply)
        if not isinstance(self.json, dict):
            raise Failed("the reply is not a JSON object: %s" % reply)
        self.code = self.json.get("code")
        self.message = self.json.get("message")
        self.data = self.json.get("data")
        self.stack = self.json.get("errorStackTrace")

    @property
    def inner(self):
        return self.data.get("code") if isinstance(self.data, dict) else None

    @property
    def inner_message(self):
        return self.data.get("message") if isinstance(self.data, dict) else None

    def root_cause(self):
        causes = [line for line in (self.stack or "").split("\n") if line.startswith("Caused by: ")]
        return causes[-1] if causes else ""

    def __str__(self):
        return shorten(json.dumps(self.json, ensure_ascii=False), 400)


class Background:
    """A call that runs in a thread of its own."""

    def __init__(self, function, *arguments, **named):
        self._result = None
        self._error = None

        def run():
            try:
                self._result = function(*arguments, **named)
            except Exception as error:  # handed over to whoever asks for the result
                self._error = error

        self._thread = threading.Thread(target=run, daemon=True)
        self._thread.start()

    def running(self):
        return self._thread.is_alive()

    def result(self, wait):
        self._thread.join(wait)
        if self._thread.is_alive():
            raise Failed("a call that ran in the background did not end within %d s" % wait)
        if self._error:
            raise self._error
        return self._result


class Target:
    """The arklet under test, with what the checks need to drive it."""

    def __init__(self, url, server, prefix, options):
        parts = urllib.parse.urlsplit(url)
        self.address = (parts.hostname, parts.port or 1238)
        self.server = server
        self.prefix = prefix
        self.timeout = options.timeout
        self.silence = options.silence
        self.multi_active = options.multi_active
        self.keep_broken = options.keep_broken
        self.restart_command = options.restart_command

    # requests

    def connect(self):
        return Connection(self.address, self.timeout)

    def exchange(self, data, wait=None):
        with self.connect() as connection:
            connection.send(data)
            return connection.read(wait or self.timeout)

    def call(self, command, body=None, wait=None):
        text = json.dumps({} if body is None else body).encode()
        return Answer(self.exchange(request_bytes("/" + command, text), wait))

    def install(self, module, wait=None, **fields):
        return self.call("installBiz", self.install_input(module, **fields), wait)

    def install_input(self, module, **fields):
        request = {"bizName": module.name or "conformance-unnamed", "bizVersion": module.version or "1.0.0",
                   "bizUrl": self.module_url(module.file)}
        request.update(fields)
        return {key: value for key, value in request.items() if value is not None}

    def uninstall(self, name, version):
        return self.call("uninstallBiz", {"bizName": name, "bizVersion": version})

    def switch(self, name, version):
        return self.call("switchBiz", {"bizName": name, "bizVersion": version})

    def health(self, **fields):
        answer = self.call("health", fields)
        expect(answer.code, "SUCCESS", "outer code of health", answer)
        return answer.data["healthData"]

    def operation(self, request_id):
        answer = self.call("queryBizOps", {"requestId": request_id})
        expect(answer.code, "SUCCESS", "outer code of queryBizOps", answer)
        return answer.data

    # modules

    def module_url(self, file):
        return self.prefix + "/" + file

    def served(self, path):
        """An address on the suite's own server, for checks that need its awkward answers or its counts."""
        if self.server is None:
            raise Skipped("needs the suite's own server")
        return self.server.root + path

    def listed(self):
        answer = self.call("queryAllBiz")
        expect(answer.code, "SUCCESS", "outer code of queryAllBiz", answer)
        return answer.data

    def biz(self, module):
        found = [item for item in self.listed()
                 if (item["bizName"], item["bizVersion"]) == (module.name, module.version)]
        return found[0] if found else None

    def state(self, module):
        item = self.biz(module)
        return item and item["bizState"]

    def must_install(self, module, **fields):
        answer = self.install(module, **fields)
        expect((answer.code, answer.inner), ("SUCCESS", "SUCCESS"), "codes of the install", answer)
        return answer.data["bizInfos"][0]

    def reset(self):
        """Uninstalls the suite's own modules; waits for those that still start."""
        end = time.monotonic() + 30
        while True:
            own = [item for item in self.listed() if item["bizName"].startswith("conformance-")]
            for item in own:
                if item["bizState"] != "resolved":
                    self.uninstall(item["bizName"], item["bizVersion"])
            if not own:
                return
            if time.monotonic() > end:
                raise Failed("cannot clean up: %s" % shorten(json.dumps(own), 300))
            time.sleep(0.1)

    def wait_for(self, condition, what, wait=10):
        end = time.monotonic() + wait
        while True:
            value = condition()
            if value:
                return value
            if time.monotonic() > end:
                raise Failed("not within %d s: %s" % (wait, what))
            time.sleep(0.05)

    def wait_finished(self, request_id, wait=20):
        """The record of an async operation once it has an end time."""
        return self.wait_for(lambda: finished(self.operation(request_id)), "operation %s ends" % request_id, wait)

    def start_slow_async(self, module, millis):
        """Starts a slow module in the background of the base, which keeps the HTTP workers free."""
        request_id = new_request_id()
        answer = self.install(module, args=["--sleep-millis=%d" % millis], requestId=request_id, **{"async": True})
        expect(answer.code, "SUCCESS", "outer code of the async install", answer)
        self.wait_for(lambda: self.state(module) == "resolved", "%s is listed as resolved" % module.name)
        return request_id


def finished(record):
    return record if record.get("endTimestamp") else None


def new_request_id():
    return "conformance-" + uuid.uuid4().hex


def shorten(text, limit):
    text = " ".join(str(text).split())
    return text if len(text) <= limit else text[: limit - 3] + "..."


def expect(actual, wanted, what, shown=None):
    if actual != wanted:
        raise Failed("%s: expected %r, got %r%s" % (what, wanted, actual, "" if shown is None else " in " + str(shown)))


def expect_in(part, text, what, shown=None):
    if text is None or part not in text:
        raise Failed("%s: expected %r in %s" % (what, part, shorten(shown if shown is not None else text, 400)))


def expect_true(condition, what, shown=""):
    if not condition:
        raise Failed("%s%s" % (what, " in " + shorten(shown, 400) if shown != "" else ""))


def expect_internal_error(answer, part):
    expect(answer.code, "CMD_PROCESS_INTERNAL_ERROR", "outer code", answer)
    expect_true((answer.message or "").startswith("Internal Error: "), "message begins with 'Internal Error: '", answer)
    expect_in(part, answer.message, "message", answer)


# ---------------------------------------------------------------------------------------------------------------
# The checks. A check is a function; its first docstring line is its meaning.

CHECKS = []


def check(function=None, optional=None):
    """Registers a check; `optional` says why it only runs when asked for."""
    if function is None:
        return lambda wrapped: check(wrapped, optional)
    function.optional = optional
    CHECKS.append(function)
    return function


# ---- transport

@check
def reply_has_no_headers(arklet):
    """A successful reply is the status line `HTTP/1.1 200 OK`, no header at all, and a JSON object."""
    reply = arklet.exchange(request_bytes("/help"))
    expect_true(reply.raw.startswith(b"HTTP/1.1 200 OK\r\n\r\n{"), "raw reply without headers", reply)


@check
def reply_ends_with_close(arklet):
    """The server closes after one reply, also for HTTP/1.0 and when asked to keep the connection."""
    for version, headers in (("HTTP/1.1", ()), ("HTTP/1.1", [("Connection", "keep-alive")]), ("HTTP/1.0", ())):
        reply = arklet.exchange(request_bytes("/help", version=version, headers=headers), 5)
        expect_true(reply.closed, "closed after a reply to %s %s" % (version, headers), reply)
        expect_true(reply.raw.startswith(b"HTTP/1.1 200 OK\r\n\r\n{"), "reply to %s" % version, reply)


@check
def one_reply_per_connection(arklet):
    """Of two requests sent at once on one connection only the first is answered, then the server closes."""
    reply = arklet.exchange(request_bytes("/queryAllBiz") + request_bytes("/help"), 5)
    expect_true(reply.closed, "closed", reply)
    expect(reply.raw.count(b"HTTP/1.1 "), 1, "number of replies", reply)
    expect(Answer(reply).data, [], "data of the one reply, which is queryAllBiz's")


@check(optional="clients do not pipeline")
def unanswered_request_is_still_carried_out(arklet):
    """The second of two requests sent at once is carried out, although it never gets its reply."""
    second = json.dumps(arklet.install_input(OK_1)).encode()
    reply = arklet.exchange(request_bytes("/queryAllBiz") + request_bytes("/installBiz", second), 5)
    expect(reply.raw.count(b"HTTP/1.1 "), 1, "number of replies", reply)
    arklet.wait_for(lambda: arklet.state(OK_1) == "activated", "the module of the second request is installed")


@check
def non_post_is_500(arklet):
    """GET, PUT, DELETE and HEAD give HTTP 500, a plain text, the odd header Content_Length, and a close."""
    for method in ("GET", "PUT", "DELETE", "HEAD"):
        reply = arklet.exchange(request_bytes("/help", b"", method), 5)
        expect(reply.status, 500, "status for " + method, reply)
        expect(reply.body, b"POST http request only supported by arklet", "body for " + method)
        expect(reply.headers, [("Content_Length", "42")], "headers for " + method)
        expect_true(reply.closed, "closed after " + method)


@check
def failures_are_http_200(arklet):
    """Unknown commands, validation errors, refusals and failed installs come with HTTP 200 and no header."""
    failing = json.dumps(arklet.install_input(THROWS)).encode()
    unreachable = json.dumps(arklet.install_input(OK_1, bizUrl="http://127.0.0.1:1/x.jar")).encode()
    requests = (("/noSuchCommand", b"{}"), ("/installBiz", b"{}"), ("/installBiz", failing),
                ("/installBiz", unreachable), ("/uninstallBiz", b'{"bizName":"conformance-none","bizVersion":"1"}'))
    for path, body in requests:
        reply = arklet.exchange(request_bytes(path, body))
        expect_true(reply.raw.startswith(b"HTTP/1.1 200 OK\r\n\r\n{"), "reply of " + path, reply)
        expect_true(reply.closed, "closed", reply)


@check
def unknown_command(arklet):
    """An unknown command gives exactly code CMD_NOT_FOUND and message `please follow the doc`, nothing else."""
    wanted = {"code": "CMD_NOT_FOUND", "message": "please follow the doc"}
    expect(arklet.call("noSuchCommand").json, wanted, "reply")


@check
def command_path_is_exact(arklet):
    """The path is the command name, case and trailing slash count, a query string does not."""
    for command in ("Help", "help/", "/help", ""):
        expect(arklet.call(command).code, "CMD_NOT_FOUND", "code of /" + command)
    expect(arklet.call("help?x=1").code, "SUCCESS", "code of /help?x=1")


@check
def request_headers_are_ignored(arklet):
    """Any content type does, a chunked body is read, and a missing Content-Length means an empty body."""
    typed = arklet.exchange(request_bytes("/queryAllBiz", headers=[("Content-Type", "text/plain")]))
    expect(Answer(typed).code, "SUCCESS", "code with text/plain")
    chunks = request_bytes("/queryAllBiz", b"1\r\n{\r\n1\r\n}\r\n0\r\n\r\n", length=False,
                           headers=[("Transfer-Encoding", "chunked")])
    expect(Answer(arklet.exchange(chunks)).code, "SUCCESS", "code with a chunked body")
    bare = arklet.exchange(request_bytes("/queryAllBiz", b"", length=False))
    expect(Answer(bare).code, "SUCCESS", "code without Content-Length")


@check
def expect_continue_is_answered(arklet):
    """`Expect: 100-continue` gets the interim reply 100 before the body is sent."""
    with arklet.connect() as connection:
        connection.send(request_bytes("/queryAllBiz", b"", length=False,
                                      headers=[("Content-Length", "2"), ("Expect", "100-continue")]))
        interim = connection.read(5, enough=lambda data: data.endswith(b"\r\n\r\n"))
        expect(interim.raw, b"HTTP/1.1 100 Continue\r\n\r\n", "interim reply")
        connection.send(b"{}")
        expect(Answer(connection.read(5)).code, "SUCCESS", "code")


@check
def malformed_json_hangs(arklet):
    """A body that is not a JSON object gets no reply and no close; the same connection then serves a good request."""
    bodies = (b'{"a":', b"hello", b"[]", b"[{}]", b"123", b'"text"', b"   ", b"{} trailing")
    connections = []
    try:
        for body in bodies:
            connection = arklet.connect()
            connections.append(connection)
            connection.send(request_bytes("/queryAllBiz", body))
        time.sleep(arklet.silence)
        for body, connection in zip(bodies, connections):
            silent = connection.read(0.05)
            expect_true(not silent.raw and not silent.closed, "silence after %r" % body, silent)
            connection.send(request_bytes("/queryAllBiz"))
            expect(Answer(connection.read(5)).code, "SUCCESS", "code of the good request after %r" % body)
    finally:
        for connection in connections:
            connection.close()


@check
def malformed_json_hangs_before_the_command_is_looked_up(arklet):
    """A malformed body also hangs on an unknown command; with a non-POST method it gets the usual 500."""
    with arklet.connect() as connection:
        connection.send(request_bytes("/noSuchCommand", b"{"))
        silent = connection.read(arklet.silence)
        expect_true(not silent.raw and not silent.closed, "silence", silent)
    expect(arklet.exchange(request_bytes("/help", b"{", "PUT"), 5).status, 500, "status of PUT")


@check(optional="a simulator may well be stricter")
def json_is_read_leniently(arklet):
    """Unquoted keys, single quotes, comments and trailing commas are accepted (fastjson)."""
    for body in (b"{a:1,'b':2}", b"/* c */{\"a\":1,}"):
        reply = arklet.exchange(request_bytes("/queryAllBiz", body), 5)
        expect(Answer(reply).code, "SUCCESS", "code of %r" % body)


@check
def empty_body_works_for_queries(arklet):
    """An empty body and the body `null` count as no fields: help, queryAllBiz and health answer SUCCESS."""
    for command in ("help", "queryAllBiz", "health"):
        for body in (b"", b"null"):
            reply = arklet.exchange(request_bytes("/" + command, body))
            expect(Answer(reply).code, "SUCCESS", "code of %s with %r" % (command, body))


@check
def empty_body_fails_for_operations(arklet):
    """With an empty body the operations answer CMD_PROCESS_INTERNAL_ERROR with a NullPointerException's text."""
    for command in ("installBiz", "uninstallBiz", "switchBiz", "batchInstallBiz"):
        answer = Answer(arklet.exchange(request_bytes("/" + command, b"")))
        expect(answer.code, "CMD_PROCESS_INTERNAL_ERROR", "code of " + command, answer)
        expect_in("java.lang.NullPointerException", answer.stack, "stack of " + command)
    answer = Answer(arklet.exchange(request_bytes("/queryBizOps", b"")))
    expect_internal_error(answer, "request is null")


@check
def body_limit_is_one_mebibyte(arklet):
    """A body of 1048576 bytes is read; one byte more gives HTTP 413 with content-length 0, and no close."""
    fits = arklet.exchange(request_bytes("/queryAllBiz", padded_body(1048576)))
    expect(Answer(fits).code, "SUCCESS", "code at the limit")
    with arklet.connect() as connection:
        connection.send(request_bytes("/queryAllBiz", padded_body(1048577)))
        refused = connection.read(10, enough=lambda data: b"\r\n\r\n" in data)
        expect(refused.status, 413, "status over the limit", refused)
        expect((refused.header("content-length"), refused.body), ("0", b""), "length and body", refused)
        connection.send(request_bytes("/queryAllBiz"))
        expect(Answer(connection.read(10)).code, "SUCCESS", "code of the next request on the same connection")


@check
def oversized_body_with_connection_close(arklet):
    """HTTP 413 comes as soon as the headers are read, and closes when the request says `Connection: close`."""
    headers = [("Content-Length", "2000000"), ("Connection", "close")]
    reply = arklet.exchange(request_bytes("/queryAllBiz", b"", headers=headers, length=False), 5)
    expect(reply.status, 413, "status", reply)
    expect_true(reply.closed, "closed", reply)


@check
def absent_fields_are_left_out(arklet):
    """No reply carries a JSON null: a missing message, data or stack is absent."""
    for answer in (arklet.call("help"), arklet.call("noSuchCommand"), arklet.call("installBiz"),
                   arklet.uninstall("conformance-none", "1"), arklet.install(OK_1), arklet.call("queryAllBiz")):
        expect_true(not has_null(answer.json), "no null", answer)
    expect_true("message" not in arklet.call("help").json, "no message on success")


def has_null(value):
    if isinstance(value, dict):
        return any(has_null(part) for part in value.values())
    if isinstance(value, list):
        return any(has_null(part) for part in value)
    return value is None


@check
def base_identity_is_in_regular_replies(arklet):
    """SUCCESS and FAILED replies carry baseIdentity, always the same; CMD_NOT_FOUND and internal errors do not."""
    good, bad = arklet.call("help"), arklet.uninstall("conformance-none", "1")
    expect_true(isinstance(good.json.get("baseIdentity"), str) and good.json["baseIdentity"], "baseIdentity", good)
    expect(bad.json.get("baseIdentity"), good.json["baseIdentity"], "baseIdentity of a FAILED reply")
    for answer in (arklet.call("noSuchCommand"), arklet.call("installBiz")):
        expect_true("baseIdentity" not in answer.json, "no baseIdentity", answer)


@check
def wrong_field_types(arklet):
    """A list for envs or a word for async spoils the whole input (null pointer text); numbers pass as strings."""
    for fields in ({"envs": ["x"]}, {"async": "perhaps"}, {"args": "--fail-with=one string"}):
        answer = arklet.install(OK_1, **fields)
        expect(answer.code, "CMD_PROCESS_INTERNAL_ERROR", "code with %r" % fields, answer)
        expect_in("NullPointerException", answer.stack, "stack with %r" % fields)
    expect(arklet.listed(), [], "modules after the failures")
    answer = arklet.uninstall("conformance-none", 7)
    expect(answer.inner_message, "Uninstall biz: conformance-none:7 not found.", "message for a numeric version")


@check
def help_lists_the_commands(arklet):
    """help names the eight commands, each with a description."""
    answer = arklet.call("help")
    wanted = {"help", "installBiz", "uninstallBiz", "switchBiz", "queryAllBiz", "health", "queryBizOps",
              "batchInstallBiz"}
    expect_true(wanted <= {entry["id"] for entry in answer.data}, "the eight ids", answer)
    expect_true(all(entry.get("desc") for entry in answer.data), "descriptions", answer)


# ---- install and query

@check
def no_module_is_an_empty_list(arklet):
    """Without modules queryAllBiz gives data [] : the base itself is never listed."""
    arklet.must_install(OK_1)
    expect(len(arklet.listed()), 1, "modules while one is installed")
    arklet.uninstall(OK_1.name, OK_1.version)
    expect(arklet.call("queryAllBiz").data, [], "data")


@check
def install_succeeds_on_both_levels(arklet):
    """An install gives SUCCESS outside and inside, a message with the cost, and elapsedSpace as an integer."""
    answer = arklet.install(OK_1)
    expect((answer.code, answer.inner, answer.message), ("SUCCESS", "SUCCESS", None), "codes and message", answer)
    expect_in("Install Biz: conformance-ok:1.0.0 success, cost: ", answer.inner_message, "inner message")
    expect_in(" ms, started at: ", answer.inner_message, "inner message")
    space = answer.data.get("elapsedSpace")
    expect_true(isinstance(space, int) and not isinstance(space, bool), "elapsedSpace is an integer", space)


@check
def install_describes_the_biz(arklet):
    """data.bizInfos has one element with identity, state, records, main class, context path and priority."""
    infos = arklet.install(OK_1).data["bizInfos"]
    expect(len(infos), 1, "number of bizInfos")
    wanted = {"bizName": "conformance-ok", "bizVersion": "1.0.0", "identity": "conformance-ok:1.0.0",
              "bizState": "activated", "mainClass": "conformance.Returns", "webContextPath": "ok", "priority": 100,
              "declaredMode": False, "attributes": {}}
    expect({key: infos[0].get(key) for key in wanted}, wanted, "fields")
    expect([record["state"] for record in infos[0]["bizStateRecords"]], ["resolved", "activated"], "record states")
    lists = ("classPath", "denyImportPackages", "denyImportClasses", "denyImportResources", "injectExportPackages",
             "injectPluginDependencies")
    expect_true(all(isinstance(infos[0].get(key), list) for key in lists), "list fields", infos[0])


@check
def install_does_not_report_the_url_sent(arklet):
    """bizInfos[0].bizUrl is a file: address on the base; the address that was sent appears nowhere."""
    answer = arklet.install(OK_1)
    expect_true(answer.data["bizInfos"][0]["bizUrl"].startswith("file:"), "bizUrl is local", answer)
    expect_true(arklet.module_url(OK_1.file) not in json.dumps(answer.json), "no trace of the address", answer)
    expect_true("bizUrl" not in arklet.biz(OK_1), "queryAllBiz has no bizUrl", arklet.biz(OK_1))


@check
def query_all_biz_item(arklet):
    """A queryAllBiz item has exactly name, version, state, main class, context path and state records."""
    arklet.must_install(OK_1)
    item = arklet.biz(OK_1)
    records = item.pop("bizStateRecords")
    expect(item, {"bizName": "conformance-ok", "bizVersion": "1.0.0", "bizState": "activated",
                  "mainClass": "conformance.Returns", "webContextPath": "ok"}, "item without its records")
    shapes = [(record["state"], record["reason"], record["message"]) for record in records]
    expect(shapes, [("resolved", "Created", ""), ("activated", "Started", "")], "records")


@check
def state_records_carry_milliseconds(arklet):
    """changeTime is an integer in epoch milliseconds, oldest first, and close to now."""
    arklet.must_install(OK_1)
    times = [record["changeTime"] for record in arklet.biz(OK_1)["bizStateRecords"]]
    expect_true(all(isinstance(value, int) for value in times), "integers", times)
    expect(times, sorted(times), "order")
    expect_true(abs(times[-1] / 1000 - time.time()) < 60, "within a minute of this machine's clock", times)


@check
def context_path_defaults_to_slash(arklet):
    """A module without web-context-path in its manifest is listed with `/`."""
    arklet.must_install(OTHER)
    expect(arklet.biz(OTHER)["webContextPath"], "/", "webContextPath")


@check
def repeated_install_is_repeat_biz(arklet):
    """Installing what is there gives FAILED outside, REPEAT_BIZ inside, and changes nothing."""
    arklet.must_install(OK_1)
    before = arklet.biz(OK_1)
    answer = arklet.install(OK_1)
    expect((answer.code, answer.inner), ("FAILED", "REPEAT_BIZ"), "codes", answer)
    expect(answer.message, "install biz not success!", "message")
    expect(answer.inner_message, "Biz: conformance-ok:1.0.0 has been installed or registered.", "inner message")
    expect_true("bizInfos" not in answer.data, "no bizInfos", answer)
    expect(arklet.biz(OK_1), before, "the module")


@check
def repeated_install_downloads_again(arklet):
    """Each install fetches the jar once, also one that ends in REPEAT_BIZ."""
    url = arklet.served("/modules/" + OK_1.file)
    for number in (1, 2):
        before = arklet.server.hit_count("/modules/" + OK_1.file)
        arklet.install(OK_1, bizUrl=url)
        fetched = arklet.server.hit_count("/modules/" + OK_1.file) - before
        expect(fetched, 1, "downloads of install %d" % number)


@check
def second_version_is_deactivated(arklet):
    """A second version of a name installs with SUCCESS but is deactivated (activated under --multi-active)."""
    arklet.must_install(OK_1)
    info = arklet.must_install(OK_2)
    state, message = ("activated", "") if arklet.multi_active else ("deactivated", "start but is deactivated")
    expect(info["bizState"], state, "state in the reply")
    last = arklet.biz(OK_2)["bizStateRecords"][-1]
    expect((last["state"], last["reason"], last["message"]), (state, "Started", message), "last record")
    expect(arklet.state(OK_1), "activated", "state of the first version")


@check
def switch_biz_swaps_the_states(arklet):
    """switchBiz activates the named version, deactivates the other, and both records name their counterpart."""
    if arklet.multi_active:
        raise Skipped("with --multi-active both versions are active")
    arklet.must_install(OK_1)
    arklet.must_install(OK_2)
    answer = arklet.switch("conformance-ok", "2.0.0")
    expect((answer.code, answer.inner), ("SUCCESS", "SUCCESS"), "codes", answer)
    expect(answer.inner_message, "Switch biz: conformance-ok:2.0.0 is activated.", "inner message")
    new, old = arklet.biz(OK_2), arklet.biz(OK_1)
    expect((new["bizState"], old["bizState"]), ("activated", "deactivated"), "states")
    for item, other in ((new, "conformance-ok:1.0.0"), (old, "conformance-ok:2.0.0")):
        expect(item["bizStateRecords"][-1]["reason"], "Switched", "reason of the last record")
        expect_in(other, item["bizStateRecords"][-1]["message"], "message of the last record")


@check
def switch_to_the_active_version_is_a_no_op(arklet):
    """switchBiz to the version that is active already gives SUCCESS and adds no record."""
    arklet.must_install(OK_1)
    before = arklet.biz(OK_1)
    expect(before["bizState"], "activated", "state before")
    answer = arklet.switch("conformance-ok", "1.0.0")
    expect((answer.code, answer.inner), ("SUCCESS", "SUCCESS"), "codes", answer)
    expect(arklet.biz(OK_1), before, "the module")


@check
def switch_to_unknown_is_not_found(arklet):
    """switchBiz to what is not installed gives FAILED outside and NOT_FOUND_BIZ inside."""
    answer = arklet.switch("conformance-ok", "9.9.9")
    expect((answer.code, answer.inner, answer.message), ("FAILED", "NOT_FOUND_BIZ", "switch biz not success!"),
           "codes and message", answer)
    expect(answer.inner_message, "Switch biz: conformance-ok:9.9.9 not found.", "inner message")


@check
def identity_comes_from_the_jar(arklet):
    """A jar installs under the identity of its manifest, whatever the request calls it."""
    answer = arklet.install(WRONG, bizName="conformance-claimed", bizVersion="1.0.0")
    expect((answer.code, answer.inner), ("SUCCESS", "SUCCESS"), "codes", answer)
    expect(answer.data["bizInfos"][0]["identity"], "conformance-actual:3.1.4", "identity in the reply")
    names = [(item["bizName"], item["bizVersion"]) for item in arklet.listed()]
    expect(names, [("conformance-actual", "3.1.4")], "modules listed")
    again = arklet.install(WRONG, bizName="conformance-claimed", bizVersion="1.0.0")
    expect(again.inner, "REPEAT_BIZ", "inner code of a second try", again)
    expect_in("conformance-actual:3.1.4", again.inner_message, "inner message of a second try")
    claimed = arklet.uninstall("conformance-claimed", "1.0.0")
    expect(claimed.inner, "NOT_FOUND_BIZ", "inner code of uninstalling the claimed identity", claimed)


@check
def install_without_identity_reads_the_jar(arklet):
    """With neither bizName nor bizVersion the manifest's identity is used, at the price of a second download."""
    path = "/modules/" + OK_1.file
    url = arklet.served(path)
    before = arklet.server.hit_count(path)
    answer = arklet.call("installBiz", {"bizUrl": url})
    expect((answer.code, answer.inner), ("SUCCESS", "SUCCESS"), "codes", answer)
    expect(arklet.state(OK_1), "activated", "state")
    expect(arklet.server.hit_count(path) - before, 2, "downloads")


@check
def install_without_identity_of_a_missing_jar(arklet):
    """Without an identity a failed download reads `refresh biz info from jar failed`, without an exception's name."""
    answer = arklet.call("installBiz", {"bizUrl": arklet.module_url("no-such-module.jar")})
    expect_internal_error(answer, "refresh biz info from jar failed: ")
    expect_in("no-such-module.jar", answer.message, "message")


@check
def install_needs_name_and_version_together(arklet):
    """Only one of bizName and bizVersion is a validation error, which comes as CMD_PROCESS_INTERNAL_ERROR."""
    for field in ("bizName", "bizVersion"):
        answer = arklet.install(OK_1, **{field: None})
        expect_internal_error(answer, "bizName and bizVersion should be both blank or both not blank.")
        expect_in("CommandValidationException", answer.stack, "stack")


@check
def install_needs_a_url(arklet):
    """A missing or empty bizUrl is a validation error: `bizUrl should not be blank`."""
    for url in (None, ""):
        expect_internal_error(arklet.install(OK_1, bizUrl=url), "bizUrl should not be blank")


@check
def unknown_fields_are_ignored(arklet):
    """Fields that arklet does not know, env and aync among them, change nothing."""
    answer = arklet.install(OK_1, bizModelVersion="7", aync=True, env={"sofa.ark.biz.main.class": "conformance.Absent"})
    expect((answer.code, answer.inner), ("SUCCESS", "SUCCESS"), "codes", answer)
    expect(arklet.state(OK_1), "activated", "state")


@check
def download_404(arklet):
    """A jar that answers 404 gives java.io.FileNotFoundException with the address, and installs nothing."""
    answer = arklet.install(OK_1, bizUrl=arklet.module_url("no-such-module.jar"))
    expect_internal_error(answer, "java.io.FileNotFoundException: " + arklet.module_url("no-such-module.jar"))
    expect_true(answer.data is None, "no data", answer)
    expect(arklet.biz(OK_1), None, "the module")


@check
def download_error_status(arklet):
    """401, 403, 500 and 503 give `Server returned HTTP response code: N for URL`; 410 reads like 404."""
    for status in (401, 403, 500, 503):
        url = arklet.served("/status/%d/x.jar" % status)
        answer = arklet.install(OK_1, bizUrl=url)
        expect_internal_error(answer, "java.io.IOException: Server returned HTTP response code: %d for URL: " % status)
    gone = arklet.install(OK_1, bizUrl=arklet.served("/status/410/x.jar"))
    expect_internal_error(gone, "java.io.FileNotFoundException: ")


@check
def download_refused(arklet):
    """An address that nobody listens on gives java.net.ConnectException: Connection refused."""
    answer = arklet.install(OK_1, bizUrl="http://127.0.0.1:1/x.jar")
    expect_internal_error(answer, "java.net.ConnectException: Connection refused")


@check
def bad_url_scheme(arklet):
    """oss:// is an unknown protocol and a bare path has none: java.net.MalformedURLException."""
    answer = arklet.install(OK_1, bizUrl="oss://bucket/x.jar")
    expect_internal_error(answer, "java.net.MalformedURLException: unknown protocol: oss")
    answer = arklet.install(OK_1, bizUrl="/no/scheme/x.jar")
    expect_internal_error(answer, "java.net.MalformedURLException: no protocol: /no/scheme/x.jar")


@check
def missing_local_file(arklet):
    """A file: address that is not there gives FileNotFoundException with the path and the system's text."""
    answer = arklet.install(OK_1, bizUrl="file:///no/such/module.jar")
    expect_internal_error(answer, "java.io.FileNotFoundException: /no/such/module.jar (No such file or directory)")


@check(optional="needs a base that sees the files of this machine")
def local_file_is_installed(arklet):
    """file:///path and file:/path name a jar in the base's own file system."""
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "module.jar")
        with open(path, "wb") as target:
            target.write(OK_1.jar())
        for url in ("file://" + path, "file:" + path):
            arklet.must_install(OK_1, bizUrl=url)
            arklet.uninstall(OK_1.name, OK_1.version)


@check
def truncated_or_foreign_file(arklet):
    """Half a jar and a text file both give java.util.zip.ZipException: zip END header not found."""
    for file in ("truncated.jar", "not-a-zip.jar"):
        answer = arklet.install(OK_1, bizUrl=arklet.module_url(file))
        expect_internal_error(answer, "java.util.zip.ZipException: zip END header not found")
    expect(arklet.biz(OK_1), None, "the module")


@check
def manifest_must_name_the_biz(arklet):
    """A manifest without name, version or main class is refused with `Biz ... must not be empty!`."""
    for module, part in ((NO_NAME, "Name"), (NO_VERSION, "Version"), (NO_MAIN, "Main Class")):
        answer = arklet.install(module)
        expect_internal_error(answer, "java.lang.IllegalArgumentException: Biz %s must not be empty!" % part)
    expect(arklet.listed(), [], "modules")


@check
def jar_without_manifest(arklet):
    """A jar without a manifest fails like a missing file: FileNotFoundException .../META-INF/MANIFEST.MF."""
    answer = arklet.install(OK_1, bizUrl=arklet.module_url("no-manifest.jar"))
    expect_internal_error(answer, "java.io.FileNotFoundException: ")
    expect_in("META-INF/MANIFEST.MF", answer.message, "message")


@check
def redirects_are_followed(arklet):
    """A 302 to the jar on the same server is followed, and the module becomes active."""
    url = arklet.served("/redirect/" + OK_1.file)
    before = arklet.server.hit_count("/modules/" + OK_1.file)
    answer = arklet.install(OK_1, bizUrl=url)
    expect((answer.code, answer.inner), ("SUCCESS", "SUCCESS"), "codes", answer)
    expect(arklet.server.hit_count("/modules/" + OK_1.file) - before, 1, "downloads of the jar itself")
    expect(arklet.state(OK_1), "activated", "state")


@check
def credentials_in_the_url_are_not_sent(arklet):
    """user:password in bizUrl is not turned into an Authorization header; the query string is sent."""
    url = arklet.served("/modules/" + OK_1.file).replace("//", "//user:word@", 1) + "?token=1"
    begin = len(arklet.server.hits)
    answer = arklet.install(OK_1, bizUrl=url)
    expect((answer.code, answer.inner), ("SUCCESS", "SUCCESS"), "codes", answer)
    expect([sent for _, sent in arklet.server.hits[begin:]], [None], "Authorization headers")


@check
def main_throws(arklet):
    """When main throws, the message only says InvocationTargetException; the last `Caused by` has the real cause."""
    answer = arklet.install(THROWS)
    expect(answer.code, "CMD_PROCESS_INTERNAL_ERROR", "outer code", answer)
    expect(answer.message, "Internal Error: java.lang.reflect.InvocationTargetException", "message")
    wanted = "Caused by: java.lang.IllegalStateException: " + DEFAULT_FAILURE
    expect(answer.root_cause().strip(), wanted, "last cause", answer)
    expect_true(answer.data is None, "no data", answer)


@check
def failed_module_vanishes(arklet):
    """A module whose main threw is gone and may be tried again (under --keep-broken: broken, then REPEAT_BIZ)."""
    arklet.install(THROWS)
    again = arklet.install(THROWS)
    if not arklet.keep_broken:
        expect(arklet.biz(THROWS), None, "the module")
        expect(again.code, "CMD_PROCESS_INTERNAL_ERROR", "outer code of the second try", again)
        return
    item = arklet.biz(THROWS)
    expect(item and item["bizState"], "broken", "state")
    last = item["bizStateRecords"][-1]
    expect((last["state"], last["reason"]), ("broken", "Install Failed"), "last record")
    expect_in("Caused by: java.lang.IllegalStateException: " + DEFAULT_FAILURE, last["message"], "its message")
    expect(again.inner, "REPEAT_BIZ", "inner code of the second try", again)
    switched = arklet.switch(THROWS.name, THROWS.version)
    expect(switched.inner, "ILLEGAL_STATE_BIZ", "inner code of a switch", switched)
    expect_in("'s state must not be broken.", switched.inner_message, "inner message of a switch")
    expect(arklet.uninstall(THROWS.name, THROWS.version).code, "SUCCESS", "outer code of the uninstall")
    expect(arklet.biz(THROWS), None, "the module after the uninstall")


@check
def main_class_missing(arklet):
    """A main class that is not in the jar ends in Caused by: java.lang.ClassNotFoundException: NAME."""
    answer = arklet.install(ABSENT)
    expect_internal_error(answer, "ArkLoaderException")
    expect_in("java.lang.ClassNotFoundException: conformance.Absent", answer.root_cause(), "last cause", answer)


@check
def args_reach_main(arklet):
    """The strings in args are main's arguments, in UTF-8."""
    answer = arklet.install(THROWS, args=["--other", "--fail-with=text-é-42"])
    expect_in("java.lang.IllegalStateException: text-é-42", answer.root_cause(), "last cause", answer)


@check
def envs_can_name_the_main_class(arklet):
    """envs[sofa.ark.biz.main.class] replaces the manifest's main class."""
    answer = arklet.install(OK_1, envs={"sofa.ark.biz.main.class": "conformance.Absent"})
    expect_in("java.lang.ClassNotFoundException: conformance.Absent", answer.root_cause(), "last cause", answer)


@check
def uninstall_then_install(arklet):
    """installStrategy uninstallThenInstall removes every version of the name, then installs."""
    arklet.must_install(OK_1)
    arklet.must_install(OK_2)
    info = arklet.must_install(OK_2, installStrategy="uninstallThenInstall")
    expect(info["bizState"], "activated", "state")
    expect([item["bizVersion"] for item in arklet.listed()], ["2.0.0"], "versions left")


@check
def uninstall_then_install_loses_the_old_one(arklet):
    """With uninstallThenInstall the old version is gone even when the download then fails."""
    arklet.must_install(OK_1)
    answer = arklet.install(OK_2, installStrategy="uninstallThenInstall",
                            bizUrl=arklet.module_url("no-such-module.jar"))
    expect_internal_error(answer, "java.io.FileNotFoundException: ")
    expect(arklet.listed(), [], "modules")


@check
def unknown_strategy_is_install_only(arklet):
    """An unknown installStrategy counts as installOnly."""
    arklet.must_install(OK_1)
    arklet.must_install(OK_2, installStrategy="installThenUninstall")
    expect(sorted(item["bizVersion"] for item in arklet.listed()), ["1.0.0", "2.0.0"], "versions")


# ---- uninstall

@check
def uninstall_removes_the_module(arklet):
    """uninstallBiz gives SUCCESS on both levels and the module is no longer listed, in any state."""
    arklet.must_install(OK_1)
    answer = arklet.uninstall("conformance-ok", "1.0.0")
    expect((answer.code, answer.inner, answer.message), ("SUCCESS", "SUCCESS", None), "codes and message", answer)
    expect(answer.inner_message, "Uninstall biz: conformance-ok:1.0.0 success.", "inner message")
    expect(arklet.listed(), [], "modules")


@check
def second_uninstall_is_not_found(arklet):
    """Uninstalling twice gives FAILED and NOT_FOUND_BIZ the second time; the module can then be installed again."""
    arklet.must_install(OK_1)
    arklet.uninstall("conformance-ok", "1.0.0")
    answer = arklet.uninstall("conformance-ok", "1.0.0")
    expect((answer.code, answer.inner), ("FAILED", "NOT_FOUND_BIZ"), "codes", answer)
    expect(arklet.must_install(OK_1)["bizState"], "activated", "state after a new install")


@check
def uninstall_of_unknown_is_not_found(arklet):
    """Uninstalling an unknown module, or another version, gives FAILED outside and NOT_FOUND_BIZ inside."""
    arklet.must_install(OK_1)
    answer = arklet.uninstall("conformance-ok", "9.9.9")
    expect((answer.code, answer.inner, answer.message), ("FAILED", "NOT_FOUND_BIZ", "uninstall biz not success!"),
           "codes and message", answer)
    expect(answer.inner_message, "Uninstall biz: conformance-ok:9.9.9 not found.", "inner message")
    expect(arklet.state(OK_1), "activated", "state of the installed version")


@check
def uninstall_of_the_base_is_refused(arklet):
    """The master biz cannot be uninstalled, under any version: FAILED inside, `Master biz must not be uninstalled.`"""
    master = arklet.health()["masterBizInfo"]
    for version in (master["bizVersion"], "no-such-version"):
        answer = arklet.uninstall(master["bizName"], version)
        expect((answer.code, answer.inner), ("FAILED", "FAILED"), "codes", answer)
        expect(answer.inner_message, "Master biz must not be uninstalled.", "inner message")


@check
def uninstall_and_switch_need_both_fields(arklet):
    """uninstallBiz and switchBiz without bizName or bizVersion are validation errors that name the field."""
    for command in ("uninstallBiz", "switchBiz"):
        for given, missing in (("bizName", "bizVersion"), ("bizVersion", "bizName")):
            expect_internal_error(arklet.call(command, {given: "x"}), missing + " should not be blank")


@check
def uninstall_does_not_promote(arklet):
    """Uninstalling the active version leaves a deactivated one deactivated."""
    if arklet.multi_active:
        raise Skipped("with --multi-active both versions are active")
    arklet.must_install(OK_1)
    arklet.must_install(OK_2)
    arklet.uninstall("conformance-ok", "1.0.0")
    expect(arklet.state(OK_2), "deactivated", "state of the second version")


# ---- operations that overlap

@check
def starting_module_is_resolved(arklet):
    """While main runs the module is listed as resolved with the one record Created, and activated afterwards."""
    request_id = arklet.start_slow_async(SLOW_1, 1000)
    item = arklet.biz(SLOW_1)
    expect([record["reason"] for record in item["bizStateRecords"]], ["Created"], "reasons while it starts")
    arklet.wait_finished(request_id)
    expect(arklet.state(SLOW_1), "activated", "state afterwards")


@check
def same_identity_conflicts(arklet):
    """A second sync install of an identity that is being installed is FAILED at once, without data."""
    holder = Background(arklet.install, SLOW_1, args=["--sleep-millis=2500"])
    time.sleep(0.8)
    answer = arklet.install(SLOW_1)
    expect_true(holder.running(), "the first install still runs", answer)
    expect_true(answer.reply.seconds < 1.0, "an answer at once, not after %.1f s" % answer.reply.seconds)
    expect((answer.code, answer.data), ("FAILED", None), "code and data", answer)
    expect_in("conformance-slow:1.0.0 installBiz conflict, exist unfinished command(installBiz) for this biz",
              answer.message, "message")
    first = holder.result(20)
    expect((first.code, first.inner), ("SUCCESS", "SUCCESS"), "codes of the first install", first)


@check
def conflict_names_both_commands(arklet):
    """Uninstall and switch conflict with a running install too; the message names both commands."""
    request_id = arklet.start_slow_async(SLOW_1, 2500)
    for command in ("uninstallBiz", "switchBiz"):
        answer = arklet.call(command, {"bizName": SLOW_1.name, "bizVersion": SLOW_1.version})
        expect((answer.code, answer.data), ("FAILED", None), "code and data of " + command, answer)
        expect_in("%s conflict, exist unfinished command(installBiz)" % command, answer.message, "message")
    expect(arklet.wait_finished(request_id)["status"], "SUCCEEDED", "status of the install")


@check
def other_versions_do_not_conflict(arklet):
    """The lock is for name and version: another version of the name and other modules install meanwhile."""
    request_id = arklet.start_slow_async(SLOW_1, 2500)
    for module in (SLOW_2, OTHER):
        answer = arklet.install(module, args=["--sleep-millis=1"])
        expect((answer.code, answer.inner), ("SUCCESS", "SUCCESS"), "codes of " + module.file, answer)
    expect(arklet.state(SLOW_1), "resolved", "state of the slow one")
    arklet.wait_finished(request_id)
    expect(arklet.state(SLOW_1), "activated" if arklet.multi_active else "deactivated", "its state afterwards")


@check
def lock_goes_by_the_requested_identity(arklet):
    """The lock uses the request's name: the same jar under another name is not a conflict but REPEAT_BIZ."""
    request_id = arklet.start_slow_async(SLOW_1, 1500)
    answer = arklet.install(SLOW_1, bizName="conformance-claimed")
    expect((answer.code, answer.inner), ("FAILED", "REPEAT_BIZ"), "codes", answer)
    expect_in("conformance-slow:1.0.0", answer.inner_message, "inner message")
    arklet.wait_finished(request_id)


@check
def lock_covers_the_download(arklet):
    """While a jar is still being downloaded the identity is locked, but nothing is listed yet."""
    url = arklet.served("/hang/locked.jar")
    request_id = new_request_id()
    arklet.server.hold()
    try:
        arklet.install(OK_1, bizUrl=url, requestId=request_id, **{"async": True})
        arklet.wait_for(lambda: arklet.server.hit_count("/hang/locked.jar"), "the base asks for the jar")
        answer = arklet.install(OK_1)
        expect_in("conformance-ok:1.0.0 installBiz conflict", answer.message, "message")
        expect(arklet.listed(), [], "modules")
    finally:
        arklet.server.release()
    record = arklet.wait_finished(request_id)
    expect_in("Server returned HTTP response code: 503", record.get("message"), "message of the record")
    expect(arklet.must_install(OK_1)["bizState"], "activated", "state once the lock is free")


@check
def disconnect_does_not_cancel(arklet):
    """An install goes on after the client has closed its connection."""
    body = json.dumps(arklet.install_input(SLOW_1, args=["--sleep-millis=1200"])).encode()
    with arklet.connect() as connection:
        connection.send(request_bytes("/installBiz", body))
        time.sleep(0.5)
    arklet.wait_for(lambda: arklet.state(SLOW_1) == "activated", "the module becomes activated")


@check(optional="needs a base that nobody else talks to")
def hung_install_blocks_one_worker_in_turn(arklet):
    """Connections go to the HTTP workers in turn: one hung sync install stalls every W-th request, not all of them."""
    url = arklet.served("/hang/one-worker.jar")
    arklet.server.hold()
    try:
        holder = Background(arklet.install, OK_1, bizUrl=url, wait=60)
        arklet.wait_for(lambda: arklet.server.hit_count("/hang/one-worker.jar"), "the base asks for the jar")
        answered = []
        for _ in range(40):
            answered.append(arklet.exchange(request_bytes("/help"), 0.8).closed)
            if answered.count(False) == 3:
                break
    finally:
        arklet.server.release()
    holder.result(30)
    stalls = [place for place, fine in enumerate(answered) if not fine]
    expect(len(stalls), 3, "stalled requests among %d" % len(answered))
    expect(stalls[1] - stalls[0], stalls[2] - stalls[1], "distance between stalls")
    expect_true(stalls[1] - stalls[0] >= 2, "other workers answer", stalls)


@check(optional="needs a base that nobody else talks to, with at most 64 HTTP workers")
def hung_installs_on_all_workers_stall_everything(arklet):
    """As many hung sync installs as there are workers stall every request; they are answered after the release."""
    arklet.server or arklet.served("/")
    arklet.server.hold()
    holders = []
    try:
        for number in range(64):
            url = arklet.served("/hang/all-workers-%d.jar" % number)
            holders.append(Background(arklet.call, "installBiz", {
                "bizName": "conformance-hung", "bizVersion": str(number), "bizUrl": url}, 60))
            time.sleep(0.3)
            if arklet.server.hit_count("/hang/all-workers-%d.jar" % number) == 0:
                break
        waiting = Background(arklet.call, "health", {}, 60)
        time.sleep(1)
        expect_true(waiting.running(), "health stalls with %d hung installs" % len(holders))
    finally:
        arklet.server.release()
    expect(waiting.result(30).code, "SUCCESS", "code of health after the release")
    for holder in holders:
        holder.result(60)


# ---- async operations

@check
def async_install_life(arklet):
    """An async install is answered at once with its record, which goes from INITIALIZED or EXECUTING to SUCCEEDED."""
    request_id = new_request_id()
    answer = arklet.install(SLOW_1, args=["--sleep-millis=1000"], requestId=request_id, **{"async": True})
    expect(answer.code, "SUCCESS", "outer code", answer)
    expect_true(answer.reply.seconds < 0.9, "an answer at once, not after %.1f s" % answer.reply.seconds)
    expect_true(answer.data["status"] in ("INITIALIZED", "EXECUTING"), "status of the submit", answer)
    arklet.wait_for(lambda: arklet.state(SLOW_1) == "resolved", "the module is listed")
    running = arklet.operation(request_id)
    expect((running["status"], running["endTimestamp"], running["elapsedTime"], "endTime" in running),
           ("EXECUTING", 0, 0, False), "the record meanwhile")
    done = arklet.wait_finished(request_id)
    expect(done["status"], "SUCCEEDED", "status at the end")
    expect((done["endTime"], done["startTime"]), (done["endTimestamp"], done["startTimestamp"]), "times")
    expect(done["elapsedTime"], done["endTimestamp"] - done["startTimestamp"], "elapsedTime")
    expect_true(done["elapsedTime"] >= 1000, "elapsedTime covers main", done)
    expect_true("message" not in done and "throwable" not in done, "no message, no throwable", done)


@check
def async_record_echoes_the_request(arklet):
    """The record carries requestId, a thread name, and the request under arkBizMeta."""
    request_id = new_request_id()
    fields = {"args": ["--a"], "requestId": request_id, "async": True}
    arklet.install(OK_1, **fields)
    record = arklet.wait_finished(request_id)
    wanted = dict(arklet.install_input(OK_1), installStrategy="installOnly", **fields)
    expect(record["arkBizMeta"], wanted, "arkBizMeta")
    expect(record["requestId"], request_id, "requestId")
    expect_true(record.get("threadName"), "threadName", record)


@check
def async_needs_a_request_id(arklet):
    """async without a requestId, or with a blank one, is a validation error and starts nothing."""
    for request_id in (None, "", "  "):
        answer = arklet.install(OK_1, requestId=request_id, **{"async": True})
        expect_internal_error(answer, "requestId should not be blank when async is true")
    expect(arklet.listed(), [], "modules")


@check
def request_id_is_single_use(arklet):
    """An async requestId works once, for any command; sync calls neither use nor leave a record."""
    request_id = new_request_id()
    arklet.install(OK_1, requestId=request_id, **{"async": True})
    arklet.wait_finished(request_id)
    again = arklet.call("uninstallBiz", {"bizName": "conformance-ok", "bizVersion": "1.0.0", "async": True,
                                         "requestId": request_id})
    expect((again.code, again.data), ("FAILED", None), "code and data", again)
    expect(again.message, "The request corresponding to the requestId(%s) has been executed." % request_id, "message")
    expect(arklet.state(OK_1), "activated", "state")
    other = new_request_id()
    expect(arklet.install(OTHER, requestId=other).inner, "SUCCESS", "inner code of a sync install")
    expect(arklet.call("queryBizOps", {"requestId": other}).code, "FAILED", "code of its record")


@check
def operation_query_of_unknown_or_blank(arklet):
    """queryBizOps of an unknown id is FAILED with a fixed text; a blank id is a validation error."""
    answer = arklet.call("queryBizOps", {"requestId": new_request_id()})
    expect((answer.code, answer.data, answer.message),
           ("FAILED", None, "Not found the corresponding ops record."), "reply", answer)
    for body in ({}, {"requestId": ""}):
        expect_internal_error(arklet.call("queryBizOps", body), "requestId is blank")


@check
def async_conflict_stays_initialized(arklet):
    """An async operation that meets a lock ends with endTimestamp and a message, but its status stays INITIALIZED."""
    holder = arklet.start_slow_async(SLOW_1, 2000)
    request_id = new_request_id()
    answer = arklet.install(SLOW_1, requestId=request_id, **{"async": True})
    expect(answer.code, "SUCCESS", "outer code of the submit", answer)
    record = arklet.wait_finished(request_id)
    expect(record["status"], "INITIALIZED", "status")
    expect(record["message"], "command conflict, exist unfinished command for this biz", "message")
    expect_true(record["endTimestamp"] >= record["startTimestamp"] > 0, "times", record)
    expect(arklet.wait_finished(holder)["status"], "SUCCEEDED", "status of the running install")
    expect(arklet.operation(request_id)["status"], "INITIALIZED", "status after the running install")


@check
def async_conflict_frees_the_lock(arklet):
    """After an async conflict the running install is no longer protected: calls reach the module that still starts."""
    holder = arklet.start_slow_async(SLOW_1, 2500)
    request_id = new_request_id()
    arklet.install(SLOW_1, requestId=request_id, **{"async": True})
    arklet.wait_finished(request_id)
    expect(arklet.install(SLOW_1).inner, "REPEAT_BIZ", "inner code of an install")
    answer = arklet.uninstall(SLOW_1.name, SLOW_1.version)
    expect_internal_error(answer, "BizState must be ACTIVATED, DEACTIVATED or BROKEN.")
    answer = arklet.switch(SLOW_1.name, SLOW_1.version)
    expect((answer.code, answer.inner), ("FAILED", "ILLEGAL_STATE_BIZ"), "codes of a switch", answer)
    expect_in("'s state must not be resolved.", answer.inner_message, "inner message of a switch")
    expect(arklet.wait_finished(holder)["status"], "SUCCEEDED", "status of the running install")
    expect(arklet.state(SLOW_1), "activated", "state")


@check
def async_failure_keeps_the_exception(arklet):
    """When main throws, the record is FAILED, its message is the wrapper, and throwable.cause leads to the cause."""
    request_id = new_request_id()
    arklet.install(THROWS, args=["--fail-with=deep down"], requestId=request_id, **{"async": True})
    record = arklet.wait_finished(request_id)
    expect(record["status"], "FAILED", "status")
    expect(record["message"], "java.lang.reflect.InvocationTargetException", "message")
    cause = record["throwable"]
    while "cause" in cause:
        cause = cause["cause"]
    expect((cause["@type"], cause["message"]), ("java.lang.IllegalStateException", "deep down"), "innermost cause")


@check
def async_download_failure(arklet):
    """A failed download makes the record FAILED with the exception's text as its message."""
    request_id = new_request_id()
    arklet.install(OK_1, bizUrl=arklet.module_url("no-such-module.jar"), requestId=request_id, **{"async": True})
    record = arklet.wait_finished(request_id)
    expect(record["status"], "FAILED", "status")
    expect_in("java.io.FileNotFoundException: ", record["message"], "message")


@check
def async_refusals_lose_their_code(arklet):
    """REPEAT_BIZ and NOT_FOUND_BIZ do not survive async: the record only says `... biz not success!`."""
    arklet.must_install(OK_1)
    first, second = new_request_id(), new_request_id()
    arklet.install(OK_1, requestId=first, **{"async": True})
    arklet.call("uninstallBiz", {"bizName": "conformance-none", "bizVersion": "1", "async": True, "requestId": second})
    for request_id, message in ((first, "install biz not success!"), (second, "uninstall biz not success!")):
        record = arklet.wait_finished(request_id)
        expect((record["status"], record["message"]), ("FAILED", message), "status and message")
        expect_true("REPEAT" not in json.dumps(record) and "NOT_FOUND" not in json.dumps(record), "no code", record)


@check
def async_uninstall_and_switch(arklet):
    """uninstallBiz and switchBiz run async as well and end as SUCCEEDED."""
    arklet.must_install(OK_1)
    arklet.must_install(OK_2)
    for command, version in (("switchBiz", "2.0.0"), ("uninstallBiz", "1.0.0")):
        request_id = new_request_id()
        answer = arklet.call(command, {"bizName": "conformance-ok", "bizVersion": version, "async": True,
                                       "requestId": request_id})
        expect(answer.code, "SUCCESS", "outer code of " + command, answer)
        expect(arklet.wait_finished(request_id)["status"], "SUCCEEDED", "status of " + command)
    left = [(item["bizVersion"], item["bizState"]) for item in arklet.listed()]
    expect(left, [("2.0.0", "activated")], "modules")


# ---- batches

def batch(arklet, *modules, **fields):
    items = [item if isinstance(item, dict) else arklet.install_input(item) for item in modules]
    return arklet.call("batchInstallBiz", dict(fields, bizList=items))


@check
def batch_installs_all(arklet):
    """batchInstallBiz answers per address, each with its own code, message and bizInfos, and installs all."""
    answer = batch(arklet, OK_1, OTHER)
    expect((answer.code, answer.inner), ("SUCCESS", "SUCCESS"), "codes", answer)
    expect(answer.inner_message, "batch install success", "inner message")
    expect_true(isinstance(answer.data.get("elapsedSpace"), int), "elapsedSpace is an integer", answer)
    results = answer.data["bizUrlToResponse"]
    expect(set(results), {arklet.module_url(OK_1.file), arklet.module_url(OTHER.file)}, "addresses")
    for module in (OK_1, OTHER):
        result = results[arklet.module_url(module.file)]
        expect((result["code"], result["bizInfos"][0]["bizName"]), ("SUCCESS", module.name), "result", result)
        expect(arklet.state(module), "activated", "state of " + module.name)


@check
def batch_can_fail_in_part(arklet):
    """When one main throws the batch is FAILED, that item says `internal exception: null`, the others stay."""
    answer = batch(arklet, OK_1, THROWS)
    expect((answer.code, answer.inner, answer.message), ("FAILED", "FAILED", "install biz not success!"),
           "codes and message", answer)
    expect(answer.inner_message, "batch install failed", "inner message")
    results = answer.data["bizUrlToResponse"]
    expect(results[arklet.module_url(OK_1.file)]["code"], "SUCCESS", "code of the good item")
    expect(results[arklet.module_url(THROWS.file)], {"code": "FAILED", "message": "internal exception: null"},
           "the bad item")
    expect(arklet.state(OK_1), "activated", "state of the good item")


@check
def batch_items_keep_other_causes(arklet):
    """An item that is there already keeps REPEAT_BIZ; one that fails before main keeps the exception's text."""
    arklet.must_install(OK_1)
    answer = batch(arklet, OK_1, NO_NAME)
    expect((answer.code, answer.inner), ("FAILED", "FAILED"), "codes", answer)
    results = answer.data["bizUrlToResponse"]
    expect(results[arklet.module_url(OK_1.file)]["code"], "REPEAT_BIZ", "code of the repeated item")
    expect(results[arklet.module_url(NO_NAME.file)],
           {"code": "FAILED", "message": "internal exception: Biz Name must not be empty!"}, "the nameless item")


@check
def batch_stops_at_an_unreadable_address(arklet):
    """One address that cannot be read makes the whole batch an internal error, before anything is installed."""
    for url, part in ((arklet.module_url("no-such-module.jar"), "java.io.FileNotFoundException: "),
                      ("oss://bucket/x.jar", "java.net.MalformedURLException: unknown protocol: oss"),
                      (arklet.module_url("truncated.jar"), "java.util.zip.ZipException: zip END header not found")):
        answer = batch(arklet, OK_1, arklet.install_input(OTHER, bizUrl=url))
        expect_internal_error(answer, part)
    expect(arklet.listed(), [], "modules")


@check
def batch_downloads_twice(arklet):
    """A batch fetches every jar twice: once for its priority, once to install it."""
    path = "/modules/" + OK_1.file
    url = arklet.served(path)
    before = arklet.server.hit_count(path)
    answer = batch(arklet, arklet.install_input(OK_1, bizUrl=url))
    expect(answer.code, "SUCCESS", "outer code", answer)
    expect(arklet.server.hit_count(path) - before, 2, "downloads")


@check
def batch_follows_the_priority(arklet):
    """Lower priority numbers of the manifest go first, and the next ones wait for them."""
    answer = batch(arklet, OK_1, arklet.install_input(SLOW_1, args=["--sleep-millis=600"]))
    expect(answer.code, "SUCCESS", "outer code", answer)
    started = arklet.biz(SLOW_1)["bizStateRecords"][-1]["changeTime"]
    created = arklet.biz(OK_1)["bizStateRecords"][0]["changeTime"]
    expect_true(created >= started, "priority 100 is created after priority 50 has started", (created, started))


@check
def batch_edge_inputs(arklet):
    """An empty bizList succeeds, a missing one and an item without bizUrl are errors, item-wise async is ignored."""
    answer = batch(arklet)
    expect((answer.code, answer.data["bizUrlToResponse"]), ("SUCCESS", {}), "reply to an empty list", answer)
    expect_internal_error(arklet.call("batchInstallBiz", {}), "bizList is null")
    expect_internal_error(batch(arklet, OK_1, {"bizName": "x", "bizVersion": "1"}), "bizUrl should not be blank")
    expect(arklet.listed(), [], "modules")
    answer = batch(arklet, arklet.install_input(OK_1, **{"async": True}))
    expect((answer.code, arklet.state(OK_1)), ("SUCCESS", "activated"), "code and state with async in the item")


@check
def batch_async(arklet):
    """An async batch has a record like an install's, with the list under arkBizMeta."""
    request_id = new_request_id()
    answer = batch(arklet, OK_1, requestId=request_id, **{"async": True})
    expect(answer.code, "SUCCESS", "outer code", answer)
    record = arklet.wait_finished(request_id)
    expect(record["status"], "SUCCEEDED", "status")
    expect(record["arkBizMeta"]["bizList"][0]["bizName"], "conformance-ok", "name under arkBizMeta")
    expect(arklet.state(OK_1), "activated", "state")


@check
def batch_async_without_request_id(arklet):
    """An async batch without requestId is not validated: it ends in a bare null pointer, and installs nothing."""
    answer = batch(arklet, OK_1, **{"async": True})
    expect((answer.code, answer.message), ("CMD_PROCESS_INTERNAL_ERROR", "Internal Error: null"), "reply", answer)
    expect_in("java.lang.NullPointerException", answer.stack, "stack")
    expect(arklet.listed(), [], "modules")


# ---- health

JVM_FIELDS = ("java version", "java home", "run time(s)", "total memory(M)", "max memory(M)", "free memory(M)",
              "init heap memory(M)", "used heap memory(M)", "committed heap memory(M)", "max heap memory(M)",
              "init non heap memory(M)", "used non heap memory(M)", "committed non heap memory(M)",
              "max non heap memory(M)", "loaded class count", "unload class count", "total class count",
              "java used metaspace", "java committed metaspace", "java max metaspace")
CPU_FIELDS = ("count", "type", "total used (%)", "user used (%)", "system used (%)", "free (%)")


@check
def health_without_fields(arklet):
    """health {} has jvm, cpu, masterBizInfo, bizListInfo and pluginListInfo under data.healthData."""
    data = arklet.health()
    expect(set(data), {"jvm", "cpu", "masterBizInfo", "bizListInfo", "pluginListInfo"}, "parts")
    expect(sorted(set(JVM_FIELDS) - set(data["jvm"])), [], "jvm fields missing")
    expect(sorted(set(CPU_FIELDS) - set(data["cpu"])), [], "cpu fields missing")
    expect(data["masterBizInfo"]["bizState"], "activated", "state of the master biz")


@check
def health_metaspace_is_in_bytes(arklet):
    """The three metaspace figures are integers: 0 < used <= committed, and max is -1 or at least committed."""
    jvm = arklet.health(type="system", metrics=["jvm"])["jvm"]
    used, committed, most = (jvm["java %s metaspace" % word] for word in ("used", "committed", "max"))
    expect_true(all(isinstance(value, int) for value in (used, committed, most)), "integers", (used, committed, most))
    expect_true(1 << 20 < used <= committed, "used is more than a MiB and not over committed", (used, committed))
    expect_true(most == -1 or most >= committed, "max", (committed, most))


@check
def health_of_the_system(arklet):
    """type system gives jvm and cpu only, and metrics narrows it down."""
    for fields, parts in (({}, {"jvm", "cpu"}), ({"metrics": []}, {"jvm", "cpu"}), ({"metrics": ["jvm"]}, {"jvm"}),
                          ({"metrics": ["cpu"]}, {"cpu"})):
        expect(set(arklet.health(type="system", **fields)), parts, "parts with %r" % fields)


@check
def health_of_modules_includes_the_base(arklet):
    """type biz lists the modules and the master biz, each with name, version, state and context path only."""
    arklet.must_install(OK_1)
    data = arklet.health(type="biz")
    expect(set(data), {"bizListInfo"}, "parts")
    wanted = {"bizName": "conformance-ok", "bizVersion": "1.0.0", "bizState": "activated", "webContextPath": "ok"}
    expect_true(wanted in data["bizListInfo"], "the module", data)
    master = arklet.health()["masterBizInfo"]
    expect_true(master in data["bizListInfo"], "the master biz", data)
    expect_true(master["bizName"] not in [item["bizName"] for item in arklet.listed()], "not in queryAllBiz")


@check
def health_of_one_module(arklet):
    """bizName narrows bizListInfo to one name; with bizVersion the part is bizInfo, one object."""
    arklet.must_install(OK_1)
    data = arklet.health(type="biz", bizName="conformance-ok")
    expect([item["bizVersion"] for item in data["bizListInfo"]], ["1.0.0"], "versions")
    data = arklet.health(type="biz", bizName="conformance-ok", bizVersion="1.0.0")
    expect((set(data), data["bizInfo"]["bizState"]), ({"bizInfo"}, "activated"), "parts and state")


@check
def health_of_unknown_things(arklet):
    """Unknown modules, plugins and metrics are FAILED without data; an unknown type is an internal error."""
    for fields, message in (({"type": "biz", "bizName": "conformance-none"}, "can not find biz: conformance-none"),
                            ({"type": "biz", "bizName": "conformance-none", "bizVersion": "1"}, "can not find biz"),
                            ({"type": "plugin", "bizName": "conformance-none"}, "can not find plugin"),
                            ({"type": "system", "metrics": ["none"]}, "indicator not registered")):
        answer = arklet.call("health", fields)
        expect((answer.code, answer.message, answer.data), ("FAILED", message, None), "reply to %r" % fields)
    expect_internal_error(arklet.call("health", {"type": "none"}), "type: none can not be found")


@check
def health_counts_loaded_classes(arklet):
    """Installing a module of %d classes raises the class counts and the used metaspace; elapsedSpace is positive."""
    before = arklet.health(type="system", metrics=["jvm"])["jvm"]
    answer = arklet.install(LEAKY)
    expect((answer.code, answer.inner), ("SUCCESS", "SUCCESS"), "codes", answer)
    after = arklet.health(type="system", metrics=["jvm"])["jvm"]
    total = after["total class count"] - before["total class count"]
    expect_true(total >= LEAKED_CLASSES, "%d more classes, counted in total" % LEAKED_CLASSES, total)
    expect(after["loaded class count"] + after["unload class count"], after["total class count"], "sum of the counts")
    unloaded = after["unload class count"] - before["unload class count"]
    if unloaded == 0:  # otherwise a collection came in between, and the figures may have fallen
        expect_true(after["java used metaspace"] > before["java used metaspace"], "more metaspace is used")
        expect_true(answer.data["elapsedSpace"] > 0, "elapsedSpace is positive", answer)


health_counts_loaded_classes.__doc__ %= LEAKED_CLASSES


@check
def run_time_grows(arklet):
    """`run time(s)` grows with the clock; a drop is how a restart shows."""
    first = arklet.health(type="system", metrics=["jvm"])["jvm"]["run time(s)"]
    time.sleep(0.6)
    second = arklet.health(type="system", metrics=["jvm"])["jvm"]["run time(s)"]
    expect_true(0.5 <= second - first < 10, "growth over 0.6 s", (first, second))


@check(optional="needs --restart-command")
def restart_loses_everything(arklet):
    """After a restart of the base no module and no async record is left, and `run time(s)` starts over."""
    if not arklet.restart_command:
        raise Skipped("needs --restart-command")
    arklet.must_install(OK_1)
    request_id = new_request_id()
    arklet.install(OTHER, requestId=request_id, **{"async": True})
    arklet.wait_finished(request_id)
    before = arklet.health(type="system", metrics=["jvm"])["jvm"]["run time(s)"]
    begin = time.monotonic()
    subprocess.run(arklet.restart_command, shell=True, check=True, stdout=subprocess.DEVNULL)
    arklet.wait_for(lambda: answers(arklet), "the base answers after the restart", 60)
    expect(arklet.listed(), [], "modules")
    expect(arklet.call("queryBizOps", {"requestId": request_id}).code, "FAILED", "code of the old record")
    after = arklet.health(type="system", metrics=["jvm"])["jvm"]["run time(s)"]
    expect_true(after < before + time.monotonic() - begin, "run time starts over", (before, after))


def answers(arklet):
    try:
        return arklet.call("help", wait=2).code == "SUCCESS"
    except (OSError, Failed):
        return False


# ---------------------------------------------------------------------------------------------------------------
# Running

def meaning(function):
    return " ".join(function.__doc__.split("\n")[0].split())


def chosen_checks(options):
    known = [function.__name__ for function in CHECKS]
    for pattern in options.only:
        if not fnmatch.filter(known, pattern):
            sys.exit("no check is named %s; --list shows them" % pattern)
    if options.only:
        return [function for function in CHECKS
                if any(fnmatch.fnmatch(function.__name__, pattern) for pattern in options.only)]
    return [function for function in CHECKS if options.optional or not function.optional]


def run_check(function, arklet):
    begin = time.monotonic()
    outcome, reason = "passed", ""
    try:
        arklet.reset()
        function(arklet)
    except Skipped as skip:
        outcome, reason = "skipped", str(skip)
    except Failed as failure:
        outcome, reason = "failed", str(failure)
    except Exception as error:  # a reply of an unforeseen shape, or a lost connection
        outcome, reason = "failed", "%s: %s" % (type(error).__name__, error)
    return {"name": function.__name__, "meaning": meaning(function), "outcome": outcome, "reason": reason,
            "seconds": round(time.monotonic() - begin, 2)}


def parse_address(text):
    host, _, port = text.partition(":")
    return host, int(port or 0)


def module_source(options):
    """The suite's server (or None) and the prefix of the module addresses."""
    prefix = None
    files = None
    if options.modules and "://" in options.modules:
        prefix = options.modules.rstrip("/")
    elif options.modules:
        wanted = [module.file for module in MODULES] + list(BROKEN_FILES)
        missing = [name for name in wanted if not os.path.isfile(os.path.join(options.modules, name))]
        if missing:
            sys.exit("missing in %s: %s" % (options.modules, " ".join(missing)))
        files = {}
        for name in wanted:
            with open(os.path.join(options.modules, name), "rb") as source:
                files[name] = source.read()
    if options.serve == "none":
        if prefix is None:
            sys.exit("--serve none needs --modules with an address")
        return None, prefix
    server = ModuleServer(parse_address(options.serve), files or module_files())
    return server, prefix or server.root + "/modules"


def write_modules(folder):
    os.makedirs(folder, exist_ok=True)
    for name, content in module_files().items():
        with open(os.path.join(folder, name), "wb") as target:
            target.write(content)
        print(os.path.join(folder, name))


def parse_options():
    description = __doc__.replace("{catalogue}", catalogue_text()).replace("{default_failure}", DEFAULT_FAILURE)
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", help="the arklet, for example http://127.0.0.1:1238")
    parser.add_argument("--modules", metavar="DIR_OR_URL", help="where the module jars are (default: made here)")
    parser.add_argument("--serve", metavar="HOST[:PORT]", default="127.0.0.1",
                        help="where this script serves modules (default 127.0.0.1, any free port); "
                             "`none`: nowhere, and the checks that need it are skipped")
    parser.add_argument("--write-modules", metavar="DIR", help="write the module jars and stop")
    parser.add_argument("--list", action="store_true", help="print the checks and stop")
    parser.add_argument("--only", metavar="NAME", action="append", default=[],
                        help="run this check, optional or not; may be repeated and may hold wildcards")
    parser.add_argument("--optional", action="store_true", help="also run the optional checks")
    parser.add_argument("--json", action="store_true", help="print one JSON document instead of lines")
    parser.add_argument("--multi-active", action="store_true", help="the base activates every version")
    parser.add_argument("--keep-broken", action="store_true", help="the base keeps modules that failed to start")
    parser.add_argument("--restart-command", metavar="COMMAND", help="restarts the base, for the restart check")
    parser.add_argument("--timeout", type=float, default=20, help="seconds to wait for a reply (default 20)")
    parser.add_argument("--silence", type=float, default=2, help="seconds that count as no reply (default 2)")
    return parser.parse_args()


def main():
    options = parse_options()
    if options.write_modules:
        write_modules(options.write_modules)
        return 0
    if options.list:
        for function in CHECKS:
            note = " [optional: %s]" % function.optional if function.optional else ""
            print("%s: %s%s" % (function.__name__, meaning(function), note))
        return 0
    if not options.url:
        sys.exit("--url is missing; --help explains")
    checks = chosen_checks(options)
    server, prefix = module_source(options)
    arklet = Target(options.url, server, prefix, options)
    try:
        arklet.connect().close()
    except OSError as error:
        sys.exit("no arklet at %s: %s" % (options.url, error))

    results = []
    for function in checks:
        result = run_check(function, arklet)
        results.append(result)
        if not options.json:
            word = {"passed": "ok  ", "failed": "FAIL", "skipped": "skip"}[result["outcome"]]
            tail = ": " + result["reason"] if result["reason"] else ""
            print("%s %s%s" % (word, result["name"], tail), flush=True)
    try:
        arklet.reset()
    except (OSError, Failed) as error:
        print("the last clean-up failed: %s" % error, file=sys.stderr)

    counts = {word: sum(result["outcome"] == word for result in results) for word in ("passed", "failed", "skipped")}
    if options.json:
        print(json.dumps(dict(counts, checks=results), indent=1))
    else:
        skipped = ", %d skipped" % counts["skipped"] if counts["skipped"] else ""
        print("%d passed, %d failed%s" % (counts["passed"], counts["failed"], skipped))
    return 1 if counts["failed"] else 0


if __name__ == "__main__":
    sys.exit(main())
