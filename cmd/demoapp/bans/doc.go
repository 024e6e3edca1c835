// Package bans is the demo app's domain: a table of banned networks, filled
// from public IP block lists.
//
// A [Scanner] reads one list and keeps no more than one line of it in memory. A
// [Store] keeps the bans: Import reads a folder of lists, Expire deletes what no
// list has named for a while, Latest and Count are for the page.
//
// Import and Expire write in short transactions of at most 1,000 rows each, and
// the first statement of every one of them is the caller's [Fence]. A replica
// that is no longer the leader therefore loses at most the batch it was in, and
// cannot write another. Both may be stopped anywhere and run again: a ban is
// keyed by its network, and its times only move forward.
package bans
