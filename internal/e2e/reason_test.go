//go:build unix

package e2e

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestAfterAHandOverTheOldLeaderDoesNotSayWhatItSawBefore(t *testing.T) {
	onEachDatabase(t, func(t *testing.T, newFleet maker) {
		f := newFleet(t, seldom, "LOCK_HEARTBEAT=1s")
		old, term := f.startLeader()
		next := f.start()
		const revoke = `UPDATE scheduler_lock SET state = 'revoked'`
		f.sql(revoke)
		before, leads := fmt.Sprintf("pid %d on host ", old.pid()),
			fmt.Sprintf("pid %d on host ", next.pid())
		eventually(t, "the old leader has looked at the lock", func() error {
			self := old.lock().Self
			if self.Leader && self.Term != term { // the next one was too slow
				term = self.Term
				f.sql(revoke)
			}
			ended := fmt.Sprintf("its lease of term %d has ended (the lock was released); ", term)
			if self.State == "standby" {
				require.False(t, strings.HasPrefix(self.Reason, before), self.Reason)
			}
			if self.State != "standby" || strings.HasPrefix(self.Reason, ended) ||
				!strings.HasPrefix(self.Reason, leads) { // nobody, until the next has looked
				return fmt.Errorf("%+v", self)
			}
			return nil
		})
	})
}
