package statuspage

import (
	"bytes"
	"errors"
	"fmt"
	"html/template"
	"io"
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
	h      *Handler
	snap   *snapshot
	leader *leader
	title  string // of the tab, and for who cannot see it
	icon   string
	beat   *beat
	parts  map[string]string // without those that depend on the span
	err    error             // of a template

	drawings  *drawings // of the updates before; nil: none
	mu        sync.Mutex
	timelines map[string]map[string]string // the parts of each span
	looking   map[string]string            // parts, for who may only look
}

func newUpdate(h *Handler, s *snapshot, before *drawings) *update {
	u := &update{h: h, snap: s, drawings: before, leader: newLeader(h, s), beat: newBeat(s),
		parts: map[string]string{}, timelines: map[string]map[string]string{}}
	u.add(partAlert, "alert", map[string]any{"Failed": s.err != nil,
		"Starting": errors.Is(s.err, errStarting), "Blind": s.blind, "Why": h.public(s.err)})
	jobs := newJobViews(s)
	verdict := newVerdict(u.leader, s, jobs)
	u.title, u.icon = u.leader.Headline, u.leader.Icon
	switch {
	case u.icon == iconNobody: // of a leader's the headline says it
	case verdict.Grade == warning:
		u.title, u.icon = verdict.Text, iconWarning
	case verdict.Grade == bad:
		u.title, u.icon = verdict.Text, iconNobody
	}
	u.add(partVerdict, "verdict", verdict)
	u.add(partFindings, "findings", verdict.Findings)
	u.add(partLeader, "leader", u.leader)
	u.add(partSelf, "self", map[string]any{"Self": s.self, "Owner": s.owner, "Reason": h.reason(s)})
	u.add(partHandover, "handover", u.leader)
	if s.err != nil {
		return u // what stands there stays; the alert says that it is old
	}
	u.add(partTerms, "terms", newTermRows(s))
	if h.jobs {
		tiles := newTiles(s)
		u.add(partFailures, "failures", tiles)
		u.add(partNext, "next", tiles)
		u.add(partStandbys, "standbys", newStandbys(s))
		u.add(partJobs, "jobs", map[string]any{"Jobs": jobs,
			"More": s.more, "Pause": s.pause})
	}
	u.add(partReplicas, "replicas", map[string]any{
		"Rows": s.replicas[:min(len(s.replicas), maxReplicas)],
		"More": max(len(s.replicas)-maxReplicas, 0)})
	u.add(partAudit, "audit", s.audit)
	u.add(partLocks, "locks", s.locks)
	u.add(partQueues, "queues", s.queues)
	for i, content := range s.sections {
		u.parts[partSection+strconv.Itoa(i)] = string(content)
	}
	return u
}

// public is what the page says of an error; "" for none.
func (h *Handler) public(err error) string {
	if err == nil {
		return ""
	}
	return h.cfg.PublicError(err)
}

func (u *update) add(part, name string, data any) {
	text, err := execute(name, data)
	if err != nil && u.err == nil {
		u.err = err
	}
	u.parts[part] = text
}

// orderLink leads to the question of an order. No text from outside can look like one, as it is
// escaped.
var orderLink = regexp.MustCompile(`<a data-order [^>]*>[^<]*</a>`)

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

func execute(name string, data any) (string, error) {
	var b bytes.Buffer
	if err := pageTemplate.ExecuteTemplate(&b, name, data); err != nil {
		return "", fmt.Errorf("template %s: %w", name, err)
	}
	return strings.TrimSpace(b.String()), nil
}

// timeline draws it for a span, once: the terms, the lanes of the jobs, and the legend.
func (u *update) timeline(span string) map[string]string {
	u.mu.Lock()
	defer u.mu.Unlock()
	parts, found := u.timelines[span]
	if found {
		return parts
	}
	parts = map[string]string{}
	fill := func(part, text string, err error) {
		if parts[part] = text; err != nil {
			u.h.cfg.Log.Error("status page: template", "err", err)
		}
	}
	line := newTimeline(u.snap, span)
	text, err := execute("timeline", line)
	fill(partTimeline, text, err)
	from, to, _ := window(span, u.snap.terms, u.snap.now)
	lanes := laneJobs(u.snap)
	for i := range maxLanes {
		part := partLane + strconv.Itoa(i)
		if parts[part] = ""; i < len(lanes) {
			text, err := u.drawings.lane(lanes[i], u.snap.now, from, to)
			fill(part, text, err)
		}
	}
	text, err = execute("legend", map[string]any{"Line": line, "Lanes": len(lanes),
		"More": len(u.snap.jobs) + u.snap.more - len(lanes)})
	fill(partLegend, text, err)
	u.timelines[span] = parts
	return parts
}

// selfName tells one replica from another.
func (u *update) selfName() string { return holderName(u.snap.owner) }

// render writes the whole page.
func (h *Handler) render(w io.Writer, u *update, span string, orders bool) error {
	if u.err != nil {
		return u.err
	}
	parts := map[string]template.HTML{}
	fill := func(name, text string) { parts[name] = template.HTML(fillAges(text, u.snap.now)) }
	for name, text := range u.partsFor(orders) {
		fill(name, text)
	}
	if u.snap.err == nil {
		for name, text := range u.timeline(span) {
			fill(name, text)
		}
	}
	type section struct {
		ID, Title string
		Content   template.HTML
	}
	var sections, lanes []section
	for i := range maxLanes {
		id := partLane + strconv.Itoa(i)
		lanes = append(lanes, section{ID: id, Content: parts[id]})
	}
	for i, s := range h.cfg.Sections {
		id := partSection + strconv.Itoa(i)
		sections = append(sections, section{id, s.Title, parts[id]})
	}
	return pageTemplate.Execute(w, map[string]any{
		"Title": h.cfg.Title, "Headline": u.title, "Icon": u.icon,
		"Now": u.snap.now.UnixMilli(), "Self": u.selfName(),
		"Beat": u.beat, "HasJobs": h.jobs, "Failures": parts[partFailures], "Next": parts[partNext],
		"Standbys": parts[partStandbys],
		"Alert":    parts[partAlert], "Verdict": parts[partVerdict],
		"Findings": parts[partFindings], "Leader": parts[partLeader], "Handover": parts[partHandover],
		"SelfPart": parts[partSelf], "Timeline": parts[partTimeline],
		"Terms": parts[partTerms], "Jobs": parts[partJobs], "Locks": parts[partLocks],
		"Lanes": lanes, "Legend": parts[partLegend], "Audit": parts[partAudit],
		"Replicas": parts[partReplicas], "Queues": parts[partQueues], "Sections": sections,
	})
}
