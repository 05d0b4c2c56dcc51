"""Keys, certificate requests and what a member shows to others (X.509 with elliptic keys on P-256, PEM in and out).

A certificate names its member and the member's role twice over: the common name is the member's name, and two alternative
names (``<name>.member.farflung``, ``<role>.role.farflung``) let TLS libraries check the name and servers read the role without
parsing the certificate.
"""

from __future__ import annotations

import hashlib
import os
import re
import secrets
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from cryptography.x509.oid import NameOID

from farflung.errors import SecurityError
from farflung.security.files import make_private_folder, read_private, write_private

__all__ = [
    "Caller",
    "Credentials",
    "certificate_fingerprint",
    "kept_key",
    "key_fingerprint",
    "make_request",
    "new_key",
    "read_caller",
    "tls_name",
]

_LABEL = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9_-]{0,61}[A-Za-z0-9])?")
_MEMBER = ".member.farflung"
_ROLE = ".role.farflung"


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """Who speaks, as his certificate says; ``key``: the fingerprint of the key that he proved to hold."""

    name: str
    role: str
    key: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Credentials:
    """What one member needs to speak to others over TLS; all three texts are PEM (ASCII bytes)."""

    name: str
    key: bytes = field(repr=False)
    certificate: bytes = field(repr=False)
    authority: bytes = field(repr=False)

    def save(self, folder: Path) -> None:
        """Keep the credentials in ``folder`` (files of mode 0600).

        Raises:
            SecurityError: the files can't be written.
        """
        make_private_folder(folder)
        write_private(folder / "member-key.pem", self.key)
        write_private(folder / "member-certificate.pem", self.certificate)
        write_private(folder / "authority-certificate.pem", self.authority)

    @classmethod
    def load(cls, folder: Path) -> Credentials:
        """Read back what ``save`` kept.

        Raises:
            SecurityError: a file is missing, damaged, or readable by others.
        """
        certificate = read_private(folder / "member-certificate.pem")
        return cls(
            name=_common_name(parse_certificate(certificate, folder / "member-certificate.pem")),
            key=read_private(folder / "member-key.pem"),
            certificate=certificate,
            authority=read_private(folder / "authority-certificate.pem"),
        )

    def expires(self) -> float:
        """Unix time at which the certificate ends."""
        return parse_certificate(self.certificate, "the member's certificate").not_valid_after_utc.timestamp()


def check_name(name: str, what: str = "member name") -> str:
    """``name`` if it may stand in a certificate.

    Raises:
        SecurityError: it is empty, too long or holds other signs than letters, digits, ``-`` and ``_``.
    """
    if _LABEL.fullmatch(name) is None:
        raise SecurityError(f"{what} {name!r} must be 1 to 63 letters, digits, '-' or '_', with a letter or digit at both ends")
    return name


def tls_name(name: str) -> str:
    """The name under which TLS checks the member ``name`` (``grpc.ssl_target_name_override``).

    Raises:
        SecurityError: no certificate says ``name``: it is malformed, or has capitals, which TLS does not tell from small letters.
    """
    if check_name(name) != name.lower():
        raise SecurityError(
            f"member name {name!r} must have no capital letters, since TLS takes {name.lower()!r} for the same: use that one"
        )
    return name + _MEMBER


def subject_names(name: str, role: str) -> list[str]:
    """The alternative names of the certificate of member ``name`` with ``role``."""
    return [tls_name(name), check_name(role, "role") + _ROLE]


def read_caller(alternative_names: Iterable[bytes]) -> Caller | None:
    """The member whom a verified certificate's alternative names describe; None if they are not farflung's."""
    name = role = ""
    for raw in alternative_names:
        text = raw.decode("ascii", "replace")
        if text.endswith(_MEMBER):
            name = text.removesuffix(_MEMBER)
        elif text.endswith(_ROLE):
            role = text.removesuffix(_ROLE)
    return Caller(name=name, role=role) if name and role else None


@lru_cache(maxsize=1024)
def key_fingerprint(pem: bytes) -> str:
    """SHA-256 (hexadecimal) of the public key in the certificate ``pem``: the same for all certificates of one key.

    Raises:
        SecurityError: ``pem`` holds no certificate.
    """
    public = parse_certificate(pem, "the text").public_key()
    return hashlib.sha256(public.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)).hexdigest()


def kept_key(path: Path) -> bytes:
    """The private key in ``path``, made there (mode 0600) if there is none: who joins with it is known again.

    Processes that ask at the same moment get the same key.

    Raises:
        InputError: its folder can't be made.
        SecurityError: the file can't be written or read, holds no key, or others may read it.
    """
    make_private_folder(path.parent)
    if not path.exists():
        fresh = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
        write_private(fresh, new_key())
        try:
            os.link(fresh, path)
        except FileExistsError:
            pass  # another process was faster
        finally:
            fresh.unlink()
    key = read_private(path)
    parse_key(key, path)
    return key


def new_key() -> bytes:
    """A fresh private key (P-256) as PEM."""
    key = ec.generate_private_key(ec.SECP256R1())
    return key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())


def parse_key(pem: bytes, where: object) -> ec.EllipticCurvePrivateKey:
    """The private key in ``pem``; ``where`` names its source in the error."""
    try:
        key = serialization.load_pem_private_key(pem, password=None)
    except (ValueError, TypeError) as error:
        raise SecurityError(f"{where} holds no usable private key ({error}); delete it to make a new one") from error
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise SecurityError(f"{where} holds a key of another kind than P-256; delete it to make a new one")
    return key


def public_key_bytes(key_pem: bytes) -> bytes:
    """Return the public part of a private key, in the form whose hash is a ``key_fingerprint``.

    Raises:
        SecurityError: the key is not usable.
    """
    public = parse_key(key_pem, "the member's key").public_key()
    return public.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)


def parse_certificate(pem: bytes, where: object) -> x509.Certificate:
    """The certificate in ``pem``; ``where`` names its source in the error."""
    try:
        return x509.load_pem_x509_certificate(pem)
    except (ValueError, x509.InvalidVersion) as error:
        raise SecurityError(f"{where} holds no usable certificate ({error})") from error


def make_request(name: str, key_pem: bytes) -> bytes:
    """A certificate signing request for member ``name`` as PEM.

    Raises:
        SecurityError: the name can't stand in a certificate, or the key is not usable.
    """
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, tls_name(name).removesuffix(_MEMBER))])
    request = x509.CertificateSigningRequestBuilder().subject_name(subject)
    return request.sign(parse_key(key_pem, "the member's key"), hashes.SHA256()).public_bytes(serialization.Encoding.PEM)


def certificate_fingerprint(pem: bytes) -> bytes:
    """SHA-256 (32 bytes) of the certificate's DER form.

    Raises:
        SecurityError: ``pem`` holds no certificate.
    """
    return parse_certificate(pem, "the text").fingerprint(hashes.SHA256())


def _common_name(certificate: x509.Certificate) -> str:
    found = certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    return str(found[0].value) if found else ""
