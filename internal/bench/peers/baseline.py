"""Two locks of apps in Python on SQLite, written with the standard library's sqlite3.

    baseline.py DESIGN DB    speaks the protocol of child.go

DESIGN is "bangui": one row, pid and hostname, stale after 60 s, heartbeat every 10 s.
Or it is "sayt2": a row for each lock, a token, expiry after 60 s, no heartbeat, and a
new connection for each call.
"""
import json
import os
import resource
import socket
import sqlite3
import sys
import threading
import time
import uuid
from datetime import datetime, timedelta, timezone

TTL = 60
BEAT = 10
RETRY = 1  # a supervisor starts the process that has lost again


class BanGUI:
    """One row. Whoever starts next deletes a stale one."""

    def __init__(self, path):
        self.path = path
        self.open()
        self.db.execute(
            "CREATE TABLE IF NOT EXISTS scheduler_lock (id INTEGER PRIMARY KEY CHECK (id = 1),"
            " pid INTEGER NOT NULL, hostname TEXT NOT NULL,"
            " created_at REAL NOT NULL, heartbeat_at REAL NOT NULL)"
        )
        self.db.commit()

    def open(self):
        self.db = sqlite3.connect(self.path, check_same_thread=False)
        self.db.execute("PRAGMA journal_mode=WAL")

    def acquire(self):
        now = time.time()
        try:
            self.db.execute("DELETE FROM scheduler_lock WHERE (? - heartbeat_at) > ?", (now, TTL))
            self.db.execute(
                "INSERT INTO scheduler_lock (id, pid, hostname, created_at, heartbeat_at)"
                " VALUES (1, ?, ?, ?, ?)",
                (os.getpid(), socket.gethostname(), now, now),
            )
            self.db.commit()
            return True
        except sqlite3.IntegrityError:
            return False  # the process ends, and so does its transaction

    def renew(self):
        cur = self.db.execute(
            "UPDATE scheduler_lock SET heartbeat_at = ? WHERE id = 1 AND pid = ?",
            (time.time(), os.getpid()),
        )
        self.db.commit()
        return cur.rowcount > 0

    def release(self):
        self.db.execute("DELETE FROM scheduler_lock WHERE id = 1 AND pid = ?", (os.getpid(),))
        self.db.commit()

    def wait(self):
        while not self.acquire():
            self.db.close()
            time.sleep(RETRY)
            self.open()


class Sayt2:
    """One UPSERT. The expiry is fixed when the lock is acquired."""

    UPSERT = (
        "INSERT INTO locks (name, lock, lock_at, expire_at) VALUES (?, ?, ?, ?) "
        "ON CONFLICT(name) DO UPDATE SET lock = excluded.lock, lock_at = excluded.lock_at, "
        "expire_at = excluded.expire_at WHERE locks.lock IS NULL OR locks.expire_at < ?"
    )
    RELEASE = (
        "UPDATE locks SET lock = NULL, lock_at = NULL, expire_at = NULL "
        "WHERE name = ? AND lock = ?"
    )
    renew = None

    def __init__(self, path):
        self.path, self.name, self.token = path, "scheduler", None
        self.write(
            "CREATE TABLE IF NOT EXISTS locks"
            " (name TEXT PRIMARY KEY, lock TEXT, lock_at TEXT, expire_at TEXT)"
        )

    def write(self, statement, values=()):
        c = sqlite3.connect(self.path, timeout=10)
        try:
            c.execute("PRAGMA journal_mode=WAL")
            with c:
                return c.execute(statement, values).rowcount
        finally:
            c.close()

    def acquire(self):
        token, now = uuid.uuid4().hex, datetime.now(timezone.utc)
        iso, until = now.isoformat(), (now + timedelta(seconds=TTL)).isoformat()
        if self.write(self.UPSERT, (self.name, token, iso, until, iso)) != 1:
            return False
        self.token = token
        return True

    def release(self):
        self.write(self.RELEASE, (self.name, self.token))

    def wait(self):
        while not self.acquire():
            time.sleep(RETRY)


def took(call):
    t0 = time.perf_counter_ns()
    call()
    return time.perf_counter_ns() - t0


def series(lock, n):
    acquired, released, renewed = [], [], []
    for i in range(n + 10):
        a, r = took(lock.acquire), took(lock.release)
        if i >= 10:
            acquired.append(a)
            released.append(r)
    lock.acquire()
    if lock.renew:
        renewed = [took(lock.renew) for _ in range(n)]
    lock.release()
    return {"Acquire": acquired, "Release": released, "Renew": renewed or None}


def main():
    lock = {"bangui": BanGUI, "sayt2": Sayt2}[sys.argv[1]](sys.argv[2])
    mutex, held = threading.Lock(), threading.Event()

    def say(word, what=""):
        with mutex:
            print(word, what, flush=True)

    def now():
        return time.clock_gettime_ns(time.CLOCK_BOOTTIME)

    def acquire():
        lock.wait()
        say("HELD", now())
        held.set()

    def beat():
        while lock.renew:
            time.sleep(BEAT)
            if held.is_set():
                lock.renew()

    def start(call):
        threading.Thread(target=call, daemon=True).start()

    start(beat)
    say("READY")
    start(acquire)
    for line in sys.stdin:
        word, _, number = line.strip().partition(" ")
        if word == "cpu":
            r = resource.getrusage(resource.RUSAGE_SELF)
            say("CPU", "%.6f" % (r.ru_utime + r.ru_stime))
        elif word == "release":
            held.clear()
            say("RELEASING", now())
            lock.release()
            say("RELEASED", now())
        elif word == "acquire":
            start(acquire)
        elif word == "series":
            say("SERIES", json.dumps(series(lock, int(number))))


main()
