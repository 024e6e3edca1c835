// Package filesystem tells whether the locks of SQLite, and those of the lease
// file, reach every process that can open a file, by where the file lies.
package filesystem
