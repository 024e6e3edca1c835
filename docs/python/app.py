"""The web app: gunicorn runs four workers of it in every replica."""

import os
import socket
import sqlite3

from flask import Flask, jsonify, render_template_string

import db

app = Flask(__name__)
db.create_tables()

PAGE = """<!doctype html>
<html lang="en"><meta charset="utf-8"><meta http-equiv="refresh" content="2">
<title>Bans</title>
<h1>{{ bans }} banned networks</h1>
<p>{% if leader %}<strong>{{ leader }}</strong> runs the jobs.
{% else %}No replica runs the jobs.{% endif %}
This page is from a worker of <strong>{{ replica }}</strong>, pid {{ worker }}.</p>
<ul>{% for list, n in lists.items() %}<li>{{ list }}: {{ n }}</li>{% endfor %}</ul>
<p>Last ticks: {% for tick in ticks[-10:] %}{{ tick.second }} by {{ tick.host }}; {% endfor %}</p>
"""


def status():
    try:
        holder = db.query("SELECT hostname FROM scheduler_lock")
    except sqlite3.OperationalError:  # schedlock exec has not made its tables yet
        holder = []
    return {
        "replica": socket.gethostname(),
        "worker": os.getpid(),
        "leader": holder[0][0] if holder else None,
        "bans": db.query("SELECT count(*) FROM bans")[0][0],
        "lists": dict(db.query("SELECT list, count(*) FROM bans GROUP BY list ORDER BY list")),
        "ticks": [
            {"second": second, "term": term, "host": host}
            for second, term, host in db.query("SELECT * FROM ticks ORDER BY rowid")
        ],
    }


@app.get("/")
def page():
    return render_template_string(PAGE, **status())


@app.get("/status")
def as_json():
    return jsonify(status())


@app.get("/healthz")
def healthz():
    db.query("SELECT 1 FROM bans LIMIT 1")
    return "ok\n"
