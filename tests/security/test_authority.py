"""The certificate authority: survives restarts, keeps its key private, signs only what it should."""

import base64
from datetime import UTC, datetime
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import NameOID

from farflung.errors import InputError, SecurityError
from farflung.security import Caller, Credentials, certificate_fingerprint, make_request, new_key, read_caller, tls_name
from farflung.security.authority import CertificateAuthority
from farflung.units import Seconds

NOW = 1_790_000_000.0


def _names(pem: bytes) -> list[str]:
    extension = x509.load_pem_x509_certificate(pem).extensions.get_extension_for_class(x509.SubjectAlternativeName)
    return extension.value.get_values_for_type(x509.DNSName)


def test_member_certificate_says_name_role_and_time(tmp_path: Path) -> None:
    authority = CertificateAuthority.open(tmp_path, NOW)
    key = new_key()
    pem = authority.sign(make_request("wish", key), name="worker-1", role="worker", now=NOW, validity=Seconds(600.0))
    certificate = x509.load_pem_x509_certificate(pem)
    certificate.verify_directly_issued_by(x509.load_pem_x509_certificate(authority.certificate))
    assert read_caller(text.encode() for text in _names(pem)) == Caller(name="worker-1", role="worker")
    assert certificate.not_valid_after_utc == datetime.fromtimestamp(NOW + 600, UTC)
    assert certificate.not_valid_before_utc < datetime.fromtimestamp(NOW, UTC)
    assert certificate.public_key() == serialization.load_pem_private_key(key, None).public_key()
    assert certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.ca is False


def test_authority_and_server_certificate_survive_a_restart(tmp_path: Path) -> None:
    first = CertificateAuthority.open(tmp_path, NOW)
    server = first.server_credentials(NOW)
    second = CertificateAuthority.open(tmp_path, NOW + 86400)
    assert second.certificate == first.certificate
    assert second.server_credentials(NOW + 86400) == server
    assert len(certificate_fingerprint(server.certificate)) == 32


def test_an_ended_server_certificate_is_renewed(tmp_path: Path) -> None:
    server = CertificateAuthority.open(tmp_path, NOW).server_credentials(NOW)
    later = NOW + 11 * 365 * 86400
    again = CertificateAuthority.open(tmp_path, later).server_credentials(later)
    assert again.certificate != server.certificate
    assert again.expires() > later > server.expires()


def test_keys_are_for_the_owner_only(tmp_path: Path) -> None:
    folder = tmp_path / "state"
    CertificateAuthority.open(folder, NOW).server_credentials(NOW)
    assert folder.stat().st_mode & 0o777 == 0o700
    assert {path.stat().st_mode & 0o777 for path in folder.iterdir()} == {0o600}
    (folder / "authority-key.pem").chmod(0o640)
    with pytest.raises(SecurityError, match=r"mode 0640 lets others read it; run: chmod 600"):
        CertificateAuthority.open(folder, NOW)


@pytest.mark.parametrize(
    ("name", "text"),
    [("authority-key.pem", "holds no usable private key"), ("authority-certificate.pem", "holds no usable certificate")],
)
def test_damaged_files_are_named(tmp_path: Path, name: str, text: str) -> None:
    CertificateAuthority.open(tmp_path, NOW)
    (tmp_path / name).write_bytes(b"noise")
    with pytest.raises(SecurityError, match=f"{name} {text}"):
        CertificateAuthority.open(tmp_path, NOW)


def test_mixed_backups_are_refused(tmp_path: Path) -> None:
    CertificateAuthority.open(tmp_path / "a", NOW)
    CertificateAuthority.open(tmp_path / "b", NOW)
    other = (tmp_path / "b" / "authority-certificate.pem").read_bytes()
    (tmp_path / "a" / "authority-certificate.pem").write_bytes(other)
    with pytest.raises(SecurityError, match="does not belong to"):
        CertificateAuthority.open(tmp_path / "a", NOW)


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(InputError, match="choose a folder that you may write"):
        CertificateAuthority.open(tmp_path / "file", NOW)


def _request(key: ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey) -> bytes:
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "w")])
    signed = x509.CertificateSigningRequestBuilder().subject_name(subject).sign(key, hashes.SHA256())
    return signed.public_bytes(serialization.Encoding.PEM)


def _pem(der: bytes) -> bytes:
    label = b"CERTIFICATE REQUEST-----\n"
    return b"-----BEGIN " + label + base64.encodebytes(der) + b"-----END " + label


def test_bad_requests_are_refused(tmp_path: Path) -> None:
    authority = CertificateAuthority.open(tmp_path, NOW)
    other_curve = _request(ec.generate_private_key(ec.SECP384R1()))
    rsa_key = _request(rsa.generate_private_key(65537, 2048))
    good = make_request("w", new_key())
    der = x509.load_pem_x509_csr(good).public_bytes(serialization.Encoding.DER)
    forged = x509.load_der_x509_csr(der.replace(b"\x0c\x01w", b"\x0c\x01x")).public_bytes(serialization.Encoding.PEM)
    curve = bytes.fromhex("2a8648ce3d0301")  # the last byte, 7, is P-256
    strange_curve, strange_version = (
        _pem(der.replace(curve + b"\x07", curve + b"\x06")),
        _pem(der.replace(b"\2\1\0", b"\2\1\x10", 1)),
    )
    for request, text in [
        (strange_curve, "malformed certificate request: Curve .* is not supported"),
        (strange_version, "malformed certificate request: 16 is not a valid CSR version"),
        (b"noise", "malformed certificate request"),
        (b"x" * 20_000, "has at most 16384 bytes, this one has 20000"),
        (other_curve, "elliptic key on P-256"),
        (rsa_key, "elliptic key on P-256"),
        (forged, "not signed by its own key"),
    ]:
        with pytest.raises(SecurityError, match=text):
            authority.sign(request, name="w", role="worker", now=NOW)
    with pytest.raises(SecurityError, match=r"member name 'a.b' must be 1 to 63 letters"):
        authority.sign(good, name="a.b", role="worker", now=NOW)


def test_credentials_are_kept_and_hide_their_key(tmp_path: Path) -> None:
    server = CertificateAuthority.open(tmp_path / "ca", NOW).server_credentials(NOW)
    server.save(tmp_path / "kept")
    assert Credentials.load(tmp_path / "kept") == server
    assert "PRIVATE" not in repr(server)
    (tmp_path / "kept" / "member-key.pem").unlink()
    with pytest.raises(SecurityError, match=r"cannot read .*member-key.pem: No such file"):
        Credentials.load(tmp_path / "kept")


def test_a_key_of_another_kind_is_refused() -> None:
    key = rsa.generate_private_key(65537, 2048)
    pem = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    with pytest.raises(SecurityError, match="a key of another kind than P-256"):
        make_request("w", pem)


def test_foreign_names_are_nobody() -> None:
    assert read_caller([b"example.org", b"worker.role.farflung"]) is None
    assert tls_name("worker-2") == "worker-2.member.farflung"


def test_names_that_differ_by_case_only_are_never_granted(tmp_path: Path) -> None:
    """TLS takes ``Broker.member.farflung`` for ``broker.member.farflung``."""
    authority = CertificateAuthority.open(tmp_path / "ca", NOW)
    text = "member name 'Broker' must have no capital letters, since TLS takes 'broker' for the same: use that one"
    with pytest.raises(SecurityError, match=text):
        authority.sign(make_request("w", new_key()), name="Broker", role="worker", now=NOW)
    with pytest.raises(SecurityError, match=text):
        make_request("Broker", new_key())
    with pytest.raises(SecurityError, match=text):
        tls_name("Broker")
