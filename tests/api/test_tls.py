"""The server behind TLS: answers and limits as without it, files that are refused, broken handshakes. Arguments as of test_http.py;
certificates are made with the openssl command."""
import concurrent.futures
import http.client
import json
import os
import re
import signal
import socket
import ssl
import struct
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(HERE, "..")]
os.environ["SCRIPTED"] = sys.argv[1]
os.environ["SCRIPTED_ARGS"] = " ".join(sys.argv[2:])
from harness import Server, events  # noqa: E402
from tap import main, test  # noqa: E402

CHAT = "/v1/chat/completions"
HELLO = "Hi **there**, ünïcode 🎉!"
FOLDER = tempfile.TemporaryDirectory(prefix="strata-tls-")


def path(name):
    return os.path.join(FOLDER.name, name)


def openssl(*arguments):
    subprocess.run(["openssl", *arguments], check=True, capture_output=True, cwd=FOLDER.name)


def certificate(name, issuer=None, kind="ec", start="20200101000000Z", end="20990101000000Z", names="IP:127.0.0.1"):
    """Makes NAME.pem and NAME.key, signed by issuer or by itself."""
    how = ["-newkey", "rsa:2048"] if kind == "rsa" else ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"]
    openssl("req", "-new", *how, "-nodes", "-keyout", f"{name}.key", "-out", f"{name}.csr", "-subj", f"/CN={name}")
    with open(path("ca.conf"), "w", encoding="ascii") as f:
        f.write("[ca]\ndefault_ca = d\n[d]\ndatabase = index.txt\nrand_serial = yes\nnew_certs_dir = .\ndefault_md = sha256\npolicy = p\n"
                "unique_subject = no\nemail_in_dn = no\n[p]\ncommonName = supplied\n[leaf]\n"
                f"subjectAltName = {names}\nbasicConstraints = critical, CA:false\n"
                "[root]\nbasicConstraints = critical, CA:true\nkeyUsage = keyCertSign, digitalSignature\nsubjectKeyIdentifier = hash\n"
                f"subjectAltName = {names}\n")
    with open(path("index.txt"), "w", encoding="ascii"):
        pass
    by = ["-cert", f"{issuer}.pem", "-keyfile", f"{issuer}.key", "-extensions", "leaf"] if issuer else \
        ["-selfsign", "-keyfile", f"{name}.key", "-extensions", "root"]
    openssl("ca", "-batch", "-notext", "-config", "ca.conf", *by, "-in", f"{name}.csr", "-out", f"{name}.pem", "-startdate", start, "-enddate", end)


def client(trusted="good", **settings):
    context = ssl.create_default_context(cafile=path(trusted + ".pem"))
    for name, value in settings.items():
        setattr(context, name, value)
    return context


class Tls(Server):
    def __init__(self, *args, name="good", context=None, **more):
        self.context = context or client()
        super().__init__(args=["--tls-cert", path(name + ".pem"), "--tls-key", path(name + ".key"), *args], **more)

    def connection(self):
        return http.client.HTTPSConnection("127.0.0.1", self.port, timeout=120, context=self.context)

    def request(self, method, path_, body=None, headers=None):
        connection = self.connection()
        try:
            connection.request(method, path_, body=body, headers=headers or {})
            response = connection.getresponse()
            response.body = response.read()
            return response
        finally:
            connection.close()

    def tls_socket(self, context=None, ragged=False):
        return (context or self.context).wrap_socket(self.socket(), server_hostname="127.0.0.1", suppress_ragged_eofs=ragged)

    def metric(self, name):
        return int(re.search(rf"^strata_{name} (\d+)$", self.get("/metrics").body.decode(), re.M)[1])


def user(text, **more):
    return {"messages": [{"role": "user", "content": text}], **more}


def request(value, path_=CHAT, close=False):
    data = json.dumps(value).encode()
    return (f"POST {path_} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n{'Connection: close' + chr(13) + chr(10) if close else ''}"
            f"Content-Length: {len(data)}\r\n\r\n").encode() + data


def chat_text(body):
    return "".join(c["choices"][0]["delta"].get("content") or "" for c in (json.loads(d) for _, d in events(body) if d != "[DONE]") if c["choices"])


def wait_for(what, condition, seconds=60):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, what
        time.sleep(0.02)


def closed(sock, seconds=60):
    """Whether the other end closes, whatever it says before."""
    sock.settimeout(seconds)
    try:
        while sock.recv(4096):
            pass
    except TimeoutError:
        return False
    except OSError:
        pass
    return True


def refused(*args):
    try:
        with Server(args=args, wait=False):
            pass
    except RuntimeError as e:
        assert "listening" not in str(e), e
        return str(e)
    raise AssertionError(f"{args} was accepted")


@test
def certificates_are_made():
    certificate("good")
    certificate("other", names="IP:127.0.0.1,DNS:localhost")
    certificate("rsa", kind="rsa")
    certificate("root")
    certificate("leaf", issuer="root")
    certificate("expired", start="20200101000000Z", end="20210101000000Z")
    certificate("future", start="20980101000000Z")
    with open(path("chain.pem"), "w", encoding="ascii") as f:
        for name in ("leaf", "root"):
            with open(path(name + ".pem"), encoding="ascii") as part:
                f.write(part.read())
    os.link(path("leaf.key"), path("chain.key"))
    openssl("ec", "-in", "good.key", "-aes128", "-passout", "pass:secret", "-out", "locked.key")


@test
def answers_and_streams_are_those_of_plain_http():
    for name, trusted in (("good", "good"), ("rsa", "rsa"), ("chain", "root")):
        with Tls(name=name, context=client(trusted)) as s:
            assert any(line.startswith("listening on https://127.0.0.1:") for line in s.log), s.log
            assert s.json(CHAT, user("hello"))["choices"][0]["message"]["content"] == HELLO
            stream = s.post(CHAT, user("hello", stream=True))
            assert chat_text(stream.body) == HELLO and events(stream.body)[-1] == (None, "[DONE]")
            assert s.get("/").status == 200 and b"app.js" in s.get("/").body
            assert len(s.json("/tokenize", {"content": "x" * 3_000_000})["tokens"]) == 3_000_000


@test
def many_requests_of_one_connection_and_several_at_once():
    with Tls() as s:
        one = s.connection()
        for _ in range(200):
            one.request("POST", CHAT, json.dumps(user("hello", stream=True)), {"Content-Type": "application/json"})
            assert chat_text(one.getresponse().read()) == HELLO
        sock = s.tls_socket()  # the second request is there before the first is answered
        sock.sendall(request(user("hello")) + request(user("hello"), close=True))
        answer = b"".join(iter(lambda: sock.recv(65536), b""))
        assert answer.count(b"HTTP/1.1 200") == 2, answer
        sock.close()
        one.close()


@test
def a_connection_that_ends_is_ended_in_order():
    with Tls() as s:
        for value in (user("hello"), user("hello", stream=True)):
            sock = s.tls_socket()
            sock.sendall(request(value, close=True))
            got = b""
            while piece := sock.recv(65536):  # an end without TLS's own is an exception here
                got += piece
            assert b"HTTP/1.1 200" in got
            sock.close()


@test
def versions_from_1_2_on_are_spoken():
    with Tls() as s:
        for version in (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3):
            sock = s.tls_socket(client(minimum_version=version, maximum_version=version))
            assert sock.version() == {ssl.TLSVersion.TLSv1_2: "TLSv1.2", ssl.TLSVersion.TLSv1_3: "TLSv1.3"}[version]
            sock.close()
        done = subprocess.run(["openssl", "s_client", "-connect", f"127.0.0.1:{s.port}", "-tls1_1", "-cipher", "DEFAULT@SECLEVEL=0"],
                              input=b"", capture_output=True, timeout=120, check=False)
        assert done.returncode != 0 and b"Cipher is (NONE)" in done.stdout, done.stdout
        assert s.json(CHAT, user("hello"))["choices"]


@test
def a_client_that_trusts_another_certificate_goes_and_harms_nobody():
    with Tls() as s:
        for _ in range(10):
            try:
                s.tls_socket(client("other"))
            except ssl.SSLCertVerificationError:
                continue
            raise AssertionError("the certificate was taken for another")
        assert s.json(CHAT, user("hello"))["choices"]


@test
def files_that_cannot_serve_are_refused_at_start_by_name():
    with open(path("garbage"), "wb") as f:
        f.write(b"-----BEGIN CERTIFICATE-----\nnothing\n-----END CERTIFICATE-----\n")
    with open(path("empty"), "wb"):
        pass
    with open(path("half.pem"), "w", encoding="ascii") as f, open(path("good.pem"), encoding="ascii") as good:
        f.write(good.read() + "-----BEGIN CERTIFICATE-----\nnothing\n-----END CERTIFICATE-----\n")
    for cert, key, told in (
            ("nowhere.pem", "good.key", ["nowhere.pem", "No such file"]), ("good.pem", "nowhere.key", ["nowhere.key", "No such file"]),
            (".", "good.key", ["certificate", FOLDER.name]), ("garbage", "good.key", ["garbage", "PEM"]), ("empty", "good.key", ["empty", "PEM"]),
            ("good.pem", "empty", ["empty", "PEM"]), ("good.key", "good.key", ["certificate", "good.key"]), ("good.pem", "good.pem", ["key", "good.pem"]),
            ("half.pem", "good.key", ["half.pem", "issuers"]), ("good.pem", "locked.key", ["locked.key", "encrypted"]),
            ("good.pem", "other.key", ["other.key", "good.pem", "belong"]), ("good.pem", "rsa.key", ["rsa.key", "belong"]),
            ("expired.pem", "expired.key", ["expired.pem", "expired at 2021-01-01 00:00:00 UTC"]),
            ("future.pem", "future.key", ["future.pem", "not valid before 2098-01-01"])):
        said = refused("--tls-cert", path(cert), "--tls-key", path(key))
        assert all(word in said for word in told), (cert, key, said)
    for option, file in (("--tls-cert", "good.pem"), ("--tls-key", "good.key")):
        assert "--tls-cert and --tls-key belong together" in refused(option, path(file))


@test
def plain_http_and_noise_end_the_connection_and_nothing_else():
    with Tls() as s:
        for noise in (request(user("hello")), b"\r\n\r\n", b"A" * 100000, os.urandom(1000), b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + os.urandom(600),
                      b"\x80\x2e\x01\x03\x00", b"\x17\x03\x03\x00\x20" + os.urandom(32)):
            sock = s.socket()
            try:
                sock.sendall(noise)
                sock.shutdown(socket.SHUT_WR)
            except OSError:
                pass
            assert closed(sock), noise[:20]
            sock.close()
        broken = s.tls_socket()  # noise after keys were agreed on
        plain = broken.detach()
        os.write(plain, b"no record at all, but long enough to be taken for the head of one")
        raw = socket.socket(fileno=plain)
        assert closed(raw)
        raw.close()
        wait_for("only ours is open", lambda: s.metric("connections") == 1)
        assert s.json(CHAT, user("hello"))["choices"]


def first_flight():
    """What a client says first."""
    to_client, to_server = ssl.MemoryBIO(), ssl.MemoryBIO()
    session = client().wrap_bio(to_client, to_server, server_hostname="127.0.0.1")
    try:
        session.do_handshake()
    except ssl.SSLWantReadError:
        pass
    return to_server.read()


@test
def handshakes_that_never_end_are_cut_off_and_block_nobody():
    with Tls("--request-timeout", "2") as s:
        hello = first_flight()
        started = [s.socket() for _ in range(3)]
        for sock, said in zip(started, (b"", hello[:20], hello)):
            sock.sendall(said)
        assert s.json(CHAT, user("hello"))["choices"], "served while they hang"
        for sock in started:
            assert closed(sock)
            sock.close()
        slow = s.tls_socket(ragged=True)
        slow.sendall(request(user("hello"))[:40])
        assert closed(slow), "a request that stops in its middle"
        slow.close()
        wait_for("none is left", lambda: s.metric("connections") == 1)
        drip = s.socket()  # a byte now and then is no way to stay
        drip.settimeout(60)
        try:
            for i in range(600):
                drip.sendall(hello[i:i + 1])
                time.sleep(0.1)
        except OSError:
            pass
        else:
            raise AssertionError("a handshake that never ends is still let in")
        drip.close()
        assert s.metric("slow_requests_total") == 1


@test
def limits_hold_behind_tls():
    with Tls("--max-connections", "4", "--max-unread", "4K") as s:
        lazy = s.socket()
        lazy.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        lazy = s.context.wrap_socket(lazy, server_hostname="127.0.0.1")
        lazy.sendall(request(user("endless", stream=True)))
        wait_for("the slow reader is cut off", lambda: s.metric("slow_readers_total") == 1)
        lazy.close()
        s.wait_idle()
        sock = s.tls_socket()
        sock.sendall(b"POST %s HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 99999999999999999999\r\n\r\n" % CHAT.encode())
        answer = b"".join(iter(lambda: sock.recv(65536), b""))
        assert answer.startswith(b"HTTP/1.1 400 ") and b"Content-Length is too large" in answer, answer
        sock.close()
        held = [s.socket() for _ in range(4)]
        wait_for("one too many is closed", lambda: closed(s.socket(), 0.2))
        for sock in held:
            sock.close()

        def served():
            try:
                return s.get("/health").status == 200
            except OSError:
                return False
        wait_for("room again", served)


@test
def a_client_that_goes_frees_the_engine():
    with Tls() as s:
        for reset in (False, True):
            before = s.metric("cancelled_total")
            sock = s.tls_socket()
            sock.sendall(request(user("endless", stream=True)))
            sock.recv(1000)
            if reset:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                sock.close()
            else:
                try:
                    sock.unwrap()  # says that it ends; pieces of the answer are still under way
                except ssl.SSLError:
                    pass
                sock.close()
            wait_for("the answer is given up", lambda: s.metric("cancelled_total") == before + 1)
            s.wait_idle()
        assert s.json(CHAT, user("hello"))["choices"]


@test
def many_connections_leave_nothing_behind():
    with Tls() as s:
        def session(number):
            if number % 4 == 3:  # gone in the middle of it
                sock = s.socket()
                sock.sendall(first_flight()[:number % 50 * 5])
                sock.close()
            else:
                assert s.json(CHAT, user("hello"))["choices"][0]["message"]["content"] == HELLO

        def round_of(count):
            with concurrent.futures.ThreadPoolExecutor(16) as pool:
                list(pool.map(session, range(count)))
            wait_for("only ours is open", lambda: s.metric("connections") == 1)

        round_of(400)
        before = s.resident()
        round_of(1200)
        assert s.sanitized or s.resident() - before < 8 << 20, s.resident() - before
        assert len(os.listdir(f"/proc/{s.process.pid}/fd")) < 40


@test
def a_hangup_reads_the_files_again():
    for end in ("pem", "key"):
        with open(path(f"now.{end}"), "w", encoding="ascii") as f, open(path(f"good.{end}"), encoding="ascii") as source:
            f.write(source.read())
    with Tls(name="now") as s:
        def said(text):
            return sum(text in line for line in s.log)
        open_one = s.connection()
        open_one.request("GET", "/health")
        assert open_one.getresponse().read()
        with open(path("now.pem"), "w", encoding="ascii") as f, open(path("other.pem"), encoding="ascii") as source:
            f.write(source.read())
        s.process.send_signal(signal.SIGHUP)
        wait_for("it says what is wrong", lambda: said("does not belong") == 1)
        assert said("the certificate stays as it was") == 1
        assert s.json(CHAT, user("hello"))["choices"], "as before"
        with open(path("now.key"), "w", encoding="ascii") as f, open(path("other.key"), encoding="ascii") as source:
            f.write(source.read())
        s.process.send_signal(signal.SIGHUP)
        wait_for("they are read", lambda: said("were read again") == 1)
        open_one.request("GET", "/health")
        assert open_one.getresponse().read(), "an open connection goes on"
        open_one.close()
        s.context = client("other")
        assert s.json(CHAT, user("hello"))["choices"]


main()
