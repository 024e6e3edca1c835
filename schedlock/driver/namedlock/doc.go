// Package namedlock is what a database must provide for named locks; package
// schedlock/named has what an app calls.
package namedlock
