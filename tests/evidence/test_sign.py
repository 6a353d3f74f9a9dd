"""Signatures: as DSSE and RFC 8032 publish them, with keys as openssl writes them; every byte that is signed counts."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed448, ed25519, rsa, x25519
from sample import SAMPLE

from tokitai.errors import ArgumentError, KeyFileError, TokitaiError, UnavailableError
from tokitai.evidence import sign
from tokitai.evidence.check import PAYLOAD_TYPE, Certificate, Signature, check, read
from tokitai.evidence.sign import envelope, is_signed_by, keyid, pae, private_key, public_key
from tokitai.evidence.statement import build_statement, write
from tokitai.ops import get
from tokitai.verification import batch, verdict, verify
from tokitai.verification.recheck import check_file

V1 = Path(__file__).parent / "v1"
PEM = serialization.Encoding.PEM
PKCS8, PLAIN = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
SPKI = serialization.PublicFormat.SubjectPublicKeyInfo
# RFC 8032, section 7.1: the keys of TEST 1 and TEST 2.
ONE = ed25519.Ed25519PrivateKey.from_private_bytes(
    bytes.fromhex("9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60")
)
TWO = ed25519.Ed25519PrivateKey.from_private_bytes(
    bytes.fromhex("4ccd089b28ff96da9db6c346ec114e0f5b8a319f35aba624da8cf6ed4fb8a6fb")
)
TEXT = b'{"_type":"https://in-toto.io/Statement/v1"}'


def private_pem(key: Any = ONE, encryption: Any = PLAIN) -> bytes:
    data: bytes = key.private_bytes(PEM, PKCS8, encryption)
    return data


def public_pem(key: Any = ONE) -> bytes:
    data: bytes = key.public_key().public_bytes(PEM, SPKI)
    return data


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    """A folder with the halves of the key ONE."""
    (tmp_path / "key.pem").write_bytes(private_pem())
    (tmp_path / "pub.pem").write_bytes(public_pem())
    return tmp_path


# ------------------------------------------------------------------ what others publish
@pytest.mark.parametrize(
    ("kind", "payload", "encoded"),
    [
        ("http://example.com/HelloWorld", b"hello world", b"DSSEv1 29 http://example.com/HelloWorld 11 hello world"),
        ("application/vnd.ex\u00e4mple+json", b"", b"DSSEv1 29 application/vnd.ex\xc3\xa4mple+json 0 "),
        ("", TEXT, b"DSSEv1 0  43 " + TEXT),
    ],
)
def test_what_is_signed_is_as_dsse_has_it(kind: str, payload: bytes, encoded: bytes) -> None:
    """The example of the protocol, and what its test vectors have of types that are not ASCII, or empty."""
    assert pae(kind, payload) == encoded


def test_an_envelope_is_as_in_the_test_vectors_of_dsse() -> None:
    """The vectors "single-signature" and "threshold-two-distinct-keys"."""
    made = envelope(TEXT, ONE)
    assert made["payload"] == "eyJfdHlwZSI6Imh0dHBzOi8vaW4tdG90by5pby9TdGF0ZW1lbnQvdjEifQ=="
    assert made["payloadType"] == "application/vnd.in-toto+json"
    (one,) = made["signatures"]
    assert one["sig"] == "2WAfaHm5jluo0w+0rk8uVkluELJYWjSmU9x7EUzx+AyteDGJ4/nqyJXfmAUVFIAoQafWm7AxBZNw5M9ixNHiCA=="
    (two,) = envelope(TEXT, TWO)["signatures"]
    assert two["sig"] == "c1+67/aT0yqEpwx8PsVY3MLHsj9D0CZ014/Fv/QlG59P+9CobUZ7xECJ/V3USG0Ob9CiE5LjReEZUzNF2l7eBw=="


def test_base64_for_urls_is_read_as_well(tmp_path: Path) -> None:
    """The vector "url-safe-base64"."""
    sig = "P-_KHICeR7tI6S_YyejJTRtrXhcQyQ2LYPaL8h90KjC9qN8HU_svOQ6TuDOT1HIrsGW886DbWNWcCmX5twLrAw=="
    text = json.dumps({"payload": "-_-_Pj8=", "payloadType": PAYLOAD_TYPE, "signatures": [{"sig": sig}]})
    (tmp_path / "x.json").write_text(text)
    found = read(tmp_path / "x.json")
    assert found.payload == b"\xfb\xff\xbf>?"
    assert is_signed_by(found, ONE.public_key()) and not is_signed_by(found, TWO.public_key())


def test_the_key_id_is_the_digest_of_the_raw_key() -> None:
    body = b"".join(public_pem().splitlines()[1:-1])
    assert keyid(ONE.public_key()) == hashlib.sha256(base64.b64decode(body)[-32:]).hexdigest()


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not installed")
def test_openssl_writes_the_keys_and_agrees_on_the_signature(tmp_path: Path) -> None:
    def openssl(*words: str) -> str:
        done = subprocess.run(["openssl", *words], cwd=tmp_path, capture_output=True, text=True, check=True)
        return done.stdout

    openssl("genpkey", "-algorithm", "ed25519", "-out", "key.pem")
    openssl("pkey", "-in", "key.pem", "-pubout", "-out", "pub.pem")
    path = write(build_statement(SAMPLE), tmp_path, private_key(tmp_path / "key.pem"))
    found = read(path)
    assert is_signed_by(found, public_key(tmp_path / "pub.pem")) and found.signatures is not None
    (tmp_path / "message").write_bytes(pae(PAYLOAD_TYPE, found.payload))
    (tmp_path / "sig").write_bytes(found.signatures[0].value)
    words = ("-verify", "-pubin", "-inkey", "pub.pem", "-rawin", "-in", "message", "-sigfile", "sig")
    assert "Verified Successfully" in openssl("pkeyutl", *words)


# ------------------------------------------------------------------ certificates
def test_a_signed_certificate_holds_the_plain_one(keys: Path) -> None:
    statement = build_statement(SAMPLE)
    plain, signed = write(statement, keys), write(statement, keys, ONE)
    assert (plain.name, signed.name) == ("rms_norm.f32.cpu.json", "rms_norm.f32.cpu.dsse.json")
    found = read(signed)
    assert found.payload == plain.read_bytes()
    assert found.signatures == (Signature(keyid(ONE.public_key()), found.signatures[0].value),)  # type: ignore[index]
    assert check(plain) == check(signed) == [] and read(plain) == Certificate(plain.read_bytes(), None)


def changed(path: Path, change: Callable[[Any], object]) -> Path:
    made = json.loads(path.read_text())
    change(made)
    path.write_text(json.dumps(made))
    return path


def test_one_good_signature_is_enough_and_key_ids_do_not_count(keys: Path) -> None:
    path = write(build_statement(SAMPLE), keys, TWO)
    other = envelope(b"of another text", ONE)["signatures"]
    ours = envelope(read(path).payload, ONE)["signatures"][0]["sig"]
    assert check_file(path, key=ONE.public_key()).signature == "wrong"
    changed(path, lambda e: e["signatures"].extend([*other, {"sig": "AAAA", "alg": "none"}]))
    found = check_file(path, key=ONE.public_key())
    assert (found.outcome, found.signature) == ("invalid", "wrong"), "the right key id, and no right signature"
    changed(path, lambda e: e["signatures"].append({"sig": ours, "keyid": "somebody else"}))
    changed(path, lambda e: e.update(more="fields"))
    assert {check_file(path, key=k.public_key()).outcome for k in (ONE, TWO)} == {"well-formed"}
    assert check_file(path).signature == "not checked", "no key, no word on the signature"


def test_a_certificate_of_the_first_version_checks_for_ever() -> None:
    """Never edit these files: whatever is changed, they must be accepted as they are."""
    plain = check_file(V1 / "rms_norm.f32.cpu.json")
    assert (plain.outcome, plain.problems, plain.signature, plain.cases) == ("well-formed", [], "none", 2)
    signed = check_file(V1 / "silu.bf16.cpu.dsse.json", key=public_key(V1 / "key.pub.pem"))
    assert (signed.outcome, signed.problems, signed.verdict) == ("well-formed", [], "verified")
    assert (signed.signature, signed.signer) == ("good", keyid(public_key(V1 / "key.pub.pem")))
    assert signed.keyids == [keyid(public_key(V1 / "key.pub.pem"))]
    assert check_file(V1 / "rms_norm.f32.cpu.json", key=public_key(V1 / "key.pub.pem")).outcome == "invalid"


@pytest.mark.slow
def test_one_flipped_bit_in_any_byte_is_found(tmp_path: Path) -> None:
    """In every byte of payload and signature one bit, another one from byte to byte; elsewhere too, where it may change
    nothing that is signed."""
    data = (V1 / "silu.bf16.cpu.dsse.json").read_bytes()
    key, whole = public_key(V1 / "key.pub.pem"), read(V1 / "silu.bf16.cpu.dsse.json")
    made = json.loads(data)
    protected = set()
    for text in (made["payload"], made["signatures"][0]["sig"]):
        start = data.index(text.encode())
        protected |= set(range(start, start + len(text)))
    assert len(protected) > 5000
    path, accepted = tmp_path / "flipped.json", []
    for place, byte in enumerate(data):
        path.write_bytes(data[:place] + bytes([byte ^ 1 << place % 8]) + data[place + 1 :])
        if check_file(path, key=key).outcome != "invalid":
            accepted.append(place)
            assert read(path).payload == whole.payload
    assert protected.isdisjoint(accepted)
    assert 30 < len(accepted) < 100, "key id and white space, which nothing protects"


# ------------------------------------------------------------------ key files
def wrong_keys() -> dict[str, tuple[bytes, str]]:
    """Files that hold no key to sign with, and what is said of each."""
    secret = serialization.BestAvailableEncryption(b"secret")
    return {
        "empty": (b"", "no private key that can be read"),
        "binary": (bytes(range(256)), "no private key that can be read"),
        "truncated": (private_pem()[:60], "no private key that can be read"),
        "inside": (private_pem().replace(b"MC4C", b"MC5C"), "no private key that can be read"),
        "public": (public_pem(), "a public key"),
        "encrypted": (private_pem(ONE, secret), "the private key is encrypted"),
        "der": (ONE.private_bytes(serialization.Encoding.DER, PKCS8, PLAIN), "no private key that can be read"),
        "huge": (private_pem() * 1000, "more than 65536 bytes"),
        "rsa": (private_pem(rsa.generate_private_key(65537, 1024)), "a key of another kind, RSA"),
        "ec": (private_pem(ec.generate_private_key(ec.SECP256R1())), "a key of another kind, EC"),
        "x25519": (private_pem(x25519.X25519PrivateKey.generate()), "a key of another kind, X25519"),
        "ed448": (private_pem(ed448.Ed448PrivateKey.generate()), "a key of another kind, Ed448"),
    }


WRONG_KEYS = wrong_keys()


@pytest.mark.parametrize("name", WRONG_KEYS)
def test_a_file_that_holds_no_private_key(tmp_path: Path, name: str) -> None:
    data, said = WRONG_KEYS[name]
    (tmp_path / "key").write_bytes(data)
    with pytest.raises(KeyFileError) as caught:
        private_key(tmp_path / "key")
    assert said in str(caught.value) and "accepted: an Ed25519 private key in PEM" in str(caught.value)
    shown = "".join(map(str, (caught.value, caught.value.__cause__, caught.value.args)))
    inside = [line for line in data.splitlines() if b"-----" not in line and len(line) > 8]
    assert not any(line.decode("latin-1") in shown for line in inside)


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "no public key that can be read"),
        (private_pem(), "a private key; accepted: an Ed25519 public key in PEM"),
        (public_pem()[:-40], "no public key that can be read"),
        (public_pem(ec.generate_private_key(ec.SECP256R1())), "a key of another kind, EC"),
    ],
)
def test_a_file_that_holds_no_public_key(tmp_path: Path, data: bytes, said: str) -> None:
    (tmp_path / "key").write_bytes(data)
    with pytest.raises(KeyFileError) as caught:
        public_key(tmp_path / "key")
    assert said in str(caught.value)


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    for load in (private_key, public_key):
        for path, said in ((tmp_path / "none", "No such file"), (tmp_path, "Is a directory"), ("a\0b", "null")):
            with pytest.raises(KeyFileError, match=said):
                load(path)
        with pytest.raises(ArgumentError, match="a key of type int"):
            load(7)  # type: ignore[arg-type]
    os.mkfifo(tmp_path / "pipe")
    for path in ("/dev/zero", tmp_path / "pipe"):
        with pytest.raises(KeyFileError, match="no regular file"):
            private_key(path)


def test_without_the_library_it_is_said_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sign, "find_spec", lambda name: None)
    with pytest.raises(UnavailableError, match=r"install it with `pip install 'tokitai\[sign\]'`"):
        private_key("key.pem")
    with pytest.raises(UnavailableError, match="cryptography"):
        public_key("key.pem")


# ------------------------------------------------------------------ verify
CASE = "seeded/normal@3x17#0"


@pytest.mark.parametrize("given", ["path", "text", "key"])
def test_verify_signs_what_it_writes(keys: Path, given: str) -> None:
    key: Any = {"path": keys / "key.pem", "text": str(keys / "key.pem"), "key": ONE}[given]
    made = verify(get("silu"), dtype="f16", case=CASE, out=keys / "out", sign=key)
    assert made.certificate == keys / "out" / "silu.f16.cpu.dsse.json"
    assert check_file(made.certificate, key=ONE.public_key(), rerun=0).outcome == "recomputed"
    assert sorted(p.name for p in (keys / "out").iterdir()) == ["silu.f16.cpu.dsse.json", "silu.f16.cpu.dsse.md"]
    secret = b"".join(private_pem().splitlines()[1:-1])
    raw = ONE.private_bytes_raw()
    for path in (keys / "out").iterdir():
        data = path.read_bytes()
        assert not any(s in data for s in (secret, raw, raw.hex().encode(), base64.b64encode(raw)))


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (dict(sign="missing.pem", out="out"), KeyFileError),
        (dict(sign=V1 / "key.pub.pem", out="out"), KeyFileError),
        (dict(sign=ONE), ArgumentError),
        (dict(sign=b"key.pem", out="out"), ArgumentError),
    ],
)
def test_a_bad_key_is_found_before_anything_is_run(
    monkeypatch: pytest.MonkeyPatch, arguments: dict[str, Any], error: type[TokitaiError]
) -> None:
    monkeypatch.setattr(verdict, "kernel_on", lambda *_, **__: pytest.fail("compiled"))
    with pytest.raises(error):
        verify(get("silu"), dtype="f16", **arguments)
    monkeypatch.setattr(batch, "_compiled_ahead", lambda *_: pytest.fail("compiled"))
    with pytest.raises(error):
        batch.verify_many([batch.Job(get("silu"), "f16")], **arguments)


def test_processes_sign_with_a_key_that_was_read_once(keys: Path) -> None:
    jobs = [batch.Job(get("silu"), fmt, case=CASE) for fmt in ("f16", "f32")]
    key = private_key(keys / "key.pem")
    (keys / "key.pem").unlink()
    made = batch.verify_many(jobs, out=keys / "out", sign=key, processes=2)
    assert [check_file(v.certificate or "", key=ONE.public_key()).signature for v in made] == ["good", "good"]
