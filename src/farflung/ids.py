"""Identifiers: short random names for things that live, content hashes for things that are data."""

from __future__ import annotations

import hashlib
import secrets

__all__ = ["Pair", "content_hash", "derive_seed", "new_id", "pair_of"]

#: Two members, the smaller name first.
Pair = tuple[str, str]


def new_id(prefix: str) -> str:
    """A fresh name such as ``run-3f9ac2d1`` (32 random bits: for people, not for secrets)."""
    return f"{prefix}-{secrets.token_hex(4)}"


def content_hash(data: bytes) -> str:
    """SHA-256 of ``data`` as 64 hexadecimal digits."""
    return hashlib.sha256(data).hexdigest()


def derive_seed(*parts: int | str) -> int:
    """A 63-bit seed that depends on all of ``parts`` and on nothing else (stable across machines)."""
    text = "\x1f".join(f"{type(part).__name__}:{part}" for part in parts)
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little") >> 1


def pair_of(one: str, other: str) -> Pair:
    """Return the pair of two members, the smaller name first."""
    return (one, other) if one < other else (other, one)
