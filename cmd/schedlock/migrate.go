package main

import (
	"context"
	"fmt"

	"github.com/spf13/pflag"

	"example.com/schedlock/migrations"
)

const migrateHelp = `A replica does the same when it starts. Migrations only add: replicas of the
version before go on working. It makes no database file. For a SQLite file run
it as the user of the app, who must be able to use the -migrate.lock file beside
it. The database has a minute for it, unless --timeout says otherwise: large
tables may need more. A migration that runs out of time leaves the tables as
they were before the step that it was at; run it again.

Examples:
  schedlock migrate --dry-run
  schedlock migrate --timeout 10m
`

type migrateJSON struct {
	From    int64  `json:"from"` // 0: no tables
	To      int64  `json:"to"`
	DryRun  bool   `json:"dry_run"`
	Message string `json:"message"`
}

func migrate(t *tool, flags *pflag.FlagSet) func(context.Context) (int, error) {
	dry := flags.Bool("dry-run", false, "only say what it would do; nothing is written")
	return func(ctx context.Context) (int, error) {
		m, err := t.migrate(ctx, *dry)
		if err != nil {
			return 0, err
		}
		t.say(m, "%s", m.Message)
		return exitDone, nil
	}
}

func (t *tool) migrate(ctx context.Context, dry bool) (m migrateJSON, err error) {
	if dry {
		err = t.lookAtAny(ctx, func(ctx context.Context, s store) (err error) {
			if m.From, err = t.schemaVersion(ctx, s); err == nil && m.From > migrations.Latest {
				err = s.Migrate(ctx) // writes nothing
			}
			return err
		})
	} else {
		m, err = t.migrateNow(ctx)
	}
	if err != nil {
		return m, err
	}
	m.DryRun = dry
	if dry {
		m.To = max(m.From, migrations.Latest)
	}
	switch {
	case m.From > migrations.Latest:
		m.Message = fmt.Sprintf("nothing to do: the tables have version %d, "+
			"newer than this tool (%d), which works with them", m.From, migrations.Latest)
	case m.From == m.To:
		m.Message = fmt.Sprintf("nothing to do: the tables have version %d", m.From)
	case dry:
		m.Message = fmt.Sprintf("would migrate from version %d to %d; nothing was written",
			m.From, m.To)
	default:
		m.Message = fmt.Sprintf("migrated from version %d to %d", m.From, m.To)
	}
	return m, nil
}

func (t *tool) migrateNow(ctx context.Context) (m migrateJSON, err error) {
	s, err := t.open(ctx)
	if err != nil {
		return m, err
	}
	defer s.Close()
	err = t.bounded(ctx, func(ctx context.Context) (err error) {
		if m.From, err = t.schemaVersion(ctx, s); err != nil {
			return err
		}
		if err = s.Migrate(ctx); err != nil {
			return err
		}
		m.To, err = t.schemaVersion(ctx, s)
		return err
	})
	return m, err
}
