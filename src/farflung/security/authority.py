"""The broker's own certificate authority: one key in the broker's state folder signs everyone who joins with a ticket.

The folder outlives the broker: after a restart the same authority and the same server certificate serve again, so tickets
(which carry the server certificate's fingerprint) and members' certificates stay good.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from farflung.errors import SecurityError
from farflung.security.certificates import Credentials, new_key, parse_certificate, parse_key, subject_names
from farflung.security.files import make_private_folder, read_private, write_private
from farflung.units import Seconds

__all__ = ["CertificateAuthority"]

_YEAR = 365 * 86400.0
_WEEK = Seconds(7 * 86400.0)
#: Clocks of members may be late by this much and still find a new certificate valid.
_BACKDATE = 3600.0
_MAX_REQUEST = 16 << 10


@dataclass(frozen=True, slots=True)
class _Grant:
    """One certificate to make."""

    name: str
    role: str
    public_key: ec.EllipticCurvePublicKey
    start: float
    end: float


class CertificateAuthority:
    """Signs certificates; made by ``open``, which finds or founds the authority in a folder."""

    def __init__(self, key: ec.EllipticCurvePrivateKey, certificate: x509.Certificate, folder: Path) -> None:
        self._key = key
        self._certificate = certificate
        self._folder = folder

    @classmethod
    def open(cls, folder: Path, now: float) -> CertificateAuthority:
        """The authority that lives in ``folder``, founded at Unix time ``now`` if there is none (key file of mode 0600).

        Raises:
            SecurityError: the files can't be read or written, are damaged, don't fit together, or others may read the key.
        """
        make_private_folder(folder)
        key_path, certificate_path = folder / "authority-key.pem", folder / "authority-certificate.pem"
        if not key_path.exists():
            write_private(key_path, new_key())
            certificate_path.unlink(missing_ok=True)
        key = parse_key(read_private(key_path), key_path)
        if not certificate_path.exists():
            write_private(certificate_path, _pem(_own_certificate(key, now)))
        certificate = parse_certificate(read_private(certificate_path), certificate_path)
        if certificate.public_key() != key.public_key():
            raise SecurityError(f"{certificate_path} does not belong to {key_path}; restore both from one backup, or delete both")
        return cls(key, certificate, folder)

    @property
    def certificate(self) -> bytes:
        """The authority's certificate (PEM): what members take as their root of trust."""
        return _pem(self._certificate)

    def server_credentials(self, now: float, name: str = "broker") -> Credentials:
        """The broker's own credentials, made at the first call and kept in the folder until they end.

        A new server certificate makes old tickets useless (they pin the old one), hence its validity of ten years.
        """
        key_path, certificate_path = self._folder / "server-key.pem", self._folder / "server-certificate.pem"
        if key_path.exists() and certificate_path.exists():
            key, certificate = read_private(key_path), read_private(certificate_path)
            parsed = parse_certificate(certificate, certificate_path)
            same_key = parsed.public_key() == parse_key(key, key_path).public_key()
            if same_key and self._signed(parsed) and parsed.not_valid_after_utc.timestamp() > now:
                return Credentials(name=name, key=key, certificate=certificate, authority=self.certificate)
        key = new_key()
        public = parse_key(key, key_path).public_key()
        certificate = self._sign(_Grant(name=name, role="broker", public_key=public, start=now - _BACKDATE, end=now + 10 * _YEAR))
        write_private(key_path, key)
        write_private(certificate_path, certificate)
        return Credentials(name=name, key=key, certificate=certificate, authority=self.certificate)

    def sign(self, request: bytes, *, name: str, role: str, now: float, validity: Seconds = _WEEK) -> bytes:
        """Sign a member's request (PEM): the answer (PEM) says ``name`` and ``role``, whatever the request asked for.

        Only the public key is taken from the request. ``now`` is Unix time, ``validity`` seconds from then on.

        Raises:
            SecurityError: the request is malformed, not signed by its own key, or brings no P-256 key; the name is not usable.
        """
        if len(request) > _MAX_REQUEST:
            raise SecurityError(f"a certificate request has at most {_MAX_REQUEST} bytes, this one has {len(request)}")
        try:
            parsed = x509.load_pem_x509_csr(request)
            public = parsed.public_key()
            honest = parsed.is_signature_valid
        except (ValueError, InvalidSignature, TypeError, UnsupportedAlgorithm, x509.InvalidVersion) as error:
            raise SecurityError(f"malformed certificate request: {error}") from error
        if not honest:
            raise SecurityError("the certificate request is not signed by its own key; make it again")
        if not isinstance(public, ec.EllipticCurvePublicKey) or not isinstance(public.curve, ec.SECP256R1):
            raise SecurityError(
                "a certificate request must bring an elliptic key on P-256; make it with farflung.security.make_request"
            )
        return self._sign(_Grant(name=name, role=role, public_key=public, start=now - _BACKDATE, end=now + validity))

    def host_certificate(self, host: str, now: float) -> tuple[bytes, bytes]:
        """Return a new key and certificate (PEM) of a server for browsers at ``host``, a name or an IP address.

        Its names are no member's, and it is for servers only, so nobody can join with it.
        """
        key = new_key()
        try:
            alternative: x509.GeneralName = x509.IPAddress(ip_address(host.strip("[]")))
        except ValueError:
            alternative = x509.DNSName(host)
        public = parse_key(key, self._folder).public_key()
        grant = _Grant(name="dashboard", role="", public_key=public, start=now - _BACKDATE, end=now + _YEAR)
        return key, self._signed_for(grant, [alternative], [ExtendedKeyUsageOID.SERVER_AUTH])

    def _sign(self, grant: _Grant) -> bytes:
        alternatives = [x509.DNSName(text) for text in subject_names(grant.name, grant.role)]
        return self._signed_for(grant, alternatives, [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH])

    def _signed_for(self, grant: _Grant, names: Sequence[x509.GeneralName], usage: Sequence[x509.ObjectIdentifier]) -> bytes:
        builder = (
            _builder(grant.name, grant.start, min(grant.end, self._certificate.not_valid_after_utc.timestamp()))
            .issuer_name(self._certificate.subject)
            .public_key(grant.public_key)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_key_usage(authority=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage(usage), critical=False)
            .add_extension(x509.SubjectAlternativeName(names), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False)
        )
        return _pem(builder.sign(self._key, hashes.SHA256()))

    def _signed(self, certificate: x509.Certificate) -> bool:
        try:
            certificate.verify_directly_issued_by(self._certificate)
        except (ValueError, TypeError, InvalidSignature):
            return False
        return True


def _own_certificate(key: ec.EllipticCurvePrivateKey, now: float) -> x509.Certificate:
    builder = (
        _builder("farflung authority", now - _BACKDATE, now + 20 * _YEAR)
        .issuer_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "farflung authority")]))
        .public_key(key.public_key())
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_key_usage(authority=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )
    return builder.sign(key, hashes.SHA256())


def _builder(name: str, start: float, end: float) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]))
        .serial_number(x509.random_serial_number())
        .not_valid_before(_moment(start))
        .not_valid_after(_moment(end))
    )


def _moment(unix_time: float) -> datetime:
    return datetime.fromtimestamp(0, UTC) + timedelta(seconds=int(unix_time))


def _key_usage(*, authority: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not authority,
        key_cert_sign=authority,
        crl_sign=authority,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)
