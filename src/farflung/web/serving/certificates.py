"""The certificate of a dashboard that other machines can reach, signed by the broker's authority."""

from __future__ import annotations

from pathlib import Path

from farflung.clock import wall_time
from farflung.security.authority import CertificateAuthority
from farflung.security.certificates import parse_certificate
from farflung.security.files import read_private, write_private

__all__ = ["host_certificate"]

#: Seconds before its end at which a certificate is made anew.
_MARGIN = 30 * 86400.0


def host_certificate(home: Path, host: str) -> tuple[Path, Path]:
    """Return the files of the key and the certificate for ``host`` in the broker's folder, made if they are missing or old.

    A restart keeps them, so a browser asks a person once only.

    Raises:
        SecurityError: the files of the authority are damaged.
    """
    now, name = wall_time(), host.replace(":", "-")
    places = home / "authority" / f"dashboard-{name}-key.pem", home / "authority" / f"dashboard-{name}.pem"
    if all(path.exists() for path in places):
        found = parse_certificate(read_private(places[1]), places[1])
        if found.not_valid_after_utc.timestamp() > now + _MARGIN:
            return places
    key, certificate = CertificateAuthority.open(home / "authority", now).host_certificate(host, now)
    for path, content in zip(places, (key, certificate), strict=True):
        write_private(path, content)
    return places
