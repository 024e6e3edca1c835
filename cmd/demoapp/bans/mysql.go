package bans

import "time"

// MySQL is the dialect of MariaDB through github.com/go-sql-driver/mysql, in sessions whose
// time zone is UTC, and whose driver parses times.
var MySQL = Dialect{
	name:    "mariadb",
	timeArg: func(t time.Time) any { return t.UTC().Format("2006-01-02 15:04:05.000000") },

	exists: `
SELECT EXISTS (SELECT 1 FROM information_schema.tables
               WHERE table_schema = database() AND table_name = 'bans')`,
	create: []string{`
CREATE TABLE IF NOT EXISTS bans (
    prefix     varchar(64) NOT NULL PRIMARY KEY,
    list       text        NOT NULL,
    first_seen datetime(6) NOT NULL,
    last_seen  datetime(6) NOT NULL,
    expires_at datetime(6) NOT NULL,
    KEY bans_first_seen (first_seen DESC, prefix),
    KEY bans_expires_at (expires_at)
) ENGINE = InnoDB DEFAULT CHARSET = utf8mb4 COLLATE = utf8mb4_bin`},
	// ON DUPLICATE KEY UPDATE would count a row that it changes twice. See onConflict.
	update: `
UPDATE ` + mysqlNetworks + `
JOIN bans b ON b.prefix = CONVERT(n.prefix USING utf8mb4) COLLATE utf8mb4_bin
SET b.list = a.list, b.last_seen = a.seen, b.expires_at = a.expires
WHERE b.last_seen < CAST(a.seen AS datetime(6))`,
	upsert: `
INSERT INTO bans (prefix, list, first_seen, last_seen, expires_at)
SELECT n.prefix, a.list, a.seen, a.seen, a.expires FROM ` + mysqlNetworks + `
WHERE NOT EXISTS (SELECT 1 FROM bans b
                  WHERE b.prefix = CONVERT(n.prefix USING utf8mb4) COLLATE utf8mb4_bin)`,
	expire: `
DELETE FROM bans WHERE expires_at <= ? ORDER BY expires_at LIMIT ?`,
	latest: latest + "?",
}

const mysqlNetworks = `
(SELECT ? AS networks, ? AS list, ? AS seen, ? AS expires) AS a
JOIN JSON_TABLE(a.networks, '$[*]' COLUMNS (prefix varchar(64) PATH '$')) AS n`
