package statuspage

import (
	"context"
	"errors"
	"html/template"
	"sync"
	"sync/atomic"
	"time"

	"example.com/schedlock/internal/bounded"
)

// notShown stands in the place of a part that its code cannot draw.
const notShown = `<p class="alert" role="alert">this part cannot be shown</p>`

// section is one of the app's. Its code may never return, so there is one call of it at a time,
// which nobody waits for longer than for the database.
type section struct {
	Section
	turn bounded.Turn
	late atomic.Bool // the call that has the turn has outlasted its limit
}

// renderSections calls all of them at once, so that none waits for another.
func (h *Handler) renderSections(ctx context.Context) []template.HTML {
	contents := make([]template.HTML, len(h.sections))
	var all sync.WaitGroup
	for i, s := range h.sections {
		all.Go(func() { contents[i] = h.renderSection(ctx, s) })
	}
	all.Wait()
	return contents
}

// renderSection keeps what goes wrong in the app's part out of the others.
func (h *Handler) renderSection(ctx context.Context, s *section) template.HTML {
	if !s.turn.TryTake() {
		if s.late.Load() {
			return notShown
		}
		if s.turn.Take(ctx) != nil {
			h.noteLate(ctx, s)
			return notShown
		}
	}
	s.late.Store(false)
	var content template.HTML
	result := bounded.Go(func() (err error) {
		defer s.turn.Give()
		content, err = s.Render(ctx)
		return err
	})
	var err error
	select {
	case err = <-result:
	case <-ctx.Done():
		select {
		case err = <-result: // it heeds ctx, and says what was slow
		case <-time.After(bounded.Moment):
			h.noteLate(ctx, s)
			return notShown
		}
	}
	if p, ok := errors.AsType[*bounded.Panic](err); ok {
		h.cfg.Log.Error("status page: section panicked", "section", s.Title, "panic", p.Value)
		return notShown
	}
	if err != nil {
		h.cfg.Log.Debug("status page: section", "section", s.Title, "err", err)
		return template.HTML(`<p class="alert" role="alert">` +
			template.HTMLEscapeString(h.cfg.PublicError(err)) + `</p>`)
	}
	return content
}

// noteLate notes that the call has outlasted a reader's time, unless that reader is gone before.
func (h *Handler) noteLate(ctx context.Context, s *section) {
	if errors.Is(context.Cause(ctx), context.DeadlineExceeded) &&
		s.late.CompareAndSwap(false, true) {
		h.cfg.Log.Warn("status page: section does not return", "section", s.Title)
	}
}
