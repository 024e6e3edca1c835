package postgres

import (
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"example.com/schedlock/schedlock/ledger"
)

// The statement counts the places of a long range itself.
func TestARangeMayTakeAsManyPlacesAsTheLedgerSays(t *testing.T) {
	t.Parallel()
	at := time.Unix(0, 0)
	places := slices.Collect(ledger.Skip{First: at, Last: at.Add(time.Hour), Count: 9}.Places())
	assert.Contains(t, sqlPassed, "ELSE "+strconv.Itoa(len(places)-1)+" END) AS n")
}
