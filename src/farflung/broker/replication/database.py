"""The database that brokers of one cluster share: who leads, who stands by, and every change of the leader's folder.

| table | content |
| --- | --- |
| ``farflung_leader`` | one row: the cluster, the leader, its term, and a number that each of its writes increases |
| ``farflung_changes`` | numbered changes of files; the files of the folder are what the changes make in their order |
| ``farflung_standbys`` | the addresses of the brokers that stand by |

Each write begins with an update of the leader's row that names the writer's term. So the row is both lock and fence: a broker
that was superseded changes nothing, and changes of one term never follow those of a later one. No clock is compared: a broker
that stands by watches the number by its own clock (Gray and Cheriton, "Leases", SOSP 1989, with the receiver's clock only).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from farflung.errors import ConnectionLost, DataError, FarflungError, InputError
from farflung.extras import require_sql

if TYPE_CHECKING:
    from sqlalchemy import URL, Connection, Engine

__all__ = ["Change", "LeaderRow", "RecordsDatabase", "Superseded", "Unreachable"]

#: Seconds for a connection, and for a lock; and after which PostgreSQL ends the transaction of a broker that stopped in it.
_PATIENCE, _IDLE = 4, 2
#: Changes that are read at once.
_BATCH = 64


class Superseded(FarflungError):
    """Another broker leads, so nothing was written."""


class Unreachable(ConnectionLost):
    """The database does not answer now. Whether the last write was done is not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """``kind``: ``put`` replaces the file ``path`` of the broker's folder by ``body``, ``append`` adds ``body`` to it."""

    number: int
    path: str
    kind: str
    body: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaderRow:
    """Who leads. ``cluster``: the fingerprint of its authority; ``holder``: the id of a broker (empty: it has ended)."""

    cluster: str = ""
    term: int = 0
    beat: int = 0
    holder: str = ""
    address: str = ""


class RecordsDatabase:
    """Safe for several threads; each call is one transaction. ``Unreachable`` may be raised by each call."""

    def __init__(self, text: str) -> None:
        """Connect to the database with the URL ``text``, and make the tables that are missing.

        Raises:
            InputError: the URL is wrong, or its driver is not installed.
            ConnectionLost: the database does not answer, or refuses.
        """
        require_sql()
        import sqlalchemy as sql

        self._sql = sql
        url = _parsed(text)
        #: The URL without its password, and without its options, which may have one, too.
        self.name = url.set(query={}).render_as_string(hide_password=True)
        self._tables = sql.MetaData()
        self._leader, self._changes, self._standbys = _tables(self._tables)
        self._engine = self._made_engine(url)
        try:
            self._create()
        except BaseException:
            self._engine.dispose()
            raise

    def _create(self) -> None:
        with self._transaction() as base:
            self._tables.create_all(base)
            if base.execute(self._sql.select(self._leader.c.id)).first() is None:
                base.execute(self._leader.insert().values(id=1, cluster="", term=0, beat=0, holder="", address=""))

    def close(self) -> None:
        """Close all connections."""
        self._engine.dispose()

    # -- who leads ----------------------------------------------------------------------------------------------------

    def leader(self) -> LeaderRow:
        """Return who leads."""
        with self._transaction() as base:
            row = base.execute(self._sql.select(self._leader)).one()
        return LeaderRow(cluster=row.cluster, term=row.term, beat=row.beat, holder=row.holder, address=row.address)

    def take(self, seen: LeaderRow, holder: str, address: str) -> LeaderRow:
        """Lead, if nobody has written since ``seen`` was read.

        Raises:
            Superseded: somebody has.
        """
        table = self._leader
        found = LeaderRow(cluster=seen.cluster, term=seen.term + 1, beat=seen.beat + 1, holder=holder, address=address)
        new = {"term": found.term, "beat": found.beat, "holder": holder, "address": address}
        with self._transaction() as base:
            same = (table.c.term == seen.term) & (table.c.beat == seen.beat)
            if base.execute(table.update().where(same).values(**new)).rowcount != 1:
                raise Superseded("another broker took over first")
            base.execute(self._standbys.delete().where(self._standbys.c.address == address))
        return found

    def write(self, term: int, changes: Sequence[Change] = (), *, cluster: str = "", ends: bool = False) -> None:
        """Add ``changes`` under ``term``, and renew the lease. It may be repeated after ``Unreachable``.

        ``cluster``: store the fingerprint of the authority. ``ends``: the leader ends its term.

        Raises:
            Superseded: another broker leads, and nothing is written.
        """
        table, rows = self._leader, self._changes
        new: dict[str, Any] = {"beat": table.c.beat + 1}
        new |= {"cluster": cluster} if cluster else {}
        new |= {"holder": ""} if ends else {}
        with self._transaction() as base:
            if base.execute(table.update().where(table.c.term == term).values(**new)).rowcount != 1:
                raise Superseded("another broker has taken over")
            done = self._last(base)  # the transaction may have succeeded before, when the answer was lost
            for change in changes:
                if change.number <= done:
                    continue
                if change.kind == "put":
                    base.execute(rows.delete().where(rows.c.path == change.path))
                values = {"number": change.number, "path": change.path, "kind": change.kind, "body": change.body}
                base.execute(rows.insert().values(term=term, **values))

    # -- the folder ---------------------------------------------------------------------------------------------------

    def last(self) -> int:
        """Return the number of the last change (0: there is none)."""
        with self._transaction() as base:
            return self._last(base)

    def changes(self, after: int) -> Iterator[Change]:
        """Return the changes after the number ``after``, in their order; each batch is one transaction."""
        rows = self._changes
        while True:
            query = self._sql.select(rows).where(rows.c.number > after).order_by(rows.c.number).limit(_BATCH)
            with self._transaction() as base:
                found = base.execute(query).all()
            for row in found:
                yield Change(number=row.number, path=row.path, kind=row.kind, body=bytes(row.body))
                after = row.number
            if len(found) < _BATCH:
                return

    def _last(self, base: Connection) -> int:
        return int(base.execute(self._sql.select(self._sql.func.max(self._changes.c.number))).scalar() or 0)

    # -- who stands by ------------------------------------------------------------------------------------------------

    def stand_by(self, address: str, beat: int) -> None:
        """Store that the broker at ``address`` stands by; ``beat`` is another number each time."""
        table = self._standbys
        with self._transaction() as base:
            if base.execute(table.update().where(table.c.address == address).values(beat=beat)).rowcount != 1:
                base.execute(table.insert().values(address=address, beat=beat))

    def leave(self, address: str) -> None:
        """The broker at ``address`` stands by no more."""
        with self._transaction() as base:
            base.execute(self._standbys.delete().where(self._standbys.c.address == address))

    def standbys(self) -> dict[str, int]:
        """Return the last ``beat`` of each broker that stands by, by address."""
        with self._transaction() as base:
            rows = base.execute(self._sql.select(self._standbys).order_by(self._standbys.c.address)).all()
        return {row.address: row.beat for row in rows}

    # -- SQLAlchemy ---------------------------------------------------------------------------------------------------

    def _made_engine(self, url: URL) -> Engine:
        kind = url.get_backend_name()
        settings: dict[str, dict[str, Any]] = {
            "sqlite": {"timeout": float(_PATIENCE)},
            "postgresql": {
                "connect_timeout": _PATIENCE,
                "tcp_user_timeout": _PATIENCE * 1000,
                "keepalives_idle": 1,
                "keepalives_interval": 1,
                "keepalives_count": 3,
                "options": f"-c idle_in_transaction_session_timeout={_IDLE}s -c lock_timeout={_PATIENCE}s",
            },
        }
        try:
            return self._sql.create_engine(url, connect_args=settings.get(kind, {}))
        except self._sql.exc.NoSuchModuleError:
            raise InputError(
                f"--records {self.name}: SQLAlchemy knows no database {url.drivername!r}; use sqlite or postgresql, "
                "or install the package of its dialect"
            ) from None
        except ImportError as error:
            raise InputError(
                f"--records {self.name} needs the driver {error.name or url.drivername}, which is not installed here: "
                "pip install 'farflung[sql]' brings those of SQLite and PostgreSQL"
            ) from None

    @contextmanager
    def _transaction(self) -> Iterator[Connection]:
        exc = self._sql.exc
        try:
            with self._engine.begin() as base:
                yield base
        except (exc.OperationalError, exc.InterfaceError, exc.InternalError, exc.TimeoutError) as error:
            raise Unreachable(f"cannot use the database {self.name}: {_short(error)}; check its address and rights") from None
        except exc.SQLAlchemyError as error:
            raise DataError(
                f"the database {self.name} cannot be used: {_short(error)}; give the brokers a database of their own"
            ) from None


def _tables(tables: Any) -> tuple[Any, Any, Any]:
    import sqlalchemy as sql

    column = partial(sql.Column, nullable=False)
    leader = sql.Table(
        "farflung_leader",
        tables,
        sql.Column("id", sql.Integer, primary_key=True, autoincrement=False),
        column("cluster", sql.String(64)),
        column("term", sql.BigInteger),
        column("beat", sql.BigInteger),
        column("holder", sql.String(64)),
        column("address", sql.String(300)),
    )
    changes = sql.Table(
        "farflung_changes",
        tables,
        sql.Column("number", sql.BigInteger, primary_key=True, autoincrement=False),
        column("term", sql.BigInteger),
        column("path", sql.String(400), index=True),
        column("kind", sql.String(10)),
        column("body", sql.LargeBinary(length=2**32 - 1)),
    )
    standbys = sql.Table(
        "farflung_standbys",
        tables,
        sql.Column("address", sql.String(300), primary_key=True),
        column("beat", sql.BigInteger),
    )
    return leader, changes, standbys


def _parsed(text: str) -> URL:
    """Return the URL ``text``; ``postgresql://`` means the driver that ``farflung[sql]`` brings."""
    import sqlalchemy as sql

    try:
        url = sql.make_url(text)
    except (sql.exc.ArgumentError, ValueError):
        raise InputError(
            "--records is no URL of a database: write e.g. sqlite:////shared/records.sqlite or "
            "postgresql://user:password@host/database"
        ) from None
    if url.drivername in ("postgres", "postgresql"):
        url = url.set(drivername="postgresql+psycopg")
    if url.get_backend_name() == "sqlite" and url.database in (None, "", ":memory:"):
        raise InputError("--records sqlite:// names no file: write e.g. sqlite:////shared/records.sqlite")
    return url


def _short(error: Exception) -> str:
    """Return the first line of what the driver says."""
    return str(getattr(error, "orig", None) or error).strip().partition("\n")[0][:200]
