// Command demoapp is a small ban-list web app that shows schedlock at work:
// start it several times on one database, and exactly one replica imports the
// block lists and expires old bans, while all of them serve.
//
// It is configured by environment variables (DEMOAPP_…) and flags; see
// demoapp -h and docs/configuration.md. Exit codes: 0 clean, 1 failed, 2 bad
// configuration, 3 another replica holds the lock (strict mode).
//
// demoapp --version says the version of the module.
//
// demoapp healthcheck asks the app that serves on the same address whether it
// is up, and exits with 0 or 1.
package main

import (
	"os"

	"example.com/schedlock/cmd/demoapp/app"
)

func main() { os.Exit(app.Main(os.Args[1:], os.Stderr)) }
