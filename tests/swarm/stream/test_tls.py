"""Certificates name peers; keys do not stay on disk."""

import socket
import tempfile
import threading
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from atom.base.errors import PeerRefused
from atom.base.reasons import Reason
from atom.swarm.identity import Identity
from atom.swarm.stream.frames import Patience
from atom.swarm.stream.tls import make_credentials, peer_of_certificate, wrap


def test_the_certificate_carries_the_peer_id() -> None:
    identity = Identity.create()
    assert peer_of_certificate(make_credentials(identity).certificate) == identity.peer_id


def test_the_key_file_is_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    make_credentials(Identity.create())
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("der", [None, b"", b"garbage", b"0" * 5000])
def test_unreadable_certificates_are_a_wrong_identity(der: bytes | None) -> None:
    with pytest.raises(PeerRefused) as refused:
        peer_of_certificate(der)
    assert refused.value.reason is Reason.WRONG_IDENTITY


def test_another_kind_of_key_is_a_wrong_identity() -> None:
    ours = x509.load_der_x509_certificate(make_credentials(Identity.create()).certificate)
    key = ec.generate_private_key(ec.SECP256R1())
    builder = x509.CertificateBuilder().subject_name(ours.subject).issuer_name(ours.subject)
    builder = builder.public_key(key.public_key()).serial_number(1)
    builder = builder.not_valid_before(ours.not_valid_before_utc)
    builder = builder.not_valid_after(ours.not_valid_after_utc)
    der = builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.DER)
    with pytest.raises(PeerRefused) as refused:
        peer_of_certificate(der)
    assert refused.value.reason is Reason.WRONG_IDENTITY


def test_two_peers_speak_tls_13_and_the_client_sees_the_server_key() -> None:
    server = make_credentials(Identity.create())
    client = make_credentials(Identity.create())
    near, far = socket.socketpair()
    inside = wrap(near, server, server_side=True)
    outside = wrap(far, client, server_side=False)
    thread = threading.Thread(target=inside.handshake, args=(Patience.within(5),))
    thread.start()
    outside.handshake(Patience.within(5))
    thread.join(5)
    assert outside.version == "TLSv1.3"
    assert outside.certificate() == server.certificate
    outside.send_all(memoryview(b"hello"), Patience(5))
    heard = bytearray(5)
    inside.recv_into(memoryview(heard), Patience(5))
    assert heard == b"hello"
    inside.close()
    outside.close()
