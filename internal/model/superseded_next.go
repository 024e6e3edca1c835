package model

import "fmt"

type byteTurn struct {
	*byteRules
	turn[byteState]
}

func (c *byteRules) next(s byteState, emit func(byteState, event)) {
	x := &byteTurn{c, turn[byteState]{s: s, emit: emit}}
	for i := range c.Replicas {
		if r := &s.Replicas[i]; !r.Hung {
			x.dies(i)
			switch r.Phase {
			case standby:
				x.standby(i)
			case committed:
				x.committed(i)
			case leading:
				x.leader(i)
			case stopping:
				x.ends(i)
			}
		}
	}
	if !s.Calm {
		x.hands()
		x.trims()
		x.copies()
		x.faultsStop()
	}
	if s.Calm && x.urgent {
		return
	}
	x.emit(c.tick(s), event{ticks: true})
}

func (c *byteRules) tick(n byteState) byteState {
	if n.Calm {
		n.CalmTicks++
	}
	for i := range n.Replicas {
		r := &n.Replicas[i]
		if r.Phase == committed || r.Phase == leading {
			age(&r.Sent, shortDeadline)
		}
		if r.SeenVersion != 0 {
			age(&r.SeenAge, shortTTL)
		}
		r.Looked = false
	}
	return n
}

func (x *byteTurn) dies(i int) {
	if x.s.Calm {
		return
	}
	if n := x.s; n.Kills > 0 {
		n.Kills--
		n.Replicas[i] = byteReplica{File: n.Path}
		x.emit(n, by(i, "IS KILLED, and starts again"))
	}
	if n := x.s; n.Hangs > 0 && n.Replicas[i].Phase != standby {
		n.Hangs--
		n.Replicas[i].Hung = true
		x.emit(n, by(i, "HANGS for ever"))
	}
}

// standby: replica i opens what the path names, looks, and takes the lock if it may.
func (x *byteTurn) standby(i int) {
	calm := x.s.Calm
	if calm && x.s.Replicas[i].Looked {
		return
	}
	x.urgent = true
	n := x.s
	r, d := &n.Replicas[i], &n.Files[n.Path]
	r.Looked = calm
	if r.SeenVersion != d.Version || r.File != n.Path {
		r.SeenVersion, r.SeenAge = d.Version, 0
	}
	r.File = n.Path
	reason := ""
	switch alone := !x.anotherHolds(&n, i, d); {
	case n.Claims == 0:
	case d.Row == 0 && !d.open() && alone:
		reason = "free"
	case alone:
		reason = "proof of death"
	case r.SeenAge >= shortTTL:
		reason = "unchanged for the TTL"
	}
	if reason != "" {
		x.takes(n, i, reason)
	}
	if !calm || reason == "" {
		x.emit(n, by(i, "looks: "+d.String()))
	}
	if x.EndsEarly && d.Row != 0 && d.Terms[d.Row] == open && r.SeenAge >= 1 {
		d.Terms[d.Row] = ended
		x.emit(n, by(i, "writes the end of the row's term, before its watch is complete"))
	}
}

// takes: replica i takes the lock. It writes the end of the term before its own.
func (x *byteTurn) takes(n byteState, i int, reason string) {
	n.Claims--
	n.Tokens++
	r, d := &n.Replicas[i], &n.Files[n.Path]
	if d.open() {
		d.Terms[d.Newest] = ended
	}
	if d.Row != 0 {
		d.Terms[d.Row] = ended
	}
	d.Row, d.Newest, d.Version = n.Tokens, n.Tokens, fresh
	d.Terms[n.Tokens] = open
	*r = byteReplica{Phase: committed, Token: n.Tokens, File: r.File}
	x.changed(&n)
	x.emit(n, by(i, fmt.Sprintf("takes the lock with token %d: %s", n.Tokens, reason)))
}

// changed: with AllSee every replica sees every change of the row.
func (x *byteTurn) changed(n *byteState) {
	for j := 0; j < x.Replicas && x.AllSee; j++ {
		n.Replicas[j].SeenVersion, n.Replicas[j].SeenAge = 0, 0
	}
}

func (x *byteTurn) committed(i int) {
	x.urgent = true
	n := x.s
	r := &n.Replicas[i]
	if r.Sent >= shortDeadline {
		r.Phase = stopping
		x.emit(n, by(i, "learns too late that it has the lock"))
		return
	}
	r.Phase = leading
	x.emit(n, by(i, "LEADS"))
}

func (x *byteTurn) leader(i int) {
	r := &x.s.Replicas[i]
	d := &x.s.Files[r.File]
	if r.Sent >= 1 {
		x.urgent = true
		n := x.s
		stops := func(text string) {
			n.Replicas[i].Phase = stopping
			x.emit(n, by(i, text+": steps down"))
		}
		switch {
		case r.Sent >= shortDeadline:
			stops("deadline passed")
		case r.File != x.s.Path && !x.NoticesLess:
			stops("finds that the file was replaced")
		case d.Row != r.Token:
			stops("its heartbeat finds no row")
		default:
			n.Replicas[i].Sent = 0
			n.Files[r.File].Version = fresh
			x.changed(&n)
			x.emit(n, by(i, "heartbeat"))
		}
	}
	if x.EndsFirst && d.Row != r.Token && d.Terms[r.Token] == open {
		n := x.s
		n.Files[r.File].Terms[r.Token], n.Files[r.File].Version = ended, fresh
		x.emit(n, by(i, "its heartbeat finds no row: writes the end BEFORE it stops"))
	}
	if !x.s.Calm {
		n := x.s
		n.Replicas[i].Phase = stopping
		x.emit(n, by(i, "leads no more, and holds its byte still"))
	}
}

// ends: the jobs of replica i have returned. It ends its term in the file at the path, or
// in the one that it has open, and gives its byte back then.
func (x *byteTurn) ends(i int) {
	x.urgent = true
	r := &x.s.Replicas[i]
	files := []int8{x.s.Path, r.File}
	if r.File == x.s.Path {
		files = files[:1]
	}
	for _, file := range files {
		n := x.s
		d := &n.Files[file]
		if d.Row == r.Token {
			d.Row, d.Version = 0, fresh
		}
		if d.Terms[r.Token] == open {
			d.Terms[r.Token], d.Version = ended, fresh
		}
		if !x.s.Calm {
			x.emit(n, by(i, "deletes its row, writes the end, holds its byte still"))
		}
		n.Replicas[i] = byteReplica{File: n.Path, Looked: r.Looked}
		x.emit(n, by(i, "deletes its row, writes the end, gives its byte back"))
	}
}

// hands: somebody edits the tables.
func (x *byteTurn) hands() {
	path := x.s.Path
	if n := x.s; n.Edits > 0 && n.Files[path].Row != 0 {
		n.Edits--
		d := &n.Files[path]
		row := d.Row
		d.Row, d.Version = 0, fresh
		x.emit(n, fault("THE ROW IS DELETED BY HAND"))
		if row != edited {
			d.Row = edited
			x.emit(n, fault("THE ROW'S TOKEN IS EDITED BY HAND"))
		}
	}
	if n := x.s; n.Ends > 0 && n.Files[path].Terms[n.Files[path].Newest] == open {
		n.Ends--
		d := &n.Files[path]
		d.Terms[d.Newest], d.Version = byHand, fresh
		x.emit(n, fault("AN END IS WRITTEN BY HAND"))
	}
}

func (x *byteTurn) trims() {
	d := &x.s.Files[x.s.Path]
	for token := int8(1); token < edited && x.s.Trims > 0; token++ {
		if d.Terms[token] < ended || token == d.Newest {
			continue
		}
		n := x.s
		n.Trims--
		n.Files[n.Path].Terms[token] = unknown
		x.emit(n, fault(fmt.Sprintf("THE HISTORY IS TRIMMED: token %d is unknown", token)))
	}
}

// copies: a copy of the file is made, lives on, and comes back.
func (x *byteTurn) copies() {
	path := x.s.Path
	if x.s.Moves == 0 && x.s.InPlace == 0 {
		return
	}
	if n := x.s; !n.Copied || n.Copy != n.Files[path] {
		n.Copy, n.Copied = n.Files[path], true
		x.emit(n, fault("a copy is made: "+n.Copy.String()))
	}
	if !x.s.Copied {
		return
	}
	if n := x.s; n.Elsewhere > 0 && n.Copy.Row != 0 {
		n.Elsewhere--
		d := &n.Copy
		if d.Terms[d.Row] < ended {
			d.Terms[d.Row] = elsewhere
		}
		d.Terms[edited] = elsewhere
		d.Row, d.Newest, d.Version = 0, edited, fresh
		x.emit(n, fault("THE COPY LIVES ON ELSEWHERE: its row is watched, taken, released"))
	}
	if n := x.s; n.Moves > 0 {
		n.Moves--
		n.Path = 1 - path
		n.Files[n.Path] = n.Copy
		x.emit(n, fault("THE COPY IS MOVED OVER THE FILE: "+n.Copy.String()))
	}
	if n := x.s; n.InPlace > 0 {
		n.InPlace--
		n.Files[path] = n.Copy
		x.emit(n, fault("THE COPY IS RESTORED IN PLACE: "+n.Copy.String()))
	}
}

// faultsStop, if only an old holder hangs, and not today's.
func (x *byteTurn) faultsStop() {
	if x.LeadsWithin == 0 {
		return
	}
	n := x.s
	for i := range n.Replicas {
		r := &n.Replicas[i]
		if r.Hung && (r.Token == n.Files[n.Path].Newest || r.File != n.Path) {
			return
		}
	}
	n.Calm, n.Claims = true, max(1, n.Claims)
	n.Kills, n.Edits, n.Ends, n.Moves, n.Trims = 0, 0, 0, 0, 0
	n.InPlace, n.Hangs, n.Elsewhere = 0, 0, 0
	x.emit(n, fault("FAULTS STOP"))
}
