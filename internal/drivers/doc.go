// Package drivers shows that sqlite.Use works on SQLite drivers other than the
// one this project uses itself. It is a module of its own, so that nobody who
// imports schedlock downloads them: run its tests in this folder.
package drivers
