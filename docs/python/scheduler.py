"""The app's jobs. schedlock exec runs this program on one replica of the fleet."""

import ipaddress
import logging
import os
import pathlib
import signal
import socket
import subprocess
import time
from datetime import datetime, timezone

from apscheduler.schedulers.blocking import BlockingScheduler

import db

LISTS = pathlib.Path(os.environ.get("LISTS", "/lists"))
EVERY = int(os.environ.get("IMPORT_EVERY", "300"))  # seconds
TERM = int(os.environ["SCHEDLOCK_TERM"])
FENCE = subprocess.check_output(["schedlock", "fence"], text=True)
BATCH = 1000  # rows in a transaction, so that others can write in between

log = logging.getLogger("jobs")


def networks(path):
    """The networks of a block list: one in a line, comments after # or ;."""
    with path.open(encoding="utf-8-sig", errors="replace") as lines:
        for number, line in enumerate(lines, 1):
            word = line.partition("#")[0].partition(";")[0].strip()
            if not word:
                continue
            try:
                network = ipaddress.ip_network(word, strict=False)
            except ValueError as error:
                log.warning("%s:%d: %s", path.name, number, error)
                continue
            if network.prefixlen == 0:
                log.warning("%s:%d: %s is every address", path.name, number, network)
                continue
            yield str(network)


def import_list(path):
    """Every transaction begins with the fence: a replica that holds the lock no more
    loses the batch that it is in, and cannot write another."""
    begun, found = time.time(), sorted(set(networks(path)))
    for start in range(0, len(found), BATCH):
        with db.transaction(FENCE) as t:
            t.executemany(
                "INSERT INTO bans (network, list, seen) VALUES (?, ?, ?)"
                " ON CONFLICT (network) DO UPDATE SET list = excluded.list, seen = excluded.seen",
                [(network, path.name, begun) for network in found[start : start + BATCH]],
            )
    with db.transaction(FENCE) as t:
        t.execute("DELETE FROM bans WHERE list = ? AND seen < ?", (path.name, begun))
    log.info("%s: %d networks", path.name, len(found))


def import_lists():
    for path in sorted(LISTS.iterdir()):
        if path.suffix in (".txt", ".ipset", ".netset"):
            try:
                import_list(path)
            except OSError:  # its bans stay; the other lists are imported
                log.exception("%s cannot be read", path.name)


last = 0


def tick():
    """Notes each second, without the fence: the page shows that one replica does it."""
    global last
    second = int(time.time())
    if second == last:  # the tick before came late
        return
    last = second
    with db.transaction() as t:
        t.execute("INSERT INTO ticks VALUES (?, ?, ?)", (second, TERM, socket.gethostname()))
        t.execute("DELETE FROM ticks WHERE second < ?", (second - 3600,))


def main():
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
    logging.getLogger("apscheduler").setLevel(logging.WARNING)
    db.create_tables()
    scheduler = BlockingScheduler(timezone="UTC")
    scheduler.add_job(
        import_lists, "interval", seconds=EVERY, next_run_time=datetime.now(timezone.utc)
    )
    scheduler.add_job(tick, "cron", second="*")
    # schedlock exec says SIGTERM when it has to stop. What runs may end, within --grace.
    signal.signal(signal.SIGTERM, lambda *_: scheduler.shutdown())
    scheduler.start()


if __name__ == "__main__":
    main()
