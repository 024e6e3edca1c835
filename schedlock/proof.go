package schedlock

import "errors"

// sayUnproven logs one line when deaths cannot be proven, for each reason, and
// one when they can be again.
func (l *Lock) sayUnproven() {
	err := l.store.ProofOfDeath()
	news := isNews(l, &l.whyUnproven, textOf(err))
	const text = "deaths cannot be proven here: after a crash the TTL decides"
	switch {
	case !news:
	case err == nil:
		l.log.Info("deaths can be proven again")
	case errors.Is(err, errors.ErrUnsupported):
		l.log.Info(text, "err", err)
	default:
		l.log.Warn(text, "err", err)
	}
}
