package locktest_test

import (
	"cmp"
	"flag"
	"fmt"
	"go/format"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"example.com/schedlock/schedlock/locktest"
)

// Writes the contract into the package comment:
//
//	go test ./schedlock/locktest -run Comment -args -write
var write = flag.Bool("write", false, "write doc_rules.go")

func TestThePackageCommentHasTheContract(t *testing.T) {
	t.Parallel()
	const file = "doc_rules.go"
	var b strings.Builder
	list := func(title string, rules []locktest.Rule) {
		fmt.Fprintf(&b, "//\n// # %s\n//\n", title)
		slices.SortFunc(rules, func(a, b locktest.Rule) int { return cmp.Compare(a.Number, b.Number) })
		for _, r := range rules {
			lead := fmt.Sprintf("//%3d. ", r.Number)
			for _, word := range strings.Fields(r.Text) {
				if len(lead)+len(word) > 98 {
					fmt.Fprintln(&b, strings.TrimRight(lead, " "))
					lead = "//     "
				}
				lead += word + " "
			}
			fmt.Fprintln(&b, strings.TrimRight(lead, " "))
		}
	}
	list("Contract of a store", locktest.Rules())
	list("Contract of a store of named locks", locktest.NamedRules())
	list("Contract of a store of queues", locktest.QueueRules())
	formatted, err := format.Source([]byte(b.String() + "package locktest\n"))
	require.NoError(t, err)
	want := string(formatted)
	if *write {
		require.NoError(t, os.WriteFile(file, []byte(want), 0o644))
	}
	have, err := os.ReadFile(file)
	require.NoError(t, err)
	require.Equal(t, want, string(have), "run the command above")
}
