package section

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestASectionIsReplacedAndTheRestStays(t *testing.T) {
	const page = "# Page\n\n## One\n\nfirst\n\n" + Peers + "\nold\n\n| a | b |\n\n## Last\n\nend\n"
	require.Equal(t, "old\n\n| a | b |\n", Of(page, Peers))
	changed := Replace(page, Peers, "\nnew\n")
	require.Equal(t,
		"# Page\n\n## One\n\nfirst\n\n"+Peers+"\nnew\n\n## Last\n\nend\n", changed)
	require.Equal(t, changed, Replace(changed, Peers, Of(changed, Peers)))
}

func TestAPageWithoutTheSectionGetsItAtTheEnd(t *testing.T) {
	require.Empty(t, Of("# Page\n", Peers))
	require.Equal(t, "# Page\n\n"+Peers+"\nnew\n", Replace("# Page\n", Peers, "new"))
}
