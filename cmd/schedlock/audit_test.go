package main

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestAuditTellsWhoHasOrderedWhatAndWhy(t *testing.T) {
	t.Parallel()
	path := withJobs(t, "import", "clean-up")
	says := expecting(t, "--db", path)
	says(exitDone, "pause", "--all", "--by", "ann", "--reason", "disk full")
	says(exitDone, "pause", "--all", "--by", "bob") // changes nothing
	says(exitUnknown, "run", "import", "--by", "bob")
	says(exitDone, "resume", "--all", "--by", "carol")
	says(exitDone, "reset-cursor", "import", "--by", "dan", "--reason", "bad clock")
	var run requestJSON
	strict(t, says(exitDone, "run", "import", "--by", "eve", "--json"), &run)

	var list []auditJSON
	strict(t, says(exitDone, "audit", "--json"), &list)
	require.Len(t, list, 4)
	assert.Equal(t, run.RequestedAt, list[0].At)
	for i, want := range []auditJSON{
		{What: "run", Job: "import", By: "eve"},
		{What: "reset-cursor", Job: "import", By: "dan", Reason: "bad clock"},
		{What: "resume", By: "carol"},
		{What: "pause", By: "ann", Reason: "disk full"},
	} {
		want.ID, want.At = list[i].ID, list[i].At
		assert.Equal(t, want, list[i])
		assert.NotZero(t, list[i].ID)
	}
	var some []auditJSON
	strict(t, says(exitDone, "audit", "import", "--json"), &some)
	assert.Equal(t, list[:2], some)
	strict(t, says(exitDone, "audit", "-n", "1", "--json"), &some)
	assert.Equal(t, list[:1], some)

	assert.Regexp(t, `(?m)^at +order +job +by +reason\n.* run +import +eve +-\n`+
		`.* reset-cursor +import +dan +bad clock\n.* resume +\(all\) +carol +-\n`+
		`.* pause +\(all\) +ann +disk full\n$`, says(exitDone, "audit"))
	assert.Equal(t, "nobody has given an order for job \"clean-up\"\n",
		says(exitDone, "audit", "clean-up"))
	assert.Contains(t, says(exitUnknown, "audit", "imprt"), `no such job: "imprt"`)
	assert.Contains(t, says(exitUsage, "audit", "-n", "0"), "-n 0 is not above 0")
}
