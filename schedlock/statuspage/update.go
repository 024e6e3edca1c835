package statuspage

import (
	"errors"
	"html/template"
	"maps"
	"regexp"
	"strconv"
	"strings"
	"sync"
)

// The parts of the page, by the id of their element. The stream sends those
// that have changed. Tests of apps look for these ids, and for beat, bar,
// reason, jobs and stream: keep them.
const (
	partAlert    = "alert"
	partVerdict  = "verdict"
	partFindings = "findings"
	partLeader   = "leader"
	partHandover = "handover"
	partSelf     = "self"
	partFailures = "failures"
	partNext     = "next"
	partStandbys = "standbys"
	partTimeline = "timeline"
	partLane     = "lane-" // and its number
	partLegend   = "legend"
	partTerms    = "terms"
	partJobs     = "jobs-list"
	partReplicas = "replicas"
	partAudit    = "audit"
	partLocks    = "locks"
	partQueues   = "queues"
	partSection  = "section-" // and its number
)

var pageTemplate = template.Must(template.New("page").Funcs(template.FuncMap{
	"ago": agoTag, "until": untilTag, "stamp": stamp, "took": took, "cut": cut,
	"jobID": jobID, "pct": pct, "square": squareClass, "words": statusWords, "lasted": lasted,
	"runLink": runLink, "count": count, "spec": shortSpec.Replace,
}).Parse(pageHTML + runsHTML))

// update is a snapshot made ready to be sent. It is shared by all streams.
type update struct {
	h     *Handler
	snap  *snapshot
	title string // of the tab, and for who cannot see it
	icon  string
	beat  *beat
	parts map[string]string // without those that depend on the span

	drawings  *drawings // of the updates before; nil: none
	mu        sync.Mutex
	timelines map[string]map[string]string // the parts of each span
	looking   map[string]string            // parts, for who may only look
}

func newUpdate(h *Handler, s *snapshot, before *drawings) *update {
	u := &update{h: h, snap: s, drawings: before, beat: newBeat(s),
		parts: map[string]string{}, timelines: map[string]map[string]string{}}
	alert := map[string]any{"Failed": s.err != nil, "Blind": s.blind,
		"Starting": errors.Is(s.err, errStarting)}
	if s.err != nil {
		alert["Why"] = h.cfg.PublicError(s.err)
	}
	u.add(partAlert, alert)
	leader, jobs := newLeader(h, s), newJobViews(s)
	verdict := newVerdict(leader, s, jobs)
	u.title, u.icon = leader.Headline, leader.Icon
	switch {
	case u.icon == iconNobody: // of a leader's the headline says it
	case verdict.Grade == warning:
		u.title, u.icon = verdict.Text, iconWarning
	case verdict.Grade == bad:
		u.title, u.icon = verdict.Text, iconNobody
	}
	u.add(partVerdict, verdict)
	u.add(partFindings, verdict.Findings)
	u.add(partLeader, leader)
	u.add(partSelf, map[string]any{"Self": s.self, "Owner": s.owner, "Reason": h.reason(s)})
	u.add(partHandover, leader)
	if s.err != nil {
		return u // what stands there stays; the alert says that it is old
	}
	u.add(partTerms, newTermRows(s))
	if h.jobs {
		tiles := newTiles(s)
		u.add(partFailures, tiles)
		u.add(partNext, tiles)
		u.add(partStandbys, newStandbys(s))
		u.add(partJobs, map[string]any{"Jobs": jobs, "More": s.more, "Pause": s.pause})
	}
	u.add(partReplicas, newTable(s.replicas))
	u.add(partAudit, s.audit)
	u.add(partLocks, s.locks)
	u.add(partQueues, s.queues)
	for i, content := range s.sections {
		u.parts[partSection+strconv.Itoa(i)] = string(content)
	}
	return u
}

// add draws a part with the template of its name.
func (u *update) add(part string, data any) { u.parts[part] = u.h.execute(part, data) }

// orderLink leads to the question of an order. No text from outside can look like one, as it is
// escaped.
var orderLink = regexp.MustCompile(`(?: · )?<a data-order [^>]*>[^<]*</a>`)

// partsFor are the parts for who is offered orders, or for who may only look.
func (u *update) partsFor(orders bool) map[string]string {
	if orders {
		return u.parts
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.looking == nil {
		u.looking = maps.Clone(u.parts)
		for _, part := range []string{partFindings, partHandover, partJobs} {
			if text, found := u.parts[part]; found {
				u.looking[part] = orderLink.ReplaceAllString(text, "")
			}
		}
	}
	return u.looking
}

func (h *Handler) execute(name string, data any) string {
	var b strings.Builder
	if err := pageTemplate.ExecuteTemplate(&b, name, data); err != nil {
		h.cfg.Log.Error("status page: template", "err", err)
		return notShown
	}
	return strings.TrimSpace(b.String())
}

// timeline draws it for a span, once: the terms, the lanes of the jobs, and the legend.
func (u *update) timeline(span string) map[string]string {
	u.mu.Lock()
	defer u.mu.Unlock()
	parts, found := u.timelines[span]
	if found {
		return parts
	}
	line, lanes := newTimeline(u.snap, span), laneJobs(u.snap)
	parts = map[string]string{partTimeline: u.h.execute(partTimeline, line),
		partLegend: u.h.execute(partLegend, map[string]any{"Line": line, "Lanes": len(lanes),
			"More": len(u.snap.jobs) + u.snap.more - len(lanes)})}
	from, to := window(span, u.snap.terms, u.snap.now)
	for i := range maxLanes {
		part := partLane + strconv.Itoa(i)
		if parts[part] = ""; i < len(lanes) {
			parts[part] = u.drawings.lane(u.h, lanes[i], from, to)
		}
	}
	u.timelines[span] = parts
	return parts
}

// selfName tells one replica from another.
func (u *update) selfName() string { return holderName(u.snap.owner) }

// page is what page.html shows.
type page struct {
	Title, Headline, Icon, Self string
	Now                         int64
	Beat                        *beat
	HasJobs                     bool
	Lanes                       int // places for them
	Sections                    []Section
	parts                       map[string]string
}

func (u *update) page(span string, orders bool) page {
	p := page{Title: u.h.cfg.Title, Headline: u.title, Icon: u.icon, Self: u.selfName(),
		Now: u.snap.now.UnixMilli(), Beat: u.beat, HasJobs: u.h.jobs, Lanes: maxLanes,
		Sections: u.h.cfg.Sections, parts: u.partsFor(orders)}
	if u.snap.err == nil {
		p.parts = maps.Clone(p.parts)
		maps.Copy(p.parts, u.timeline(span))
	}
	return p
}

// Part is one of the parts; "" if it was not read.
func (p page) Part(id string) template.HTML { return template.HTML(p.parts[id]) }
