package model

import (
	"cmp"
	"fmt"
)

// The model of superseded bytes, on SQLite: which held bytes of the lease file count. One
// machine, one lease file, and two places for a database file. The file at the path can
// be moved over, restored in place, edited and trimmed, and its copy can live on.

// An ending is what a table knows of the term of a token.
type ending int8

const (
	unknown   ending = iota
	open             // it has no end
	ended            // by its holder, or by a successor beside this lease file
	elsewhere        // by a successor beside another lease file
	byHand
)

// A rule says which held bytes do not count.
type rule int8

const (
	everyByteCounts rule = iota
	anEndIsEnough        // and the token is not the row's
	notTheNewest         // as before, and the term is not the newest
	endBesideFile        // the rule: the end bears the id of this lease file
	bothRules            // as before, and the term is not the newest
	rowsOwnToo           // an end is enough, even for the row's token
	knownIsEnough        // the term is in the table, and the token is not the row's
	onlyTheRows          // no byte counts but that of the row's token
)

// edited is a token that no replica has.
const edited int8 = 5

// database is a database file.
type database struct {
	Row, Version, Newest int8 // tokens, and what changes with every change
	Terms                [edited + 1]ending
}

func (d *database) open() bool { return d.Newest != 0 && d.Terms[d.Newest] < ended }

func (d *database) String() string {
	switch {
	case d.Newest == 0:
		return "empty"
	case d.Row != 0:
		return fmt.Sprintf("row of token %d", d.Row)
	case d.open():
		return fmt.Sprintf("no row, newest token %d, open", d.Newest)
	}
	return fmt.Sprintf("no row, newest token %d, ended", d.Newest)
}

type byteReplica struct {
	Phase                phase // it holds its byte in all of them but standby
	Sent                 int8
	Token                int8
	File                 int8 // the database that it has open
	SeenVersion, SeenAge int8 // the watch
	Looked               bool // in this tick, once faults have stopped
	Hung                 bool
}

func (r *byteReplica) trusts() bool { return r.Phase == leading && r.Sent < shortDeadline }

type byteState struct {
	Files  [2]database
	Copy   database
	Copied bool
	Path   int8 // which of the files the path names
	Tokens int8 // how many were drawn

	Claims, Kills, Edits, Ends, Moves, Trims int8 // that may still come
	Elsewhere, InPlace, Hangs                int8

	Calm      bool // faults have stopped
	CalmTicks int8
	Replicas  [maxReplicas]byteReplica
}

type byteRules struct {
	Replicas int  // 0: 3
	Claims   int8 // 0: 3
	Rule     rule

	// What may happen, and how often.

	Kills, Edits, Ends int8 // Ends: written by hand
	Moves              int8 // the copy is moved over the file
	Trims              int8 // an old term is deleted
	Elsewhere          int8 // the copy lives on in another folder
	InPlace            int8 // the copy is restored in place
	Hangs              int8
	AllSee             bool // every standby sees every change of the row

	// Rules that are missing.

	EndsEarly   bool // a standby writes an end before its watch is complete
	EndsFirst   bool // a holder that finds its row gone writes the end, and stops then
	NoticesLess bool // a heartbeat does not find out that the file was replaced

	// What is checked besides OneLeader.

	LeadsWithin int8 // once faults stop, somebody leads within so many ticks
}

func (c *byteRules) start() byteState {
	s := byteState{Claims: c.Claims, Kills: c.Kills, Edits: c.Edits, Ends: c.Ends,
		Moves: c.Moves, Trims: c.Trims, Elsewhere: c.Elsewhere, InPlace: c.InPlace,
		Hangs: c.Hangs}
	s.Files[0].Version = 1
	return s
}

// superseded reports whether the byte of a token does not count.
func (c *byteRules) superseded(d *database, token int8) bool {
	end, rows, newest := d.Terms[token], token == d.Row, token == d.Newest
	switch c.Rule {
	case anEndIsEnough:
		return end >= ended && !rows
	case rowsOwnToo:
		return end >= ended
	case notTheNewest:
		return end >= ended && !newest && !rows
	case endBesideFile:
		return end == ended && !rows
	case bothRules:
		return end == ended && !newest && !rows
	case knownIsEnough:
		return end != unknown && !rows
	case onlyTheRows:
		return !rows
	}
	return false
}

// anotherHolds reports whether another replica than i holds a byte that counts.
func (c *byteRules) anotherHolds(s *byteState, i int, d *database) bool {
	for j := range s.Replicas {
		r := &s.Replicas[j]
		if j != i && r.Phase != standby && !c.superseded(d, r.Token) {
			return true
		}
	}
	return false
}

// leaders is how many replicas trust their leases; a hung one may count or not.
func (s *byteState) leaders(hungToo bool) (n int) {
	for i := range s.Replicas {
		if r := &s.Replicas[i]; r.trusts() && (hungToo || !r.Hung) {
			n++
		}
	}
	return n
}

func (c *byteRules) broken(s *byteState) Promise {
	return leadership(s.leaders(true), s.Calm, s.CalmTicks, c.LeadsWithin)
}

func (c *byteRules) done(s *byteState) bool { return s.Calm && s.leaders(false) > 0 }

func (c *byteRules) forget(s *byteState) {
	if s.Moves == 0 && s.InPlace == 0 {
		s.Copied, s.Copy = false, database{}
	}
	used := [2]bool{}
	used[s.Path] = true
	for i := range s.Replicas {
		if r := &s.Replicas[i]; r.Phase != standby {
			used[r.File] = true
		}
	}
	for f := range s.Files {
		if !used[f] {
			s.Files[f] = database{}
		}
	}
	for i := range s.Replicas {
		r := &s.Replicas[i]
		if s.Claims == 0 { // nobody will claim any more
			r.SeenVersion, r.SeenAge = 0, 0
		}
		if v := r.SeenVersion; v != 0 && v != s.Files[0].Version && v != s.Files[1].Version &&
			v != s.Copy.Version {
			r.SeenVersion, r.SeenAge = gone, 0
		}
	}
}

func (c *byteRules) rename(s *byteState) {
	var versions names
	versions.rename(&s.Files[s.Path].Version, &s.Files[1-s.Path].Version, &s.Copy.Version)
	for i := range s.Replicas {
		versions.rename(&s.Replicas[i].SeenVersion)
	}
}

func (c *byteRules) interchangeable() int { return c.Replicas }

func (c *byteRules) reorder(s byteState, order [maxReplicas]int) byteState {
	s.Replicas = reordered(s.Replicas, order)
	return s
}

func (c byteRules) search(o Options) Result {
	c.Replicas, c.Claims = cmp.Or(c.Replicas, 3), cmp.Or(c.Claims, 3)
	return search(c.start(), &c, o)
}
