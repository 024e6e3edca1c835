"""The app's database: a SQLite file, which schedlock keeps its lock in, too."""

import os
import sqlite3
from contextlib import closing, contextmanager

PATH = os.environ["SCHEDLOCK_DATABASE_URL"]


@contextmanager
def transaction(first=None):
    """Commits at the end, and rolls back on an error.

    first is a statement that must change one row: the fence.
    """
    # To close it rolls back what is not committed.
    with closing(sqlite3.connect(PATH, timeout=30, isolation_level=None)) as db:
        db.execute("BEGIN IMMEDIATE")
        if first and db.execute(first).rowcount != 1:
            raise RuntimeError("another replica holds the lock")
        yield db
        db.execute("COMMIT")


def query(sql):
    with closing(sqlite3.connect(PATH, timeout=30)) as db:
        return db.execute(sql).fetchall()


def create_tables():
    with transaction() as db:
        db.execute(
            "CREATE TABLE IF NOT EXISTS bans"
            " (network TEXT PRIMARY KEY, list TEXT NOT NULL, seen REAL NOT NULL)"
        )
        db.execute(
            "CREATE TABLE IF NOT EXISTS ticks"
            " (second INTEGER NOT NULL, term INTEGER NOT NULL, host TEXT NOT NULL)"
        )
