// Package migrations creates and upgrades the tables of the scheduler lock: the lock row, the
// history of terms, and the run ledger. The SQL files are embedded, one folder per dialect, and
// run by goose.
//
//	err := migrations.Up(ctx, db, migrations.SQLite)
//
// Every replica calls [Up] at its start. Twenty that start at once on a database that does not
// exist yet all succeed.
//
// # A version table of our own
//
// Goose records what it has applied in scheduler_lock_migrations, never in its default
// goose_db_version: the app that embeds this module may use goose for its own tables, with its own
// numbers, in the same database. For the same reason the Go migrations that the app has registered
// with goose do not run here.
//
// # Nothing to do costs nothing
//
// [Up] reads the version first. If the schema is current it returns after two or three reads: no
// goose, no lock, no write. So a current schema on a read-only database is fine.
//
// # SQLite: a file lock around the work
//
// Goose has no lock for SQLite: of replicas that find the same empty file, all but one fail, with
// "table already exists" or "database is locked". So the work is done under an operating system
// lock on a file of its own, next to the database: "<database path>-migrate.lock", where the path
// is the one that the connection itself reports, symbolic links resolved. Whatever DSN or *sql.DB
// the replicas use, they meet at the same file.
//
// The kernel holds that lock for the process, and drops it when the process dies, however it dies.
// A left-over lock file therefore means nothing and blocks nobody, and it is not removed: a removed
// lock file lets one process lock the old file and another the new one. It stays empty and may be
// deleted while no replica starts.
//
// The file has the owner of the database, also if root made it, and is open to those only who may
// write the database: whoever may read a file may lock it. Something else in its place, such as a
// link, a pipe or a file with content, is an error at once.
//
// The database file itself is never opened here outside SQLite: closing any descriptor of it would
// drop the POSIX locks of another SQLite driver in the same process.
//
// An in-memory database has no file and no other process: there a lock inside this process does.
//
// # PostgreSQL: the first to commit wins
//
// PostgreSQL creates tables in transactions, so no lock is needed, nor a session: this works
// through PgBouncer in transaction mode. Every migration is one transaction that ends with its row
// in scheduler_lock_schema, whose primary key lets only one of several processes commit it. The
// others wait inside their first conflicting statement, fail, change nothing, find that the version
// has grown, and go on from there. A process that dies leaves nothing behind: the server rolls its
// transaction back with its connection. Of all that, the server's log may show "already exists"
// errors of those who lost.
//
// A migration that changes a table waits for whoever reads it, and everybody else waits behind the
// migration. So it waits for half a second only, gives way, and tries again until its deadline.
//
// Without CREATE on the schema an app cannot migrate, but works if an administrator has: it then
// only needs to read scheduler_lock_schema here. The tables land in the first schema of the
// search_path.
//
// # MariaDB: a named lock, and steps that bear repetition
//
// MariaDB commits each statement that makes a table, so a process that dies in the middle leaves
// half of a migration behind. Each statement bears repetition: the next process goes on from there.
// One at a time works, under GET_LOCK, which needs no right and ends with its session; and all that
// it does, it does in that session. A statement that changes a table never waits for whoever reads
// it, as everybody else would wait behind it: it gives way at once, and is tried again.
//
// # Busy is not an error
//
// The app's own writers may hold the database, and the switch of a fresh file to WAL, which a DSN
// may ask for in every process at once, fails with "database is locked" without waiting for the
// busy timeout. [Up] and [Version] try again until the deadline of their context, or for 30 seconds
// if it has none. They work on any driver and any settings: neither WAL, nor a busy timeout, nor
// immediate transactions are asked for, though the lock itself wants them. In the same way they
// wait for a PostgreSQL server that starts, restarts or has no connection free; a wrong password, a
// missing database or privilege, and a read-only server are reported at once.
//
// # Old code, new database
//
// Migrations only add, so a replica of version N − 1 keeps working while version N is deployed, and
// after a roll-back. Each migration stores in scheduler_lock_schema its version and the lowest code
// version that still works with it; the version of code is [Latest], the newest migration that it
// embeds. Code older than the highest of these refuses with a [*TooNewError]; any other code
// accepts a database that is newer than itself, and leaves it alone.
package migrations
