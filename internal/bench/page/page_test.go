package page

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestTheLastSectionIsReplacedAndTheRestStays(t *testing.T) {
	const old = "# Page\n\n## One\n\nfirst\n\n" + Peers + "\nold\n\n| a | b |\n"
	before, peers := Split(old)
	require.Equal(t, "# Page\n\n## One\n\nfirst\n", before)
	require.Equal(t, "old\n\n| a | b |", peers)
	require.Equal(t, old, Join(before, peers))
	before, peers = Split("# Page\n")
	require.Empty(t, peers)
	require.Equal(t, "# Page\n\n"+Peers+"\nnew\n", Join(before, "new"))
}

func TestProseIsWrapped(t *testing.T) {
	words := strings.Repeat("word ", 30)
	require.Equal(t, "# "+words+"head\n\n"+
		strings.TrimSpace(strings.Repeat("word ", 20))+"\n"+
		strings.TrimSpace(strings.Repeat("word ", 10))+"\n\n"+
		"- "+strings.TrimSpace(strings.Repeat("word ", 19))+"\n  "+
		strings.TrimSpace(strings.Repeat("word ", 11))+"\n- short\n\n"+
		"| "+words+"|\n",
		Wrap("# "+words+"head\n\n\n\n"+words+"\n\n- "+words+"\n- short\n\n| "+words+"|\n"))
}

func TestATableWithoutRowsSaysSo(t *testing.T) {
	require.Equal(t, "| a | b |\n| c | d |\n", Rows([][]string{{"a", "b"}, {"c", "d"}}))
	require.Equal(t, "| not measured in this run |\n", Rows(nil))
}

func TestNumbersAreShort(t *testing.T) {
	for d, want := range map[time.Duration]string{
		0: "0", 999: "999 ns", 1234 * time.Nanosecond: "1.23 µs",
		99_960 * time.Nanosecond: "100 µs", -5 * time.Millisecond: "-5 ms",
		61 * time.Second: "61 s",
	} {
		require.Equal(t, want, Time(d))
	}
	for n, want := range map[float64]string{0: "0 B", 512: "512 B", 2048: "2 KiB",
		3.5 * (1 << 20): "3.5 MiB", 5 << 40: "5120 GiB"} {
		require.Equal(t, want, Bytes(n))
	}
	require.Equal(t, "2.4 ns", Nanoseconds(2.4))
	require.Equal(t, "39800", Number(39764))
	require.Equal(t, "0.000123", Number(0.00012345))
	require.Equal(t, "1,000,000", Thousands(1_000_000))
}
