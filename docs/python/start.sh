#!/bin/bash
# One replica: the web server, and the jobs, which run on one replica of the fleet.
# SIGTERM ends both. If one of them ends, so does the other, and the container.
gunicorn --workers 4 --worker-tmp-dir /dev/shm --bind "0.0.0.0:${PORT:-8080}" app:app &
schedlock exec --verbose --restart always --ttl "${LOCK_TTL:-60s}" -- python3 scheduler.py &
trap : TERM INT
wait -n
code=$?
kill -TERM $(jobs -p) 2>/dev/null
wait
exit $code
